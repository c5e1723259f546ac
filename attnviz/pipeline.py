"""The one pipeline: a source runs tokens through, layer by layer; a collector takes what it needs.

A source is one class with the members of `Source`; a collector one with those of `Collector`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attnviz.layer_attention import LayerAttention
    from attnviz.result import Attention
    from attnviz.tokens import Batch, Texts
    from attnviz.trace import Step

Progress = Callable[[str], None]
"""Called with a few words when a stage begins."""

Line = tuple[str, str]
"""A label and what it says, for the lines at the top of a report; "" continues the line before."""


class Tokenized(Protocol):
    """Texts as a source takes them: cut into tokens, padded to one width."""

    @property
    def queries(self) -> Batch: ...

    @property
    def keys(self) -> Batch | None:
        """None where the queries attend to themselves."""
        ...

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """`[B]`: the tokens of each text."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What was changed on the way from text to tokens."""
        ...

    @property
    def n_cut(self) -> int:
        """How many texts were cut to a number of tokens."""
        ...

    @property
    def words(self) -> tuple[int, ...]:
        """The word of each token of the first text, -1 for none; () where words are not known."""
        ...


@dataclass(frozen=True)
class Pass:
    """What one pass leaves behind, beside what its collector took.

    `queries` and `keys` are the tokens of the maps: those that went in, or with those that a model
    wrote. `about` are the fields of an `Attention` that say what ran. `steps` are those that ran:
    the input's and the first layer's. `modules` are the layers where they are attnviz's own.
    `answers` are what a model wrote; `lines` say what each sequence is, where its tokens would not
    (a picture's patches).
    `views` are the pictures that a model saw, `rules` the mask rules where attnviz applied them.
    `review` finds notes on the finished maps.
    """

    queries: Batch
    keys: Batch | None
    make_about: Callable[[], Mapping[str, Any]]
    steps: Sequence[Step] = ()
    notes: Sequence[str] = ()
    modules: Sequence[Any] = ()
    answers: Sequence[Line] = ()
    lines: Sequence[Line] = ()
    views: Sequence[Any] = ()
    rules: Sequence[Any] = ()
    review: Callable[[Attention], list[str]] = field(default=lambda _: [])
    columns: Batch | None = None
    """The maps' columns, where keys that are no token's stand beside those of the tokens."""

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """The fields of an `Attention` that say what ran."""
        return self.make_about()

    @property
    def columns_of_maps(self) -> Batch:
        """The tokens of the maps' columns."""
        return self.columns or self.keys or self.queries


class Collector(Protocol):
    """What a command takes from a pass."""

    @property
    def by_rows(self) -> bool:
        """Whether it asks for rows, so that no full map has to be made."""
        ...

    @property
    def is_traced(self) -> bool:
        """Whether it wants the trace and the names of the masks; weights alone come faster."""
        ...

    @property
    def keep(self) -> Collection[str]:
        """The taps whose tensors it wants kept beside the weights."""
        ...

    def visit(self, attention: LayerAttention) -> None:
        """Take one layer, during the pass. It may not be used afterwards, but for what is kept."""
        ...

    def bytes_of_maps(self, n_maps: int, n_queries: int) -> int:
        """Memory for what it makes of so many maps; 0 where it holds full maps, or nothing."""
        ...


class Source(Protocol):
    """A source that is open: its sizes are known, and nothing large has been made."""

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        ...

    @property
    def needs_text(self) -> bool:
        """Whether it runs on texts, and on nothing else."""
        ...

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The numbers that the layers with attention have in their model."""
        ...

    @property
    def n_heads(self) -> int: ...

    def tokens(self, texts: Texts) -> Tokenized:
        """Cut texts into tokens. Raises `InputError` where that cannot be done."""
        ...

    def join(self, parts: Sequence[Tokenized]) -> Tokenized:
        """Single texts as one batch, padded on the right."""
        ...

    def bytes_needed(
        self, tokens: Tokenized, layers: Collection[int] | None = None, by_rows: bool = False
    ) -> int:
        """Memory for a pass: with full maps of these layers, or of what flows through by rows."""
        ...

    def can_stream(self, tokens: Tokenized) -> bool:
        """Whether rows can be had without a full map, for a text like this."""
        ...

    def run(
        self,
        tokens: Tokenized,
        collector: Collector,
        layers: Collection[int] | None = None,
        progress: Progress | None = None,
    ) -> Pass:
        """Run `tokens` through, and let `collector` visit each of `layers` (None: all).

        A source may run other layers too, and does not hand them over.
        """
        ...

    def report(self, done: Pass) -> list[Line]:
        """What ran, in words: the layer's sizes, and where its numbers come from."""
        ...


def n_layers(source: Source) -> int:
    """How many layers the model has, those without attention among them."""
    return max(source.layer_numbers) + 1
