"""Cells of a head as palette indices: weights in colour, whatever is no weight in a pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.render.sheet import ALARM, COLOURS, Indices, tone_index
from attnviz.result import Attention

PADDING, FORBIDDEN, WEIGHT, NOT_A_NUMBER = range(4)
"""What a cell is. Where cells are pooled, the largest of these wins."""


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What each cell of a head is, `[Tq Tk]`, and which query rows see nothing, `[Tq]`."""

    kinds: npt.NDArray[np.uint8]
    blind: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Head:
    """One head of one sequence, ready to draw: weights `[Tq Tk]`, 0 where there is none."""

    layer: int
    number: int
    weights: npt.NDArray[np.float32]
    verdicts: Verdicts


class Heads:
    """The heads of one sequence. Those with the same mask share their verdicts.

    Padded queries and keys are padding whatever the array holds there.
    """

    def __init__(self, result: Attention, sequence: int) -> None:
        self._result = result
        self._sequence = sequence
        self._real = np.outer(result.query_valid[sequence], result.key_valid[sequence])
        self._shared: dict[bytes, Verdicts] = {}

    def head(self, layer: int, number: int) -> Head:
        """Raises IndexError where there is no such head."""
        own = self._result.attention[layer, self._sequence, number]
        with np.errstate(over="ignore"):  # a float64 beyond float32 is drawn as infinite
            weights = own.astype(np.float32, copy=False)
        verdicts = self._verdicts(layer, number)
        drawn = verdicts.kinds == WEIGHT
        odd = drawn & ~np.isfinite(weights)
        if odd.any():
            kinds = np.where(odd, np.uint8(NOT_A_NUMBER), verdicts.kinds)
            verdicts, drawn = Verdicts(kinds, verdicts.blind), drawn & ~odd
        if not drawn.all():  # else the result's own array serves, uncopied
            weights = np.where(drawn, weights, np.float32(0))
        return Head(layer, number, weights, verdicts)

    def largest(self, pairs: list[tuple[int, int]]) -> float:
        """The largest weight of these heads, 1 where all are 0: the top of their common scale."""
        top = max(float(self.head(*pair).weights.max(initial=0)) for pair in pairs)
        return top if top > 0 else 1.0

    def weight_on_padding(self, pairs: list[tuple[int, int]]) -> float:
        """The largest share that a real query gives to padded keys, which are not drawn."""
        keys = ~self._result.key_valid[self._sequence]
        queries = self._result.query_valid[self._sequence]
        if not keys.any():
            return 0.0
        shares = [
            self._result.attention[layer, self._sequence, number][queries][:, keys].sum(-1)
            for layer, number in pairs
        ]
        return float(np.nan_to_num(np.asarray(shares, dtype=np.float64)).max(initial=0))

    def _verdicts(self, layer: int, number: int) -> Verdicts:
        allowed = self._result.allowed[layer, self._sequence]
        allowed = allowed[number if len(allowed) > 1 else 0]
        key = np.packbits(allowed).tobytes()
        if key not in self._shared:
            kinds = np.where(allowed, WEIGHT, FORBIDDEN).astype(np.uint8)
            kinds[~self._real] = PADDING
            blind = ~allowed.any(-1) & self._result.query_valid[self._sequence]
            self._shared[key] = Verdicts(kinds, blind)
        return self._shared[key]


class Brush:
    """Paints heads at `height` × `width` pixels a cell, `pool` × `pool` cells pooled into one.

    A pooled cell shows the largest of its weights. `top` is the weight of the strongest colour.
    """

    colours = COLOURS
    """Palette entries that weights have, from the first one on."""

    def __init__(self, height: int, width: int, pool: int, dpi: int, top: float) -> None:
        self.height, self.width, self.pool, self.top = height, width, pool, top
        self._dpi = dpi
        self._painted: tuple[Verdicts, npt.NDArray[np.bool_], Indices] | None = None

    def paint(self, head: Head) -> Indices:
        """The head as palette indices, `[Tq/pool · height, Tk/pool · width]`, rounded up."""
        cells = self._spread(self.shades(head.weights))
        covered, overlay = self._overlay(head.verdicts)
        np.copyto(cells, overlay, where=covered)
        return cells

    def shades(self, weights: npt.NDArray[np.float32]) -> Indices:
        """The palette entry of each cell, `[Tq/pool, Tk/pool]`."""
        with np.errstate(over="ignore"):
            steps = pooled(weights, self.pool) * (self.colours / self.top)
            return np.clip(steps, 0, self.colours - 1).astype(np.uint8)

    def written(self, weight: float) -> str:
        """What is written into a cell."""
        return f"{weight:.2f}"

    def _overlay(self, verdicts: Verdicts) -> tuple[npt.NDArray[np.bool_], Indices]:
        """Patterns over cells that are no weights, kept for the next head with the same mask."""
        if self._painted is None or self._painted[0] is not verdicts:
            kinds = self._spread(pooled(verdicts.kinds, self.pool))
            overlay, covered = np.zeros_like(kinds), np.zeros(kinds.shape, dtype=np.bool_)
            for where, pattern in self._patterns(kinds):
                np.copyto(overlay, pattern, where=where)
                covered |= where
            for row in np.flatnonzero(pooled(verdicts.blind[:, None], self.pool)):
                overlay[self._strike(int(row))] = tone_index(0.8)
            self._painted = (verdicts, covered, overlay)
        return self._painted[1], self._painted[2]

    def _patterns(
        self, kinds: npt.NDArray[np.uint8]
    ) -> list[tuple[npt.NDArray[np.bool_], Indices]]:
        """Which pixels are covered with what."""
        return [
            (kinds == PADDING, dots(kinds.shape, self._dpi)),
            (kinds == FORBIDDEN, hatch(kinds.shape, self._dpi)),
            (kinds == NOT_A_NUMBER, self._crosses(kinds.shape)),
        ]

    def _strike(self, row: int) -> slice:
        """The pixel rows of the line through a query row that sees nothing."""
        thick = max(1, min(round(self._dpi / 60), self.height // 3))
        start = row * self.height + (self.height - thick) // 2
        return slice(start, start + thick)

    def _crosses(self, shape: tuple[int, ...]) -> Indices:
        """A cross of alarm in each cell; cells too small for one are filled."""
        if min(self.height, self.width) < 5:
            return np.full(shape, ALARM, dtype=np.uint8)
        y = (np.arange(shape[0]) % self.height)[:, None] / (self.height - 1)
        x = (np.arange(shape[1]) % self.width)[None, :] / (self.width - 1)
        near = np.minimum(abs(x - y), abs(x + y - 1)) < 0.09
        inside = (abs(x - 0.5) < 0.36) & (abs(y - 0.5) < 0.36)
        return np.where(near & inside, ALARM, tone_index(0.0)).astype(np.uint8)

    def _spread(self, cells: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return np.repeat(np.repeat(cells, self.width, axis=1), self.height, axis=0)


def pooled(cells: npt.NDArray[Any], pool: int) -> npt.NDArray[Any]:
    """The largest of each `pool` × `pool` block; blocks at the far edges may be smaller."""
    if pool == 1:
        return cells
    for axis in (0, 1):
        cells = np.maximum.reduceat(cells, np.arange(0, cells.shape[axis], pool), axis=axis)
    return cells


def hatch(shape: tuple[int, ...], dpi: int) -> Indices:
    """Diagonal lines on a pale ground: no weight looks like this."""
    period = max(3, round(dpi / 72 * 3.6))
    phase = np.add.outer(np.arange(shape[0]), np.arange(shape[1])) % period
    tones = np.full(period, tone_index(0.07), dtype=np.uint8)
    tones[0] = tone_index(0.42)
    tones[[1, -1]] = tone_index(0.2)
    return np.asarray(tones[phase])


def dots(shape: tuple[int, ...], dpi: int) -> Indices:
    """Sparse dots on a paler ground: nothing is here."""
    period = max(3, round(dpi / 72 * 3.6))
    size = max(1, round(dpi / 150))
    ground = np.full(shape, tone_index(0.03), dtype=np.uint8)
    y, x = (np.arange(n) % period < size for n in shape)
    ground[np.outer(y, x)] = tone_index(0.3)
    return ground
