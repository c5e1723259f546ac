"""One pass over all weights, in blocks of rows, that counts what is out of the ordinary.

Nothing is judged here. A block has at most `BLOCK` cells, so that a dump larger than the memory can
be checked where it is mapped from disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.checks.checked_weights import Cells, CheckedWeights
from attnviz.checks.dropout import DropoutSums
from attnviz.checks.precision import ROUNDOFF, precision_of, row_tolerance

BLOCK = 2**20
"""Weights that are in work at once: 4 MiB as float32."""

NEARLY_UNIFORM = 1e-3
"""How much more than the mean a uniform head's largest weight may have, of that mean."""

SUNKEN = 0.9
"""Mean share on one key from which a head counts as sunk into it."""

FEWEST_ROWS = 3
"""Rows that a head must have before it can be called uniform or sunken."""

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


class Tally:
    """How often something was seen in each head, and where it was worst."""

    def __init__(self, layers: int, heads: int) -> None:
        self.count = np.zeros((layers, heads), dtype=np.int64)
        self.size = np.full((layers, heads), -np.inf)
        self.value = np.full((layers, heads), np.nan)
        self.place = np.full((layers, heads, 3), -1, dtype=np.int64)
        """Sequence, query and key; -1 where the thing is a whole row or head."""

    def __bool__(self) -> bool:
        return bool(self.count.any())

    def add(self, block: Block, seen: Cells, size: Array, value: Array) -> None:
        """Count `seen` of a block, bool `[h q]` or `[h q k]`; `size` says which is worst."""
        n = seen.reshape(len(seen), -1).sum(1)
        for i in np.flatnonzero(n):
            head = block.heads.start + int(i)
            self.count[block.layer, head] += n[i]
            sizes = np.where(seen[i], size[i], -np.inf)
            worst = np.unravel_index(np.argmax(sizes), sizes.shape)
            if sizes[worst] > self.size[block.layer, head]:
                key = int(worst[1]) if seen.ndim == 3 else -1
                self.size[block.layer, head] = sizes[worst]
                self.value[block.layer, head] = value[i][worst]
                query = block.rows.start + int(worst[0])
                self.place[block.layer, head] = block.sequence, query, key


@dataclass(frozen=True)
class Block:
    """Where a block stands: some heads and some rows of one sequence in one layer."""

    layer: int
    sequence: int
    heads: slice
    rows: slice


@dataclass
class ScanCounts:
    """What a scan saw, for each layer and head."""

    finite: Tally
    negative: Tally
    rows: Tally
    """Rows whose sum is not what it should be."""
    empty: Tally
    """Of those, rows of zeros although a key is allowed."""
    blind: Tally
    """Rows that may see nothing, and are zeros."""
    trap: Tally
    """Rows that may see nothing, and have weights."""
    flat: Tally
    """Rows that are exactly uniform over all keys, where no mask is expected."""
    leaks: list[Tally]
    """For each mask that is expected."""
    uniform: npt.NDArray[np.int64]
    """`[L H]`: rows that are uniform over two keys or more."""
    choices: npt.NDArray[np.int64]
    """`[L H]`: rows that have two keys or more to choose from."""
    sunk: npt.NDArray[np.int64]
    """`[L H]`: sequences that are sunk into one token."""
    judged: npt.NDArray[np.int64]
    """`[L H]`: sequences with rows enough to be."""
    sink: Tally
    fingerprint: Floats
    """`[L H]`: equal heads have equal ones."""
    dropout: list[DropoutSums]
    """For each layer, of the cells that are allowed, all where no mask is expected."""
    dropout_in_use: list[DropoutSums]
    """The same of the cells that some head gives weight, where no mask is expected."""
    support: dict[tuple[int, int], Cells] = field(default_factory=dict)
    """`[Tq Tk]` of (layer, sequence): cells that some head gives weight."""
    precision: set[str] = field(default_factory=set)
    tolerance: float = 0.0


LARGEST_SUPPORT = 2**26
"""Cells for which it is kept whether any head of a layer looks at them: the first sequences of all
layers, as many as that is enough for."""


def scan(checked: CheckedWeights, tolerance: float | None, sinks: bool) -> ScanCounts:
    """Go through all weights once. `tolerance` is for sums of rows; None: what the dtype allows.

    With `sinks`, a row may sum to less than 1.
    """
    layers, batch, heads, queries, keys = checked.shape
    shape = (layers, heads)
    seen = ScanCounts(
        finite=Tally(*shape),
        negative=Tally(*shape),
        rows=Tally(*shape),
        empty=Tally(*shape),
        blind=Tally(*shape),
        trap=Tally(*shape),
        flat=Tally(*shape),
        leaks=[Tally(*shape) for _ in checked.expected],
        uniform=np.zeros(shape, dtype=np.int64),
        choices=np.zeros(shape, dtype=np.int64),
        sunk=np.zeros(shape, dtype=np.int64),
        judged=np.zeros(shape, dtype=np.int64),
        sink=Tally(*shape),
        fingerprint=np.zeros(shape),
        dropout=[DropoutSums() for _ in range(layers)],
        dropout_in_use=[DropoutSums() for _ in range(layers)],
    )
    for sequence in range(min(batch, LARGEST_SUPPORT // (layers * queries * keys))):
        for layer in range(layers):
            seen.support[layer, sequence] = np.zeros((queries, keys), dtype=bool)
    columns = np.zeros((heads, keys))
    chosen = np.zeros(heads, dtype=np.int64)
    for block in blocks(checked):
        if block.rows.start == 0:
            columns[block.heads] = chosen[block.heads] = 0
        _look(checked, block, seen, columns, chosen, tolerance, sinks)
        if block.rows.stop == queries:
            _look_for_sinks(block, seen, columns, chosen)
    return seen


def blocks(checked: CheckedWeights) -> Iterator[Block]:
    """All blocks in order; the rows of one head follow each other."""
    layers, batch, heads, queries, keys = checked.shape
    n_heads = min(max(BLOCK // (queries * keys), 1), heads)
    n_rows = min(max(BLOCK // keys, 1), queries)
    for layer in range(layers):
        for sequence in range(batch):
            for h in range(0, heads, n_heads):
                for q in range(0, queries, n_rows):
                    yield Block(
                        layer,
                        sequence,
                        slice(h, min(h + n_heads, heads)),
                        slice(q, min(q + n_rows, queries)),
                    )


def _look(
    checked: CheckedWeights,
    block: Block,
    seen: ScanCounts,
    columns: Floats,
    chosen: npt.NDArray[np.int64],
    tolerance: float | None,
    sinks: bool,
) -> None:
    weights = checked.layers[block.layer][block.sequence, block.heads, block.rows]  # h q k
    real = checked.query_valid[block.sequence, block.rows]  # q
    allowed = checked.allowed(block.layer, block.sequence, block.rows)  # 1|h q k
    if allowed is not None and len(allowed) > 1:
        allowed = allowed[block.heads]
    n_keys = weights.shape[-1]

    with np.errstate(invalid="ignore", over="ignore"):
        sums = weights.sum(-1, dtype=np.float64)  # h q
        top = weights.max(-1).astype(np.float64)
        low = weights.min(-1)
    counts = np.isfinite(sums)
    if not counts.all():
        broken = ~np.isfinite(weights)
        seen.finite.add(block, broken, np.ones(weights.shape), weights)
    counts &= real

    if (low < 0).any():
        seen.negative.add(block, (weights < 0) & counts[..., None], -weights, weights)

    used = weights != 0
    if allowed is None:
        n_allowed = np.full((1, len(real)), n_keys)
        options = used.sum(-1)  # what a mask allowed is not known, only what has weight
    else:
        n_allowed = options = allowed.sum(-1)
        trapped = counts & (n_allowed == 0) & used.any(-1)
        seen.trap.add(block, trapped, top, top)
        may_leak = (counts & (n_allowed > 0))[..., None]
        if (used & ~allowed & may_leak).any():
            for mask, leaks in zip(checked.expected, seen.leaks, strict=True):
                allows = mask.allows(block.layer, block.sequence, block.rows)
                if len(allows) > 1:
                    allows = allows[block.heads]
                seen_here = used & ~allows & may_leak
                leaks.add(block, seen_here, np.abs(weights), weights)
    if (block.layer, block.sequence) in seen.support:
        rows = seen.support[block.layer, block.sequence][block.rows]
        np.logical_or(rows, used.any(0) & real[:, None], out=rows)

    sees = counts & (n_allowed > 0)
    limit = _limit(checked.dtype, weights, sums, sees, tolerance, seen)
    off = np.abs(sums - 1)
    wrong = sees & ((sums > 1 + limit) if sinks else (off > limit))
    empty = sees & (top == 0) & (low == 0)
    if allowed is None:
        wrong &= ~empty  # of a mask that is not known: then it sees nothing
        seen.blind.add(block, empty, off, sums)
    else:
        seen.empty.add(block, wrong & empty, off, sums)
        seen.blind.add(block, counts & (n_allowed == 0) & (sums == 0), off, sums)
    if wrong.any():
        seen.rows.add(block, wrong, off, sums)
        some = sees & ~empty if allowed is None else sees
        if allowed is None and len(used) > 1:  # what no head looks at may be forbidden
            by_all = np.broadcast_to(used.any(0), used.shape)
            seen.dropout_in_use[block.layer].add(sums, used, by_all, some)
        may = np.broadcast_to(np.True_ if allowed is None else allowed, used.shape)
        seen.dropout[block.layer].add(sums, used, may, some)

    if allowed is None:
        flat = sees & (top == low) & (off <= limit)
        seen.flat.add(block, flat & (n_keys > 1), np.ones(top.shape), top)
    choice = sees & (options > 1) & (sums > 0)
    nearly = np.maximum(NEARLY_UNIFORM, limit)
    seen.uniform[block.layer, block.heads] += (choice & (top * options <= sums * (1 + nearly))).sum(
        1
    )
    seen.choices[block.layer, block.heads] += choice.sum(1)
    may_choose = sees & (sums > 0) if allowed is None else choice
    chosen[block.heads] += may_choose.sum(1)
    clean = weights if counts.all() else np.where(counts[..., None], weights, 0)
    columns[block.heads] += clean.sum(1, dtype=np.float64)
    seen.fingerprint[block.layer, block.heads] += np.where(choice, top, 0).sum(1) * (
        1 + block.sequence
    )


def _limit(
    precision: str,
    weights: Array,
    sums: Floats,
    sees: Cells,
    tolerance: float | None,
    seen: ScanCounts,
) -> float:
    """How far from 1 a row of this block may be; its precision is looked for only when needed."""
    if tolerance is not None:
        limit = tolerance
    else:
        limit = row_tolerance(precision, weights.shape[-1])
        if (sees & (np.abs(sums - 1) > limit)).any():
            precision = precision_of(weights)
            limit = row_tolerance(precision, weights.shape[-1])
    seen.precision.add(precision)
    seen.tolerance = max(seen.tolerance, limit)
    return limit


def _look_for_sinks(
    block: Block, seen: ScanCounts, columns: Floats, chosen: npt.NDArray[np.int64]
) -> None:
    """After the last rows of some heads: is nearly all of their weight on one key?"""
    for head in range(block.heads.start, block.heads.stop):
        if chosen[head] < FEWEST_ROWS or columns[head].sum() <= 0:
            continue
        seen.judged[block.layer, head] += 1
        key = int(np.argmax(columns[head]))
        share = columns[head, key] / columns[head].sum()
        if share < SUNKEN:
            continue
        seen.sunk[block.layer, head] += 1
        seen.sink.count[block.layer, head] = 1
        if share > seen.sink.size[block.layer, head]:
            seen.sink.size[block.layer, head] = seen.sink.value[block.layer, head] = share
            seen.sink.place[block.layer, head] = block.sequence, -1, key


def least_roundoff(precisions: set[str]) -> str:
    """The coarsest of several precisions."""
    return max(precisions, key=lambda name: ROUNDOFF[name])
