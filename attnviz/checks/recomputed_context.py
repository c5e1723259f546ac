"""The context computed again from weights and v; where it differs, the mistake behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from attnviz.checks.checked_weights import Array, CheckedWeights
from attnviz.checks.head_findings import finding_from
from attnviz.checks.head_tensors import Floats, Heads, share, viewed
from attnviz.checks.precision import ROUNDOFF, precision_of
from attnviz.checks.recomputed_weights import (
    TOO_LARGE,
    UNKNOWN,
    ComparedTensors,
    fit_in_memory,
    inputs_of,
    limits_of,
)
from attnviz.checks.report import Finding
from attnviz.checks.scan import HeadTally, blocks

Combine = Callable[[Floats, Floats], Floats]
"""(weights `[B H Tq Tk]`, v `[B Hkv Tk d_v]`) → a context `[B H Tq d_v]`."""


@dataclass(frozen=True)
class ContextMistake:
    """What was done, and how it makes a context of weights and v.

    Made of the sizes of both instead, it says how far each number may be off: the numbers of a
    wrong context stand elsewhere than those of the right one, and have sizes of their own.
    `weights` are others than the checked ones where the mistake was made with those, and
    `uncertain` is how far these may be off.
    """

    words: str
    combine: Combine
    weights: Floats | None = None
    uncertain: Floats | None = None


def findings_of(checked: CheckedWeights, tensors: ComparedTensors) -> Iterator[Finding]:
    """Where the context is not weights · V."""
    if tensors.v is None or tensors.context is None:
        return
    layers, _, heads, *_ = checked.shape
    off = HeadTally(layers, heads)
    for block in blocks(checked):
        one = slice(block.sequence, block.sequence + 1)
        weights = checked.layers[block.layer][one, block.heads, block.rows]
        v = share(tensors.v.layer(block.layer)[one], heads)[:, block.heads]
        made = tensors.context.layer(block.layer)[one, block.heads, block.rows]
        counts = np.isfinite(weights).all(-1) & checked.query_valid[one, block.rows][:, None]
        limit = _roundoff(weights, tensors.context) * _right(_sizes(weights), np.abs(v)) + 1e-30
        apart = np.abs(made - _right(weights.astype(np.float64), v))
        wrong = (~(apart <= limit)).any(-1) & counts
        size = np.where(np.isnan(apart), np.inf, apart).max(-1)
        off.add(block, wrong[0], size[0], size[0])
    causes: dict[str, set[int]] = {}
    for layer in np.flatnonzero(off.count.any(1)).tolist():
        causes.setdefault(_explain(checked, tensors, layer), set()).add(layer)
    for cause, of_layers in causes.items():
        what = "context that is not weights · V"
        yield finding_from(checked, off, "context", what, cause, measure="off by", layers=of_layers)


def _explain(checked: CheckedWeights, tensors: ComparedTensors, layer: int) -> str:
    """The mistake that gives the context of a layer."""
    assert tensors.v is not None
    assert tensors.context is not None
    if not fit_in_memory(int(np.prod(checked.shape[1:]))):
        return TOO_LARGE
    weights, v = checked.layer(layer), tensors.v.layer(layer)
    made = tensors.context.layer(layer)
    roundoff = _roundoff(weights, tensors.context)
    counts = (np.isfinite(weights).all(-1) & checked.query_valid[:, None])[..., None]
    for mistake in _mistakes(checked, tensors, layer, v):
        used = weights.astype(np.float64) if mistake.weights is None else mistake.weights
        sizes, v_sizes = _sizes(used), np.abs(v)
        limit = roundoff * mistake.combine(sizes, v_sizes) + 1e-30
        if mistake.uncertain is not None:
            limit = limit + mistake.combine(mistake.uncertain, v_sizes)
        if not (~(np.abs(made - mistake.combine(used, v)) <= limit) & counts).any():
            return mistake.words
    return UNKNOWN


def _sizes(weights: Array) -> Floats:
    return np.abs(weights.astype(np.float64))


def _roundoff(weights: Array, context: Heads) -> float:
    """Roundoff of weights and context, and the error of the sum itself, as a share of the sizes."""
    u_w, u_c = ROUNDOFF[precision_of(weights)], ROUNDOFF[precision_of(context.array)]
    accumulator = min(max(u_w, u_c), ROUNDOFF["float32"])
    return float(4 * max(u_w, u_c) + accumulator * (4 + weights.shape[-1] ** 0.5))


def _right(weights: Floats, v: Floats) -> Floats:
    return np.asarray(weights @ share(v, weights.shape[1]))


def _merged_without_transpose(weights: Floats, v: Floats) -> Floats:
    right = _right(weights, v)
    batch, heads, queries, width = right.shape
    merged = right.reshape(batch, queries, heads, width)
    return merged.transpose(0, 2, 1, 3)


def _mistakes(
    checked: CheckedWeights, tensors: ComparedTensors, layer: int, v: Floats
) -> Iterator[ContextMistake]:
    heads, queries, keys = checked.shape[2:]
    yield ContextMistake(
        "the heads of v are cut without a transpose: view(B, H, T, d_v) mixes tokens and heads; it "
        "is view(B, T, H, d_v).transpose(1, 2)",
        lambda w, v: _right(w, viewed(v)),
    )
    if heads > 1:
        yield ContextMistake(
            "heads are put together without a transpose: reshape(B, T, H·d_v) of [B H T d_v] mixes "
            "tokens and heads; it is transpose(1, 2).reshape(B, T, H·d_v)",
            _merged_without_transpose,
        )
    if queries == keys:
        yield ContextMistake(
            "the weights are transposed before they meet v",
            lambda w, v: _right(w.swapaxes(-1, -2), v),
        )
    if v.shape[1] < heads:
        yield ContextMistake(
            "value heads are shared in the wrong order: repeat gives 0 1 0 1, where "
            "repeat_interleave gives 0 0 1 1",
            lambda w, v: np.asarray(w @ np.tile(v, (1, heads // v.shape[1], 1, 1))),
        )
    inputs = inputs_of(checked, tensors, layer)
    others = {
        "the context is that of softmax(QKᵀ/√d_k), and these weights are others: saved before or "
        "after the ones that were used": inputs
    }
    if inputs.masks:
        others["the context is that of weights without a mask"] = replace(inputs, masks=())
    for words, used in others.items():
        weights = used.weights()
        yield ContextMistake(words, _right, weights, limits_of(checked.layer(layer), weights, used))
