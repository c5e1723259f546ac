"""The sequences of saved runs as the documents of a corpus."""

from __future__ import annotations

from collections.abc import Iterator

from attnviz.corpus.documents import Bad, Document
from attnviz.errors import InputError, printable
from attnviz.sources.saved_source import SavedSource


def documents_of(source: SavedSource) -> Iterator[tuple[Document | Bad, int]]:
    """(document, bytes read until there); a run that cannot be read is one bad document."""
    number = position = 0
    for i, path in enumerate(source.paths):
        position += path.stat().st_size if path.is_file() else 0
        shown = printable(path)
        try:
            run = source.run_at(i)
        except InputError as error:
            why = str(error).removeprefix(shown).lstrip(": ")
            yield Bad(number, shown, why), position
            number += 1
            continue
        for sequence in range(run.batch_size):
            yield (
                Document(number, f"{shown}, sequence {sequence}", (str(i), str(sequence))),
                position,
            )
            number += 1
