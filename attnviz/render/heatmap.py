"""Heatmaps: an overview of all heads as small multiples, and one large picture a head.

Rows are queries ("query: looks"), columns are keys ("key: is looked at"), from the top left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, floor, isnan, log, log10
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attnviz.render.cells import (
    FORBIDDEN,
    NOT_A_NUMBER,
    PADDING,
    WEIGHT,
    Brush,
    Head,
    Heads,
    Verdicts,
)
from attnviz.render.fonts import Fonts
from attnviz.render.labels import is_upright, label, prose
from attnviz.render.look import Look
from attnviz.render.raster import draw_simple, paste, rasterize, stamped, write_png
from attnviz.render.sheet import COLOURS, Indices, Line, Number, Picture, Sheet, Text, palette
from attnviz.result import AttentionResult
from attnviz.stats import measure

QUERY_AXIS, KEY_AXIS = "query: looks", "key: is looked at"
MARGIN = 18.0
DIM = 0.42
"""Tone of the labels of padding."""

Pair = tuple[int, int]


def draw_overview(
    result: AttentionResult,
    sequence: int,
    path: Path,
    look: Look,
    heads: Sequence[Pair] | None = None,
) -> list[str]:
    """Draw the chosen (layer, head) pairs, all by default, as one picture.

    `path.suffix` picks its form: .png, .svg or .pdf. Heads of one layer fill a grid; those of
    several make a layers × heads matrix. Returns remarks for the person: labels left out, cells
    pooled, characters that no font has.
    """
    if heads is None:
        heads = [(la, h) for la in range(result.n_layers) for h in range(result.n_heads)]
    subject = _Subject(result, sequence, look, list(heads), longest_label=14)
    write(_overview(subject), path)
    return subject.notices


def draw_heads(
    result: AttentionResult,
    sequence: int,
    targets: Sequence[tuple[int, int, Path]],
    look: Look,
    on_done: Callable[[Path], None] | None = None,
) -> list[str]:
    """Draw one large picture for each (layer, head, path); `path.suffix` picks its form.

    What all heads share is drawn once; a head's PNG is that page with its cells pasted in and its
    title written. `on_done` is called after each file. Returns remarks for the person.
    """
    pairs = [(layer, number) for layer, number, _ in targets]
    pages = _HeadPages(_Subject(result, sequence, look, pairs, longest_label=24))
    for layer, number, path in targets:
        if path.suffix.lower() == ".png":
            pages.write_png(layer, number, path)
        else:
            write(pages.sheet(layer, number), path)
        if on_done:
            on_done(path)
    return pages.subject.notices


def write(sheet: Sheet, path: Path) -> None:
    """Write a sheet in the form that the suffix names. The same sheet gives the same bytes."""
    suffix = path.suffix.lower()
    if suffix == ".png":
        colours = palette(sheet.look)
        page = stamped(rasterize(sheet), colours, sheet)
        write_png(page, colours, sheet.title, sheet.description, path, sheet.look.dpi)
        return
    from attnviz.render import vector

    path.write_bytes({".svg": vector.svg, ".pdf": vector.pdf}[suffix](sheet))


# ── what both kinds of picture share ────────────────────────────────────────────────────────


class _Subject:
    """One sequence of a result: its texts, its scale, its measures."""

    def __init__(
        self,
        result: AttentionResult,
        sequence: int,
        look: Look,
        pairs: list[Pair],
        longest_label: int,
    ) -> None:
        self._longest_label = longest_label
        self.result, self.sequence, self.look, self.pairs = result, sequence, look, pairs
        self.heads = Heads(result, sequence)
        self.largest = self.heads.largest(pairs)
        self.top = look.vmax or self.largest
        self.measures = measure(result, sequence).result()
        self.queries = [label(t, longest_label) for t in result.query_tokens[sequence]]
        self.keys = [label(t, longest_label) for t in result.key_tokens[sequence]]
        self.tokens = _count(self.n_keys, "token")
        if self.queries != self.keys:
            self.tokens = f"{_count(self.n_queries, 'query')} × {_count(self.n_keys, 'key')}"
        masks = ", ".join(prose(name, 60) for name in result.masks)
        where = f"sequence {sequence} of {result.batch_size}" if result.batch_size > 1 else ""
        source = prose(result.source, 60)
        if not result.trained and "untrained" not in source:
            source = f"{source}, untrained".removeprefix(", ")
        facts = [source, f"masks: {masks}" if masks else "no mask", where]
        self.caption = " · ".join(fact for fact in facts if fact)
        self.fonts = Fonts([*self.queries, *self.keys, self.caption])
        self.notices = list(self.fonts.notices)
        lost = self.heads.weight_on_padding(pairs)
        if lost > 0.0005:
            self.notices.append(
                f"padding is not masked: queries give it up to {lost:.2g} of their weight, "
                "which is not drawn"
            )

    def sheet(self, title: str, description: str) -> Sheet:
        return Sheet(self.look, self.fonts, title, description)

    def axes(
        self, sheet: Sheet, cell_w: float, cell_h: float, largest: float
    ) -> tuple[_Axis, _Axis]:
        """Labels of the queries and of the keys for cells of this size, in points."""
        size = max(5.5, min(largest, 0.78 * min(cell_w, cell_h)))
        return (
            _Axis(
                sheet,
                self._fitted(sheet, self.queries, size),
                self.result.query_valid[self.sequence],
                cell_h,
                size,
                upright=False,
            ),
            _Axis(
                sheet,
                self._fitted(sheet, self.keys, size),
                self.result.key_valid[self.sequence],
                cell_w,
                size,
                upright=True,
            ),
        )

    def _fitted(self, sheet: Sheet, labels: list[str], size: float) -> list[str]:
        """Labels whose letters are wider than most lose more of their middle."""
        fitted = []
        for text in labels:
            longest = self._longest_label
            while sheet.text_width(text, size) > 0.62 * self._longest_label * size:
                longest -= 2
                text = label(text, longest)
            fitted.append(text)
        return fitted

    def note_labels(self, rows: _Axis, columns: _Axis, where: str) -> None:
        """Say which labels are not there, once where queries and keys fare alike."""
        said = [rows.notice("tokens"), columns.notice("tokens")]
        if said[0] != said[1]:
            said = [rows.notice("queries"), columns.notice("keys")]
        self.notices += [f"{where}: {text}" for text in dict.fromkeys(said) if text]

    @property
    def n_queries(self) -> int:
        return len(self.queries)

    @property
    def n_keys(self) -> int:
        return len(self.keys)

    def name(self, layer: int, number: int) -> str:
        return f"layer {layer} · head {number}" if self.result.n_layers > 1 else f"head {number}"

    def measured(self, layer: int, number: int) -> dict[str, float]:
        return {name: float(values[layer, number]) for name, values in self.measures.items()}

    def strongest(self, head: Head) -> str:
        """The largest weight in words, for those who cannot see it."""
        if not (head.verdicts.kinds == WEIGHT).any():
            return "no query sees a key"
        q, k = np.unravel_index(int(head.weights.argmax()), head.weights.shape)
        return (
            f"the largest weight is {head.weights[q, k]:.2f}, "
            f"from query {q} “{self.queries[q]}” to key {k} “{self.keys[k]}”"
        )


class _Axis:
    """Token labels along one edge: how many of them, how large, which way they read."""

    def __init__(
        self,
        sheet: Sheet,
        tokens: list[str],
        real: npt.NDArray[np.bool_],
        pitch: float,
        size: float,
        upright: bool,
    ) -> None:
        self.pitch, self.size, self._real = pitch, size, real
        self.step = max(1, ceil(size * 1.08 / pitch))
        self.named = list(range(0, len(tokens), self.step))
        if self.step > 1 and len(self.named) < 4:
            self.named = []
        self._tokens = tokens
        widths = [sheet.text_width(tokens[i], size) for i in self.named]
        widest = max(widths, default=0.0)
        self.turn = 0 if not upright or widest <= self.step * pitch - 3 else 90
        if not self.named:
            self.extent = 0.0
        else:
            self.extent = (size if upright and not self.turn else widest) + 4

    def notice(self, what: str) -> str:
        if not self.named:
            return f"labels left out: {what} are too many for their names"
        nth = {2: "2nd", 3: "3rd"}.get(self.step, f"{self.step}th")
        return f"labels thinned: every {nth} of the {what} is named" if self.step > 1 else ""

    def rows(self, edge: float, top: float) -> list[Text]:
        """Labels left of `edge`, one a row from `top` down."""
        drop = 0.36 * self.size
        return [
            Text(
                edge - 4,
                top + (i + 0.5) * self.pitch + drop,
                self._tokens[i],
                self.size,
                self._tone(i),
                anchor="end",
            )
            for i in self.named
        ]

    def columns(self, edge: float, left: float) -> list[Text]:
        """Labels below `edge`, one a column from `left` on."""
        placed = []
        for i in self.named:
            middle = left + (i + 0.5) * self.pitch
            turn = 0 if is_upright(self._tokens[i]) else self.turn
            if turn:
                x, y, anchor = middle + 0.36 * self.size, edge + 4, "end"
            else:
                x, y, anchor = middle, edge + 3 + self.size, "middle"
            placed.append(
                Text(x, y, self._tokens[i], self.size, self._tone(i), anchor=anchor, turn=turn)
            )
        return placed

    def _tone(self, i: int) -> float:
        return 0.92 if self._real[i] else DIM


def _count(n: int, what: str) -> str:
    """`1 query`, `3 queries`."""
    many = f"{what[:-1]}ies" if what.endswith("y") and what != "key" else f"{what}s"
    return f"{n} {what if n == 1 else many}"


def _unmeasured(head: Head) -> str:
    """Why a head has no measures."""
    broken = bool((head.verdicts.kinds == NOT_A_NUMBER).any())
    return "no measures: not a number" if broken else "no query sees a key"


def _cell_pixels(points: float, dpi: int) -> int:
    return max(1, floor(points * dpi / 72 + 1e-9))


def _bar(
    sheet: Sheet, left: float, top: float, height: float, highest: float, clipped: bool
) -> None:
    """The colour bar with its scale, `height` points high; `clipped` when larger weights exist."""
    scale = sheet.scale
    x, y, w, h = round(left * scale), round(top * scale), round(9 * scale), round(height * scale)
    ramp = np.linspace(COLOURS - 1, 0, h).round().astype(np.uint8)
    sheet.pictures.append(Picture(x, y, np.repeat(ramp[:, None], w, axis=1)))
    left, top, width, height = x / scale, y / scale, w / scale, h / scale
    sheet.texts.append(Text(left, top - 6, "weight", 7.5, 0.75))
    for value, text in _ticks(highest, clipped, apart=10 / height):
        at = top + height * (1 - value / highest)
        sheet.lines.append(Line(left + width, at, left + width + 2.5, at, 0.55, 0.6))
        sheet.texts.append(Text(left + width + 4.5, at + 0.36 * 7.5, text, 7.5, 0.75))


def _ticks(highest: float, clipped: bool, apart: float) -> list[tuple[float, str]]:
    """Round values from 0 up, and the highest itself, `apart` of the bar from the others."""
    magnitude = 10.0 ** floor(log10(highest / 4))
    step = next(n * magnitude for n in (1, 2, 2.5, 5, 10) if n * magnitude >= highest / 4.0001)
    count = floor(highest / step + 1e-9)
    round_ones = [i * step for i in range(count + 1) if i * step <= highest * (1 - apart)]
    top = f"{'≥ ' if clipped else ''}{highest:.3g}"
    return [*((value, f"{value:.3g}") for value in round_ones), (highest, top)]


def _legend(
    sheet: Sheet, left: float, base: float, width: float, kinds: set[int], blind: bool
) -> float:
    """One line that names the patterns that occur; returns the height that it took."""
    scale = sheet.scale
    w, h = round(14 * scale), round(8 * scale)
    brush = Brush(h, w, 1, sheet.look.dpi, 1.0)
    items = [
        (kind, sees_nothing, text)
        for kind, sees_nothing, text, occurs in (
            (FORBIDDEN, False, "forbidden by a mask", FORBIDDEN in kinds),
            (FORBIDDEN, True, "sees nothing", blind),
            (PADDING, False, "padding", PADDING in kinds),
            (NOT_A_NUMBER, False, "not a number", NOT_A_NUMBER in kinds),
        )
        if occurs
    ]
    x, y = left, base
    for kind, sees_nothing, text in items:
        long = 14 + 5 + sheet.text_width(text, 8) + 16
        if x > left and x + long - 16 > left + width:
            x, y = left, y + 13
        cell = Head(
            0,
            0,
            np.zeros((1, 1), dtype=np.float32),
            Verdicts(np.full((1, 1), kind, dtype=np.uint8), np.array([sees_nothing])),
        )
        px, py = round(x * scale), round((y + 1) * scale)
        sheet.pictures.append(Picture(px, py, brush.paint(cell)))
        sheet.texts.append(Text(x + 14 + 5, y + 8, text, 8, 0.75))
        x += long
    return y + 13 - base if items else 0.0


def _paragraph(
    sheet: Sheet, left: float, top: float, text: str, width: float, size: float
) -> float:
    """Lines of text in a quiet tone; returns the height that they took."""
    lines = sheet.wrapped(text, size, width)
    for i, line in enumerate(lines):
        sheet.texts.append(Text(left, top + size + i * size * 1.4, line, size, 0.62))
    return len(lines) * size * 1.4


def _occurring(heads: Sequence[Head]) -> tuple[set[int], bool]:
    seen = {id(head.verdicts): head.verdicts for head in heads}.values()
    kinds = {int(kind) for verdicts in seen for kind in np.unique(verdicts.kinds)}
    return kinds, any(bool(verdicts.blind.any()) for verdicts in seen)


def _numbers(
    sheet: Sheet, head: Head, left: float, top: float, cell_w: float, cell_h: float, highest: float
) -> list[Number]:
    """The weights in their cells, each in the ink that contrasts more with its colour."""
    colours = palette(sheet.look)
    size = min(10.0, cell_w * 0.36, cell_h * 0.6)
    steps = np.clip(head.weights * (COLOURS / highest), 0, COLOURS - 1).astype(np.uint8)
    inks = _contrasting(colours)[steps]
    found = np.argwhere(head.verdicts.kinds == WEIGHT)
    return [
        Number(
            left + (k + 0.5) * cell_w,
            top + (q + 0.5) * cell_h,
            f"{head.weights[q, k]:.2f}",
            size,
            (255, 255, 255) if inks[q, k] else (0, 0, 0),
        )
        for q, k in found.tolist()
    ]


def _contrasting(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """For each colour whether white stands out more than black, by WCAG's relative luminance."""
    part = colours / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    return np.asarray(1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05)


SMALLEST_NUMBER = 13.0
"""Cells narrower than this, in points, hold no number that could be read."""


# ── the overview ────────────────────────────────────────────────────────────────────────────

SHORT = {
    "entropy": ("{:.2f} bits", "entropy in bits"),
    "largest": ("max {:.2f}", "largest weight (max)"),
    "diagonal": ("diag {:.2f}", "share on the own position (diag)"),
    "first": ("first {:.2f}", "share on the first token (first)"),
    "distance": ("dist {:.1f}", "positions from query to key (dist)"),
}
"""Each measure above a small map, and what the page says of it."""


def _overview(subject: _Subject) -> Sheet:
    """Lay out the small multiples: titles above the maps, labels on the outer edges only."""
    look, pairs = subject.look, subject.pairs
    drawn = [subject.heads.head(*pair) for pair in pairs]
    kinds, blind = _occurring(drawn)
    sheet = subject.sheet(
        f"Attention: {_count(len(pairs), 'head')}, {subject.tokens}",
        _describe(subject, drawn),
    )
    scale = sheet.scale
    places, n_rows, n_columns = _grid(pairs, subject)

    # the size of a cell follows from how many there are; pictures grow with their columns
    limit = (72 * (7.0 + n_columns) * (2 if look.annotate else 1)) / n_columns - 14
    longest = max(subject.n_queries, subject.n_keys)
    cell = min(limit, max(96, 15.0 * longest if look.annotate else 11.0 * longest)) / longest
    pool = ceil(longest / max(floor(limit * scale), 1))
    n_q, n_k = ceil(subject.n_queries / pool), ceil(subject.n_keys / pool)
    px_w = _cell_pixels(max(cell * pool, 84 / n_k), look.dpi)
    px_h = _cell_pixels(max(cell * pool, 24 / n_q), look.dpi)
    wide, high = n_k * px_w / scale, n_q * px_h / scale
    if pool > 1:
        subject.notices.append(
            f"overview: each cell shows the largest of {pool} × {pool} weights; "
            "the heads' own pictures show more"
        )
    rows, columns = subject.axes(
        sheet, wide / subject.n_keys, high / subject.n_queries, largest=8.0
    )
    subject.note_labels(rows, columns, "overview")

    names, measured, name_size, small = _tile_titles(sheet, subject, drawn, wide)
    head_room = 4 + name_size + (small + 3 if any(measured) else 0) + 3
    gap = 12.0 if wide > 70 else 7.0
    left = MARGIN + 16 + rows.extent
    inner = n_columns * wide + (n_columns - 1) * gap
    bar_left = left + inner + 14
    width = max(bar_left + 44 + MARGIN, 330.0)
    room = width - 2 * MARGIN

    sheet.texts.append(Text(MARGIN, MARGIN + 11, sheet.title, 13, bold=True))
    y = MARGIN + 19
    y += _paragraph(sheet, MARGIN, y, subject.caption, room, 8.5)
    if any(measured):
        shown = len(measured[0].split(" · "))
        said = ", ".join(text for _, text in list(SHORT.values())[:shown])
        y += _paragraph(
            sheet, MARGIN, y, f"above each map, means over its queries: {said}", room, 7.5
        )
    top = y + 6

    brush = Brush(px_h, px_w, pool, look.dpi, subject.top)
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
        base = y - 4 - (small + 2 if line else 0)
        sheet.texts.append(Text(x, base, name, name_size, bold=True))
        if line:
            sheet.texts.append(Text(x, y - 4, line, small, 0.7))
        if c == first_in_row[r]:
            sheet.texts += rows.rows(x, y)
        if r == last_in_column[c]:
            sheet.texts += columns.columns(y + high, x)
            bottom = max(bottom, y + high + columns.extent)
        if look.annotate and pool == 1 and wide / n_k >= SMALLEST_NUMBER <= high / n_q:
            sheet.numbers += _numbers(sheet, head, x, y, wide / n_k, high / n_q, subject.top)
    if look.annotate and not sheet.numbers:
        subject.notices.append("overview: the cells are too small for numbers")

    y_top, y_end = corner_y[0] / scale, corner_y[lowest] / scale + high
    middle = (y_top + y_end) / 2
    sheet.texts.append(Text(MARGIN + 8, middle, QUERY_AXIS, 9, anchor="middle", turn=90))
    sheet.texts.append(Text(left + inner / 2, bottom + 12, KEY_AXIS, 9, anchor="middle"))
    _bar(
        sheet,
        bar_left,
        y_top,
        min(y_end - y_top, 180.0),
        subject.top,
        subject.largest > subject.top,
    )
    used = _legend(sheet, MARGIN, bottom + 24, room, kinds, blind)
    sheet.width, sheet.height = width, bottom + 16 + (used + 10 if used else 0) + MARGIN - 4
    return sheet


def _grid(pairs: list[Pair], subject: _Subject) -> tuple[list[Pair], int, int]:
    """(row, column) of each head: a matrix of layers × heads, or one layer's heads wrapped."""
    layers = sorted({layer for layer, _ in pairs})
    if len(layers) > 1:
        numbers = sorted({number for _, number in pairs})
        places = [(layers.index(layer), numbers.index(number)) for layer, number in pairs]
        return places, len(layers), len(numbers)
    n = len(pairs)
    shape = subject.n_keys / subject.n_queries

    def cost(columns: int) -> float:
        rows = ceil(n / columns)
        lopsided = abs(log(columns * shape / (rows * 1.5)))
        return lopsided + 1.2 * (rows * columns - n) / n

    columns = min(range(1, n + 1), key=cost)
    return [divmod(i, columns) for i in range(n)], ceil(n / columns), columns


def _tile_titles(
    sheet: Sheet, subject: _Subject, drawn: list[Head], width: float
) -> tuple[list[str], list[str], float, float]:
    """Each head's name and as many of its measures as fit above its map, and both type sizes."""
    size, small = (8.5, 7.0) if width >= 80 else (6.5, 5.5)
    several = subject.result.n_layers > 1
    forms = ("layer {} · head {}", "L{} H{}", "{}·{}") if several else ("head {1}", "H{1}", "{1}")
    for form in forms:
        names = [form.format(*pair) for pair in subject.pairs]
        if max(sheet.text_width(name, size, bold=True) for name in names) <= width:
            break
    measured = [subject.measured(*pair) for pair in subject.pairs]
    for count in range(len(SHORT), 0, -1):
        chosen = list(SHORT.items())[:count]
        lines = [
            _unmeasured(head)
            if isnan(values["entropy"])
            else " · ".join(form.format(values[key]) for key, (form, _) in chosen)
            for head, values in zip(drawn, measured, strict=True)
        ]
        if max(sheet.text_width(line, small) for line in lines) <= width:
            return names, lines, size, small
    return names, [""] * len(names), size, small


def _describe(subject: _Subject, drawn: list[Head]) -> str:
    """The overview in words: what it shows, and the strongest weight of the first heads."""
    some = [
        f"{subject.name(head.layer, head.number)}: {subject.strongest(head)}" for head in drawn[:8]
    ]
    more = f" And {len(drawn) - 8} more heads." if len(drawn) > 8 else ""
    return (
        f"Heatmaps of attention weights, one for each of {len(drawn)} heads; rows are queries, "
        f"columns are keys. {subject.caption}. Colours run from 0 to {subject.top:.3g}. "
        f"{'; '.join(some)}.{more}"
    )


# ── one head ────────────────────────────────────────────────────────────────────────────────

TITLE_SIZE, MEASURE_SIZE = 13.0, 8.5
TITLE_BASE, MEASURE_BASE = MARGIN + 11, MARGIN + 26
MAP_TOP = MARGIN + 46


class _HeadPages:
    """Pages of single heads of one subject: what they share is laid out, and drawn, once."""

    def __init__(self, subject: _Subject) -> None:
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
        px_w = _cell_pixels(max(cell, 60 / n_k), look.dpi)
        px_h = _cell_pixels(max(cell, 60 / n_q), look.dpi)
        if self._pool > 1:
            subject.notices.append(
                f"heads: each cell shows the largest of {self._pool} × {self._pool} weights"
            )
        self._brush = Brush(px_h, px_w, self._pool, look.dpi, subject.top)
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
        sheet = self._base(*_occurring([head]))
        sheet.title, measures, sheet.description = self._words(head)
        sheet.texts += self._title(sheet.title, measures)
        sheet.pictures[0] = Picture(self._left, self._top, self._brush.paint(head))
        self._annotated(sheet, head)
        return sheet

    def write_png(self, layer: int, number: int, path: Path) -> None:
        """Write one head's PNG on the shared page."""
        head = self.subject.heads.head(layer, number)
        kinds, blind = _occurring([head])
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
            measures = _unmeasured(head)
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
            sheet.numbers += _numbers(
                sheet, head, left, top, self._cell_w, self._cell_h, self.subject.top
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
        sheet.texts.append(
            Text(MARGIN + 8, (top + bottom) / 2, QUERY_AXIS, 9, anchor="middle", turn=90)
        )
        below = bottom + self._columns.extent
        sheet.texts.append(Text((left + right) / 2, below + 12, KEY_AXIS, 9, anchor="middle"))
        _bar(
            sheet,
            right + 14,
            top,
            min(self._high, 300.0),
            subject.top,
            subject.largest > subject.top,
        )
        width = max(right + 14 + 44 + MARGIN, 400.0)
        y = below + 24
        used = _legend(sheet, MARGIN, y, width - 2 * MARGIN, kinds, blind)
        y += used + 3 if used else 0
        y += _paragraph(sheet, MARGIN, y, subject.caption, width - 2 * MARGIN, 7.5)
        sheet.width, sheet.height = width, y + MARGIN - 4
        return sheet
