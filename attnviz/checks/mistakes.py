"""The usual mistakes of an attention, each as a short computation that makes it on purpose.

Weights that differ from the right ones are compared with these; the one that gives the same numbers
is what happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import sqrt

import numpy as np
import numpy.typing as npt

from attnviz.checks.lookalikes import MISTAKES as MASK_MISTAKES
from attnviz.checks.subject import Mask, Told, all_of
from attnviz.checks.tensors import Floats, alibi_slopes, rotated, share, viewed

BASES = (10_000.0, 500_000.0, 1_000_000.0)
"""Usual bases of rotary positions."""


@dataclass(frozen=True)
class Positions:
    """What is done to q and k, or to scores, about positions: none, rope or alibi."""

    kind: str = "none"
    base: float = BASES[0]
    pairs: bool = False


@dataclass(frozen=True, eq=False)
class Case:
    """One layer with all its sequences: q `[B H Tq d]`, k `[B Hkv Tk d]`, float64.

    `masks` are bool `[B 1|H Tq Tk]`; `q_at` and `k_at` `[B T]` are positions in the sequences, and
    `q_place` and `k_place` those in the array.
    """

    q: Floats
    k: Floats
    told: tuple[Told, ...]
    masks: tuple[Mask, ...]
    q_at: npt.NDArray[np.int64]
    k_at: npt.NDArray[np.int64]
    positions: Positions = Positions()
    scale: float | None = None
    slopes: Floats | None = None
    """`[H]` of ALiBi; None: those of all heads."""

    @property
    def n_heads(self) -> int:
        return int(self.q.shape[1])

    @property
    def by(self) -> float:
        """What products are multiplied by: 1/√d_k where nothing else is said."""
        return 1 / sqrt(self.q.shape[-1]) if self.scale is None else self.scale

    @cached_property
    def allowed(self) -> Mask | None:
        """All masks together."""
        return all_of(self.masks)

    def scores(self) -> Floats:
        """q kᵀ/√d_k `[B H Tq Tk]`, before any mask."""
        q, k = self.q, self.k
        if self.positions.kind == "rope":
            q = rotated(q, self.q_at, self.positions.base, self.positions.pairs)
            k = rotated(k, self.k_at, self.positions.base, self.positions.pairs)
        scores = np.asarray(q @ np.swapaxes(share(k, self.n_heads), -1, -2) * self.by)
        if self.positions.kind == "alibi":
            apart = self.q_at[:, None, :, None] - self.k_at[:, None, None, :]
            slopes = alibi_slopes(self.n_heads) if self.slopes is None else self.slopes
            scores = scores - slopes[:, None, None] * np.abs(apart)
        return np.asarray(scores)

    def weights(self) -> Floats:
        """The right weights: softmax over what is allowed; a row that sees nothing is 0."""
        return softmax(self.scores(), self.allowed)

    def size(self) -> Floats:
        """`[B H Tq]`: ‖q‖·max ‖k‖ as scaled, which no score of the row exceeds."""
        q, k = (np.sqrt(np.einsum("bhtd,bhtd->bht", x, x)) for x in (self.q, self.k))
        longest = np.repeat(k.max(-1), self.n_heads // k.shape[1], axis=1)  # B H
        return np.asarray(q * longest[..., None] * self.by)


def softmax(scores: Floats, allowed: Mask | None = None, axis: int = -1) -> Floats:
    """Along `axis`, over what is allowed alone; all zeros where that is nothing."""
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    top = scores.max(axis, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = powers.sum(axis, keepdims=True)
    return np.asarray(powers / np.where(total > 0, total, 1.0))


Weigh = Callable[[], Floats]
"""Computes wrong weights `[B H Tq Tk]`."""


@dataclass(frozen=True, eq=False)
class Mistake:
    """What went wrong, in words, and the weights that it gives; a lawful way does not fail."""

    words: str
    weights: Weigh
    case: Case
    """With the sizes of scores that this mistake has: they decide how exact it can be."""
    fails: bool = True


def mistakes(case: Case) -> Iterator[Mistake]:
    """All mistakes that are known for a layer, the commonest first."""
    yield from _of_scale(case)
    yield from _of_masks(case)
    yield from _of_axes(case)
    yield from _of_heads(case)
    yield from _of_positions(case)


def _of_scale(case: Case) -> Iterator[Mistake]:
    heads, d_k = case.n_heads, case.q.shape[-1]
    scales = {
        "the scale is missing: scores are QKᵀ, not QKᵀ/√d_k": 1.0,
        f"scores are divided by √d_model = √{heads * d_k}, not by √d_k = √{d_k}": (heads * d_k)
        ** -0.5,
        f"scores are divided by d_k = {d_k}, not by its root (√d_k twice, in q and in the scores "
        "for instance)": 1 / d_k,
        "scores are multiplied by √d_k, not divided": sqrt(d_k),
        f"scores are divided by √n_heads = √{heads}, not by √d_k": heads**-0.5,
    }
    for words, scale in scales.items():
        if abs(scale * sqrt(d_k) - 1) > 1e-9:
            changed = replace(case, scale=scale)
            yield Mistake(words, changed.weights, changed)


def of_other_scale(case: Case, weights: Floats, real: Mask) -> Iterator[Mistake]:
    """Weights that are right but for a number that all scores were multiplied by.

    In a row, logarithms of weights differ as scores do: the number is a regression's slope. `real`
    `[B Tq]` is True where queries are no padding.
    """
    scores = case.scores()
    seen = (weights > 1e-6) & real[:, None, :, None]
    if case.allowed is not None:
        seen &= case.allowed
    if not seen.any():
        return
    n = np.maximum(seen.sum(-1, keepdims=True), 1)
    logs = np.where(seen, np.log(np.where(seen, weights, 1.0)), 0.0)
    logs -= np.where(seen, logs.sum(-1, keepdims=True) / n, 0.0)
    scores = np.where(seen, scores, 0.0)
    scores -= np.where(seen, scores.sum(-1, keepdims=True) / n, 0.0)
    size = float((scores**2).sum())
    if size == 0:
        return
    factor = float((logs * scores).sum()) / size
    if not np.isfinite(factor) or abs(factor) < 1e-6 or abs(factor - 1) < 1e-3:
        return
    changed = replace(case, scale=case.by * factor)
    yield Mistake(
        f"scores are multiplied by {case.by * factor:.4g}, not by 1/√d_k = {case.by:.4g}"
        f"{_as_if(case, case.by * factor)}",
        changed.weights,
        changed,
    )


def _as_if(case: Case, scale: float) -> str:
    """Where a scale may come from, as far as it is the root of a size."""
    batch, heads, queries, d_k = case.q.shape
    sizes = {
        "the number of keys": case.k.shape[2],
        "the number of queries": queries,
        "the sequences": batch,
        "2·d_k": 2 * d_k,
        "2·d_model": 2 * heads * d_k,
    }
    for what, size in sizes.items():
        for shown, value in ((f"√{size}", size**-0.5), (f"{size}", 1 / size)):
            if abs(scale / value - 1) < 1e-3:
                return f": divided by {shown}, {'the root of ' * ('√' in shown)}{what}"
    return ""


def _of_masks(case: Case) -> Iterator[Mistake]:
    words = {
        "inverted": "the {mask} mask is inverted: what it forbids is what is seen",
        "transposed": "the {mask} mask is transposed: rows are taken for columns",
        "shifted, one key too many": "the {mask} mask is shifted by one: the next key is seen too",
        "shifted, one key too few": "the {mask} mask is shifted by one: the last key is hidden",
        "mirrored": "the {mask} mask forbids the other side",
        "ignored": "the {mask} mask is not applied",
    }
    of_padding = {
        "transposed": "the padding mask is applied to queries, not to keys",
    }
    for i, (told, own) in enumerate(zip(case.told, case.masks, strict=True)):
        for name, change in MASK_MISTAKES.items():
            if name == "mirrored" and told.kind != "padding":
                continue
            mask = change(own)
            if mask is not None:
                masks = (*case.masks[:i], mask, *case.masks[i + 1 :])
                said = of_padding.get(name) if told.kind == "padding" else None
                changed = replace(case, masks=masks)
                said = (said or words[name]).format(mask=told.name)
                yield Mistake(said, changed.weights, changed)
        for said, allows in told.mistakes.items():
            rows = slice(0, case.q.shape[2])
            mask = np.stack([allows(0, sequence, rows) for sequence in range(len(case.q))])
            changed = replace(case, masks=(*case.masks[:i], mask, *case.masks[i + 1 :]))
            yield Mistake(f"the {told.name} mask is as if {said}", changed.weights, changed)
    if len(case.masks) > 1:
        together = case.allowed
        assert together is not None
        for name in ("inverted", "transposed", "ignored"):
            mask = MASK_MISTAKES[name](together)
            if mask is not None:
                changed = replace(case, masks=(mask,))
                said = words[name].format(mask=" and ".join(told.name for told in case.told))
                yield Mistake(said, changed.weights, changed)
    queries, keys = case.q.shape[2], case.k.shape[2]
    if not any(told.kind in ("causal", "run", "mask") for told in case.told):
        causal = np.tri(queries, keys, dtype=bool)[None, None]
        changed = replace(case, masks=(*case.masks, causal))
        yield Mistake(
            "a causal mask was in force that was not told here; --causal checks it",
            changed.weights,
            changed,
        )
    if case.allowed is not None:
        allowed = case.allowed
        bare = replace(case, masks=())
        yield Mistake(
            "the mask was multiplied in after softmax, which leaves rows short; it belongs before, "
            "as -inf",
            lambda: bare.weights() * allowed,
            bare,
        )
        yield Mistake(
            "the mask put 0 in place of the scores that it forbids, where -inf belongs (scores * "
            "mask, or masked_fill(mask, 1e-9) for -1e9)",
            lambda: softmax(bare.scores() * allowed),
            bare,
        )
        for number in (1.0, -1.0):
            yield Mistake(
                f"the mask was added to the scores as {'0 and 1' if number > 0 else '0 and -1'}, "
                "where 0 and -inf belong",
                partial(_added, bare, allowed, number),
                bare,
            )


def _added(case: Case, allowed: Mask, number: float) -> Floats:
    """A mask of 0 and 1, or of 0 and -1, added to the scores."""
    return softmax(case.scores() + np.where(allowed, max(number, 0.0), min(number, 0.0)))


def _of_axes(case: Case) -> Iterator[Mistake]:
    axes = {
        -2: "softmax ran along the queries, not along the keys (dim=-1)",
        1: "softmax ran along the heads, not along the keys (dim=-1)",
        0: "softmax ran along the batch, not along the keys (dim=-1)",
    }
    for axis, words in axes.items():
        yield Mistake(words, partial(lambda a: softmax(case.scores(), case.allowed, a), axis), case)
    if case.q.shape[2] == case.k.shape[2] and case.q.shape[1] == case.k.shape[1]:
        swapped = replace(case, q=case.k, k=case.q, q_at=case.k_at, k_at=case.q_at)
        yield Mistake("q and k are swapped: scores are KQᵀ", swapped.weights, swapped)
        for words, changed in (
            ("k is q as well: scores are QQᵀ", replace(case, k=case.q)),
            ("q is k as well: scores are KKᵀ", replace(case, q=case.k)),
        ):
            yield Mistake(words, changed.weights, changed)
    yield Mistake("softmax was applied twice", lambda: softmax(case.weights()), case)
    if case.q.shape[2] == case.k.shape[2]:
        words = (
            "each column is divided by the sum of a row: the sum has lost its axis "
            "(sum(-1, keepdim=True), in NumPy keepdims)"
        )
        for own_top in (False, True):
            yield Mistake(words, partial(_without_keepdim, case, own_top), case)


def _without_keepdim(case: Case, own_top: bool) -> Floats:
    """exp(scores) / exp(scores).sum(-1) of each head, less the largest score of row or head."""
    scores = case.scores()
    if case.allowed is not None:
        scores = np.where(case.allowed, scores, -np.inf)
    top = scores.max(-1 if own_top else (-2, -1), keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = powers.sum(-1)[..., None, :]
    return np.asarray(powers / np.where(total > 0, total, 1.0))


def _of_heads(case: Case) -> Iterator[Mistake]:
    both = replace(case, q=viewed(case.q), k=viewed(case.k))
    words = (
        "heads are cut without a transpose: view(B, H, T, d_k) of [B T H·d_k] mixes tokens and "
        "heads; it is view(B, T, H, d_k).transpose(1, 2)"
    )
    yield Mistake(words, both.weights, both)
    for name, changed in (
        ("q", replace(case, q=viewed(case.q))),
        ("k", replace(case, k=viewed(case.k))),
    ):
        words = f"the heads of {name} alone are cut without a transpose"
        yield Mistake(words, changed.weights, changed)
    both = replace(case, q=_interleaved(case.q), k=_interleaved(case.k))
    words = (
        "heads are taken apart in the wrong order: view(B, T, d_k, H), where view(B, T, H, d_k) "
        "has the numbers of a head side by side"
    )
    yield Mistake(words, both.weights, both)
    times = case.n_heads // case.k.shape[1]
    if times > 1:
        tiled = replace(case, k=np.tile(case.k, (1, times, 1, 1)))
        yield Mistake(
            "key heads are shared in the wrong order: repeat gives 0 1 0 1, where "
            "repeat_interleave gives 0 0 1 1",
            tiled.weights,
            tiled,
        )


def _interleaved(heads: Floats) -> Floats:
    """What `view(B, T, d, H)` of `[B T H·d]` makes of right heads `[B H T d]`."""
    batch, n, tokens, width = heads.shape
    merged = heads.transpose(0, 2, 1, 3)
    return merged.reshape(batch, tokens, width, n).transpose(0, 3, 1, 2)


def _of_positions(case: Case) -> Iterator[Mistake]:
    told = case.positions
    if told.kind == "none":
        for base in BASES:
            for pairs in (False, True):
                changed = replace(case, positions=Positions("rope", base, pairs))
                flag = f"rope{'-pairs' * pairs}{f':{base:.0f}' * (base != BASES[0])}"
                yield Mistake(
                    f"q and k were saved before their rotation (RoPE): --positions {flag} turns "
                    "them",
                    changed.weights,
                    changed,
                )
        changed = replace(case, positions=Positions("alibi"))
        yield Mistake("ALiBi was added: --positions alibi", changed.weights, changed)
        return
    changed = replace(case, positions=Positions())
    name = {"rope": "RoPE", "alibi": "ALiBi"}[told.kind]
    yield Mistake(f"{name} is missing: q and k count as they are", changed.weights, changed)
    if told.kind == "rope":
        of = ("numbers i and i + d/2", "neighbours, 2i and 2i + 1,")
        changed = replace(case, positions=replace(told, pairs=not told.pairs))
        yield Mistake(
            f"RoPE turns {of[not told.pairs]} together, where {of[told.pairs].rstrip(',')} belong "
            "together",
            changed.weights,
            changed,
        )
        for words, times in (
            ("q and k are turned twice: they were rotated when they were saved", 2),
            ("RoPE turns the wrong way, by minus the position (the sign in rotate_half)", -1),
        ):
            changed = replace(case, q_at=times * case.q_at, k_at=times * case.k_at)
            yield Mistake(words, changed.weights, changed)
        for base in BASES:
            if base != told.base:
                changed = replace(case, positions=replace(told, base=base))
                yield Mistake(f"RoPE has the base {base:.0f}", changed.weights, changed)
    places_q, places_k = (np.arange(at.shape[1])[None] + 0 * at for at in (case.q_at, case.k_at))
    before = max(places_k.shape[1] - places_q.shape[1], 0)  # keys in a cache
    counted = "positions of {} count the padding on the left, those of {} do not"
    for words, q_at, k_at in (
        (counted.format("keys", "queries"), None, places_k),
        (counted.format("queries", "keys"), places_q + before, None),
        ("positions of queries begin at 0, and do not count the keys in the cache", places_q, None),
        ("positions of queries are one too high", case.q_at + 1, None),
        ("positions of queries are one too low", case.q_at - 1, None),
        ("queries are turned by no position: all stand at 0", 0 * case.q_at, None),
        ("keys are turned by no position: all stand at 0", None, 0 * case.k_at),
    ):
        changed = replace(
            case,
            q_at=case.q_at if q_at is None else q_at,
            k_at=case.k_at if k_at is None else k_at,
        )
        if (changed.q_at != case.q_at).any() or (changed.k_at != case.k_at).any():
            yield Mistake(words, changed.weights, changed)
