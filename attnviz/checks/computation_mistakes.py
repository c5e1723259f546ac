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

from attnviz.checks.checked_weights import Cells, ExpectedMask, all_of
from attnviz.checks.head_tensors import Floats, alibi_slopes, rotated, share, viewed
from attnviz.masks import OF_ANY_MASK

BASES = (10_000.0, 500_000.0, 1_000_000.0)
"""Usual bases of rotary positions."""


@dataclass(frozen=True)
class Positions:
    """What is done to q and k, or to scores, about positions: none, rope or alibi."""

    kind: str = "none"
    base: float = BASES[0]
    pairs: bool = False


@dataclass(frozen=True, eq=False)
class LayerInputs:
    """One layer with all its sequences: q `[B H Tq d]`, k `[B Hkv Tk d]`, float64.

    `masks` are bool `[B 1|H Tq Tk]`; `q_at` and `k_at` `[B T]` are positions in the sequences, and
    `q_place` and `k_place` those in the array.
    """

    q: Floats
    k: Floats
    expected: tuple[ExpectedMask, ...]
    masks: tuple[Cells, ...]
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
        """What products are multiplied by: 1/√d_k by default."""
        return 1 / sqrt(self.q.shape[-1]) if self.scale is None else self.scale

    @cached_property
    def allowed(self) -> Cells | None:
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


def softmax(scores: Floats, allowed: Cells | None = None, axis: int = -1) -> Floats:
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
    inputs: LayerInputs
    """With the sizes of scores that this mistake has: they decide how exact it can be."""
    fails: bool = True


def _of(words: str, inputs: LayerInputs) -> Mistake:
    """A mistake whose weights are the right ones of wrong inputs."""
    return Mistake(words, inputs.weights, inputs)


def mistakes(inputs: LayerInputs) -> Iterator[Mistake]:
    """All mistakes that are known for a layer, the commonest first."""
    yield from _of_scale(inputs)
    yield from _of_masks(inputs)
    yield from _of_axes(inputs)
    yield from _of_heads(inputs)
    yield from _of_positions(inputs)


def _of_scale(inputs: LayerInputs) -> Iterator[Mistake]:
    heads, d_k = inputs.n_heads, inputs.q.shape[-1]
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
            changed = replace(inputs, scale=scale)
            yield _of(words, changed)


def of_other_scale(inputs: LayerInputs, weights: Floats, real: Cells) -> Iterator[Mistake]:
    """Weights that are right but for a number that all scores were multiplied by.

    In a row, logarithms of weights differ as scores do: the number is a regression's slope. `real`
    `[B Tq]` is True where queries are no padding.
    """
    scores = inputs.scores()
    seen = (weights > 1e-6) & real[:, None, :, None]
    if inputs.allowed is not None:
        seen &= inputs.allowed
    if seen.sum() - seen.any(-1).sum() < 2:
        return  # one number fits any two weights of a row
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
    changed = replace(inputs, scale=inputs.by * factor)
    yield _of(
        f"scores are multiplied by {inputs.by * factor:.4g}, not by 1/√d_k = {inputs.by:.4g}"
        f"{_as_if(inputs, inputs.by * factor)}",
        changed,
    )


def _as_if(inputs: LayerInputs, scale: float) -> str:
    """Where a scale may come from, as far as it is the root of a size."""
    batch, heads, queries, d_k = inputs.q.shape
    sizes = {
        "the number of keys": inputs.k.shape[2],
        "the number of queries": queries,
        "the sequences": batch,
        "2·d_k": 2 * d_k,
        "2·d_model": 2 * heads * d_k,
    }
    for what, size in sizes.items():
        for words, value in ((f"√{size}", size**-0.5), (f"{size}", 1 / size)):
            if abs(scale / value - 1) < 1e-3:
                return f": divided by {words}, {'the root of ' * ('√' in words)}{what}"
    return ""


def _of_masks(inputs: LayerInputs) -> Iterator[Mistake]:
    for i, (mask, own) in enumerate(zip(inputs.expected, inputs.masks, strict=True)):
        wrong = {
            mistake.is_so.format(mask=mask.name): mistake.change(own)
            for mistake in mask.of_any.values()
        }
        for words, allows in mask.mistakes.items():
            rows = slice(0, inputs.q.shape[2])
            cells = np.stack([allows(0, sequence, rows) for sequence in range(len(inputs.q))])
            wrong[f"the {mask.name} mask is as if {words}"] = cells
        for words, changed in wrong.items():
            if changed is not None:
                yield _with_masks(
                    words, inputs, (*inputs.masks[:i], changed, *inputs.masks[i + 1 :])
                )
    together = inputs.allowed
    if together is not None and len(inputs.masks) > 1:
        names = " and ".join(mask.name for mask in inputs.expected)
        for name in ("inverted", "transposed", "ignored"):
            changed = OF_ANY_MASK[name].change(together)
            if changed is not None:
                yield _with_masks(OF_ANY_MASK[name].is_so.format(mask=names), inputs, (changed,))
    queries, keys = inputs.q.shape[2], inputs.k.shape[2]
    if not any(mask.kind in ("causal", "run", "mask") for mask in inputs.expected):
        causal = np.tri(queries, keys, dtype=bool)[None, None]
        yield _with_masks(
            "a causal mask was in force that is not expected here; --causal checks it",
            inputs,
            (*inputs.masks, causal),
        )
    if together is not None:
        yield from _of_masked_scores(inputs, together)


def _with_masks(words: str, inputs: LayerInputs, masks: tuple[Cells, ...]) -> Mistake:
    return _of(words, replace(inputs, masks=masks))


def _of_masked_scores(inputs: LayerInputs, allowed: Cells) -> Iterator[Mistake]:
    """The right mask, put where it does not forbid."""
    bare = replace(inputs, masks=())
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


def _added(inputs: LayerInputs, allowed: Cells, number: float) -> Floats:
    """A mask of 0 and 1, or of 0 and -1, added to the scores."""
    return softmax(inputs.scores() + np.where(allowed, max(number, 0.0), min(number, 0.0)))


def _of_axes(inputs: LayerInputs) -> Iterator[Mistake]:
    axes = {
        -2: "softmax ran along the queries, not along the keys (dim=-1)",
        1: "softmax ran along the heads, not along the keys (dim=-1)",
        0: "softmax ran along the batch, not along the keys (dim=-1)",
    }
    for axis, words in axes.items():
        yield Mistake(
            words, partial(lambda a: softmax(inputs.scores(), inputs.allowed, a), axis), inputs
        )
    if inputs.q.shape[2] == inputs.k.shape[2] and inputs.q.shape[1] == inputs.k.shape[1]:
        swapped = replace(inputs, q=inputs.k, k=inputs.q, q_at=inputs.k_at, k_at=inputs.q_at)
        yield _of("q and k are swapped: scores are KQᵀ", swapped)
        for words, changed in (
            ("k is q as well: scores are QQᵀ", replace(inputs, k=inputs.q)),
            ("q is k as well: scores are KKᵀ", replace(inputs, q=inputs.k)),
        ):
            yield _of(words, changed)
    yield Mistake(
        "sigmoid was used in place of softmax: each weight is by itself, and no row sums to 1",
        partial(_sigmoid, inputs),
        inputs,
    )
    yield Mistake("softmax was applied twice", lambda: softmax(inputs.weights()), inputs)
    if inputs.q.shape[2] == inputs.k.shape[2]:
        words = (
            "each column is divided by the sum of a row: the sum has lost its axis "
            "(sum(-1, keepdim=True), in NumPy keepdims)"
        )
        for own_top in (False, True):
            yield Mistake(words, partial(_without_keepdim, inputs, own_top), inputs)


def _sigmoid(inputs: LayerInputs) -> Floats:
    weights = 1 / (1 + np.exp(-inputs.scores()))
    return np.asarray(weights if inputs.allowed is None else weights * inputs.allowed)


def _without_keepdim(inputs: LayerInputs, own_top: bool) -> Floats:
    """exp(scores) / exp(scores).sum(-1) of each head, less the largest score of row or head."""
    scores = inputs.scores()
    if inputs.allowed is not None:
        scores = np.where(inputs.allowed, scores, -np.inf)
    top = scores.max(-1 if own_top else (-2, -1), keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = powers.sum(-1)[..., None, :]
    return np.asarray(powers / np.where(total > 0, total, 1.0))


def _of_heads(inputs: LayerInputs) -> Iterator[Mistake]:
    both = replace(inputs, q=viewed(inputs.q), k=viewed(inputs.k))
    words = (
        "heads are cut without a transpose: view(B, H, T, d_k) of [B T H·d_k] mixes tokens and "
        "heads; it is view(B, T, H, d_k).transpose(1, 2)"
    )
    yield _of(words, both)
    for name, changed in (
        ("q", replace(inputs, q=viewed(inputs.q))),
        ("k", replace(inputs, k=viewed(inputs.k))),
    ):
        words = f"the heads of {name} alone are cut without a transpose"
        yield _of(words, changed)
    both = replace(inputs, q=_interleaved(inputs.q), k=_interleaved(inputs.k))
    words = (
        "heads are taken apart in the wrong order: view(B, T, d_k, H), where view(B, T, H, d_k) "
        "has the numbers of a head side by side"
    )
    yield _of(words, both)
    times = inputs.n_heads // inputs.k.shape[1]
    if times > 1:
        tiled = replace(inputs, k=np.tile(inputs.k, (1, times, 1, 1)))
        yield _of(
            "key heads are shared in the wrong order: repeat gives 0 1 0 1, where "
            "repeat_interleave gives 0 0 1 1",
            tiled,
        )


def _interleaved(heads: Floats) -> Floats:
    """What `view(B, T, d, H)` of `[B T H·d]` makes of right heads `[B H T d]`."""
    batch, n, tokens, width = heads.shape
    merged = heads.transpose(0, 2, 1, 3)
    return merged.reshape(batch, tokens, width, n).transpose(0, 3, 1, 2)


def _of_positions(inputs: LayerInputs) -> Iterator[Mistake]:
    kind = inputs.positions.kind
    if kind == "none":
        for base in BASES:
            for pairs in (False, True):
                changed = replace(inputs, positions=Positions("rope", base, pairs))
                flag = f"rope{'-pairs' * pairs}{f':{base:.0f}' * (base != BASES[0])}"
                yield _of(
                    f"q and k were saved before their rotation (RoPE): --positions {flag} turns "
                    "them",
                    changed,
                )
        changed = replace(inputs, positions=Positions("alibi"))
        yield _of("ALiBi was added: --positions alibi", changed)
        return
    changed = replace(inputs, positions=Positions())
    name = {"rope": "RoPE", "alibi": "ALiBi"}[kind]
    yield _of(f"{name} is missing: q and k count as they are", changed)
    if kind == "rope":
        yield from _of_rotation(inputs)
    yield from _of_places(inputs)


def _of_rotation(inputs: LayerInputs) -> Iterator[Mistake]:
    """Which numbers turn together, how often, in which direction, and how fast."""
    expected = inputs.positions
    together = ("numbers i and i + d/2", "neighbours, 2i and 2i + 1,")
    right, wrong = together[expected.pairs].rstrip(","), together[not expected.pairs]
    yield _of(
        f"RoPE turns {wrong} together, where {right} belong together",
        replace(inputs, positions=replace(expected, pairs=not expected.pairs)),
    )
    for words, times in (
        ("q and k are turned twice: they were rotated when they were saved", 2),
        ("RoPE turns the wrong way, by minus the position (the sign in rotate_half)", -1),
    ):
        yield _of(words, replace(inputs, q_at=times * inputs.q_at, k_at=times * inputs.k_at))
    for base in BASES:
        if base != expected.base:
            changed = replace(inputs, positions=replace(expected, base=base))
            yield _of(f"RoPE has the base {base:.0f}", changed)


def _of_places(inputs: LayerInputs) -> Iterator[Mistake]:
    """Queries or keys that are taken to stand elsewhere."""
    at_q, at_k = inputs.q_at, inputs.k_at
    places_q, places_k = (np.arange(at.shape[1])[None] + 0 * at for at in (at_q, at_k))
    before = max(places_k.shape[1] - places_q.shape[1], 0)  # keys in a cache
    counted = "positions of {} count the padding on the left, those of {} do not"
    for words, q_at, k_at in (
        (counted.format("keys", "queries"), at_q, places_k),
        (counted.format("queries", "keys"), places_q + before, at_k),
        ("positions of queries begin at 0, and do not count the keys in the cache", places_q, at_k),
        ("positions of queries are one too high", at_q + 1, at_k),
        ("positions of queries are one too low", at_q - 1, at_k),
        ("queries are turned by no position: all stand at 0", 0 * at_q, at_k),
        ("keys are turned by no position: all stand at 0", at_q, 0 * at_k),
    ):
        if (q_at != at_q).any() or (k_at != at_k).any():
            yield _of(words, replace(inputs, q_at=q_at, k_at=k_at))
