"""Weights computed again from q and k, in float64; where they differ, the mistake behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from attnviz.checks.finding import Finding, InHead, Place
from attnviz.checks.mistakes import Case, Mistake, Positions, mistakes, of_other_scale
from attnviz.checks.precision import ROUNDOFF, precision_of
from attnviz.checks.scan import Block, Tally, blocks
from attnviz.checks.subject import Array, Mask, Subject
from attnviz.checks.tensors import Floats, Heads, alibi_slopes, read_heads, share, viewed
from attnviz.errors import ConfigError, InputError, printable
from attnviz.machine import free_memory

ALL = slice(None)

KINDS = ("none", "rope", "rope-pairs", "alibi")

MOST_ROUNDS = 4
"""Layers for which all mistakes are tried."""

COPIES = 6
"""Maps of a layer in float64 that are in memory at once while a mistake is looked for."""


@dataclass(frozen=True, eq=False)
class Given:
    """What the weights are compared with."""

    q: Heads
    k: Heads
    v: Heads | None
    context: Heads | None
    positions: Positions
    remarks: tuple[str, ...] = ()

    @property
    def checked(self) -> tuple[str, ...]:
        """The checks that can be made."""
        return ("expected", "context") if self.context else ("expected",)


def read_positions(given: str) -> Positions:
    """`rope`, `rope-pairs` or `rope:500000`, `alibi`, `none`. Raises `ConfigError` otherwise."""
    name, colon, base = given.partition(":")
    known = f"it must be one of {', '.join(KINDS)}, rope:BASE for another base than 10000"
    try:
        number = float(base) if colon else Positions.base
    except ValueError:
        number = 0.0
    if name not in KINDS or not 1 < number < 1e12 or (colon and not name.startswith("rope")):
        raise ConfigError(f"--positions is '{printable(given)}'; {known}")
    return Positions(name.removesuffix("-pairs"), number, name.endswith("-pairs"))


def read_given(
    subject: Subject, expect: Sequence[Any] | None, context: Any, positions: str
) -> Given:
    """(q, k) or (q, k, v), and the context, as tensors that fit the weights.

    Raises `InputError` where they do not, `ConfigError` where something is missing.
    """
    wanted = read_positions(positions)
    given = list(expect or ())
    if len(given) not in (2, 3):
        raise ConfigError(f"--expect has {len(given)} tensors; q and k, or q, k and v are expected")
    if len(given) == 3 and context is None:
        raise ConfigError(
            "--expect has a v, and there is no context to compare: give it with --context, or "
            "leave v out"
        )
    if len(given) == 2 and context is not None:
        raise ConfigError("--context is weights · V: --expect needs a v as well")
    q = read_heads("q", given[0], subject, of_keys=False)
    width = q.layer(0).shape[-1]
    k = read_heads("k", given[1], subject, of_keys=True, width=width)
    if k.layer(0).shape[-1] != width:
        raise InputError(f"heads of q have {width} numbers, those of k {k.layer(0).shape[-1]}")
    v = out = None
    if len(given) == 3:
        v = read_heads("v", given[2], subject, of_keys=True, width=_width(given[2], k))
        out = read_heads("context", context, subject, of_keys=False)
        if v.layer(0).shape[-1] != out.layer(0).shape[-1]:
            raise InputError(
                f"heads of v have {v.layer(0).shape[-1]} numbers, those of context "
                f"{out.layer(0).shape[-1]}"
            )
    taken = [f"{t.name} [{t.order}]" for t in (q, k, v, out) if t is not None]
    return Given(q, k, v, out, wanted, (f"read as {', '.join(taken)}",))


def _width(v: Any, k: Heads) -> int | None:
    """The width of a value head, where v has its heads side by side as k has, and as many."""
    shape = np.shape(v)
    return shape[-1] // k.n_heads if k.merged and shape and shape[-1] % k.n_heads == 0 else None


def findings_of(subject: Subject, given: Given, sinks: bool) -> Iterator[Finding]:
    """Where the weights are not those of q and k, and the context not that of weights and v."""
    yield from _of_weights(subject, given, sinks)
    if given.v is not None and given.context is not None:
        yield from _of_context(subject, given)


# ── weights ──────────────────────────────────────────────────────────────────────────────────


def _of_weights(subject: Subject, given: Given, sinks: bool) -> Iterator[Finding]:
    layers, _, heads, *_ = subject.shape
    off = Tally(layers, heads)
    for block in blocks(subject):
        _compare(subject, given, block, sinks, off)
    if not off:
        return
    left: Mask = np.asarray(off.count.any(1))
    found: dict[tuple[str, bool], list[int]] = {}
    for _ in range(MOST_ROUNDS):
        if not left.any():
            break
        worst = int(np.argmax(np.where(left, off.size.max(1), -np.inf)))
        name = _explain(subject, given, off, worst, sinks, None)
        explained = [worst]
        if name[0] not in (UNKNOWN, TOO_LARGE):
            explained += [
                layer
                for layer in np.flatnonzero(left).tolist()
                if layer != worst
                and _explain(subject, given, off, layer, sinks, name[0])[0] == name[0]
            ]
        found.setdefault(name, []).extend(explained)
        left[explained] = False
    if left.any():
        found.setdefault((UNKNOWN, True), []).extend(np.flatnonzero(left).tolist())
    for (words, fails), of_layers in found.items():
        what = "weights that are not softmax(QKᵀ/√d_k)"
        yield _finding(subject, "expected", what, words, off, {*of_layers}, fails)


UNKNOWN = "none of the usual mistakes gives these numbers"
TOO_LARGE = (
    "too large to look for the mistake in memory: cut weights, q and k alike to fewer tokens"
)


def case_of(
    subject: Subject,
    given: Given,
    layer: int,
    sequences: slice = ALL,
    heads: slice = ALL,
    rows: slice = ALL,
) -> Case:
    """What a layer, or a part of it, is computed from."""
    _, batch, n_heads, queries, _ = subject.shape
    at = range(batch)[sequences]
    places = slice(*rows.indices(queries)[:2])
    k = given.k.layer(layer)[sequences]
    part = heads != ALL
    masks = [
        np.stack([told.allows(layer, sequence, places) for sequence in at]) for told in subject.told
    ]
    return Case(
        given.q.layer(layer)[sequences, heads, rows],
        share(k, n_heads)[:, heads] if part else k,
        subject.told,
        tuple(mask[:, heads] if part and mask.shape[1] > 1 else mask for mask in masks),
        subject.queries.positions[sequences, rows],
        subject.keys.positions[sequences],
        given.positions,
        slopes=alibi_slopes(n_heads)[heads] if part else None,
    )


def _explain(
    subject: Subject, given: Given, off: Tally, layer: int, sinks: bool, only: str | None
) -> tuple[str, bool]:
    """The mistake whose weights are those of a layer, in words, and whether it is one.

    Of a layer that is too large for that in memory, the worst sequence alone is looked at.
    """
    _, batch, heads, queries, keys = subject.shape
    needed, sequences = 8 * COPIES * batch * heads * queries * keys, ALL
    if needed > free_memory():
        sequence = int(off.place[layer, np.argmax(off.size[layer]), 0])
        needed, sequences = needed // batch, slice(sequence, sequence + 1)
        if needed > free_memory():
            return TOO_LARGE, True
    case = case_of(subject, given, layer, sequences)
    weights, real = subject.layers[layer][sequences], subject.query_valid[sequences]
    if only is None or only.startswith("dropout"):
        p = _dropout(weights, case.weights(), real)
        if p is not None:
            return f"dropout: weights are 0 or divided by 1 - p, p about {p:.2f}", False
    for mistake in chain(mistakes(case), of_other_scale(case, weights.astype(np.float64), real)):
        if only in (None, mistake.words) and _agrees(weights, real, mistake, sinks):
            return mistake.words, mistake.fails
    words = (
        "the differences are of the size that half precision makes: scores or softmax were "
        f"computed in float16 or bfloat16, and saved as {weights.dtype.name}"
    )
    right = Mistake(words, case.weights, case, fails=False)
    if any(_agrees(weights, real, right, sinks, short) for short in ("float16", "bfloat16")):
        return words, False
    return UNKNOWN, True


def _agrees(
    weights: Array, real: Mask, mistake: Mistake, sinks: bool, precision: str | None = None
) -> bool:
    """Whether weights are those of a mistake, wherever rows of both mean something."""
    wrong = mistake.weights()
    with np.errstate(invalid="ignore"):
        judged = _judged(weights, real, sinks) & (weights.sum(-1) > 0)
    counts = judged & (wrong.sum(-1) > 0)
    if counts.sum() <= judged.sum() / 2:  # too few that a mistake could be told by
        return False
    limit = _limits(weights, wrong, mistake.case, precision)
    given = _normal(weights, sinks)
    with np.errstate(invalid="ignore"):
        return not bool((np.abs(given - wrong) > limit)[counts].any())


def _compare(subject: Subject, given: Given, block: Block, sinks: bool, off: Tally) -> None:
    """Count the cells of a block that are not as expected."""
    one = slice(block.sequence, block.sequence + 1)
    case = case_of(subject, given, block.layer, one, block.heads, block.rows)
    weights = subject.layers[block.layer][one, block.heads, block.rows]
    expected = case.weights()
    real = subject.query_valid[one, block.rows]
    counts = _judged(weights, real, sinks) & (expected.sum(-1) > 0)
    with np.errstate(invalid="ignore"):
        apart = np.abs(_normal(weights, sinks) - expected)
        wrong = (apart > _limits(weights, expected, case)) & counts[..., None]
    off.add(block, wrong[0], apart[0], apart[0])


def _judged(weights: Array, real: Mask, sinks: bool) -> Mask:
    """`[B H Tq]`: rows of real tokens with finite weights; other checks speak of the rest."""
    judged = np.isfinite(weights).all(-1) & real[:, None]
    return judged & (weights.sum(-1) > 0) if sinks else judged


def _normal(weights: Array, sinks: bool) -> Floats:
    """Weights in float64; with sinks, as shares of what they left."""
    given = weights.astype(np.float64)
    if not sinks:
        return given
    total = given.sum(-1, keepdims=True)
    return np.asarray(given / np.where(total > 0, total, 1.0))


def _limits(weights: Array, expected: Floats, case: Case, precision: str | None = None) -> Floats:
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
    d_k, n = case.q.shape[-1], expected.shape[-1]
    size = case.size()[..., None]  # B H Tq 1
    turn = 0.0
    if case.positions.kind == "rope":  # angles are float32 in every library, whatever the dtype
        turn = 4 * ROUNDOFF["float32"] * float(max(abs(case.q_at).max(), abs(case.k_at).max()) + 1)
    delta = (3 * u + accumulator * (4 + d_k**0.5) + turn) * size
    factor = np.expm1(np.minimum(2 * delta, 50.0)) + 8 * u + n * accumulator
    smallest = 2.0**-24 if found == "float16" else 1e-37
    return np.asarray(np.minimum(expected * factor, 0.5) + smallest)


def _dropout(weights: Array, expected: Floats, real: Mask) -> float | None:
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


# ── context ──────────────────────────────────────────────────────────────────────────────────


def _of_context(subject: Subject, given: Given) -> Iterator[Finding]:
    assert given.v is not None
    assert given.context is not None
    layers, _, heads, *_ = subject.shape
    off = Tally(layers, heads)
    for block in blocks(subject):
        one = slice(block.sequence, block.sequence + 1)
        weights = subject.layers[block.layer][one, block.heads, block.rows]
        v = share(given.v.layer(block.layer)[one], heads)[:, block.heads]
        made = given.context.layer(block.layer)[one, block.heads, block.rows]
        limit = _context_limit(weights, v, given.context.array)
        counts = np.isfinite(weights).all(-1) & subject.query_valid[one, block.rows][:, None]
        apart = np.abs(made - weights.astype(np.float64) @ v)
        wrong = (~(apart <= limit)).any(-1) & counts
        size = np.where(np.isnan(apart), np.inf, apart).max(-1)
        off.add(block, wrong[0], size[0], size[0])
    causes: dict[str, set[int]] = {}
    for layer in np.flatnonzero(off.count.any(1)).tolist():
        causes.setdefault(_explain_context(subject, given, layer), set()).add(layer)
    for cause, of_layers in causes.items():
        what = "context that is not weights · V"
        yield _finding(subject, "context", what, cause, off, of_layers, True, "row")


def _explain_context(subject: Subject, given: Given, layer: int) -> str:
    """The mistake that gives the context of a layer."""
    assert given.v is not None
    assert given.context is not None
    _, batch, heads, queries, keys = subject.shape
    if 8 * COPIES * batch * heads * queries * keys > free_memory():
        return TOO_LARGE
    weights, v = subject.layer(layer), given.v.layer(layer)
    made = given.context.layer(layer)
    limit = _context_limit(weights, share(v, heads), given.context.array)
    counts = np.isfinite(weights).all(-1) & subject.query_valid[:, None]
    for words, context, more in _context_mistakes(
        subject, given, layer, weights.astype(np.float64), v
    ):
        if not (~(np.abs(made - context) <= limit + more) & counts[..., None]).any():
            return words
    return UNKNOWN


def _context_limit(weights: Array, v: Floats, context: Array) -> Floats:
    """Roundoff of weights and context times what was added up, and the error of the sum itself."""
    u_w, u_c = ROUNDOFF[precision_of(weights)], ROUNDOFF[precision_of(context)]
    accumulator = min(max(u_w, u_c), ROUNDOFF["float32"])
    factor = 4 * max(u_w, u_c) + accumulator * (4 + weights.shape[-1] ** 0.5)
    return np.asarray(factor * (np.abs(weights.astype(np.float64)) @ np.abs(v)) + 1e-30)


def _context_mistakes(
    subject: Subject, given: Given, layer: int, weights: Floats, v: Floats
) -> Iterator[tuple[str, Floats, Floats | float]]:
    """What was done, the wrong context `[B H Tq d_v]`, and how much less exact than usual it is."""
    heads = subject.shape[2]
    right = weights @ share(v, heads)
    yield (
        "the heads of v are cut without a transpose: view(B, H, T, d_v) mixes tokens and heads; it "
        "is view(B, T, H, d_v).transpose(1, 2)",
        weights @ share(viewed(v), heads),
        0.0,
    )
    if right.shape[1] > 1:
        batch, _, queries, width = right.shape
        merged = right.reshape(batch, queries, heads * width)
        yield (
            "heads are put together without a transpose: reshape(B, T, H·d_v) of [B H T d_v] mixes "
            "tokens and heads; it is transpose(1, 2).reshape(B, T, H·d_v)",
            merged.reshape(batch, queries, heads, width).transpose(0, 2, 1, 3),
            0.0,
        )
    if weights.shape[-1] == weights.shape[-2]:
        yield (
            "the weights are transposed before they meet v",
            np.swapaxes(weights, -1, -2) @ share(v, heads),
            0.0,
        )
    if v.shape[1] < heads:
        yield (
            "value heads are shared in the wrong order: repeat gives 0 1 0 1, where "
            "repeat_interleave gives 0 0 1 1",
            weights @ np.tile(v, (1, heads // v.shape[1], 1, 1)),
            0.0,
        )
    case = case_of(subject, given, layer)
    used_others = {
        "the context is that of softmax(QKᵀ/√d_k), and these weights are others: saved before or "
        "after the ones that were used": case
    }
    if case.masks:
        bare = replace(case, masks=())
        used_others["the context is that of weights without a mask"] = bare
    for words, used in used_others.items():
        others = used.weights()
        limit = _limits(subject.layer(layer), others, used)
        yield words, others @ share(v, heads), limit @ np.abs(share(v, heads))


def _finding(
    subject: Subject,
    name: str,
    what: str,
    cause: str,
    off: Tally,
    layers: set[int],
    fails: bool,
    unit: str = "cell",
) -> Finding:
    found = []
    for layer, head in np.argwhere(off.count > 0).tolist():
        if layer in layers:
            sequence, query, key = off.place[layer, head].tolist()
            at_k = None if key < 0 else key
            place = Place(
                subject.layer_numbers[layer],
                head,
                sequence,
                query,
                at_k,
                float(off.value[layer, head]),
                subject.token(sequence, query, of_keys=False),
                subject.token(sequence, at_k, of_keys=True),
            )
            found.append(InHead(place.layer, head, int(off.count[layer, head]), place))
    worst = max(found, key=lambda head: head.worst.value).worst
    return Finding(name, fails, what, cause, unit, tuple(found), worst, "off by")
