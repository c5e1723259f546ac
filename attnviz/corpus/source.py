"""What the measuring asks of a source of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from attnviz.corpus.documents import Document
from attnviz.measures.block import Block


@dataclass(frozen=True, eq=False)
class Ready:
    """A document as a source takes it: its token ids, and what else the source needs of it.

    `words` has the word of each token, -1 for none, where the document is annotated; `cut` says
    that tokens were left out.
    """

    document: Document
    ids: tuple[int, ...]
    tokens: tuple[str, ...] = ()
    words: tuple[int, ...] = ()
    cut: bool = False

    def __len__(self) -> int:
        return len(self.ids)


Take = Callable[[Block], None]
"""Called with each block of weights; the block may not be used after the call."""


class Source(Protocol):
    """A source that is open, in this process: it turns documents into blocks of weights."""

    @property
    def n_layers(self) -> int: ...

    @property
    def n_heads(self) -> int: ...

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The numbers that the layers have in their model."""
        ...

    @property
    def name(self) -> str:
        """What it is, in a few words."""
        ...

    @property
    def longest(self) -> int | None:
        """Tokens from which on a document comes alone; None: never."""
        ...

    def ready(self, document: Document) -> Ready:
        """Cut a document into tokens. Raises `InputError` where that cannot be done."""
        ...

    def tokens(self, ready: Ready) -> tuple[str, ...]:
        """The tokens of a document, as they are shown."""
        ...

    def attend(self, batch: Sequence[Ready], take: Take) -> None:
        """Run a padded batch through; `take` gets the weights of each layer as they come."""
        ...

    def probe(self, n: int, seed: int) -> list[Ready]:
        """`n` documents of random tokens that repeat (Olsson et al. 2022), for `losses` as well."""
        ...

    def losses(self, batch: Sequence[Ready]) -> npt.NDArray[np.float64] | None:
        """`[B T-1]`, in nats: of each token from those before; None where nothing predicts any."""
        ...


@dataclass(frozen=True)
class Facts:
    """What is said of a source where it is not open: its name, its layers' numbers, its heads."""

    name: str
    layer_numbers: tuple[int, ...]
    n_heads: int

    @classmethod
    def of(cls, source: Source) -> Facts:
        """Those of an open source."""
        return cls(source.name, source.layer_numbers, source.n_heads)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Facts:
        """What `vars` gave, after a way through JSON."""
        numbers = tuple(int(number) for number in value["layer_numbers"])
        return cls(str(value["name"]), numbers, int(value["n_heads"]))

    @property
    def n_layers(self) -> int:
        return len(self.layer_numbers)
