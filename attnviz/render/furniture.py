"""What overviews and pages of one head share: their subject, axes, colour bar, legend, numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor, isnan, log10
from typing import Protocol

import numpy as np
import numpy.typing as npt

from attnviz.measures import measure
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
from attnviz.render.sheet import COLOURS, Indices, Line, Number, Picture, Sheet, Text, palette
from attnviz.render.visible import shorten
from attnviz.result import Attention
from attnviz.wording import plural

QUERY_AXIS, KEY_AXIS = "query: looks", "key: is looked at"
MARGIN = 18.0
DIM = 0.42
"""Tone of the labels of padding."""

Pair = tuple[int, int]

SHORT = {
    "entropy": ("{:.2f} bits", "entropy in bits"),
    "largest": ("max {:.2f}", "largest weight (max)"),
    "diagonal": ("diag {:.2f}", "share on the own position (diag)"),
    "first": ("first {:.2f}", "share on the first token (first)"),
    "distance": ("dist {:.1f}", "positions from query to key (dist)"),
}
"""Each measure above a small map, and what the page says of it."""


class Subject:
    """One sequence of a result: its texts, its scale, its measures."""

    def __init__(
        self,
        result: Attention,
        sequence: int,
        look: Look,
        pairs: list[Pair],
        longest_label: int,
    ) -> None:
        self._longest_label = longest_label
        self.result, self.sequence, self.look, self.pairs = result, sequence, look, pairs
        self.heads = self._heads()
        self.largest = self.heads.largest(pairs)
        self.top = look.vmax or self.largest
        self.measures = self._measures()
        self.queries = [label(t, longest_label) for t in result.query_tokens[sequence]]
        self.keys = [label(t, longest_label) for t in result.key_tokens[sequence]]
        self.tokens = plural(self.n_keys, "token")
        if self.queries != self.keys:
            self.tokens = f"{plural(self.n_queries, 'query')} × {plural(self.n_keys, 'key')}"
        self.caption = " · ".join(fact for fact in self._facts() if fact)
        self.fonts = Fonts([*self.queries, *self.keys, self.caption])
        self.notices = list(self.fonts.notices)
        lost = self.heads.weight_on_padding(pairs)
        if lost > 0.0005:
            self.notices.append(
                f"padding is not masked: queries give it up to {lost:.2g} of their weight, "
                "which is not drawn"
            )

    def _heads(self) -> Heads:
        return Heads(self.result, self.sequence)

    def _measures(self) -> dict[str, npt.NDArray[np.float64]]:
        with np.errstate(invalid="ignore"):  # what is no number is marked in its cell
            return measure(self.result, self.sequence, self.pairs).result()

    def _facts(self) -> list[str]:
        """What the caption says, a phrase each."""
        result = self.result
        masks = ", ".join(prose(name, 60) for name in result.masks)
        where = f"sequence {self.sequence} of {result.batch_size}" if result.batch_size > 1 else ""
        source = prose(result.source, 60)
        if not result.trained and "untrained" not in source:
            source = f"{source}, untrained".removeprefix(", ")
        notes = [prose(note, 60) for note in result.notes]
        if result.n_prompt:
            after = plural(result.n_prompt[self.sequence], "token")
            notes.append(f"the answer begins after {after}, at the line")
        return [source, f"masks: {masks}" if masks else "no mask", where, *notes]

    what = "weights"
    """What the cells stand for."""

    n_measures = len(SHORT)

    @property
    def title(self) -> str:
        return f"Attention: {plural(len(self.pairs), 'head')}, {self.tokens}"

    def brush(self, height: int, width: int, pool: int) -> Brush:
        """What paints a head's cells, in pixels."""
        return Brush(height, width, pool, self.look.dpi, self.top)

    def bar(self, sheet: Sheet, left: float, top: float, height: float) -> None:
        """Draw the colour bar."""
        draw_bar(sheet, left, top, height, self.top, self.largest > self.top)

    def legend(
        self, sheet: Sheet, left: float, base: float, width: float, heads: Sequence[Head]
    ) -> float:
        """Draw one line, or more, that names the patterns that occur; returns its height."""
        return draw_legend(sheet, left, base, width, *occurring(heads))

    def sheet(self, title: str, description: str) -> Sheet:
        return Sheet(self.look, self.fonts, title, description)

    def axes(self, sheet: Sheet, cell_w: float, cell_h: float, largest: float) -> tuple[Edge, Edge]:
        """Labels of the queries and of the keys for cells of this size, in points."""
        real = self.result.query_valid[self.sequence], self.result.key_valid[self.sequence]
        size_q, size_k = (max(5.5, min(largest, 0.78 * cell)) for cell in (cell_h, cell_w))
        queries = self._fitted(sheet, self.queries, size_q)
        keys = self._fitted(sheet, self.keys, size_k)
        answer = self._answer()
        return (
            Axis(sheet, queries, real[0], cell_h, size_q, upright=False, answer=answer),
            Axis(
                sheet,
                keys,
                real[1],
                cell_w,
                size_k,
                upright=True,
                answer=None if self.result.is_cross else answer,
            ),
        )

    def _answer(self) -> int | None:
        """The place in the padded row where what a model wrote begins."""
        if not self.result.n_prompt:
            return None
        first = int(self.result.query_valid[self.sequence].argmax())
        return first + self.result.n_prompt[self.sequence]

    def _fitted(self, sheet: Sheet, labels: list[str], size: float) -> list[str]:
        """Labels whose letters are wider than most lose more of their middle."""
        fitted = []
        for text in labels:
            longest = self._longest_label
            widest = 0.62 * longest * size
            while longest > 2 and sheet.text_width(text, size) > widest:
                longest -= 2
                text = shorten(text, longest)
            fitted.append(text)
        return fitted

    def note_labels(self, rows: Edge, columns: Edge, where: str) -> None:
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
        if not self.result.names_layers:
            return f"head {number}"
        return f"layer {self.result.layer_numbers[layer]} · head {number}"

    def short_names(self) -> Iterator[list[str]]:
        """The heads' names above small maps: from the longest form to the shortest."""
        several, layers = self.result.names_layers, self.result.layer_numbers
        longest = ("layer {} · head {}", "L{} H{}", "{}·{}")
        for form in longest if several else ("head {1}", "H{1}", "{1}"):
            yield [form.format(layers[layer], number) for layer, number in self.pairs]

    def short_measures(self, head: Head, n: int) -> str:
        """The first `n` measures of a head above a small map."""
        values = self.measured(head.layer, head.number)
        if self.result.is_part:
            return "a part of the map"
        if isnan(values["entropy"]):
            return unmeasured(head)
        return " · ".join(form.format(values[key]) for key, (form, _) in list(SHORT.items())[:n])

    def said(self, n: int) -> str:
        """What the overview says of the first `n` measures."""
        if self.result.is_part:
            return "a weight is its share of all keys, not of those shown"
        said = ", ".join(text for _, text in list(SHORT.values())[:n])
        return f"above each map, means over its queries: {said}"

    def describe(self, drawn: Sequence[Head]) -> str:
        """The overview in words: what it shows, and the strongest weight of the first heads."""
        some = [
            f"{self.name(head.layer, head.number)}: {self.strongest(head)}" for head in drawn[:8]
        ]
        more = f" And {len(drawn) - 8} more heads." if len(drawn) > 8 else ""
        return (
            f"Heatmaps of attention weights, one for each of {len(drawn)} heads; rows are queries, "
            f"columns are keys. {self.caption}. Colours run from 0 to {self.top:.3g}. "
            f"{'; '.join(some)}.{more}"
        )

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


class Edge(Protocol):
    """What stands along one edge of a map: its height or width in points, its texts and lines."""

    extent: float

    def notice(self, what: str) -> str: ...

    def rows(self, edge: float, top: float) -> list[Text]: ...

    def columns(self, edge: float, left: float) -> list[Text]: ...

    def row_lines(self, edge: float, top: float) -> list[Line]: ...

    def column_lines(self, edge: float, left: float) -> list[Line]: ...


class Axis:
    """Token labels along one edge: how many of them, how large, which way they read."""

    def __init__(
        self,
        sheet: Sheet,
        tokens: list[str],
        real: npt.NDArray[np.bool_],
        pitch: float,
        size: float,
        upright: bool,
        answer: int | None = None,
    ) -> None:
        """`answer` is the first place of what a model wrote: a line is drawn before it."""
        self.pitch, self.size, self._real, self._answer = pitch, size, real, answer
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

    def row_lines(self, edge: float, top: float) -> list[Line]:
        """The line between prompt and answer, left of `edge`."""
        if self._answer is None:
            return []
        y = top + self._answer * self.pitch
        return [Line(edge - max(self.extent, 8), y, edge, y, 0.8, 0.8)]

    def column_lines(self, edge: float, left: float) -> list[Line]:
        """The line between prompt and answer, below `edge`."""
        if self._answer is None:
            return []
        x = left + self._answer * self.pitch
        return [Line(x, edge, x, edge + max(self.extent, 8), 0.8, 0.8)]

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


def unmeasured(head: Head) -> str:
    """Why a head has no measures."""
    broken = bool((head.verdicts.kinds == NOT_A_NUMBER).any())
    return "not a number" if broken else "sees nothing"


def cell_pixels(points: float, dpi: int) -> int:
    return max(1, floor(points * dpi / 72 + 1e-9))


def draw_bar(
    sheet: Sheet,
    left: float,
    top: float,
    height: float,
    highest: float,
    clipped: bool,
    colours: int = COLOURS,
) -> None:
    """The colour bar with its scale, `height` points high; `clipped` when larger weights exist."""
    ramp = np.linspace(colours - 1, 0, round(height * sheet.scale))
    named = ticks(highest, clipped, apart=10 / height)
    places = [(1 - value / highest, text) for value, text in named]
    draw_ramp(sheet, left, top, ramp.round().astype(np.uint8), "weight", places)


def draw_ramp(
    sheet: Sheet, left: float, top: float, ramp: Indices, name: str, places: list[tuple[float, str]]
) -> None:
    """A bar of colours, one a pixel from the top; `places` are shares of its height, and names."""
    scale = sheet.scale
    x, y, w, h = round(left * scale), round(top * scale), round(9 * scale), len(ramp)
    sheet.pictures.append(Picture(x, y, np.repeat(ramp[:, None], w, axis=1)))
    left, top, width, height = x / scale, y / scale, w / scale, h / scale
    sheet.texts.append(Text(left, top - 6, name, 7.5, 0.75))
    for share, text in places:
        at = top + height * share
        sheet.lines.append(Line(left + width, at, left + width + 2.5, at, 0.55, 0.6))
        sheet.texts.append(Text(left + width + 4.5, at + 0.36 * 7.5, text, 7.5, 0.75))


def ticks(highest: float, clipped: bool, apart: float) -> list[tuple[float, str]]:
    """Round values from 0 up, and the highest itself, `apart` of the bar from the others."""
    magnitude = 10.0 ** floor(log10(highest / 4))
    step = next(n * magnitude for n in (1, 2, 2.5, 5, 10) if n * magnitude >= highest / 4.0001)
    count = floor(highest / step + 1e-9)
    round_ones = [i * step for i in range(count + 1) if i * step <= highest * (1 - apart)]
    top = f"{'≥ ' if clipped else ''}{highest:.3g}"
    return [*((value, f"{value:.3g}") for value in round_ones), (highest, top)]


def draw_legend(
    sheet: Sheet,
    left: float,
    base: float,
    width: float,
    kinds: set[int],
    blind: bool,
    painter: type[Brush] = Brush,
    more: Sequence[tuple[int, str]] = (),
) -> float:
    """One line that names the patterns that occur; returns the height that it took.

    `painter` knows kinds of cells of its own: `more`, with their names.
    """
    scale = sheet.scale
    w, h = round(14 * scale), round(8 * scale)
    brush = painter(h, w, 1, sheet.look.dpi, 1.0)
    items = [
        (kind, sees_nothing, text)
        for kind, sees_nothing, text, occurs in (
            (FORBIDDEN, False, "forbidden by a mask", FORBIDDEN in kinds),
            (FORBIDDEN, True, "sees nothing", blind),
            (PADDING, False, "padding", PADDING in kinds),
            (NOT_A_NUMBER, False, "not a number", NOT_A_NUMBER in kinds),
            *((kind, False, text, kind in kinds) for kind, text in more),
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


def draw_paragraph(
    sheet: Sheet, left: float, top: float, text: str, width: float, size: float
) -> float:
    """Lines of text in a quiet tone; returns the height that they took."""
    lines = sheet.wrapped(text, size, width)
    for i, line in enumerate(lines):
        sheet.texts.append(Text(left, top + size + i * size * 1.4, line, size, 0.62))
    return len(lines) * size * 1.4


def occurring(heads: Sequence[Head]) -> tuple[set[int], bool]:
    seen = {id(head.verdicts): head.verdicts for head in heads}.values()
    kinds = {int(kind) for verdicts in seen for kind in np.unique(verdicts.kinds)}
    return kinds, any(bool(verdicts.blind.any()) for verdicts in seen)


def numbers(
    sheet: Sheet, head: Head, left: float, top: float, cell_w: float, cell_h: float, brush: Brush
) -> list[Number]:
    """The weights in their cells, each in the ink that contrasts more with its colour.

    `brush` must not pool.
    """
    inks = contrasting(palette(sheet.look))[brush.shades(head.weights)]
    found = np.argwhere(head.verdicts.kinds == WEIGHT)
    longest = max((len(brush.written(head.weights[q, k])) for q, k in found.tolist()), default=4)
    size = min(10.0, cell_w * 1.44 / max(longest, 4), cell_h * 0.6)
    return [
        Number(
            left + (k + 0.5) * cell_w,
            top + (q + 0.5) * cell_h,
            brush.written(head.weights[q, k]),
            size,
            (255, 255, 255) if inks[q, k] else (0, 0, 0),
        )
        for q, k in found.tolist()
    ]


def contrasting(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """For each colour whether white stands out more than black, by WCAG's relative luminance."""
    part = colours / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    return np.asarray(1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05)


SMALLEST_NUMBER = 13.0
"""Cells narrower than this, in points, hold no number that could be read."""
