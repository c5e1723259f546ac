"""What is checked: weights by layers, where their tokens stand, and the masks they should obey."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.masks import OF_ANY_MASK, MaskMistake
from attnviz.tokens import Batch

Array = npt.NDArray[Any]
Cells = npt.NDArray[np.bool_]
Rows = slice


@dataclass(frozen=True)
class Bfloat16:
    """bfloat16 numbers as NumPy can have them, two bytes each, read as float32 where looked at."""

    raw: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.raw.shape

    def __getitem__(self, index: Any) -> Array:
        part = np.ascontiguousarray(self.raw[index]).view(np.uint16)
        return (part.astype(np.uint32) << 16).view(np.float32)


Allows = Callable[[int, int, Rows], Cells]
"""(layer, sequence, rows) → bool `[1|H rows Tk]`, True where a query may look."""


@dataclass(frozen=True)
class ExpectedMask:
    """One mask that the weights should obey, and what people make of it by mistake.

    `kind` is the name of its row in `masks.MASKS`, or "run" for the mask that a saved run has.
    `mistakes` are other masks of that kind by what they are, in words that follow "as if";
    `of_any` those that any mask may suffer.
    """

    name: str
    kind: str
    allows: Allows
    mistakes: Mapping[str, Allows] = field(default_factory=dict)
    of_any: Mapping[str, MaskMistake] = field(default_factory=lambda: OF_ANY_MASK)

    def seems(self, name: str, pad_side: str = "right") -> str:
        """What one of `of_any` looks like, in words."""
        other = "left" if pad_side == "right" else "right"
        return self.of_any[name].seems.format(mask=self.name, side=pad_side, other=other)


@dataclass(frozen=True, eq=False)
class CheckedWeights:
    """Weights `[B H Tq Tk]` for each layer, and the padded batches of their queries and keys.

    `named` says whether the tokens are somebody's, or made up; `hides_padding` whether nobody may
    look at padding, as usual. `numbers` are those that the layers have in their model, () for 0, 1,
    2, …; `cut` says in words why rows may sum to less than 1: tokens were hidden, or it is a part.
    """

    layers: Sequence[Array | Bfloat16]
    queries: Batch
    keys: Batch
    named: bool = False
    hides_padding: bool = True
    expected: tuple[ExpectedMask, ...] = ()
    numbers: tuple[int, ...] = ()
    cut: str = ""

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """L, B, H, Tq, Tk."""
        batch, heads, queries, keys = self.layers[0].shape
        return len(self.layers), batch, heads, queries, keys

    @property
    def sizes(self) -> dict[str, int]:
        """The axes' lengths by name."""
        return dict(zip(("L", "B", "H", "Tq", "Tk"), self.shape, strict=True))

    @property
    def dtype(self) -> str:
        """The type of number that the weights are saved as."""
        layer = self.layers[0]
        return "bfloat16" if isinstance(layer, Bfloat16) else layer.dtype.name

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The number of each layer in its model."""
        return self.numbers or tuple(range(len(self.layers)))

    def layer(self, layer: int) -> Array:
        """All weights of a layer, `[B H Tq Tk]`."""
        return self.layers[layer][:]

    @cached_property
    def query_valid(self) -> Cells:
        """`[B Tq]`: True on real query tokens, False on padding."""
        return self.queries.valid

    def allowed(self, layer: int, sequence: int, rows: Rows) -> Cells | None:
        """All masks together, bool `[1|H rows Tk]`; None where none is expected."""
        return all_of([mask.allows(layer, sequence, rows) for mask in self.expected])

    def token(self, sequence: int, place: int | None, of_keys: bool) -> str | None:
        """The token at a place, where tokens are known."""
        if not self.named or place is None:
            return None
        batch = self.keys if of_keys else self.queries
        return batch.vocabulary[int(batch.ids[sequence, place])]


def all_of(masks: Sequence[Cells]) -> Cells | None:
    if not masks:
        return None
    together = masks[0]
    for mask in masks[1:]:
        together = together & mask
    return together
