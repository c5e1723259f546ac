"""What a page draws, head by head, whether the run holds whole maps or pooled ones.

A whole map is a pooled one whose pixels are single cells. A page asks for the pixels of one head,
its rows' statistics and largest keys, who may look at whom, and single parts at full resolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.masks import Reasons, mask_from_name, places_in, reasons_of, spans_from_names
from attnviz.measures import measure
from attnviz.result import Attention, pooled_cells

Array = npt.NDArray[Any]
Pair = tuple[int, int]

SMALLEST = 160
"""Pixels along a side below which there is no coarser level: a thumbnail."""

NEAR = 64
"""Keys less than this many positions away are near ones."""

MOST_KEYS = 8
"""The largest keys that are listed of each row."""

STATISTICS = {
    "entropy": "bits",
    "largest": "the largest weight",
    "distance": "mean distance, in positions",
    "first": "weight on the first token",
    "previous": "weight on the token before",
    "self": "weight on the token itself",
    "near": "weight on tokens less than {near} positions away",
}


@dataclass(frozen=True)
class Level:
    """One head at one resolution: the mean and the largest of the allowed cells of each pixel, and
    how many these are."""

    mean: Array
    largest: Array
    allowed: Array

    def coarser(self, factor: int) -> Level:
        """`factor` × `factor` pixels as one, exactly as if it had been pooled so at once."""
        if factor == 1:
            return self
        return Level(*pooled_cells(self.mean, self.largest, self.allowed, factor))

    def pyramid(self) -> Iterator[Level]:
        """This level, then coarser ones, each pooled exactly from this one."""
        factor = 1
        yield self
        while max(self.mean.shape) > SMALLEST * factor:
            factor *= 2
            yield self.coarser(factor)


@dataclass(frozen=True)
class RowNumbers:
    """Numbers of each row of a head: statistics `[Tq]`, and its largest keys `[Tq n]` with their
    weights; -1 and 0 where fewer weights are above 0."""

    statistics: dict[str, Array]
    top_keys: Array
    top_weights: Array


class Maps:
    """The maps of a run; they are held cell by cell, or as pixels that each pool many cells."""

    def __init__(self, result: Attention) -> None:
        self._result = result
        self.cells = result.cells
        self.near = NEAR if result.rows is None else result.rows.near

    def level(self, s: int, head: Pair) -> Level:
        """The finest; cells as they are held, whatever masks say."""
        result, at = self._result, (head[0], s, head[1])
        counts = result.counts[head[0], s, head[1] if result.counts.shape[2] > 1 else 0]
        return Level(result.mean[at], result.largest[at], counts)

    def window(self, rows: range, keys: range, s: int, head: Pair) -> tuple[Array, Array]:
        """(weights, allowed) of a part of a map that is held cell by cell."""
        where = np.s_[rows.start : rows.stop, keys.start : keys.stop]
        level = self.level(s, head)
        return level.mean[where], level.allowed[where]

    def measures(self, s: int, heads: list[Pair]) -> dict[str, Array]:
        if self._result.is_pooled:
            means = self._result.row_means(s)
            return {name: means[name] for name in STATISTICS}
        with np.errstate(invalid="ignore"):  # weights that are no numbers give such measures
            return measure(self._result, s, heads).result()

    def rows(self, s: int, head: Pair) -> RowNumbers:
        result, at = self._result, (head[0], s, head[1])
        if result.rows is not None:
            own = result.rows
            statistics = {name: own.statistics[name][at] for name in STATISTICS}
            return RowNumbers(statistics, own.top_keys[at], own.top_weights[at])
        level = self.level(s, head)
        real = np.outer(result.query_valid[s], result.key_valid[s])
        weights = np.where(real & level.allowed, level.mean, 0)
        return RowNumbers(self._statistics(weights, s), *largest_keys(weights))

    def spans(self, s: int, layer: int) -> tuple[Array, Array] | None:
        """(first, end) of the keys that each query may see; None where only cells tell it."""
        return spans_of(self._result, s, layer) if self._result.is_pooled else None

    @cached_property
    def reasons(self) -> Reasons:
        """Why each forbidden cell of a whole map is forbidden."""
        return reasons_of(self._result)

    def spans_of_masks(self, s: int, layer: int) -> list[tuple[str, tuple[Array, Array]]]:
        """(why it forbids a key, the span of keys that it lets each query see) of each mask."""
        result, made = self._result, []
        for name in result.masks:
            mask = mask_from_name(name)
            spans = spans_from_names([name], places_in(result), s, result.layer_numbers[layer])
            if mask is not None and spans is not None:
                made.append((f"{name}: {mask[0].reason.format(n=mask[1])}", spans))
        return made

    def _statistics(self, weights: Array, s: int) -> dict[str, Array]:
        at_q, at_k = self._result.query_positions[s], self._result.key_positions[s]
        apart = np.abs(at_q[:, None] - at_k).astype(np.float32)
        with np.errstate(invalid="ignore"):
            logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
            return {
                "entropy": np.maximum(0.0, -np.einsum("qk,qk->q", weights, logs)),
                "largest": weights.max(1),
                "distance": np.einsum("qk,qk->q", weights, apart.astype(weights.dtype)),
                "first": weights[:, at_k == 0].sum(1),
                "previous": np.where(at_q[:, None] - 1 == at_k, weights, 0).sum(1),
                "self": np.where(apart == 0, weights, 0).sum(1),
                "near": np.where(apart < NEAR, weights, 0).sum(1),
            }


def largest_keys(weights: Array, most: int = MOST_KEYS) -> tuple[Array, Array]:
    """(keys, weights) `[Tq most]` of each row of `[Tq Tk]`; among equal weights the first key."""
    size = np.where(np.isfinite(weights), weights, 0)
    if size.shape[1] > most:
        least = -np.partition(-size, most - 1, axis=1)[:, most - 1 : most]
        above, equal = size > least, size == least
        room = most - above.sum(1, keepdims=True)
        chosen = above | (equal & (np.cumsum(equal, axis=1) <= room))
        keys = np.nonzero(chosen)[1].reshape(len(size), most)
    else:
        keys = np.broadcast_to(np.arange(size.shape[1]), size.shape)
    found = np.take_along_axis(size, keys, 1)
    order = np.argsort(-found, axis=1, kind="stable")
    keys, found = (np.take_along_axis(x, order, 1) for x in (keys, found))
    return np.where(found > 0, keys, -1), np.where(found > 0, found, 0)


def spans_of(pooled: Attention, s: int, layer: int) -> tuple[Array, Array] | None:
    """(first, end) of the keys that each query may see, `[Tq]` each; None if masks do not say.

    They follow from q and k that were kept, or from the names of the masks; in the second case
    they are held against the numbers of allowed cells, since a model's layers may differ.
    """
    if pooled.has_weights_kept:
        return pooled.kept["first_key"][layer, s], pooled.kept["end_key"][layer, s]
    names = [name for name in pooled.masks if name != "real rows"]
    found = spans_from_names(names, places_in(pooled), s, pooled.layer_numbers[layer])
    if found is None:
        return None
    first, end = found
    end = np.where(pooled.query_valid[s], np.maximum(first, end), first)
    counts = np.add.reduceat(end - first, np.arange(0, pooled.n_queries, pooled.cells[0]))
    if not (pooled.counts[layer, s].sum(-1) == counts).all():
        return None
    return first, end
