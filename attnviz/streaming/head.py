"""The scores of one head, a tile at a time: keys × queries, so that sums over keys are quick.

Scores are in bits here: log₂ of what the softmax sums, since 2ˣ costs half of what eˣ does; log₂ e
is folded into the queries. A softmax may take any reference off a row's scores before it raises
them, and the usual one, the row's maximum, needs a pass of its own. Here it is guessed from a few
keys, and mostly 0 will do: `Rows.reference` is then None. A guess that was wrong shows in the sum,
which no longer lies well inside the range of floats, and `Head.at_maxima` gives the true one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log

import numpy as np
import torch
from torch import Tensor

from attnviz.scores import Scores

LOG2_E = 1 / log(2)

FORBIDDEN = -1e4
"""A score whose power is exactly 0 in every type, and whose product with 0 is 0, unlike -∞'s."""

SAFE_SCORES = 16.0
"""Scores within ± this many bits need no reference: precision is the same all over this range."""

SAFE_SUMS = (2.0**-64, 2.0**100)
"""A row's sum outside of this range may have lost small weights, or have overflown."""

SAMPLES = 32
"""Keys that a reference is guessed from."""


@dataclass(frozen=True, eq=False)
class Rows:
    """A block of neighbouring queries: what is common to all of its tiles.

    `queries` is `[d_k R]`, scaled; `first` and `end` are int64 `[R]`, the span of places that each
    may see; `own` is `[R]`, the place at each query's own position; `reference` `[R]` or None.
    """

    start: int
    stop: int
    queries: Tensor
    first: Tensor
    end: Tensor
    own: Tensor
    reference: Tensor | None
    sees: tuple[int, int]
    """The first place that any of them may see, and the end."""
    all_see: tuple[int, int]
    """No place between these is forbidden to any of them by its span."""

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def cells(self) -> int:
        """How many cells are computed for them, no more than some forbidden ones at the edges."""
        return len(self) * max(0, self.sees[1] - self.sees[0])


class Head:
    """Head `h` of sequence `b`."""

    def __init__(
        self, attention: Scores, b: int, h: int, spans: tuple[Tensor, Tensor] | None = None
    ) -> None:
        a = attention
        self.attention, self.b, self.h = a, b, h
        self.q = a.q[b, h].detach()
        k = a.k[b, h // (a.n_heads // a.k.shape[1])].detach().to(a.dtype)
        self.k = k if k.stride(-1) == 1 else k.contiguous()
        self.spans = a.spans(b) if spans is None else spans
        self.shift, self.key_start = a.shift(b), a.key_start(b)
        self.places = torch.arange(a.keys, device=self.k.device)[:, None]
        self.fold = a.multiplier * (LOG2_E if a.softcap is None else 1 / a.softcap)
        self.slope = None if a.slopes is None else float(a.slopes[h].detach()) * LOG2_E
        self.table: Tensor | None = None
        if a.distances is not None:
            self.table = a.distances[h].detach().to(self.k) * LOG2_E
        self.sink = None if a.sinks is None else float(a.sinks[h].detach()) * LOG2_E

    def rows(self, start: int, stop: int) -> Rows:
        """The queries start … stop-1, with a reference guessed."""
        device = self.k.device
        first, end = (span[start:stop] for span in self.spans)
        own = torch.arange(start + self.shift, stop + self.shift)
        rows = Rows(
            start,
            stop,
            (self.q[start:stop].to(self.k.dtype) * self.fold).T.contiguous(),
            first.to(device),
            end.to(device),
            own.to(device),
            None,
            sees=(int(first.min()), int(end.max())),
            all_see=(int(first.max()), int(end.min())),
        )
        if rows.sees[0] >= rows.sees[1]:
            return rows
        guess = self._guess(rows)
        return rows if guess.abs().max() <= SAFE_SCORES else replace(rows, reference=guess)

    def _guess(self, rows: Rows) -> Tensor:
        """`[R]`: each query's largest score among some keys all over, and some near itself."""
        low, high = rows.sees
        step = max(1, (high - low) // SAMPLES)
        near = torch.arange(rows.start, rows.stop, max(1, len(rows) // SAMPLES)) + self.shift
        places = torch.cat([torch.arange(low, high, step), near.clamp(low, high - 1)])
        places = places.to(self.k.device)[:, None]
        scores = self.k[places[:, 0]] @ rows.queries
        return _maximum(self._forbid(self._bend(scores, places, rows), places, rows, -inf))

    def at_maxima(self, rows: Rows, scratch: Tensor) -> Rows:
        """The same rows with their true maxima as the reference. `scratch` is as for `scores`."""
        rows = replace(rows, reference=None)
        best = torch.full_like(rows.queries[0], -inf)
        step = max(1, len(scratch) // len(rows))
        for start in range(*rows.sees, step):
            tile = self.scores(rows, start, min(start + step, rows.sees[1]), scratch, -inf)
            best = torch.maximum(best, tile.amax(0))
        return replace(rows, reference=_maximum(best[None]))

    def scores(
        self, rows: Rows, start: int, stop: int, scratch: Tensor, fill: float = FORBIDDEN
    ) -> Tensor:
        """`[keys R]`: the scores of places start … stop-1, less the reference; in `scratch`.

        `scratch` is a flat tensor of at least that many numbers, of the head's dtype.
        """
        out = scratch[: (stop - start) * len(rows)].view(stop - start, len(rows))
        places = self.places[start:stop]
        tile = self._bend(torch.mm(self.k[start:stop], rows.queries, out=out), places, rows)
        if self.attention.unbounded:
            self._forbid(tile, places, rows, fill)
        else:  # only at the edges of what they may see
            low, high = (min(max(place, start), stop) - start for place in rows.all_see)
            if low:
                self._forbid(tile[:low], places[:low], rows, fill)
            if high < stop - start:
                self._forbid(tile[high:], places[high:], rows, fill)
        return tile

    def scores_at(self, rows: Rows, places: Tensor) -> Tensor:
        """`[n R]`: the scores of the keys at `places` `[n R]`, chosen for each query apart.

        A forbidden place, and one outside of the text, has -∞.
        """
        known = places.clamp(0, len(self.k) - 1)
        parts = []
        step = max(1, 2**19 // (len(places) * self.k.shape[1]))  # 2 MiB of keys at a time
        for at in range(0, len(rows), step):
            chosen = known[:, at : at + step].T
            keys = self.k.index_select(0, chosen.flatten()).view(*chosen.shape, -1)  # R n d_k
            parts.append(keys @ rows.queries.T[at : at + step, :, None])
        scores = self._bend(torch.cat(parts).squeeze(-1).T, known, rows)
        return self._forbid(scores, known, rows, -inf).masked_fill_(places != known, -inf)

    def _bend(self, scores: Tensor, places: Tensor, rows: Rows) -> Tensor:
        """What happens to a score between product and softmax, in place: cap, bias, reference."""
        if self.attention.softcap is not None:
            scores.tanh_().mul_(self.attention.softcap * LOG2_E)
        if self.slope is not None or self.table is not None:
            scores += self._of_distance(places, rows).to(scores.dtype)
        if rows.reference is not None:
            scores -= rows.reference
        return scores

    def _of_distance(self, places: Tensor, rows: Rows) -> Tensor:
        """What the distance between query and key adds to a score."""
        apart = places - rows.own
        if self.table is None:
            assert self.slope is not None  # one of the two is there
            bias = apart.abs().to(self.k.dtype) * -self.slope
        else:
            furthest = len(self.table) // 2
            bias = self.table[apart.clamp(-furthest, furthest) + furthest]
        if self.attention.n_extra:  # keys that are no token's stand at no distance
            bias = bias.masked_fill(places >= self.attention.tokens, 0)
        return bias

    def _forbid(self, scores: Tensor, places: Tensor, rows: Rows, fill: float) -> Tensor:
        """Put `fill` where a query may not look, in place."""
        if not len(scores):
            return scores
        scores.masked_fill_((places < rows.first) | (places >= rows.end), fill)
        queries, keys = np.arange(rows.start, rows.stop), places.cpu().numpy()
        for rule in self.attention.unbounded:
            forbidden = torch.from_numpy(~rule.allows(self.b, self.h, queries, keys))
            scores.masked_fill_(forbidden.to(scores.device), fill)
        return scores

    def logs(self, sums: Tensor, rows: Rows) -> Tensor:
        """`[R]`, float64: log₂ of what the rows' powers are divided by, less the reference.

        `sums` are the rows' sums, to which the sink adds its part. A row that sees nothing has ∞,
        so that its weights are 0.
        """
        logs = sums.log2()
        if self.sink is not None:
            reference = 0.0 if rows.reference is None else rows.reference.double()
            sink = torch.as_tensor(self.sink - reference, dtype=logs.dtype, device=logs.device)
            logs = torch.logaddexp2(logs, sink)
        return logs.masked_fill(sums == 0, inf)


def heads_of(attention: Scores) -> Iterator[Head]:
    """All heads of all sequences, one at a time."""
    for b in range(attention.batch_size):
        spans = attention.spans(b)
        for h in range(attention.n_heads):
            yield Head(attention, b, h, spans)


def is_sound(sums: Tensor, rows: Rows) -> bool:
    """Whether sums of 2^(score - reference) `[R]` are such that no weight was lost on the way."""
    within = (sums >= SAFE_SUMS[0]) & (sums <= SAFE_SUMS[1])
    return bool((within | (rows.end == 0)).all())


def _maximum(scores: Tensor) -> Tensor:
    """`[R]` of `[n R]`: the largest, or 0 where all are forbidden."""
    best = scores.amax(0)
    return best.masked_fill_(best == -inf, 0.0)


def tiles(sees: tuple[int, int], edges: list[int], granule: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of the tiles between `edges` that cover `sees`, cut to it at whole granules."""
    low = sees[0] // granule * granule
    high = min(-(-sees[1] // granule) * granule, edges[-1])
    for start, stop in pairwise(edges):
        if start < high and stop > low:
            yield max(start, low), min(stop, high)


def cuts(length: int, cells: int, most: int) -> list[int]:
    """Edges that cut 0 … length into runs of at most `most`, none across an edge of a pixel.

    Pixels are `cells` long, the last one maybe shorter: a run is some whole pixels, or a part of
    one.
    """
    if cells <= most:
        return [*range(0, length, most // cells * cells), length]
    part = -(-cells // -(-cells // most))
    starts = (
        start
        for pixel in range(0, length, cells)
        for start in range(pixel, min(pixel + cells, length), part)
    )
    return [*starts, length]
