"""Pictures of a comparison: the differences of all heads, and for one head A, B and B - A.

Only real tokens are drawn, so that runs that were padded in other ways lie on each other. Red is
where B gives more, blue where it gives less; cells without a difference have the neutral colour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, isnan
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.comparison import UNKNOWN, Comparison, HeadDifference
from attnviz.machine import require_memory
from attnviz.render.cells import (
    FORBIDDEN,
    NOT_A_NUMBER,
    PADDING,
    WEIGHT,
    Brush,
    Head,
    Heads,
    Verdicts,
    pooled,
)
from attnviz.render.furniture import (
    KEY_AXIS,
    MARGIN,
    QUERY_AXIS,
    SMALLEST_NUMBER,
    Pair,
    Subject,
    cell_pixels,
    draw_bar,
    draw_legend,
    draw_paragraph,
    draw_ramp,
    numbers,
    occurring,
    ticks,
    unmeasured,
)
from attnviz.render.heatmap import write
from attnviz.render.labels import prose
from attnviz.render.look import Look
from attnviz.render.overview import overview_sheet
from attnviz.render.sheet import COLOURS, Indices, Picture, Sheet, Text, tone_index
from attnviz.render.visible import signed
from attnviz.result import Attention
from attnviz.wording import plural

WEIGHTS = 99
"""Palette entries of the weights' own colours; those of differences follow."""

DIFFERENCES = COLOURS - WEIGHTS
"""An odd number: the one in the middle is no difference."""

ONLY_A, ONLY_B = 4, 5
"""Kinds of cells beside those of `cells`: one mask allows them, the other forbids them."""

ONE_MASK = ((ONLY_A, "allowed in A only"), (ONLY_B, "allowed in B only"))

CELL_BYTES = 6
"""Of a difference as float32, what kind of cell it is, and whether it is drawn."""

DIVERGING = {
    "light": "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f",
    "dark": "cfe6ff 8ec2f7 5599e0 3a6ca6 2d425c 2a2d33 5c3a34 a64f3f e0705a f7a48e ffdbcf",
}
"""For each theme a map from less to more whose middle is near its paper: that of light paper is
ColorBrewer's RdBu (Brewer 2003), which the colour-blind can tell apart as well."""


def draw_differences(
    comparison: Comparison,
    sequence: int,
    path: Path,
    look: Look,
    names: tuple[str, str] = ("", ""),
) -> list[str]:
    """Draw B - A of every compared head of one sequence as one picture.

    `path.suffix` picks its form: .png, .svg or .pdf; `names` say what A and B are. Heads of several
    layers make a layers × heads matrix. Returns remarks for the person.
    """
    subject = Differences(comparison, sequence, look, names)
    write(overview_sheet(subject), path)
    return subject.notices


def draw_triptychs(
    comparison: Comparison,
    sequence: int,
    targets: Sequence[tuple[HeadDifference, Path]],
    look: Look,
    names: tuple[str, str] = ("", ""),
    on_done: Callable[[], object] = lambda: None,
) -> list[str]:
    """Draw A, B and B - A of each head side by side, on common scales; see `draw_differences`.

    `on_done` is called after each file.
    """
    notices: dict[str, None] = {}
    scales = Scales.of(comparison, sequence, [head for head, _ in targets], look)
    for head, path in targets:
        triptych = Triptych(comparison, sequence, head, look, names, scales)
        write(triptych.sheet(), path)
        notices.update(dict.fromkeys(triptych.notices))
        on_done()
    return list(notices)


# ── colours ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class TwoMaps(Look):
    """A look whose cells have two colour maps: its own for weights, a diverging one after it."""

    @classmethod
    def of(cls, look: Look) -> TwoMaps:
        return cls(**asdict(look))

    def ramp(self, n: int) -> Any:
        return np.concatenate([super().ramp(WEIGHTS), diverging(self.theme, n - WEIGHTS)])


def diverging(theme: str, n: int) -> npt.NDArray[np.float64]:
    """`n` colours from less to more, `[n 3]`, from 0 to 1."""
    anchors = np.array([list(bytes.fromhex(colour)) for colour in DIVERGING[theme].split()]) / 255
    at = np.linspace(0, len(anchors) - 1, n)
    return np.stack([np.interp(at, np.arange(len(anchors)), part) for part in anchors.T], axis=-1)


class WeightBrush(Brush):
    """Paints weights with their part of the palette."""

    colours = WEIGHTS


class DifferenceBrush(Brush):
    """Paints signed differences: `top` and `-top` have the strongest colours, 0 the middle one.

    Of pooled cells the one that is furthest from 0 is shown.
    """

    def shades(self, weights: npt.NDArray[np.float32]) -> Indices:
        up, down = pooled(weights, self.pool), -pooled(-weights, self.pool)
        differences = np.where(up > -down, up, down)
        half = DIFFERENCES // 2
        with np.errstate(over="ignore"):
            steps = np.clip(np.rint(differences * (half / self.top)), -half, half)
        return (WEIGHTS + half + steps).astype(np.uint8)

    def written(self, weight: float) -> str:
        text = f"{weight:+.2f}".replace("-", "−")
        return "0" if text[1:] == "0.00" else text

    def _patterns(
        self, kinds: npt.NDArray[np.uint8]
    ) -> list[tuple[npt.NDArray[np.bool_], Indices]]:
        """The difference shows through the lines of what one mask allows."""
        ink = np.full(kinds.shape, tone_index(1.0), dtype=np.uint8)
        period = max(4, round(self._dpi / 72 * 4.5))
        thick = max(1, round(self._dpi / 150))
        y, x = np.ogrid[: kinds.shape[0], : kinds.shape[1]]
        falling, upright = (x - y) % period < thick, x % period < thick
        return [
            *super()._patterns(kinds),
            ((kinds == ONLY_A) & falling, ink),
            ((kinds == ONLY_B) & upright, ink),
        ]


# ── the differences of all heads ─────────────────────────────────────────────────────────────


def cropped(result: Attention, sequence: int) -> Attention:
    """One sequence between its real tokens, as a view: nothing is read or copied."""
    q, k = _span(result.query_valid[sequence]), _span(result.key_valid[sequence])
    s = slice(sequence, sequence + 1)
    return replace(
        result,
        attention=result.attention[:, s, :, q, k],
        allowed=result.allowed[:, s, :, q, k],
        query_tokens=(result.query_tokens[sequence][q],),
        key_tokens=(result.key_tokens[sequence][k],),
        lengths=result.lengths[s],
        key_lengths=result.key_lengths[s],
        kept={},
    )


def _span(real: npt.NDArray[np.bool_]) -> slice:
    places = np.flatnonzero(real)
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 1)


class DifferentHeads(Heads):
    """B - A for each head of A; what each of its cells is follows from both masks."""

    def __init__(self, a: Attention, b: Attention, others: dict[Pair, HeadDifference]) -> None:
        super().__init__(a, 0)
        self._a, self._b, self._others = a, b, others

    def head(self, layer: int, number: int) -> Head:
        """Raises KeyError where there is no such head."""
        in_a, allowed_a = _cells(self._a, layer, number)
        in_b, allowed_b = _cells(self._b, layer, self._others[layer, number].other)
        if self._a.masks == UNKNOWN:
            allowed_a = allowed_b | (in_a != 0)
        if self._b.masks == UNKNOWN:
            allowed_b = allowed_a | (in_b != 0)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = (in_b.astype(np.float64) - in_a).astype(np.float32)
        kinds = np.full(difference.shape, WEIGHT, dtype=np.uint8)
        kinds[~allowed_a & ~allowed_b & (difference == 0)] = FORBIDDEN
        kinds[allowed_a & ~allowed_b] = ONLY_A
        kinds[allowed_b & ~allowed_a] = ONLY_B
        odd = ~np.isfinite(difference)
        kinds[odd] = NOT_A_NUMBER
        kinds[~self._real] = PADDING  # a sequence without tokens
        difference[odd] = 0
        blind = (kinds == FORBIDDEN).all(-1)
        return Head(layer, number, difference, self._same(Verdicts(kinds, blind)))

    def largest(self, pairs: list[Pair]) -> float:
        """The largest difference of these heads, 1 where there is none: both ends of the scale."""
        top = max(float(np.abs(self.head(*pair).weights).max(initial=0)) for pair in pairs)
        return top if top > 0 else 1.0

    def _same(self, verdicts: Verdicts) -> Verdicts:
        """The one that is already known where it is the same: heads that share it are quick."""
        return self._shared.setdefault(verdicts.kinds.tobytes(), verdicts)


def _cells(
    result: Attention, layer: int, number: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    masks = result.allowed[layer, 0]
    return result.attention[layer, 0, number], masks[number if len(masks) > 1 else 0]


class Differences(Subject):
    """The differences of one sequence: what the overview draws."""

    what = "differences"
    n_measures = 2

    def __init__(
        self, comparison: Comparison, sequence: int, look: Look, names: tuple[str, str]
    ) -> None:
        self.comparison, self.names = comparison, names
        self._b = cropped(comparison.b, sequence)
        self._found = {(head.layer, head.head): head for head in comparison.heads}
        self._at = comparison.sequences.index(sequence)
        n_queries, n_keys = comparison.a.attention.shape[3:]
        require_memory(
            len(self._found) * n_queries * n_keys * CELL_BYTES,
            f"a picture of {plural(len(self._found), 'difference')} of {n_queries} × {n_keys}",
            "choose fewer with --layers and --heads",
        )
        super().__init__(
            cropped(comparison.a, sequence), 0, TwoMaps.of(look), sorted(self._found), 14
        )

    def _heads(self) -> Heads:
        return DifferentHeads(self.result, self._b, self._found)

    def _measures(self) -> dict[str, npt.NDArray[np.float64]]:
        return {}

    def _facts(self) -> list[str]:
        return facts(self.comparison, self.comparison.sequences[self._at], self.names)

    @property
    def title(self) -> str:
        return f"Difference B − A: {plural(len(self.pairs), 'head')}, {self.tokens}"

    def brush(self, height: int, width: int, pool: int) -> Brush:
        return DifferenceBrush(height, width, pool, self.look.dpi, self.top)

    def bar(self, sheet: Sheet, left: float, top: float, height: float) -> None:
        difference_bar(sheet, left, top, height, self.top, self.largest > self.top)

    def legend(
        self, sheet: Sheet, left: float, base: float, width: float, heads: Sequence[Head]
    ) -> float:
        return draw_legend(sheet, left, base, width, *occurring(heads), DifferenceBrush, ONE_MASK)

    def short_names(self) -> Any:
        for names in super().short_names():
            if self.comparison.matched:
                others = (self._found[pair].other for pair in self.pairs)
                names = [f"{name} ~ {other}" for name, other in zip(names, others, strict=True)]
            yield names

    def short_measures(self, head: Head, n: int) -> str:
        bits = self._found[head.layer, head.number].by_sequence[self._at]
        if isnan(bits):
            return unmeasured(head)
        if not head.weights.any():
            return "the same"
        return " · ".join([f"{bits:.2g} bits", signed(furthest(head.weights), 2)][:n])

    def said(self, n: int) -> str:
        parts = ["its distance (mean Jensen–Shannon divergence of its rows, in bits)"]
        parts += ["the largest difference of a weight"]
        matched = "; A's head ~ B's" if self.comparison.matched else ""
        return f"above each map: {' and '.join(parts[:n])}{matched}"

    def describe(self, drawn: Sequence[Head]) -> str:
        """The overview in words."""
        some = [self._in_words(head) for head in self.comparison.heads[:8]]
        return (
            f"Heatmaps of differences of attention weights, B - A, one for each of {len(drawn)} "
            f"heads; rows are queries, columns are keys. {self.caption}. Colours run from "
            f"{-self.top:.3g} to {self.top:.3g}. The heads that changed most: {'; '.join(some)}."
        )

    def _in_words(self, head: HeadDifference) -> str:
        return f"{self.name(head.layer, head.head)}: {head.bits:.3g} bits"


def facts(comparison: Comparison, sequence: int | None, names: tuple[str, str]) -> list[str]:
    """What a caption says of a comparison, of one sequence or (None) of all."""
    said = []
    for letter, name, result in zip("AB", names, (comparison.a, comparison.b), strict=True):
        masks = ", ".join(prose(mask, 60) for mask in result.masks)
        about = [prose(name, 60), prose(result.source, 60)]
        about = [part for part in dict.fromkeys(about) if part]
        about.append(f"masks: {masks}" if masks else "no mask")
        said.append(f"{letter}: {', '.join(about)}")
    n = comparison.a.batch_size
    if n == 1:
        return said
    if sequence is None:
        return [*said, plural(len(comparison.sequences), "sequence")]
    return [*said, f"sequence {sequence} of {n}"]


def furthest(differences: npt.NDArray[Any]) -> float:
    """The one that is furthest from 0."""
    return float(differences.flat[int(np.abs(differences).argmax())])


def difference_bar(
    sheet: Sheet, left: float, top: float, height: float, highest: float, clipped: bool
) -> None:
    """The colour bar of differences, from `highest` down to `-highest`, `height` points high."""
    ramp = np.linspace(COLOURS - 1, WEIGHTS, round(height * sheet.scale))
    places = []
    for value, text in ticks(highest, clipped, apart=20 / height):
        share = value / highest / 2
        if value == 0:
            places.append((0.5, "0"))
        else:
            places += [(0.5 - share, f"+{text}".replace("+≥ ", "≥ +"))]
            places += [(0.5 + share, f"−{text}".replace("−≥ ", "≤ −"))]
    draw_ramp(sheet, left, top, ramp.round().astype(np.uint8), "B − A", places)


# ── one head ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Scales:
    """The common scales of a set of triptychs: the strongest weight, the strongest difference.

    `weight_clipped` and `difference_clipped` say whether larger ones occur.
    """

    weight: float
    difference: float
    weight_clipped: bool
    difference_clipped: bool

    @classmethod
    def of(
        cls, comparison: Comparison, sequence: int, heads: Sequence[HeadDifference], look: Look
    ) -> Scales:
        a, b = cropped(comparison.a, sequence), cropped(comparison.b, sequence)
        found = {(head.layer, head.head): head for head in heads}
        pairs = list(found)
        weight = max(
            Heads(a, 0).largest(pairs),
            Heads(b, 0).largest([(head.layer, head.other) for head in heads]),
        )
        difference = DifferentHeads(a, b, found).largest(pairs)
        top = look.vmax or weight, look.vmax or difference
        return cls(*top, weight > top[0], difference > top[1])


NARROWEST = 120.0
"""Points of a map that has room for its caption."""

GAP = 22.0
BAR = 60.0
"""Points between two maps, and for a colour bar with its numbers."""


class Triptych:
    """A, B and B - A of one head side by side."""

    def __init__(
        self,
        comparison: Comparison,
        sequence: int,
        head: HeadDifference,
        look: Look,
        names: tuple[str, str],
        scales: Scales,
    ) -> None:
        self._head, self._scales, self._look = head, scales, TwoMaps.of(look)
        self._bits = head.by_sequence[comparison.sequences.index(sequence)]
        self._layer = ""
        if comparison.a.names_layers:
            self._layer = f"layer {comparison.a.layer_numbers[head.layer]} · "
        a = _one_head(cropped(comparison.a, sequence), head.layer, head.head)
        b = _one_head(cropped(comparison.b, sequence), head.layer, head.other)
        self._subjects = [Subject(one, 0, self._look, [(0, 0)], 24) for one in (a, b)]
        pair = {(0, 0): replace(head, layer=0, head=0, other=0)}
        self._difference = DifferentHeads(a, b, pair).head(0, 0)
        self.caption = " · ".join(fact for fact in facts(comparison, sequence, names) if fact)
        self.notices = list(self._subjects[0].notices)

    def sheet(self) -> Sheet:
        """Lay out the page."""
        a, look, scales = self._subjects[0], self._look, self._scales
        sheet = a.sheet(self._title(), self._describe())
        scale = sheet.scale
        longest = max(a.n_queries, a.n_keys)
        wanted = max(150.0, min(22.0 * longest, 320.0), 8.6 * longest if longest <= 66 else 0.0)
        if look.annotate and longest <= 60:
            wanted = max(wanted, 15.0 * longest)
        pool = ceil(longest / max(wanted * scale, 1024.0))
        n_q, n_k = ceil(a.n_queries / pool), ceil(a.n_keys / pool)
        cell = wanted / ceil(longest / pool)
        px_w = cell_pixels(max(cell, NARROWEST / n_k), look.dpi)
        px_h = cell_pixels(max(cell, 60 / n_q), look.dpi)
        if pool > 1:
            self.notices.append(f"heads: each cell shows the largest of {pool} × {pool} weights")
        wide, high = n_k * px_w / scale, n_q * px_h / scale
        cell_w, cell_h = wide / a.n_keys, high / a.n_queries
        rows, columns = a.axes(sheet, cell_w, cell_h, largest=9.0)
        noted = len(a.notices)
        a.note_labels(rows, columns, "heads")
        self.notices += a.notices[noted:]

        left = round((MARGIN + 16 + rows.extent) * scale) / scale
        top = round((MARGIN + 62) * scale) / scale
        bottom = top + high
        weight_brush = WeightBrush(px_h, px_w, pool, look.dpi, scales.weight)
        brush = DifferenceBrush(px_h, px_w, pool, look.dpi, scales.difference)
        maps: list[tuple[Head, Brush]]
        maps = [(subject.heads.head(0, 0), weight_brush) for subject in self._subjects]
        maps.append((self._difference, brush))
        sheet.texts += rows.rows(left, top)
        x = left
        captions = self._captions()
        for i, ((head, painter), (name, line)) in enumerate(zip(maps, captions, strict=True)):
            x = round(x * scale) / scale
            sheet.texts.append(Text(x, top - 15, name, 9, bold=True))
            sheet.texts.append(Text(x, top - 5, line, 7, 0.7))
            sheet.pictures.append(
                Picture(round(x * scale), round(top * scale), painter.paint(head))
            )
            sheet.texts += columns.columns(bottom, x)
            sheet.texts.append(
                Text(x + wide / 2, bottom + columns.extent + 12, KEY_AXIS, 9, anchor="middle")
            )
            if look.annotate and pool == 1 and cell_w >= SMALLEST_NUMBER <= cell_h:
                sheet.numbers += numbers(sheet, head, x, top, cell_w, cell_h, painter)
            x += wide + GAP
            if i == 1:
                height = min(high, 240.0)
                bar = x - GAP + 12
                draw_bar(sheet, bar, top, height, scales.weight, scales.weight_clipped, WEIGHTS)
                x += BAR - GAP + 12
        bar = x - GAP + 12
        difference_bar(
            sheet, bar, top, min(high, 240.0), scales.difference, scales.difference_clipped
        )
        if look.annotate and not sheet.numbers:
            self.notices.append("heads: the cells are too small for numbers")
        width = bar + BAR + MARGIN - 12
        middle = (top + bottom) / 2
        sheet.texts.append(Text(MARGIN + 8, middle, QUERY_AXIS, 9, anchor="middle", turn=90))
        sheet.texts.append(Text(MARGIN, MARGIN + 11, sheet.title, 13, bold=True))
        sheet.texts.append(Text(MARGIN, MARGIN + 26, self._line(), 8.5, 0.75))
        y = bottom + columns.extent + 24
        kinds, blind = occurring([head for head, _ in maps])
        used = draw_legend(
            sheet, MARGIN, y, width - 2 * MARGIN, kinds, blind, DifferenceBrush, ONE_MASK
        )
        y += used + 3 if used else 0
        y += draw_paragraph(sheet, MARGIN, y, self.caption, width - 2 * MARGIN, 7.5)
        sheet.width, sheet.height = width, y + MARGIN - 4
        return sheet

    def _captions(self) -> list[tuple[str, str]]:
        """Above each map its name and what it is."""
        head, found = self._head, []
        for letter, number, subject in zip(
            "AB", (head.head, head.other), self._subjects, strict=True
        ):
            values = subject.measured(0, 0)
            line = f"entropy {values['entropy']:.2f} bits · largest {values['largest']:.2f}"
            if isnan(values["entropy"]):
                line = unmeasured(subject.heads.head(0, 0))
            found.append((f"{letter} head {number}", line))
        return [*found, ("B − A", "red: B gives more; blue: less")]

    def _title(self) -> str:
        head = self._head
        title = f"head {head.head}"
        if head.other != head.head:
            title += f" of A, head {head.other} of B"
        title = f"{self._layer}{title}"
        return title[0].upper() + title[1:]

    def _line(self) -> str:
        a = self._subjects[0]
        weights = self._difference.weights
        q, k = divmod(int(np.abs(weights).argmax()), weights.shape[1])
        distance = "no distance" if isnan(self._bits) else f"{self._bits:.3g} bits apart"
        if not weights[q, k]:
            return f"{distance} · no difference"
        values = (float(subject.result.attention[0, 0, 0, q, k]) for subject in self._subjects)
        a_and_b = "{:.3g} in A, {:.3g} in B".format(*values)
        return (
            f"{distance} · largest difference {signed(weights[q, k], 3)}, from query {q} "
            f"{a.queries[q]} to key {k} {a.keys[k]}: {a_and_b}"
        )

    def _describe(self) -> str:
        scales = self._scales
        return (
            f"Three heatmaps of attention: A, B and the difference B - A. {self._title()}: "
            f"{self._line()}; rows are queries, columns are keys. {self.caption}. Weights run "
            f"from 0 to {scales.weight:.3g}, differences from {-scales.difference:.3g} to "
            f"{scales.difference:.3g}."
        )


def _one_head(result: Attention, layer: int, head: int) -> Attention:
    """A view of one head alone."""
    per_head = result.allowed.shape[2] > 1
    one = slice(layer, layer + 1)
    return replace(
        result,
        attention=result.attention[one, :, head : head + 1],
        allowed=result.allowed[one, :, head : head + 1] if per_head else result.allowed[one],
        layers=(),
    )
