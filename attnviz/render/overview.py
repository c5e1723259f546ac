"""The overview: all chosen heads as small multiples on one colour scale."""

from __future__ import annotations

from math import ceil, floor, log

from attnviz.render.cells import Head
from attnviz.render.furniture import (
    KEY_AXIS,
    MARGIN,
    QUERY_AXIS,
    SMALLEST_NUMBER,
    Pair,
    Subject,
    cell_pixels,
    draw_paragraph,
    numbers,
)
from attnviz.render.sheet import Picture, Sheet, Text


def overview_sheet(subject: Subject) -> Sheet:
    """Lay out the small multiples: titles above the maps, labels on the outer edges only."""
    look, pairs = subject.look, subject.pairs
    drawn = [subject.heads.head(*pair) for pair in pairs]
    sheet = subject.sheet(subject.title, subject.describe(drawn))
    scale = sheet.scale
    places, n_rows, n_columns = grid(pairs, subject)

    # the size of a cell follows from how many there are; pictures grow with their columns
    limit = (72 * (7.0 + n_columns) * (2 if look.annotate else 1)) / n_columns - 14
    longest = max(subject.n_queries, subject.n_keys)
    cell = min(limit, max(96, 15.0 * longest if look.annotate else 11.0 * longest)) / longest
    pool = ceil(longest / max(floor(limit * scale), 1))
    n_q, n_k = ceil(subject.n_queries / pool), ceil(subject.n_keys / pool)
    px_w = cell_pixels(max(cell * pool, 84 / n_k), look.dpi)
    px_h = cell_pixels(max(cell * pool, 24 / n_q, 7.5 if n_q <= 12 else 0), look.dpi)
    wide, high = n_k * px_w / scale, n_q * px_h / scale
    if pool > 1:
        subject.notices.append(
            f"overview: each cell shows the largest of {pool} × {pool} {subject.what}; "
            "the heads' own pictures show more"
        )
    rows, columns = subject.axes(
        sheet, wide / subject.n_keys, high / subject.n_queries, largest=8.0
    )
    subject.note_labels(rows, columns, "overview")

    names, measured, shown, name_size, small = _tile_titles(sheet, subject, drawn, wide)
    head_room = 4 + name_size + small + 3 + 3
    gap = 12.0 if wide > 70 else 7.0
    left = MARGIN + 16 + rows.extent
    inner = n_columns * wide + (n_columns - 1) * gap
    bar_left = left + inner + 14
    width = max(bar_left + 44 + MARGIN, 330.0)
    room = width - 2 * MARGIN

    sheet.texts.append(Text(MARGIN, MARGIN + 11, sheet.title, 13, bold=True))
    y = MARGIN + 19
    y += draw_paragraph(sheet, MARGIN, y, subject.caption, room, 8.5)
    said = subject.said(shown)
    y += draw_paragraph(sheet, MARGIN, y, said, room, 7.5)
    top = y + 6

    brush = subject.brush(px_h, px_w, pool)
    corner_x = [round((left + c * (wide + gap)) * scale) for c in range(n_columns)]
    corner_y = [round((top + r * (high + head_room) + head_room) * scale) for r in range(n_rows)]
    lowest = max(r for r, _ in places)
    first_in_row = {r: min(c for q, c in places if q == r) for r, _ in places}
    last_in_column = {c: max(r for r, k in places if k == c) for _, c in places}
    bottom = 0.0
    for head, place, name, line in zip(drawn, places, names, measured, strict=True):
        r, c = place
        x, y = corner_x[c] / scale, corner_y[r] / scale
        sheet.pictures.append(Picture(corner_x[c], corner_y[r], brush.paint(head)))
        sheet.texts.append(Text(x, y - 4 - small - 2, name, name_size, bold=True))
        sheet.texts.append(Text(x, y - 4, line, small, 0.7))
        if c == first_in_row[r]:
            sheet.texts += rows.rows(x, y)
            sheet.lines += rows.row_lines(x, y)
        if r == last_in_column[c]:
            sheet.texts += columns.columns(y + high, x)
            sheet.lines += columns.column_lines(y + high, x)
            bottom = max(bottom, y + high + columns.extent)
        if look.annotate and pool == 1 and wide / n_k >= SMALLEST_NUMBER <= high / n_q:
            sheet.numbers += numbers(sheet, head, x, y, wide / n_k, high / n_q, brush)
    if look.annotate and not sheet.numbers:
        subject.notices.append("overview: the cells are too small for numbers")

    y_top, y_end = corner_y[0] / scale, corner_y[lowest] / scale + high
    middle = (y_top + y_end) / 2
    sheet.texts.append(Text(MARGIN + 8, middle, QUERY_AXIS, 9, anchor="middle", turn=90))
    sheet.texts.append(Text(left + inner / 2, bottom + 12, KEY_AXIS, 9, anchor="middle"))
    subject.bar(sheet, bar_left, y_top, min(y_end - y_top, 180.0))
    used = subject.legend(sheet, MARGIN, bottom + 24, room, drawn)
    sheet.width, sheet.height = width, bottom + 16 + (used + 10 if used else 0) + MARGIN - 4
    return sheet


def grid(pairs: list[Pair], subject: Subject) -> tuple[list[Pair], int, int]:
    """(row, column) of each head, the number of rows, the number of columns.

    The heads of one layer, or one head of several layers, are wrapped like words. Several heads of
    several layers are a matrix, a layer a row. With many more layers than heads it would be a
    tower: then several layers share a row, each with its heads side by side.
    """
    layers = sorted({layer for layer, _ in pairs})
    numbers = sorted({number for _, number in pairs})
    if len(layers) == 1:
        units, width, at = len(pairs), 1, [(i, 0) for i in range(len(pairs))]
    else:
        units, width = len(layers), len(numbers)
        at = [(layers.index(layer), numbers.index(number)) for layer, number in pairs]
    is_matrix = units <= width**2  # 4 layers of 2 heads, 9 of 3, 16 of 4
    shape = subject.n_keys / subject.n_queries

    def cost(abreast: int) -> float:
        rows = ceil(units / abreast)
        lopsided = abs(log(abreast * width * shape / (rows * 1.5)))
        return lopsided + 1.2 * (rows * abreast - units) / units

    abreast = 1 if is_matrix else min(range(1, units + 1), key=cost)
    places = [(unit // abreast, unit % abreast * width + beside) for unit, beside in at]
    return places, ceil(units / abreast), abreast * width


def _tile_titles(
    sheet: Sheet, subject: Subject, drawn: list[Head], width: float
) -> tuple[list[str], list[str], int, float, float]:
    """Each head's name, as many measures as fit above its map, their number, and type sizes."""
    size, small = (8.5, 7.0) if width >= 80 else (6.5, 5.5)
    for names in subject.short_names():
        if max(sheet.text_width(name, size, bold=True) for name in names) <= width:
            break
    for n in range(subject.n_measures, 0, -1):
        lines = [subject.short_measures(head, n) for head in drawn]
        if max(sheet.text_width(line, small) for line in lines) <= width:
            break
    return names, lines, n, size, small
