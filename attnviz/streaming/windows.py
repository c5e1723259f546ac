"""Weights at full resolution: of one part of the map, or of some rows at a time.

The map is cut into tiles at places that do not depend on what is asked for, and each tile is
computed the same way, so that a part of the map has the very bits of the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.scores import Scores
from attnviz.streaming.head import Head, Rows, cuts, is_sound, tiles
from attnviz.streaming.pool import usual_block
from attnviz.streaming.workers import in_order


def window(attention: Scores, rows: range, columns: range, b: int = 0, h: int = 0) -> Tensor:
    """`[rows columns]`: the weights of head `h` of sequence `b`, exactly those of the whole map.

    Each row's sum runs over all keys that it may see, so that the time is that of the rows. A
    forbidden weight is 0, and so are all of a row that sees nothing.

    Raises `InputError` when the ranges are empty or reach outside of the map.
    """
    lengths = (attention.queries, attention.keys)
    for name, wanted, length in zip(("rows", "columns"), (rows, columns), lengths, strict=True):
        if wanted.step != 1 or not 0 <= wanted.start < wanted.stop <= length:
            raise InputError(f"{name} {wanted.start}:{wanted.stop} are not in 0:{length}")
    head = Head(attention, b, h)
    weights = head.k.new_empty(len(rows), len(columns))
    for block, part in _blocks(head, rows, columns):
        weights[block.start - rows.start : block.stop - rows.start] = part
    return weights


def weight_blocks(
    attention: Scores, b: int = 0, h: int = 0, rows: int = 256
) -> Iterator[tuple[range, Tensor]]:
    """(range of queries, weights `[rows Tk]`) from the first query to the last, `rows` at a time.

    At most `rows` · Tk weights for each of torch's threads, and once more, are held. Multiples of
    256 rows waste nothing.
    """
    if rows < 1:
        raise InputError(f"rows is {rows}; it must be at least 1")
    head = Head(attention, b, h)
    everything = range(attention.keys)
    for start in range(0, attention.queries, rows):
        wanted = range(start, min(start + rows, attention.queries))
        weights = head.k.new_empty(len(wanted), len(everything))
        for block, part in _blocks(head, wanted, everything):
            weights[block.start - start : block.stop - start] = part
        yield wanted, weights


def _blocks(head: Head, rows: range, columns: range) -> Iterator[tuple[range, Tensor]]:
    """The wanted part of each block of rows that holds any of `rows`."""
    block, width = usual_block(head.attention)
    edges = cuts(head.attention.keys, 1, width)
    own = threading.local()

    def work(start: int) -> tuple[range, Tensor]:
        if not hasattr(own, "scratch"):
            own.scratch = head.k.new_empty(block * width)
        with torch.inference_mode():
            whole = head.rows(start, min(start + block, head.attention.queries))
            wanted = range(max(rows.start, whole.start), min(rows.stop, whole.stop))
            return wanted, _weights(head, whole, wanted, columns, edges, own.scratch)

    starts = range(rows.start // block * block, rows.stop, block)
    yield from in_order(work, starts, head.k.device)


def _weights(
    head: Head, rows: Rows, wanted: range, columns: range, edges: list[int], scratch: Tensor
) -> Tensor:
    """`[wanted columns]` of the block `rows`: every tile adds to the sums, some are kept."""
    kept = slice(wanted.start - rows.start, wanted.stop - rows.start)
    weights = scratch.new_zeros(len(wanted), len(columns))

    def add_up(rows: Rows) -> Tensor:
        sums = torch.zeros(len(rows), dtype=torch.float64, device=scratch.device)
        for start, stop in tiles(rows.sees, edges, edges[1]):
            powers = head.scores(rows, start, stop, scratch).exp2_()
            sums += powers.sum(0)
            low, high = max(start, columns.start), min(stop, columns.stop)
            if low < high:
                part = powers[low - start : high - start, kept]
                weights[:, low - columns.start : high - columns.start] = part.T
        return sums

    sums = add_up(rows)
    if not is_sound(sums, rows):
        rows = head.at_maxima(rows, scratch)
        sums = add_up(rows)
    inverse = head.logs(sums, rows).neg().exp2()
    return weights.mul_(inverse.to(weights.dtype)[kept, None])


MOST_HELD = 2**26
"""Weights of some rows of several heads: heads that come together share what masks cost."""

ROWS = 256


def head_rows(
    attention: Scores,
) -> Iterator[tuple[slice, range, Tensor, npt.NDArray[np.bool_]]]:
    """(heads, rows, their weights `[1 H R Tk]`, what was allowed) of a text that is alone."""
    keys = np.arange(attention.keys)
    together = max(1, MOST_HELD // (ROWS * attention.keys))
    for first in range(0, attention.n_heads, together):
        heads = range(first, min(first + together, attention.n_heads))
        blocks = (weight_blocks(attention, 0, head, ROWS) for head in heads)
        for parts in zip(*blocks, strict=True):
            rows = parts[0][0]
            at = np.arange(rows.start, rows.stop)[:, None]
            allowed = np.ones((1, 1, len(rows), len(keys)), dtype=np.bool_)
            for rule in attention.rules:
                allowed &= rule.allows(0, 0, at, keys)
            weights = torch.stack([part for _, part in parts])[None]
            yield slice(heads.start, heads.stop), rows, weights, allowed
