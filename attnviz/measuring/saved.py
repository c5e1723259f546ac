"""Saved runs as a source: attention that is there already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from attnviz.errors import InputError, printable
from attnviz.measuring.documents import Bad, Document
from attnviz.measuring.source import Ready, Take
from attnviz.result import AttentionResult
from attnviz.sources.from_arrays import read_attention
from attnviz.stats.block import Block, texts_of_tokens


class Saved:
    """The sequences of saved runs, each a document; see `Source`.

    A run is read when its first sequence is wanted, and one is held at a time. Raises `InputError`
    where the runs differ in their layers or heads.
    """

    longest = 0  # each document comes alone

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self.notices: list[str] = []
        self._held: tuple[int, AttentionResult] | None = None
        first = self._run(0)
        self.n_layers, self.n_heads = first.n_layers, first.n_heads
        self.layer_numbers = first.layer_numbers
        self.name = first.source or printable(paths[0])

    def documents(self) -> Iterator[tuple[Document | Bad, int]]:
        """The sequences of all runs."""
        number = position = 0
        for i, path in enumerate(self._paths):
            run = self._run(i)
            position += path.stat().st_size if path.is_file() else 0
            for sequence in range(run.batch_size):
                name = f"{printable(path)}, sequence {sequence}"
                tokens = run.query_tokens[sequence]
                yield Document(number, name, (str(i), str(sequence), *tokens)), position
                number += 1

    def ready(self, document: Document) -> Ready:
        i, sequence = map(int, document.content[:2])
        run = self._run(i)
        if (run.n_layers, run.n_heads) != (self.n_layers, self.n_heads):
            raise InputError(
                f"has {run.n_layers} layers of {run.n_heads} heads, and "
                f"{printable(self._paths[0])} {self.n_layers} of {self.n_heads}"
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

    def _run(self, i: int) -> AttentionResult:
        if self._held is None or self._held[0] != i:
            run, notices = read_attention(self._paths[i])
            self.notices += [each for each in notices if each not in self.notices]
            self._held = (i, run)
        return self._held[1]


def open_saved(paths: tuple[Path, ...]) -> Saved:
    """Open saved runs."""
    return Saved(paths)
