"""How exact weights can be: the precision that they were made in, and what that allows a row."""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

ROUNDOFF = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "float32": 2.0**-24,
    "float64": 2.0**-53,
}
"""u, half the distance from 1 to the next larger number: what rounding to a form may change."""

NEGLIGIBLE = 2.0**-126
"""The smallest normal number of float32 and bfloat16: a weight below it changes no sum."""

_WORD = {"float32": np.uint32, "float64": np.uint64}

_LOW_BITS = {
    "float32": {"bfloat16": 16, "float16": 13},
    "float64": {"bfloat16": 45, "float16": 42, "float32": 29},
}
"""Bits at the end of a significand that are 0 in every number that came from a shorter form."""


def precision_of(weights: npt.NDArray[Any]) -> str:
    """The shortest form that holds all of `weights` exactly: float32 may hold bfloat16's numbers.

    Zeros and powers of two are in every form, so nothing but those says bfloat16.
    """
    name = weights.dtype.name
    if name not in _WORD or weights.size == 0:
        return name
    used = int(np.bitwise_or.reduce(weights.view(_WORD[name]), axis=None))
    for short, bits in _LOW_BITS[name].items():
        if used & ((1 << bits) - 1) == 0:
            return short
    return name


def row_tolerance(precision: str, n_keys: int) -> float:
    """How far from 1 the sum of a right row of `n_keys` weights may be.

    With u the roundoff of `precision`: each weight is rounded, and so are the exponential, the
    divisor and the quotient: 4 u of the whole sum. exp(log_softmax(x)) rounds the logarithms, which
    moves the sum by at most u times the row's entropy, ln n. The divisor is a sum of n terms, made
    in float32 at least (as every common library does for shorter forms): n of its roundoffs, and 16
    for the fast exponentials and divisions of GPUs. In float16 small weights have a fixed step of
    2⁻²⁴, and each is off by half of it.
    """
    roundoff = ROUNDOFF[precision]
    accumulator = min(roundoff, ROUNDOFF["float32"])
    steps = 2.0**-25 if precision == "float16" else 0.0
    return roundoff * (4 + log(n_keys)) + (n_keys + 16) * accumulator + n_keys * steps
