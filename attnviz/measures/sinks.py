"""Attention sinks: keys that everybody looks at."""

from __future__ import annotations

import numpy as np

from attnviz.measures.block import Block, Floats, Ints
from attnviz.measures.sums import Accumulator, ratio

PLACES = 16
"""The keys k = 0 … 15 are followed."""

EPSILON = 0.3
"""Above this α₀ a head has a sink (Gu et al. 2024, section 3.2)."""


class Sinks(Accumulator):
    """α_k = Σ_{i≥k} A[i, k] / (T - k), Gu et al. 2024, section 3.2, for the first `PLACES` keys k.

    They count tokens from 1, and divide by T - k + 1. Over several texts both sums run over all of
    them: a long text has more rows, and counts more. `sink` is α₀; `strongest` the largest α_k
    among keys that half of all rows may have, and `strongest_at` its k. A head has a sink above
    `EPSILON`. α₀ is at least 1/T in a causal model, and 0.41 for six tokens that are looked at
    evenly: figures are comparable for one T, and they take T = 64.
    """

    def update(self, block: Block) -> None:
        place, later, n = block.once("sinks", lambda: _later(block))
        weights = _columns(block, place)  # B H R K
        received = np.einsum("bhrk,brk->hk", weights, later)  # rows that do not count are zeros
        self._add("received", block, received)
        self._add("rows", block, np.broadcast_to(n, received.shape))

    def alpha(self) -> Floats:
        """`[L H PLACES]`: α_k; NaN where no text is so long."""
        nothing = np.zeros((self.n_layers, self.n_heads, PLACES))
        return ratio(self.sums.get("received", nothing), self.sums.get("rows", nothing))

    def result(self) -> dict[str, Floats]:
        alpha = self.alpha()
        rows = self.sums.get("rows", np.zeros(alpha.shape))
        often = (rows > 0) & (rows * 2 >= rows.max(-1, keepdims=True))
        at = np.where(often, np.nan_to_num(alpha, nan=-1.0), -1.0).argmax(-1)
        strongest = np.take_along_axis(alpha, at[..., None], -1)[..., 0]
        where = np.where(np.isnan(strongest), np.nan, at.astype(np.float64))
        return {"sink": alpha[..., 0], "strongest": strongest, "strongest_at": where}


def _later(block: Block) -> tuple[Ints, Floats, Floats]:
    """The places of the keys `[B K]`, which rows are not before them `[B R K]`, how many `[1|H K]`.

    The rows are 0 or 1, as numbers.
    """
    k = np.arange(PLACES)
    place = block.keys.starts[:, None] + k
    there = (place >= 0) & (place < block.weights.shape[3])
    place = np.where(there, place, 0)
    there &= np.take_along_axis(block.keys.real, place, 1)
    later = ((block.queries.positions[:, :, None] >= k) & there[:, None]).astype(np.float64)
    return place, later, np.einsum("bhr,brk->hk", block.counts.astype(np.float64), later)


def _columns(block: Block, place: Ints) -> Floats:
    """`[B H R K]`: the weights on keys at `place` `[B K]`; without a copy where texts agree."""
    first = place[0]
    if (place == first).all() and first[-1] - first[0] == PLACES - 1:
        return block.exact[..., first[0] : first[-1] + 1]
    return np.asarray(np.take_along_axis(block.exact, place[:, None, None], 3))
