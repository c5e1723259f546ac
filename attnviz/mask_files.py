"""Mask files: a 0/1 mask from `.npy`, `.npz`, `.csv` or `.txt`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attnviz.config import choice
from attnviz.errors import InputError, printable, why_unreadable
from attnviz.machine import human_bytes, require_memory
from attnviz.masks import MaskArray
from attnviz.npy import read_npy, read_npz

MEANINGS = ("keep", "drop")
"""What 1 stands for in a file: a query may look, or may not."""


def read_mask(path: Path, means: str = "keep") -> MaskArray:
    """A 0/1 mask from `.npy`, `.npz`, `.csv` or `.txt`, as True = may look, with its name.

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
    may, other = ("may", "drop") if means == "keep" else ("may not", "keep")
    note = f"mask {name}: 1 means {may} look; --mask-means {other} for the opposite"
    return MaskArray(np.asarray(values == (1 if means == "keep" else 0)), name, note)


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
