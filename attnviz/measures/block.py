"""What measures read: some query rows of one layer's weights, and what is known of their texts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from attnviz.measures.token_kinds import SEPARATOR, kind_of
from attnviz.tokens import positions_of, real_places

MOST_WEIGHTS = 2**18
"""Weights of a piece: with its copies it stays in a core's cache, and a long text needs no more."""

MOST_KEPT = 2**20
"""Cells of the masks of pairs that a batch keeps for its next layer."""

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class Annotation:
    """The pairs (from word, to word, label) of a document, and the word of each of its tokens.

    A token of no word (special tokens) has -1.
    """

    pairs: tuple[tuple[int, int, str], ...]
    words: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Side:
    """The tokens of one side, queries or keys, of a padded batch: all `[B T]`.

    `positions` counts from each text's first token; where `real` is False stands padding. Equal
    `ids` are equal tokens, on both sides. `kinds` are the bits of `words.kind_of`, `segments` count
    the separators before a place.
    """

    positions: Ints
    real: Bools
    ids: Ints
    kinds: Ints
    segments: Ints

    @property
    def starts(self) -> Ints:
        """`[B]`: where each text's position 0 stands."""
        return -self.positions[:, 0]

    def is_kind(self, bit: int) -> Bools:
        """`[B T]`: real tokens of a kind."""
        return np.asarray(((self.kinds & bit) != 0) & self.real)

    def cut(self, texts: slice, places: slice) -> Side:
        """Some texts, some places."""
        return Side(*(getattr(self, name)[texts, places] for name in Side.__dataclass_fields__))


def make_side(ids: Ints, lengths: Ints, kinds: Ints, pad_side: str = "right") -> Side:
    """A side from `[B T]` ids and kinds, and `[B]` lengths."""
    positions = positions_of(lengths, ids.shape[1], pad_side)
    real = real_places(positions, lengths)
    closes = ((kinds & SEPARATOR) != 0) & real
    return Side(positions, real, ids, kinds, np.cumsum(closes, axis=1) - closes)


@dataclass(frozen=True, eq=False)
class BatchTexts:
    """The texts of a padded batch, which all layers share.

    `numbers` are those of the documents in their corpus, and `annotations` those of some of them,
    by number. `keys` is `queries` itself where a text looks at itself.
    """

    numbers: tuple[int, ...]
    queries: Side
    keys: Side
    annotations: Mapping[int, Annotation] = field(default_factory=dict)
    kept: dict[Hashable, Any] = field(default_factory=dict)
    """Masks of pairs, since each layer wants the same."""

    def keep(self, key: Hashable, made: Any) -> Any:
        """Keep `made` for the next layer, unless the batch is too large for that."""
        if len(self.numbers) * self.queries.real.shape[1] * self.keys.real.shape[1] <= MOST_KEPT:
            self.kept[key] = made
        return made


def texts_of_tokens(
    numbers: Sequence[int],
    tokens: Sequence[Sequence[str]],
    lengths: Ints,
    pad_side: str = "right",
    key_tokens: Sequence[Sequence[str]] | None = None,
    key_lengths: Ints | None = None,
    annotations: Mapping[int, Annotation] | None = None,
) -> BatchTexts:
    """Texts from `[B][T]` padded tokens: equal strings are equal tokens, spelling is their kind.

    Without `key_tokens` the texts look at themselves.
    """
    known: dict[str, int] = {}

    def side(tokens: Sequence[Sequence[str]], lengths: Ints) -> Side:
        ids = [[known.setdefault(token, len(known)) for token in row] for row in tokens]
        kinds = [[kind_of(token) for token in row] for row in tokens]
        return make_side(np.array(ids), lengths, np.array(kinds), pad_side)

    queries = keys = side(tokens, lengths)
    if key_tokens is not None and key_lengths is not None:
        keys = side(key_tokens, key_lengths)
    return BatchTexts(tuple(numbers), queries, keys, annotations or {})


@dataclass(frozen=True, eq=False)
class Block:
    """Query rows `start … start + R` of one layer, or of one of its heads; with what was allowed.

    `weights` `[B H R Tk]`, exactly 0 where forbidden. `allowed` `[B 1|H R Tk]`, bool; None lets all
    real tokens see all real tokens. Rows of padding, and rows that see nothing, do not count.
    """

    layer: int
    weights: npt.NDArray[Any]
    texts: BatchTexts
    allowed: Bools | None = None
    start: int = 0
    first_text: int = 0
    first_key: int = 0
    first_head: int = 0

    @cached_property
    def heads(self) -> slice:
        """The heads of the layer that are here: all, or some of a long text."""
        return slice(self.first_head, self.first_head + self.n_heads)

    @property
    def n_heads(self) -> int:
        """How many heads are here."""
        return int(self.weights.shape[1])

    @property
    def is_whole(self) -> bool:
        """Whether all query rows of the batch are in this block."""
        return self.start == 0 and self.weights.shape[2] == self.texts.queries.real.shape[1]

    @property
    def place(self) -> tuple[int, ...]:
        """What tells this piece of a batch from the others, whatever the layer."""
        batch, _, rows, keys = self.weights.shape
        return (self.first_text, batch, self.start, rows, self.first_key, keys)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What `make` makes of this piece's texts and mask: made once for all layers that share
        them, as most do."""
        if name not in self._known:
            self._known[name] = make()
        made: T = self._known[name]
        return made

    @cached_property
    def _known(self) -> dict[str, Any]:
        """What has been made of this piece's texts and mask, by name."""
        kept: tuple[Bools | None, dict[str, Any]] | None = self.texts.kept.get(self.place)
        if kept is None or not _is_same(kept[0], self.allowed):
            # the mask is held: its memory stays its own
            kept = self.texts.keep(self.place, (self.allowed, {}))
        return kept[1]

    def pieces(self) -> Iterator[Block]:
        """The block in parts of at most `MOST_WEIGHTS` weights, without padding that all share."""
        batch, heads, rows, keys = self.weights.shape
        texts = max(1, MOST_WEIGHTS // (heads * rows * keys))
        for b in range(0, batch, texts):
            some = slice(b, min(b + texts, batch))
            q, k = _span(self.queries.real[some]), _span(self.keys.real[some])
            weights_a_row = heads * (some.stop - b) * max(1, k.stop - k.start)
            step = max(1, MOST_WEIGHTS // weights_a_row)
            for at in range(q.start, q.stop, step):
                yield self._cut(some, slice(at, min(at + step, q.stop)), k)

    def text(self, b: int) -> Block:
        """The rows and keys of one text, without its padding."""
        one = slice(b, b + 1)
        return self._cut(one, _span(self.queries.real[one]), _span(self.keys.real[one]))

    def _cut(self, texts: slice, rows: slice, keys: slice) -> Block:
        allowed = None if self.allowed is None else self.allowed[texts, :, rows, keys]
        return Block(
            self.layer,
            self.weights[texts, :, rows, keys],
            self.texts,
            allowed,
            self.start + rows.start,
            self.first_text + texts.start,
            self.first_key + keys.start,
            self.first_head,
        )

    @cached_property
    def some(self) -> slice:
        """The texts of the batch that are here."""
        return slice(self.first_text, self.first_text + len(self.weights))

    @cached_property
    def queries(self) -> Side:
        """`[B R]`: the query side of these rows."""
        rows = slice(self.start, self.start + self.weights.shape[2])
        return self.texts.queries.cut(self.some, rows)

    @cached_property
    def keys(self) -> Side:
        """`[B Tk]`."""
        places = slice(self.first_key, self.first_key + self.weights.shape[3])
        return self.texts.keys.cut(self.some, places)

    @cached_property
    def seen(self) -> Ints:
        """`[B 1|H R]`: how many keys each row may see."""
        return self.once("seen", self._seen)

    def _seen(self) -> Ints:
        if self.allowed is None:
            n_keys = self.keys.real.sum(1)[:, None, None]
            return np.broadcast_to(n_keys, (len(n_keys), 1, self.weights.shape[2]))
        return np.asarray(self.allowed.sum(-1))

    @cached_property
    def counts(self) -> Bools:
        """`[B 1|H R]`: the rows that count."""
        return (self.seen > 0) & self.queries.real[:, None]

    @cached_property
    def all_count(self) -> bool:
        """Whether all rows that are here count."""
        return bool(self.counts.all())

    @cached_property
    def rows(self) -> Floats:
        """`[H]`: how many rows of each head count."""
        return np.broadcast_to(self.counts.sum((0, 2), dtype=np.float64), (self.n_heads,))

    @cached_property
    def clean(self) -> npt.NDArray[Any]:
        """The weights with zeros in rows that do not count, whatever stands there."""
        weights = self.weights
        if weights.dtype == np.float16:  # too small for logarithms and sums
            weights = weights.astype(np.float32)
        if self.all_count:
            return np.ascontiguousarray(weights)
        return np.where(self.counts[..., None], weights, weights.dtype.type(0))

    @cached_property
    def exact(self) -> Floats:
        """`clean` in float64, in which all sums are taken."""
        return self.clean.astype(np.float64, copy=False)

    @cached_property
    def largest_at(self) -> npt.NDArray[np.intp]:
        """`[B H R]`: the first place that has the row's largest weight."""
        return np.asarray(self.clean.argmax(-1))

    @cached_property
    def largest(self) -> npt.NDArray[Any]:
        """`[B H R]`: each row's largest weight."""
        at = self.largest_at
        rows = np.arange(at.size).reshape(at.shape)
        return np.asarray(self.clean.reshape(-1).take(rows * self.clean.shape[-1] + at))

    def over_rows(self, values: npt.NDArray[Any]) -> Floats:
        """The sum of `values` `[B H R]` over rows that count: `[H]`."""
        counted = values if self.all_count else np.where(self.counts, values, 0)
        return np.asarray(counted.sum((0, 2), dtype=np.float64))


def _is_same(one: Bools | None, other: Bools | None) -> bool:
    """Whether two masks are the same cells in memory."""
    if one is None or other is None:
        return one is other
    here, there = (m.__array_interface__["data"][0] for m in (one, other))
    return here == there and one.shape == other.shape and one.strides == other.strides


def _span(real: Bools) -> slice:
    """From the first to the last place at which any text has a token."""
    places = np.flatnonzero(real.any(0))
    return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0, 0)
