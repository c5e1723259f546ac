"""One interactive page: a single HTML file that needs no network, no server and no other file.

How the page's parts become one file is told in `one_file`, how numbers are stored in
`page_numbers`, and what is drawn comes from `page_maps`. A page is a pyramid of pixels for each
head; a short map is a pyramid of one level whose pixels are cells. The JSON names blocks of

- tokens: a JSON list of all tokens of one side of one sequence;
- pixels: codes, row after row, for each kind (mean, largest; one where a pixel is a cell) and each
  level. The page makes coarser levels of single cells itself;
- masks, where a pixel is a cell: one byte each, 0 where a query may look, else which of `reasons`
  forbids it. Else how many cells of each of the finest pixels are allowed, and, where it is known,
  the first key and the end of what each row may see, as differences, each to the one before;
- each row's largest keys, as place + 1, 0 for none, and their weights as differences to the one
  before; not where two bytes a cell tell them as well;
- each row's statistics: 0 is 0, others `low · ratio^(number - 1)`, the largest is not a number, 1
  is `low` or less;
- parts at full resolution: `DETAIL` × `DETAIL` cells as codes.

Cells have two bytes while the page stays within `LIMIT`. Above that they have one; and what does
not fit into the budget is left out, and the page reports what: first finer shades, then the finest
pixels, until they take little more than half of it; then keys and statistics of single rows; and
the room that is left is filled with parts at full resolution.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.measures import MEASURES
from attnviz.render.one_file import (
    LARGE_PAGE,
    all_heads,
    assemble,
    chosen_values,
    packed,
    run_facts,
)
from attnviz.render.page_look import PageLook
from attnviz.render.page_maps import MOST_KEYS, STATISTICS, Level, Maps
from attnviz.render.page_numbers import (
    ERRORS,
    FIRST,
    ZERO,
    Blocks,
    DecimalCodes,
    LogCodes,
    bytes_for,
    list_codes,
    planes,
)
from attnviz.render.scales import LogScale
from attnviz.result import Attention
from attnviz.trace import Step

LIMIT = 24_000_000
"""Bytes that a page may take: what can still be sent by mail."""

CODED_LIMIT = 15_400_000
"""Bytes for the numbers of whole maps that do not fit with two bytes a cell."""

PIXEL_SHARE = 0.55
"""The part of the budget that pooled pixels may take: the rest is for rows and single weights."""

CELL_SHARE = 0.8
"""The part of the budget that pixels of whole maps may take."""

FINE_CELLS = 2**20
"""Up to so many cells, two bytes each fit in any case."""

DETAIL = 256
"""Cells along a side of a part at full resolution: a block that `streaming` computes as one."""

DETAIL_CELLS = 2**33
"""Weights that are computed at most, to choose those parts from: less than half a minute."""

WRITTEN = "the model wrote what stands after the line, in bold in the text"
"""What the page says of a prompt and its answer."""

KINDS = ("mean", "largest")

Array = npt.NDArray[Any]
Pair = tuple[int, int]
Window = Callable[[range, range, int, Pair], tuple[Array, Array]]
"""(queries, keys, sequence, (place, head)) -> (weights, allowed), both `[queries keys]`."""


@dataclass(frozen=True)
class PagePlan:
    """How much a page tells: two bytes a pixel or shades of some error, pixels of how many of the
    run's, `top` keys of each row, and statistics in `width` bytes, each the mean of `rows` rows."""

    fine: bool = False
    error: float = ERRORS[0]
    factor: int = 1
    top: int = 0
    width: int = 2
    rows: int = 1


def write_page(
    result: Attention,
    path: Path,
    *,
    heads: Sequence[Pair] | None = None,
    steps: Sequence[Step] = (),
    command: str = "",
    sequences: Sequence[int] | None = None,
    window: Window | None = None,
    look: PageLook | None = None,
    budget_bytes: int | None = None,
) -> list[str]:
    """Write `result` as one interactive page to `path`, and return warnings for the person.

    `heads` are (place of the layer, head) pairs, `sequences` indices into the batch; None means
    all. `steps` is the trace of the run, `command` the line that made it. `window` computes parts
    of a pooled map at full resolution; None if they are not known. `budget_bytes` is what the
    page's numbers may take. The same input gives the same bytes.
    """
    chosen = list(heads) if heads is not None else all_heads(result)
    rows = list(sequences) if sequences is not None else list(range(result.batch_size))
    page = _Page(result, chosen, rows, budget_bytes)
    document = page.document(window or (None if result.is_pooled else page.maps.window))
    document |= run_facts(result, chosen, steps, command) | (look or PageLook()).described()
    if page.answers:
        document["notes"] = [*document["notes"], WRITTEN]
    data = {f"d{i}": text for i, text in enumerate(page.blocks.texts)}
    written = assemble(document, data)
    path.write_bytes(written)
    return page.warnings(len(written))


class _Page:
    """The numbers of one page while it is written."""

    def __init__(
        self,
        result: Attention,
        heads: list[Pair],
        rows: list[int],
        budget: int | None,
    ) -> None:
        self.result, self.heads, self.rows = result, heads, rows
        self.maps = Maps(result)
        self.blocks = Blocks()
        self.tokens = [self._tokens(s) for s in rows]
        self.answers = bool(result.n_prompt)
        self.budget = budget or (LIMIT if result.is_pooled else CODED_LIMIT)
        self.plan = self._plan(budget or LIMIT)
        self.cells = (
            self.maps.cells[0] * self.plan.factor,
            self.maps.cells[1] * self.plan.factor,
        )
        self.single = self.cells == (1, 1)
        self.reasons: list[str] = []

    # ── what fits ──

    def _plan(self, fine_budget: int) -> PagePlan:
        if self.maps.cells == (1, 1):
            room = fine_budget - self.blocks.size
            most = self._most_keys() if self.result.is_pooled else 0
            fine = PagePlan(fine=True, top=most)
            if self._cells() <= FINE_CELLS or self._pixel_size(fine) + self._row_size(fine) <= room:
                return fine
        room = self.budget - self.blocks.size
        plan = self._pixel_plan(room)
        most = self._most_keys()
        plans = [PagePlan(False, plan.error, plan.factor, most, width) for width in (2, 1)]
        for top, rows in ((4, 1), (4, 8), (2, 8), (1, 8)):
            if top < most and rows < self.maps.cells[0] * plan.factor:
                plans.append(PagePlan(False, plan.error, plan.factor, top, 1, rows))
        rows = max(self.maps.cells[0] * plan.factor, 1)
        plans.append(PagePlan(False, plan.error, plan.factor, min(1, most), 1, rows))
        left = room - self._pixel_size(plan)
        fitting = (one for one in plans if self._row_size(one) * 1.03 <= left)
        return next(fitting, PagePlan(False, plan.error, plan.factor, 0, 1, rows))

    def _pixel_plan(self, room: float) -> PagePlan:
        factor = 1
        while True:
            share = PIXEL_SHARE if self.result.is_pooled else CELL_SHARE
            for error in ERRORS:
                plan = PagePlan(False, error, factor)
                if self._pixel_size(plan) <= room * share:
                    return plan
            if max(self._pixels()) <= 160 * factor:
                return plan
            factor *= 2

    def _pixels(self) -> tuple[int, int]:
        sizes = (self.result.n_queries, self.result.n_keys)
        return -(-sizes[0] // self.maps.cells[0]), -(-sizes[1] // self.maps.cells[1])

    def _cells(self) -> int:
        down, across = self._pixels()
        return len(self.rows) * len(self.heads) * down * across

    def _most_keys(self) -> int:
        rows = self.result.rows
        return min(MOST_KEYS, self.result.n_keys) if rows is None else int(rows.top_keys.shape[-1])

    def _some(self) -> list[tuple[int, Pair]]:
        """At most 24 of the heads, evenly spread: sizes are estimated by them."""
        every = [(s, head) for s in self.rows for head in self.heads]
        return every[:: max(1, len(every) // 24)]

    def _pixel_size(self, plan: PagePlan) -> float:
        """Characters that the pixels take, about: estimated by some rows of some heads."""
        some = self._some()
        taken = 0.0
        for s, head in some:
            level = self.maps.level(s, head).coarser(plan.factor)
            n = len(level.mean)
            band = np.arange(n) // 16 % 8 == 4 if n >= 256 else np.ones(n, bool)
            single = self.maps.cells == (1, 1) and plan.factor == 1
            for kind in KINDS[: 1 if single else 2]:
                weights = getattr(level, kind)
                codec = DecimalCodes.of(weights) if plan.fine else LogCodes.of(weights, plan.error)
                codes = codec.codes(weights[band], level.allowed[band] > 0)
                size = len(packed(planes(codes, codec.width)))
                taken += size * n / int(band.sum()) * (1 if single else 4 / 3)
        return taken * len(self.rows) * len(self.heads) / len(some)

    def _row_size(self, plan: PagePlan) -> float:
        n = self.result.n_queries
        band = slice(n // 2, n // 2 + 2048) if n >= 8192 else slice(None)
        some, blocks = self._some(), Blocks()
        for s, head in some:
            _rows(self.maps, s, head, plan, blocks, band)
        share = len(range(n)[band]) / n
        return blocks.size / share * len(self.rows) * len(self.heads) / len(some)

    # ── what is stored ──

    def document(self, window: Window | None) -> dict[str, Any]:
        """Everything of the page but the run's facts."""
        plan, n = self.plan, len(self.heads)
        levels: list[list[int]] = []
        of_heads = [[self._head(s, head, levels) for head in self.heads] for s in self.rows]
        if window is None or self.single:
            details: Any = [[[] for _ in self.heads] for _ in self.rows]
            self.detail_note = ""
        else:
            details, self.detail_note = self._details(of_heads, window)
        flat = [one for row in of_heads for one in row]
        errors = [one[kind]["error"] for one in flat for kind in KINDS if kind in one]
        return {
            "queries": self.result.n_queries,
            "keys": self.result.n_keys,
            "cells": list(self.cells),
            "levels": levels,
            "detail": DETAIL,
            "fine": plan.fine,
            "top": plan.top or (MOST_KEYS if plan.fine else 0),
            "rowsEach": plan.rows,
            "near": self.maps.near,
            "reasons": self.reasons,
            "measures": self._statistics() if self.result.is_pooled else MEASURES,
            "statistics": self._statistics(),
            "rowError": max((one["rowError"] for one in flat), default=0.0),
            "error": max(errors, default=0.0),
            "cellError": ERRORS[0],
            "stored": "; ".join(self._stored()),
            "sequences": [
                {
                    **self._sequence(s, self.tokens[i]),
                    "scale": _common(of_heads[i]),
                    "heads": [{**of_heads[i][j], "details": details[i][j]} for j in range(n)],
                }
                for i, s in enumerate(self.rows)
            ],
        }

    def _statistics(self) -> dict[str, str]:
        return {name: text.format(near=self.maps.near) for name, text in STATISTICS.items()}

    def _tokens(self, s: int) -> dict[str, Any]:
        texts = (self.result.query_tokens[s], self.result.key_tokens[s])
        numbers = [self.blocks.add(json.dumps(list(text)).encode()) for text in texts]
        start, end = self.result.places(s, 0)
        return {"tokens": numbers, "opening": list(texts[0][start : min(end, start + 8)])}

    def _sequence(self, s: int, tokens: dict[str, Any]) -> dict[str, Any]:
        start, end = self.result.places(s, 0)
        prompt = (
            self.result.n_prompt[s] if isinstance(self.result, Attention) and self.answers else 0
        )
        return {
            "index": s,
            **tokens,
            "queryReal": [start, end],
            "keyReal": list(self.result.places(s, 1)),
            "answer": start + prompt if self.answers else None,
            "measures": chosen_values(self.maps.measures(s, self.heads), self.heads),
        }

    def _head(self, s: int, head: Pair, sizes: list[list[int]]) -> dict[str, Any]:
        finest = self.maps.level(s, head).coarser(self.plan.factor)
        levels = list(finest.pyramid())
        sizes[:] = [list(level.mean.shape) for level in levels]
        made = _rows(self.maps, s, head, self.plan, self.blocks)
        if self.single:
            made["mask"] = self._mask(s, head, finest)
            levels = levels[:1]
        else:
            width = bytes_for(int(finest.allowed.max()))
            made["counts"] = self.blocks.add(planes(finest.allowed, width))
            made["countBytes"] = width
        spans = None if self.single else self.maps.spans(s, head[0])
        made["spans"] = None if spans is None else self._spans(spans)
        if not self.single:
            made["masks"] = [
                [self._reason(sentence), *self._spans(places)]
                for sentence, places in self.maps.spans_of_masks(s, head[0])
            ]
        for kind in KINDS[: 1 if self.single else 2]:
            made[kind] = self._kind(kind, s, levels)
        if not self.single:
            cells = LogCodes.of(np.array([made["largest"]["top"], 1e-30]))
            made["cell"] = cells.described()
        return made

    def _kind(self, kind: str, s: int, levels: list[Level]) -> dict[str, Any]:
        weights = getattr(levels[0], kind)
        codec = (
            DecimalCodes.of(weights) if self.plan.fine else LogCodes.of(weights, self.plan.error)
        )
        blocks = []
        for level in levels:
            # what a whole map holds where a mask forbids it is stored too: it should be 0
            allowed = np.ones_like(level.allowed, bool) if self.single else level.allowed > 0
            codes = codec.codes(getattr(level, kind), allowed)
            blocks.append(self.blocks.add(planes(codes, codec.width)))
        scale = LogScale.of(self._shown(weights, levels[0].allowed, s))
        return {
            "levels": blocks,
            **codec.described(),
            "error": codec.error,
            "from": scale.low,
            "top": scale.top,
        }

    def _shown(self, weights: Array, allowed: Array, s: int) -> npt.NDArray[np.float32]:
        """The weights that the scale is of: of real tokens, where the mask lets a query look."""
        if not self.single:
            return weights
        (q, q_end), (k, k_end) = (self.result.places(s, side) for side in (0, 1))
        where = np.s_[q:q_end, k:k_end]
        with np.errstate(over="ignore"):
            return weights[where][allowed[where] > 0].astype(np.float32)

    def _mask(self, s: int, head: Pair, level: Level) -> int | None:
        """The block that tells why each cell is forbidden; None where all are allowed."""
        if (level.allowed > 0).all():
            return None
        codes, sentences = self.maps.reasons.of_head(head[0], s, head[1])
        known = np.array([self._reason(sentence) for sentence in sentences], np.uint8)
        return self.blocks.add(known[codes].tobytes())

    def _reason(self, sentence: str) -> int:
        """The number of a reason on the page, 0 for none."""
        if not sentence:
            return 0
        if sentence not in self.reasons:
            self.reasons.append(sentence)
        return min(1 + self.reasons.index(sentence), 255)

    def _spans(self, places: tuple[Array, Array]) -> list[int]:
        """The first key and the end of what each query may see, as two blocks."""
        return [self.blocks.add(planes(np.diff(x, prepend=0) & 0xFFFFFFFF, 4)) for x in places]

    # ── parts at full resolution ──

    def _details(
        self, of_heads: list[list[dict[str, Any]]], window: Window
    ) -> tuple[list[list[list[list[int]]]], str]:
        """[row, column, block] of each part at full resolution, by sequence and head, and a note.

        The parts with the largest weights come first, of all heads and sequences, until the budget
        or `DETAIL_CELLS` is used.
        """
        found: list[list[list[list[int]]]] = [[[] for _ in self.heads] for _ in self.rows]
        ranked = sorted(
            part
            for i in range(len(self.rows))
            for n in range(len(self.heads))
            for part in self._parts(i, n)
        )
        taken = self._affordable(ranked)
        made: dict[MapPart, bytes] = {}
        in_order = sorted(taken, key=lambda p: (self.heads[p[2]][0], p[2], p[1], p[3], p[4]))
        for (n, i, row), some in groupby(in_order, key=lambda p: (p[2], p[1], p[3])):
            parts = list(some)
            queries = _span(row, self.result.n_queries)
            keys = range(parts[0][4] * DETAIL, _span(parts[-1][4], self.result.n_keys).stop)
            weights, allowed = window(queries, keys, self.rows[i], self.heads[n])
            shades = LogCodes(**of_heads[i][n]["cell"])
            codes = shades.codes(weights, allowed)
            for part in parts:
                columns = _span(part[4], self.result.n_keys)
                cut = slice(columns.start - keys.start, columns.stop - keys.start)
                made[part] = np.ascontiguousarray(codes[:, cut]).tobytes()
        n_kept = 0
        for part in taken:
            text = packed(made[part])
            if self.blocks.size + len(text) > self.budget:
                break
            _, i, n, row, column = part
            found[i][n].append([row, column, self.blocks.add(made[part], text)])
            n_kept += 1
        share = n_kept / max(1, len(ranked))
        return found, (
            f"every cell of {n_kept:,} of {len(ranked):,} parts of {DETAIL} × {DETAIL} cells "
            f"({share:.0%}) is here at full resolution: those with the largest weights first"
        )

    def _parts(self, i: int, n: int) -> list[MapPart]:
        """Every part of a head that has something to show."""
        level = self.maps.level(self.rows[i], self.heads[n]).coarser(self.plan.factor)
        edges = []
        for pixels, cells, size in zip(
            level.mean.shape, self.cells, (self.result.n_queries, self.result.n_keys), strict=True
        ):
            starts = np.arange(0, size, DETAIL) // cells
            stops = np.minimum((np.arange(0, size, DETAIL) + DETAIL - 1) // cells + 1, pixels)
            edges.append(list(zip(starts.tolist(), stops.tolist(), strict=True)))
        made = []
        for row, (top, bottom) in enumerate(edges[0]):
            for column, (left, right) in enumerate(edges[1]):
                where = (slice(top, bottom), slice(left, right))
                if level.allowed[where].any():
                    largest = float(np.nan_to_num(level.largest[where]).max())
                    made.append((-largest, i, n, row, column))
        return made

    def _affordable(self, ranked: Sequence[MapPart]) -> list[MapPart]:
        """The first parts, as many as the room may hold and the time allows to compute."""
        room = self.budget - self.blocks.size
        taken, rows = [], set()
        for part in ranked[: max(0, room // (DETAIL * DETAIL // 2))]:
            rows.add(part[1:4])
            if len(rows) * DETAIL * self.result.n_keys > DETAIL_CELLS:
                break
            taken.append(part)
        return taken

    # ── words ──

    def _stored(self) -> list[str]:
        """What of the run is on the page."""
        rows, keys = self.cells
        notes = []
        if not self.single:
            notes.append(f"a pixel is {rows} × {keys} cells, pooled from all weights")
            if self.plan.factor > 1:
                notes[0] += f" (the run has {self.maps.cells[0]} × {self.maps.cells[1]})"
        elif self.plan.fine:
            notes.append("weights have four correct digits")
        else:
            notes.append(f"weights are within {100 * self.plan.error:g} %, marked ≈")
        if self.plan.top:
            notes.append(f"the {self.plan.top} largest weights of each row have three digits")
        if self.plan.rows > 1:
            notes.append(f"statistics are means of {self.plan.rows} rows")
        return [*notes, *([self.detail_note] if self.detail_note else [])]

    def warnings(self, size: int) -> list[str]:
        """What was left out, for the person who wrote the page."""
        left_out = []
        if self.plan.factor > 1:
            left_out.append(
                f"its pixels are {self.cells[0]} × {self.cells[1]} cells instead of "
                f"{self.maps.cells[0]} × {self.maps.cells[1]}"
            )
        elif not self.plan.fine and self.plan.error > ERRORS[0]:
            left_out.append(f"its weights are within {100 * self.plan.error:g} %")
        most = self._most_keys()
        if self.plan.top < most and not self.plan.fine:
            top = self.plan.top
            keys = f"{top} largest key{'s' * (top != 1)}" if top else "no keys"
            left_out.append(f"it names {keys} of each row instead of {most}")
        if self.plan.rows > 1:
            left_out.append(f"its statistics are means of {self.plan.rows} rows")
        fewer = "--heads and --sequences choose fewer, with more of each"
        found = []
        if left_out:
            found.append(f"to keep the page at {size / 1e6:.0f} MB {', '.join(left_out)}; {fewer}")
        if size > LARGE_PAGE:
            found.append(
                f"the page has {size / 1e6:.0f} MB and opens slowly; "
                "--heads and --sequences make it smaller"
            )
        return found


MapPart = tuple[float, int, int, int, int]
"""(minus the largest weight, sequence, head, row, column): a part of a map in units of `DETAIL`."""


def _span(part: int, size: int) -> range:
    return range(part * DETAIL, min((part + 1) * DETAIL, size))


def _common(heads: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """One scale for all heads: up to the largest weight, and as far down as any head's own."""
    kinds = [kind for kind in KINDS if kind in heads[0]]
    return {
        kind: [min(h[kind]["from"] for h in heads), max(h[kind]["top"] for h in heads)]
        for kind in kinds
    }


def _rows(
    maps: Maps, s: int, head: Pair, plan: PagePlan, blocks: Blocks, band: slice = slice(None)
) -> dict[str, Any]:
    """The numbers of the rows of a head as blocks, and what they mean."""
    rows = maps.rows(s, head)
    made: dict[str, Any] = {"statistics": {}, "rowError": 0.0}
    for name in STATISTICS:
        values = _means(rows.statistics[name][band].astype(np.float64), plan.rows)
        shades = LogCodes.of_rows(values, plan.width)
        most = 2 ** (8 * plan.width) - 1
        codes = shades.codes(values, np.ones(len(values), bool)).astype(np.int64)
        # what is smaller than `low`, and `low` itself, are both number 1
        numbers = np.where(codes == most, most, np.maximum(codes - FIRST + 1, codes > ZERO))
        made["statistics"][name] = {
            "block": blocks.add(planes(numbers, plan.width)),
            "width": plan.width,
            "low": shades.low,
            "ratio": shades.ratio,
            "most": float(values[np.isfinite(values)].max(initial=0.0)),
            # whether number 1 stands for values far below `low` as well
            "tiny": bool(((values > 0) & (values < shades.low / shades.ratio)).any()),
        }
        made["rowError"] = max(made["rowError"], shades.error)
    if plan.top:
        made["top"] = _top(rows.top_keys[band], rows.top_weights[band], plan.top, blocks)
    return made


def _top(keys: Array, weights: Array, top: int, blocks: Blocks) -> dict[str, Any]:
    keys, weights = keys[:, :top].T, weights[:, :top].T
    codes, lowest = list_codes(np.where(keys >= 0, weights, 0))
    width = bytes_for(int(keys.max(initial=0)) + 1)
    made = {"keys": blocks.add(planes(np.where(codes > 0, keys + 1, 0), width)), "width": width}
    # the largest first, so that no difference is below 0
    codes = np.minimum.accumulate(codes, axis=0)
    codes[1:] = codes[:-1] - codes[1:]
    return {**made, "weights": blocks.add(planes(codes, 2)), "lowest": lowest}


def _means(values: Array, rows: int) -> Array:
    """The mean of each `rows` values; the last may be of fewer."""
    starts = np.arange(0, len(values), rows)
    return np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values)))
