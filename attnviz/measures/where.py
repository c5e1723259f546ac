"""Where heads look: the share of their weight on keys of a kind."""

from __future__ import annotations

from typing import Self

import numpy as np

from attnviz.measures.block import Block, Bools, Floats, Ints
from attnviz.measures.sums import Accumulator, ratio, reach
from attnviz.measures.token_kinds import PUNCTUATION, SEPARATOR, SPECIAL

WINDOW = 5
"""Positions on each side that count as near."""

FIRST_TOKENS = 4
"""The attention sinks that Xiao et al. 2023 keep (section 3.2)."""

MOST_CELLS = 2**14
"""Cells whose weights are picked out at a time: a text of one token has as many as its map."""


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
    - `fixed` Σ over the first token, specials and separators; `band` Σ over |i - j| ≤ 1;
      `fixed_band` Σ over keys that are both, which in a short text are many. What the vertical and
      diagonal kinds of Kovaleva et al. 2019 (section 4.1) are told by.
    - `segment` the share of the weight on ordinary keys, which are not `fixed`, that stays in the
      query's own segment, from separator to separator, in texts of two segments and more. Their
      block kind. `segment_evenly` is what it would be if the head looked as far as it does, and
      took no notice of segments: Σ_r w_r s_r / Σ_r w_r n_r, for the mean weight w_r of an ordinary
      key at offset r, the number n_r of such cells, and s_r of those in the own segment. A head
      that looks at its neighbours stays in its segment by that alone. w_r is that of every fourth
      row, since it costs as much as all else here.
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
            "segment_evenly": self._segment_evenly(),
        }

    def _segment_evenly(self) -> Floats:
        none = np.zeros((self.n_layers, self.n_heads, 1))
        weight, sampled, cells, own = (self.sums.get(name, none) for name in BY_OFFSET)
        mean = np.divide(weight, sampled, out=np.zeros_like(weight), where=sampled > 0)
        return ratio((mean * own).sum(-1), (mean * cells).sum(-1))

    def _columns(self, block: Block) -> None:
        """Kinds of keys, whatever the query: each key's sum over the rows is enough."""
        kinds = block.once(f"columns {self.first}", lambda: _column_masks(block, self.first))
        received = np.ones(block.exact.shape[2]) @ block.exact  # B H Tk
        sums = (received @ kinds).sum(0)  # H F
        for i, name in enumerate(COLUMNS):
            self._add(name, block, sums[:, i])
        from_separators = block.once("from separators", lambda: _from_separators(block))
        self._add("separator_from_separator", block, _sum_of(block, from_separators))
        self._add("separator_rows", block, block.once("closing", lambda: _closing_rows(block)))

    def _diagonals(self, block: Block) -> None:
        """The keys at the query's own position, and one before and after it."""
        cells = block.once("diagonals", lambda: _diagonal_cells(block))
        for name, own in zip(DIAGONALS, cells, strict=True):
            self._add(name, block, _sum_of(block, own))
        self._add("fixed_band", block, _sum_of(block, block.once("both", lambda: _both(block))))

    def _pairs(self, block: Block) -> None:
        """What depends on both: products with masks over all cells."""
        same = block.once("same token", lambda: _same_token_cells(block))
        self._add("same_token", block, _sum_of(block, same))
        batch, heads = block.weights.shape[:2]
        weights = block.exact.reshape(batch, heads, -1)
        apart, near = _distances(block, self.window)
        for name, mask in (("distance", apart), ("near", near)):  # both at once take longer
            self._add(name, block, (weights @ mask).sum((0, 2)))
        own = block.once("own segment", lambda: _own_segment(block))
        if own is not None:
            self._add("segment", block, (weights @ own).sum((0, 2)))
            half = reach(block)
            loose = block.once("loose", lambda: _loose(block).astype(np.float64))
            cells = block.once(f"cells {half}", lambda: _cells_by_offset(block, own, loose, half))
            values = (_by_offset(block, block.exact, loose, half, SAMPLED), *cells)
            for name, sums in zip(BY_OFFSET, values, strict=True):
                self._add_centred(name, block, sums)


DIAGONALS = {"previous": -1, "self": 0, "next": 1}
COLUMNS = ("first", "first_tokens", "separator", "punctuation", "special", "fixed", "loose")
PLAIN = (
    *("self", "previous", "next", "first", "first_tokens", "separator", "punctuation", "special"),
    *("same_token", "distance", "near", "fixed", "fixed_band"),
)
"""Measures that are means over all rows."""

BY_OFFSET = ("loose_at", "sampled_cells", "loose_cells", "own_cells")
"""Sums by offset: weight on ordinary keys in rows of the sample, how many cells of such keys these
rows have, and all rows; and how many of the last are of the own segment."""

SAMPLED = 4
"""Every so many rows, by their position, are looked at for the weight at each offset."""


Cells = tuple[Ints, Ints, Ints]
"""Texts, rows and keys: few cells among all."""


def _sum_of(block: Block, cells: Cells) -> Floats:
    """`[H]`: the weight in all of `cells`, a part after the other."""
    sums = np.zeros(block.n_heads)
    for at in range(0, len(cells[0]), MOST_CELLS):
        b, r, k = (place[at : at + MOST_CELLS] for place in cells)
        sums += block.exact[b, :, r, k].sum(0)
    return sums


def _column_masks(block: Block, first: int) -> Floats:
    """`[B Tk F]`: which keys are of the kinds `COLUMNS`."""
    keys = block.keys
    kinds = (
        (keys.positions == 0) & keys.real,
        (keys.positions < first) & keys.real,
        keys.is_kind(SEPARATOR),
        keys.is_kind(PUNCTUATION),
        keys.is_kind(SPECIAL),
        _fixed(block),
        _loose(block),
    )
    return np.stack(kinds, axis=-1).astype(np.float64)


def _from_separators(block: Block) -> Cells:
    """From separators to separators."""
    at, to = block.queries.is_kind(SEPARATOR), block.keys.is_kind(SEPARATOR)
    b, r, k = np.nonzero(at[:, :, None] & to[:, None])
    return b, r, k


def _closing_rows(block: Block) -> Floats:
    """`[1|H]`: how many rows that count are separators."""
    closing = block.counts & block.queries.is_kind(SEPARATOR)[:, None]
    return np.asarray(closing.sum((0, 2), dtype=np.float64))


def _diagonal_cells(block: Block) -> list[Cells]:
    """For each of `DIAGONALS`, the cells at that distance from the query's own position."""
    own = block.queries.positions + block.keys.starts[:, None]  # B R: places of keys
    found = []
    for step in DIAGONALS.values():
        place = own + step
        inside = (place >= 0) & (place < block.weights.shape[3]) & block.queries.real
        inside &= np.take_along_axis(block.keys.real, np.where(inside, place, 0), 1)
        b, r = np.nonzero(inside)
        found.append((b, r, place[b, r]))
    return found


def _both(block: Block) -> Cells:
    """The cells of `DIAGONALS` whose keys are fixed."""
    fixed = _fixed(block)
    some = [np.stack(cells) for cells in block.once("diagonals", lambda: _diagonal_cells(block))]
    b, r, k = np.concatenate(some, axis=1)
    chosen = fixed[b, k]
    return b[chosen], r[chosen], k[chosen]


def _same_token_cells(block: Block) -> Cells:
    """Where the query's own token stands again."""
    queries, keys = block.queries, block.keys
    elsewhere = queries.positions[:, :, None] != keys.positions[:, None]  # B R Tk
    elsewhere &= queries.ids[:, :, None] == keys.ids[:, None]
    elsewhere &= queries.real[:, :, None] & keys.real[:, None]
    b, r, k = np.nonzero(elsewhere)
    return b, r, k


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


def _loose(block: Block) -> Bools:
    """`[B Tk]`: ordinary keys, of texts in segments."""
    return np.asarray(~_fixed(block) & block.keys.real & _in_segments(block))


def _cells_by_offset(block: Block, own: Floats, loose: Floats, half: int) -> list[Floats]:
    """How many cells of ordinary keys rows that count may see at each offset: those of the sample,
    all rows, and in the own segment, as `own` `[B R·Tk 1]` has it. `[1|H 2·half + 1]` each."""
    may = block.counts[..., None] & (True if block.allowed is None else block.allowed)
    shape = (*may.shape[:3], block.weights.shape[3])
    seen: Floats = np.broadcast_to(may, shape).astype(np.float64)
    own = own.reshape(len(own), 1, *seen.shape[2:])
    return [
        _by_offset(block, seen, loose, half, SAMPLED),
        _by_offset(block, seen, loose, half),
        _by_offset(block, seen * own, loose, half),
    ]


def _by_offset(block: Block, values: Floats, keys: Floats, half: int, every: int = 1) -> Floats:
    """Sums of `values` `[B H R Tk]` over cells at each offset: `[H 2·half + 1]`.

    Of each row whose position is a multiple of `every`; `keys` `[B Tk]` is 1 where a key counts.
    The last row comes first, with zeros behind each; read as rows that are shorter by `every`, each
    stands so much further to the right than the one above, and cells at one offset in one column.
    """
    sums = np.zeros((values.shape[1], 2 * half + 1))
    for one, counts, at, to in zip(
        values, keys, block.queries.positions[:, 0], block.keys.positions[:, 0], strict=True
    ):
        first = -at % every
        chosen = one[:, first::every]
        heads, rows, width = chosen.shape
        if not rows:
            continue
        n = width + every * (rows - 1)
        skewed = np.zeros((heads, rows, n + every))
        np.multiply(chosen[:, ::-1], counts, out=skewed[..., :width])
        found = skewed.reshape(heads, -1)[:, : rows * n].reshape(heads, rows, n).sum(1)
        begin = to - (at + first + every * (rows - 1)) + half
        if 0 <= begin <= sums.shape[1] - n:
            sums[:, begin : begin + n] += found
        else:  # all that is farther goes to the ends
            np.add.at(sums.T, np.clip(np.arange(begin, begin + n), 0, 2 * half), found.T)
    return sums


def _distances(block: Block, window: int) -> tuple[Floats, Floats]:
    """`[B|1 R·Tk 1]`: |i - j| of each cell, and whether it is within `window`, as numbers.

    Texts that begin at the same place share them, which are read for every layer.
    """
    first = block.queries.positions[:, 0] - block.keys.positions[:, 0]  # B
    shared = bool((first == first[0]).all())
    some = slice(0, 1) if shared else slice(None)
    key = ("apart", window, *block.weights.shape[2:], first[0] if shared else block.place)
    kept: tuple[Floats, Floats] | None = block.texts.kept.get(key)
    if kept is None:
        queries, keys = block.queries.positions[some], block.keys.positions[some]
        apart = np.abs(keys[:, None] - queries[:, :, None]).reshape(len(keys), -1, 1)
        made = apart.astype(np.float64), (apart <= window).astype(np.float64)
        kept = block.texts.keep(key, made)
    return kept


def _own_segment(block: Block) -> Floats | None:
    """`[B R·Tk 1]`: keys of the query's own segment that are not fixed; None without segments."""
    several = _in_segments(block)
    if not several.any():
        return None
    own = block.queries.segments[:, :, None] == block.keys.segments[:, None]
    own &= (~_fixed(block) & block.keys.real & several)[:, None]
    return np.asarray(own.reshape(len(own), -1, 1).astype(np.float64))
