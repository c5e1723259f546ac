"""`--weights`: attention of a person's own layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnviz import tokens as batches
from attnviz.cli.facts import Fact, layer_facts, trained_facts
from attnviz.cli.inputs import (
    TextInput,
    make_batches,
    make_long_batches,
    make_rules,
    read_sequences,
)
from attnviz.cli.options import InputFlags, LayerFlags, MaskFlags, SourceFlags, flags_of
from attnviz.cli.source import Computed, ComputedLong, bytes_of_maps
from attnviz.config import POSITIONS, choice
from attnviz.errors import ConfigError, InputError, printable, why_unreadable
from attnviz.npy import read_npy, read_npz
from attnviz.wording import plural

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from attnviz.masks import Rule
    from attnviz.sources.from_weights import Asked, Weights
    from attnviz.sources.long import Each, LongRun, Pooling
    from attnviz.sources.run import Inputs, Run
    from attnviz.trace import Step

ALLOWED = ("n_heads", "n_kv_heads", "d_k", "positions", "dtype", "device")
"""Flags of the layer that say what a file of weights may leave open."""


class WeightsSource:
    """Layers in a file: their sizes are read, their numbers not yet."""

    absent = ()

    def __init__(
        self, inputs: InputFlags, layer: LayerFlags, masking: MaskFlags, flags: SourceFlags
    ) -> None:
        assert flags.weights is not None
        stated = [field.name for field in flags_of(layer) if layer.says(field.name)]
        for name in stated:
            if name not in ALLOWED:
                raise ConfigError(
                    f"--weights and --{name.replace('_', '-')} both give the layer; "
                    "give one of them"
                )
        if flags.embeddings is None and (flags.key_embeddings or flags.value_embeddings):
            raise ConfigError("--key-embeddings and --value-embeddings go with --embeddings")
        if flags.embeddings is not None and inputs.pad_to is not None:
            raise ConfigError("--embeddings and --pad-to both give the length; give one of them")
        choice("--positions", layer.positions, POSITIONS)
        self._inputs, self._masking, self._flags = inputs, masking, flags
        self.asked = self._asked(layer, set(stated))
        self.weights = self._open()

    def _asked(self, layer: LayerFlags, stated: set[str]) -> Asked:
        from attnviz.sources.from_weights import Asked

        return Asked(
            prefix=self._flags.weights_prefix,
            norm_first=self._flags.norm_first,
            zero_attn=self._flags.add_zero_attn,
            **{name: getattr(layer, name) for name in ALLOWED if name in stated},
        )

    def _open(self) -> Weights:
        from attnviz.sources.from_weights import open_weights
        from attnviz.sources.weight_files import open_weight_file

        assert self._flags.weights is not None
        return open_weights(open_weight_file(self._flags.weights), self.asked)

    @property
    def n_layers(self) -> int:
        return len(self.weights.found)

    @property
    def n_heads(self) -> int:
        return self.weights.config.n_heads

    def read(self) -> TextInput:
        """The tokens, or names for the vectors of --embeddings."""
        if self._flags.embeddings is not None:
            return self._read_names()
        return replace(read_sequences(self._inputs), known=self.vocabulary())

    def compute(
        self,
        text: TextInput,
        keep: Collection[str] = (),
        layers: Collection[int] | None = None,  # noqa: ARG002 - all of them run
        progress: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> Computed:
        from attnviz.sources.from_weights import from_weights

        weights = self.weights
        queries, keys = make_batches(self._inputs, text, weights.config)
        inputs = self._vectors() if self._flags.embeddings is not None else None
        rules, notices = make_rules(self._masking, queries, keys, self.n_heads)
        run = from_weights(weights, queries, keys, rules, keep, inputs)
        remarks = self._remarks(rules, inputs is None)
        return Computed(run, queries, keys, rules, [*weights.notices, *notices, *remarks])

    def bytes_needed(self, text: TextInput, layers: Collection[int] | None = None) -> int:  # noqa: ARG002
        return bytes_of_maps(self.weights.config, text.lengths(self._inputs), self.n_layers)

    def compute_long(
        self,
        text: TextInput,
        pooling: Pooling,
        each: Each,
        layers: Collection[int] | None = None,  # noqa: ARG002 - all of them run
        progress: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> ComputedLong:
        from attnviz.sources.long import long_from_weights

        queries, keys = make_long_batches(self._inputs, text)
        inputs = self._vectors() if self._flags.embeddings is not None else None
        rules, notices = make_rules(self._masking, queries, keys, self.n_heads)
        run = long_from_weights(self.weights, queries, keys, rules, pooling, each, inputs)
        remarks = self._remarks(rules, inputs is None)
        return ComputedLong(run, queries, keys, [*self.weights.notices, *notices, *remarks])

    def _remarks(self, rules: Sequence[Rule], embeds: bool) -> list[str]:
        """What the weights' own model does otherwise."""
        weights, remarks = self.weights, []
        if weights.is_causal and all(rule.name == "padding" for rule in rules):
            remarks.append(
                f"the model of these weights ({weights.layout}) is causal: "
                "--causal forbids what it never sees"
            )
        if weights.number and embeds:
            before = f"{plural(weights.number, 'layer')} before it"
            remarks.append(
                f"layer {weights.number} is given the embedded tokens: the {before} did not run "
                "(--model runs them all)"
            )
        return remarks

    def facts(self, run: Run | LongRun | None = None) -> list[Fact]:  # noqa: ARG002 - the file says it all
        weights = self.weights
        name = printable(weights.file.path.name)
        place = weights.found[0].place if self.n_layers == 1 else ""
        return [
            *layer_facts(weights.config),
            *trained_facts(name, weights.layout, printable(place), self.n_layers),
        ]

    def steps(
        self, lengths: Mapping[str, int], rule_heads: int
    ) -> tuple[Sequence[Step], dict[str, int]]:
        """The steps at any size, and the length of each axis; see `steps_of`."""
        from attnviz.sources.from_weights import steps_of

        embeds = self._flags.embeddings is None and bool(self.weights.table)
        return steps_of(self.weights, lengths, rule_heads, embeds)

    # ── tokens ──

    def vocabulary(self) -> batches.Tokens:
        """The token of each row of the embedding. Raises `InputError` that says what is missing."""
        weights, given = self.weights, self._inputs.tokenizer
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

    def _read_names(self) -> TextInput:
        """Names for the vectors: TEXT, where it was given, else their places."""
        inputs, flags = self._inputs, self._flags
        assert flags.embeddings is not None
        vectors = self._array(flags.embeddings, "--embeddings")
        given = read_sequences(inputs) if inputs.text or inputs.file else None
        queries = _names(vectors, None if given is None else given.queries, "--embeddings")
        keys = None
        if flags.key_embeddings is not None:
            others = self._array(flags.key_embeddings, "--key-embeddings")
            keys = _names(others, None if given is None else given.keys, "--key-embeddings")
            if len(keys) != len(queries):
                raise InputError(
                    f"--key-embeddings has {len(keys)} sequences, --embeddings {len(queries)}"
                )
        elif inputs.keys or inputs.key_file:
            raise ConfigError("--keys with --embeddings needs the keys' vectors: --key-embeddings")
        variant = self.weights.config.variant
        if flags.key_embeddings is None and (variant.d_key or variant.d_value):
            raise InputError(
                f"{self.weights.file.shown} makes keys of {variant.d_key or 'd_model'} numbers and "
                f"values of {variant.d_value or 'd_model'}: give --key-embeddings and "
                "--value-embeddings"
            )
        return TextInput(queries, keys, () if given is None else given.notices)

    def _vectors(self) -> Inputs:
        import torch

        from attnviz.sources.run import Inputs

        config, flags = self.weights.config, self._flags
        found: list[Tensor | None] = []
        for path, flag, width in (
            (flags.embeddings, "--embeddings", config.d_model),
            (flags.key_embeddings, "--key-embeddings", config.variant.d_key or config.d_model),
            (
                flags.value_embeddings,
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
        from attnviz.sources.weight_files import open_weight_file

        file = open_weight_file(path)
        if len(file.entries) != 1:
            raise InputError(f"holds {len(file.entries)} arrays; one is expected")
        tensor = file.floats(next(iter(file.entries)))
        return np.asarray(tensor.double().numpy())
    raise InputError(f"has the suffix '{printable(path.suffix)}'; .npy, .npz or .safetensors")


def _names(
    vectors: npt.NDArray[Any], given: tuple[batches.Tokens, ...] | None, flag: str
) -> tuple[batches.Tokens, ...]:
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
