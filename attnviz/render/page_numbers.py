"""How a page stores numbers: as whole numbers of one or two bytes, in compressed blocks.

A block is bytes, compressed with zlib and written in base64, in an element `d0`, `d1`, … that the
page's JSON names. Whole numbers of several bytes stand as planes: the lowest bytes of all of them,
then the next.

Weights are codes. 0 is forbidden, 1 is exactly 0, 2 is more than 0 and smaller than every code can
tell, the largest code is not a number. The others are either

- `DecimalCodes`, two bytes: decimal numbers with four correct digits over the seven powers of ten
  from the largest weight down, and two digits over 27 powers below them; or
- `LogCodes`, one byte: `low · ratio^(code - 3)`, so that the relative error is the same for all.

Where there are negative weights, half of the codes are theirs. The largest keys of a row are stored
apart, with three digits that are rounded correctly: what a list shows is never an approximation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil, exp, floor, log, log10
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.render.one_file import packed

Array = npt.NDArray[Any]

FORBIDDEN, ZERO, TINY, FIRST = 0, 1, 2, 3

ERRORS = (0.025, 0.05, 0.1)
"""Relative errors that one-byte codes may have: the first that fits into the page is taken."""

OCTAVES = 17.7
"""Powers of two below the largest weight that one-byte codes tell apart."""

LIST_DECADES = 72
"""Powers of ten that the weights in a list of largest keys span: 900 codes each."""


@dataclass
class Blocks:
    """The page's blocks; equal ones are stored once."""

    texts: list[str] = field(default_factory=list)
    size: int = 0
    _known: dict[bytes, int] = field(default_factory=dict)

    def add(self, data: bytes, text: str | None = None) -> int:
        """The number of the block with these bytes; `text` is their packed form if it is known."""
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


@dataclass(frozen=True)
class LogCodes:
    """Weights as codes at even steps of their logarithms; statistics of rows may have two bytes."""

    low: float
    ratio: float
    steps: int
    signed: bool = False
    width: int = 1

    @classmethod
    def of(cls, weights: Array, error: float = ERRORS[0], octaves: float = OCTAVES) -> LogCodes:
        """For weights up to the largest of these, down to the smallest or `octaves` below."""
        size = np.abs(weights[np.isfinite(weights)])
        some = size[size > 0]
        top = float(some.max(initial=0.0))
        if not top:
            return cls(1.0, 1.0, 1)
        signed = bool((weights < 0).any())
        low = max(float(some.min()), top * 2.0**-octaves)
        fewest = 1 + ceil(log(top / low) / (2 * log(1 + error)))
        steps = min(fewest, 125 if signed else 250)
        return cls(low, exp(log(top / low) / max(steps - 1, 1)), steps, signed)

    @classmethod
    def of_rows(cls, values: Array, width: int) -> LogCodes:
        """For the statistics of rows, in codes of `width` bytes: all that there are."""
        some = values[np.isfinite(values) & (values > 0)]
        top = float(some.max(initial=0.0))
        if not top:
            return cls(1.0, 1.0, 1, width=width)
        low = max(float(some.min()), top * 2.0 ** -(20 if width == 1 else 200))
        steps = 2 ** (8 * width) - FIRST - 2
        return cls(low, exp(log(top / low) / (steps - 1)), steps, width=width)

    @property
    def error(self) -> float:
        """How far a weight may be from what its code stands for, as a share of it."""
        return float(self.ratio**0.5 - 1)

    def codes(self, weights: Array, allowed: Array) -> Array:
        kind = np.float64 if weights.dtype == np.float64 else np.float32
        exact: Any = weights.astype(kind, copy=False)
        most = 2 ** (8 * self.width) - 1
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            place: Array = np.log(np.abs(exact)) - kind(log(self.low))
            place *= kind(1 / (log(self.ratio) or 1.0))
            found: Array = np.clip(np.rint(place), 0, self.steps - 1) + FIRST
        if self.signed:
            found = np.where(exact < 0, found + self.steps, found)
        found[place < -0.5] = TINY
        found[exact == 0] = ZERO
        found[~np.isfinite(exact) | ((exact < 0) & (not self.signed))] = most
        found[~allowed] = FORBIDDEN
        return found.astype(np.uint8 if self.width == 1 else np.uint16)

    def described(self) -> dict[str, Any]:
        """What the page needs to turn codes into weights."""
        made: dict[str, Any] = {"low": self.low, "ratio": self.ratio, "steps": self.steps}
        return {**made, "signed": True} if self.signed else made


@dataclass(frozen=True)
class DecimalCodes:
    """Weights as two-byte codes of decimal digits; `top` is the power of ten of the largest."""

    top: int
    signed: bool = False
    width = 2
    error = 0.0005
    """Half a unit in the last of four digits."""

    @classmethod
    def of(cls, weights: Array) -> DecimalCodes:
        size = np.abs(weights[np.isfinite(weights)])
        top = float(size.max(initial=0.0))
        return cls(int(_decimal(np.array([top]), 4)[1][0]) if top else 0, bool((weights < 0).any()))

    def codes(self, weights: Array, allowed: Array) -> Array:
        exact = weights.astype(np.float64)
        size = np.abs(exact)
        found = np.full(exact.shape, TINY, np.int64)
        base = FIRST
        for digits, decades, bottom in self.segments():
            mantissa, power = _decimal(size, digits)
            unit = 10 ** (digits - 1)
            place = (power - bottom) * 9 * unit + mantissa - unit
            inside = (power >= bottom) & (power < bottom + decades)
            found[inside] = base + place[inside]
            base += 9 * unit * decades
        if self.signed:
            told = found >= FIRST
            found[told & (exact < 0)] += base - FIRST
        found[exact == 0] = ZERO
        found[~np.isfinite(exact)] = 2**16 - 1
        found[~allowed] = FORBIDDEN
        return found.astype(np.uint16)

    def segments(self) -> list[tuple[int, int, int]]:
        """(digits, powers of ten, the lowest of these powers), from small weights to large ones."""
        if self.signed:
            return [(3, 36, self.top - 35)]
        return [(2, 27, self.top - 33), (4, 7, self.top - 6)]

    def described(self) -> dict[str, Any]:
        """What the page needs to turn codes into weights."""
        made: dict[str, Any] = {"segments": self.segments()}
        return {**made, "signed": True} if self.signed else made


def _decimal(sizes: Array, digits: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(mantissa, power of ten) of numbers from 0, the mantissa a whole number of `digits` digits;
    a power far below all others for 0 and what is no number."""
    fit = np.isfinite(sizes) & (sizes > 1e-300)
    known = np.where(fit, sizes, 1.0)
    power = np.floor(np.log10(known))
    mantissa = np.rint(known / 10.0**power * 10 ** (digits - 1))
    over = mantissa >= 10**digits  # rounded up to the next power of ten
    mantissa[over] /= 10
    power = np.where(fit, power + over, -10_000)
    return mantissa.astype(np.int64), power.astype(np.int64)


def list_codes(weights: Array) -> tuple[npt.NDArray[np.int64], int]:
    """Weights above 0 with three digits as codes from 1, 0 for others; and the lowest power of ten.

    A code is `1 + 900 · (power - lowest) + mantissa - 100`.
    """
    exact = weights.astype(np.float64)
    real = np.isfinite(exact) & (exact > 0)
    top = float(exact.max(where=real, initial=0.0))
    lowest = (floor(log10(top)) + 1 if top > 1e-300 else 0) - LIST_DECADES + 1
    mantissa, power = _decimal(np.where(real, exact, 0.0), 3)
    codes = 1 + 900 * np.maximum(power - lowest, 0) + np.where(power < lowest, 0, mantissa - 100)
    return np.where(real, codes, 0), lowest
