"""How sharply heads look."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.measures.block import Block, Bools, Floats
from attnviz.measures.sums import Accumulator, ratio
from attnviz.measures.token_kinds import SEPARATOR

SMOOTHING = 1e-4
"""The share of a row that Clark et al. 2019 spread evenly before they take its entropy."""


class Sharpness(Accumulator):
    """Means over query rows a of A; a row may see n keys.

    - `entropy` H(a) = -Σ_j a_j log₂ a_j, in bits.
    - `entropy_smoothed` H(0.9999 a + 0.0001 / n): as the code of Clark et al. 2019 has it
      (section 3.3), in bits where they have nats. Spread over what may be seen only.
    - `entropy_first` H of the row of the first token, [CLS] in BERT (Clark et al. 2019, section
      3.3).
    - `keys` 2^H(a): as if that many keys shared the row evenly (the perplexity of the row).
    - `largest` max_j a_j; `confidence` the same with separators apart (Voita et al. 2019, section
      4: the mean largest weight, the end of the sentence excluded).
    """

    def update(self, block: Block) -> None:
        entropy = _entropy(block)
        sums = {
            "entropy": entropy,
            "entropy_smoothed": _smoothed_entropy(block),
            "keys": np.exp2(entropy),
            "largest": block.largest,
            "confidence": _confidence(block),
        }
        for name, values in sums.items():
            self._add(name, block, block.over_rows(values))
        self._add("rows", block, block.rows)
        of_first, n = block.once("first rows", lambda: _first_rows(block))
        if of_first.any():
            self._add("entropy_first", block, np.where(of_first, entropy, 0.0).sum((0, 2)))
            self._add("first_rows", block, np.broadcast_to(n, (block.n_heads,)))

    def result(self) -> dict[str, Floats]:
        rows = self._sum("rows")
        names = ("entropy", "entropy_smoothed", "keys", "largest", "confidence")
        figures = {name: ratio(self._sum(name), rows) for name in names}
        figures["entropy_first"] = ratio(self._sum("entropy_first"), self._sum("first_rows"))
        return figures


def _first_rows(block: Block) -> tuple[Bools, Floats]:
    """Which rows are first tokens, `[B 1|H R]`, and how many there are, `[1|H]`."""
    of_first = block.counts & (block.queries.positions == 0)[:, None]
    return of_first, of_first.sum((0, 2), dtype=np.float64)


def _confidence(block: Block) -> npt.NDArray[Any]:
    """`[B H R]`: the largest weight that is not on a separator. Few rows have theirs on one."""
    separators = block.keys.is_kind(SEPARATOR)
    if not separators.any():
        return block.largest
    confidence = block.largest.copy()
    there = np.take_along_axis(separators[:, None], block.largest_at, 2)
    b, h, r = np.nonzero(there)
    confidence[b, h, r] = np.where(separators[b], 0, block.clean[b, h, r]).max(-1)
    return confidence


def _smoothed_entropy(block: Block) -> Floats:
    """`[B H R]`: -Σ s log₂ s for s = (1 - 0.0001) a + e, of which log₂ s is all that costs.

    Forbidden cells got their e as well: what each of them added is known.
    """
    n = np.maximum(block.seen, 1)
    even = (SMOOTHING / n).astype(block.clean.dtype)[..., None]  # e: B 1|H R 1
    logs = block.clean * (1 - SMOOTHING)
    logs += even
    np.log2(logs, out=logs)
    exact = logs.astype(np.float64)
    forbidden = (logs.shape[-1] - n) * np.log2(even)[..., 0]
    of_even = even[..., 0].astype(np.float64) * (row_sums(exact) - forbidden)
    return np.asarray(-(1 - SMOOTHING) * np.vecdot(block.exact, exact) - of_even)


def _entropy(block: Block) -> Floats:
    """`[B H R]`, in bits. Logarithms are in the weights' own dtype, products and sums in float64.

    A weight of 0 adds 0, since its logarithm is that of the smallest number that there is; beside
    any other weight that number is nothing.
    """
    logs = np.abs(block.clean)  # -1e-9, as rounding leaves it, adds nothing to speak of
    logs += np.finfo(logs.dtype).tiny
    np.log2(logs, out=logs)
    entropy = 0.0 - np.vecdot(block.exact, logs.astype(np.float64))  # not -0.0
    return np.where(np.isfinite(entropy), entropy, np.nan)  # 2^-inf would be a sound 0


def row_sums(values: npt.NDArray[Any]) -> Floats:
    """`[… Tk]` → `[…]`, in float64. A product with ones is the fastest way to it."""
    return np.asarray(values.astype(np.float64, copy=False) @ np.ones(values.shape[-1]))
