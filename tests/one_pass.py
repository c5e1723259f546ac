"""One pass through a source, for tests: what the commands do, in one call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnviz.collectors.whole_maps import WholeMaps
from attnviz.config import AttentionConfig
from attnviz.masks import Rule
from attnviz.merging import hide_special as without_special
from attnviz.merging import merge_words
from attnviz.pipeline import Pass
from attnviz.result import Attention
from attnviz.sources import own_layers
from attnviz.sources.from_weights import Asked, Weights
from attnviz.sources.layer_pass import Inputs
from attnviz.sources.loading import LoadedModel, load_model
from attnviz.sources.media_source import MediaSource
from attnviz.sources.model_options import ModelOptions
from attnviz.sources.model_source import ModelSource
from attnviz.sources.own_layers import LayerSource, OwnLayers, ReadingOptions, TokenizedBatch
from attnviz.sources.weights_source import WeightsSource
from attnviz.tokens import Batch, Texts


@dataclass(frozen=True)
class Ran:
    """The maps of one pass, with what ran."""

    result: Attention
    steps: Sequence[Any]
    layers: Sequence[Any]
    done: Pass
    notes: tuple[str, ...] = ()


def of_batches(
    source: OwnLayers,
    queries: Batch,
    keys: Batch | None,
    rules: Sequence[Rule],
    keep: Collection[str] = (),
    collector: Any = None,
    layers: Collection[int] | None = None,
) -> Ran:
    """Run batches that are made already, under rules that are made already."""
    maps = collector or WholeMaps(keep)
    known = own_layers.rules_from
    own_layers.rules_from = lambda *_: list(rules)  # type: ignore[assignment]
    try:
        done = source.run(TokenizedBatch(queries, keys), maps, layers)
    finally:
        own_layers.rules_from = known
    return Ran(maps.result(done), done.steps, done.modules, done, tuple(done.notes))


def from_config(
    config: AttentionConfig,
    queries: Batch,
    keys: Batch | None = None,
    rules: Sequence[Rule] = (),
    keep: Collection[str] = (),
) -> Ran:
    """A layer from flags."""
    return of_batches(LayerSource(config, ReadingOptions()), queries, keys, rules, keep)


class OpenedWeights(WeightsSource):
    """A source of weights that are open already, and of vectors that are made already."""

    def __init__(self, weights: Weights, inputs: Inputs | None) -> None:
        OwnLayers.__init__(self, ReadingOptions())
        from attnviz.sources.weights_source import VectorFiles

        self._files, self.asked = VectorFiles(), Asked()
        self.weights, self.config = weights, weights.config
        self.n_layers = len(weights.found)
        self.given = inputs

    def _inputs(self, queries: Batch, keys: Batch | None, recorder: Any) -> Inputs:
        return self.given or super()._inputs(queries, keys, recorder)


def from_weights(
    weights: Weights,
    queries: Batch,
    keys: Batch | None = None,
    rules: Sequence[Rule] = (),
    keep: Collection[str] = (),
    inputs: Inputs | None = None,
) -> Ran:
    """Layers of the user's own."""
    return of_batches(OpenedWeights(weights, inputs), queries, keys, rules, keep)


def from_pretrained(
    model: LoadedModel | str,
    texts: Sequence[Any],
    *,
    keys: Sequence[Any] | None = None,
    layers: Collection[int] | None = None,
    keep: Collection[str] = (),
    words: bool = False,
    hide_special: bool = False,
    say: Any = lambda _: None,
    **options: Any,
) -> Ran:
    """A pretrained model on texts; `options` are those of `ModelOptions`."""
    chosen = ModelOptions("", has_keys=keys is not None, **options)
    if not isinstance(model, LoadedModel):
        model = load_model(model, generates=chosen.generate is not None)
    source = ModelSource.of_loaded(model, chosen)
    maps = WholeMaps(keep)
    if keys is not None and len(keys) == 1:
        keys = list(keys) * len(texts)
    tokens = source.tokens(Texts(tuple(texts), None if keys is None else tuple(keys)))
    done = source.run(tokens, maps, layers)
    result = maps.result(done)
    notes = (*tokens.notes, *done.notes, *done.review(result))
    for note in notes:
        say(note)
    if hide_special:
        result = without_special(result)
    if words:
        result = merge_words(result)
    return Ran(result, done.steps, (), done, notes)


def from_files(
    kind: str,
    model: LoadedModel | str,
    files: Sequence[Path | str],
    *,
    attention: str | None = None,
    layers: Collection[int] | None = None,
    say: Any = lambda _: None,
) -> Ran:
    """A pretrained model on pictures ("image") or sound ("audio")."""
    if not isinstance(model, LoadedModel):
        model = load_model(model)
    source = MediaSource.of_files(model, ModelOptions("", attention=attention), kind, files)
    maps = WholeMaps()
    done = source.run(source.tokens(Texts(())), maps, layers)
    result = maps.result(done)
    for note in (*done.notes, *done.review(result)):
        say(note)
    return Ran(result, done.steps, (), done, tuple(done.notes))


def from_images(model: Any, files: Sequence[Any], **more: Any) -> Attention:
    """A vision transformer on pictures."""
    return from_files("image", model, files, **more).result


def from_audio(model: Any, files: Sequence[Any], **more: Any) -> Attention:
    """An audio encoder on `.wav` files."""
    return from_files("audio", model, files, **more).result
