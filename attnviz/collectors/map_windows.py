"""A part of each map, at full resolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError
from attnviz.full_resolution import windows_of
from attnviz.layer_attention import LayerAttention
from attnviz.machine import require_memory
from attnviz.pipeline import Pass
from attnviz.result import Attention, about_batches, as_window
from attnviz.scores import Scores


class MapWindows:
    """Computes one window of each layer as it comes, for the heads that are asked for."""

    by_rows, is_traced, keep = True, True, ()

    def __init__(
        self,
        ranges: Callable[[int, int], tuple[range, range]],
        sequence: int,
        heads: Sequence[tuple[int, int]],
    ) -> None:
        """`ranges` gives, of so many queries and keys, those to draw; `heads` are (layer number,
        head)."""
        self._ranges, self._sequence, self._heads = ranges, sequence, heads
        self._rows, self._columns = range(0), range(0)
        self._windows: dict[int, tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]] = {}

    def bytes_of_maps(self, n_maps: int, n_queries: int) -> int:  # noqa: ARG002 - `_place` asks
        return 0

    def visit(self, attention: LayerAttention) -> None:
        heads = [head for number, head in self._heads if number == attention.layer]
        if not heads:
            return
        scores = attention.scores
        if scores is None:
            raise InputError("this layer hands over full maps; draw them whole")
        if not self._windows:
            self._place(scores)
        weights, allowed = windows_of(scores, self._rows, self._columns, self._sequence, heads)
        whole = np.zeros((scores.n_heads, *weights.shape[1:]), np.float32)
        whole[heads] = weights
        masks = np.zeros((scores.n_heads, *weights.shape[1:]), np.bool_)
        masks[heads] = allowed
        self._windows[attention.layer] = whole, masks

    def _place(self, scores: Scores) -> None:
        """Find where the window stands, and whether there is memory for it."""
        starts = [
            0 if each is None else each[self._sequence]
            for each in (scores.query_starts, scores.key_starts)
        ]
        ranges = self._ranges(scores.queries - starts[0], scores.keys - starts[1])
        self._rows, self._columns = (
            range(part.start + start, part.stop + start)
            for part, start in zip(ranges, starts, strict=True)
        )
        n_layers = len({number for number, _ in self._heads})
        cells = len(self._rows) * len(self._columns) * scores.n_heads * n_layers
        require_memory(
            13 * cells,
            f"a window of {len(self._rows):,} × {len(self._columns):,} weights of each head",
            "give fewer rows or columns, or pool the whole: --pool 1024",
        )

    def result(self, done: Pass) -> Attention:
        """The window of all layers, in the order of their numbers."""
        windows = [self._windows[number] for number in sorted(self._windows)]
        weights = np.stack([weights for weights, _ in windows])[:, None]
        allowed = np.stack([allowed for _, allowed in windows])[:, None]
        about = about_batches(done.queries, done.columns_of_maps, **done.about)
        return as_window(about, weights, allowed, self._rows, self._columns, self._sequence)
