"""The accumulator that every measure is: named sums that add up, in float64."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Self

import numpy as np

from attnviz.stats.block import Block, Floats


class Accumulator(ABC):
    """Sums over the query rows of each head, `[L H]` or `[L H n]`; float64, counts as well.

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
            both.sums[name] = both.sums[name] + array if name in both.sums else array.copy()
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

    def _sum(self, name: str) -> Floats:
        """The sums of that name, zeros where there are none yet."""
        return self.sums.get(name, np.zeros((self.n_layers, self.n_heads)))


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """The quotient; NaN where both are 0, without a warning."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(numerator / denominator)
