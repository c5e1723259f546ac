"""The accumulator that every measure is: named sums that add up, in float64."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from attnviz.measures.block import Block, Floats

FARTHEST = 2048
"""Offsets beyond are counted together, one sum before and one after."""


class Accumulator(ABC):
    """Sums over the query rows of each head, `[L H]` or `[L H n]`; float64, counts as well.

    Sums by offset are `[L H 2w + 1]`, offset 0 in the middle; w grows with the texts, up to
    `FARTHEST` and one.

    Everything is a sum, and so the order and the grouping of parts change nothing but the last
    digits: `merge` is associative and commutative.
    """

    needs_whole: ClassVar[bool] = False
    """Whether all rows of a document must be in one block."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.n_layers, self.n_heads = n_layers, n_heads
        self.sums: dict[str, Floats] = {}

    @abstractmethod
    def update(self, block: Block) -> None:
        """Add what is in `block`."""

    @abstractmethod
    def result(self) -> dict[str, Floats]:
        """The figures, `[L H]` each; NaN where nothing counts."""

    def merge(self, other: Self) -> Self:
        """Both parts together; neither is changed."""
        both = self._empty()
        both.sums = {name: array.copy() for name, array in self.sums.items()}
        for name, array in other.sums.items():
            both.sums[name] = _added(both.sums[name], array) if name in both.sums else array.copy()
        return both

    def load(self, sums: Mapping[str, Floats]) -> None:
        """Take sums that were kept, as if they had been measured here."""
        self.sums = {name: np.array(array, dtype=np.float64) for name, array in sums.items()}

    def _empty(self) -> Self:
        """One like this with nothing in it."""
        return type(self)(self.n_layers, self.n_heads)

    def _add(self, name: str, block: Block, values: Floats) -> None:
        """Add `[H …]` to the sums of the block's layer and heads."""
        if name not in self.sums:
            self.sums[name] = np.zeros((self.n_layers, self.n_heads, *values.shape[1:]))
        self.sums[name][block.layer, block.heads] += values

    def _add_centred(self, name: str, block: Block, values: Floats) -> None:
        """Add sums by offset, `[1|H 2w + 1]`, to those that are there, as wide as the wider."""
        mine = self.sums.get(name, np.zeros((self.n_layers, self.n_heads, 1)))
        width = max(mine.shape[2], values.shape[1])
        self.sums[name] = mine = _widened(mine, width)
        mine[block.layer, block.heads] += _widened(values, width)  # a row for all heads, or each

    def _add_widened(self, name: str, values: Floats) -> None:
        """Add sums by offset that belong to no layer or head."""
        self.sums[name] = _added(self.sums[name], values) if name in self.sums else values

    def _sum(self, name: str) -> Floats:
        """The sums of that name, zeros where there are none yet."""
        return self.sums.get(name, np.zeros((self.n_layers, self.n_heads)))


def reach(block: Block) -> int:
    """The w of sums by offset -w … w that hold all offsets of the block's piece of text.

    A power of two and one, so that few widths are met; the outermost sums hold what is beyond
    `FARTHEST`, and so they are not empty only at the greatest width.
    """
    longest = 1 + max(block.queries.positions.max(), block.keys.positions.max(), 1)
    return min(1 << (int(longest) - 1).bit_length(), FARTHEST) + 1


def _added(one: Floats, other: Floats) -> Floats:
    """The sum; of sums by offset the narrower is widened."""
    width = max(one.shape[-1], other.shape[-1])
    return np.asarray(_widened(one, width) + _widened(other, width))


def _widened(array: Floats, width: int) -> Floats:
    """Zeros on both sides."""
    grow = (width - array.shape[-1]) // 2
    if not grow:
        return array
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(grow, grow)])


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """The quotient; NaN where both are 0, without a warning."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(numerator / denominator)
