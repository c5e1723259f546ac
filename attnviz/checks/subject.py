"""What is checked: weights by layers, where their tokens stand, and the masks they should obey."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.tokens import Batch

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
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


@dataclass(frozen=True)
class Told:
    """One mask that the weights should obey, and what people make of it by mistake.

    `allows(layer, sequence, rows)` is bool `[1|H rows Tk]`, True where a query may look.
    `mistakes` are other masks of that kind by what they are, in words that follow "as if".
    """

    name: str
    kind: str
    allows: Callable[[int, int, Rows], Mask]
    mistakes: Mapping[str, Callable[[int, int, Rows], Mask]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Subject:
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
    told: tuple[Told, ...] = ()
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
    def query_valid(self) -> Mask:
        """`[B Tq]`: True on real query tokens, False on padding."""
        return self.queries.valid

    def allowed(self, layer: int, sequence: int, rows: Rows) -> Mask | None:
        """All masks together, bool `[1|H rows Tk]`; None where none is told."""
        masks = [told.allows(layer, sequence, rows) for told in self.told]
        return all_of(masks)

    def token(self, sequence: int, place: int | None, of_keys: bool) -> str | None:
        """The token at a place, where tokens are known."""
        if not self.named or place is None:
            return None
        batch = self.keys if of_keys else self.queries
        return batch.vocabulary[int(batch.ids[sequence, place])]


def all_of(masks: Sequence[Mask]) -> Mask | None:
    if not masks:
        return None
    together = masks[0]
    for mask in masks[1:]:
        together = together & mask
    return together
