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


class HeadTally:
    """How often something was seen in each head, and where it was worst."""

    def __init__(self, layers: int, heads: int) -> None:
        self.count = np.zeros((layers, heads), dtype=np.int64)
        self.size = np.full((layers, heads), -np.inf)
        self.value = np.full((layers, heads), np.nan)
        self.place = np.full((layers, heads, 3), -1, dtype=np.int64)
        """Sequence, query and key; -1 where the thing is a whole row or head."""

    def __bool__(self) -> bool:
        return bool(self.count.any())

    def add(self, block: ScanBlock, seen: Cells, size: Array, value: Array) -> None:
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
class ScanBlock:
    """Where a block stands: some heads and some rows of one sequence in one layer."""

    layer: int
    sequence: int
    heads: slice
    rows: slice


@dataclass
class ScanCounts:
    """What a scan saw, for each layer and head."""

    finite: HeadTally
    negative: HeadTally
    rows: HeadTally
    """Rows whose sum is not what it should be."""
    empty: HeadTally
    """Of those, rows of zeros although a key is allowed."""
    blind: HeadTally
    """Rows that may see nothing, and are zeros."""
    trap: HeadTally
    """Rows that may see nothing, and have weights."""
    flat: HeadTally
    """Rows that are exactly uniform over all keys, where no mask is expected."""
    leaks: list[HeadTally]
    """For each mask that is expected."""
    uniform: npt.NDArray[np.int64]
    """`[L H]`: rows that are uniform over two keys or more."""
    choices: npt.NDArray[np.int64]
    """`[L H]`: rows that have two keys or more to choose from."""
    sunk: npt.NDArray[np.int64]
    """`[L H]`: sequences that are sunk into one token."""
    judged: npt.NDArray[np.int64]
    """`[L H]`: sequences with rows enough to be."""
    sink: HeadTally
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
        finite=HeadTally(*shape),
        negative=HeadTally(*shape),
        rows=HeadTally(*shape),
        empty=HeadTally(*shape),
        blind=HeadTally(*shape),
        trap=HeadTally(*shape),
        flat=HeadTally(*shape),
        leaks=[HeadTally(*shape) for _ in checked.expected],
        uniform=np.zeros(shape, dtype=np.int64),
        choices=np.zeros(shape, dtype=np.int64),
        sunk=np.zeros(shape, dtype=np.int64),
        judged=np.zeros(shape, dtype=np.int64),
        sink=HeadTally(*shape),
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
        numbers = BlockNumbers(checked, block)
        _count_numbers(numbers, seen)
        _count_forbidden(numbers, seen)
        limit = _limit(numbers, tolerance, seen)
        _count_sums(numbers, seen, limit, sinks)
        _count_choices(numbers, seen, limit, columns, chosen)
        if block.rows.stop == queries:
            _look_for_sinks(block, seen, columns, chosen)
    return seen


def blocks(checked: CheckedWeights) -> Iterator[ScanBlock]:
    """All blocks in order; the rows of one head follow each other."""
    layers, batch, heads, queries, keys = checked.shape
    n_heads = min(max(BLOCK // (queries * keys), 1), heads)
    n_rows = min(max(BLOCK // keys, 1), queries)
    for layer in range(layers):
        for sequence in range(batch):
            for h in range(0, heads, n_heads):
                for q in range(0, queries, n_rows):
                    yield ScanBlock(
                        layer,
                        sequence,
                        slice(h, min(h + n_heads, heads)),
                        slice(q, min(q + n_rows, queries)),
                    )


class BlockNumbers:
    """The weights of a block `[h q k]`, and what every count needs of its rows `[h q]`.

    `allowed` is `[1|h q k]`, None where no mask is expected. `counts` are rows of real tokens whose
    numbers are finite, `sees` those of them that may see something. `empty` rows are zeros
    nevertheless. `options` are the keys that a row may choose from, as far as they are known.
    """

    def __init__(self, checked: CheckedWeights, block: ScanBlock) -> None:
        self.checked, self.block = checked, block
        self.weights = checked.layers[block.layer][block.sequence, block.heads, block.rows]
        self.real = checked.query_valid[block.sequence, block.rows]  # q
        allowed = checked.allowed(block.layer, block.sequence, block.rows)
        self.allowed = None if allowed is None else self.of_heads(allowed)
        with np.errstate(invalid="ignore", over="ignore"):
            self.sums = self.weights.sum(-1, dtype=np.float64)
            self.top = self.weights.max(-1).astype(np.float64)
            self.low = self.weights.min(-1)
        self.finite = np.isfinite(self.sums)
        self.counts = self.finite & self.real
        self.used = self.weights != 0
        if self.allowed is None:
            self.n_allowed = np.full((1, len(self.real)), self.weights.shape[-1])
            self.options = self.used.sum(-1)  # what is allowed is not known, only what has weight
        else:
            self.n_allowed = self.options = self.allowed.sum(-1)
        self.sees = self.counts & (self.n_allowed > 0)
        self.empty = self.sees & (self.top == 0) & (self.low == 0)

    def of_heads(self, mask: Cells) -> Cells:
        """The part `[1|h q k]` of a mask `[1|H q k]`."""
        return np.asarray(mask[self.block.heads] if len(mask) > 1 else mask)


def _count_numbers(n: BlockNumbers, seen: ScanCounts) -> None:
    """Numbers that no weight can be."""
    if not n.finite.all():
        broken = ~np.isfinite(n.weights)
        seen.finite.add(n.block, broken, np.ones(n.weights.shape), n.weights)
    if (n.low < 0).any():
        seen.negative.add(n.block, (n.weights < 0) & n.counts[..., None], -n.weights, n.weights)


def _count_forbidden(n: BlockNumbers, seen: ScanCounts) -> None:
    """Weight that a mask forbids, and which cells have any."""
    block = n.block
    if n.allowed is not None:
        trapped = n.counts & (n.n_allowed == 0) & n.used.any(-1)
        seen.trap.add(block, trapped, n.top, n.top)
        may_leak = n.sees[..., None]
        if (n.used & ~n.allowed & may_leak).any():
            for mask, leaks in zip(n.checked.expected, seen.leaks, strict=True):
                allows = n.of_heads(mask.allows(block.layer, block.sequence, block.rows))
                leaks.add(block, n.used & ~allows & may_leak, np.abs(n.weights), n.weights)
    if (block.layer, block.sequence) in seen.support:
        rows = seen.support[block.layer, block.sequence][block.rows]
        np.logical_or(rows, n.used.any(0) & n.real[:, None], out=rows)


def _limit(n: BlockNumbers, tolerance: float | None, seen: ScanCounts) -> float:
    """How far from 1 a row of this block may be; its precision is looked for only when needed."""
    precision, n_keys = n.checked.dtype, n.weights.shape[-1]
    limit = row_tolerance(precision, n_keys) if tolerance is None else tolerance
    if tolerance is None and (n.sees & (np.abs(n.sums - 1) > limit)).any():
        precision = precision_of(n.weights)
        limit = row_tolerance(precision, n_keys)
    seen.precision.add(precision)
    seen.tolerance = max(seen.tolerance, limit)
    return limit


def _count_sums(n: BlockNumbers, seen: ScanCounts, limit: float, sinks: bool) -> None:
    """Rows that do not sum to 1, and what of dropout they tell."""
    block, off = n.block, np.abs(n.sums - 1)
    wrong = n.sees & ((n.sums > 1 + limit) if sinks else (off > limit))
    if n.allowed is None:
        wrong &= ~n.empty  # of a mask that is not known: then it sees nothing
        seen.blind.add(block, n.empty, off, n.sums)
        flat = n.sees & (n.top == n.low) & (off <= limit)
        seen.flat.add(block, flat & (n.weights.shape[-1] > 1), np.ones(n.top.shape), n.top)
    else:
        seen.empty.add(block, wrong & n.empty, off, n.sums)
        seen.blind.add(block, n.counts & (n.n_allowed == 0) & (n.sums == 0), off, n.sums)
    if not wrong.any():
        return
    seen.rows.add(block, wrong, off, n.sums)
    some = n.sees & ~n.empty if n.allowed is None else n.sees
    if n.allowed is None and len(n.used) > 1:  # what no head looks at may be forbidden
        by_all = np.broadcast_to(n.used.any(0), n.used.shape)
        seen.dropout_in_use[block.layer].add(n.sums, n.used, by_all, some)
    may = np.broadcast_to(np.True_ if n.allowed is None else n.allowed, n.used.shape)
    seen.dropout[block.layer].add(n.sums, n.used, may, some)


def _count_choices(
    n: BlockNumbers,
    seen: ScanCounts,
    limit: float,
    columns: Floats,
    chosen: npt.NDArray[np.int64],
) -> None:
    """Rows that have a choice, how many of them are uniform, and what each column gets."""
    heads = n.block.layer, n.block.heads
    choice = n.sees & (n.options > 1) & (n.sums > 0)
    nearly = 1 + max(NEARLY_UNIFORM, limit)
    seen.uniform[heads] += (choice & (n.top * n.options <= n.sums * nearly)).sum(1)
    seen.choices[heads] += choice.sum(1)
    may_choose = n.sees & (n.sums > 0) if n.allowed is None else choice
    chosen[n.block.heads] += may_choose.sum(1)
    clean = n.weights if n.counts.all() else np.where(n.counts[..., None], n.weights, 0)
    columns[n.block.heads] += clean.sum(1, dtype=np.float64)
    seen.fingerprint[heads] += np.where(choice, n.top, 0).sum(1) * (1 + n.block.sequence)


def _look_for_sinks(
    block: ScanBlock, seen: ScanCounts, columns: Floats, chosen: npt.NDArray[np.int64]
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
