"""Induction scores on random tokens that repeat, and the model's loss on them."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.corpus.batches import batches
from attnviz.corpus.measured_shards import measured
from attnviz.corpus.reader import CorpusReader
from attnviz.measures.block import Floats
from attnviz.measures.induction import COPIES, TOKENS
from attnviz.measures.measures import Options

SEQUENCES = 16


@dataclass(frozen=True)
class Probe:
    """Scores `[L H]` by name, and mean losses in nats, None where nothing is predicted.

    `first_copy` is the loss of tokens that have not been seen before, `later_copies` of those that
    have: an induction head brings it down (Olsson et al. 2022).
    """

    scores: dict[str, Floats]
    first_copy: float | None
    later_copies: float | None
    sequences: int = SEQUENCES
    tokens: int = TOKENS
    copies: int = COPIES


def probe_induction(source: CorpusReader, seed: int, sequences: int = SEQUENCES) -> Probe:
    """Run random tokens that repeat through `source`. The same for a seed."""
    made = source.probe(sequences, seed)
    scores = measured(source, batches(made), Options(("induction",))).result()
    losses = source.losses(made)
    if losses is None:
        return Probe(scores, None, None, sequences)
    # losses[t] is that of token t + 1; around the copies stands what texts of the model have there
    ids, length = made[0].ids, TOKENS * COPIES
    begin = next(b for b in range(len(ids)) if ids[b : b + length] == ids[b : b + TOKENS] * COPIES)
    first = losses[:, max(begin - 1, 0) : begin - 1 + TOKENS]
    later = losses[:, begin - 1 + TOKENS : begin - 1 + length]
    return Probe(scores, float(first.mean()), float(later.mean()), sequences)
