"""Masks as rules: small predicates over (batch, head, query, key) positions, combined by "and".

A rule says who **may** look: True lets a query see a key. Positions count from a sequence's first
real token, so that padding on the left changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.batch import SEP, Batch
from attnviz.errors import ConfigError, InputError, printable

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(b, h, q, k) index tensors that broadcast against each other → bool tensor, True = may look."""


@dataclass(frozen=True)
class Rule:
    """One mask: its name as shown everywhere, and its predicate over places in the padded batch."""

    name: str
    allows: Predicate
    per_head: bool = False


def padding(keys: Batch) -> Rule:
    """No query sees a padded key."""
    valid = torch.from_numpy(keys.valid)
    return Rule("padding", lambda b, h, q, k: valid[b, k])


def causal(queries: Batch, keys: Batch) -> Rule:
    """Position i sees positions 0 … i (Vaswani et al. 2017, section 3.2.3)."""
    at_q, at_k = _positions(queries, keys)
    return Rule("causal", lambda b, h, q, k: at_k[b, k] <= at_q[b, q])


def window(n: int, queries: Batch, keys: Batch) -> Rule:
    """Position i sees itself and the n - 1 before it, the sliding window of Jiang et al. 2023."""
    if n < 1:
        raise ConfigError(f"--window is {n}; it must be at least 1, which lets a token see itself")
    at_q, at_k = _positions(queries, keys)
    return Rule(
        f"window {n}",
        lambda b, h, q, k: (at_k[b, k] <= at_q[b, q]) & (at_q[b, q] - at_k[b, k] < n),
    )


def prefix(n: int, queries: Batch, keys: Batch) -> Rule:
    """Everybody sees the first n positions; after them, causal (Raffel et al. 2020, figure 4)."""
    if n < 1:
        raise ConfigError(f"--prefix is {n}; it must be at least 1")
    at_q, at_k = _positions(queries, keys)
    return Rule(f"prefix {n}", lambda b, h, q, k: (at_k[b, k] <= at_q[b, q]) | (at_k[b, k] < n))


def segments(queries: Batch, keys: Batch) -> Rule:
    """Nobody looks across `[SEP]`; each `[SEP]` belongs to the segment that it closes."""
    of_q, of_k = (torch.from_numpy(_segment_numbers(batch)) for batch in (queries, keys))
    return Rule("segments", lambda b, h, q, k: of_q[b, q] == of_k[b, k])


def from_array(
    array: npt.NDArray[np.bool_], name: str, batch: int, heads: int, queries: int, keys: int
) -> Rule:
    """A mask given whole, True = may look: `[Tq Tk]`, `[B Tq Tk]` or `[B H Tq Tk]`.

    B and H may be 1, and are then the same for all.

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
    wrong = [
        f"{axis} {size} ≠ {want[axis]}"
        for axis, size in zip(axes, array.shape, strict=True)
        if size != want[axis] and not (size == 1 and axis in "BH")
    ]
    if wrong:
        expected = " ".join(f"{axis}={want[axis]}" for axis in axes)
        given = " ".join(f"{axis}={size}" for axis, size in zip(axes, array.shape, strict=True))
        hint = ""
        if array.ndim == 3 and array.shape == (heads, queries, keys):
            hint = "; that is one mask a head: add the batch axis, [1 H Tq Tk]"
        elif array.shape[-2:] == (keys, queries) and keys != queries:
            hint = "; it looks transposed: rows are queries, columns are keys"
        raise InputError(
            f"mask {name} is [{given}], expected [{expected}]: {', '.join(wrong)}{hint}"
        )
    full = torch.from_numpy(np.ascontiguousarray(array)).reshape(
        (1,) * (4 - array.ndim) + array.shape
    )
    if array.ndim == 3:
        full = torch.from_numpy(np.ascontiguousarray(array))[:, None]
    b_size, h_size = full.shape[:2]
    return Rule(
        name,
        lambda b, h, q, k: full[b if b_size > 1 else b * 0, h if h_size > 1 else h * 0, q, k],
        per_head=h_size > 1,
    )


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
    closes = batch.ids == batch.vocabulary.index(SEP)
    return np.asarray(np.cumsum(closes, axis=1) - closes, dtype=np.int64)


# ── mask files ───────────────────────────────────────────────────────────────────────────────


def read_mask(path: Path, means: str = "keep") -> tuple[npt.NDArray[np.bool_], str]:
    """A 0/1 mask from `.npy`, `.npz`, `.csv` or `.txt`: (array with True = may look, its name).

    `means` says what 1 (or True) stands for in the file: "keep" lets a query look, "drop" forbids,
    since libraries disagree. Raises `InputError` for other values than 0 and 1.
    """
    name = f"file {printable(path.name)} (1 = {means})"
    shown = printable(path)
    readers = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv, ".txt": _read_txt}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"mask {shown}: unknown suffix {path.suffix!r}; known are {', '.join(readers)}"
        )
    try:
        values = reader(path)
    except OSError as error:
        reason = "is a folder" if path.is_dir() else (error.strerror or str(error)).lower()
        raise InputError(f"mask {shown}: {printable(reason)}") from None
    except InputError as error:
        raise InputError(f"mask {shown}: {error}") from None
    except (ValueError, TypeError, EOFError, MemoryError, SyntaxError) as error:
        raise InputError(f"mask {shown} cannot be read: {printable(error)}") from None
    if values.dtype.kind not in "biuf":
        raise InputError(f"mask {shown} holds {values.dtype}; 0 and 1 are expected")
    bad = np.argwhere((values != 0) & (values != 1))
    if len(bad):
        place = tuple(int(i) for i in bad[0])
        hint = "; for a mask that is added to scores, save (mask == 0)" if values.min() < 0 else ""
        raise InputError(
            f"mask {shown} holds {values[place]:g} at {list(place)}; "
            f"only 0 and 1 are expected{hint}"
        )
    return np.asarray(values == (1 if means == "keep" else 0)), name


def _read_npy(path: Path) -> npt.NDArray[np.generic]:
    return np.asarray(np.load(path, allow_pickle=False))


def _read_npz(path: Path) -> npt.NDArray[np.generic]:
    import zipfile

    try:
        with np.load(path, allow_pickle=False) as archive:
            if len(archive.files) != 1:
                raise InputError(f"holds {len(archive.files)} arrays; exactly one is expected")
            return np.asarray(archive[archive.files[0]])
    except zipfile.BadZipFile:
        raise InputError("is not an .npz archive") from None


def _read_csv(path: Path) -> npt.NDArray[np.generic]:
    return _read_text(path, ",")


def _read_txt(path: Path) -> npt.NDArray[np.generic]:
    return _read_text(path, None)


def _read_text(path: Path, delimiter: str | None) -> npt.NDArray[np.generic]:
    text = path.read_text(encoding="utf-8-sig")
    rows = [line.split(delimiter) for line in text.splitlines() if line.strip()]
    if not rows:
        raise InputError("is empty")
    if len({len(row) for row in rows}) > 1:
        odd = next(i for i, row in enumerate(rows) if len(row) != len(rows[0]))
        raise InputError(f"row {odd} has {len(rows[odd])} cells, row 0 has {len(rows[0])}")
    return np.array([[float(cell) for cell in row] for row in rows])
