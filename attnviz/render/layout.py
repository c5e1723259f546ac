"""The layout of all pictures: heading, rows × columns of panels, labels, bars, legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log

import numpy as np

from attnviz.errors import ConfigError
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
from attnviz.render.figure_options import SMALLEST_FONT, FigureOptions
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

SMALLEST_NUMBER = 13.0
"""Cells narrower than this, in points, hold no number that could be read."""

TALLEST_BAR, BAR_ROOM = 300.0, 44.0

NARROWEST_PANEL = 20.0
"""Points of a panel in a figure of a given width."""

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
class Measurements:
    """Points of every kind of type, and of the distances between what is placed."""

    label: float
    """Labels along the edges, at most."""
    smallest: float = 5.5
    title: float = 13.0
    text: float = 8.5
    small: float = 7.5
    axis: float = 9.0
    legend: float = 8.0
    margin: float = 18.0
    bar: float = 9.0
    bar_gap: float = 14.0

    @classmethod
    def of(cls, options: FigureOptions, label: float) -> Measurements:
        """Those of a screen, with labels of this size at most, or those of a figure in print."""
        if not options.is_figure:
            return cls(label)
        base = options.font_size or 7.0
        small = max(SMALLEST_FONT, base - 0.5)
        margin, gap = (3.0, 6.0) if options.width else (18.0, 14.0)
        return cls(base, SMALLEST_FONT, 1.25 * base, small, small, base, small, margin, 6.0, gap)


@dataclass(frozen=True)
class Heading:
    """What stands above the panels, and the `footer` below them."""

    title: str = ""
    subtitle: str | None = None
    paragraphs: tuple[str, ...] = ()
    footer: str = ""

    @classmethod
    def chosen(
        cls,
        options: FigureOptions,
        title: str,
        measures: str | None = None,
        caption: str = "",
        measured: str = "",
        footer: str = "",
    ) -> Heading:
        """The parts that a person wants. `measured` says what the measures of the panels are."""
        if not options.has_title:
            title = caption = footer = ""
        if not options.has_measures:
            measures, measured = None, ""
        if title and options.title is not None:
            title = options.title
        return cls(title, measures, (caption, measured), footer)

    def texts(self, sizes: Measurements) -> list[Text]:
        """Title and subtitle in one line each: they differ between pictures of single heads."""
        y, found = sizes.margin, []
        if self.title:
            base = y + 0.85 * sizes.title
            found.append(Text(sizes.margin, base, self.title, sizes.title, bold=True))
            y += 1.46 * sizes.title
        if self.subtitle is not None:
            found.append(Text(sizes.margin, y + 0.95 * sizes.text, self.subtitle, sizes.text, 0.75))
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


def grid(
    pairs: Sequence[Pair], aspect: float, columns: int | None = None
) -> tuple[list[Pair], int, int]:
    """(row, column) of each head, the number of rows, the number of columns.

    The heads of one layer, or one head of several layers, are wrapped like words. Several heads of
    several layers are a matrix, a layer a row, unless most of its places would be empty. With many
    more layers than heads it would be a tower: then several layers share a row, each with its heads
    side by side. `aspect` is the width of a panel by its height; `columns` is how many panels a row
    has, where it was chosen.
    """
    layers = sorted({layer for layer, _ in pairs})
    numbers = sorted({number for _, number in pairs})
    is_sparse = len(layers) > 1 and 2 * len(pairs) <= len(layers) * len(numbers)
    if columns is not None:
        wide, n = min(columns, len(pairs)), len(pairs)
        return [(i // wide, i % wide) for i in range(n)], ceil(n / wide), wide
    if len(layers) == 1 or is_sparse:
        units, width, at = len(pairs), 1, [(i, 0) for i in range(len(pairs))]
    else:
        units, width = len(layers), len(numbers)
        at = [(layers.index(layer), numbers.index(number)) for layer, number in pairs]
    is_matrix = units <= width**2 and not is_sparse  # 4 layers of 2 heads, 9 of 3, 16 of 4

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
        scales: Sequence[Scale] = (),
    ) -> None:
        """`blank` has the fonts and options of the drawings; `places` are (row, column).

        `scales` are those of the colour bars. A figure of a given width has cells that fill it, of
        the proportions of `cell`.
        """
        options = blank.options
        names = options.axis_names(*(axis.name for axis in axes))
        self._axis_names: tuple[str, str] = names
        self._blank, self._axes, self._places = blank, axes, places
        self._shape, self._longest_label = shape, longest_label
        self.sizes = Measurements.of(options, largest_label)
        self._n_columns = max(column for _, column in places) + 1
        self._set_cell(cell)
        if options.points is not None:
            self._fill(options.points, scales)
        self.notes: list[str] = []

    def _set_cell(self, cell: CellSize) -> None:
        """Take this size of cells; the labels follow from it."""
        self.cell, scale, sizes = cell, self._blank.scale, self.sizes
        n_q, n_k = (ceil(n / cell.pool) for n in self._shape)
        self._wide, self._high = n_k * cell.width / scale, n_q * cell.height / scale
        self._cell_wide, self._cell_high = self._wide / self._shape[1], self._high / self._shape[0]
        self.rows, self.columns = (
            labels_of(
                axis, self._blank, pitch, sizes.label, sizes.smallest, upright, self._longest_label
            )
            for axis, pitch, upright in zip(
                self._axes, (self._cell_high, self._cell_wide), (False, True), strict=True
            )
        )
        self.numbers_fit = cell.pool == 1 and self._cell_wide >= SMALLEST_NUMBER <= self._cell_high
        if self._blank.options.is_figure:
            self.numbers_fit &= self._number_size(4) >= SMALLEST_FONT
        self._gap = 12.0 if self._wide > 70 else 7.0

    def _fill(self, points: float, scales: Sequence[Scale]) -> None:
        """Make the cells so wide that the picture has `points`."""
        cell, sizes = self.cell, self.sizes
        taken = 2 * sizes.margin + (self._n_columns - 1) * self._gap
        taken += sizes.axis + 7 if self._axis_names[0] else 0.0
        taken += sum(sizes.bar_gap + self._bar_room(scale) for scale in scales)
        for _ in range(4):  # the labels' width depends on the cells, and the cells' on the labels
            wide = (points - taken - self.rows.extent) / self._n_columns
            if wide < NARROWEST_PANEL:
                least = taken + self.rows.extent + self._n_columns * NARROWEST_PANEL
                fewer = "; try fewer --columns" if self._n_columns > 1 else ""
                raise ConfigError(
                    f"--width {self._blank.options.width}: labels and {self._n_columns} columns of "
                    f"maps need at least {ceil(least / 7.2) / 10:g}in{fewer}"
                )
            pixels = wide * self._blank.scale
            pool = max(1, ceil(self._shape[1] / pixels))
            width = max(1, floor(pixels / ceil(self._shape[1] / pool)))
            height = max(1, round(width * cell.height / cell.width))
            self._set_cell(CellSize(width, height, pool))

    def label_notes(self, where: str) -> list[str]:
        """Which labels are left out, once where those of queries and keys are left out alike."""
        notes = [self.rows.note("tokens"), self.columns.note("tokens")]
        if notes[0] != notes[1]:
            notes = [self.rows.note("queries"), self.columns.note("keys")]
        return [f"{where}: {text}" for text in dict.fromkeys([*notes, *self.notes]) if text]

    def above_panels(self, panels: Sequence[Panel]) -> tuple[list[str], list[str], int]:
        """Each panel's name, as many measures as fit above it, and how many these are."""
        options, (size, small) = self._blank.options, self._type_sizes()
        width = self._blank.text_width
        names: list[str] = []
        for forms in zip(*(panel.names for panel in panels), strict=False):
            names = list(forms)
            if max(width(name, size, bold=True) for name in names) <= self._wide:
                break
        else:
            names = self._unless_figure(names, "names of the heads")
        if not options.has_measures:
            return names, [], 0
        lines: list[str] = []
        most = max(len(panel.measures) for panel in panels)
        n = most
        for n in range(most, 0, -1):
            lines = [" · ".join(panel.measures[:n]) for panel in panels]
            if max(width(line, small) for line in lines) <= self._wide:
                break
        else:
            lines = self._unless_figure(lines, "measures")
        return names, lines, n if lines else 0

    def _unless_figure(self, texts: list[str], what: str) -> list[str]:
        """Texts that are wider than their panel are left out of a figure, and reported."""
        if not texts or not self._blank.options.is_figure:
            return texts
        note = f"labels left out: {what} are wider than their maps"
        if note not in self.notes:
            self.notes.append(note)
        return []

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
        sizes, names, lines = self.sizes, list[str](), list[str]()
        if named:
            names, lines, _ = self.above_panels(panels)
            size, small = self._type_sizes()
            above = 6 + (size + 4 if names else 0.0) + (small if lines else 0.0)
            above = max(above, 14.0)
        columns, width = self._columns(panels)
        room = width - 2 * sizes.margin
        top = self._head(drawing, heading, room)
        scale = drawing.scale
        lefts = [round(x * scale) for x in columns]
        tops = [
            round((top + row * (self._high + above) + above) * scale)
            for row in range(max(row for row, _ in self._places) + 1)
        ]
        for panel, (row, column) in zip(panels, self._places, strict=True):
            drawing.panels.append(PlacedPanel(lefts[column], tops[row], panel, self.cell))
        self._add_names(drawing, names, lines)
        bottom = self._add_labels(drawing)
        if numbered and self.numbers_fit:
            for placed in drawing.panels:
                drawing.numbers += self.numbers(placed, drawing)
        y_top, y_end = tops[0] / scale, tops[-1] / scale + self._high
        bottom = self._add_axis_names(drawing, (y_top + y_end) / 2, bottom, panels)
        for column, bar_scale in self._bars(panels):
            left = lefts[column] / scale + self._wide + sizes.bar_gap
            add_bar(drawing, left, y_top, min(y_end - y_top, TALLEST_BAR), bar_scale, sizes)
        y = bottom + 8
        used = add_legend(drawing, sizes.margin, y, room, panels, sizes.legend)
        y += used + 3 if used else 0
        used += drawing.add_paragraph(sizes.margin, y, heading.footer, room, sizes.small)
        y += used if heading.footer else 0.0
        drawing.width = width
        drawing.height = max(y, y_top + 40) + sizes.margin - (4 if used else 10)
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
        size = self._number_size(longest)
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

    def _number_size(self, longest: int) -> float:
        """The type of numbers of so many digits."""
        return min(10.0, self._cell_wide * 1.44 / longest, self._cell_high * 0.6)

    def _type_sizes(self) -> tuple[float, float]:
        """Of the names above panels, and of the measures below these."""
        if self._blank.options.is_figure:
            return self.sizes.label, self.sizes.small
        return (8.5, 7.0) if self._wide >= 80 else (6.5, 5.5)

    def _head(self, drawing: Drawing, heading: Heading, room: float) -> float:
        """Write the heading; returns where the panels begin."""
        sizes, y = self.sizes, self.sizes.margin
        drawing.title = heading.title
        if drawing.options.is_figure:  # a narrow one: all of it is wrapped
            for line in drawing.wrapped(heading.title, sizes.title, room) if heading.title else ():
                y += 1.3 * sizes.title
                drawing.texts.append(
                    Text(sizes.margin, y - 0.4 * sizes.title, line, sizes.title, bold=True)
                )
            y += drawing.add_paragraph(sizes.margin, y, heading.subtitle or "", room, sizes.text)
        else:
            drawing.texts += heading.texts(sizes)
            y += 1.46 * sizes.title if heading.title else 0.0
            y += 0.0 if heading.subtitle is None else 1.4 * sizes.text
        for text, size in zip(heading.paragraphs, (sizes.text, sizes.small), strict=False):
            y += drawing.add_paragraph(sizes.margin, y, text, room, size)
        return y + 6 if y > sizes.margin else y

    def _columns(self, panels: Sequence[Panel]) -> tuple[list[float], float]:
        """The left edge of each column of panels, and the width of the whole."""
        sizes, bars = self.sizes, dict(self._bars(panels))
        x = sizes.margin + (sizes.axis + 7 if self._axis_names[0] else 0.0) + self.rows.extent
        lefts = []
        for column in range(self._n_columns):
            lefts.append(x)
            x += self._wide + self._gap
            if column in bars:
                x += sizes.bar_gap + self._bar_room(bars[column])
        points = self._blank.options.points
        if points is not None:
            return lefts, points
        return lefts, max(x - self._gap + sizes.margin, 330.0 if len(panels) > 1 else 400.0)

    def _bars(self, panels: Sequence[Panel]) -> list[tuple[int, Scale]]:
        """The columns that a colour bar follows: the last of those that share its scale."""
        scales = {}
        for panel, (_, column) in zip(panels, self._places, strict=True):
            scales[column] = panel.shown_scale
        last = max(scales)
        return [
            (column, scale)
            for column, scale in sorted(scales.items())
            if column == last or scales.get(column + 1, scale) is not scale
        ]

    def _bar_room(self, scale: Scale) -> float:
        """The width of a colour bar with its values."""
        width, small = self._blank.text_width, self.sizes.small
        widest = max(width(text, small) for _, text in scale.ticks(100.0))
        room = max(self.sizes.bar + 5 + widest, width(scale.name, small))
        return room if self._blank.options.is_figure else max(BAR_ROOM, room)

    def _add_names(self, drawing: Drawing, names: Sequence[str], lines: Sequence[str]) -> None:
        size, small = self._type_sizes()
        for i, placed in enumerate(drawing.panels):
            x, y = placed.left / drawing.scale, placed.top / drawing.scale - 4
            if lines:
                drawing.texts.append(Text(x, y, lines[i], small, 0.7))
                y -= small + 2
            if names:
                drawing.texts.append(Text(x, y, names[i], size, bold=True))

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
    ) -> float:
        """The names of the axes, that of the columns below each group that shares a scale.

        Returns where they end.
        """
        (rows, columns), sizes = self._axis_names, self.sizes
        if rows:
            x = sizes.margin + 0.9 * sizes.axis
            drawing.texts.append(Text(x, middle, rows, sizes.axis, anchor="middle", turn=90))
        if not columns:
            return bottom
        start = 0
        for last, _ in self._bars(panels):
            lefts = [
                placed.left / drawing.scale
                for placed, (_, column) in zip(drawing.panels, self._places, strict=True)
                if start <= column <= last
            ]
            centre = (min(lefts) + max(lefts) + self._wide) / 2
            y = bottom + 3 + sizes.axis
            drawing.texts.append(Text(centre, y, columns, sizes.axis, anchor="middle"))
            start = last + 1
        return bottom + 7 + sizes.axis


def add_bar(
    drawing: Drawing, left: float, top: float, height: float, scale: Scale, sizes: Measurements
) -> None:
    """A colour bar, its name above it and its values beside it."""
    pixels, small = drawing.scale, sizes.small
    x, y = round(left * pixels), round(top * pixels)
    w, h = round(sizes.bar * pixels), max(2, round(height * pixels))
    drawing.bars.append(ColourBar(x, y, w, h, scale.colours))
    left, top, width, height = x / pixels, y / pixels, w / pixels, h / pixels
    drawing.texts.append(Text(left, top - 6, scale.name, small, 0.75))
    for share, text in scale.ticks(height):
        at = top + height * (1 - share)
        drawing.lines.append(Line(left + width, at, left + width + 2.5, at, 0.55, 0.6))
        drawing.texts.append(Text(left + width + 4.5, at + 0.36 * small, text, small, 0.75))


def add_legend(
    drawing: Drawing,
    left: float,
    top: float,
    width: float,
    panels: Sequence[Panel],
    size: float = 8.0,
) -> float:
    """One line, or more, with a sample of each kind of cell that occurs; returns its height."""
    present = set().union(*(kinds.present for kinds in {panel.kinds for panel in panels}))
    scale = drawing.scale
    cell = CellSize(round(14 * scale), round(size * scale))
    x, y = left, top
    for kind, text in LEGEND.items():
        if kind not in present:
            continue
        long = 14 + 5 + drawing.text_width(text, size) + 16
        if x > left and x + long - 16 > left + width:
            x, y = left, y + size + 5
        kinds = CellKinds(np.full((1, 1), kind, dtype=np.uint8))
        sample = Panel(np.zeros((1, 1), dtype=np.float32), kinds, panels[-1].scale)
        drawing.samples.append(PlacedPanel(round(x * scale), round((y + 1) * scale), sample, cell))
        drawing.texts.append(Text(x + 14 + 5, y + size, text, size, 0.75))
        x += long
    return y + size + 5 - top if drawing.samples else 0.0
