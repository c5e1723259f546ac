"""From documents to blocks of weights: a source's one pass over each batch of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnviz.corpus.documents import Document
from attnviz.errors import InputError
from attnviz.layer_attention import LayerAttention, Mask, as_array
from attnviz.machine import free_memory, human_bytes
from attnviz.measures.block import Annotation, BatchTexts, Block, make_side, texts_of_tokens
from attnviz.measures.induction import TOKENS, repeated
from attnviz.pipeline import Source, Tokenized
from attnviz.tokens import Texts

if TYPE_CHECKING:
    from attnviz.scores import Scores

LONGEST = 2048
"""Tokens of a text whose maps are made whole."""


@dataclass(frozen=True, eq=False)
class Ready:
    """A document that has been cut into tokens, as its source takes it.

    `words` has the word of each token, -1 for none, where the document is annotated; `cut` says
    that tokens were left out.
    """

    document: Document
    tokenized: Tokenized
    words: tuple[int, ...] = ()
    cut: bool = False

    def __len__(self) -> int:
        return int(self.tokenized.lengths[0])

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens as they are shown."""
        return self.tokenized.queries.tokens[0]

    @property
    def ids(self) -> tuple[int, ...]:
        """The number of each token."""
        return tuple(map(int, self.tokenized.queries.ids[0, : len(self)]))


Take = Callable[[Block], None]
"""Called with each block of weights; the block may not be used after the call."""


class CorpusReader:
    """Turns the documents of a corpus into blocks of weights, batch by batch."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.layer_numbers, self.n_heads = source.layer_numbers, source.n_heads
        self.name = source.name

    @property
    def n_layers(self) -> int:
        return len(self.layer_numbers)

    @property
    def longest(self) -> int | None:
        """Tokens from which on a document comes alone; None: never."""
        return int(getattr(self.source, "longest", LONGEST))

    @property
    def notes(self) -> list[str]:
        """What was assumed on the way."""
        return list(getattr(self.source, "notes", ()))

    def ready(self, document: Document) -> Ready:
        """Cut a document into tokens. Raises `InputError` where that cannot be done."""
        content = document.content
        if not content or (isinstance(content, str) and not content.strip()):
            raise InputError("has no tokens")
        try:
            tokenized = self.source.tokens(Texts((content,)))
        except InputError as error:
            raise InputError(_of_document(str(error))) from None
        ready = Ready(document, tokenized, (), tokenized.n_cut > 0)
        if document.pairs is not None:
            if ready.cut:
                raise InputError("is annotated, and longer than --max-len")
            if len(ready) > LONGEST:
                raise InputError(f"is annotated, and longer than {LONGEST:,} tokens")
            ready = Ready(document, tokenized, tokenized.words)
        self._require_room(ready)
        return ready

    def _require_room(self, ready: Ready) -> None:
        """Raise `InputError` where a long text takes more memory than there is."""
        if self.longest is None or len(ready) <= max(self.longest, LONGEST):
            return
        by_rows = self.source.can_stream(ready.tokenized)
        needed, free, how = (
            self.source.bytes_needed(ready.tokenized, [0], by_rows),
            free_memory(),
            "",
        )
        if not by_rows:
            how = ", since this family computes its maps whole"
        if needed > free:
            raise InputError(
                f"has {len(ready):,} tokens, which take {human_bytes(needed)} of memory{how}, and "
                f"{human_bytes(free)} are free; --max-len cuts it"
            )

    def attend(self, batch: Sequence[Ready], take: Take) -> None:
        """Run a padded batch through; `take` gets the weights of each layer as they come."""
        tokens = self.source.join([each.tokenized for each in batch])
        is_long = int(tokens.lengths.max()) > LONGEST and self.source.can_stream(tokens)
        self.source.run(tokens, _Blocks(self, self._texts(batch, tokens), take, is_long))

    def _texts(self, batch: Sequence[Ready], tokens: Tokenized) -> BatchTexts:
        numbers = [each.document.number for each in batch]
        annotations = {
            each.document.number: Annotation(each.document.pairs, each.words)
            for each in batch
            if each.document.pairs is not None
        }
        kinds: npt.NDArray[np.int64] | None = getattr(self.source, "token_kinds", None)
        if kinds is not None:  # of each id, so that no token has to be spelled
            ids = tokens.ids  # type: ignore[attr-defined]
            side = make_side(ids, tokens.lengths, kinds[ids])
            return BatchTexts(tuple(numbers), side, side, annotations)
        queries, keys = tokens.queries, tokens.keys
        return texts_of_tokens(
            numbers,
            queries.padded_tokens,
            queries.lengths,
            queries.pad_side,
            None if keys is None else keys.padded_tokens,
            None if keys is None else keys.lengths,
            annotations,
        )

    def probe(self, n: int, seed: int) -> list[Ready]:
        """`n` documents of random tokens that repeat (Olsson et al. 2022), for `losses` as well."""
        how_many: Any = getattr(self.source, "n_probe_words", None)
        if how_many is None:
            raise InputError("--probe wants a model that can run; a saved run cannot")
        there = how_many() or TOKENS
        if there < TOKENS:
            raise InputError(
                f"--probe induction wants {TOKENS} different tokens, and the vocabulary has "
                f"{there} that are no special ones"
            )
        words = np.arange(there)
        rows = [repeated(words, seed + i).tolist() for i in range(n)]
        made = self.source.probe(rows)  # type: ignore[attr-defined]
        return [Ready(Document(i, f"probe {i}", ""), each) for i, each in enumerate(made)]

    def losses(self, batch: Sequence[Ready]) -> npt.NDArray[np.float64] | None:
        """`[B T-1]`, in nats: of each token from those before; None where nothing predicts any."""
        losses: Any = getattr(self.source, "losses", None)
        if losses is None:
            return None
        found: npt.NDArray[np.float64] | None = losses(
            self.source.join([each.tokenized for each in batch])
        )
        return found


class _Blocks:
    """A collector that hands each layer's weights to the measures, whole or by rows."""

    is_traced, keep = False, ()

    def __init__(self, reader: CorpusReader, texts: BatchTexts, take: Take, by_rows: bool) -> None:
        self.by_rows = by_rows
        self._index = {number: i for i, number in enumerate(reader.layer_numbers)}
        self._n_heads, self._texts, self._take = reader.n_heads, texts, take
        self._masks: dict[int, tuple[npt.NDArray[np.bool_], Mask]] = {}

    def bytes_of_maps(self, n_maps: int, n_queries: int) -> int:  # noqa: ARG002 - none is kept
        return 0

    def visit(self, attention: LayerAttention) -> None:
        layer = self._index[attention.layer]
        if self.by_rows and attention.scores is not None:
            self._visit_rows(layer, attention.scores)
            return
        mask = attention.mask()
        weights = as_array(attention.weights())
        if weights.shape[1] != self._n_heads:
            raise InputError(
                f"layer {attention.layer} has {weights.shape[1]} heads, others {self._n_heads}: "
                "they have no table in common"
            )
        keys = self._texts.keys.real.shape[1]  # those that are no token's stand after them
        allowed = self._allowed(mask, weights.shape)
        self._take(Block(layer, weights[..., :keys], self._texts, allowed[..., :keys]))

    def _visit_rows(self, layer: int, scores: Scores) -> None:
        from attnviz.streaming import head_rows

        for heads, rows, weights, allowed in head_rows(scores):
            tokens = slice(scores.tokens)
            made = as_array(weights)[..., tokens]
            self._take(
                Block(
                    layer,
                    made,
                    self._texts,
                    allowed[..., tokens],
                    rows.start,
                    first_head=heads.start,
                )
            )

    def _allowed(self, mask: Mask, shape: Sequence[int]) -> npt.NDArray[np.bool_]:
        """`[B 1|H Tq Tk]`: what the mask allows of real keys. Layers share theirs, mostly."""
        key = id(mask)
        if key not in self._masks:
            real = self._texts.keys.real[:, None, None]
            beside = shape[3] - real.shape[-1]
            real = np.pad(real, [(0, 0)] * 3 + [(0, beside)], constant_values=True)
            allowed = np.broadcast_to(real, (shape[0], 1, *shape[2:]))
            if mask is not None:
                allowed = allowed & as_array(mask)
            self._masks[key] = (allowed, mask)  # held, so that its id stays its own
        return self._masks[key][0]


def _of_document(why: str) -> str:
    """What is wrong with a batch of one text, as something wrong with the document."""
    if why.startswith("there are no tokens"):
        return "has no tokens"
    why = why.removeprefix("sequence 0 ")
    if why.startswith("the token "):
        return f"has {why.replace(' is not in', ', not in', 1)}"
    if why.startswith("the model's tokenizer fails"):
        return why.replace("the model's tokenizer fails", "fails in the model's tokenizer", 1)
    return why


@dataclass(frozen=True)
class SourceSummary:
    """The name of a source, the numbers of its layers and how many heads each has."""

    name: str
    layer_numbers: tuple[int, ...]
    n_heads: int

    @classmethod
    def of(cls, source: CorpusReader) -> SourceSummary:
        """Those of an open source."""
        return cls(source.name, source.layer_numbers, source.n_heads)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> SourceSummary:
        """What `vars` gave, after a way through JSON."""
        numbers = tuple(int(number) for number in value["layer_numbers"])
        return cls(str(value["name"]), numbers, int(value["n_heads"]))

    @property
    def n_layers(self) -> int:
        return len(self.layer_numbers)
