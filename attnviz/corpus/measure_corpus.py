"""Measure a corpus on one machine, shard by shard."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from attnviz.corpus.batches import Shard
from attnviz.corpus.checkpoint import Checkpoint
from attnviz.corpus.measured_shards import MeasuredShards, measure_shard
from attnviz.corpus.reader import CorpusReader
from attnviz.measures.measures import Options

EVERY = 20.0
"""Seconds between two checkpoints."""


@dataclass(frozen=True)
class MeasuringProgress:
    """What has been measured so far, of which shards, and how many bytes were read."""

    part: MeasuredShards
    shards: Collection[int]
    position: int


Tell = Callable[[MeasuringProgress], None]


class Keeper:
    """What has been measured so far, and the checkpoint that holds it."""

    def __init__(
        self,
        part: MeasuredShards | None,
        done: set[int],
        checkpoint: Checkpoint | None,
        every: float,
        tell: Tell,
    ) -> None:
        self._sums: tuple[MeasuredShards | None, tuple[int, ...]] = (part, ())
        self.done = done
        self._checkpoint, self._every, self._tell = checkpoint, every, tell
        self._saved, self._at = len(done), time.monotonic()

    @property
    def part(self) -> MeasuredShards | None:
        """All that has been measured."""
        return self._sums[0]

    def add(self, part: MeasuredShards, shards: Iterable[int], position: int) -> None:
        """Add what was measured of some shards, each of which comes once."""
        part = part if self.part is None else self.part.merge(part)
        # one step: Ctrl-C may come between any two, and sums without their shards count twice
        self._sums = (part, tuple(shards))
        self.done.update(self._sums[1])
        self._tell(MeasuringProgress(part, self.done, position))
        if self._checkpoint is not None and time.monotonic() - self._at >= self._every:
            self.save()

    def save(self) -> None:
        """Write the checkpoint, unless it is up to date."""
        checkpoint, (part, last) = self._checkpoint, self._sums
        self.done.update(last)
        if checkpoint is not None and (
            len(self.done) > self._saved or not checkpoint.path.exists()
        ):
            checkpoint.save(self.done, part)
        self._saved, self._at = len(self.done), time.monotonic()


@contextmanager
def keeping(
    options: Options,
    checkpoint: Checkpoint | None,
    resume: bool,
    tell: Tell,
    every: float,
) -> Iterator[Keeper]:
    """A keeper that resumes from the checkpoint if asked, and always saves on exit."""
    done, part = set[int](), None
    if checkpoint is not None and resume:
        done, part = checkpoint.load(options)
    keeper = Keeper(part, done, checkpoint, every, tell)
    try:
        yield keeper
    finally:
        keeper.save()


def measure_corpus(
    source: CorpusReader,
    shards: Iterable[Shard],
    options: Options,
    *,
    strict: bool = False,
    checkpoint: Checkpoint | None = None,
    resume: bool = False,
    tell: Tell = lambda _: None,
    every: float = EVERY,
) -> MeasuredShards | None:
    """Measure all shards in order, and return their measures together; None where there are none.

    With a `checkpoint`, what has been measured is written there every `every` seconds, at the end,
    and when the work is stopped (`KeyboardInterrupt`) or fails; `resume` goes on from it. Sums are
    added in the same order then, so that the figures have the same bits.
    """
    with keeping(options, checkpoint, resume, tell, every) as keeper:
        for shard in shards:
            if shard.number not in keeper.done:
                part = measure_shard(source, shard, options, strict)
                keeper.add(part, [shard.number], shard.position)
        return keeper.part
