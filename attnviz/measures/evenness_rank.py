"""The shape of a map: how far it is from even, and how many directions it has."""

from __future__ import annotations

import numpy as np

from attnviz.measures.block import Block, Floats
from attnviz.measures.sharpness import row_sums
from attnviz.measures.sums import Accumulator, ratio

RANKED_FIRST, RANKED_EVERY, RANKED_LENGTH = 8, 128, 512
"""Whose rank is taken: of the first 8 documents and every 128th, when they have at most 512 tokens.

A map's singular values cost T³, which is more than the model's own work: for a model of six layers
and texts of 128 tokens twice its forward pass. A sample keeps all measures together cheap, and it
depends on a document's number alone, so that it is the same however the corpus is cut.
"""


class Evenness(Accumulator):
    """Distances of rows a of A, in total variation ½ Σ_j |a_j - b_j|: 0 equal, 1 disjoint.

    `to_uniform` is that from b_j = 1 / n, over the n keys that the row may see. The same distance
    from the identity, b_i = 1, is 1 - a_i: `Where` has it, as `to_identity`.
    """

    def update(self, block: Block) -> None:
        n = np.maximum(block.seen, 1)
        even = (1 / n).astype(block.clean.dtype)  # B 1|H R
        apart = block.clean - even[..., None]
        np.abs(apart, out=apart)
        # forbidden cells are at distance 1/n as well, and do not count
        total = row_sums(apart) - (apart.shape[-1] - n) * even.astype(np.float64)
        self._add("to_uniform", block, block.over_rows(total / 2))
        self._add("rows", block, block.rows)

    def result(self) -> dict[str, Floats]:
        return {"to_uniform": ratio(self._sum("to_uniform"), self._sum("rows"))}


class Rank(Accumulator):
    """`rank`: the effective rank exp(-Σ p ln p) of A, with p = σ / Σσ over its singular values σ.

    Roy & Vetterli 2007, definition 1: 1 where all rows are alike, T for the identity. A mean over
    documents by their rows, of a sample of them: see `RANKED_FIRST`.
    """

    needs_whole = True

    def update(self, block: Block) -> None:
        if not block.is_whole:
            return
        for b, number in enumerate(block.texts.numbers):
            if not is_ranked(number):
                continue
            piece = block.text(b)
            if 0 < max(piece.weights.shape[2:]) <= RANKED_LENGTH:
                self._add("rank", block, _effective_rank(piece.exact[0]) * piece.rows)
                self._add("rows", block, piece.rows)

    def result(self) -> dict[str, Floats]:
        return {"rank": ratio(self._sum("rank"), self._sum("rows"))}


def is_ranked(number: int) -> bool:
    """Whether the document of that number is in the sample."""
    return number < RANKED_FIRST or number % RANKED_EVERY == 0


def _effective_rank(maps: Floats) -> Floats:
    """`[H Tq Tk]` → `[H]`; 0 for a map of zeros, NaN for one that holds what is no number."""
    sound = np.asarray(np.isfinite(maps).all((1, 2)))
    finite: Floats = np.where(sound[:, None, None], maps, 0.0)
    values = np.linalg.svd(finite, compute_uv=False)
    totals = values.sum(-1, keepdims=True)
    shares = np.divide(values, totals, out=np.zeros_like(values), where=totals > 0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    rank = np.exp(-(shares * logs).sum(-1)) * (totals[:, 0] > 0)
    return np.where(sound, rank, np.nan)
