"""Which heads do the same: Jensen–Shannon divergences between all pairs of heads."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.divergence import entropy
from attnviz.measures.block import Block, Bools, Floats
from attnviz.measures.sums import Accumulator, ratio

DOCUMENTS, LENGTH = 10, 256
"""Of the first 10 documents that have at most 256 tokens: a pair of heads costs a pass over both
maps, and there are (L·H)²/2 pairs."""

SMOOTHING = 1e-3
"""The share of a row that the code of Clark et al. 2019 spreads evenly before it compares heads."""


class Agreement(Accumulator):
    """Means over query rows of JS(a, b), in bits, for rows a, b of each pair of heads.

    Clark et al. 2019, section 6: JS(a, b) = H((a + b)/2) - (H(a) + H(b))/2, where a row that may
    see n keys is first smoothed to 0.999 a + 0.001 / n. 0: both look alike; 1: at nothing alike.
    `attnviz.divergence.jensen_shannon` gives the same, for one pair, without smoothing.

    A document is measured when its last layer has come; until then its maps are held.
    """

    needs_whole = True

    def __init__(self, n_layers: int, n_heads: int, documents: int = DOCUMENTS) -> None:
        super().__init__(n_layers, n_heads)
        self.documents = documents
        self._held: dict[int, dict[int, tuple[npt.NDArray[Any], Bools]]] = {}

    def _empty(self) -> Agreement:
        return Agreement(self.n_layers, self.n_heads, self.documents)

    def update(self, block: Block) -> None:
        if not block.is_whole:
            return
        for b, number in enumerate(block.texts.numbers):
            if number >= self.documents:
                continue
            piece = block.text(b)
            maps = piece.clean[0]  # H Tq Tk
            if 0 < max(maps.shape[1:]) <= LENGTH:
                allowed = np.ones_like(maps, dtype=np.bool_)
                if piece.allowed is not None:
                    allowed &= piece.allowed[0]
                self._hold(number, block.layer, maps.copy(), allowed)

    def _hold(self, number: int, layer: int, maps: npt.NDArray[Any], allowed: Bools) -> None:
        layers = self._held.setdefault(number, {})
        layers[layer] = (maps, allowed)
        if len(layers) == self.n_layers:
            del self._held[number]
            in_order = [layers[i] for i in range(self.n_layers)]
            self._compare(*(np.concatenate(parts) for parts in zip(*in_order, strict=True)))

    def _compare(self, maps: npt.NDArray[Any], allowed: Bools) -> None:
        """Add one document: maps and what was allowed, `[L·H Tq Tk]`."""
        n = np.maximum(allowed.sum(-1, keepdims=True), 1)
        smoothed = np.where(allowed, maps.astype(np.float64) * (1 - SMOOTHING) + SMOOTHING / n, 0)
        counts: Bools = np.asarray(allowed.any(-1))  # N Tq
        own_entropy = entropy(smoothed)  # N Tq
        own = np.where(counts, own_entropy, 0.0).sum(-1)
        apart = np.diag(0.0 * own)  # NaN for maps that hold what is no number
        rows = np.zeros_like(apart)
        for i, j in combinations(range(len(maps)), 2):
            both = counts[i] & counts[j]
            mean = (smoothed[i] + smoothed[j]) / 2
            divergence = entropy(mean) - (own_entropy[i] + own_entropy[j]) / 2
            apart[i, j] = apart[j, i] = np.maximum(divergence[both], 0.0).sum()
            rows[i, j] = rows[j, i] = both.sum()
        np.fill_diagonal(rows, counts.sum(-1))
        for name, values in (("apart", apart), ("pair_rows", rows), ("compared", np.ones(1))):
            self.sums[name] = self.sums.get(name, 0.0) + values

    @property
    def compared(self) -> int:
        """How many documents were compared: longer ones and later ones are not."""
        return int(self.sums["compared"][0]) if "compared" in self.sums else 0

    def result(self) -> dict[str, Floats]:
        """Nothing for a single head: `divergences` has the pairs."""
        return {}

    def divergences(self) -> Floats:
        """`[L·H L·H]`, in bits, 0 on the diagonal; NaN where no row counts for both, and for heads
        with a weight that is no number."""
        size = self.n_layers * self.n_heads
        none = np.zeros((size, size))
        return ratio(self.sums.get("apart", none), self.sums.get("pair_rows", none))


def clustered(divergences: Floats) -> tuple[list[int], Floats]:
    """The heads in an order that puts like ones side by side, and SciPy's linkage of them.

    Average linkage of the Jensen–Shannon distances √JS, which are a metric. Heads without a
    figure, and of a pair without one the head that has fewer, stand at the end, in their own order,
    and are not in the linkage.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    unknown = ~np.isfinite(divergences)
    sound = np.arange(len(divergences))
    while (missing := unknown[np.ix_(sound, sound)].sum(1)).any():
        sound = np.delete(sound, missing.argmax())
    rest = [i for i in range(len(divergences)) if i not in set(sound.tolist())]
    if len(sound) < 2:
        return [*sound.tolist(), *rest], np.zeros((0, 4))
    distances = squareform(np.sqrt(divergences[np.ix_(sound, sound)]), checks=False)
    tree = optimal_leaf_ordering(linkage(distances, "average"), distances)
    return [*sound[leaves_list(tree)].tolist(), *rest], tree
