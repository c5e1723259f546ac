"""Attnviz's own layers as a source: from flags, or from a file of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import AttentionConfig
from attnviz.corpus.documents import Document
from attnviz.corpus.rows import LONGEST, head_rows
from attnviz.corpus.source import Ready, Take
from attnviz.errors import InputError, printable
from attnviz.masks import Rule, build, rules_from
from attnviz.measures.block import Annotation, Block, Texts, texts_of_tokens
from attnviz.measures.induction import TOKENS, repeated
from attnviz.measures.words import kind_of
from attnviz.positions import alibi_slopes
from attnviz.sources.from_weights import Asked, open_weights
from attnviz.sources.run import as_array
from attnviz.sources.weight_files import open_weight_file
from attnviz.streaming import LongAttention
from attnviz.tokens import SPECIAL_TOKENS, Batch, make_batch, tokenizer_named


@dataclass(frozen=True)
class Reading:
    """How documents become tokens, and who may look at whom. Padding is never looked at."""

    tokenizer: str = "words"
    max_len: int | None = None
    masks: tuple[tuple[str, Any], ...] = ()

    def tokens(self, document: Document) -> tuple[tuple[str, ...], bool]:
        """The tokens of a document, and whether it was cut."""
        content = document.content
        if isinstance(content, str):
            content = tuple(tokenizer_named(self.tokenizer)(content))
        if not content:
            raise InputError("has no tokens")
        return content[: self.max_len], self.max_len is not None and len(content) > self.max_len

    def rules(self, batch: Batch) -> list[Rule]:
        """The rules for a batch."""
        return rules_from({"padding": True, **dict(self.masks)}, batch, batch, 1)


def open_layer(config: AttentionConfig, vocabulary: tuple[str, ...], reading: Reading) -> Layers:
    """A layer from flags, untrained, whose tokens are those of `vocabulary`."""
    layer, embedding = MultiHeadAttention(config), Embedding(config, len(vocabulary))
    name = f"a layer from flags, untrained, seed {config.seed}"
    return Layers([layer], embedding, vocabulary, reading, name)


def open_weights_file(
    path: Path, asked: Asked, vocabulary: tuple[str, ...], reading: Reading
) -> Layers:
    """Layers of a file, and its embedding, whose rows are the tokens of `vocabulary`."""
    weights = open_weights(open_weight_file(path), asked)
    embedding = weights.load_embedding()
    return Layers(weights.load(), embedding, vocabulary, reading, f"weights of {path.name}")


class Layers:
    """Layers that run one after the other, and the embedding before them; see `Source`."""

    longest = LONGEST

    def __init__(
        self,
        layers: Sequence[MultiHeadAttention],
        embedding: Embedding,
        vocabulary: Sequence[str],
        reading: Reading,
        name: str,
    ) -> None:
        if layers[0].extra_keys or layers[0].distances is not None:
            raise InputError(
                "layers with keys that are no token's, or with a table of distances, are not "
                "measured over a corpus; attnviz run draws them"
            )
        self._layers, self._embedding, self._reading = list(layers), embedding, reading
        self._vocabulary = tuple(vocabulary)
        self._numbers = {token: i for i, token in enumerate(vocabulary)}
        self.name = name
        self.layer_numbers = tuple(range(len(layers)))

    @property
    def n_layers(self) -> int:
        return len(self._layers)

    @property
    def n_heads(self) -> int:
        return self._layers[0].config.n_heads

    def ready(self, document: Document) -> Ready:
        tokens, cut = self._reading.tokens(document)
        if document.pairs is not None and cut:
            raise InputError("is annotated, and is not cut")
        if document.pairs is not None and len(tokens) > LONGEST:
            raise InputError(f"is annotated, and longer than {LONGEST:,} tokens")
        ids = []
        for token in tokens:
            number = self._numbers.get(token, self._numbers.get("[UNK]"))
            if number is None:
                raise InputError(f"has the token '{printable(token)}', not in the vocabulary")
            ids.append(number)
        words = tuple(range(len(tokens))) if document.pairs is not None else ()
        return Ready(document, tuple(ids), tokens, words, cut)

    def attend(self, batch: Sequence[Ready], take: Take) -> None:
        made = make_batch([each.tokens for each in batch], self._vocabulary_with(batch))
        texts = texts_of_tokens(
            [each.document.number for each in batch],
            made.padded_tokens,
            made.lengths,
            annotations=annotations_of(batch),
        )
        rules = self._reading.rules(made)
        ids = np.zeros(made.ids.shape, dtype=np.int64)
        for row, each in zip(ids, batch, strict=True):
            row[: len(each)] = each.ids
        positions = torch.from_numpy(made.positions)
        device = self._embedding.weight.device
        with torch.inference_mode():
            x = self._embedding(torch.from_numpy(ids).to(device), positions)
            if made.width > LONGEST:
                self._stream(x, positions, rules, texts, take)
                return
            allowed = build(rules, made.size, self.n_heads, made.width, made.width)
            assert allowed is not None  # padding is always a rule
            mask = torch.from_numpy(allowed).to(device)
            for i, layer in enumerate(self._layers):
                x, weights = layer(x, allowed=mask, positions=(positions, positions))
                take(Block(i, as_array(weights), texts, allowed))

    def _vocabulary_with(self, batch: Sequence[Ready]) -> tuple[str, ...]:
        """The tokens of this batch alone: ids come from the layer's own vocabulary."""
        found = (token for each in batch for token in each.tokens)
        return tuple(dict.fromkeys((*SPECIAL_TOKENS, *found)))

    def tokens(self, ready: Ready) -> tuple[str, ...]:
        return ready.tokens

    def probe(self, n: int, seed: int) -> list[Ready]:
        ordinary = [i for i, token in enumerate(self._vocabulary) if kind_of(token) == 0]
        if len(ordinary) < TOKENS:
            raise InputError(
                f"--probe induction wants {TOKENS} different tokens, and the vocabulary has "
                f"{len(ordinary)} that are no special ones"
            )
        made = []
        for i in range(n):
            ids = repeated(np.array(ordinary), seed + i).tolist()
            tokens = tuple(self._vocabulary[number] for number in ids)
            made.append(Ready(Document(i, f"probe {i}", tokens), tuple(ids), tokens))
        return made

    def losses(self, batch: Sequence[Ready]) -> None:  # noqa: ARG002 - nothing is predicted
        return None

    def _stream(
        self, x: Tensor, at: Tensor, rules: Sequence[Rule], texts: Texts, take: Take
    ) -> None:
        """One text, layer by layer: no map is whole."""
        for i, layer in enumerate(self._layers):
            q, k, v = layer.project(x, positions=(at, at))
            v = v.repeat_interleave(self.n_heads // v.shape[1], dim=1)
            context = torch.empty_like(v)
            for heads, rows, weights, allowed in head_rows(_long(layer, q, k, rules)):
                made, start = as_array(weights), rows.start
                take(Block(i, made, texts, allowed, start, first_head=heads.start))
                context[:, heads, rows.start : rows.stop] = weights @ v[:, heads].to(weights)
            x = layer.finish(context, x)


def _long(layer: MultiHeadAttention, q: Tensor, k: Tensor, rules: Sequence[Rule]) -> LongAttention:
    """What the weights of a layer are made of."""
    config = layer.config
    slopes = alibi_slopes(config.n_heads) if config.positions == "alibi" else None
    scale = None if config.variant.scaled else 1.0
    return LongAttention(q, k, rules=tuple(rules), scale=scale, slopes=slopes)


def annotations_of(batch: Sequence[Ready]) -> Mapping[int, Annotation]:
    """The annotations of the documents that have one, by number."""
    return {
        each.document.number: Annotation(each.document.pairs, each.words)
        for each in batch
        if each.document.pairs is not None
    }
