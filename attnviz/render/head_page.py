"""Pages of single heads: what they share is laid out, and drawn, once."""

from __future__ import annotations

from math import ceil, isnan
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attnviz.render.cells import Head
from attnviz.render.furniture import (
    KEY_AXIS,
    MARGIN,
    QUERY_AXIS,
    SMALLEST_NUMBER,
    Subject,
    cell_pixels,
    draw_legend,
    draw_paragraph,
    numbers,
    occurring,
    unmeasured,
)
from attnviz.render.raster import draw_simple, paste, rasterize, stamped, write_png
from attnviz.render.sheet import Indices, Picture, Sheet, Text, palette

TITLE_SIZE, MEASURE_SIZE = 13.0, 8.5
TITLE_BASE, MEASURE_BASE = MARGIN + 11, MARGIN + 26
MAP_TOP = MARGIN + 46


class HeadPages:
    """Pages of single heads of one subject: what they share is laid out, and drawn, once."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._bases: dict[tuple[frozenset[int], bool], Indices] = {}
        look = subject.look
        blank = subject.sheet("", "")
        self._scale = blank.scale
        longest = max(subject.n_queries, subject.n_keys)

        wanted = max(150.0, min(26.0 * longest, 500.0))
        wanted = max(wanted, 8.6 * longest if longest <= 66 else 0.0)
        if look.annotate and longest <= 60:
            wanted = max(wanted, 15.0 * longest)
        self._annotate = look.annotate and wanted / longest >= SMALLEST_NUMBER
        if look.annotate and not self._annotate:
            subject.notices.append("heads: the cells are too small for numbers")
        limit = max(wanted * self._scale, 2048.0)
        self._pool = ceil(longest / limit)
        n_q, n_k = ceil(subject.n_queries / self._pool), ceil(subject.n_keys / self._pool)
        cell = wanted / ceil(longest / self._pool)
        px_w = cell_pixels(max(cell, 60 / n_k), look.dpi)
        px_h = cell_pixels(max(cell, 60 / n_q), look.dpi)
        if self._pool > 1:
            subject.notices.append(
                f"heads: each cell shows the largest of {self._pool} × {self._pool} weights"
            )
        self._brush = subject.brush(px_h, px_w, self._pool)
        self._wide, self._high = n_k * px_w / self._scale, n_q * px_h / self._scale
        self._cell_w, self._cell_h = self._wide / subject.n_keys, self._high / subject.n_queries
        self._rows, self._columns = subject.axes(blank, self._cell_w, self._cell_h, largest=9.5)
        subject.note_labels(self._rows, self._columns, "heads")
        self._left = round((MARGIN + 16 + self._rows.extent) * self._scale)
        self._top = round(MAP_TOP * self._scale)
        self._colours = palette(look)

    def sheet(self, layer: int, number: int) -> Sheet:
        """The whole page of one head."""
        head = self.subject.heads.head(layer, number)
        sheet = self._base(*occurring([head]))
        sheet.title, measures, sheet.description = self._words(head)
        sheet.texts += self._title(sheet.title, measures)
        sheet.pictures[0] = Picture(self._left, self._top, self._brush.paint(head))
        self._annotated(sheet, head)
        return sheet

    def write_png(self, layer: int, number: int, path: Path) -> None:
        """Write one head's PNG on the shared page."""
        head = self.subject.heads.head(layer, number)
        kinds, blind = occurring([head])
        key = (frozenset(kinds), blind)
        if key not in self._bases:
            self._bases[key] = rasterize(self._base(kinds, blind))
        page: npt.NDArray[np.uint8] = self._bases[key].copy()
        paste(page, Picture(self._left, self._top, self._brush.paint(head), framed=False))
        title, measures, description = self._words(head)
        for text in self._title(title, measures):
            draw_simple(page, text, self._scale)
        if self._annotate:
            sheet = self.subject.sheet(title, description)
            self._annotated(sheet, head)
            page = stamped(page, self._colours, sheet)
        write_png(page, self._colours, title, description, path, self.subject.look.dpi)

    def _title(self, title: str, measures: str) -> list[Text]:
        return [
            Text(MARGIN, TITLE_BASE, title, TITLE_SIZE, bold=True),
            Text(MARGIN, MEASURE_BASE, measures, MEASURE_SIZE, 0.75),
        ]

    def _words(self, head: Head) -> tuple[str, str, str]:
        """Title, measures and description."""
        subject = self.subject
        values = subject.measured(head.layer, head.number)
        if isnan(values["entropy"]):
            why = "a part of the map" if subject.result.is_part else unmeasured(head)
            measures = f"no measures: {why}"
        else:
            measures = (
                f"entropy {values['entropy']:.2f} bits · largest weight {values['largest']:.2f} · "
                f"diagonal {values['diagonal']:.2f} · first token {values['first']:.2f} · "
                f"distance {values['distance']:.1f}"
            )
        title = subject.name(head.layer, head.number)
        title = title[0].upper() + title[1:]
        description = (
            f"Heatmap of attention weights, {title}: {subject.tokens}; rows are queries, "
            f"columns are keys. {subject.caption}. Means over queries: {measures}. "
            f"In this head {subject.strongest(head)}."
        )
        return title, measures, description

    def _annotated(self, sheet: Sheet, head: Head) -> None:
        if self._annotate:
            left, top = self._left / self._scale, self._top / self._scale
            sheet.numbers += numbers(
                sheet, head, left, top, self._cell_w, self._cell_h, self._brush
            )

    def _base(self, kinds: set[int], blind: bool) -> Sheet:
        """Labels, frame, colour bar, legend, caption: everything but the head."""
        subject = self.subject
        sheet = subject.sheet("", "")
        left, top = self._left / self._scale, self._top / self._scale
        right, bottom = left + self._wide, top + self._high
        blank = np.zeros(
            (round(self._high * self._scale), round(self._wide * self._scale)), np.uint8
        )
        sheet.pictures.append(Picture(self._left, self._top, blank))  # the frame is drawn once
        sheet.texts += self._rows.rows(left, top)
        sheet.texts += self._columns.columns(bottom, left)
        sheet.lines += self._rows.row_lines(left, top) + self._columns.column_lines(bottom, left)
        sheet.texts.append(
            Text(MARGIN + 8, (top + bottom) / 2, QUERY_AXIS, 9, anchor="middle", turn=90)
        )
        below = bottom + self._columns.extent
        sheet.texts.append(Text((left + right) / 2, below + 12, KEY_AXIS, 9, anchor="middle"))
        subject.bar(sheet, right + 14, top, min(self._high, 300.0))
        width = max(right + 14 + 44 + MARGIN, 400.0)
        y = below + 24
        used = draw_legend(sheet, MARGIN, y, width - 2 * MARGIN, kinds, blind)
        y += used + 3 if used else 0
        y += draw_paragraph(sheet, MARGIN, y, subject.caption, width - 2 * MARGIN, 7.5)
        sheet.width, sheet.height = width, y + MARGIN - 4
        return sheet
