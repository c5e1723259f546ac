"""All weights of a long text, folded into a picture and into numbers for each row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.config import check_size
from attnviz.errors import InputError
from attnviz.result import ROW_STATISTICS
from attnviz.scores import Scores
from attnviz.streaming.fold import Part, Plan, Scratch, fold
from attnviz.streaming.head import Head, heads_of, tiles
from attnviz.streaming.workers import in_order

NEAR = 64

Progress = Callable[[int, int], None]
"""(cells done, cells in all)."""


@dataclass(frozen=True, eq=False)
class Pooled:
    """What `pool` gives. Pixel (i, j) stands for rows i·cells[0] … and keys j·cells[1] …

    - `mean`, `largest`: float32 `[B H Pq Pk]`, of the weights that are allowed in each pixel; 0
      where none is.
    - `allowed`: int64 `[B 1|H Pq Pk]`, how many of a pixel's cells are allowed.
    - `cells`: rows and keys in a pixel; pixels at the lower and right edge may hold fewer.
    - `statistics`: of each row, `[B H Tq]` by the names of `ROW_STATISTICS`; empty if not wanted.
      float32, and int64 for `largest_key`. A row that sees nothing has zeros.
    - `top_keys` int64, `top_weights` float32 `[B H Tq top]`: each row's largest weights and their
      keys' places, the largest first; -1 and 0 where fewer are more than 0.
    - `column_sums`: float64 `[B H Tk]`: what each key is given by all rows; None if not wanted.
    """

    mean: npt.NDArray[np.float32]
    largest: npt.NDArray[np.float32]
    allowed: npt.NDArray[np.int64]
    cells: tuple[int, int]
    near: int
    statistics: dict[str, npt.NDArray[Any]]
    top_keys: npt.NDArray[np.int64]
    top_weights: npt.NDArray[np.float32]
    column_sums: npt.NDArray[np.float64] | None


def pool(
    attention: Scores,
    pixels: int = 1024,
    *,
    statistics: bool = True,
    near: int = NEAR,
    top: int = 0,
    column_sums: bool = False,
    progress: Progress | None = None,
    block: tuple[int, int] | None = None,
) -> Pooled:
    """Fold every weight of `attention`; at most `pixels` pixels a side.

    `statistics` adds the numbers of each row, `top` the largest keys of each row, and
    `column_sums` what each key is given, which takes a second pass. `block` is the number of
    queries and keys of a tile, where the usual one is not wanted.

    Raises `InputError` for sizes that cannot be.
    """
    if top < 0:
        raise InputError(f"top is {top}; it must be 0 or more")
    lengths = (attention.queries, attention.keys)
    check_size("pixels", pixels)
    check_size("near", near)
    plan = Plan(
        cells=(-(-lengths[0] // pixels), -(-lengths[1] // pixels)),
        queries=lengths[0],
        keys=lengths[1],
        block=usual_block(attention) if block is None else block,
        statistics=statistics,
        near=near,
        top=top,
        column_sums=column_sums,
    )
    allowed = count_allowed(attention, plan)
    sheet = _Sheet(attention, plan)
    total = n_cells(attention, plan) if progress else 0
    done = 0
    for head, part in _parts(attention, plan):
        sheet.add(head, part)
        done += part.rows.cells
        if progress:
            progress(done, total)
    return sheet.result(allowed)


def usual_block(attention: Scores) -> tuple[int, int]:
    """Queries and keys of a tile: what a CPU's cache holds, or what keeps a GPU busy."""
    return (256, 1024) if attention.q.device.type == "cpu" else (2048, 8192)


def _parts(attention: Scores, plan: Plan) -> Iterator[tuple[Head, Part]]:
    """Each block of rows of each head, folded, in order."""
    own = threading.local()

    def work(job: tuple[Head, int, int]) -> tuple[Head, Part]:
        head, start, stop = job
        if not hasattr(own, "scratch"):
            own.scratch = Scratch(plan, head.k)
        with torch.inference_mode():
            return head, fold(head, head.rows(start, stop), plan, own.scratch)

    def jobs() -> Iterator[tuple[Head, int, int]]:
        # from the last row on: of a causal map these are the longest, and progress is even
        rows = list(pairwise(plan.row_edges))[::-1]
        for head in heads_of(attention):
            for start, stop in rows:
                yield head, start, stop

    yield from in_order(work, jobs(), attention.q.device)


class _Sheet:
    """The arrays that parts are put into."""

    def __init__(self, attention: Scores, plan: Plan) -> None:
        self.plan = plan
        heads = (attention.batch_size, attention.n_heads)
        sides = (-(-plan.queries // plan.cells[0]), plan.key_pixels)
        self.sums = np.zeros((*heads, *sides), np.float32)
        self.peaks = np.zeros((*heads, *sides), np.float32)
        names = ROW_STATISTICS if plan.statistics else ()
        self.statistics = {
            name: np.zeros(
                (*heads, plan.queries), np.int64 if name == "largest_key" else np.float32
            )
            for name in names
        }
        self.top_keys = np.full((*heads, plan.queries, plan.top), -1, np.int64)
        self.top_weights = np.zeros((*heads, plan.queries, plan.top), np.float32)
        self.columns = np.zeros((*heads, plan.keys)) if plan.column_sums else None

    def add(self, head: Head, part: Part) -> None:
        at = (head.b, head.h)
        rows, columns = part.sums.shape
        where = (*at, slice(part.row, part.row + rows), slice(part.column, part.column + columns))
        self.sums[where] += _array(part.sums)
        np.maximum(self.peaks[where], _array(part.peaks), out=self.peaks[where])
        of_rows = slice(part.rows.start, part.rows.stop)
        for name, values in part.statistics.items():
            self.statistics[name][(*at, of_rows)] = _array(values)
        if part.top is not None:
            self.top_keys[(*at, of_rows)] = _array(part.top[0].T)
            self.top_weights[(*at, of_rows)] = _array(part.top[1].T)
        if self.columns is not None and part.columns is not None and len(part.columns):
            self.columns[(*at, slice(*part.rows.sees))] += _array(part.columns)

    def result(self, allowed: npt.NDArray[np.int64]) -> Pooled:
        mean = self.sums
        np.divide(mean, allowed, out=mean, where=allowed > 0, casting="same_kind")
        return Pooled(
            mean,
            self.peaks,
            allowed,
            self.plan.cells,
            self.plan.near,
            self.statistics,
            self.top_keys,
            self.top_weights,
            self.columns,
        )


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.cpu().numpy()


# ── what is allowed ──────────────────────────────────────────────────────────────────────────


def count_allowed(attention: Scores, plan: Plan) -> npt.NDArray[np.int64]:
    """`[B 1|H Pq Pk]`: the allowed cells of each pixel."""
    counts = []
    for b in range(attention.batch_size):
        if attention.unbounded:
            per_head = any(rule.per_head for rule in attention.unbounded)
            heads = range(attention.n_heads if per_head else 1)
            counts.append([_counted(attention, b, h, plan) for h in heads])
        else:
            first, end = attention.spans(b)
            counts.append([_from_spans(first.numpy(), end.numpy(), plan)])
    return np.array(counts)


def _from_spans(
    first: npt.NDArray[np.int64], end: npt.NDArray[np.int64], plan: Plan
) -> npt.NDArray[np.int64]:
    """`[Pq Pk]` of rows that see first ≤ k < end, in time Tq + Pq · Pk.

    A row has max(0, x - first) - max(0, x - end) keys before place x. Summed over the rows of a
    pixel, Σ max(0, x - first) is n·x - s, for the n rows with first < x and s the sum of theirs.
    """
    rows = -(-plan.queries // plan.cells[0])
    edges = np.minimum(np.arange(plan.key_pixels + 1) * plan.cells[1], plan.keys)
    # nothing seen: an empty span
    places = np.concatenate([first, np.maximum(first, end)])
    sign = np.repeat((1.0, -1.0), plan.queries)
    of_row = np.tile(np.arange(plan.queries) // plan.cells[0], 2)
    # the first edge after each place; whole numbers far below 2⁵³, so that float64 is exact
    at = of_row * (len(edges) + 1) + np.searchsorted(edges, places, side="right")
    n, s = (
        np.bincount(at, weights, rows * (len(edges) + 1)).reshape(rows, -1).cumsum(1)[:, :-1]
        for weights in (sign, sign * places)
    )
    return np.asarray(np.diff(n * edges - s, axis=1), np.int64)


def _counted(attention: Scores, b: int, h: int, plan: Plan) -> npt.NDArray[np.int64]:
    """`[Pq Pk]`, cell by cell, where a rule is known by its predicate alone."""
    counts = np.zeros((-(-plan.queries // plan.cells[0]), plan.key_pixels), np.int64)
    first, end = (span.numpy() for span in attention.spans(b))
    for start, stop in pairwise(plan.row_edges):
        sees = (int(first[start:stop].min()), int(end[start:stop].max()))
        q = np.arange(start, stop)[:, None]
        for low, high in tiles(sees, plan.key_edges, plan.granule):
            k = np.arange(low, high)
            cells = (k >= first[start:stop, None]) & (k < end[start:stop, None])
            for rule in attention.unbounded:
                cells &= rule.allows(b, h, q, k)
            columns = np.add.reduceat(cells, range(0, high - low, plan.cells[1]), 1, np.int64)
            pixels = np.add.reduceat(columns, range(0, stop - start, plan.cells[0]), 0)
            row, column = start // plan.cells[0], low // plan.cells[1]
            counts[row : row + len(pixels), column : column + pixels.shape[1]] += pixels
    return counts


def n_cells(attention: Scores, plan: Plan) -> int:
    """How many cells `pool` computes: what a progress bar counts."""
    total = 0
    for b in range(attention.batch_size):
        first, end = (span.numpy() for span in attention.spans(b))
        starts = plan.row_edges[:-1]
        sees = np.maximum.reduceat(end, starts) - np.minimum.reduceat(first, starts)
        total += int((np.diff(plan.row_edges) * np.maximum(0, sees)).sum())
    return total * attention.n_heads
