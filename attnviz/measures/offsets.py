"""Positional heads: those whose largest weight stands at one fixed offset."""

from __future__ import annotations

import numpy as np

from attnviz.measures.block import Block, Floats, Ints
from attnviz.measures.sums import Accumulator, ratio, reach

POSITIONAL = 0.9
"""Voita et al. 2019, section 5.1: a head is positional when so many of its largest weights are at
one offset."""


class Offsets(Accumulator):
    """For each offset r: the share of rows whose largest weight is at key i + r.

    A row counts for r where there is a key at i + r, as in Voita et al. 2019 (section 5.1): row 0
    has no previous token and does not speak against a previous-token head. Of equal weights the
    first is the largest. `offset` is the best r, `at_offset` its share, among offsets that half of
    all rows have: the last row's own best offset would have a share of 1. A head with a weight that
    is no number has none of them, since nobody knows which weight is the largest.

    `shares` has all of them, up to `FARTHEST`.
    """

    def update(self, block: Block) -> None:
        half = reach(block)
        width = 2 * half + 1
        own_place = block.queries.positions + block.keys.starts[:, None]  # B R
        ahead = block.largest_at - own_place[:, None]  # B H R
        column = np.clip(ahead, -half, half) + half + width * np.arange(block.n_heads)[:, None]
        chosen = column if block.all_count else column[np.broadcast_to(block.counts, column.shape)]
        found = np.bincount(chosen.ravel(), minlength=block.n_heads * width).reshape(-1, width)
        known = np.isfinite(block.largest).all((0, 2))[:, None]  # the largest is NaN if any is
        self._add_centred("found", block, np.where(known, found, np.nan))
        having = block.once(f"having {half}", lambda: _having(block, half))
        self._add_centred("having", block, having)

    def result(self) -> dict[str, Floats]:
        shares, offsets = self.shares()
        if not len(offsets):
            nothing = np.full((self.n_layers, self.n_heads), np.nan)
            return {"offset": nothing, "at_offset": nothing}
        having = self.sums["having"][..., 1:-1]
        often = (having > 0) & (having * 2 >= having.max(-1, keepdims=True))
        best = np.where(often, np.nan_to_num(shares, nan=-1.0), -1.0).argmax(-1)
        share = np.take_along_axis(shares, best[..., None], -1)[..., 0]
        offset = np.where(np.isnan(share), np.nan, offsets[best].astype(np.float64))
        return {"offset": offset, "at_offset": share}

    def shares(self) -> tuple[Floats, Ints]:
        """`[L H n]` shares, and the n offsets that they are of."""
        if "found" not in self.sums:
            return np.zeros((self.n_layers, self.n_heads, 0)), np.zeros(0, dtype=np.int64)
        found, having = self.sums["found"], self.sums["having"]
        half = found.shape[2] // 2
        return ratio(found, having)[..., 1:-1], np.arange(-half + 1, half)


def _having(block: Block, half: int) -> Floats:
    """`[1|H 2·half + 1]`: how many rows that count have a key at each offset, -half … half.

    A row at i of a text of n keys has the offsets -i … n - 1 - i: +1 where they begin, -1 after
    their end, and the running sum counts.
    """
    width = 2 * half + 1
    at, n_keys = block.queries.positions, block.texts.keys.real[block.some].sum(1)[:, None]
    begin = np.clip(-at, -half, half) + half
    end = np.clip(n_keys - at, -half, half + 1) + half
    steps = np.zeros((block.counts.shape[1], width + 1))
    for head, counts in enumerate(np.moveaxis(block.counts, 1, 0)):
        np.add.at(steps[head], begin[counts], 1)
        np.add.at(steps[head], end[counts], -1)
    return np.asarray(steps.cumsum(1)[:, :width])
