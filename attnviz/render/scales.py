"""Scales: which step of a colour map a value has, and which values a colour bar names.

Pictures and terminals cut the same scale into their own number of steps, so that the same weight
stands at the same place of the same colour map in both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.render.palette import ALL_COLOURS, DIFFERENCE_COLOURS, Indices
from attnviz.render.visible import signed
from attnviz.result import reduced

Values = npt.NDArray[np.floating[Any]]
Tick = tuple[float, str]
"""A share of the scale, from 0 to 1, and the name of the value there."""

DECADES = 5
"""Powers of ten that a logarithmic scale has at most, below its top."""


def two_digits(value: float) -> str:
    """How a weight is written into its cell."""
    return f"{value:.2f}"


def signed_digits(value: float) -> str:
    """How a difference is written into its cell."""
    text = f"{value:+.2f}".replace("-", "−")
    return "0" if text[1:] == "0.00" else text


@dataclass(frozen=True, eq=False)
class Scale(ABC):
    """Values up to `top`, the one of the strongest colour; `clipped` when larger ones occur.

    `colours` are the palette entries of a picture that stand for its steps.
    """

    top: float
    clipped: bool = False
    name: str = "weight"
    colours: range = ALL_COLOURS
    written: Callable[[float], str] = two_digits

    @abstractmethod
    def steps(self, values: Values, n: int) -> npt.NDArray[Any]:
        """The step of each value, from 0 to n - 1."""

    @abstractmethod
    def ticks(self, height: float) -> list[Tick]:
        """What stands beside a colour bar of this height in points."""

    @property
    def ends(self) -> tuple[str, str]:
        """The smallest and the largest value of the scale, as a terminal names them."""
        return "0", f"{self.top:.4g}"

    def shades(self, values: Values, pool: int = 1) -> Indices:
        """The palette entry of each block of `pool` × `pool` values."""
        steps = self.steps(self.pooled(values, pool), len(self.colours))
        if not self.colours.start:
            return steps.astype(np.uint8)
        return (steps + self.colours.start).astype(np.uint8)

    def pooled(self, values: Values, pool: int) -> Values:
        """What stands for each block of values: the largest."""
        return pooled(values, pool)


@dataclass(frozen=True, eq=False)
class LinearScale(Scale):
    """From `low` to `top` in equal steps, or with `exponent` 0.5 in steps of the square root."""

    low: float = 0.0
    exponent: float = 1.0

    @property
    def ends(self) -> tuple[str, str]:
        return f"{self.low:.4g}", f"{self.top:.4g}"

    def steps(self, values: Values, n: int) -> npt.NDArray[Any]:
        with np.errstate(over="ignore"):
            above = values - self.low if self.low else values
            if self.exponent != 1:
                shares = np.clip(above / (self.top - self.low), 0, 1) ** self.exponent
                return np.asarray(np.clip(shares * n, 0, n - 1))
            return np.asarray(np.clip(above * (n / (self.top - self.low)), 0, n - 1))

    def ticks(self, height: float) -> list[Tick]:
        span = self.top - self.low
        values = round_values(self.low, self.top, 10 / height)
        named = [(((value - self.low) / span) ** self.exponent, f"{value:.3g}") for value in values]
        named = [(share, text) for share, text in named if share <= 1 - 10 / height]
        return [*named, (1.0, f"{'≥ ' if self.clipped else ''}{self.top:.3g}")]


@dataclass(frozen=True, eq=False)
class SignedScale(Scale):
    """Differences: `top` and `-top` have the strongest colours, 0 the one in the middle."""

    name: str = "B − A"
    colours: range = DIFFERENCE_COLOURS
    written: Callable[[float], str] = signed_digits

    def steps(self, values: Values, n: int) -> npt.NDArray[Any]:
        half = n // 2
        with np.errstate(over="ignore"):
            steps = np.clip(np.rint(values * (half / self.top)), -half, half)
        return np.asarray(half + steps)

    def ticks(self, height: float) -> list[Tick]:
        end = "≥ " * self.clipped, "≤ " * self.clipped
        found = [(0.5, "0")]
        for value in round_values(0.0, self.top, 20 / height)[1:]:
            share = value / self.top / 2
            found += [(0.5 + share, f"+{value:.3g}"), (0.5 - share, f"−{value:.3g}")]
        return [*found, (1.0, f"{end[0]}+{self.top:.3g}"), (0.0, f"{end[1]}−{self.top:.3g}")]

    @property
    def ends(self) -> tuple[str, str]:
        return signed(-self.top), signed(self.top)

    def pooled(self, values: Values, pool: int) -> Values:
        """Of each block the value that is furthest from 0."""
        up, down = pooled(values, pool), -pooled(-values, pool)
        return np.where(up > -down, up, down)


@dataclass(frozen=True, eq=False)
class LogScale(Scale):
    """From `low` to `top` in equal steps of the logarithm.

    Mean weights fall as a row grows longer, over several powers of ten: equal steps of the weight
    would show the first few tokens and nothing else.
    """

    name: str = "mean weight"
    low: float = 0.1

    @classmethod
    def of(cls, weights: npt.NDArray[np.float32], vmax: float | None = None) -> LogScale:
        """The scale of these means; `vmax` is what its strongest colour stands for."""
        some = weights[np.isfinite(weights) & (weights > 0)]
        largest = float(some.max(initial=0)) or 1.0
        top = vmax or largest
        low = float(np.quantile(some, 0.01)) if len(some) else top
        return cls(top, largest > top, low=min(max(low, top * 10.0**-DECADES), top / 10))

    def shares(self, weights: Values) -> npt.NDArray[np.float32]:
        """Where each weight lies between `low`, 0, and `top`, 1; beyond them it is cut."""
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.log10(weights / self.low) / log10(self.top / self.low)
        return np.asarray(np.clip(np.nan_to_num(shares, nan=0.0), 0, 1), np.float32)

    def steps(self, values: Values, n: int) -> npt.NDArray[Any]:
        return (self.shares(values) * (n - 1)).round()

    @property
    def ends(self) -> tuple[str, str]:
        return f"{self.low:.1g}", f"{self.top:.2g}, logarithmic"

    def ticks(self, height: float) -> list[Tick]:
        named, apart = [(0.0, f"≤ {self.low:.1g}")], max(0.07, 9 / height)
        for power in range(ceil(log10(self.low)), ceil(log10(self.top))):
            share = float(self.shares(np.array([10.0**power], np.float32))[0])
            if apart < share < 1 - apart:
                named.append((share, f"{10.0**power:g}"))
        return [*named, (1.0, f"{'≥ ' if self.clipped else ''}{self.top:.2g}")]


def round_values(low: float, top: float, apart: float) -> list[float]:
    """Round values from `low` up, `apart` of the whole scale below its top."""
    span = top - low
    magnitude = 10.0 ** floor(log10(span / 4))
    step = next(n * magnitude for n in (1, 2, 2.5, 5, 10) if n * magnitude >= span / 4.0001)
    first, last = ceil(low / step - 1e-9), floor(top / step + 1e-9)
    values = (i * step for i in range(first, last + 1))
    return [value for value in values if value <= top - span * apart]


def pooled(cells: npt.NDArray[Any], pool: int) -> npt.NDArray[Any]:
    """The largest of each `pool` × `pool` block; blocks at the far edges may be smaller."""
    return reduced(np.maximum, cells, pool, pool)
