"""Documents into shards, shards into batches of like lengths. The corpus alone decides which."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attnviz.corpus.documents import Bad, Document
from attnviz.corpus.reader import Ready

SHARD = 256
"""Documents of a shard: what is sorted by length, done as a whole, and kept in a checkpoint."""

MOST_TOKENS, MOST_CELLS = 2048, 2**19
"""Of a padded batch: tokens, and cells of a head's maps."""


@dataclass(frozen=True)
class Shard:
    """Consecutive documents, `number` among the shards; `position`: bytes read until here."""

    number: int
    found: tuple[Document | Bad, ...]
    position: int = 0


def shards(documents: Iterable[tuple[Document | Bad, int]], size: int = SHARD) -> Iterator[Shard]:
    """Cut a stream of documents into shards of `size`."""
    held: list[Document | Bad] = []
    number = position = 0
    for found, position in documents:
        held.append(found)
        if len(held) == size:
            yield Shard(number, tuple(held), position)
            held, number = [], number + 1
    if held:
        yield Shard(number, tuple(held), position)


def shard_as_json(shard: Shard) -> bytes:
    """The documents of a shard as JSON, as they travel to a worker."""
    rows = [
        [each.number, each.name, each.why]
        if isinstance(each, Bad)
        else [each.number, each.name, each.content, each.pairs]
        for each in shard.found
    ]
    return json.dumps(rows).encode("ascii")


def shard_from_json(documents: bytes, number: int, position: int) -> Shard:
    """What `shard_as_json` made."""
    found: list[Document | Bad] = []
    for row in json.loads(documents):
        if len(row) == 3:
            found.append(Bad(*row))
        else:
            content = row[2] if isinstance(row[2], str) else tuple(row[2])
            pairs = None if row[3] is None else tuple(tuple(pair) for pair in row[3])
            found.append(Document(row[0], row[1], content, pairs))
    return Shard(number, tuple(found), position)


def batches(
    ready: Iterable[Ready],
    longest: int | None = None,
    most_tokens: int = MOST_TOKENS,
    most_cells: int = MOST_CELLS,
) -> Iterator[list[Ready]]:
    """Documents of like lengths together, the long ones first: little of a batch is padding.

    A document of more than `longest` tokens comes alone.
    """
    batch: list[Ready] = []
    for each in sorted(ready, key=lambda r: (-len(r), r.document.number)):
        width = len(batch[0]) if batch else len(each)
        n = len(batch) + 1
        full = n * width > most_tokens or n * width * width > most_cells
        if batch and (full or (longest is not None and width > longest)):
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch
