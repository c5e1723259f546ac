"""Saved runs as a source: attention that is there already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from attnviz.corpus.documents import Bad, Document
from attnviz.corpus.source import Ready, Take
from attnviz.errors import InputError, printable
from attnviz.measures.block import Block, texts_of_tokens
from attnviz.result import Attention
from attnviz.sources.from_arrays import read_attention
from attnviz.wording import plural


class Saved:
    """The sequences of saved runs, each a document; see `Source`.

    A run is read when its first sequence is wanted, and one is held at a time; one that cannot be
    read is a bad document. `axes` are those of bare arrays.
    """

    longest = 0  # each document comes alone

    def __init__(self, paths: Sequence[Path], axes: str | None = None) -> None:
        self._paths, self._axes = tuple(paths), axes
        self.notices: list[str] = []
        self._held: tuple[int, Attention] | None = None
        self._first, first = self._first_sound()
        self.n_layers, self.n_heads = first.n_layers, first.n_heads
        self.layer_numbers = first.layer_numbers
        self.name = first.source or printable(paths[self._first])

    def documents(self) -> Iterator[tuple[Document | Bad, int]]:
        """The sequences of all runs."""
        number = position = 0
        for i, path in enumerate(self._paths):
            position += path.stat().st_size if path.is_file() else 0
            shown = printable(path)
            try:
                run = self._run(i)
            except InputError as error:
                why = str(error).removeprefix(shown).lstrip(": ")
                yield Bad(number, shown, why), position
                number += 1
                continue
            for sequence in range(run.batch_size):
                name = f"{shown}, sequence {sequence}"
                tokens = run.query_tokens[sequence]
                yield Document(number, name, (str(i), str(sequence), *tokens)), position
                number += 1

    def ready(self, document: Document) -> Ready:
        i, sequence = map(int, document.content[:2])
        run = self._run(i)
        size, wanted = (run.n_layers, run.n_heads), (self.n_layers, self.n_heads)
        if size != wanted:
            raise InputError(
                f"has {_layers_and_heads(*size)}, and {printable(self._paths[self._first])} has "
                f"{_layers_and_heads(*wanted)}"
            )
        length = int(run.lengths[sequence])
        if not length:
            raise InputError("has no tokens")
        return Ready(document, (0,) * length, (str(i), str(sequence)))

    def attend(self, batch: Sequence[Ready], take: Take) -> None:
        for each in batch:
            i, b = map(int, each.tokens)
            run = self._run(i)
            one = slice(b, b + 1)
            texts = texts_of_tokens(
                [each.document.number],
                run.query_tokens[one],
                run.lengths[one],
                run.pad_side,
                run.key_tokens[one] if run.is_cross else None,
                run.key_lengths[one] if run.is_cross else None,
            )
            for layer in range(run.n_layers):
                weights = np.asarray(run.attention[layer, one])
                allowed = np.broadcast_to(
                    run.allowed[layer, one], (1, run.allowed.shape[2], *weights.shape[2:])
                )
                take(Block(layer, weights, texts, np.asarray(allowed)))

    def tokens(self, ready: Ready) -> tuple[str, ...]:
        i, sequence = map(int, ready.tokens)
        run = self._run(i)
        real = run.query_valid[sequence]
        tokens = run.query_tokens[sequence]
        return tuple(token for token, is_real in zip(tokens, real, strict=True) if is_real)

    def probe(self, n: int, seed: int) -> list[Ready]:  # noqa: ARG002 - there is no model
        raise InputError("--probe wants a model that can run; a saved run cannot")

    def losses(self, batch: Sequence[Ready]) -> None:  # noqa: ARG002 - there is no model
        return None

    def _first_sound(self) -> tuple[int, Attention]:
        """The first run that can be read. Raises `InputError` for the first where none can."""
        wrong: InputError | None = None
        for i in range(len(self._paths)):
            try:
                return i, self._run(i)
            except InputError as error:
                wrong = wrong or error
        assert wrong is not None
        raise wrong

    def _run(self, i: int) -> Attention:
        if self._held is None or self._held[0] != i:
            run, notices = read_attention(self._paths[i], axes=self._axes)
            self.notices += [each for each in notices if each not in self.notices]
            self._held = (i, run)
        return self._held[1]


def open_saved(paths: tuple[Path, ...], axes: str | None = None) -> Saved:
    """Open saved runs, or arrays of attention."""
    return Saved(paths, axes)


def _layers_and_heads(layers: int, heads: int) -> str:
    return f"{plural(layers, 'layer')} of {plural(heads, 'head')}"
