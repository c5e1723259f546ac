"""Saved runs and bare arrays as a source: attention that is there already."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from attnviz.errors import InputError, printable
from attnviz.layer_attention import LayerAttention
from attnviz.pipeline import Collector, Line, Pass, Progress, Tokenized
from attnviz.result import Attention
from attnviz.sources.bare_arrays import read_attention
from attnviz.sources.own_layers import TokenizedBatch
from attnviz.tokens import Texts, make_batch
from attnviz.weight_warnings import weight_warnings
from attnviz.wording import plural


class TokenizedRun(TokenizedBatch):
    """One sequence of a saved run: `at` is the index of the run, and of the sequence in it."""

    at: tuple[int, int] = (0, 0)


class SavedSource:
    """The sequences of saved runs, one at a time.

    A text is the pair (run, sequence), both numbers as strings. A run is read when its first
    sequence is asked for, and one is held at a time. `axes` are those of bare arrays.
    """

    longest = 0  # each sequence comes alone
    needs_text = False

    def __init__(self, paths: Sequence[Path], axes: str | None = None) -> None:
        self.paths, self._axes = tuple(paths), axes
        self.notes: list[str] = []
        self._held: tuple[int, Attention] | None = None
        self._first, first = self._first_sound()
        self.n_layers, self.n_heads = first.n_layers, first.n_heads
        self.layer_numbers = first.layer_numbers
        self.name = first.source or printable(paths[self._first])

    def tokens(self, texts: Texts) -> TokenizedRun:
        at, b = map(int, texts.queries[0])
        run = self.run_at(at)
        size, expected = (run.n_layers, run.n_heads), (self.n_layers, self.n_heads)
        if size != expected:
            raise InputError(
                f"has {_layers_and_heads(*size)}, and {printable(self.paths[self._first])} has "
                f"{_layers_and_heads(*expected)}"
            )
        if not run.lengths[b]:
            raise InputError("has no tokens")
        sides = zip((0, 1), (run.n_queries, run.n_keys), strict=True)
        queries, keys = (
            make_batch([run.real_tokens(b, side)], None, width, run.pad_side)
            for side, width in sides
        )
        tokens = TokenizedRun(queries, keys if run.is_cross else None)
        object.__setattr__(tokens, "at", (at, b))
        return tokens

    def join(self, parts: Sequence[Tokenized]) -> Tokenized:
        """The first, which comes alone."""
        return parts[0]

    def bytes_needed(
        self,
        tokens: Tokenized,  # noqa: ARG002
        layers: Collection[int] | None = None,  # noqa: ARG002
        by_rows: bool = False,  # noqa: ARG002
    ) -> int:
        """0: the maps are there."""
        return 0

    def can_stream(self, tokens: Tokenized) -> bool:  # noqa: ARG002
        return False

    def run(
        self,
        tokens: Tokenized,
        collector: Collector,
        layers: Collection[int] | None = None,
        progress: Progress | None = None,  # noqa: ARG002
    ) -> Pass:
        assert isinstance(tokens, TokenizedRun)
        at, b = tokens.at
        run, one = self.run_at(at), slice(b, b + 1)
        for i, number in enumerate(self.layer_numbers):
            if layers is None or number in layers:
                weights = np.asarray(run.attention[i, one])
                shape = (1, run.allowed.shape[2], *weights.shape[2:])
                mask = np.asarray(np.broadcast_to(run.allowed[i, one], shape))
                collector.visit(LayerAttention.of_weights(number, weights, mask))
        about = {
            name: getattr(run, name)
            for name in ("masks", "config", "source", "trained", "layers", "notes")
        }
        return Pass(tokens.queries, tokens.keys, partial(dict, about))

    def report(self, done: Pass) -> list[Line]:
        """Where the runs come from."""
        return [("source", printable(done.about["source"]) or "unknown")]

    def run_at(self, i: int) -> Attention:
        """The run in file `i`."""
        if self._held is None or self._held[0] != i:
            run, notes = read_attention(self.paths[i], axes=self._axes)
            warnings = weight_warnings(
                run,
                range(run.batch_size),
                [(layer, head) for layer in range(run.n_layers) for head in range(run.n_heads)],
                "attnviz render --softmax -o FILE.npz",
            )
            notes += [f"{printable(self.paths[i])}: {warning}" for warning in warnings]
            self.notes += [each for each in notes if each not in self.notes]
            self._held = (i, run)
        return self._held[1]

    def _first_sound(self) -> tuple[int, Attention]:
        """The first run that can be read. Raises `InputError` for the first where none can."""
        wrong: InputError | None = None
        for i in range(len(self.paths)):
            try:
                return i, self.run_at(i)
            except InputError as error:
                wrong = wrong or error
        assert wrong is not None
        raise wrong


def _layers_and_heads(layers: int, heads: int) -> str:
    return f"{plural(layers, 'layer')} of {plural(heads, 'head')}"
