"""How spread one distribution is, and how far apart two of them are, in bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

NEARLY_EQUAL = 1e-2
"""Below this relative difference the formula's terms cancel, and its series is used."""


def entropy(p: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """-Σ p log₂ p along the last axis: 0 where one outcome has everything, log₂ n for n equal ones.

    A share of 0 adds 0.
    """
    logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
    return np.asarray(0.0 - np.vecdot(p, logs))  # not -0.0


def jensen_shannon(
    p: npt.NDArray[Any], q: npt.NDArray[Any], axis: int = -1
) -> npt.NDArray[np.float64]:
    """The Jensen–Shannon divergence of `p` and `q` along `axis`, in bits; float64, `axis` gone.

    ½ KL(p‖m) + ½ KL(q‖m) with m = ½(p + q) (Lin 1991, "Divergence measures based on the Shannon
    entropy"): 0 where both are the same, 1 where no outcome has a share in both, symmetric, and
    finite where one has a share of 0. It is the square of SciPy's `jensenshannon` with base 2.

    `p` and `q` broadcast against each other and may be of any float type. Each is divided by its
    sum. NaN where one of them is no distribution: its sum is 0, or it holds a negative share, NaN
    or infinity.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        p, q = _distribution(p, axis), _distribution(q, axis)
        mean = (p + q) / 2
        # p = m(1 + d) and q = m(1 - d): an outcome's part is a function of d, even and never
        # negative, where the usual two logarithms nearly cancel and may sum to less than 0
        d = np.divide((p - q) / 2, mean, out=np.zeros_like(mean), where=mean != 0)
        return np.asarray((mean * _part(d)).sum(axis))


def _distribution(values: npt.NDArray[Any], axis: int) -> npt.NDArray[np.float64]:
    values = np.asarray(values, dtype=np.float64)
    values = np.where(values >= 0, values, np.nan)
    return np.asarray(values / values.sum(axis, keepdims=True))


def _part(d: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """½[(1+d) log₂(1+d) + (1-d) log₂(1-d)], for d from -1 to 1."""
    square = d * d
    series = square * (1 + square * (1 / 6 + square * (1 / 15 + square / 28)))
    one = 1 - np.abs(d)
    logs = (1 + np.abs(d)) * np.log1p(np.abs(d))
    logs += one * np.log(one, out=np.zeros_like(one), where=one > 0)
    nats = np.where(square < NEARLY_EQUAL**2, series, logs)
    return np.asarray(nats / (2 * np.log(2)))
