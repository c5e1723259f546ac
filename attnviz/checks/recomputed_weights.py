"""Weights computed again from q and k, in float64; where they differ, the mistake behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from attnviz.checks.checked_weights import Array, Cells, CheckedWeights
from attnviz.checks.computation_mistakes import (
    LayerInputs,
    Mistake,
    Positions,
    mistakes,
    of_other_scale,
)
from attnviz.checks.head_findings import finding_from
from attnviz.checks.head_tensors import Floats, Heads, alibi_slopes, read_heads, share
from attnviz.checks.precision import ROUNDOFF, precision_of
from attnviz.checks.report import Finding
from attnviz.checks.scan import HeadTally, ScanBlock, blocks
from attnviz.errors import ConfigError, InputError, printable
from attnviz.machine import free_memory

ALL = slice(None)

KINDS = ("none", "rope", "rope-pairs", "alibi")

MOST_ROUNDS = 4
"""Layers for which all mistakes are tried."""

COPIES = 6
"""Maps of a layer in float64 that are in memory at once while a mistake is looked for."""


@dataclass(frozen=True, eq=False)
class ComparedTensors:
    """What the weights are compared with."""

    q: Heads
    k: Heads
    v: Heads | None
    context: Heads | None
    positions: Positions
    notes: tuple[str, ...] = ()

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of the checks that can be made."""
        return ("expected", "context") if self.context else ("expected",)


def read_positions(text: str) -> Positions:
    """`rope`, `rope-pairs` or `rope:500000`, `alibi`, `none`. Raises `ConfigError` otherwise."""
    name, colon, base = text.partition(":")
    known = f"it must be one of {', '.join(KINDS)}, rope:BASE for another base than 10000"
    try:
        number = float(base) if colon else Positions.base
    except ValueError:
        number = 0.0
    if name not in KINDS or not 1 < number < 1e12 or (colon and not name.startswith("rope")):
        raise ConfigError(f"--positions is '{printable(text)}'; {known}")
    return Positions(name.removesuffix("-pairs"), number, name.endswith("-pairs"))


def read_tensors(
    checked: CheckedWeights, expect: Sequence[Any] | None, context: Any, positions: str
) -> ComparedTensors:
    """(q, k) or (q, k, v), and the context, as tensors that fit the weights.

    Raises `InputError` where they do not, `ConfigError` where something is missing.
    """
    turns = read_positions(positions)
    tensors = list(expect or ())
    if len(tensors) not in (2, 3):
        raise ConfigError(
            f"--expect has {len(tensors)} tensors; q and k, or q, k and v are expected"
        )
    if len(tensors) == 3 and context is None:
        raise ConfigError(
            "--expect has a v, and there is no context to compare: give it with --context, or "
            "leave v out"
        )
    if len(tensors) == 2 and context is not None:
        raise ConfigError("--context is weights · V: --expect needs a v as well")
    q = read_heads("q", tensors[0], checked, of_keys=False)
    width = q.layer(0).shape[-1]
    k = read_heads("k", tensors[1], checked, of_keys=True, width=width)
    if k.layer(0).shape[-1] != width:
        raise InputError(f"heads of q have {width} numbers, those of k {k.layer(0).shape[-1]}")
    v = out = None
    if len(tensors) == 3:
        v = read_heads("v", tensors[2], checked, of_keys=True, width=_width(tensors[2], k))
        out = read_heads("context", context, checked, of_keys=False)
        if v.layer(0).shape[-1] != out.layer(0).shape[-1]:
            raise InputError(
                f"heads of v have {v.layer(0).shape[-1]} numbers, those of context "
                f"{out.layer(0).shape[-1]}"
            )
    taken = [f"{t.name} [{t.order}]" for t in (q, k, v, out) if t is not None]
    return ComparedTensors(q, k, v, out, turns, (f"read as {', '.join(taken)}",))


def _width(v: Any, k: Heads) -> int | None:
    """The width of a value head, where v has its heads side by side as k has, and as many."""
    shape = np.shape(v)
    return shape[-1] // k.n_heads if k.merged and shape and shape[-1] % k.n_heads == 0 else None


def findings_of(
    checked: CheckedWeights, tensors: ComparedTensors, sinks: bool
) -> Iterator[Finding]:
    """Where the weights are not those of q and k."""
    layers, _, heads, *_ = checked.shape
    off = HeadTally(layers, heads)
    for block in blocks(checked):
        _compare(checked, tensors, block, sinks, off)
    left = np.asarray(off.count.any(1))
    found: dict[tuple[str, bool], list[int]] = {}
    for _ in range(MOST_ROUNDS):
        if not left.any():
            break
        worst = int(np.argmax(np.where(left, off.size.max(1), -np.inf)))
        name = _explain(checked, tensors, off, worst, sinks)
        explained = [worst]
        if name[0] not in (UNKNOWN, TOO_LARGE):
            explained += [
                layer
                for layer in np.flatnonzero(left).tolist()
                if layer != worst
                and _explain(checked, tensors, off, layer, sinks, name[0])[0] == name[0]
            ]
        found.setdefault(name, []).extend(explained)
        left[explained] = False
    if left.any():
        found.setdefault((UNKNOWN, True), []).extend(np.flatnonzero(left).tolist())
    for (cause, fails), of_layers in found.items():
        yield finding_from(
            checked,
            off,
            "expected",
            "weights that are not softmax(QKᵀ/√d_k)",
            cause,
            fails=fails,
            unit="cell",
            measure="off by",
            layers=of_layers,
        )


UNKNOWN = "none of the usual mistakes gives these numbers"
TOO_LARGE = (
    "too large to look for the mistake in memory: cut weights, q and k alike to fewer tokens"
)


def fit_in_memory(cells: int) -> bool:
    """Whether there is room for the maps that are made while a mistake is looked for."""
    return 8 * COPIES * cells <= free_memory()


def inputs_of(
    checked: CheckedWeights,
    tensors: ComparedTensors,
    layer: int,
    sequences: slice = ALL,
    heads: slice = ALL,
    rows: slice = ALL,
) -> LayerInputs:
    """What a layer, or a part of it, is computed from."""
    _, batch, n_heads, queries, _ = checked.shape
    at = range(batch)[sequences]
    places = slice(*rows.indices(queries)[:2])
    k = tensors.k.layer(layer)[sequences]
    part = heads != ALL
    masks = [
        np.stack([mask.allows(layer, sequence, places) for sequence in at])
        for mask in checked.expected
    ]
    return LayerInputs(
        tensors.q.layer(layer)[sequences, heads, rows],
        share(k, n_heads)[:, heads] if part else k,
        checked.expected,
        tuple(mask[:, heads] if part and mask.shape[1] > 1 else mask for mask in masks),
        checked.queries.positions[sequences, rows],
        checked.keys.positions[sequences],
        tensors.positions,
        slopes=alibi_slopes(n_heads)[heads] if part else None,
    )


def _explain(
    checked: CheckedWeights,
    tensors: ComparedTensors,
    off: HeadTally,
    layer: int,
    sinks: bool,
    only: str | None = None,
) -> tuple[str, bool]:
    """The mistake whose weights are those of a layer, in words, and whether it is one.

    Of a layer that is too large for that in memory, the worst sequence alone is looked at.
    """
    cells, sequences = int(np.prod(checked.shape[1:])), ALL
    if not fit_in_memory(cells):
        sequence = int(off.place[layer, np.argmax(off.size[layer]), 0])
        sequences = slice(sequence, sequence + 1)
        if not fit_in_memory(cells // checked.shape[1]):
            return TOO_LARGE, True
    inputs = inputs_of(checked, tensors, layer, sequences)
    weights, real = checked.layers[layer][sequences], checked.query_valid[sequences]
    if only is None or only.startswith("dropout"):
        p = _dropout(weights, inputs.weights(), real)
        if p is not None:
            return f"dropout: weights are 0 or divided by 1 - p, p about {p:.2f}", False
    for mistake in chain(
        mistakes(inputs), of_other_scale(inputs, weights.astype(np.float64), real)
    ):
        if only in (None, mistake.words) and _agrees(weights, real, mistake, sinks):
            return mistake.words, mistake.fails
    words = (
        "the differences are of the size that half precision makes: scores or softmax were "
        f"computed in float16 or bfloat16, and saved as {weights.dtype.name}"
    )
    right = Mistake(words, inputs.weights, inputs, fails=False)
    if any(_agrees(weights, real, right, sinks, short) for short in ("float16", "bfloat16")):
        return words, False
    return UNKNOWN, True


def _agrees(
    weights: Array, real: Cells, mistake: Mistake, sinks: bool, precision: str | None = None
) -> bool:
    """Whether weights are those of a mistake, wherever rows of both mean something."""
    wrong = mistake.weights()
    with np.errstate(invalid="ignore"):
        judged = _judged(weights, real, sinks) & (weights.sum(-1) > 0)
    counts = judged & (wrong.sum(-1) > 0)
    if counts.sum() <= judged.sum() / 2:  # too few to name a mistake by
        return False
    limit = limits_of(weights, wrong, mistake.inputs, precision)
    numbers = _normal(weights, sinks)
    with np.errstate(invalid="ignore"):
        return not bool((np.abs(numbers - wrong) > limit)[counts].any())


def _compare(
    checked: CheckedWeights, tensors: ComparedTensors, block: ScanBlock, sinks: bool, off: HeadTally
) -> None:
    """Count the cells of a block that are not as expected."""
    one = slice(block.sequence, block.sequence + 1)
    inputs = inputs_of(checked, tensors, block.layer, one, block.heads, block.rows)
    weights = checked.layers[block.layer][one, block.heads, block.rows]
    expected = inputs.weights()
    real = checked.query_valid[one, block.rows]
    counts = _judged(weights, real, sinks) & (expected.sum(-1) > 0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(_normal(weights, sinks) - expected)
        wrong = (apart > limits_of(weights, expected, inputs)) & counts[..., None]
    off.add(block, wrong[0], apart[0], apart[0])


def _judged(weights: Array, real: Cells, sinks: bool) -> Cells:
    """`[B H Tq]`: rows of real tokens with finite weights; other checks speak of the rest."""
    judged = np.isfinite(weights).all(-1) & real[:, None]
    return judged & (weights.sum(-1) > 0) if sinks else judged


def _normal(weights: Array, sinks: bool) -> Floats:
    """Weights in float64; with sinks, as shares of what they left."""
    numbers = weights.astype(np.float64)
    if not sinks:
        return numbers
    total = numbers.sum(-1, keepdims=True)
    return np.asarray(numbers / np.where(total > 0, total, 1.0))


def limits_of(
    weights: Array, expected: Floats, inputs: LayerInputs, precision: str | None = None
) -> Floats:
    """How far each weight may be from the one expected.

    With u the roundoff of the weights, scores are off by 3 u of their size, product, scale and
    exponent, and by a dot product's own error, (4 + √d) roundoffs of its accumulator times
    ‖q‖·‖k‖. A change of δ in all scores of a row changes a weight by a factor of exp(2 δ) at most;
    the weights themselves are rounded as `row_tolerance` has it. q and k that were saved in a
    shorter form than the weights lack digits that the code had.
    """
    found = precision or precision_of(weights)
    u = ROUNDOFF[found]
    accumulator = min(u, ROUNDOFF["float32"])
    d_k, n = inputs.q.shape[-1], expected.shape[-1]
    size = inputs.size()[..., None]  # B H Tq 1
    turn = 0.0
    if inputs.positions.kind == "rope":  # angles are float32 in every library, whatever the dtype
        turn = (
            4 * ROUNDOFF["float32"] * float(max(abs(inputs.q_at).max(), abs(inputs.k_at).max()) + 1)
        )
    delta = (3 * u + accumulator * (4 + d_k**0.5) + turn) * size
    factor = np.expm1(np.minimum(2 * delta, 50.0)) + 8 * u + n * accumulator
    smallest = 2.0**-24 if found == "float16" else 1e-37
    return np.asarray(np.minimum(expected * factor, 0.5) + smallest)


def _dropout(weights: Array, expected: Floats, real: Cells) -> float | None:
    """p, where the weights are those expected, some 0 and the others divided by 1 - p."""
    counts = np.broadcast_to(real[:, None, :, None], weights.shape) & (expected > 1e-6)
    kept = counts & (weights != 0)
    if not kept.any() or kept.sum() == counts.sum():
        return None
    ratio = weights[kept] / expected[kept]
    scale = float(np.median(ratio))
    if not 1 < scale < 50 or (np.abs(ratio - scale) > 0.05 * scale).any():
        return None
    return 1 - 1 / scale
