"""One interactive page: a single HTML file that needs no network, no server and no other file.

How the page's parts become one file is told in `one_file`. Numbers go into the file as follows.

- Each head's weights are whole numbers, compressed with zlib and written in base64, a line for a
  head, in the order sequence, head. 0 is exactly 0; 1 … n + 1 mean `low + (number - 1) · step`,
  with `low` and `step` a head's own and n steps a head; the largest number that fits stands for
  what is not a number. A weight that rounds to nothing is 1, not 0. A number takes one byte; where
  the page is small all the same, two, the lower first.
- Each different mask is one bit a cell, rows first, highest bit first, compressed in the same way.
- Everything else is one JSON object.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.measures import MEASURES, measure
from attnviz.render.one_file import (
    LARGE_PAGE,
    Kind,
    all_heads,
    assemble,
    chosen_values,
    packed,
    run_facts,
)
from attnviz.result import Attention
from attnviz.trace import Step

MODULES = (
    "tokens",
    "colours",
    "run",
    "state",
    "scene",
    "parts",
    "card",
    "heat",
    "matrix",
    "head",
    "lines",
    "text",
    "trace",
    "download",
    "shell",
    "main",
)
"""The page's modules; each imports only those before it."""

PAGE = Kind(
    MODULES,
    ("page.css",),
    (
        ("matrix", "Matrix"),
        ("head", "Head"),
        ("lines", "Lines"),
        ("text", "Text"),
        ("trace", "Trace"),
    ),
    "choices.html",
    "keys.html",
)

FINEST, SHARPEST = 2**16 - 3, 2**8 - 3
"""Steps between a head's smallest and largest weight: as many as two bytes hold, and one."""

FINE_CELLS = 2**18
"""Up to so many weights, each takes two bytes: half a megabyte, and exact to the sixth digit."""

WEIGHTS_BUDGET = 9_500_000
"""Characters of weights in one file, so that 144 heads of 512 tokens stay below 10 MB. Where they
would be more, steps are made coarser, and the page says how coarse."""

WRITTEN = "the model wrote what stands after the line, in bold in the text"
"""What the page says of a prompt and its answer."""

Codes = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]


def write_page(
    result: Attention,
    path: Path,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    steps: Sequence[Step] = (),
    command: str = "",
    sequences: Sequence[int] | None = None,
) -> list[str]:
    """Write `result` as one interactive page to `path`, and return remarks for the person.

    `heads` are (layer, head) pairs, `sequences` indices into the batch; None means all. `steps` is
    the trace of the run, `command` the line that made it; both are shown as they are. The same
    input gives the same bytes.
    """
    chosen = list(heads) if heads is not None else all_heads(result)
    rows = list(sequences) if sequences is not None else list(range(result.batch_size))
    steps_per_head = _levels(result, rows, chosen)
    weights = [_encode(_weights(result, s, h), steps_per_head) for s in rows for h in chosen]
    masks, mask_of = _masks(result, rows, chosen)
    error = max((w.error for w in weights), default=0.0)
    document = {
        **run_facts(result, chosen, steps, command),
        "notes": [*result.notes, *([WRITTEN] if result.n_prompt else [])],
        "queries": result.attention.shape[3],
        "keys": result.attention.shape[4],
        "measures": MEASURES,
        "sequences": [
            _sequence(result, s, chosen, mask_of[i], weights[i * len(chosen) :])
            for i, s in enumerate(rows)
        ],
        "error": error,
        "levels": steps_per_head + 1,
        "wide": steps_per_head > SHARPEST,
    }
    data = {"weights": "\n".join(w.line for w in weights), "masks": "\n".join(masks)}
    page = assemble(PAGE, document, data)
    path.write_bytes(page)
    notices = []
    if steps_per_head < SHARPEST:
        notices.append(
            f"weights on the page have {steps_per_head + 1} levels a head to keep it small: "
            f"the largest error is {error:.2g}; --heads and --sequences choose fewer, and sharper"
        )
    if len(page) > LARGE_PAGE:
        notices.append(
            f"the page has {len(page) / 1e6:.0f} MB and opens slowly; "
            "--heads and --sequences make it smaller"
        )
    return notices


# ── weights as bytes ─────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class EncodedHead:
    """One head on the page: weights are `low + (byte - 1) · step`, wrong by at most `error`."""

    line: str
    low: float
    step: float
    error: float


def quantise(weights: npt.NDArray[Any], steps: int) -> tuple[Codes, float, float, float]:
    """`(numbers, low, step, largest error)` of one head's weights `[Tq Tk]`; see the module's text.

    Zero stays exactly zero, whatever `low` is. The numbers are uint8 where `steps` allows it, else
    uint16.
    """
    kind = np.uint8 if steps <= SHARPEST else np.uint16
    values = weights if weights.dtype == np.float64 else weights.astype(np.float32, copy=False)
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    broken = None
    if not isfinite(high - low):
        broken = ~np.isfinite(values)
        values = np.where(broken, 0, values)
        low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))
    if steps > SHARPEST or high - low < 1e-30:  # float32 has no digits to spare, or is too coarse
        values = values.astype(np.float64)
    step = (high - low) / steps
    if step < 1e-300:  # all zero, or nearly
        codes = (values != 0).astype(kind)
        low, step, error = 0.0, 0.0, high - low
    else:
        scaled = (values - values.dtype.type(low)) * values.dtype.type(1 / step)
        nearest = np.rint(scaled)
        codes = (nearest + 1).astype(kind)
        codes[values == 0] = 0
        error = float(np.abs(scaled - nearest).max(initial=0.0)) * step
        # rounding in float32 on the way here, so that what is said still holds
        error += 4 * float(np.finfo(values.dtype).eps) * max(high, -low)
    if broken is not None:
        codes[broken] = np.iinfo(kind).max
    return codes, low, step, error


def _encode(weights: npt.NDArray[Any], steps: int) -> EncodedHead:
    codes, low, step, error = quantise(weights, steps)
    return EncodedHead(_packed(codes), low, step, error)


def _packed(data: Codes) -> str:
    """Little-endian bytes, compressed, in base64."""
    little = data.astype(data.dtype.newbyteorder("<"), copy=False)
    return packed(little.tobytes())


def _levels(result: Attention, rows: Sequence[int], heads: Sequence[tuple[int, int]]) -> int:
    """How many steps a head's weights get: the most that fit into the budget.

    Coarser steps are tried by bisection, on some rows of each head.
    """
    n_rows = result.attention.shape[3]
    cells = len(rows) * len(heads) * n_rows * result.attention.shape[4]
    if cells <= FINE_CELLS:
        return FINEST
    if cells * 4 / 3 <= WEIGHTS_BUDGET:
        return SHARPEST
    samples = [_some_rows(_weights(result, s, h)) for s in rows for h in heads]
    share = sum(len(sample) for sample in samples) / (len(samples) * n_rows)

    def fits(steps: int) -> bool:
        sampled = sum(len(_encode(sample, steps).line) for sample in samples)
        return bool(sampled * 1.02 <= WEIGHTS_BUDGET * share)

    ladder = [round(SHARPEST / 2 ** (rung / 4)) for rung in range(17)]  # 253, 213, …, 16
    return ladder[min(bisect_left(ladder, True, key=fits), len(ladder) - 1)]


def _some_rows(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Every sixteenth row, and those of the extremes, so that steps are as wide as the head's."""
    if len(weights) < 256:
        return weights
    extremes = [int(at) // weights.shape[1] for at in (weights.argmin(), weights.argmax())]
    return np.asarray(weights[sorted({*range(8, len(weights), 16), *extremes})])


def _weights(result: Attention, sequence: int, head: tuple[int, int]) -> npt.NDArray[Any]:
    return np.asarray(result.attention[head[0], sequence, head[1]])


# ── masks as bits ────────────────────────────────────────────────────────────────────────────


def _masks(
    result: Attention, rows: Sequence[int], heads: Sequence[tuple[int, int]]
) -> tuple[list[str], list[list[int]]]:
    """The different masks, packed, and for each sequence each head's: an index, -1 for no mask."""
    lines: dict[bytes, int] = {}
    per_head = result.allowed.shape[2] > 1
    found: dict[tuple[int, int, int], int] = {}
    mask_of = []
    for s in rows:
        row = []
        for layer, head in heads:
            place = (layer, s, head if per_head else 0)
            if place not in found:
                mask = result.allowed[place]
                bits = np.packbits(mask).tobytes()
                found[place] = -1 if mask.all() else lines.setdefault(bits, len(lines))
            row.append(found[place])
        mask_of.append(row)
    return [_packed(np.frombuffer(bits, dtype=np.uint8)) for bits in lines], mask_of


# ── everything else as JSON ──────────────────────────────────────────────────────────────────


def _sequence(
    result: Attention,
    s: int,
    heads: Sequence[tuple[int, int]],
    masks: list[int],
    weights: Sequence[EncodedHead],
) -> dict[str, Any]:
    with np.errstate(invalid="ignore"):  # weights that are no numbers give measures that are none
        measures = measure(result, s, heads).result()
    own = weights[: len(heads)]
    return {
        "index": s,
        "queryTokens": list(result.query_tokens[s]),
        "keyTokens": list(result.key_tokens[s]) if result.is_cross else None,
        "queryReal": _real(result.query_valid[s]),
        "keyReal": _real(result.key_valid[s]),
        "answer": _real(result.query_valid[s])[0] + result.n_prompt[s] if result.n_prompt else None,
        "masks": masks,
        "low": [w.low for w in own],
        "step": [w.step for w in own],
        "largest": [_largest(result, s, head) for head in heads],
        "measures": chosen_values(measures, heads),
    }


def _largest(result: Attention, s: int, head: tuple[int, int]) -> float:
    """The largest weight that is shown: of real tokens, where the mask lets a query look."""
    (q, q_end), (k, k_end) = _real(result.query_valid[s]), _real(result.key_valid[s])
    weights = _weights(result, s, head)[q:q_end, k:k_end]
    mask = result.allowed[head[0], s, head[1] if result.allowed.shape[2] > 1 else 0]
    shown = mask[q:q_end, k:k_end]
    top = float(np.max(weights, where=shown, initial=0.0))
    if isfinite(top):
        return top
    return float(np.max(weights, where=shown & np.isfinite(weights), initial=0.0))


def _real(valid: npt.NDArray[np.bool_]) -> list[int]:
    """The real tokens stand together: [first, one past the last]."""
    places = np.flatnonzero(valid)
    return [int(places[0]), int(places[-1]) + 1] if len(places) else [0, 0]
