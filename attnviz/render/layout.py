"""The layout of all pictures: heading, rows × columns of panels, labels, bars, legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log

import numpy as np

from attnviz.render.axes import PositionAxis, TokenAxis
from attnviz.render.axis_labels import labels_of
from attnviz.render.drawing import (
    CellNumber,
    CellSize,
    ColourBar,
    Drawing,
    Line,
    PlacedPanel,
    Text,
)
from attnviz.render.figure_options import FigureOptions
from attnviz.render.palette import palette, prefers_white
from attnviz.render.panel import (
    BLIND,
    FORBIDDEN,
    NOT_A_NUMBER,
    ONLY_A,
    ONLY_B,
    PADDING,
    WEIGHT,
    CellKinds,
    Pair,
    Panel,
)
from attnviz.render.scales import Scale

MARGIN = 18.0
TITLE_SIZE, SUBTITLE_SIZE, PARAGRAPH_SIZE, SMALL_SIZE = 13.0, 8.5, 8.5, 7.5

SMALLEST_NUMBER = 13.0
"""Cells narrower than this, in points, hold no number that could be read."""

TALLEST_BAR, BAR_ROOM, BAR_GAP = 300.0, 44.0, 14.0

LEGEND = {
    FORBIDDEN: "forbidden by a mask",
    BLIND: "sees nothing",
    PADDING: "padding",
    NOT_A_NUMBER: "not a number",
    ONLY_A: "allowed in A only",
    ONLY_B: "allowed in B only",
}

Axes = tuple[TokenAxis | PositionAxis, TokenAxis | PositionAxis]


@dataclass(frozen=True)
class Heading:
    """What stands above the panels, and the `footer` below them. A subtitle is never wrapped."""

    title: str = ""
    subtitle: str | None = None
    paragraphs: tuple[str, ...] = ()
    footer: str = ""

    def texts(self) -> list[Text]:
        """The title and the subtitle, which differ between the pictures of single heads."""
        found = [Text(MARGIN, MARGIN + 11, self.title, TITLE_SIZE, bold=True)]
        if self.subtitle is not None:
            found.append(Text(MARGIN, MARGIN + 27, self.subtitle, SUBTITLE_SIZE, 0.75))
        return found


# ── sizes of cells ───────────────────────────────────────────────────────────────────────────


def overview_cells(shape: Pair, n_columns: int, options: FigureOptions) -> CellSize:
    """Cells of small panels: fewer columns leave more room; a picture grows with its columns."""
    scale, (n_q, n_k), longest = options.dpi / 72, shape, max(shape)
    limit = (72 * (7.0 + n_columns) * (2 if options.annotate else 1)) / n_columns - 14
    cell = min(limit, max(96, (15.0 if options.annotate else 11.0) * longest)) / longest
    pool = ceil(longest / max(floor(limit * scale), 1))
    n_q, n_k = ceil(n_q / pool), ceil(n_k / pool)
    wide = max(cell * pool, 84 / n_k)
    high = max(cell * pool, 24 / n_q, 7.5 if n_q <= 12 else 0)
    return CellSize(whole_pixels(wide, options), whole_pixels(high, options), pool)


def large_cells(
    shape: Pair,
    options: FigureOptions,
    cell: float = 26.0,
    largest: float = 500.0,
    narrowest: float = 60.0,
    pixels: float = 2048.0,
) -> CellSize:
    """Cells of a panel that has a picture of its own, or shares it with two others."""
    (n_q, n_k), longest = shape, max(shape)
    side = max(150.0, min(cell * longest, largest), 8.6 * longest if longest <= 66 else 0.0)
    if options.annotate and longest <= 60:
        side = max(side, 15.0 * longest)
    pool = ceil(longest / max(side * options.dpi / 72, pixels))
    points = side / ceil(longest / pool)
    wide, high = max(points, narrowest / ceil(n_k / pool)), max(points, 60 / ceil(n_q / pool))
    return CellSize(whole_pixels(wide, options), whole_pixels(high, options), pool)


def whole_pixels(points: float, options: FigureOptions) -> int:
    return max(1, floor(points * options.dpi / 72 + 1e-9))


def grid(pairs: Sequence[Pair], aspect: float) -> tuple[list[Pair], int, int]:
    """(row, column) of each head, the number of rows, the number of columns.

    The heads of one layer, or one head of several layers, are wrapped like words. Several heads of
    several layers are a matrix, a layer a row. With many more layers than heads it would be a
    tower: then several layers share a row, each with its heads side by side. `aspect` is the width
    of a panel by its height.
    """
    layers = sorted({layer for layer, _ in pairs})
    numbers = sorted({number for _, number in pairs})
    if len(layers) == 1:
        units, width, at = len(pairs), 1, [(i, 0) for i in range(len(pairs))]
    else:
        units, width = len(layers), len(numbers)
        at = [(layers.index(layer), numbers.index(number)) for layer, number in pairs]
    is_matrix = units <= width**2  # 4 layers of 2 heads, 9 of 3, 16 of 4

    def cost(abreast: int) -> float:
        rows = ceil(units / abreast)
        lopsided = abs(log(abreast * width * aspect / (rows * 1.5)))
        return lopsided + 1.2 * (rows * abreast - units) / units

    abreast = 1 if is_matrix else min(range(1, units + 1), key=cost)
    places = [(unit // abreast, unit % abreast * width + beside) for unit, beside in at]
    return places, ceil(units / abreast), abreast * width


# ── the layout ───────────────────────────────────────────────────────────────────────────────


class PanelLayout:
    """Where everything of a picture of panels is placed. Panels of one layout have one size."""

    def __init__(
        self,
        blank: Drawing,
        axes: Axes,
        shape: Pair,
        cell: CellSize,
        places: Sequence[Pair] = ((0, 0),),
        largest_label: float = 9.5,
        longest_label: int = 24,
    ) -> None:
        """`blank` has the fonts and options of the drawings; `places` are (row, column)."""
        self._blank, self._axes, self.cell, self._places = blank, axes, cell, places
        scale = blank.scale
        n_q, n_k = (ceil(n / cell.pool) for n in shape)
        self._wide, self._high = n_k * cell.width / scale, n_q * cell.height / scale
        self._cell_wide, self._cell_high = self._wide / shape[1], self._high / shape[0]
        kind = largest_label, longest_label
        self.rows = labels_of(axes[0], blank, self._cell_high, kind[0], False, kind[1])
        self.columns = labels_of(axes[1], blank, self._cell_wide, kind[0], True, kind[1])
        self.numbers_fit = cell.pool == 1 and self._cell_wide >= SMALLEST_NUMBER <= self._cell_high

    def label_notes(self, where: str) -> list[str]:
        """Which labels are left out, once where those of queries and keys are left out alike."""
        notes = [self.rows.note("tokens"), self.columns.note("tokens")]
        if notes[0] != notes[1]:
            notes = [self.rows.note("queries"), self.columns.note("keys")]
        return [f"{where}: {text}" for text in dict.fromkeys(notes) if text]

    def above_panels(self, panels: Sequence[Panel]) -> tuple[list[str], list[str], int]:
        """Each panel's name, as many measures as fit above it, and how many these are."""
        size, small = self._type_sizes()
        width = self._blank.text_width
        names: list[str] = []
        for forms in zip(*(panel.names for panel in panels), strict=False):
            names = list(forms)
            if max(width(name, size, bold=True) for name in names) <= self._wide:
                break
        lines: list[str] = []
        most = max(len(panel.measures) for panel in panels)
        n = most
        for n in range(most, 0, -1):
            lines = [" · ".join(panel.measures[:n]) for panel in panels]
            if max(width(line, small) for line in lines) <= self._wide:
                break
        return names, lines, n

    def drawing(
        self,
        panels: Sequence[Panel],
        heading: Heading,
        named: bool = True,
        numbered: bool = False,
        above: float = 14.0,
    ) -> Drawing:
        """Place `panels`, with their names above them where they are `named`, else with `above`
        points of room."""
        drawing = replace(
            self._blank, texts=[], lines=[], numbers=[], panels=[], samples=[], bars=[]
        )
        head_room = sum(self._type_sizes()) + 10 if named else above
        columns, width = self._columns(panels)
        room = width - 2 * MARGIN
        top = self._head(drawing, heading, room)
        scale = drawing.scale
        lefts = [round(x * scale) for x in columns]
        tops = [
            round((top + row * (self._high + head_room) + head_room) * scale)
            for row in range(max(row for row, _ in self._places) + 1)
        ]
        for panel, (row, column) in zip(panels, self._places, strict=True):
            drawing.panels.append(PlacedPanel(lefts[column], tops[row], panel, self.cell))
        if named:
            self._add_names(drawing, panels)
        bottom = self._add_labels(drawing)
        if numbered and self.numbers_fit:
            for placed in drawing.panels:
                drawing.numbers += self.numbers(placed, drawing)
        y_top, y_end = tops[0] / scale, tops[-1] / scale + self._high
        self._add_axis_names(drawing, (y_top + y_end) / 2, bottom, panels)
        for column, bar_scale in self._bars(panels):
            left = lefts[column] / scale + self._wide + BAR_GAP
            add_bar(drawing, left, y_top, min(y_end - y_top, TALLEST_BAR), bar_scale)
        y = bottom + 24
        used = add_legend(drawing, MARGIN, y, room, panels)
        y += used + 3 if used else 0
        y += drawing.add_paragraph(MARGIN, y, heading.footer, room, SMALL_SIZE)
        y = max(y, y_top + 40 + MARGIN)
        drawing.width, drawing.height = width, y + MARGIN - (4 if heading.footer or used else 14)
        return drawing

    def numbers(self, placed: PlacedPanel, drawing: Drawing) -> list[CellNumber]:
        """The values in their cells, in black or white, whichever contrasts more."""
        panel, scale = placed.panel, drawing.scale
        left, top = placed.left / scale, placed.top / scale
        colours = palette(drawing.options, drawing.two_maps)
        is_white = prefers_white(colours)[panel.scale.shades(panel.values)]
        cells = np.argwhere(panel.kinds.cells == WEIGHT).tolist()
        texts = [panel.scale.written(panel.values[q, k]) for q, k in cells]
        longest = max(4, *map(len, texts)) if texts else 4
        size = min(10.0, self._cell_wide * 1.44 / longest, self._cell_high * 0.6)
        return [
            CellNumber(
                left + (k + 0.5) * self._cell_wide,
                top + (q + 0.5) * self._cell_high,
                text,
                size,
                (255, 255, 255) if is_white[q, k] else (0, 0, 0),
            )
            for (q, k), text in zip(cells, texts, strict=True)
        ]

    def _type_sizes(self) -> tuple[float, float]:
        """Of the names above panels, and of the measures below these."""
        return (8.5, 7.0) if self._wide >= 80 else (6.5, 5.5)

    def _head(self, drawing: Drawing, heading: Heading, room: float) -> float:
        """Write the heading; returns where the panels begin."""
        drawing.title = heading.title
        drawing.texts += heading.texts()
        y = MARGIN + 19 + (0.0 if heading.subtitle is None else 1.4 * SUBTITLE_SIZE)
        for text, size in zip(heading.paragraphs, (PARAGRAPH_SIZE, SMALL_SIZE), strict=False):
            y += drawing.add_paragraph(MARGIN, y, text, room, size)
        return y + 6

    def _columns(self, panels: Sequence[Panel]) -> tuple[list[float], float]:
        """The left edge of each column of panels, and the width of the whole."""
        gap = 12.0 if self._wide > 70 else 7.0
        bars = dict(self._bars(panels))
        x = MARGIN + (16 if self._axes[0].name else 0) + self.rows.extent
        lefts = []
        for column in range(max(column for _, column in self._places) + 1):
            lefts.append(x)
            x += self._wide + gap
            if column in bars:
                x += BAR_GAP - gap + self._bar_room(bars[column]) + gap
        return lefts, max(x - gap + MARGIN, 330.0 if len(panels) > 1 else 400.0)

    def _bars(self, panels: Sequence[Panel]) -> list[tuple[int, Scale]]:
        """The columns that a colour bar follows: the last of those that share its scale."""
        scales = {}
        for panel, (_, column) in zip(panels, self._places, strict=True):
            scales[column] = panel.scale
        last = max(scales)
        return [
            (column, scale)
            for column, scale in sorted(scales.items())
            if column == last or scales.get(column + 1, scale) is not scale
        ]

    def _bar_room(self, scale: Scale) -> float:
        texts = [text for _, text in scale.ticks(100.0)]
        widest = max(self._blank.text_width(text, SMALL_SIZE) for text in texts)
        return max(BAR_ROOM, 14 + widest)

    def _add_names(self, drawing: Drawing, panels: Sequence[Panel]) -> None:
        size, small = self._type_sizes()
        names, lines, _ = self.above_panels(panels)
        for i, placed in enumerate(drawing.panels):
            x, y = placed.left / drawing.scale, placed.top / drawing.scale
            if names:
                drawing.texts.append(Text(x, y - 6 - small, names[i], size, bold=True))
            if lines:
                drawing.texts.append(Text(x, y - 4, lines[i], small, 0.7))

    def _add_labels(self, drawing: Drawing) -> float:
        """Labels on the outer edges only; returns where they end below the panels."""
        first_in_row: dict[int, int] = {}
        last_in_column: dict[int, int] = {}
        for row, column in self._places:
            first_in_row[row] = min(column, first_in_row.get(row, column))
            last_in_column[column] = max(row, last_in_column.get(column, row))
        bottom = 0.0
        for placed, (row, column) in zip(drawing.panels, self._places, strict=True):
            x, y = placed.left / drawing.scale, placed.top / drawing.scale
            if column == first_in_row[row]:
                drawing.add(*self.rows.beside_rows(x, y))
            if row == last_in_column[column]:
                drawing.add(*self.columns.below_columns(y + self._high, x))
                bottom = max(bottom, y + self._high + self.columns.extent)
        return bottom

    def _add_axis_names(
        self, drawing: Drawing, middle: float, bottom: float, panels: Sequence[Panel]
    ) -> None:
        """The names of the axes, that of the columns below each group that shares a scale."""
        rows, columns = (axis.name for axis in self._axes)
        if rows:
            drawing.texts.append(Text(MARGIN + 8, middle, rows, 9, anchor="middle", turn=90))
        start = 0
        for last, _ in self._bars(panels):
            x = [p.left for p, (_, c) in zip(drawing.panels, self._places, strict=True)
                 if start <= c <= last]  # fmt: skip
            centre = (min(x) + max(x)) / 2 / drawing.scale + self._wide / 2
            if columns:
                drawing.texts.append(Text(centre, bottom + 12, columns, 9, anchor="middle"))
            start = last + 1


def add_bar(drawing: Drawing, left: float, top: float, height: float, scale: Scale) -> None:
    """A colour bar, its name above it and its values beside it."""
    pixels = drawing.scale
    x, y = round(left * pixels), round(top * pixels)
    w, h = round(9 * pixels), max(2, round(height * pixels))
    drawing.bars.append(ColourBar(x, y, w, h, scale.colours))
    left, top, width, height = x / pixels, y / pixels, w / pixels, h / pixels
    drawing.texts.append(Text(left, top - 6, scale.name, SMALL_SIZE, 0.75))
    for share, text in scale.ticks(height):
        at = top + height * (1 - share)
        drawing.lines.append(Line(left + width, at, left + width + 2.5, at, 0.55, 0.6))
        drawing.texts.append(
            Text(left + width + 4.5, at + 0.36 * SMALL_SIZE, text, SMALL_SIZE, 0.75)
        )


def add_legend(
    drawing: Drawing, left: float, top: float, width: float, panels: Sequence[Panel]
) -> float:
    """One line, or more, with a sample of each kind of cell that occurs; returns its height."""
    present = set().union(*(kinds.present for kinds in {panel.kinds for panel in panels}))
    scale = drawing.scale
    cell = CellSize(round(14 * scale), round(8 * scale))
    x, y = left, top
    for kind, text in LEGEND.items():
        if kind not in present:
            continue
        long = 14 + 5 + drawing.text_width(text, 8) + 16
        if x > left and x + long - 16 > left + width:
            x, y = left, y + 13
        kinds = CellKinds(np.full((1, 1), kind, dtype=np.uint8))
        sample = Panel(np.zeros((1, 1), dtype=np.float32), kinds, panels[-1].scale)
        drawing.samples.append(PlacedPanel(round(x * scale), round((y + 1) * scale), sample, cell))
        drawing.texts.append(Text(x + 14 + 5, y + 8, text, 8, 0.75))
        x += long
    return y + 13 - top if drawing.samples else 0.0
