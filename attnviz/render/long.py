"""Pictures of long texts: each pixel the mean of many weights, on a scale of powers of ten.

They are laid out as the pictures of whole maps are; what differs is said here. Mean weights fall
as a row grows longer, over several powers of ten, so that equal steps of the scale would show the
first few tokens and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, floor, log10
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attnviz.render.cells import WEIGHT, Brush, Head
from attnviz.render.furniture import Edge, Pair, Subject, draw_ramp
from attnviz.render.head_page import HeadPages
from attnviz.render.heatmap import write
from attnviz.render.look import Look
from attnviz.render.overview import grid, overview_sheet
from attnviz.render.sheet import COLOURS, Indices, Line, Sheet, Text
from attnviz.render.visible import shorten, visible
from attnviz.result import Attention

LARGEST_PICTURE = 1024
"""Pixels of a map, along a side, in the picture of one head."""

DECADES = 5
"""Powers of ten that the scale has at most, below its top."""


def draw_overview(
    pooled: Attention, sequence: int, path: Path, look: Look, pairs: Sequence[Pair]
) -> list[str]:
    """Draw the chosen (place of the layer, head) pairs as one picture: see `heatmap`."""
    whole = pooled.within(LARGEST_PICTURE)
    subject = LongSubject(whole, sequence, look, list(pairs))
    columns = grid(list(pairs), subject)[2]
    # as many pixels as the overview has room for, so that each is the mean of its weights
    room = (72 * (7.0 + columns) / columns - 14) * look.dpi / 72
    factor = ceil(max(subject.n_queries, subject.n_keys) / max(floor(room), 1))
    if factor > 1:
        subject = LongSubject(whole.coarser(factor), sequence, look, list(pairs))
    write(overview_sheet(subject), path)
    return subject.notices


def draw_heads(
    pooled: Attention,
    sequence: int,
    targets: Sequence[tuple[int, int, Path]],
    look: Look,
    on_done: Callable[[Path], None] | None = None,
) -> list[str]:
    """Draw one large picture for each (place of the layer, head, path): see `heatmap`."""
    whole = pooled.within(LARGEST_PICTURE)
    pairs = [(layer, head) for layer, head, _ in targets]
    pages = HeadPages(LongSubject(whole, sequence, look, pairs))
    for layer, head, path in targets:
        if path.suffix.lower() == ".png":
            pages.write_png(layer, head, path)
        else:
            write(pages.sheet(layer, head), path)
        if on_done:
            on_done(path)
    return pages.subject.notices


class LogScale:
    """Weights from `low` to `top` in equal steps of their logarithms."""

    def __init__(self, weights: npt.NDArray[np.float32], vmax: float | None = None) -> None:
        """The scale of these means; `vmax` is what its strongest colour stands for."""
        some = weights[np.isfinite(weights) & (weights > 0)]
        self.largest = float(some.max(initial=0)) or 1.0
        self.top = vmax or self.largest
        low = float(np.quantile(some, 0.01)) if len(some) else self.top
        self.low = min(max(low, self.top * 10.0**-DECADES), self.top / 10)

    def shares(self, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Where each weight lies between `low`, 0, and `top`, 1; beyond them it is cut."""
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.log10(weights / self.low) / log10(self.top / self.low)
        return np.asarray(np.clip(np.nan_to_num(shares, nan=0.0), 0, 1), np.float32)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """(share, name) of the ends, and of the powers of ten between them."""
        clipped = self.largest > self.top
        yield 0.0, f"≤ {self.low:.1g}"
        for power in range(ceil(log10(self.low)), ceil(log10(self.top))):
            share = float(self.shares(np.array([10.0**power], np.float32))[0])
            if 0.07 < share < 0.93:
                yield share, f"{10.0**power:g}"
        yield 1.0, f"{'≥ ' if clipped else ''}{self.top:.2g}"


class LongBrush(Brush):
    """Paints mean weights in equal steps of their logarithms."""

    def __init__(self, height: int, width: int, dpi: int, scale: LogScale) -> None:
        super().__init__(height, width, 1, dpi, scale.top)
        self._scale = scale

    def shades(self, weights: npt.NDArray[np.float32]) -> Indices:
        return (self._scale.shares(weights) * (self.colours - 1)).round().astype(np.uint8)


class LongSubject(Subject):
    """One sequence of a long run: its pixels are drawn as a map's cells are."""

    what = "pixels"

    def __init__(self, pooled: Attention, sequence: int, look: Look, pairs: list[Pair]) -> None:
        self.pooled = pooled
        drawn = np.stack([pooled.mean[layer, sequence, head] for layer, head in pairs])
        self.log_scale = LogScale(drawn, look.vmax)
        super().__init__(pooled.as_map(), sequence, look, pairs, longest_label=14)
        queries, keys = (int(lengths[sequence]) for lengths in (pooled.lengths, pooled.key_lengths))
        self.tokens = f"{keys:,} tokens"
        if pooled.is_cross:
            self.tokens = f"{queries:,} queries × {keys:,} keys"

    def _measures(self) -> dict[str, npt.NDArray[np.float64]]:
        """Means over the rows of the whole text, not of the pixels."""
        means = self.pooled.row_means(self.sequence)
        names = {"diagonal": "self"}
        return {
            name: means[names.get(name, name)]
            for name in ("entropy", "largest", "diagonal", "first", "distance")
        }

    def _facts(self) -> list[str]:
        rows, keys = self.pooled.cells
        cells = f"mean of {rows} × {keys} weights a pixel"
        if rows * keys == 1:
            cells = "a weight a pixel"
        return [*super()._facts(), f"{cells}, those that are allowed; the scale is logarithmic"]

    def brush(self, height: int, width: int, pool: int) -> Brush:
        assert pool == 1
        return LongBrush(height, width, self.look.dpi, self.log_scale)

    def bar(self, sheet: Sheet, left: float, top: float, height: float) -> None:
        ramp = np.linspace(COLOURS - 1, 0, round(height * sheet.scale)).round().astype(np.uint8)
        places = [(1 - share, name) for share, name in self.log_scale.ticks()]
        draw_ramp(sheet, left, top, ramp, "mean weight", places)

    def axes(self, sheet: Sheet, cell_w: float, cell_h: float, largest: float) -> tuple[Edge, Edge]:
        size = min(largest, 8.0)
        pooled, sequence = self.pooled, self.sequence
        return (
            PositionAxis(sheet, pooled.places(sequence, 0), cell_h / pooled.cells[0], size, False),
            PositionAxis(sheet, pooled.places(sequence, 1), cell_w / pooled.cells[1], size, True),
        )

    def strongest(self, head: Head) -> str:
        """The largest weight of the whole text in words, for those who cannot see it."""
        if not (head.verdicts.kinds == WEIGHT).any():
            return "no query sees a key"
        at = (head.layer, self.sequence, head.number)
        assert self.pooled.rows is not None  # maps that are pooled have them
        statistics = self.pooled.rows.statistics
        row = int(statistics["largest"][at].argmax())
        key = int(statistics["largest_key"][(*at, row)])
        query_token = self.pooled.query_tokens[self.sequence][row]
        key_token = self.pooled.key_tokens[self.sequence][key]
        query_name, key_name = (shorten(visible(t), 14) for t in (query_token, key_token))
        return (
            f"the largest weight is {statistics['largest'][(*at, row)]:.2f}, "
            f"from query {row:,} “{query_name}” to key {key:,} “{key_name}”"
        )


class PositionAxis:
    """Round positions along one edge, in the text's own count: 0 is its first real token."""

    def __init__(
        self, sheet: Sheet, places: tuple[int, int], pitch: float, size: float, upright: bool
    ) -> None:
        """`places` are those of the first real token and of the end, `pitch` points a token."""
        self._start, end = places
        self._pitch, self._size = pitch, size
        length = end - self._start
        widest = sheet.text_width(f"{max(length, 1):,}", size)
        apart = widest + 8 if upright else 2.2 * size
        step = next(s for s in _round_steps() if s * pitch >= apart)
        self._named = list(range(0, max(length, 1), step))
        self.extent = (size if upright else widest) + 4

    def notice(self, what: str) -> str:  # noqa: ARG002 - an axis of numbers leaves none out
        return ""

    def rows(self, edge: float, top: float) -> list[Text]:
        """Numbers left of `edge`, each beside its row."""
        return [
            Text(edge - 4, self._at(top, n) + 0.36 * self._size, f"{n:,}", self._size, anchor="end")
            for n in self._named
        ]

    def columns(self, edge: float, left: float) -> list[Text]:
        """Numbers below `edge`, each under its column."""
        return [
            Text(self._at(left, n), edge + 3 + self._size, f"{n:,}", self._size, anchor="middle")
            for n in self._named
        ]

    def row_lines(self, edge: float, top: float) -> list[Line]:
        """A short line from each number to its row."""
        places = [self._at(top, n) for n in self._named]
        return [Line(edge - 2.5, y, edge, y, 0.55, 0.6) for y in places]

    def column_lines(self, edge: float, left: float) -> list[Line]:
        """A short line from each number to its column."""
        places = [self._at(left, n) for n in self._named]
        return [Line(x, edge, x, edge + 2.5, 0.55, 0.6) for x in places]

    def _at(self, begin: float, n: int) -> float:
        return begin + (self._start + n + 0.5) * self._pitch


def _round_steps() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, …"""
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10
