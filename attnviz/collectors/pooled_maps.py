"""Pooled maps of long texts: every weight is folded into a pixel, and no map is ever whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.layer_attention import LayerAttention
from attnviz.pipeline import Pass
from attnviz.result import Attention, Pixels, RowStatistics, from_batches
from attnviz.scores import Scores
from attnviz.streaming import Pooled, pool
from attnviz.streaming.pool import NEAR
from attnviz.tokens import Batch

CellsDone = Callable[[int, int], None]
"""(weights done, weights in all)."""

LENT = 2**30
"""Bytes of q and k that are kept unasked while a page is written."""

TOP = 8
"""Keys of each row that are listed one by one."""


@dataclass(frozen=True)
class Pooling:
    """What is made of each map: at most `pixels` on each side, the `top` largest keys of each row,
    and what each key is given by all rows. `keep` says whether q and k stay, for a later zoom; with
    `lend` they stay for a page that is written next, where they are not large."""

    pixels: int = 1024
    top: int = TOP
    near: int = NEAR
    column_sums: bool = False
    keep: bool = False
    lend: bool = False

    def bytes_of_maps(self, maps: int, queries: int) -> int:
        """Memory that the pooled maps of `maps` heads take, and the numbers of their rows."""
        pixels = self.pixels**2 * (4 + 4) * maps + self.pixels**2 * 8
        return pixels + maps * queries * (8 * 4 + 12 * self.top)


class PooledMaps:
    """Pools each layer as it comes, and lets it go unless it is to be kept."""

    by_rows, is_traced, keep = True, True, ()

    def __init__(self, pooling: Pooling, n_layers: int, progress: CellsDone | None = None) -> None:
        """`n_layers` will come, all alike."""
        self.pooling, self._n = pooling, n_layers
        self._progress = progress or (lambda done, total: None)
        self._pooled: dict[int, Pooled] = {}
        self._kept: dict[int, Scores] = {}

    @property
    def keeps(self) -> bool:
        """Whether q and k stay."""
        return self.pooling.keep

    def bytes_of_maps(self, n_maps: int, n_queries: int) -> int:
        return 2 * self.pooling.bytes_of_maps(n_maps, n_queries)

    def visit(self, attention: LayerAttention) -> None:
        scores = attention.scores
        if scores is None:
            raise InputError("this layer hands over full maps, which are drawn as they are")
        if self.pooling.keep:
            _require_recomputable(scores)
        size = self._n * (scores.q.nbytes + scores.k.nbytes)
        lends = self.pooling.lend and _is_recomputable(scores) and size <= LENT
        before = len(self._pooled)
        self._pooled[attention.layer] = pool(
            scores,
            self.pooling.pixels,
            top=self.pooling.top,
            near=self.pooling.near,
            column_sums=self.pooling.column_sums,
            progress=lambda done, total: self._progress(before * total + done, self._n * total),
        )
        if self.pooling.keep or lends:
            self._kept[attention.layer] = scores

    def result(self, done: Pass) -> Attention:
        """The pooled maps of all layers, in the order of their numbers."""
        numbers = sorted(self._pooled)
        kept = [self._kept[number] for number in numbers if number in self._kept]
        pooled = [self._pooled[number] for number in numbers]
        return gather(pooled, kept, done.queries, done.columns_of_maps, **done.about)


def gather(
    pooled: Sequence[Pooled],
    kept: Sequence[Scores],
    queries: Batch,
    keys: Batch,
    **facts: Any,
) -> Attention:
    """The layers' pooled maps as one result; `kept` is what they were made of, if it stays."""
    first = pooled[0]

    def stacked(arrays: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.stack(list(arrays))

    counts = stacked(one.allowed for one in pooled)
    rows = RowStatistics(
        first.near,
        {name: stacked(one.statistics[name] for one in pooled) for name in first.statistics},
        stacked(one.top_keys for one in pooled),
        stacked(one.top_weights for one in pooled),
    )
    return from_batches(
        stacked(one.mean for one in pooled),
        counts > 0,
        queries,
        keys,
        kept=_kept(kept) if kept else {},
        pixels=Pixels(first.cells, stacked(one.largest for one in pooled), counts),
        rows=rows,
        **facts,
    )


def _kept(attentions: Sequence[Scores]) -> Mapping[str, npt.NDArray[Any]]:
    """What weights can be computed from again."""
    spans = [
        tuple(map(torch.stack, zip(*(one.spans(b) for b in range(one.batch_size)), strict=True)))
        for one in attentions
    ]
    arrays = {
        "q": [one.q for one in attentions],
        "k": [one.k for one in attentions],
        "first_key": [first for first, _ in spans],
        "end_key": [end for _, end in spans],
    }
    for name in ("slopes", "sinks"):
        found = [getattr(one, name) for one in attentions]
        if found[0] is not None:
            arrays[name] = found
    caps = [np.nan if one.softcap is None else one.softcap for one in attentions]
    return {
        **{name: np.stack([_array(x) for x in tensors]) for name, tensors in arrays.items()},
        "scale": np.array([one.multiplier for one in attentions]),
        "softcap": np.array(caps, np.float64),
    }


def _is_recomputable(scores: Scores) -> bool:
    """Whether a saved run can hold all that makes the weights."""
    return not scores.unbounded and scores.distances is None


def _require_recomputable(scores: Scores) -> None:
    """Raise `InputError` where q and k do not determine the weights."""
    more = "draw the part that matters now: --rows A:B --cols C:D"
    if scores.distances is not None:
        raise InputError(f"--keep q,k: a table of distances would have to be kept as well; {more}")
    if scores.unbounded:
        raise InputError(
            f"--keep q,k: the mask {scores.unbounded[0].name} would have to be kept as well, "
            f"whole; {more}"
        )


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16):  # what is computed with
        tensor = tensor.float()
    return tensor.numpy()
