"""Induction heads, on random tokens that repeat."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attnviz.measures.block import Block, Floats
from attnviz.measures.sums import Accumulator, ratio

TOKENS, COPIES = 25, 4
"""Olsson et al. 2022 repeat 25 random tokens 4 times."""


class Induction(Accumulator):
    """Scores on text that repeats, over the rows whose token stood earlier in the text.

    Means over such rows, at i, of token t_i:

    - `prefix_matching` Σ over j ≤ i with t_{j-1} = t_i: the weight on tokens that followed this one
      before. An induction head has all of it there. Olsson et al. 2022, methods, "Head activation
      evaluators".
    - `duplicate_token` Σ over j < i with t_j = t_i: the weight on the same token before. Not
      theirs; Wang et al. 2022 name heads that do so (section 3).
    - `previous_token` a_{i-1}: as theirs, who take it from ordinary text.

    Special tokens, separators, periods and commas are no rows and no keys of it.
    """

    def update(self, block: Block) -> None:
        queries, keys = block.queries, block.keys
        at_q, at_k = queries.positions[:, :, None], keys.positions[:, None]
        plain_q, plain_k = queries.real & (queries.kinds == 0), keys.real & (keys.kinds == 0)
        same = queries.ids[:, :, None] == keys.ids[:, None]  # B R Tk
        same &= plain_q[:, :, None] & plain_k[:, None]
        earlier = same & (at_k < at_q)
        # the token before key j is key j - 1: texts stand without gaps in a padded row
        follows = np.zeros_like(same)
        follows[..., 1:] = same[..., :-1]
        follows &= (at_k <= at_q) & plain_k[:, None]
        counts = block.counts & earlier.any(-1)[:, None]  # B 1|H R
        masks = {
            "prefix_matching": follows,
            "duplicate_token": earlier,
            "previous_token": (at_k == at_q - 1) & keys.real[:, None],
        }
        for name, mask in masks.items():
            weights = np.where(mask[:, None], block.exact, 0.0).sum(-1)
            self._add(name, block, np.where(counts, weights, 0.0).sum((0, 2)))
        n = np.broadcast_to(counts.sum((0, 2), dtype=np.float64), (block.n_heads,))
        self._add("rows", block, n)

    def result(self) -> dict[str, Floats]:
        rows = self._sum("rows")
        names = ("prefix_matching", "duplicate_token", "previous_token")
        return {name: ratio(self._sum(name), rows) for name in names}


def repeated(
    vocabulary: npt.NDArray[np.int64],
    seed: int,
    tokens: int = TOKENS,
    copies: int = COPIES,
) -> npt.NDArray[np.int64]:
    """`tokens` different ids drawn from `vocabulary`, `copies` times over. The same for a seed."""
    drawn = np.random.default_rng(seed).choice(vocabulary, tokens, replace=False)
    return np.tile(drawn, copies)
