"""Where heads look: the share of their weight on keys of a kind."""

from __future__ import annotations

from typing import Self

import numpy as np

from attnviz.stats.block import Block, Bools, Floats
from attnviz.stats.sums import Accumulator, ratio
from attnviz.stats.words import PUNCTUATION, SEPARATOR, SPECIAL

WINDOW = 5
"""Positions on each side that count as near."""

FIRST_TOKENS = 4
"""The attention sinks that Xiao et al. 2023 keep (section 3.2)."""


class Where(Accumulator):
    """Means over query rows of the weight that goes to keys of a kind.

    For a row a of A, whose query has position i, over its keys j:

    - `self` a_i, `previous` a_{i-1}, `next` a_{i+1}: Clark et al. 2019, section 3.1. Over all rows,
      as theirs: the first row has no previous key, and adds 0.
    - `first` a_0; `first_tokens` Σ_{j<n} a_j, n = 4 as a rule (Xiao et al. 2023, section 3).
    - `separator` Σ over separators, `punctuation` Σ over periods and commas, `special` Σ over all
      special tokens: Clark et al. 2019, section 3.2. `separator_from_separator` and
      `separator_from_other` are the same over the rows of separators, and over all others (fig. 2).
    - `same_token` Σ over other places that hold the query's own token, before or after it.
    - `distance` Σ_j a_j |i - j|, in positions; `near` Σ over |i - j| ≤ k, k = 5 as a rule.
    - `to_identity` 1 - a_i: the total variation distance of the row from looking at itself alone.
    - `fixed` Σ over the first token, specials and separators; `band` Σ over |i - j| ≤ 1: what the
      vertical and diagonal kinds of Kovaleva et al. 2019 (section 4.1) are told by.
    - `segment` the share of all other weight that stays in the query's own segment, from separator
      to separator, in texts of two segments and more; `segment_evenly` what it would be if rows
      were spread evenly over what they may see. Their block kind.
    """

    def __init__(
        self, n_layers: int, n_heads: int, window: int = WINDOW, first: int = FIRST_TOKENS
    ) -> None:
        super().__init__(n_layers, n_heads)
        self.window, self.first = window, first

    def _empty(self) -> Self:
        return type(self)(self.n_layers, self.n_heads, self.window, self.first)

    def update(self, block: Block) -> None:
        self._columns(block)
        self._diagonals(block)
        self._pairs(block)
        self._add("rows", block, block.rows)

    def result(self) -> dict[str, Floats]:
        rows, closing = self._sum("rows"), self._sum("separator_rows")
        from_separator = self._sum("separator_from_separator")
        return {
            **{name: ratio(self._sum(name), rows) for name in PLAIN},
            "to_identity": 1 - ratio(self._sum("self"), rows),
            "band": ratio(sum((self._sum(name) for name in DIAGONALS), 0.0 * rows), rows),
            "separator_from_separator": ratio(from_separator, closing),
            "separator_from_other": ratio(self._sum("separator") - from_separator, rows - closing),
            "segment": ratio(self._sum("segment"), self._sum("loose")),
            "segment_evenly": ratio(self._sum("segment_evenly"), self._sum("loose_evenly")),
        }

    def _columns(self, block: Block) -> None:
        """Kinds of keys, whatever the query: each key's sum over the rows is enough."""
        keys = block.keys
        separator, at = keys.is_kind(SEPARATOR), keys.positions
        fixed = _fixed(block)
        kinds = {
            "first": (at == 0) & keys.real,
            "first_tokens": (at < self.first) & keys.real,
            "separator": separator,
            "punctuation": keys.is_kind(PUNCTUATION),
            "special": keys.is_kind(SPECIAL),
            "fixed": fixed,
            "loose": ~fixed & keys.real & _in_segments(block),
        }
        received = block.exact.sum(2)  # B H Tk
        for name, kind in kinds.items():
            self._add(name, block, np.einsum("bhk,bk->h", received, kind))
        closing = block.counts & block.queries.is_kind(SEPARATOR)[:, None]
        b, r = np.nonzero(closing.any(1))
        of_separators = block.exact[b, :, r] * separator[b][:, None]  # few rows, H, Tk
        self._add("separator_from_separator", block, of_separators.sum((0, 2)))
        n = np.broadcast_to(closing.sum((0, 2), dtype=np.float64), (block.n_heads,))
        self._add("separator_rows", block, n)

    def _diagonals(self, block: Block) -> None:
        """The keys at the query's own position, and one before and after it."""
        steps = np.array(list(DIAGONALS.values()))
        at = block.queries.positions[:, :, None] + steps  # B R 3: positions of keys
        place = at + block.keys.starts[:, None, None]
        inside = (place >= 0) & (place < block.weights.shape[3])
        place = np.where(inside, place, 0)
        inside &= np.take_along_axis(block.keys.real[:, None], place, 2)
        weights = np.take_along_axis(block.exact, place[:, None], 3)  # B H R 3
        sums = np.einsum("bhrd,brd->dh", weights, inside)
        for name, values in zip(DIAGONALS, sums, strict=True):
            self._add(name, block, values)

    def _pairs(self, block: Block) -> None:
        """What depends on both, as one product with masks over all cells."""
        masks = block.once(f"pairs {self.window}", lambda: _pair_masks(block, self.window))
        batch, heads = block.weights.shape[:2]
        sums = (block.exact.reshape(batch, heads, -1) @ masks.mT).sum(0)  # H F
        for i, name in enumerate(PAIRS[: sums.shape[1]]):
            self._add(name, block, sums[:, i])
        if sums.shape[1] == len(PAIRS):
            sums_evenly = block.once("evenly", lambda: _evenly(block, masks[:, -1]))
            for name, values in zip(("segment_evenly", "loose_evenly"), sums_evenly, strict=True):
                self._add(name, block, np.broadcast_to(values, (block.n_heads,)))


DIAGONALS = {"previous": -1, "self": 0, "next": 1}
PAIRS = ("same_token", "distance", "near", "segment")
PLAIN = (
    *("self", "previous", "next", "first", "first_tokens", "separator", "punctuation", "special"),
    *("same_token", "distance", "near", "fixed"),
)
"""Measures that are means over all rows."""


def _fixed(block: Block) -> Bools:
    """`[B Tk]`: the first token, special tokens and separators."""
    keys = block.keys
    fixed: Bools = ((keys.positions == 0) | (keys.kinds & (SPECIAL | SEPARATOR) != 0)) & keys.real
    return fixed


def _in_segments(block: Block) -> Bools:
    """`[B 1]`: texts whose tokens, separators apart, stand in two segments and more."""
    side = block.texts.keys.cut(block.some, slice(None))
    words = side.real & ~side.is_kind(SEPARATOR)
    last = np.where(words, side.segments, -1).max(1, keepdims=True)
    first = np.where(words, side.segments, side.real.shape[1]).min(1, keepdims=True)
    return np.asarray(last > first)


def _evenly(block: Block, within: Floats) -> tuple[Floats, Floats]:
    """What rows spread evenly would give to their own segment, and to all that is not fixed.

    `[1|H]` each. `within` `[B R·Tk]` are the cells of the own segment.
    """
    share = block.counts / np.maximum(block.seen, 1)  # B 1|H R
    within = within.reshape(len(block.weights), 1, *block.weights.shape[2:])
    loose = (~_fixed(block) & block.keys.real & _in_segments(block))[:, None, None]
    sums = []
    for mask in (within, loose):
        seen = mask if block.allowed is None else mask * block.allowed
        sums.append(np.asarray((seen.sum(-1) * share).sum((0, 2))))
    return sums[0], sums[1]


def _pair_masks(block: Block, window: int) -> Floats:
    """`[B F R·Tk]`: what a cell adds to each of `PAIRS`; the last only where there are segments."""
    queries, keys = block.queries, block.keys
    ahead = keys.positions[:, None] - queries.positions[:, :, None]  # B R Tk
    apart = np.abs(ahead)
    masks = [
        (queries.ids[:, :, None] == keys.ids[:, None]) & (ahead != 0),
        apart,
        apart <= window,
    ]
    several = _in_segments(block)
    if several.any():
        own = queries.segments[:, :, None] == keys.segments[:, None]
        masks.append(own & (~_fixed(block) & several)[:, None])
    stacked = np.empty((len(ahead), len(masks), *ahead.shape[1:]))
    for i, mask in enumerate(masks):
        stacked[:, i] = mask
    if not keys.real.all():
        stacked *= keys.real[:, None, None]
    return stacked.reshape(len(ahead), len(masks), -1)
