"""A corpus as Ray Data reads it: a row a shard. Imported where Ray is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from attnviz.corpus.batches import shard_as_json, shards
from attnviz.corpus.documents import Corpus


class ShardSource(Datasource):
    """The shards of a corpus that are not `done` yet, in order, streamed by one task.

    One, so that a document has the same number as on a single machine; a model is slower than
    reading by some orders of magnitude.
    """

    def __init__(self, corpus: Corpus, done: frozenset[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._corpus, self._done = corpus, done

    def estimate_inmemory_data_size(self) -> int | None:
        return self._corpus.n_bytes

    def get_read_tasks(self, *_: Any, **__: Any) -> list[ReadTask]:
        corpus, done = self._corpus, self._done

        def read() -> Iterator[pa.Table]:
            for shard in shards(corpus.documents()):
                if shard.number not in done:
                    yield pa.table(
                        {
                            "shard": [shard.number],
                            "position": [shard.position],
                            "documents": [shard_as_json(shard)],
                        }
                    )

        return [ReadTask(read, BlockMetadata(None, corpus.n_bytes, None))]
