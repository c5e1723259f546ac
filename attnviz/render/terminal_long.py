"""Maps of long texts in the terminal: a cell is the mean of many weights, by powers of ten."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from attnviz.errors import printable
from attnviz.render.console import ascii_only, flow, has_color, write
from attnviz.render.long import LogScale
from attnviz.render.look import Look
from attnviz.render.terminal import (
    BLIND,
    FORBIDDEN,
    LARGEST_SIDE,
    NOT_A_NUMBER,
    PADDING,
    WEIGHT,
    WORDS,
    Ink,
    Map,
    Plan,
    Shown,
    Side,
    ink_for,
    sample_of,
    side_by_side,
)
from attnviz.render.visible import notation
from attnviz.result import Attention


def long_maps(
    pooled: Attention,
    sequence: int,
    console: Console,
    pairs: Sequence[tuple[int, int]],
    vmax: float | None = None,
    cmap: str = Look.cmap,
) -> None:
    """Print a map for each of `pairs`, (place of the layer, head), of one sequence."""
    if pooled.batch_size > 1:
        write(console, Text(f"sequence {sequence}", "bold"))
    label = len(str(pooled.n_queries)) + 1
    side = max(min(console.width - label - 1, LARGEST_SIDE), 1)
    reduced = pooled.coarser(ceil(max(pooled.mean.shape[3:]) / side))
    half = has_color(console) and not ascii_only(console)
    drawn = np.stack([reduced.mean[layer, sequence, head] for layer, head in pairs])
    scale = LogScale(drawn, vmax)
    maps = [_map(reduced, sequence, layer, head, scale) for layer, head in pairs]
    queries, keys = (_side(reduced, sequence, which, named=not half) for which in (0, 1))
    plan = Plan(label, 1, half)
    ink = ink_for(console, cmap, 1.0, plan.cell)
    shown = Shown(tuple(maps), queries, keys)
    titles = _titles(pooled, sequence, pairs, maps[0].kinds.shape[1])
    write(console, *side_by_side(shown, maps, titles, plan, ink, console.width))
    write(console, *flow(_legend(reduced, maps, plan, ink, scale), console.width))


def _map(pooled: Attention, sequence: int, layer: int, head: int, scale: LogScale) -> Map:
    means = pooled.mean[layer, sequence, head]
    allowed = pooled.allowed[layer, sequence]
    seen = allowed[head if len(allowed) > 1 else 0]
    kinds = np.where(seen, WEIGHT, FORBIDDEN)
    kinds[seen & ~np.isfinite(means)] = NOT_A_NUMBER
    kinds[~seen.any(1)] = BLIND
    real = [_real(pooled, sequence, side) for side in (0, 1)]
    kinds[~np.outer(*real)] = PADDING
    return Map(
        layer, head, kinds, np.where(kinds == WEIGHT, scale.shares(means), 0.0).astype(float)
    )


def _real(pooled: Attention, sequence: int, side: int) -> npt.NDArray[np.bool_]:
    """Which pixels along a side hold any real token."""
    at = np.arange(pooled.mean.shape[3 + side]) * pooled.cells[side]
    start, end = pooled.places(sequence, side)
    return (at + pooled.cells[side] > start) & (at < end)


def _side(pooled: Attention, sequence: int, side: int, named: bool) -> Side:
    """Rows or columns by the position of their first token; a line of two rows says it itself."""
    positions = np.arange(pooled.mean.shape[3 + side]) * pooled.cells[side]
    positions = positions - pooled.places(sequence, side)[0]
    valid = _real(pooled, sequence, side)
    names = tuple(str(p) if named and ok else "" for p, ok in zip(positions, valid, strict=True))
    return Side(names, positions, valid)


def _titles(
    pooled: Attention, sequence: int, pairs: Sequence[tuple[int, int]], room: int
) -> list[str]:
    """`head 3`, with the mean entropy of its rows where there is room for that over the map."""
    entropy = pooled.row_means(sequence)["entropy"]
    titles = []
    for layer, head in pairs:
        number = pooled.layer_numbers[layer]
        name = f"L{number} H{head}" if pooled.names_layers else f"head {head}"
        bits = f"{name}  {entropy[layer, head]:.2f} bits"
        titles.append(bits if len(bits) <= room and "nan" not in bits else name)
    return titles


def _legend(
    pooled: Attention, maps: Sequence[Map], plan: Plan, ink: Ink, scale: LogScale
) -> list[Text]:
    """The scale, each mark that occurs, and what a cell is."""
    plain = ink.ascii_only
    codes = [round(i * (ink.levels - 1) / 15) for i in range(16)]
    left, right = ("", "") if ink.colored else ("[", "]")
    low, top = f"{scale.low:.1g} {left}", f"{right} {scale.top:.2g}, logarithmic"
    pieces = [Text.assemble(low, *map(ink.cell, codes), top)]
    for kind in sorted({int(kind) for one in maps for kind in np.unique(one.kinds)} - {WEIGHT}):
        words = WORDS[kind]
        names = [name for name in pooled.masks if name != "padding"]
        if kind == FORBIDDEN and names:
            words += f" by {', '.join(map(printable, names))}"
        sample = sample_of(ink, ink.levels + kind, plan)
        pieces.append(sample.append(notation(f" {words}", plain)))
    rows, keys = pooled.cells
    of = f"each cell is the mean of {rows} × {keys} weights, those that are allowed"
    size = f"{pooled.n_queries:,} × {pooled.n_keys:,} in all"
    said = ("rows: queries", "columns: keys", "numbers: positions", f"{of}; {size}")
    return [*pieces, *(Text(notation(text, plain)) for text in said)]
