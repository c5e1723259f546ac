"""Panels of a comparison: B - A of each head, and A, B and B - A of one head.

Only real tokens are drawn, so that runs that were padded in other ways lie on each other. Red is
where B gives more, blue where it gives less; cells without a difference have the neutral colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.comparison import Comparison, HeadDifference
from attnviz.machine import require_memory
from attnviz.measures import measure
from attnviz.render.figure_options import FigureOptions
from attnviz.render.labels import prose
from attnviz.render.palette import WEIGHT_COLOURS
from attnviz.render.panel import (
    BLIND,
    FORBIDDEN,
    NOT_A_NUMBER,
    ONLY_A,
    ONLY_B,
    PADDING,
    WEIGHT,
    CellKinds,
    HeadCells,
    Pair,
    Panel,
    PanelSet,
    head_names,
    sizes_in_words,
    token_axes,
    why_unmeasured,
)
from attnviz.render.scales import LinearScale, Scale, SignedScale
from attnviz.render.visible import signed
from attnviz.result import UNKNOWN_MASKS, Attention
from attnviz.wording import plural

CELL_BYTES = 6
"""Of a difference as float32, what kind of cell it is, and whether it is drawn."""


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


class DifferenceCells:
    """B - A for each head of A; what each of its cells is follows from both masks."""

    def __init__(self, a: Attention, b: Attention, heads: Sequence[HeadDifference]) -> None:
        """`a` and `b` are one sequence between its real tokens."""
        self._a, self._b = a, b
        self._others = {(head.layer, head.head): head.other for head in heads}
        self._real = np.outer(a.query_valid[0], a.key_valid[0])
        self._shared: dict[bytes, CellKinds] = {}

    def cells(self, pair: Pair) -> tuple[npt.NDArray[np.float32], CellKinds]:
        """The differences, 0 where a cell holds none, and the kinds. KeyError for no such head."""
        in_a, allowed_a = _cells(self._a, *pair)
        in_b, allowed_b = _cells(self._b, pair[0], self._others[pair])
        if self._a.masks == UNKNOWN_MASKS:
            allowed_a = allowed_b | (in_a != 0)
        if self._b.masks == UNKNOWN_MASKS:
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
        kinds[(kinds == FORBIDDEN).all(-1)] = BLIND
        difference[odd] = 0
        return difference, self._shared.setdefault(kinds.tobytes(), CellKinds(kinds))

    def largest(self) -> float:
        """The largest difference of these heads, 1 where there is none: both ends of the scale."""
        top = max(float(np.abs(self.cells(pair)[0]).max(initial=0)) for pair in self._others)
        return top if top > 0 else 1.0


def _cells(
    result: Attention, layer: int, number: int
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    masks = result.allowed[layer, 0]
    return result.attention[layer, 0, number], masks[number if len(masks) > 1 else 0]


def difference_panels(
    comparison: Comparison,
    sequence: int,
    options: FigureOptions,
    names: tuple[str, str] = ("", ""),
    heads: Sequence[HeadDifference] | None = None,
) -> PanelSet:
    """B - A of the compared heads on one sequence, or of `heads`; `names` are those of A and B."""
    by_pair = {
        (head.layer, head.head): head for head in (comparison.heads if heads is None else heads)
    }
    a, b = cropped(comparison.a, sequence), cropped(comparison.b, sequence)
    _require_memory(comparison, len(by_pair))
    cells = DifferenceCells(a, b, list(by_pair.values()))
    largest = cells.largest()
    top = options.vmax or largest
    scale = SignedScale(top, largest > top)
    at = comparison.sequences.index(sequence)
    axes = token_axes(a, 0)

    def panel(pair: Pair) -> Panel:
        difference, kinds = cells.cells(pair)
        head = by_pair[pair]
        own = head_names(a, *pair)
        if comparison.matched:
            own = tuple(f"{name} ~ {head.other}" for name in own)
        bits = head.by_sequence[at]
        if isnan(bits):
            measures: tuple[str, ...] = (why_unmeasured(kinds),)
        elif not difference.any():
            measures = ("the same",)
        else:
            furthest = difference.flat[int(np.abs(difference).argmax())]
            measures = f"{bits:.2g} bits", signed(float(furthest), 2)
        return Panel(difference, kinds, scale, own, measures)

    most = "; ".join(
        f"{head_names(a, head.layer, head.head)[0]}: {head.bits:.3g} bits"
        for head in list(by_pair.values())[:8]
    )

    return PanelSet(
        sorted(by_pair),
        panel,
        *axes,
        title=f"Difference B − A: {plural(len(by_pair), 'head')}, {sizes_in_words(*axes)}",
        caption=comparison_caption(comparison, sequence, names),
        measured=lambda n: _measured(n, comparison.matched),
        values="differences",
        two_maps=True,
        in_words=f"The heads that changed most: {most}.",
    )


def _require_memory(comparison: Comparison, n_heads: int) -> None:
    n_queries, n_keys = comparison.a.attention.shape[3:]
    require_memory(
        n_heads * n_queries * n_keys * CELL_BYTES,
        f"a picture of {plural(n_heads, 'difference')} of {n_queries} × {n_keys}",
        "choose fewer with --layers and --heads",
    )


def comparison_caption(comparison: Comparison, sequence: int | None, names: tuple[str, str]) -> str:
    """What A and B are, and which sequence is drawn, or (None) how many."""
    parts = []
    for letter, name, result in zip("AB", names, (comparison.a, comparison.b), strict=True):
        masks = ", ".join(prose(mask, 60) for mask in result.masks)
        about = [prose(name, 60), prose(result.source, 60)]
        about = [part for part in dict.fromkeys(about) if part]
        about.append(f"masks: {masks}" if masks else "no mask")
        parts.append(f"{letter}: {', '.join(about)}")
    n = comparison.a.batch_size
    if n > 1 and sequence is None:
        parts.append(plural(len(comparison.sequences), "sequence"))
    elif n > 1:
        parts.append(f"sequence {sequence} of {n}")
    return " · ".join(parts)


def _measured(n: int, matched: bool) -> str:
    """What the first n measures above each panel are."""
    parts = ["its distance (mean Jensen–Shannon divergence of its rows, in bits)"]
    parts += ["the largest difference of a weight"]
    return f"above each map: {' and '.join(parts[:n])}{'; A’s head ~ B’s' if matched else ''}"


# ── one head ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ComparisonScales:
    """The common scales of a set of pictures, each of one head."""

    weight: Scale
    difference: Scale


def common_scales(
    comparison: Comparison, sequence: int, heads: Sequence[HeadDifference], options: FigureOptions
) -> ComparisonScales:
    """The scales of A and B, and of B - A, over all `heads`."""
    a, b = cropped(comparison.a, sequence), cropped(comparison.b, sequence)
    weight = max(
        HeadCells(a, 0).largest([(head.layer, head.head) for head in heads]),
        HeadCells(b, 0).largest([(head.layer, head.other) for head in heads]),
    )
    difference = DifferenceCells(a, b, heads).largest()
    tops = options.vmax or weight, options.vmax or difference
    return ComparisonScales(
        LinearScale(tops[0], weight > tops[0], colours=WEIGHT_COLOURS),
        SignedScale(tops[1], difference > tops[1]),
    )


def three_panels(
    comparison: Comparison, sequence: int, head: HeadDifference, scales: ComparisonScales
) -> list[Panel]:
    """A, B and B - A of one head; the last one's title and summary are those of the picture."""
    a, b = cropped(comparison.a, sequence), cropped(comparison.b, sequence)
    panels = []
    for letter, number, result in (("A", head.head, a), ("B", head.other, b)):
        pair = head.layer, number
        weights, kinds = HeadCells(result, 0).cells(*pair)
        with np.errstate(invalid="ignore"):
            measured = measure(result, 0, [pair]).result()
        entropy, largest = (float(measured[name][pair]) for name in ("entropy", "largest"))
        measures: tuple[str, ...] = (f"entropy {entropy:.2f} bits", f"largest {largest:.2f}")
        if isnan(entropy):
            measures = (why_unmeasured(kinds),)
        panels.append(Panel(weights, kinds, scales.weight, (f"{letter} head {number}",), measures))
    difference, kinds = DifferenceCells(a, b, [head]).cells((head.layer, head.head))
    bits = head.by_sequence[comparison.sequences.index(sequence)]
    summary = "no distance" if isnan(bits) else f"{bits:.3g} bits apart"
    q, k = divmod(int(np.abs(difference).argmax()), difference.shape[1])
    if not difference[q, k]:
        summary += " · no difference"
    else:
        rows, columns = token_axes(a, 0)
        in_a = float(a.attention[head.layer, 0, head.head, q, k])
        in_b = float(b.attention[head.layer, 0, head.other, q, k])
        summary += (
            f" · largest difference {signed(float(difference[q, k]), 3)}, from query {q} "
            f"{rows.labels[q]} to key {k} {columns.labels[k]}: {in_a:.3g} in A, {in_b:.3g} in B"
        )
    legend = ("red: B gives more; blue: less",)
    panels.append(Panel(difference, kinds, scales.difference, ("B − A",), legend, summary))
    return panels


def three_panels_title(comparison: Comparison, head: HeadDifference) -> str:
    """`Layer 3 · head 1 of A, head 2 of B`."""
    title = head_names(comparison.a, head.layer, head.head)[0]
    if head.other != head.head:
        title += f" of A, head {head.other} of B"
    return title[0].upper() + title[1:]
