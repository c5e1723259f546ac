"""Dropout that was on while weights were saved: what tells it from a mistake, and its p."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt

import numpy as np
import numpy.typing as npt

from attnviz.checks.checked_weights import Cells

Floats = npt.NDArray[np.float64]

LEAST_DROPOUT = 0.005
"""The smallest p that differs from rounding."""

MOST_DROPOUT = 0.999
"""The largest p that anybody trains with, and more."""

MOST_SHARED = 0.9
"""Share of the zeros that all heads may have in common before they are a mask, and no dropout."""

MOST_SUMS = 4096
"""Sums of rows that are kept for a layer."""


@dataclass
class DropoutSums:
    """What tells dropout from a mistake: zeros among the allowed cells, and how rows add up."""

    cells: int = 0
    zeros: int = 0
    rows: int = 0
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0
    whole: list[float] = field(default_factory=list)
    """Sums of rows without a zero, `MOST_SUMS` at most: 1/(1-p) where dropout took p."""

    shared: int = 0
    """Of the zeros, those of cells that are zero in all heads alike: a pattern is no dropout."""

    def add(self, row_sums: Floats, used: Cells, may: Cells, counts: Cells) -> None:
        """Rows that count, `[h q]`, of a block `[h q k]`: what has weight, and what may have."""
        if len(used) > 1:
            alike = np.asarray(may.any(0)) & ~used.any(0) & np.asarray(counts.all(0))[:, None]
            self.shared += int(alike.sum()) * len(used)
        zeros, cells = (may & ~used).sum(-1)[counts], may.sum(-1)[counts]
        sums = row_sums[counts]
        self.cells += int(cells.sum())
        self.zeros += int(zeros.sum())
        self.rows += len(sums)
        self.total += float(sums.sum())
        self.squares += float((sums**2).sum())
        self.largest = max(self.largest, float(sums.max(initial=0)))
        self.whole += sums[zeros == 0][: MOST_SUMS - len(self.whole)].tolist()


def dropout_of(sums: DropoutSums) -> float | None:
    """The p of dropout that explains how rows add up; None where it does not.

    Dropout makes zeros of a share p of the weights and divides the others by 1 - p (Srivastava et
    al. 2014, as libraries have it): rows without a zero sum to 1/(1 - p), no row to more, and the
    mean of all is 1.
    """
    if sums.rows < 2 or not sums.zeros:
        return None
    if not 1 + LEAST_DROPOUT < sums.largest < 1 / (1 - MOST_DROPOUT):
        return None
    if sums.shared > MOST_SHARED * sums.zeros:
        return None
    share = sums.zeros / sums.cells
    p = share
    if sums.whole:  # rows without a zero tell p exactly
        whole = np.array(sums.whole)
        # where no mask is expected, a key that was dropped in all heads is not seen to be missing
        if (whole < 0.98 * whole.max()).mean() > 0.5:
            return None
        p = 1 - 1 / float(whole.max())
    if p > MOST_DROPOUT:
        return None
    spread = 5 * sqrt(share * (1 - share) / sums.cells) + 0.02
    # 1 where as many were dropped as p says; few rows may have lost more or less by chance
    mean, usual = sums.total / sums.rows, (1 - share) / (1 - p)
    deviation = sqrt(max(sums.squares / sums.rows - mean**2, 0.0))
    fits = (
        abs(p - share) <= spread
        and sums.largest <= 1 / (1 - p) * 1.02 + 5 * spread
        and abs(mean - usual) <= 5 * deviation / sqrt(sums.rows) + 0.02
    )
    return p if fits else None
