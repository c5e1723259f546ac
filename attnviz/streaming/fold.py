"""What a block of rows leaves behind: its part of the picture, and numbers for each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from attnviz.streaming.head import Head, Rows, cuts, is_sound, tiles


@dataclass(frozen=True)
class Plan:
    """What is asked for, and how the map is cut.

    `cells` are the rows and keys of a pixel; `near` is the width of the band whose weight is
    summed up: keys less than `near` positions away.
    """

    cells: tuple[int, int]
    queries: int
    keys: int
    block: tuple[int, int]
    statistics: bool
    near: int
    top: int
    column_sums: bool
    row_edges: list[int] = field(init=False)
    key_edges: list[int] = field(init=False)

    def __post_init__(self) -> None:
        rows, keys = (
            cuts(length, cells, most)
            for length, cells, most in zip(
                (self.queries, self.keys), self.cells, self.block, strict=True
            )
        )
        object.__setattr__(self, "row_edges", rows)
        object.__setattr__(self, "key_edges", keys)

    @property
    def granule(self) -> int:
        """Tiles are cut at multiples of this: of a whole pixel, where several fit in a tile."""
        return self.cells[1] if self.cells[1] <= self.block[1] else 1

    @property
    def longest_rows(self) -> int:
        return max(b - a for a, b in pairwise(self.row_edges))

    @property
    def longest_keys(self) -> int:
        return max(b - a for a, b in pairwise(self.key_edges))

    @property
    def key_pixels(self) -> int:
        return -(-self.keys // self.cells[1])


class Scratch:
    """One worker's memory, made once: two tiles, and the pixels along the keys for each query."""

    def __init__(self, plan: Plan, like: Tensor) -> None:
        rows = plan.longest_rows
        tile, pixels = plan.longest_keys * rows, plan.key_pixels * rows
        self.scores = like.new_empty(tile)
        self.powers = like.new_empty(tile) if plan.statistics else self.scores
        self.sums, self.peaks = like.new_empty(pixels), like.new_empty(pixels)
        self.ramp = torch.arange(plan.longest_keys, device=like.device).to(like.dtype)


@dataclass(eq=False)
class Part:
    """A block's rows, normalized.

    `sums` and `peaks` are `[pixel rows, pixel columns]` from the pixel (`row`, `column`) on: the
    sum and the largest of the weights in each. `statistics` are `[R]`; `top` is the places and
    weights of each row's largest keys, `[top R]`; `columns` the sums of the keys that any row sees,
    float64.
    """

    rows: Rows
    row: int
    column: int
    sums: Tensor
    peaks: Tensor
    statistics: dict[str, Tensor]
    top: tuple[Tensor, Tensor] | None
    columns: Tensor | None


def fold(head: Head, rows: Rows, plan: Plan, scratch: Scratch) -> Part:
    """One pass over the keys that `rows` may see."""
    first, last = rows.sees[0] // plan.cells[1], -(-rows.sees[1] // plan.cells[1])
    pixels = max(0, last - first)
    size = pixels * len(rows)
    sums, peaks = (x[:size].view(pixels, len(rows)) for x in (scratch.sums, scratch.peaks))
    moments = _add_up(head, rows, plan, scratch, sums, peaks, first)
    if not is_sound(moments.total, rows):
        rows = head.at_maxima(rows, scratch.scores)
        moments = _add_up(head, rows, plan, scratch, sums, peaks, first)

    logs = head.logs(moments.total, rows)
    inverse = logs.neg().exp2()
    narrow = inverse.to(sums.dtype)
    sums.mul_(narrow)
    peaks.mul_(narrow)
    statistics: dict[str, Tensor] = {}
    top = None
    if plan.top or plan.statistics:
        top = _top(head, rows, max(1, plan.top), plan, peaks, first, inverse)
    if plan.statistics and top is not None:
        statistics = {
            **moments.statistics(logs, inverse),
            **_own_statistics(head, rows, plan, scratch, inverse),
            "largest_key": top[0][0],
            "largest": top[1][0],
        }
    return Part(
        rows,
        row=rows.start // plan.cells[0],
        column=first,
        sums=_grouped(sums, plan.cells[0], "sum").T,
        peaks=_grouped(peaks, plan.cells[0], "amax").T,
        statistics=statistics,
        top=top if plan.top else None,
        columns=_columns(head, rows, plan, scratch, narrow) if plan.column_sums else None,
    )


@dataclass(eq=False)
class _Moments:
    """Sums over each row's keys of p = 2^(score - reference), float64 `[R]`: of p itself, of
    p · score, and of p · distance."""

    total: Tensor
    scores: Tensor
    distance: Tensor

    def statistics(self, logs: Tensor, inverse: Tensor) -> dict[str, Tensor]:
        # w = p / z, so -Σ w log₂ w is (Σ p · log₂ z - Σ p · score) / z
        entropy = (self.total * logs - self.scores) * inverse
        blind = self.total == 0
        return {
            "entropy": entropy.masked_fill(blind, 0.0).clamp(min=0.0),
            "distance": self.distance * inverse,
        }


def _add_up(
    head: Head, rows: Rows, plan: Plan, scratch: Scratch, sums: Tensor, peaks: Tensor, first: int
) -> _Moments:
    """Fill `sums` and `peaks` `[pixels R]` with each pixel's sum over keys and its maximum."""
    wide = torch.zeros(len(rows), dtype=torch.float64, device=sums.device)
    moments = _Moments(wide, wide.clone(), wide.clone())
    cells = plan.cells[1]
    parts_of_pixels = plan.granule < cells
    if parts_of_pixels:
        sums.zero_()
        peaks.zero_()
    for start, stop in tiles(rows.sees, plan.key_edges, plan.granule):
        scores = head.scores(rows, start, stop, scratch.scores)
        powers = torch.exp2(scores, out=scratch.powers[: scores.numel()].view_as(scores))
        at = start // cells - first
        if parts_of_pixels:
            total = powers.sum(0)
            sums[at] += total
            moments.total += total
            torch.maximum(peaks[at], powers.amax(0), out=peaks[at])
        else:
            whole, rest = divmod(stop - start, cells)
            pixels = powers[: whole * cells].view(whole, cells, len(rows))
            torch.sum(pixels, 1, out=sums[at : at + whole])
            torch.amax(pixels, 1, out=peaks[at : at + whole])
            if rest:
                sums[at + whole] = powers[whole * cells :].sum(0)
                peaks[at + whole] = powers[whole * cells :].amax(0)
            if plan.statistics:
                total = sums[at : at + whole + (rest > 0)].sum(0)
        if plan.statistics:
            moments.scores += scores.mul_(powers).sum(0)
            moments.distance += _distances(rows, start, powers, total, scratch.ramp)
    if not parts_of_pixels:
        torch.sum(sums, 0, dtype=torch.float64, out=moments.total)
    return moments


def _distances(rows: Rows, start: int, powers: Tensor, total: Tensor, ramp: Tensor) -> Tensor:
    """`[R]`, float64: Σ p |i - j| over the tile's keys, of which place `start` is the first.

    On one side of all queries it is a product with the keys' places, counted from the key that is
    nearest to them; only among the queries' own places is it the distance of each cell.
    """
    stop = start + len(powers)
    low, high = (min(max(int(place), start), stop) for place in (rows.own[0], rows.own[-1] + 1))
    before, among, after = torch.split_with_sizes(powers, [low - start, high - low, stop - high])
    distance = torch.zeros_like(rows.own, dtype=torch.float64)
    for part, away, places in (
        (before, rows.own - (low - 1), ramp[: len(before)].flip(0)),
        (after, high - rows.own, ramp[: len(after)]),
    ):
        if len(part):
            sums = total if len(part) == len(powers) else part.sum(0)
            distance += away * sums.double() + torch.mm(places[None], part)[0]
    if len(among):
        apart = (ramp[: len(among), None] - (rows.own - low).to(powers.dtype)).abs_()
        distance += apart.mul_(among).sum(0)
    return distance


def _own_statistics(
    head: Head, rows: Rows, plan: Plan, scratch: Scratch, inverse: Tensor
) -> dict[str, Tensor]:
    """The weights on the first token, on the one before, on the query's own and on its band."""
    start_of_text = torch.full_like(rows.own, head.key_start)
    before = torch.where(rows.own > head.key_start, rows.own - 1, -1)
    own = torch.where(rows.own >= head.key_start, rows.own, -1)
    weights = head.scores_at(rows, torch.stack([start_of_text, before, own])).exp2() * inverse
    names = ("first", "previous", "self")
    band = torch.zeros_like(inverse)
    low = max(rows.sees[0], rows.start + head.shift - plan.near + 1)
    high = min(rows.sees[1], rows.stop + head.shift + plan.near - 1)
    step = plan.longest_keys
    for start in range(low, high, step):
        stop = min(start + step, high)
        powers = head.scores(rows, start, stop, scratch.scores).exp2_()
        far = (head.places[start:stop] - rows.own).abs_() >= plan.near
        band += powers.masked_fill_(far, 0.0).sum(0)
    return {**dict(zip(names, weights, strict=True)), "near": band * inverse}


def _top(
    head: Head, rows: Rows, n: int, plan: Plan, peaks: Tensor, first: int, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """(places, weights) `[n R]` of each row's largest weights, the largest first.

    -1 and 0 where fewer are more than 0. They lie in the `n` pixels with the largest peaks, whose
    keys are scored again.
    """
    keys = torch.full((n, len(rows)), -1, device=peaks.device)
    weights = inverse.new_zeros(n, len(rows))
    if len(peaks):
        places = _keys_of(_leading(peaks, n), plan, first)
        scores, at = head.scores_at(rows, places).topk(min(n, len(places)), 0)
        # scored again, a weight may differ in its last digits, and the peaks are what was summed
        largest = peaks.amax(0).to(weights)
        weights[: len(at)] = torch.minimum(scores.exp2() * inverse, largest)
        weights[0] = largest
        keys[: len(at)] = places.gather(0, at)
        keys.masked_fill_(weights == 0, -1)
    return keys, weights


def _leading(peaks: Tensor, n: int) -> Tensor:
    """`[n R]`, or fewer: where the largest of each column of `[pixels R]` stand.

    They lie in the `n` groups of pixels with the largest maxima: a search among those is quicker
    than one among all.
    """
    pixels, group = len(peaks), 32
    n = min(n, pixels)
    whole = pixels // group
    if whole <= n:
        return peaks.topk(n, 0).indices
    maxima = peaks[: whole * group].view(whole, group, -1).amax(1)
    groups = maxima.topk(n, 0).indices[:, None]
    within = torch.arange(group, device=peaks.device)[:, None]
    rest = torch.arange(whole * group, pixels, device=peaks.device)[:, None]
    known = (groups * group + within).flatten(0, 1)
    known = torch.cat([known, rest.expand(-1, peaks.shape[1])])
    return known.gather(0, peaks.gather(0, known).topk(n, 0).indices)


def _keys_of(pixels: Tensor, plan: Plan, first: int) -> Tensor:
    """`[n·cells R]`: the places in the pixels `[n R]`; those beyond the last key do not exist."""
    cells = torch.arange(plan.cells[1], device=pixels.device)
    return ((pixels[:, None] + first) * plan.cells[1] + cells[:, None]).flatten(0, 1)


def _columns(head: Head, rows: Rows, plan: Plan, scratch: Scratch, inverse: Tensor) -> Tensor:
    """Σ of these rows' weights on each key of `rows.sees`: a pass of its own, after the sums."""
    sums = torch.zeros(max(0, rows.sees[1] - rows.sees[0]), dtype=torch.float64)
    for start, stop in tiles(rows.sees, plan.key_edges, 1):
        powers = head.scores(rows, start, stop, scratch.scores).exp2_()
        sums[start - rows.sees[0] : stop - rows.sees[0]] = (powers @ inverse).cpu()
    return sums


def _grouped(x: Tensor, cells: int, how: Literal["sum", "amax"]) -> Tensor:
    """`[n R]` → `[n ⌈R/cells⌉]`: neighbours along the last axis added up, or their largest."""
    whole = x.shape[1] // cells
    reduce = torch.sum if how == "sum" else torch.amax
    grouped = reduce(x[:, : whole * cells].reshape(len(x), whole, cells), 2)
    if whole * cells == x.shape[1]:
        return grouped
    return torch.cat([grouped, reduce(x[:, whole * cells :], 1, keepdim=True)], 1)
