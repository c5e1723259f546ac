"""Through a corpus on one machine, shard by shard."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attnviz.measuring.batches import Shard
from attnviz.measuring.checkpoint import Checkpoint
from attnviz.measuring.source import Source
from attnviz.measuring.tally import Part, empty_part, measure_shard
from attnviz.stats.measures import Options

EVERY = 20.0
"""Seconds between two checkpoints."""


@dataclass(frozen=True)
class Progress:
    """How far it is: documents so far, and bytes of the corpus that have been read."""

    documents: int
    tokens: int
    position: int


Tell = Callable[[Progress], None]


def drive(
    source: Source,
    shards: Iterable[Shard],
    options: Options,
    *,
    strict: bool = False,
    checkpoint: Checkpoint | None = None,
    resume: bool = False,
    tell: Tell = lambda _: None,
    every: float = EVERY,
) -> Part:
    """Measure all shards in order, and return their measures together.

    With a `checkpoint`, what has been measured is written there every `every` seconds, at the end,
    and when the work is stopped (`KeyboardInterrupt`) or fails; `resume` goes on from it. Sums are
    added in the same order then, so that the figures have the same bits.
    """
    done, part = 0, empty_part(source.n_layers, source.n_heads, options)
    if checkpoint is not None and resume:
        done, part = checkpoint.load(source.n_layers, source.n_heads, options)
    saved, at = done, time.monotonic()
    try:
        for shard in shards:
            if shard.number < done:
                continue
            part = part.merge(measure_shard(source, shard, options, strict))
            done = shard.number + 1
            tell(Progress(part.tally.documents, part.tally.tokens, shard.position))
            if checkpoint is not None and time.monotonic() - at >= every:
                checkpoint.save(done, part)
                saved, at = done, time.monotonic()
    finally:
        if checkpoint is not None and (done > saved or not checkpoint.path.exists()):
            checkpoint.save(done, part)
    return part
