"""Masks as rules: small predicates over (batch, head, query, key) positions, combined by "and".

A rule says who **may** look: True lets a query see a key. Positions count from a sequence's first
real token, so that padding on the left changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.config import check_size, choice
from attnviz.errors import InputError, printable, why_unreadable
from attnviz.machine import human_bytes, require_memory
from attnviz.npy import read_npy, read_npz
from attnviz.tokens import SEP, Batch

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(b, h, q, k) index tensors that broadcast against each other → bool tensor, True = may look."""


Span = Callable[[int], tuple[Tensor, Tensor]]
"""b → (first, end), int64 `[Tq]` or `[1]`: in sequence b, query q may see the places first[q] ≤ k
< end[q] and no others. An empty span has end ≤ first; neither need lie within 0 … Tk."""


@dataclass(frozen=True)
class Rule:
    """One mask: its name as shown everywhere, and its predicate over places in the padded batch.

    `span` says the same as the predicate where what a query may see is one run of neighbours, for
    every head: then whole blocks of a long map are known to be forbidden before they are made.
    """

    name: str
    allows: Predicate
    per_head: bool = False
    span: Span | None = None


def padding(keys: Batch) -> Rule:
    """No query sees a padded key."""
    valid = torch.from_numpy(keys.valid)
    starts, lengths = torch.from_numpy(keys.starts), torch.from_numpy(keys.lengths)
    return Rule(
        "padding",
        lambda b, h, q, k: valid[b, k],
        span=lambda b: (starts[b, None], (starts + lengths)[b, None]),
    )


def causal(queries: Batch, keys: Batch) -> Rule:
    """Position i sees positions 0 … i (Vaswani et al. 2017, section 3.2.3)."""
    at_q, at_k = _positions(queries, keys)
    return Rule(
        "causal",
        lambda b, h, q, k: at_k[b, k] <= at_q[b, q],
        span=lambda b: (at_k.new_zeros(1), at_q[b] + 1 - at_k[b, 0]),
    )


def window(n: int, queries: Batch, keys: Batch) -> Rule:
    """Position i sees itself and the n - 1 before it, the sliding window of Jiang et al. 2023."""
    check_size("--window", n)
    at_q, at_k = _positions(queries, keys)
    return Rule(
        f"window {n}",
        lambda b, h, q, k: (at_k[b, k] <= at_q[b, q]) & (at_k[b, k] > at_q[b, q] - n),
        span=lambda b: (at_q[b] + 1 - n - at_k[b, 0], at_q[b] + 1 - at_k[b, 0]),
    )


def prefix(n: int, queries: Batch, keys: Batch) -> Rule:
    """Everybody sees positions 0 … n-1; the rest is causal (Raffel et al. 2020, figure 4)."""
    check_size("--prefix", n)
    at_q, at_k = _positions(queries, keys)
    return Rule(
        f"prefix {n}",
        lambda b, h, q, k: (at_k[b, k] <= at_q[b, q]) | (at_k[b, k] < n),
        span=lambda b: (at_k.new_zeros(1), (at_q[b] + 1).clamp(min=n) - at_k[b, 0]),
    )


def segments(queries: Batch, keys: Batch) -> Rule:
    """Nobody looks across `[SEP]`; each `[SEP]` belongs to the segment that it closes."""
    of_q, of_k = (torch.from_numpy(_segment_numbers(batch)) for batch in (queries, keys))
    return Rule(
        "segments",
        lambda b, h, q, k: of_q[b, q] == of_k[b, k],
        span=lambda b: (
            torch.searchsorted(of_k[b], of_q[b]),
            torch.searchsorted(of_k[b], of_q[b], right=True),
        ),
    )


def from_array(
    array: npt.NDArray[np.bool_], name: str, batch: int, heads: int, queries: int, keys: int
) -> Rule:
    """A mask given whole, True = may look: `[Tq Tk]`, `[B Tq Tk]` or `[B H Tq Tk]`.

    B, H and Tq may be 1, and the mask is then the same for all of them.

    Raises `InputError` that names both shapes, axis by axis, when it does not fit.
    """
    want = {"B": batch, "H": heads, "Tq": queries, "Tk": keys}
    layouts = {2: ("Tq", "Tk"), 3: ("B", "Tq", "Tk"), 4: ("B", "H", "Tq", "Tk")}
    axes = layouts.get(array.ndim)
    if axes is None:
        raise InputError(
            f"mask {name} has {array.ndim} axes, shape {list(array.shape)}; "
            "[Tq Tk], [B Tq Tk] or [B H Tq Tk] is expected"
        )
    axes_sizes = list(zip(axes, array.shape, strict=True))
    wrong = [
        f"{axis} {size} ≠ {want[axis]}"
        for axis, size in axes_sizes
        if size != want[axis] and (size != 1 or axis == "Tk")
    ]
    if wrong:
        given = " ".join(f"{axis}={size}" for axis, size in axes_sizes)
        expected = " ".join(f"{axis}={want[axis]}" for axis in axes)
        hint = ""
        if array.shape == (heads, queries, keys):
            hint = "; that is one mask a head: add the batch axis, [1 H Tq Tk]"
        elif array.shape == (batch * heads, queries, keys):
            hint = f"; {len(array)} = B·H: reshape it to [B H Tq Tk], [{batch} {heads} …]"
        elif array.shape[-2:] == (keys, queries) and keys != queries:
            hint = "; it looks transposed: rows are queries, columns are keys"
        raise InputError(
            f"mask {name} is [{given}], expected [{expected}]: {', '.join(wrong)}{hint}"
        )
    with_heads = array[:, None] if array.ndim == 3 else array
    full = torch.from_numpy(np.array(with_heads)).expand(batch, heads, queries, keys)
    per_head = array.ndim == 4 and array.shape[1] > 1
    return Rule(name, lambda b, h, q, k: full[b, h, q, k], per_head)


def build(rules: Sequence[Rule], batch: int, heads: int, queries: int, keys: int) -> Tensor | None:
    """All rules combined by "and": bool `[B 1|H Tq Tk]`, or None when there is no rule."""
    if not rules:
        return None
    b = torch.arange(batch)[:, None, None, None]
    h = torch.arange(heads if any(rule.per_head for rule in rules) else 1)[None, :, None, None]
    q = torch.arange(queries)[None, None, :, None]
    k = torch.arange(keys)[None, None, None, :]
    allowed = torch.ones(batch, h.shape[1], queries, keys, dtype=torch.bool)
    for rule in rules:
        allowed &= rule.allows(b, h, q, k)
    return allowed


def _positions(queries: Batch, keys: Batch) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(queries.positions), torch.from_numpy(keys.positions)


def _segment_numbers(batch: Batch) -> npt.NDArray[np.int64]:
    """`[B T]`: how many `[SEP]` stand before each place."""
    number = batch.vocabulary.index(SEP) if SEP in batch.vocabulary else -1
    closes = batch.ids == number
    return np.asarray(np.cumsum(closes, axis=1) - closes, dtype=np.int64)


# ── mask files ───────────────────────────────────────────────────────────────────────────────

MEANINGS = ("keep", "drop")


def read_mask(path: Path, means: str = "keep") -> tuple[npt.NDArray[np.bool_], str]:
    """A 0/1 mask from `.npy`, `.npz`, `.csv` or `.txt`: (array with True = may look, its name).

    `means` says what 1 (or True) stands for in the file: "keep" lets a query look, "drop" forbids,
    since libraries disagree. Raises `InputError` for other values than 0 and 1.
    """
    choice("--mask-means", means, MEANINGS)
    shown = printable(path)
    readers = {".npy": read_npy, ".npz": _read_npz, ".csv": _read_text, ".txt": _read_text}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"mask {shown} has the suffix '{printable(path.suffix)}'; "
            f"known are {', '.join(readers)}"
        )
    try:
        values = reader(path)
    except OSError as error:
        raise InputError(f"mask {shown}: {why_unreadable(path, error)}") from None
    except InputError as error:
        raise InputError(f"mask {shown} {error}") from None
    if values.dtype.kind not in "biuf":
        raise InputError(f"mask {shown} holds {printable(values.dtype)}; 0 and 1 are expected")
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        place = tuple(int(i) for i in np.unravel_index(np.argmax(wrong), wrong.shape))
        value = values[place]
        hint = "; of a mask that is added to scores, save (mask == 0)" if value < 0 else ""
        raise InputError(
            f"mask {shown} holds {value:g} at {list(place)}; only 0 and 1 are expected{hint}"
        )
    name = f"file {printable(path.name)} (1 = {means})"
    return np.asarray(values == (1 if means == "keep" else 0)), name


def _read_npz(path: Path) -> npt.NDArray[np.generic]:
    arrays = read_npz(path, at_most=1)
    if not arrays:
        raise InputError("holds no array")
    return next(iter(arrays.values()))


def _read_text(path: Path) -> npt.NDArray[np.generic]:
    """A row a line, with commas, semicolons (spreadsheets in much of Europe) or blanks between."""
    size = path.stat().st_size
    require_memory(20 * size, f"is a text of {human_bytes(size)}, which", "save it as .npy")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        place = f"byte {error.start} is 0x{error.object[error.start]:02X}"
        raise InputError(f"is not UTF-8 text: {place}") from None
    rows = [
        [_cell(cell, at) for cell in re.split(r"\s*[,;]\s*|\s+", line.strip())]
        for at, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    if not rows:
        raise InputError("is empty")
    odd = next((row for row in rows if len(row) != len(rows[0])), None)
    if odd is not None:
        raise InputError(
            f"has rows of {len(rows[0])} and of {len(odd)} cells; all must be of one length"
        )
    return np.array(rows)


def _cell(text: str, line: int) -> float:
    words = {"true": 1.0, "false": 0.0}
    try:
        return words[text.lower()] if text.lower() in words else float(text)
    except ValueError:
        raise InputError(
            f"has '{printable(text, 30)}' in line {line}; only 0 and 1 are expected"
        ) from None
