"""What a source hands over of one layer: what makes its weights, or the weights themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from attnviz.scores import Scores

Mask = Any
"""bool `[1|B 1|H 1|Tq Tk]`, a tensor or an array; True where a query may attend to a key."""

Weights = Any
"""`[B H Tq Tk]`, a tensor or an array."""


def as_array(values: Any) -> npt.NDArray[Any]:
    """A tensor as an array; NumPy has no bfloat16, and float32 holds every bfloat16 exactly."""
    if isinstance(values, np.ndarray):
        return values
    values = values.detach().cpu()
    if str(values.dtype) == "torch.bfloat16":
        values = values.float()
    return np.ascontiguousarray(values.numpy())


class LayerAttention:
    """Attention of one layer, as its source hands it over.

    A caller asks for all weights, or for some rows at a time (`streaming.head_rows`), or folds
    them (`streaming.pool`); a caller that asks for rows never pays for the full map. `layer` is the
    layer's number in its model, `scores` what makes its weights, None where a source has the
    weights alone. `kept` has the tensors that a caller wants kept, by the names of their taps; some
    come only when the layer is done.
    """

    def __init__(
        self,
        layer: int,
        scores: Scores | None = None,
        compute: Callable[[], tuple[Tensor | None, Weights]] | None = None,
        mask: Callable[[], Mask | None] = lambda: None,
        kept: Callable[[], Mapping[str, npt.NDArray[Any]]] = dict,
    ) -> None:
        """`compute` gives (context `[B H Tq d_v]` or None, weights `[B H Tq Tk]`)."""
        self.layer, self.scores, self.kept = layer, scores, kept
        self._compute, self._mask = compute, mask
        self._whole: tuple[Tensor | None, Weights] | None = None

    @classmethod
    def of_weights(cls, layer: int, weights: Weights, mask: Mask | None = None) -> LayerAttention:
        """A layer whose weights are there already."""
        return cls(layer, compute=lambda: (None, weights), mask=lambda: mask)

    @property
    def context(self) -> Tensor | None:
        """weights · v, `[B H Tq d_v]`, where all weights were asked for and the source has it."""
        return None if self._whole is None else self._whole[0]

    def weights(self) -> Weights:
        """All weights, `[B H Tq Tk]`; they are computed once."""
        if self._whole is None:
            if self._compute is None:
                raise InputError("this layer hands over its queries and keys, and no whole map")
            self._whole = self._compute()
        return self._whole[1]

    def mask(self) -> Mask | None:
        """Which query may attend to which key; None: every query to every key."""
        return self._mask()
