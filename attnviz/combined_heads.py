"""Several heads as one map: the average of their weights, or the largest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnviz.errors import InputError
from attnviz.result import Attention
from attnviz.wording import plural

COMBINED = "combined"
"""The key in a result's `config` that says what its maps combine."""


@dataclass(frozen=True)
class Combination:
    """`how` is average or maximum; `over` is heads (of a layer), layers (of a head), or all."""

    how: str
    over: str

    def groups(self, pairs: Sequence[tuple[int, int]]) -> dict[int, list[tuple[int, int]]]:
        """The (layer, head) pairs of each map: by layer, by head, or all under 0."""
        found: dict[int, list[tuple[int, int]]] = {}
        for layer, head in pairs:
            key = {"heads": layer, "layers": head, "all": 0}[self.over]
            found.setdefault(key, []).append((layer, head))
        return found

    def apply(
        self, result: Attention, pairs: Sequence[tuple[int, int]]
    ) -> tuple[Attention, list[tuple[int, int]]]:
        """The combined maps of `pairs`, (index of the layer, head), and where they are.

        A query may attend to a key where any of the heads may. Raises `InputError` for maps that
        are pooled.
        """
        if result.is_pooled:
            raise InputError(
                f"--{self.how} needs whole maps, and these are pooled; --rows and --cols draw a "
                "part of them"
            )
        groups = self.groups(pairs)
        weights, allowed = [], []
        fold = np.mean if self.how == "average" else np.max
        for group in groups.values():
            maps = np.stack([result.attention[layer, :, head] for layer, head in group])
            weights.append(fold(maps, axis=0))
            masks = [result.allowed[la, :, min(h, result.allowed.shape[2] - 1)] for la, h in group]
            allowed.append(np.any(masks, axis=0))
        axis = 0 if self.over == "heads" else 1  # layers of one head, or one layer of heads
        attention, may = (
            np.expand_dims(np.stack(arrays), 2 if axis == 0 else 0) for arrays in (weights, allowed)
        )
        if axis == 1:
            attention, may = np.moveaxis(attention, 1, 2), np.moveaxis(may, 1, 2)
        label = self._label(list(groups.values()))
        numbers = tuple(result.layer_numbers[layer] for layer in groups) if axis == 0 else ()
        combined = {"how": self.how, "over": self.over, "label": label, "heads": list(groups)}
        made = replace(
            result,
            attention=attention.astype(result.attention.dtype, copy=False),
            allowed=may,
            layers=numbers if result.names_layers else (),
            kept={},
            config={**result.config, COMBINED: combined},
            notes=(*result.notes, label),
        )
        places = [(i, 0) if axis == 0 else (0, i) for i in range(len(groups))]
        return made, places

    def _label(self, groups: list[list[tuple[int, int]]]) -> str:
        """`average of 8 heads`; where groups differ in size, without the number."""
        noun = "layer" if self.over == "layers" else "head"
        sizes = {len(group) for group in groups}
        return f"{self.how} of {plural(sizes.pop(), noun) if len(sizes) == 1 else noun + 's'}"
