"""Which mask the weights obey: the one that is expected, or what people make of it by mistake."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnviz.checks.checked_weights import (
    Allows,
    Array,
    Cells,
    CheckedWeights,
    ExpectedMask,
    all_of,
)
from attnviz.masks import OF_ANY_MASK

LARGEST_PART = 4096
"""Queries and keys of a map that are compared; of a larger one, those about the worst place."""

LEAST_COVER = 0.5
"""Share of what a mask allows that must have weight before the mask is taken for the one in force:
softmax gives weight to all of it, but small ones may round to 0."""

MOST_ROWS = 0.9
"""Share of the rows that must leak before the mask's number is held to be wrong."""

MOST_SEQUENCES = 16
"""Sequences of a layer that `blinded` looks at."""

FILLED = (
    "the {mask} mask put one number in place of the scores that it forbids, and not -inf: in each "
    "row all forbidden weights are equal (masked_fill(mask, 1e-9) for -1e9, or scores * mask)"
)
TWICE = (
    "softmax was applied twice: what the {mask} mask forbids is 0 after the first, and has "
    "exp(0) of the second"
)
TOO_SMALL = (
    "the {mask} mask was added, but its number is too small: forbidden weights are small and not 0 "
    "(use -inf, or torch.finfo(dtype).min)"
)
OTHER_HEADS = (
    "the {mask} mask of another sequence was used: heads and sequences are in the wrong order "
    "(mask.repeat(n_heads, 1, 1) where repeat_interleave(n_heads, 0) puts the heads of a sequence "
    "together)"
)
OTHER_ORDER = (
    "the {mask} mask of another sequence was used: the masks are in another order than the "
    "sequences ({order})"
)


@dataclass(frozen=True)
class HeadPart:
    """The part of one head's map that is compared: a square about the diagonal, or all of it."""

    checked: CheckedWeights
    layer: int
    sequence: int
    head: int
    rows: slice
    keys: slice

    @cached_property
    def weights(self) -> Array:
        """`[rows keys]`."""
        return self.checked.layers[self.layer][self.sequence, self.head, self.rows, self.keys]

    @cached_property
    def real(self) -> Cells:
        """`[rows]`: True on real queries."""
        return np.asarray(self.checked.query_valid[self.sequence, self.rows])

    def cells(self, allows: Allows) -> Cells:
        """What a mask allows here, `[rows keys]`."""
        mask = allows(self.layer, self.sequence, self.rows)
        return np.asarray(mask[self.head if len(mask) > 1 else 0][:, self.keys])

    @property
    def padding_is_blind(self) -> bool:
        """Whether rows of padding are what a row is that sees nothing: uniform, zeros or NaN."""
        rows = self.weights[~self.real]
        return len(rows) > 0 and bool(
            ((rows == rows[:, :1]).all(-1) | np.isnan(rows).any(-1)).all()
        )


def part_about(checked: CheckedWeights, layer: int, head: int, place: Array) -> HeadPart:
    """All of a head's map where that is small enough, else a part that holds the place.

    `place` is (sequence, query, key), the key -1 where the thing is a whole row.
    """
    sequence, query, key = (int(i) for i in place)
    key = max(key, 0)
    *_, queries, keys = checked.shape
    part = slice(0, max(queries, keys))
    if part.stop > LARGEST_PART:
        start = min(query, key) if abs(query - key) < LARGEST_PART else 0
        start = max(0, min(start, part.stop - LARGEST_PART))
        part = slice(start, start + LARGEST_PART)
    rows, columns = (slice(*part.indices(n)[:2]) for n in (queries, keys))
    return HeadPart(checked, layer, sequence, head, rows, columns)


def explain(checked: CheckedWeights, number: int, layer: int, head: int, place: Array) -> str:
    """What happened to mask `number`, by what has weight in one head; "" where nothing fits.

    `place` is (sequence, query, key) of the worst leak.
    """
    mask, part = checked.expected[number], part_about(checked, layer, head, place)
    best = _best_candidate(mask, part)
    if best in ("", mask.seems("ignored")):
        best = _by_size(mask, part) or best
    return best


def _by_size(mask: ExpectedMask, part: HeadPart) -> str:
    """What the size of forbidden weights says, where the mask had some effect on them."""
    allowed = part.cells(mask.allows)
    rows = part.real & np.isfinite(part.weights).all(-1)
    rows &= allowed.any(-1) & ((~allowed).sum(-1) > 1)
    weights, free = part.weights[rows].astype(np.float64), allowed[rows]
    if not len(weights):
        return ""
    least = np.where(free, np.inf, weights).min(-1)
    most = np.where(free, -np.inf, weights).max(-1)
    even = np.isclose(
        np.where(free, weights, -np.inf).max(-1), np.where(free, weights, np.inf).min(-1)
    )
    if (most > 0).mean() < MOST_ROWS:
        return ""  # single leaks
    if (most == least).all() and not even[free.sum(-1) > 1].all():
        inner = np.where(free, np.log(np.maximum(weights, 1e-300) / most[:, None]), 0).sum(-1)
        # weights of a first softmax sum to 1
        words = TWICE if (np.abs(inner - 1) < 0.01).all() else FILLED
        return words.format(mask=mask.name)
    typical = np.where(free, weights, 0).sum(-1) / free.sum(-1)
    return TOO_SMALL.format(mask=mask.name) if (most <= 0.05 * typical).all() else ""


def _best_candidate(mask: ExpectedMask, part: HeadPart) -> str:
    """The candidate that allows all that has weight, and of whose cells most have some."""
    with np.errstate(invalid="ignore"):
        used = np.abs(part.weights) > 0
    is_flat = (part.weights == part.weights[:, :1]).all(-1)
    judged = part.real & np.isfinite(part.weights).all(-1) & ~is_flat
    own = part.cells(mask.allows)
    others = [part.cells(other.allows) for other in part.checked.expected if other is not mask]
    obeyed = all_of([allows for allows in others if not (used & ~allows)[judged].any()])
    best, most = "", LEAST_COVER
    for words, candidate in _candidates(mask, part):
        allows = candidate if obeyed is None else candidate & obeyed
        rows = judged & allows.any(-1)
        n = int(allows[rows].sum())
        if n == 0 or (used & ~allows)[rows].any():
            continue
        more = (allows & ~own)[rows]
        if more.any() and (used[rows] & more).sum() < LEAST_COVER * more.sum():
            continue  # single leaks are no other mask
        cover = (used & allows)[rows].sum() / n * rows.sum() / max(judged.sum(), 1)
        if cover > most + 1e-9:
            best, most = words, float(cover)
    return best


def _candidates(mask: ExpectedMask, part: HeadPart) -> Iterator[tuple[str, Cells]]:
    """What the mask may have become, in words, with the mask `[rows keys]`."""
    own = part.cells(mask.allows)
    yield "", own
    for words, allows in mask.mistakes.items():
        yield f"the {mask.name} mask is as if {words}", part.cells(allows)
    for name, mistake in mask.of_any.items():
        if name == "transposed" and mask.kind == "padding" and not part.padding_is_blind:
            continue  # for real queries it is the same as none
        changed = mistake.change(own)
        if changed is not None:
            yield mask.seems(name, part.checked.keys.pad_side), changed


# ── masks of other sequences ─────────────────────────────────────────────────────────────────


def of_other_sequences(checked: CheckedWeights, number: int, layer: int) -> str:
    """In which order sequences obey each other's masks, in words; "" where they do not.

    nn.MultiheadAttention expects a mask `[B·H Tq Tk]` with the heads of a sequence together. Of
    `mask.repeat(H, 1, 1)`, head h of sequence b gets that of sequence (b·H + h) mod B.
    """
    _, batch, heads, queries, keys = checked.shape
    if batch < 2 or queries * keys > LARGEST_PART**2:
        return ""
    mask = checked.expected[number]
    by_heads = [[(b * heads + h) % batch for h in range(heads)] for b in range(batch)]
    if all(
        _obeys(checked, mask, layer, b, [h], by_heads[b][h])
        for b in range(batch)
        for h in range(heads)
    ):
        return OTHER_HEADS.format(mask=mask.name)
    order = []
    for b in range(batch):
        fit = [
            other
            for other in sorted(range(batch), key=lambda other: other != b)
            if _obeys(checked, mask, layer, b, range(heads), other) and other not in order
        ]
        if not fit:
            return ""
        order.append(fit[0])
    if order == list(range(batch)):
        return ""
    swaps = ", ".join(f"{b} has that of {other}" for b, other in enumerate(order) if b != other)
    return OTHER_ORDER.format(mask=mask.name, order=f"sequence {swaps}")


def _obeys(
    checked: CheckedWeights,
    mask: ExpectedMask,
    layer: int,
    sequence: int,
    heads: range | list[int],
    other: int,
) -> bool:
    """Whether heads of a sequence use exactly the keys that another sequence's mask allows.

    The other masks are those of the sequence itself. A key counts as used where a row looks at it.
    """
    rows = slice(0, checked.shape[3])
    real = checked.query_valid[sequence]
    for head in heads:
        part = HeadPart(checked, layer, sequence, head, rows, slice(None))
        allows = np.asarray(mask.allows(layer, other, rows))
        allows = allows[head if len(allows) > 1 else 0]
        rest = all_of([part.cells(each.allows) for each in checked.expected if each is not mask])
        together = allows if rest is None else allows & rest
        used = np.abs(np.nan_to_num(part.weights)) > 0
        judged = real & together.any(-1)
        if not judged.any() or (used & ~together)[judged].any():
            return False
        if not np.array_equal(used[judged].any(0), together[judged].any(0)):
            return False
    return True


# ── rows that see nothing by mistake ─────────────────────────────────────────────────────────


def blinded(checked: CheckedWeights, layer: int) -> str:
    """Which mask, mistaken, leaves a layer's rows nothing to see, as they look; "" where none.

    A row that sees nothing is uniform (-1e9), NaN (-inf) or zeros. Exactly those rows must be so
    that have nothing left when one of the masks is something else, or all are inverted.
    """
    _, batch, heads, queries, keys = checked.shape
    if not checked.expected or queries * keys > LARGEST_PART**2 or keys < 2:
        return ""
    rows = slice(0, queries)
    agree: dict[str, bool] = {}
    for sequence in range(min(batch, MOST_SEQUENCES)):
        weights = checked.layers[layer][sequence]
        seen = np.nan_to_num(weights) != 0
        blind = (weights == weights[..., :1]).all(-1) | np.isnan(weights).all(-1)
        masks = [mask.allows(layer, sequence, rows) for mask in checked.expected]
        for words, together in _mistaken(checked, masks):
            allows = np.broadcast_to(together, (heads, queries, keys))
            counts = checked.query_valid[sequence] | ~blind.all(0)  # padding may be left as it is
            fits = (blind == ~allows.any(-1))[:, counts].all()
            leaks = (seen & ~allows)[:, counts][~blind[:, counts]].any()
            agree[words] = agree.get(words, True) and bool(fits and not leaks)
    return next((words for words, fits in agree.items() if fits and words), "")


def _mistaken(checked: CheckedWeights, masks: list[Cells]) -> Iterator[tuple[str, Cells]]:
    """All masks together as they are, and with one or all of them mistaken, in words."""
    whole = all_of(masks)
    assert whole is not None
    yield "", whole
    for i, mask in enumerate(checked.expected):
        for name in ("inverted", "transposed", "mirrored"):
            mistake = mask.of_any.get(name)
            changed = None if mistake is None else mistake.change(masks[i])
            if changed is not None:
                together = all_of([*masks[:i], changed, *masks[i + 1 :]])
                assert together is not None
                what = f"the {mask.name} mask is {name}"
                looks = mask.seems(name) if name == "inverted" else what
                yield f"{looks}; together nothing is left to see", together
    if len(masks) > 1:
        names = " and ".join(mask.name for mask in checked.expected)
        yield OF_ANY_MASK["inverted"].seems.format(mask=names), ~whole
