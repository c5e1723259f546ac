"""Axes of panels: what each row and column is called, and which of them are real."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.render.labels import label


@dataclass(frozen=True, eq=False)
class TokenAxis:
    """Queries or keys: the token of each, its position in its sequence, and whether it is real.

    A model wrote those from the position `answer` on, if it wrote any.
    """

    name: str
    tokens: tuple[str, ...]
    positions: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]
    answer: int | None = None

    @classmethod
    def of_numbers(cls, name: str, numbers: Any) -> TokenAxis:
        """Rows or columns that are called by numbers or names of their own: layers, heads."""
        names = tuple(map(str, numbers))
        return cls(name, names, np.arange(len(names)), np.ones(len(names), dtype=np.bool_))

    @classmethod
    def unnamed(cls, n: int) -> TokenAxis:
        """Rows or columns without labels."""
        return cls("", (), np.arange(n), np.ones(n, dtype=np.bool_))

    @property
    def length(self) -> int:
        return len(self.tokens)

    def same_as(self, other: TokenAxis | PositionAxis) -> bool:
        return isinstance(other, TokenAxis) and self.tokens == other.tokens

    @cached_property
    def labels(self) -> list[str]:
        return [label(token, 24) for token in self.tokens]

    @property
    def real(self) -> slice:
        """From the first real token to the last; one padded position where there is none."""
        at = np.flatnonzero(self.valid)
        return slice(int(at[0]), int(at[-1]) + 1) if len(at) else slice(0, 1)

    def cut(self, kept: slice) -> TokenAxis:
        return replace(
            self,
            tokens=self.tokens[kept],
            positions=self.positions[kept],
            valid=self.valid[kept],
        )

    def called(self, i: int) -> str:
        """A row or column in a sentence."""
        return f"{i} “{self.labels[i]}”"


@dataclass(frozen=True, eq=False)
class PositionAxis:
    """Pixels that each stand for `cells` tokens of a long text, called by their positions.

    `start` and `end` are the index of the first real token and the one after the last.
    """

    name: str
    n_pixels: int
    cells: int
    start: int
    end: int
    answer: int | None = None

    @property
    def length(self) -> int:
        """Real tokens."""
        return self.end - self.start

    def same_as(self, other: TokenAxis | PositionAxis) -> bool:
        return isinstance(other, PositionAxis) and self.length == other.length

    @property
    def labels(self) -> list[str]:
        return []

    @cached_property
    def positions(self) -> npt.NDArray[np.int64]:
        """The position of the first token of each pixel."""
        return np.arange(self.n_pixels) * self.cells - self.start

    @cached_property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Which pixels hold any real token."""
        return (self.positions > -self.cells) & (self.positions < self.length)

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        pairs = zip(self.positions, self.valid, strict=True)
        return tuple(str(position) if valid else "" for position, valid in pairs)

    def called(self, i: int) -> str:
        return f"{self.positions[i]}"
