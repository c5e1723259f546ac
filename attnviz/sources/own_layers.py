"""attnviz's own layers as a source: how texts become their batches, and one pass through them.

torch is imported when a pass begins, so that a wrong flag is answered before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from attnviz.config import AttentionConfig
from attnviz.machine import require_memory
from attnviz.masks import Rule, Settings, notes_on, rules_from
from attnviz.pipeline import Collector, Line, Pass, Progress, Tokenized
from attnviz.sources.layer_memory import bytes_by_rows, bytes_of_run
from attnviz.tokens import Batch, Texts, Tokens, cut, make_batch, make_vocabulary

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    from attnviz.attention import MultiHeadAttention
    from attnviz.sources.layer_pass import Inputs
    from attnviz.trace import Recorder


@dataclass(frozen=True)
class ReadingOptions:
    """How texts become a batch, and which masks apply to it."""

    masks: Settings = field(default_factory=dict)
    tokenizer: str = "words"
    pad_to: int | None = None
    pad_side: str = "right"
    max_len: int | None = None


@dataclass(frozen=True, eq=False)
class TokenizedBatch:
    """See `Tokenized`."""

    queries: Batch
    keys: Batch | None = None
    notes: tuple[str, ...] = ()
    n_cut: int = 0
    words: tuple[int, ...] = ()

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return self.queries.lengths


class OwnLayers:
    """Layers that run one after the other. A subclass says where their numbers come from."""

    name = ""
    config: AttentionConfig
    n_layers = 0
    extra_keys = 0
    needs_text = True

    def __init__(self, options: ReadingOptions) -> None:
        self.options = options

    @property
    def n_heads(self) -> int:
        return self.config.n_heads

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        return tuple(range(self.n_layers))

    # ── what a subclass gives ──

    @cached_property
    def vocabulary(self) -> Tokens | None:
        """The token of each row of the embedding; None: the words of each batch."""
        return None

    def _load(self) -> Sequence[MultiHeadAttention]:
        raise NotImplementedError

    def _inputs(self, queries: Batch, keys: Batch | None, recorder: Recorder) -> Inputs:
        raise NotImplementedError

    def _n_rows(self, queries: Batch) -> int:
        """Rows of the embedding."""
        return len(queries.vocabulary)

    def _notes(self, rules: Sequence[Rule]) -> list[str]:  # noqa: ARG002
        """What a reader of the maps should know of the layers."""
        return []

    def about(self) -> dict[str, Any]:
        """The fields of an `Attention` that say what ran."""
        raise NotImplementedError

    def report(self, done: Pass) -> list[Line]:
        """What ran, in words."""
        raise NotImplementedError

    # ── tokens ──

    @cached_property
    def _numbers(self) -> Mapping[str, int] | None:
        vocabulary = self.vocabulary
        return None if vocabulary is None else {token: i for i, token in enumerate(vocabulary)}

    def _batch(self, rows: Sequence[Tokens], known: Tokens, pad_to: int | None, side: str) -> Batch:
        return make_batch(rows, known, pad_to, side, self._numbers)

    def tokens(self, texts: Texts) -> TokenizedBatch:
        queries, notes = cut(texts.queries, self.options.tokenizer)
        keys = None
        if texts.keys is not None:
            others, more = cut(texts.keys, self.options.tokenizer)
            keys, notes = others, [*notes, *more]
        return self._padded(queries, keys, (*texts.notes, *notes))

    def _padded(
        self, queries: tuple[Tokens, ...], keys: tuple[Tokens, ...] | None, notes: tuple[str, ...]
    ) -> TokenizedBatch:
        most, options = self.options.max_len, self.options
        n_cut = sum(len(row) > most for row in queries) if most is not None else 0
        words = tuple(range(len(queries[0]))) if queries else ()
        queries = tuple(row[:most] for row in queries)
        known = self.vocabulary or make_vocabulary((*queries, *(keys or ())))
        padded = self._batch(queries, known, options.pad_to, options.pad_side)
        others = None if keys is None else self._batch(keys, known, None, options.pad_side)
        return TokenizedBatch(padded, others, notes, n_cut, words)

    def join(self, parts: Sequence[Tokenized]) -> TokenizedBatch:
        rows = tuple(row for part in parts for row in part.queries.tokens)
        known = self.vocabulary or make_vocabulary(rows)
        return TokenizedBatch(self._batch(rows, known, None, "right"))

    # ── what a probe needs ──

    @cached_property
    def _ordinary(self) -> list[str]:
        """The words of the vocabulary that are no special tokens."""
        from attnviz.measures.token_kinds import kind_of

        return [token for token in self.vocabulary or () if not kind_of(token)]

    def n_probe_words(self) -> int:
        """How many different words `probe` can take; 0 for any number."""
        return len(self._ordinary)

    def probe(self, rows: Sequence[Sequence[int]]) -> list[TokenizedBatch]:
        """A batch for each row of numbers, each of which stands for a word of its own."""
        names = self._ordinary
        texts = [tuple(names[i] if names else f"word{i}" for i in row) for row in rows]
        return [self.tokens(Texts((text,))) for text in texts]

    # ── the pass ──

    def bytes_needed(
        self,
        tokens: Tokenized,
        layers: Collection[int] | None = None,  # noqa: ARG002 - all of them run
        by_rows: bool = False,
        keeps: bool = False,
    ) -> int:
        queries, keys = tokens.queries, tokens.keys or tokens.queries
        sizes = queries.size, queries.width, keys.width, self._n_rows(queries), self.n_layers
        if by_rows:
            return bytes_by_rows(self.config, *sizes, keeps=keeps)
        return bytes_of_run(self.config, *sizes)

    def can_stream(self, tokens: Tokenized) -> bool:  # noqa: ARG002 - whatever the text
        return True

    def run(
        self,
        tokens: Tokenized,
        collector: Collector,
        layers: Collection[int] | None = None,
        progress: Progress | None = None,  # noqa: ARG002 - there is one stage
    ) -> Pass:
        from attnviz.sources.layer_pass import (
            require_device,
            require_fit,
            run_layers,
            sizes_of_run,
            steps_kept,
            with_extra_keys,
        )
        from attnviz.trace import Recorder

        require_device(self.config.device)
        queries, keys = tokens.queries, tokens.keys
        source = queries if keys is None else keys
        require_fit(collector.keep, queries, source)
        self._require_memory(tokens, collector)
        rules = rules_from(self.options.masks, queries, source, self.n_heads)
        notes = notes_on(self.options.masks, queries, source)
        modules = self._load()
        more = self._sizes(queries, modules[0])
        sizes = sizes_of_run(self.config, queries, source, self.extra_keys, **more)
        recorder = Recorder(sizes, steps_kept(collector.keep))
        # full maps are there in any case; rows cost time, and are asked for where they are wanted
        wanted = set(layers) if layers is not None and collector.by_rows else None
        run_layers(
            modules,
            self._inputs(queries, keys, recorder),
            queries,
            source,
            rules,
            recorder,
            lambda each: collector.visit(each) if wanted is None or each.layer in wanted else None,
        )
        about = {"masks": tuple(rule.name for rule in rules), **self.about()}
        if wanted is not None and len(wanted) < self.n_layers:
            about["layers"] = tuple(sorted(wanted))
        return Pass(
            queries,
            keys,
            lambda: about,
            steps=tuple(recorder.steps),
            notes=(*notes, *self._notes(rules)),
            modules=tuple(modules),
            rules=tuple(rules),
            columns=with_extra_keys(source, modules[0]),
        )

    def _sizes(self, queries: Batch, layer: MultiHeadAttention) -> dict[str, int]:
        """Lengths of axes that the configuration does not have, by name."""
        rows = {"V": self._n_rows(queries)}
        table = layer.distances
        return rows if table is None else {**rows, "R": len(table.weight)}

    def _require_memory(self, tokens: Tokenized, collector: Collector) -> None:
        """Raise `InputError` when the run would not fit in memory; nothing has been made yet."""
        queries, keys = tokens.queries, tokens.keys or tokens.queries
        n_maps = self.n_layers * queries.size * self.n_heads
        maps = collector.bytes_of_maps(n_maps, queries.width)
        keeps = getattr(collector, "keeps", False)
        needed = self.bytes_needed(tokens, None, collector.by_rows, keeps) + maps
        shape = f"{queries.size} × {self.n_heads} heads × {queries.width} queries × {keys.width}"
        if collector.by_rows:
            what = f"a long run of {shape} keys"
            hint = "give a shorter text, fewer heads or a smaller --pool"
        else:
            what = f"attention for {shape} keys, d_model {self.config.d_model}, in "
            what += self.config.dtype
            hint = (
                "give a shorter text, fewer heads or smaller sizes (attnviz shapes answers for "
                "any size)"
            )
        require_memory(needed, what, hint)


class LayerSource(OwnLayers):
    """A layer from flags: untrained, drawn from the seed.

    With `by_word`, a word has the same vector in every text, whatever stands before it: for a
    corpus, whose texts come one after the other. Otherwise vectors go by the order in which words
    first appear in the batch.
    """

    n_layers = 1

    def __init__(
        self, config: AttentionConfig, options: ReadingOptions, by_word: bool = False
    ) -> None:
        super().__init__(options)
        self.config, self._by_word = config, by_word
        self.name = f"a layer from flags, untrained, seed {config.seed}"
        self._modules: Sequence[MultiHeadAttention] = ()
        self._vectors: dict[str, Tensor] = {}

    def _load(self) -> Sequence[MultiHeadAttention]:
        from attnviz.attention import MultiHeadAttention

        self._modules = self._modules or [MultiHeadAttention(self.config)]
        return self._modules

    def _inputs(self, queries: Batch, keys: Batch | None, recorder: Recorder) -> Inputs:
        from attnviz.attention import Embedding
        from attnviz.sources.layer_pass import embedded

        weights = {"weight": self._table(queries.vocabulary)} if self._by_word else None
        embedding = Embedding(self.config, len(queries.vocabulary), weights)
        return embedded(embedding, queries, keys, recorder)

    def _table(self, vocabulary: Tokens) -> Tensor:
        """`[V d_model]`: a standard normal vector for each word, from the word and the seed."""
        import torch

        from attnviz.attention import vector_of_word

        for word in vocabulary:
            if word not in self._vectors:
                self._vectors[word] = vector_of_word(word, self.config)
        return torch.stack([self._vectors[word] for word in vocabulary])

    def about(self) -> dict[str, Any]:
        return {"config": self.config.as_dict(), "source": self.name, "trained": False}

    def report(self, done: Pass) -> list[Line]:  # noqa: ARG002 - the flags have said it all
        from attnviz.sources.layer_lines import layer_lines, untrained_lines

        return [*layer_lines(self.config), *untrained_lines(self.config)]
