"""Which mask the weights obey: the one that was told, or what people make of it by mistake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnviz.checks.subject import Array, Mask, Subject, Told, all_of

LARGEST_VIEW = 4096
"""Queries and keys of a map that are compared; of a larger one, those about the worst place."""

LEAST_COVER = 0.5
"""Share of what a mask allows that must have weight before the mask is taken for the one in force:
softmax gives weight to all of it, but small ones may round to 0."""

MOST_ROWS = 0.9
"""Share of the rows that must leak before the mask's number is held to be wrong."""

Shape = Callable[[Mask], Mask | None]
"""A whole mask `[H Tq Tk]` → what a mistake makes of it; None where it cannot be made."""


@dataclass(frozen=True)
class View:
    """The part of a map that is compared: a square about the diagonal, or all of it."""

    rows: slice
    keys: slice


def view_about(subject: Subject, query: int, key: int) -> View:
    """All of the map where that is small enough, else a part that holds the place."""
    *_, queries, keys = subject.shape
    if max(queries, keys) <= LARGEST_VIEW:
        return View(slice(0, queries), slice(0, keys))
    near = abs(query - key) < LARGEST_VIEW
    start = min(query, key) if near else 0
    start = max(0, min(start, max(queries, keys) - LARGEST_VIEW))
    part = slice(start, start + LARGEST_VIEW)
    return View(slice(*part.indices(queries)[:2]), slice(*part.indices(keys)[:2]))


def transposed(mask: Mask) -> Mask | None:
    """Rows for columns, which only a square mask can have confused."""
    return np.swapaxes(mask, -2, -1) if mask.shape[-2] == mask.shape[-1] else None


def later(mask: Mask) -> Mask:
    """Each query sees what it may, one key further on."""
    return np.concatenate([mask[..., :1], mask[..., :-1]], axis=-1)


def earlier(mask: Mask) -> Mask:
    """Each query sees what it may, one key further back."""
    return np.concatenate([mask[..., 1:], np.zeros_like(mask[..., :1])], axis=-1)


MISTAKES: dict[str, Shape] = {
    "inverted": lambda mask: ~mask,
    "transposed": transposed,
    "shifted, one key too many": later,
    "shifted, one key too few": earlier,
    "mirrored": lambda mask: mask[..., ::-1],
    "ignored": np.ones_like,
}
"""What becomes of any mask, simplest last: of two that explain as much, the first is named."""

CAUSES = {
    "inverted": "the {mask} mask looks inverted: True meant keep where the code reads it as drop, "
    "or the reverse (nn.MultiheadAttention: True forbids; scaled_dot_product_attention: True "
    "allows)",
    "transposed": "the {mask} mask looks transposed: its rows are keys where they should be "
    "queries (tril for triu, or mask.T)",
    "shifted, one key too many": "the {mask} mask looks shifted by one: every query also sees the "
    "next key (triu(diagonal=2) for diagonal=1, tril(diagonal=1) for 0)",
    "shifted, one key too few": "the {mask} mask looks shifted by one: no query sees the last key "
    "that it may, itself under a causal mask (tril(diagonal=-1), or triu(diagonal=0) to forbid)",
    "mirrored": "the {mask} mask looks mirrored: padding on the left where it stands on the right, "
    "or the reverse",
    "ignored": "the {mask} mask looks ignored: forbidden keys have weight like others; it was "
    "never applied, or as numbers that are too small",
}

PADDING_CAUSES = {
    "transposed": "the padding mask looks applied to queries, not to keys: it must forbid columns "
    "(mask[:, None, None, :]), and rows were forbidden (mask[:, None, :, None])",
    "shifted, one key too many": "the padding mask looks shifted by one: the first padded key is "
    "seen (<= length for < length)",
    "shifted, one key too few": "the padding mask looks shifted by one: the last real key is "
    "hidden",
    "mirrored": "padding is masked on the other side: it stands on the {side}, and the mask "
    "forbids the {other}",
}

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

OTHER_SEQUENCE = (
    "the {mask} mask of another sequence was used: heads and sequences are in the wrong order "
    "(mask.repeat(n_heads, 1, 1) where repeat_interleave(n_heads, 0) puts the heads of a sequence "
    "together)"
)


def explain(subject: Subject, number: int, layer: int, head: int, place: Array) -> str:
    """What happened to mask `number`, by what has weight in one head; "" where nothing fits.

    `place` is (sequence, query, key) of the worst leak.
    """
    told = subject.told[number]
    sequence, query, key = (int(i) for i in place)
    view = view_about(subject, query, max(key, 0))
    map_ = subject.layers[layer][sequence, head, view.rows, view.keys]
    real = subject.query_valid[sequence, view.rows]
    best = _best(subject, told, (layer, sequence, head), view, map_, real)
    if best in ("", CAUSES["ignored"].format(mask=told.name)):
        own = _of_head(told.allows(layer, sequence, view.rows), head)[:, view.keys]
        best = _by_size(map_, own, real, told.name) or best
    return best


def _by_size(map_: Array, allowed: Mask, real: npt.NDArray[np.bool_], name: str) -> str:
    """What the size of forbidden weights says, where the mask had some effect on them."""
    rows = real & np.isfinite(map_).all(-1) & allowed.any(-1) & ((~allowed).sum(-1) > 1)
    weights, free = map_[rows].astype(np.float64), allowed[rows]
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
        if (np.abs(inner - 1) < 0.01).all():  # weights of a first softmax sum to 1
            return TWICE.format(mask=name)
        return FILLED.format(mask=name)
    typical = np.where(free, weights, 0).sum(-1) / free.sum(-1)
    if (most <= 0.05 * typical).all():
        return TOO_SMALL.format(mask=name)
    return ""


def _best(
    subject: Subject,
    told: Told,
    where: tuple[int, int, int],
    view: View,
    map_: Array,
    real: npt.NDArray[np.bool_],
) -> str:
    layer, sequence, head = where
    with np.errstate(invalid="ignore"):
        used = np.abs(map_) > 0
    judged = real & np.isfinite(map_).all(-1) & ~(map_ == map_[:, :1]).all(-1)
    own = _of_head(told.allows(layer, sequence, view.rows), head)[:, view.keys]
    others = []  # masks that this head obeys
    for other in subject.told:
        allows = _of_head(other.allows(layer, sequence, view.rows), head)[:, view.keys]
        if other is not told and not (used & ~allows)[judged].any():
            others.append(allows)
    rest = all_of(others)
    best, most = "", LEAST_COVER
    for words, mask in _candidates(subject, told, where, view):
        allows = mask if rest is None else mask & rest
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


def _candidates(
    subject: Subject, told: Told, where: tuple[int, int, int], view: View
) -> Iterator[tuple[str, Mask]]:
    """What the mask may have become, in words, with the mask `[rows keys]`."""
    layer, sequence, head = where
    own = _of_head(told.allows(layer, sequence, view.rows), head)[:, view.keys]
    side = subject.keys.pad_side
    sides = {"side": side, "other": "left" if side == "right" else "right"}
    yield "", own
    for words, allows in told.mistakes.items():
        mask = _of_head(allows(layer, sequence, view.rows), head)[:, view.keys]
        yield f"the {told.name} mask is as if {words}", mask
    for name, change in MISTAKES.items():
        if name == "mirrored" and told.kind != "padding":
            continue
        changed = change(own)
        if (
            name == "transposed"
            and told.kind == "padding"
            and not _padded_rows_are_blind(subject, where, view)
        ):
            continue  # for real queries it is the same as none
        if changed is not None:
            kinds = PADDING_CAUSES if told.kind == "padding" else CAUSES
            yield kinds.get(name, CAUSES[name]).format(mask=told.name, **sides), changed


def _padded_rows_are_blind(subject: Subject, where: tuple[int, int, int], view: View) -> bool:
    """Whether rows of padding are what a row is that sees nothing: uniform, zeros or NaN."""
    layer, sequence, head = where
    padded = ~subject.query_valid[sequence, view.rows]
    rows = subject.layers[layer][sequence, head, view.rows][padded]
    return len(rows) > 0 and bool(((rows == rows[:, :1]).all(-1) | np.isnan(rows).any(-1)).all())


def _of_head(mask: Mask, head: int) -> Mask:
    return np.asarray(mask[head if len(mask) > 1 else 0])


def of_other_sequences(subject: Subject, number: int, layer: int) -> bool:
    """Whether every head obeys the mask of the sequence that `repeat` would give it.

    nn.MultiheadAttention wants a mask `[B·H Tq Tk]` with the heads of a sequence together. Of
    `mask.repeat(H, 1, 1)` head h of sequence b gets that of sequence (b·H + h) mod B.
    """
    _, batch, heads, queries, keys = subject.shape
    if batch < 2 or queries * keys > LARGEST_VIEW**2:
        return False
    rows = slice(0, queries)
    told = subject.told[number]
    for sequence in range(batch):
        real = subject.query_valid[sequence]
        for head in range(heads):
            other = _of_head(told.allows(layer, (sequence * heads + head) % batch, rows), head)
            map_ = subject.layers[layer][sequence, head]
            judged = real & other.any(-1)
            if ((np.abs(map_) > 0) & ~other)[judged].any():
                return False
    return True


def blinded(subject: Subject, layer: int) -> str:
    """Which mask, mistaken, leaves a layer's rows nothing to see, as they look; "" where none.

    A row that sees nothing is uniform (-1e9), NaN (-inf) or zeros. Exactly those rows must be so
    that have nothing left when one of the masks is something else, or all are inverted.
    """
    _, batch, heads, queries, keys = subject.shape
    if not subject.told or queries * keys > LARGEST_VIEW**2 or keys < 2:
        return ""
    rows = slice(0, queries)
    agree: dict[str, bool] = {}
    for sequence in range(min(batch, MOST_SEQUENCES)):
        map_ = subject.layers[layer][sequence]
        seen = np.nan_to_num(map_) != 0
        blind = (map_ == map_[..., :1]).all(-1) | np.isnan(map_).all(-1)
        masks = [told.allows(layer, sequence, rows) for told in subject.told]
        for words, together in _mistaken(subject, masks):
            allows = np.broadcast_to(together, (heads, queries, keys))
            counts = subject.query_valid[sequence] | ~blind.all(0)  # padding may be left as it is
            fits = (blind == ~allows.any(-1))[:, counts].all()
            leaks = (seen & ~allows)[:, counts][~blind[:, counts]].any()
            agree[words] = agree.get(words, True) and bool(fits and not leaks)
    return next((words for words, fits in agree.items() if fits and words), "")


MOST_SEQUENCES = 16
"""Sequences of a layer that `blinded` looks at."""


def _mistaken(subject: Subject, masks: list[Mask]) -> Iterator[tuple[str, Mask]]:
    """All masks together as they are, and with one or all of them mistaken, in words."""
    whole = all_of(masks)
    assert whole is not None
    yield "", whole
    for i, told in enumerate(subject.told):
        for name in ("inverted", "transposed", "mirrored"):
            changed = MISTAKES[name](masks[i])
            if changed is not None and (name != "mirrored" or told.kind == "padding"):
                together = all_of([*masks[:i], changed, *masks[i + 1 :]])
                assert together is not None
                looks = CAUSES["inverted"] if name == "inverted" else f"the {{mask}} mask is {name}"
                yield f"{looks.format(mask=told.name)}; together nothing is left to see", together
    if len(masks) > 1:
        names = " and ".join(told.name for told in subject.told)
        yield CAUSES["inverted"].format(mask=names), ~whole


# ── what the masks allow and nobody uses ─────────────────────────────────────────────────────

FEWEST_TOKENS = 3
"""Queries and keys that a map must have to show a pattern."""


def unused(subject: Subject, layer: int, sequence: int, support: Mask) -> str:
    """A whole pattern of cells that the masks allow and no head of a layer ever looks at, in words.

    `support` is bool `[Tq Tk]`, True where some head has weight; "" where nothing stands out.
    """
    queries, keys = support.shape
    if min(queries, keys) < FEWEST_TOKENS or not support.any():
        return ""
    rows = slice(0, queries)
    real = subject.query_valid[sequence][:, None]
    masks = [np.asarray(told.allows(layer, sequence, rows).any(0)) for told in subject.told]
    allowed = all_of([np.broadcast_to(real, support.shape), *masks])
    assert allowed is not None
    if not (allowed & ~support).any():
        return ""
    q, k = np.arange(queries)[:, None], np.arange(keys)[None, :]
    kinds = {told.kind for told in subject.told}
    candidates: dict[str, Mask] = {}
    for told, own in zip(subject.told, masks, strict=True):
        for words, allows in told.mistakes.items():
            candidates[f"the {told.name} mask is as if {words}"] = allows(layer, sequence, rows)[0]
        if told.kind != "padding":
            candidates[f"the {told.name} mask hides the last key that a query may see"] = earlier(
                own
            )
    if not kinds and queries == keys:
        candidates["nobody looks at earlier keys: a causal mask, transposed or inverted"] = k >= q
    if queries == keys:
        candidates["nobody looks at itself: a mask that is shifted by one"] = k != q
        candidates["nobody looks at itself or later: a causal mask, shifted by one"] = k < q
        if not kinds:
            candidates["nobody looks at itself or earlier: a causal mask that is inverted"] = k > q
    best, fewest = "", int(allowed.sum())
    for words, cells in candidates.items():
        left = allowed & cells
        n = int(left.sum())
        if n < fewest and not (support & real & ~left).any() and support[left].all():
            best, fewest = words, n
    return best
