"""The layout of all pictures: heading, rows × columns of panels, labels, bars, legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, floor

import numpy as np

from attnviz.errors import ConfigError
from attnviz.render.axes import PositionAxis, TokenAxis
from attnviz.render.axis_labels import labels_of
from attnviz.render.drawing import (
    CellNumber,
    CellSize,
    Drawing,
    PlacedPanel,
    Text,
)
from attnviz.render.figure_options import SMALLEST_FONT
from attnviz.render.headings import Heading, Measurements
from attnviz.render.legend import add_bar, add_legend
from attnviz.render.palette import palette, prefers_white
from attnviz.render.panel import (
    WEIGHT,
    Pair,
    Panel,
)
from attnviz.render.scales import Scale

SMALLEST_NUMBER = 13.0
"""Cells narrower than this, in points, hold no number that could be read."""

TALLEST_BAR, BAR_ROOM = 300.0, 44.0
"""Points of a colour bar's height at most, and of its width with its values at least."""

NARROWEST_PANEL = 20.0
"""Points of a panel in a figure of a given width."""

Axes = tuple[TokenAxis | PositionAxis, TokenAxis | PositionAxis]


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
        self._gap = 12.0 if self._wide > 70 and not self._blank.options.is_figure else 7.0

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
