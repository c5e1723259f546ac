"""The page of a long run: a map to zoom into, and what each row looks at, in one HTML file.

How a page's parts become one file is told in `one_file`. Numbers go into it as blocks: bytes,
compressed with zlib and written in base64, each in an element `d0`, `d1`, … that the JSON names.

- Tokens: a JSON list, of all tokens of one side of one sequence.
- Pixels: one byte each, row after row; a block for each head, each kind (mean, largest) and each
  level of the pyramid, of which every next one has half as many pixels a side, pooled exactly. 0 is
  forbidden: a pixel without allowed cells. 1 is exactly 0, and 2 more than 0 but less than `low`;
  3 … are `low · ratio^(byte - 3)`; 255 is no number.
- How many cells of each of the finest pixels are allowed: whole numbers.
- Each row's largest keys, as place + 1, 0 for none; their weights as 1 + log(weight / low) /
  log(ratio), the largest of a row as it is, each following one as its difference to the one before.
- Where it is known, the first key and the end of what each row may see, as differences, each to the
  one before.
- Each row's statistics: 0 is 0, others `low · ratio^(number - 1)`, the largest that fits no number;
  1 is `low` or less.
- Parts at full resolution: `DETAIL` × `DETAIL` cells, in bytes as pixels are.

Whole numbers stand as planes: the lowest bytes of all of them, then the next.

What does not fit into the budget is left out, and the page says what: first the finest shades of
pixels and then the finest pixels, until they take little more than half of it; then keys of each
row and the statistics of single rows; and it is filled up with parts at full resolution.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from math import ceil, exp, log
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.masks import places_in, spans_from_names
from attnviz.render.one_file import (
    LARGE_PAGE,
    Kind,
    all_heads,
    assemble,
    chosen_values,
    packed,
    run_facts,
)
from attnviz.render.scales import LogScale
from attnviz.result import Attention, RowStatistics
from attnviz.trace import Step
from attnviz.wording import plural

PAGE = Kind(
    (
        "tokens",
        "colours",
        "run",
        "state",
        "scene",
        "parts",
        "card",
        "matrix",
        "trace",
        "download",
        "shell",
        "long_data",
        "long_colours",
        "long_axis",
        "long_heat",
        "long_map",
        "long_card",
        "long_main",
    ),
    ("page.css", "long.css"),
    (("matrix", "Matrix"), ("map", "Map"), ("trace", "Trace")),
    "long_choices.html",
    "long_keys.html",
)

BUDGET = 24_000_000
"""Bytes that the numbers of a page take: what can still be sent by mail."""

PIXEL_SHARE = 0.55
"""The part of the budget that pixels may take: what is left is for rows and for single weights."""

SHADES = (252, 126, 63)
"""Steps between the lowest and the highest weight of a head's pixels."""

DECADES = 6
"""Powers of ten that are told apart, below the largest weight of a head."""

CELL_RATIO = 10.0 ** (DECADES / (SHADES[0] - 1))
"""From one shade to the next, of single cells."""

SMALLEST = 160
"""Pixels along a side below which there is no coarser level: a thumbnail."""

DETAIL = 256
"""Cells along a side of a part at full resolution: a block that `streaming` computes as one."""

DETAIL_CELLS = 2**33
"""Weights that are computed at most, to choose those parts from: less than half a minute."""

FORBIDDEN, ZERO, TINY, FIRST, BROKEN = 0, 1, 2, 3, 255

STATISTICS = {
    "entropy": "bits",
    "largest": "the largest weight",
    "distance": "mean distance, in positions",
    "first": "weight on the first token",
    "previous": "weight on the token before",
    "self": "weight on the token itself",
    "near": "weight on tokens less than {near} positions away",
}

Array = npt.NDArray[Any]
Pair = tuple[int, int]

Window = Callable[[range, range, int, Pair], tuple[Array, Array]]
"""(queries, keys, sequence, (place, head)) -> (weights, allowed), both `[queries keys]`."""


def write_pooled_page(
    pooled: Attention,
    path: Path,
    *,
    heads: Sequence[Pair] | None = None,
    steps: Sequence[Step] = (),
    command: str = "",
    sequences: Sequence[int] | None = None,
    window: Window | None = None,
    budget_bytes: int = BUDGET,
) -> list[str]:
    """Write `pooled` as one interactive page to `path`, and return remarks for the person.

    `heads` are (place of the layer, head) pairs, `sequences` indices into the batch; None means
    all. `steps` is the trace of the run, `command` the line that made it. `window` computes parts
    at full resolution (see `attnviz.full_resolution`); None leaves them out.
    `budget_bytes` is what the page's numbers may take; what it leaves out is in the remarks.
    The same input gives the same bytes.
    """
    chosen = list(heads) if heads is not None else all_heads(pooled)
    rows = list(sequences) if sequences is not None else list(range(pooled.batch_size))
    blocks = Blocks()
    tokens = [_tokens(pooled, s, blocks) for s in rows]
    room = budget_bytes - blocks.size
    factor, shades = _pixel_plan(pooled, rows, chosen, room * PIXEL_SHARE)
    drawn = pooled.coarser(factor)
    levels = list(pyramid(drawn))
    pixels = [[_pixels(levels, s, head, shades, blocks) for head in chosen] for s in rows]
    room = budget_bytes - blocks.size
    plan = _row_plan(pooled, rows, chosen, room)
    spans = [[_spans(pooled, s, head[0], blocks) for head in chosen] for s in rows]
    of_rows = [[_rows(pooled, s, head, plan, blocks) for head in chosen] for s in rows]
    details, shown = _details(drawn, rows, chosen, window, pixels, budget_bytes, blocks)
    error = max((one[kind]["error"] for s in pixels for one in s for kind in KINDS), default=0.0)
    facts = {
        **run_facts(pooled, chosen, steps, command),
        "queries": pooled.n_queries,
        "keys": pooled.n_keys,
        "measures": {n: t.format(near=_statistics(pooled).near) for n, t in STATISTICS.items()},
        "cells": list(drawn.cells),
        "levels": [list(level.mean.shape[3:]) for level in levels],
        "detail": DETAIL,
        "top": plan.top,
        "rowsEach": plan.rows,
        "near": _statistics(pooled).near,
        "rowError": max(
            (x["error"] for s in of_rows for one in s for x in one["statistics"].values()),
            default=0.0,
        ),
        "error": error,
        "cellError": CELL_RATIO**0.5 - 1,
        "stored": "; ".join([*_stored(pooled, drawn, plan), *shown]),
        "sequences": [
            {
                "index": s,
                **tokens[i],
                "queryReal": list(pooled.places(s, 0)),
                "keyReal": list(pooled.places(s, 1)),
                "measures": _measures(pooled, s, chosen),
                "scale": _common(pixels[i]),
                "heads": [
                    {
                        **pixels[i][n],
                        **of_rows[i][n],
                        "spans": spans[i][n],
                        "details": details[i][n],
                    }
                    for n in range(len(chosen))
                ],
            }
            for i, s in enumerate(rows)
        ],
    }
    page = assemble(PAGE, facts, {f"d{i}": text for i, text in enumerate(blocks.texts)})
    path.write_bytes(page)
    return _remarks(pooled, drawn, plan, len(page))


KINDS = ("mean", "largest")


def _measures(pooled: Attention, s: int, heads: Sequence[Pair]) -> dict[str, list[float | None]]:
    means = pooled.row_means(s)
    return chosen_values({name: means[name] for name in STATISTICS}, heads)


# ── blocks ───────────────────────────────────────────────────────────────────────────────────


@dataclass
class Blocks:
    """The page's blocks; one that is the same as an earlier one is that one."""

    texts: list[str] = field(default_factory=list)
    size: int = 0
    _known: dict[bytes, int] = field(default_factory=dict)

    def add(self, data: bytes) -> int:
        """The number of the block with these bytes."""
        return self.add_packed(data, None)

    def add_packed(self, data: bytes, text: str | None) -> int:
        key = sha256(data).digest()
        if key not in self._known:
            self._known[key] = len(self.texts)
            self.texts.append(packed(data) if text is None else text)
            self.size += len(self.texts[-1]) + 50  # and its element
        return self._known[key]


def planes(numbers: Array, width: int) -> bytes:
    """The lowest byte of each of the numbers, then the next, `width` of them."""
    flat = np.ascontiguousarray(numbers, np.uint64).ravel()
    return b"".join(((flat >> (8 * i)) & 255).astype(np.uint8).tobytes() for i in range(width))


def bytes_for(largest: int) -> int:
    """Bytes that a number up to `largest` takes."""
    return max(1, ceil(int(largest).bit_length() / 8))


def _tokens(pooled: Attention, s: int, blocks: Blocks) -> dict[str, Any]:
    texts = (pooled.query_tokens[s], pooled.key_tokens[s])
    start, end = pooled.places(s, 0)
    numbers = [blocks.add(json.dumps(list(text)).encode()) for text in texts]
    return {"tokens": numbers, "opening": list(texts[0][start : min(end, start + 8)])}


# ── pixels ───────────────────────────────────────────────────────────────────────────────────


def pyramid(pooled: Attention) -> Iterator[Attention]:
    """The finest level, then coarser ones, each pooled exactly from the finest."""
    factor = 1
    yield pooled
    while max(pooled.mean.shape[3:]) > SMALLEST * factor:
        factor *= 2
        yield pooled.coarser(factor)


@dataclass(frozen=True)
class Shades:
    """Weights as bytes: `low · ratio^(byte - 3)`."""

    low: float
    ratio: float
    steps: int

    @classmethod
    def of(cls, weights: Array, steps: int, decades: int = DECADES) -> Shades:
        """For weights up to the largest of these, and down to the smallest or `decades` less."""
        some = weights[np.isfinite(weights) & (weights > 0)]
        top = float(some.max(initial=0.0))
        if not top:
            return cls(1.0, 1.0, steps)
        low = max(float(some.min()), top * 10.0**-decades)
        return cls(low, exp(log(top / low) / (steps - 1)), steps)

    @property
    def error(self) -> float:
        """How far a weight may be from what its byte says, as a share of it."""
        return float(self.ratio**0.5 - 1)

    def bytes_of(self, weights: Array, allowed: Array) -> npt.NDArray[np.uint8]:
        step = log(self.ratio) or 1.0
        exact = weights.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.log(exact / self.low) / step
            found = FIRST + np.clip(np.rint(np.nan_to_num(place)), 0, self.steps - 1)
        found[place < -0.5] = TINY
        found[exact == 0] = ZERO
        found[~(np.isfinite(exact) & (exact >= 0))] = BROKEN
        found[~allowed] = FORBIDDEN
        return np.asarray(found, np.uint8)


def _map(level: Attention, kind: str, s: int, head: Pair) -> tuple[Array, Array]:
    """The pixels of a head and how many cells of each are allowed."""
    weights = (level.mean if kind == "mean" else level.largest)[head[0], s, head[1]]
    return weights, level.counts[head[0], s, head[1] if level.counts.shape[2] > 1 else 0]


def _pixels(
    levels: Sequence[Attention], s: int, head: Pair, steps: int, blocks: Blocks
) -> dict[str, Any]:
    """All levels of a head as blocks, and what its bytes mean."""
    counts = _map(levels[0], "mean", s, head)[1]
    width = bytes_for(int(counts.max()))
    made: dict[str, Any] = {"counts": blocks.add(planes(counts, width)), "countBytes": width}
    for kind in KINDS:
        finest = _map(levels[0], kind, s, head)[0]
        shades = Shades.of(finest, steps)
        numbers = []
        for level in levels:
            weights, allowed = _map(level, kind, s, head)
            numbers.append(blocks.add(shades.bytes_of(weights, allowed > 0).tobytes()))
        scale = LogScale.of(finest)
        made[kind] = {
            "levels": numbers,
            "low": shades.low,
            "ratio": shades.ratio,
            "error": shades.error,
            "from": scale.low,
            "top": scale.top,
        }
    # single cells go further down than the largest of many
    made["cell"] = {
        "low": made["largest"]["top"] * 10.0**-DECADES,
        "ratio": CELL_RATIO,
    }
    return made


def _common(heads: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """One scale for all heads: up to the largest weight, and as far down as any head's own."""
    return {
        kind: [min(h[kind]["from"] for h in heads), max(h[kind]["top"] for h in heads)]
        for kind in KINDS
    }


def _pixel_plan(
    pooled: Attention, rows: Sequence[int], heads: Sequence[Pair], room: float
) -> tuple[int, int]:
    """(factor, shades): the finest that fit. Sizes are judged by some rows of each head."""
    level, factor = pooled, 1
    while True:
        for steps in SHADES:
            if _judged(level, rows, heads, steps) <= room:
                return factor, steps
        if max(level.mean.shape[3:]) <= SMALLEST:
            return factor, SHADES[-1]
        factor *= 2
        level = pooled.coarser(factor)


def _judged(level: Attention, rows: Sequence[int], heads: Sequence[Pair], steps: int) -> float:
    """Characters that these pixels and their coarser levels take, about."""
    n = level.mean.shape[3]
    band = np.arange(n) // 16 % 8 == 4 if n >= 512 else np.ones(n, bool)
    taken = 0
    for s in rows:
        for head in heads:
            for kind in KINDS:
                weights, allowed = _map(level, kind, s, head)
                shades = Shades.of(weights, steps)
                taken += len(packed(shades.bytes_of(weights[band], allowed[band] > 0).tobytes()))
    return float(taken * n / int(band.sum()) * 4 / 3)


# ── rows ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RowPlan:
    """What is told of rows: `top` keys of each, and statistics in `width` bytes, each the mean of
    `rows` rows."""

    top: int
    width: int
    rows: int


def _row_plans(pooled: Attention) -> list[RowPlan]:
    """From everything to next to nothing."""
    most, cells = _statistics(pooled).top_keys.shape[-1], pooled.cells[0]
    plans = [RowPlan(most, 2, 1), RowPlan(most, 1, 1)]
    for top, rows in ((4, 1), (4, 8), (2, 8), (1, 8)):
        if top < most and rows < cells:
            plans.append(RowPlan(top, 1, rows))
    return [*plans, RowPlan(min(1, most), 1, cells), RowPlan(0, 1, cells)]


def _row_plan(
    pooled: Attention, rows: Sequence[int], heads: Sequence[Pair], room: float
) -> RowPlan:
    plans = _row_plans(pooled)
    band = slice(None)
    if pooled.n_queries >= 8192:
        middle = pooled.n_queries // 2
        band = slice(middle, middle + 2048)
    share = len(range(pooled.n_queries)[band]) / pooled.n_queries
    for plan in plans[:-1]:
        judged = Blocks()
        for s in rows:
            for head in heads:
                _rows(pooled, s, head, plan, judged, band)
        if judged.size / share * 1.03 <= room:
            return plan
    return plans[-1]


def _rows(
    pooled: Attention,
    s: int,
    head: Pair,
    plan: RowPlan,
    blocks: Blocks,
    band: slice = slice(None),
) -> dict[str, Any]:
    """The numbers of the rows of a head as blocks, and what they mean."""
    at = (head[0], s, head[1], band)
    made: dict[str, Any] = {"statistics": {}}
    most = 2 ** (8 * plan.width) - 1
    for name in STATISTICS:
        values = _means(_statistics(pooled).statistics[name][at].astype(np.float64), plan.rows)
        shades = Shades.of(values, most - 1, DECADES if plan.width == 1 else 60)
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.rint(np.log(values / shades.low) / (log(shades.ratio) or 1.0))
        numbers = 1 + np.clip(np.nan_to_num(place), 0, most - 2)
        numbers[values <= 0] = 0
        numbers[~np.isfinite(values)] = most
        made["statistics"][name] = {
            "block": blocks.add(planes(numbers, plan.width)),
            "width": plan.width,
            "low": shades.low,
            "ratio": shades.ratio,
            "most": float(values[np.isfinite(values)].max(initial=0.0)),
            "error": shades.error,
            # whether number 1 stands for values far below `low` as well
            "tiny": bool(((values > 0) & (values < shades.low / shades.ratio)).any()),
        }
    if plan.top:
        own = _statistics(pooled)
        made["top"] = _top(own.top_keys[at], own.top_weights[at], plan.top, blocks)
    return made


def _top(keys: Array, weights: Array, top: int, blocks: Blocks) -> dict[str, Any]:
    keys, weights = keys[:, :top].T, weights[:, :top].T.astype(np.float64)
    real = (keys >= 0) & (weights > 0) & np.isfinite(weights)
    some = weights[real]
    low, high = (float(some.min()), float(some.max())) if len(some) else (1.0, 1.0)
    step = log(high / low) / 65_000
    codes = np.zeros(weights.shape, np.int64)
    codes[real] = 1 + np.rint(np.log(weights[real] / low) / (step or 1.0))
    # the largest first, so that no difference is below 0
    codes = np.minimum.accumulate(codes, axis=0)
    codes[1:] = codes[:-1] - codes[1:]
    width = bytes_for(keys.max(initial=0) + 1)
    return {
        "keys": blocks.add(planes(np.where(real, keys + 1, 0), width)),
        "width": width,
        "weights": blocks.add(planes(codes, 2)),
        "low": low,
        "ratio": exp(step),
    }


def _statistics(pooled: Attention) -> RowStatistics:
    assert pooled.rows is not None  # maps that are pooled have them
    return pooled.rows


def _means(values: Array, rows: int) -> Array:
    """The mean of each `rows` values; the last may be of fewer."""
    starts = np.arange(0, len(values), rows)
    return np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))


# ── who may look at whom ──────────────────────────────────────────────────────────────────────


def _spans(pooled: Attention, s: int, layer: int, blocks: Blocks) -> list[int] | None:
    """The first key and the end of what each query may see, as two blocks; None if not known."""
    found = spans_of(pooled, s, layer)
    if found is None:
        return None
    return [blocks.add(planes(np.diff(places, prepend=0) & 0xFFFFFFFF, 4)) for places in found]


def spans_of(pooled: Attention, s: int, layer: int) -> tuple[Array, Array] | None:
    """(first, end) of the keys that each query may see, `[Tq]` each; None if masks do not say.

    They follow from q and k that were kept, or from the names of the masks; in the second case
    they are held against the numbers of allowed cells, since a model's layers may differ.
    """
    if pooled.has_weights_kept:
        return pooled.kept["first_key"][layer, s], pooled.kept["end_key"][layer, s]
    names = [name for name in pooled.masks if name != "real rows"]
    found = spans_from_names(names, places_in(pooled), s, pooled.layer_numbers[layer])
    if found is None:
        return None
    first, end = found
    end = np.where(pooled.query_valid[s], np.maximum(first, end), first)
    counts = np.add.reduceat(end - first, np.arange(0, pooled.n_queries, pooled.cells[0]))
    if not (pooled.counts[layer, s].sum(-1) == counts).all():
        return None
    return first, end


# ── parts at full resolution ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Part:
    """A part of a map, (row, column) in units of `DETAIL`, and its largest weight."""

    largest: float
    sequence: int
    head: int
    row: int
    column: int


def _details(
    drawn: Attention,
    rows: Sequence[int],
    heads: Sequence[Pair],
    window: Window | None,
    pixels: Sequence[Sequence[Mapping[str, Any]]],
    budget: int,
    blocks: Blocks,
) -> tuple[list[list[list[list[int]]]], list[str]]:
    """[row, column, block] of each part at full resolution, by sequence and head, and a note.

    The parts with the largest weights come first, of all heads and sequences, until the budget or
    `DETAIL_CELLS` is used.
    """
    found: list[list[list[list[int]]]] = [[[] for _ in heads] for _ in rows]
    if window is None or max(drawn.cells) == 1:
        return found, []
    ranked = sorted(
        (
            part
            for i, s in enumerate(rows)
            for n, head in enumerate(heads)
            for part in _parts(drawn, s, i, n, head)
        ),
        key=lambda part: (-part.largest, part.sequence, part.head, part.row, part.column),
    )
    room = budget - blocks.size
    wanted = _affordable(ranked, room, drawn.n_keys)
    made: dict[_Part, bytes] = {}
    in_order = sorted(wanted, key=lambda p: (heads[p.head][0], p.head, p.sequence, p.row, p.column))
    for (n, i, row), some in groupby(in_order, key=lambda p: (p.head, p.sequence, p.row)):
        parts = list(some)
        queries = _span(row, drawn.n_queries)
        keys = range(parts[0].column * DETAIL, _span(parts[-1].column, drawn.n_keys).stop)
        weights, allowed = window(queries, keys, rows[i], heads[n])
        own = pixels[i][n]["cell"]
        shades = Shades(own["low"], own["ratio"], SHADES[0])
        bytes_ = shades.bytes_of(weights, allowed)
        for part in parts:
            columns = _span(part.column, drawn.n_keys)
            cut = slice(columns.start - keys.start, columns.stop - keys.start)
            made[part] = np.ascontiguousarray(bytes_[:, cut]).tobytes()
    n_kept = 0
    for part in wanted:
        text = packed(made[part])
        if blocks.size + len(text) > budget:
            break
        block = blocks.add_packed(made[part], text)
        found[part.sequence][part.head].append([part.row, part.column, block])
        n_kept += 1
    share = n_kept / max(1, len(ranked))
    whole = f"{n_kept:,} of {len(ranked):,} parts of {DETAIL} × {DETAIL} cells"
    note = (
        f"every cell of {whole} ({share:.0%}) is here at full resolution: those with the largest "
        "weights first"
    )
    return found, [note]


def _parts(drawn: Attention, s: int, i: int, n: int, head: Pair) -> Iterator[_Part]:
    """Every part of a head that has something to show."""
    largest, allowed = _map(drawn, "largest", s, head)
    edges = []
    for pixels, cells, size in zip(
        largest.shape, drawn.cells, (drawn.n_queries, drawn.n_keys), strict=True
    ):
        starts = np.arange(0, size, DETAIL) // cells
        stops = np.minimum((np.arange(0, size, DETAIL) + DETAIL - 1) // cells + 1, pixels)
        edges.append(list(zip(starts.tolist(), stops.tolist(), strict=True)))
    for row, (top, bottom) in enumerate(edges[0]):
        for column, (left, right) in enumerate(edges[1]):
            where = (slice(top, bottom), slice(left, right))
            if allowed[where].any():
                yield _Part(float(np.nan_to_num(largest[where]).max()), i, n, row, column)


def _affordable(ranked: Sequence[_Part], room: int, keys: int) -> list[_Part]:
    """The first parts, as many as the room may hold and the time allows to compute."""
    wanted, blocks_of_rows = [], set()
    for part in ranked[: max(0, room // (DETAIL * DETAIL // 2))]:
        blocks_of_rows.add((part.sequence, part.head, part.row))
        if len(blocks_of_rows) * DETAIL * keys > DETAIL_CELLS:
            break
        wanted.append(part)
    return wanted


def _span(part: int, size: int) -> range:
    return range(part * DETAIL, min((part + 1) * DETAIL, size))


# ── words ────────────────────────────────────────────────────────────────────────────────────


def _stored(pooled: Attention, drawn: Attention, plan: RowPlan) -> list[str]:
    """What of the run is on the page."""
    rows, keys = drawn.cells
    cells = f"a pixel is {rows} × {keys} cells" if rows * keys > 1 else "a pixel is one cell"
    notes = [f"{cells}, pooled from all weights"]
    if drawn.cells != pooled.cells:
        notes[0] += f" (the run has {pooled.cells[0]} × {pooled.cells[1]})"
    most = _statistics(pooled).top_keys.shape[-1]
    if plan.top:
        notes.append(f"each row's {plan.top} largest weights, of {most} that the run tells")
    if plan.rows > 1:
        notes.append(f"statistics are means of {plan.rows} rows")
    return notes


def _remarks(pooled: Attention, drawn: Attention, plan: RowPlan, size: int) -> list[str]:
    """What was left out, for the person who wrote the page."""
    left_out = []
    if drawn.cells != pooled.cells:
        left_out.append(
            f"its pixels are {drawn.cells[0]} × {drawn.cells[1]} cells instead of "
            f"{pooled.cells[0]} × {pooled.cells[1]}"
        )
    most = _statistics(pooled).top_keys.shape[-1]
    if plan.top < most:
        keys = plural(plan.top, "largest key") if plan.top else "no keys"
        left_out.append(f"it names {keys} of each row instead of {most}")
    if plan.rows > 1:
        left_out.append(f"its statistics are means of {plan.rows} rows")
    remarks = []
    if left_out:
        remarks.append(
            f"to keep the page at {size / 1e6:.0f} MB {', '.join(left_out)}; "
            "--heads and --sequences choose fewer, with more of each"
        )
    if size > LARGE_PAGE:
        remarks.append(
            f"the page has {size / 1e6:.0f} MB and opens slowly; "
            "--heads and --sequences make it smaller"
        )
    return remarks
