"""What was measured of some shards of a corpus, and of how many documents; it merges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from attnviz.corpus.batches import Shard, batches
from attnviz.corpus.documents import Bad
from attnviz.corpus.reader import CorpusReader, Ready, SourceSummary
from attnviz.errors import InputError
from attnviz.machine import n_threads
from attnviz.measures.block import Block
from attnviz.measures.measures import Measures, Options, merge_all

MOST_NAMED = 100
"""Bad documents that are named; all are counted."""


@dataclass(frozen=True)
class DocumentCounts:
    """How many documents were measured, cut and bad, and the tokens of those that were measured."""

    documents: int = 0
    tokens: int = 0
    cut: int = 0
    longest: int = 0
    bad: int = 0
    named: tuple[Bad, ...] = ()

    def merge(self, other: DocumentCounts) -> DocumentCounts:
        """Both together; of the bad ones the first are named."""
        named = sorted((*self.named, *other.named), key=lambda bad: bad.number)
        return DocumentCounts(
            self.documents + other.documents,
            self.tokens + other.tokens,
            self.cut + other.cut,
            max(self.longest, other.longest),
            self.bad + other.bad,
            tuple(named[:MOST_NAMED]),
        )

    def as_dict(self) -> dict[str, Any]:
        """Numbers and names, for JSON."""
        return {**vars(self), "named": [list(vars(bad).values()) for bad in self.named]}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> DocumentCounts:
        """What `as_dict` made."""
        return cls(**{**value, "named": tuple(Bad(*bad) for bad in value["named"])})


@dataclass(frozen=True, eq=False)
class MeasuredShards:
    """Measures of some shards, the counts of their documents, and the source they are of."""

    measures: Measures
    counts: DocumentCounts
    summary: SourceSummary

    def merge(self, other: MeasuredShards) -> MeasuredShards:
        """Both together, of one source; neither is changed."""
        measures, counts = self.measures.merge(other.measures), self.counts.merge(other.counts)
        return MeasuredShards(measures, counts, self.summary)

    def header(self) -> dict[str, Any]:
        """Everything but the sums, for JSON; the sums are `measures.state()`."""
        return {"counts": self.counts.as_dict(), "source": vars(self.summary)}

    @classmethod
    def of_state(
        cls, header: Mapping[str, Any], sums: Mapping[str, npt.NDArray[Any]], options: Options
    ) -> MeasuredShards:
        """The inverse of `header` and `measures.state()`: from a checkpoint, or from a worker.

        Raises `ValueError` for more heads than there are sums, before memory is taken for them.
        """
        summary = SourceSummary.from_dict(header["source"])
        if summary.n_layers * summary.n_heads > max(array.size for array in sums.values()):
            raise ValueError("it holds fewer heads than it says")
        measures = Measures(summary.n_layers, summary.n_heads, options).load(sums)
        return cls(measures, DocumentCounts.from_dict(header["counts"]), summary)


class SpoiledError(InputError):
    """A bad document, where there must be none."""


def measure_shard(
    source: CorpusReader, shard: Shard, options: Options, strict: bool = False
) -> MeasuredShards:
    """Measure the documents of a shard. Raises `SpoiledError` for a bad one when `strict`."""
    ready: list[Ready] = []
    bad: list[Bad] = []
    for found in shard.found:
        if isinstance(found, Bad):
            bad.append(found)
        else:
            try:
                ready.append(source.ready(found))
            except InputError as error:
                bad.append(Bad(found.number, found.name, str(error)))
        if strict and bad:
            raise SpoiledError(f"{bad[0].name} {bad[0].why}")
    measures = measured(source, batches(ready, source.longest), options)
    lengths = [len(each) for each in ready]
    counts = DocumentCounts(
        len(ready),
        sum(lengths),
        sum(each.cut for each in ready),
        max(lengths, default=0),
        len(bad),
        tuple(bad[:MOST_NAMED]),
    )
    return MeasuredShards(measures, counts, SourceSummary.of(source))


@cache
def _own_blas() -> ThreadpoolController:
    """NumPy's BLAS. Its threads would wait for each other while they spin: on a busy machine, or
    under a crew's own threads, a product takes a hundred times as long."""
    every = ThreadpoolController()
    paths = [each.filepath for each in every.lib_controllers if "numpy" in each.filepath]
    return every.select(filepath=paths)


def measured(source: CorpusReader, made: Iterable[Sequence[Ready]], options: Options) -> Measures:
    """Measure batches, with as many threads as torch has, each of which does its own products."""
    n = n_threads()
    crew = [Measures(source.n_layers, source.n_heads, options) for _ in range(n)]
    with ThreadPoolExecutor(n) as pool, _own_blas().limit(limits=1):

        def take(block: Block) -> None:
            crew[0].update_whole(block)
            if n == 1:
                crew[0].update_pieces(block.pieces())
                return
            pieces = list(block.pieces())
            work = [pool.submit(crew[i].update_pieces, pieces[i::n]) for i in range(n)]
            for each in work:
                each.result()

        for batch in made:
            source.attend(batch, take)
    return merge_all(crew)
