"""`--weights`: a layer of the user's own, or a stack of them, as a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz import tokens as batches
from attnviz.attention import MultiHeadAttention
from attnviz.errors import ConfigError, InputError, printable, why_unreadable
from attnviz.masks import Rule
from attnviz.npy import read_npy, read_npz
from attnviz.pipeline import Line, Pass
from attnviz.sources.from_weights import Asked, Weights, facts_of, open_weights, steps_of
from attnviz.sources.layer_lines import layer_lines, trained_lines
from attnviz.sources.layer_pass import Inputs, embedded
from attnviz.sources.own_layers import OwnLayers, ReadingOptions, TokenizedBatch
from attnviz.sources.weight_files import open_weight_file
from attnviz.tokens import Batch, Texts, Tokens, cut
from attnviz.trace import Recorder, Step
from attnviz.wording import plural


@dataclass(frozen=True)
class VectorFiles:
    """Files of vectors that stand in for embedded tokens: of the queries, the keys, the values."""

    query: Path | None = None
    key: Path | None = None
    value: Path | None = None

    def __post_init__(self) -> None:
        if self.query is None and (self.key or self.value):
            raise ConfigError("--key-embeddings and --value-embeddings go with --embeddings")


class WeightsSource(OwnLayers):
    """Layers in a file: their sizes are read, their numbers not yet."""

    def __init__(
        self,
        path: Path,
        asked: Asked,
        options: ReadingOptions,
        vectors: VectorFiles = VectorFiles(),
    ) -> None:
        super().__init__(options)
        self._files, self.asked = vectors, asked
        self.weights: Weights = open_weights(open_weight_file(path), asked)
        self.config = self.weights.config
        self.n_layers = len(self.weights.found)
        self.name = f"weights of {path.name}"

    @property
    def needs_text(self) -> bool:  # type: ignore[override]
        """Vectors can go without: then their positions name them."""
        return self._files.query is None

    @cached_property
    def _modules(self) -> Sequence[MultiHeadAttention]:
        return self.weights.load()

    def _load(self) -> Sequence[MultiHeadAttention]:
        self.extra_keys = self._modules[0].extra_keys
        return self._modules

    def _n_rows(self, queries: Batch) -> int:  # noqa: ARG002 - the file's own
        return self.weights.n_rows

    def about(self) -> dict[str, Any]:
        return facts_of(self.weights)

    def _inputs(self, queries: Batch, keys: Batch | None, recorder: Recorder) -> Inputs:
        if self._files.query is not None:
            return self._vectors()
        embedding = self._embedding
        longest = max(queries.width, 0 if keys is None else keys.width)
        if embedding.n_places is not None and longest > embedding.n_places:
            raise InputError(
                f"{self.weights.file.shown} has a table of {embedding.n_places} positions; "
                f"{longest} tokens are more"
            )
        return embedded(embedding, queries, keys, recorder)

    @cached_property
    def _embedding(self) -> Any:
        return self.weights.load_embedding()

    def _notes(self, rules: Sequence[Rule]) -> list[str]:
        """What the weights' own model does otherwise."""
        weights, notes = self.weights, list(self.weights.notices)
        if weights.is_causal and all(rule.name == "padding" for rule in rules):
            notes.append(
                f"the model of these weights ({weights.layout}) is causal: "
                "--causal forbids what it never sees"
            )
        if weights.number and self._files.query is None:
            before = f"{plural(weights.number, 'layer')} before it"
            notes.append(
                f"layer {weights.number} is given the embedded tokens: the {before} did not run "
                "(--model runs them all)"
            )
        return notes

    def report(self, done: Pass | None = None) -> list[Line]:  # noqa: ARG002 - the file says it all
        weights = self.weights
        name = printable(weights.file.path.name)
        place = weights.found[0].place if self.n_layers == 1 else ""
        return [
            *layer_lines(weights.config),
            *trained_lines(name, weights.layout, printable(place), self.n_layers),
        ]

    def steps(
        self, lengths: Mapping[str, int], rule_heads: int
    ) -> tuple[Sequence[Step], dict[str, int]]:
        """The steps at any size, and the length of each axis; see `steps_of`."""
        embeds = self._files.query is None and bool(self.weights.table)
        return steps_of(self.weights, lengths, rule_heads, embeds)

    # ── tokens ──

    def tokens(self, texts: Texts) -> TokenizedBatch:
        """The tokens, or names for the vectors of --embeddings."""
        if self._files.query is None:
            return super().tokens(texts)
        return self._names(texts)

    @cached_property
    def vocabulary(self) -> Tokens:
        """The token of each row of the embedding. Raises `InputError` that says what is missing."""
        weights, given = self.weights, self.options.tokenizer
        shown = weights.file.shown
        if not weights.table:
            raise InputError(
                f"{shown} has no embedding that turns tokens into vectors: give --embeddings FILE "
                f"of [T d_model] or [B T d_model], d_model {weights.config.d_model}"
            )
        if given not in batches.TOKENIZERS:
            vocabulary = batches.vocabulary_of(batches.read_tokenizer(given))
            if len(vocabulary) > weights.n_rows:
                raise InputError(
                    f"{printable(given)} has {len(vocabulary)} tokens, the embedding of {shown} "
                    f"{weights.n_rows} rows: it is another model's"
                )
            return vocabulary
        if weights.vocabulary is None:
            beside = weights.file.path.parent / "tokenizer.json"
            file = printable(beside) if beside.is_file() else "tokenizer.json"
            raise InputError(
                f"{shown} does not say which token is which of the {weights.n_rows} rows of its "
                f"embedding: --tokenizer {file} does, or give --embeddings"
            )
        return weights.vocabulary

    # ── vectors ──

    def _names(self, texts: Texts) -> TokenizedBatch:
        """A name for each vector: a token of TEXT, where it was given, else its position."""
        files = self._files
        assert files.query is not None
        vectors = self._array(files.query, "--embeddings")
        given, notes = cut(texts.queries, self.options.tokenizer)
        queries = _names(vectors, given or None, "--embeddings")
        keys = None
        if files.key is not None:
            others = self._array(files.key, "--key-embeddings")
            of_keys = None if texts.keys is None else cut(texts.keys, self.options.tokenizer)[0]
            keys = _names(others, of_keys, "--key-embeddings")
            if len(keys) != len(queries):
                raise InputError(
                    f"--key-embeddings has {len(keys)} sequences, --embeddings {len(queries)}"
                )
        elif texts.keys is not None:
            raise ConfigError("--keys with --embeddings needs the keys' vectors: --key-embeddings")
        variant = self.config.variant
        if files.key is None and (variant.d_key or variant.d_value):
            raise InputError(
                f"{self.weights.file.shown} makes keys of {variant.d_key or 'd_model'} numbers and "
                f"values of {variant.d_value or 'd_model'}: give --key-embeddings and "
                "--value-embeddings"
            )
        known = batches.make_vocabulary((*queries, *(keys or ())))
        side = self.options.pad_side
        return TokenizedBatch(
            batches.make_batch(queries, known, None, side),
            None if keys is None else batches.make_batch(keys, known, None, side),
            (*texts.notes, *notes),
        )

    def _vectors(self) -> Inputs:
        config, files = self.config, self._files
        found: list[Tensor | None] = []
        for path, flag, width in (
            (files.query, "--embeddings", config.d_model),
            (files.key, "--key-embeddings", config.variant.d_key or config.d_model),
            (
                files.value,
                "--value-embeddings",
                config.variant.d_value or config.d_model,
            ),
        ):
            if path is None:
                found.append(None)
                continue
            vectors = self._array(path, flag)
            if vectors.shape[-1] != width:
                raise InputError(
                    f"{flag} has vectors of {vectors.shape[-1]} numbers; {width} are expected by "
                    f"{self.weights.file.shown}"
                )
            tensor = torch.from_numpy(np.ascontiguousarray(vectors))
            found.append(tensor.to(config.device, getattr(torch, config.dtype)))
        query, key, value = found
        assert query is not None
        if value is not None and (key is None or value.shape[:2] != key.shape[:2]):
            raise InputError("--value-embeddings has to have the sequences of --key-embeddings")
        return Inputs(query, key, value)

    def _array(self, path: Path, flag: str) -> npt.NDArray[Any]:
        """Vectors `[B T width]`, finite."""
        shown = printable(path)
        try:
            array = _read_vectors(path)
        except InputError as error:
            raise InputError(f"{flag} {shown} {error}") from None
        except OSError as error:
            raise InputError(f"{flag} {shown}: {why_unreadable(path, error)}") from None
        if array.dtype.kind != "f":
            raise InputError(f"{flag} {shown} holds {printable(array.dtype)}; floats are expected")
        if array.ndim not in (2, 3) or 0 in array.shape:
            raise InputError(
                f"{flag} {shown} has shape {list(array.shape)}; [T d_model] or [B T d_model] is "
                "expected"
            )
        if not np.isfinite(array).all():
            at = np.argwhere(~np.isfinite(array))[0].tolist()
            raise InputError(f"{flag} {shown} has {array[tuple(at)]} at {at}; finite numbers only")
        return array if array.ndim == 3 else array[None]


def _read_vectors(path: Path) -> npt.NDArray[Any]:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return read_npy(path)
    if suffix == ".npz":
        arrays = read_npz(path, at_most=1)
        if not arrays:
            raise InputError("holds no array")
        return next(iter(arrays.values()))
    if suffix == ".safetensors":
        file = open_weight_file(path)
        if len(file.entries) != 1:
            raise InputError(f"holds {len(file.entries)} arrays; one is expected")
        tensor = file.floats(next(iter(file.entries)))
        return np.asarray(tensor.double().numpy())
    raise InputError(f"has the suffix '{printable(path.suffix)}'; .npy, .npz or .safetensors")


def _names(
    vectors: npt.NDArray[Any], given: tuple[Tokens, ...] | None, flag: str
) -> tuple[Tokens, ...]:
    """A name for each vector. Sequences that are shorter than the longest have padding."""
    n, width = vectors.shape[:2]
    if given is None:
        return tuple(tuple(map(str, range(width))) for _ in range(n))
    longest = max(map(len, given))
    if len(given) != n or longest != width:
        raise InputError(
            f"{flag} has {plural(n, 'sequence')} of {width} vectors, the text {len(given)} "
            f"of {longest} tokens at most; one token a vector is expected"
        )
    return given
