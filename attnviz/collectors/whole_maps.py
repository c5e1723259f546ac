"""All weights of every layer, as one result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError
from attnviz.layer_attention import LayerAttention, Mask, as_array
from attnviz.pipeline import Pass
from attnviz.result import Attention, from_batches

Bools = npt.NDArray[np.bool_]


class WholeMaps:
    """Keeps the full map of each layer that it visits, and the tensors named in `keep`."""

    by_rows, is_traced = False, True

    def __init__(self, keep: Collection[str] = ()) -> None:
        self.keep = tuple(keep)
        self._layers: dict[int, tuple[npt.NDArray[Any], Mask | None]] = {}
        self._kept: dict[int, Callable[[], Mapping[str, npt.NDArray[Any]]]] = {}

    def bytes_of_maps(self, n_maps: int, n_queries: int) -> int:  # noqa: ARG002 - the source knows
        return 0

    def visit(self, attention: LayerAttention) -> None:
        self._layers[attention.layer] = as_array(attention.weights()), attention.mask()
        self._kept[attention.layer] = attention.kept

    def result(self, done: Pass) -> Attention:
        """The maps of all layers, in the order of their numbers."""
        numbers = sorted(self._layers)
        self._require_alike(numbers)
        maps = [self._layers[number][0] for number in numbers]
        allowed = self._allowed(numbers, maps[0].shape)
        attention = np.stack(maps)
        for i, number in enumerate(numbers):
            if self._layers[number][1] is not None:
                attention[i][~np.broadcast_to(allowed[i], attention.shape[1:])] = 0
        kept = [self._kept[number]() for number in numbers]
        return from_batches(
            attention,
            allowed,
            done.queries,
            done.columns_of_maps,
            kept={name: np.stack([each[name] for each in kept]) for name in kept[0]},
            **done.about,
        )

    def _allowed(self, numbers: list[int], shape: tuple[int, ...]) -> Bools:
        """`[L B 1|H Tq Tk]`: one mask for all layers where they share it."""
        batch, heads, queries, keys = shape
        tensors = [self._layers[number][1] for number in numbers]
        if all(tensor is tensors[0] for tensor in tensors):
            tensors = tensors[:1]
        masks = []
        for tensor in tensors:
            mask = np.ones((1, 1, 1, 1), bool) if tensor is None else as_array(tensor)
            masks.append(np.broadcast_to(mask, (batch, mask.shape[1], queries, keys)))
        if all(np.array_equal(mask, masks[0]) for mask in masks[1:]):
            return np.broadcast_to(masks[0], (len(numbers), *masks[0].shape))
        heads = max(mask.shape[1] for mask in masks)
        return np.stack([np.broadcast_to(m, (batch, heads, queries, keys)) for m in masks])

    def _require_alike(self, numbers: list[int]) -> None:
        """Raise `InputError` where maps of different sizes cannot stand in one result."""
        shapes: dict[tuple[int, ...], list[int]] = {}
        for number in numbers:
            shapes.setdefault(self._layers[number][0].shape, []).append(number)
        if len(shapes) > 1:
            groups = "; ".join(
                f"{','.join(map(str, group))} have [B H Tq Tk] = {list(shape)}"
                for shape, group in shapes.items()
            )
            first = ",".join(map(str, next(iter(shapes.values()))))
            raise InputError(f"the layers' maps differ in size: {groups}; --layers {first}, say")
