"""The measures above a map: sums over query rows, so that parts can be measured and merged."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnviz.divergence import entropy
from attnviz.result import Attention

MEASURES = {
    "entropy": "bits",
    "largest": "mean of the largest weight",
    "diagonal": "share on the same position",
    "first": "share on the first token",
    "distance": "positions",
}
"""The measures of a head, each a mean over its query rows, and their units."""


@dataclass(frozen=True, eq=False)
class HeadMeasures:
    """Sums over the query rows of each head; rows that are padding or see nothing do not count.

    For a row a of the weights A, whose query stands at position i and whose keys stand at j:

    - entropy: -Σ_j a_j log₂ a_j, in bits; 0 for one key, log₂ n for n equal ones.
    - largest: max_j a_j (the "confidence" of Voita et al. 2019 is its mean).
    - diagonal: a_i, the weight on the key at the query's own position.
    - first: a_0, the weight on the first token.
    - distance: Σ_j a_j |i - j|, in positions.

    `sums` is float64 `[L H 5]`, in the order of `MEASURES`; `rows` is int64 `[L H]`.
    """

    sums: npt.NDArray[np.float64]
    rows: npt.NDArray[np.int64]

    def merge(self, other: HeadMeasures) -> HeadMeasures:
        """The measures of both parts together."""
        return HeadMeasures(self.sums + other.sums, self.rows + other.rows)

    def result(self) -> dict[str, npt.NDArray[np.float64]]:
        """Each measure's mean over the rows, `[L H]`; NaN where no row counts."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means = self.sums / self.rows[..., None]
        return {name: means[..., i] for i, name in enumerate(MEASURES)}


def measure(
    result: Attention, sequence: int, heads: Collection[tuple[int, int]] | None = None
) -> HeadMeasures:
    """Measure heads on one sequence of `result`. A NaN among a head's rows is that head's.

    `heads` are (layer, head) pairs, None means all; no row counts for any other, and nothing of it
    is looked at. The rows of a window are not whole, and none counts.
    """
    at_q, at_k = result.query_positions[sequence], result.key_positions[sequence]
    same = (at_q[:, None] == at_k[None, :]) & result.key_valid[sequence]
    first = (at_k == 0) & result.key_valid[sequence]
    apart = np.abs(at_q[:, None] - at_k[None, :])

    counting: dict[tuple[int, int], npt.NDArray[np.bool_]] = {}  # [Tq], by place in `allowed`
    sums = np.zeros((result.n_layers, result.n_heads, len(MEASURES)))
    counts = np.zeros((result.n_layers, result.n_heads), dtype=np.int64)
    everything = np.ndindex(result.n_layers, result.n_heads)
    for layer, head in everything if heads is None else heads:  # one at a time: less memory
        place = (layer, head if result.allowed.shape[2] > 1 else 0)
        if place not in counting:
            mask = result.allowed[place[0], sequence, place[1]]
            whole = result.query_valid[sequence] & (not result.is_part)
            counting[place] = mask.any(-1) & whole
        rows = counting[place]
        counts[layer, head] = rows.sum()
        weights = result.attention[layer, sequence, head][rows].astype(np.float64)  # rows Tk
        sums[layer, head] = (
            entropy(weights).sum(),
            weights.max(-1).sum(),
            weights[same[rows]].sum(),
            weights[:, first].sum(),
            np.einsum("qk,qk", weights, apart[rows]),
        )
    return HeadMeasures(sums, counts)


def measure_all(
    result: Attention, heads: Collection[tuple[int, int]] | None = None
) -> HeadMeasures:
    """Measure heads on all sequences together; see `measure`."""
    total = measure(result, 0, heads)
    for sequence in range(1, result.batch_size):
        total = total.merge(measure(result, sequence, heads))
    return total
