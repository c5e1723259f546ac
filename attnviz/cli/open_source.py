"""From flags to the source that they name: one row of `SOURCES` for each kind.

Each row's function checks the flags before it imports what the source needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.cli.options import (
    InputFlags,
    LayerFlags,
    MaskFlags,
    ModelFlags,
    SourceFlags,
    flags_of,
)
from attnviz.cli.progress import Work
from attnviz.config import POSITIONS, choice
from attnviz.errors import ConfigError
from attnviz.pipeline import Source
from attnviz.sources.own_layers import LayerSource, ReadingOptions

if TYPE_CHECKING:
    from attnviz.sources.model_options import ModelOptions
    from attnviz.sources.weights_source import WeightsSource

HOLD_FOR_WEIGHTS = ("n_heads", "n_kv_heads", "d_k", "positions", "dtype", "device")
"""Flags of the layer that say what a file of weights may leave open."""

HOLD_FOR_MODELS = ("dtype", "device", "seed")
"""Flags of the layer that hold for a model as well."""


@dataclass(frozen=True)
class SourceRequest:
    """All flags that say where attention comes from, and how texts are read.

    With `for_corpus`, many texts will come, one after the other.
    """

    inputs: InputFlags
    layer: LayerFlags
    masking: MaskFlags
    origin: SourceFlags
    model: ModelFlags
    for_corpus: bool = False

    def reading(self) -> ReadingOptions:
        """How texts become batches of attnviz's own layers, and which masks apply to them."""
        return replace(
            reading_of(self.inputs),
            masks=self.masking.settings(),
            max_len=self.model.max_len if self.for_corpus else None,
        )


def reading_of(inputs: InputFlags) -> ReadingOptions:
    """How texts become batches."""
    return ReadingOptions(
        tokenizer=inputs.tokenizer, pad_to=inputs.pad_to, pad_side=inputs.pad_side
    )


@dataclass(frozen=True)
class SourceKind:
    """A kind of source: whether the flags ask for it, and what opens it."""

    is_asked: Callable[[SourceRequest], bool]
    open: Callable[[SourceRequest], Source]


def kind_asked_for(request: SourceRequest) -> SourceKind:
    """The kind of source that the flags name."""
    return next(kind for kind in SOURCES if kind.is_asked(request))


def open_source(request: SourceRequest) -> Source:
    """The source that the flags name. Raises `ConfigError` where they contradict each other."""
    return kind_asked_for(request).open(request)


def _open_layer(request: SourceRequest) -> Source:
    if request.model.given and not (request.for_corpus and request.model.given == ["--max-len"]):
        raise ConfigError(f"{request.model.given[0]} goes with --model")
    if request.origin.given:
        raise ConfigError(f"{request.origin.given[0]} goes with --weights FILE")
    return LayerSource(request.layer.config(), request.reading(), by_word=request.for_corpus)


def open_weights_source(request: SourceRequest) -> WeightsSource:
    """Layers of the user's own."""
    flags, layer = request.origin, request.layer
    given = [name for name in request.model.given if name != "--max-len" or not request.for_corpus]
    if given:
        raise ConfigError(f"{given[0]} goes with --model")
    stated = [field.name for field in flags_of(layer) if layer.says(field.name)]
    for name in stated:
        if name not in HOLD_FOR_WEIGHTS:
            raise ConfigError(
                f"--weights and --{name.replace('_', '-')} both give the layer; give one of them"
            )
    if flags.embeddings is not None and request.inputs.pad_to is not None:
        raise ConfigError("--embeddings and --pad-to both give the length; give one of them")
    if flags.embeddings is None and (flags.key_embeddings or flags.value_embeddings):
        raise ConfigError("--key-embeddings and --value-embeddings go with --embeddings")
    choice("--positions", layer.positions, POSITIONS)
    from attnviz.sources.from_weights import Asked
    from attnviz.sources.weights_source import VectorFiles, WeightsSource

    assert flags.weights is not None
    asked = Asked(
        prefix=flags.weights_prefix,
        norm_first=flags.norm_first,
        zero_attn=flags.add_zero_attn,
        **{name: getattr(layer, name) for name in HOLD_FOR_WEIGHTS if name in stated},
    )
    vectors = VectorFiles(flags.embeddings, flags.key_embeddings, flags.value_embeddings)
    return WeightsSource(flags.weights, asked, request.reading(), vectors)


def model_options(request: SourceRequest) -> ModelOptions:
    """What a pretrained model is opened with. Raises `ConfigError` for flags of other sources."""
    _require_alone(request)
    from attnviz.sources.model_options import ModelOptions

    model, inputs = request.model, request.inputs
    assert model.model is not None
    return ModelOptions(
        model.model,
        attention=model.attention,
        revision=model.revision,
        trust_remote_code=model.trust_remote_code,
        dtype=request.layer.dtype,
        device=request.layer.device,
        max_len=model.max_len,
        pad_side=inputs.pad_side,
        raw_tokens=model.raw_tokens,
        generate=model.generate,
        temperature=model.temperature,
        seed=request.layer.seed,
        has_keys=bool(inputs.keys or inputs.key_file),
    )


def _open_model(request: SourceRequest) -> Source:
    options = model_options(request)
    from attnviz.sources.model_source import ModelSource

    with Work() as work:
        return ModelSource(options, work.stage)


def _open_media(request: SourceRequest) -> Source:
    options, model = model_options(request), request.model
    kind = "image" if model.image else "audio"
    for name in ("text", "file", "keys", "key_file"):
        if getattr(request.inputs, name):
            other = "TEXT" if name == "text" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"--{kind} and {other} both say what the model looks at; give one of them"
            )
    from attnviz.sources.media_source import MediaSource

    files: list[Path] = [*(model.image or ()), *(model.audio or ())]
    with Work() as work:
        return MediaSource(replace(options, has_keys=False), kind, files, work.stage)


def _require_alone(request: SourceRequest) -> None:
    """Raise `ConfigError` that names both when a flag of another source was given."""
    inputs, layer, origin = request.inputs, request.layer, request.origin
    if origin.weights is not None:
        raise ConfigError("--model and --weights both say where attention comes from; give one")
    if origin.given:
        raise ConfigError(f"{origin.given[0]} goes with --weights FILE, not with --model")
    for field in flags_of(layer):
        if layer.says(field.name) and field.name not in HOLD_FOR_MODELS:
            name = field.name.replace("_", "-")
            raise ConfigError(f"--model and --{name} both give the layer; give one of them")
    for field in flags_of(request.masking):
        if getattr(request.masking, field.name) != field.default:
            name = field.name.replace("_", "-")
            raise ConfigError(f"--model and --{name}: a model masks by itself; leave --{name} out")
    if inputs.tokenizer != InputFlags.tokenizer:
        raise ConfigError("--model and --tokenizer: a model cuts text by its own tokenizer")
    if inputs.pad_to is not None:
        raise ConfigError("--model and --pad-to: texts are padded to the longest of them")


SOURCES = [
    SourceKind(
        lambda r: r.model.model is not None and bool(r.model.image or r.model.audio), _open_media
    ),
    SourceKind(lambda r: r.model.model is not None, _open_model),
    SourceKind(lambda r: r.origin.weights is not None, open_weights_source),
    SourceKind(lambda r: True, _open_layer),
]
"""The kinds of source; the first that is asked for is opened."""

BUILT_IN = tuple(SOURCES)
"""Those whose flags a corpus reads by itself; it opens any other as `run` does."""
