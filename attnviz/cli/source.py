"""Where attention comes from, as the commands see it: one interface, whatever computes it.

To add a source is one class with the members of `Source` and one line in `open_source`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from attnviz.cli.facts import Fact, layer_facts, untrained_facts
from attnviz.cli.inputs import (
    TextInput,
    make_batches,
    make_long_batches,
    make_rules,
    read_sequences,
)
from attnviz.cli.options import InputFlags, LayerFlags, MaskFlags, ModelFlags, SourceFlags
from attnviz.errors import ConfigError

if TYPE_CHECKING:
    from attnviz.config import AttentionConfig
    from attnviz.masks import Rule
    from attnviz.render.overlay_picture import Photo
    from attnviz.sources.long import Each, LongRun, Pooling
    from attnviz.sources.run import Run
    from attnviz.tokens import Batch


@dataclass(frozen=True)
class ComputedLong:
    """A pass over a long text, whose maps went to `Each`; the rest is as in `Computed`."""

    run: LongRun
    queries: Batch
    keys: Batch | None
    notices: Sequence[str]


@dataclass(frozen=True)
class Computed:
    """A run, the batches and mask rules that it ran with, and remarks for the person.

    `keys` is None in self attention. `views` show what a model saw of pictures, and `sequences`
    say what each sequence is, where a list of its tokens would say little.
    """

    run: Run
    queries: Batch
    keys: Batch | None
    rules: Sequence[Rule]
    notices: Sequence[str]
    views: Sequence[Photo] = ()
    sequences: Sequence[Fact] = ()


class Source(Protocol):
    """A source that has been opened: its sizes are known, and nothing large is made yet."""

    @property
    def n_layers(self) -> int: ...

    @property
    def n_heads(self) -> int: ...

    def read(self) -> TextInput:
        """The token sequences that the flags name; not padded yet."""
        ...

    @property
    def absent(self) -> Collection[int]:
        """The numbers of layers that have no attention."""
        ...

    def compute(
        self,
        text: TextInput,
        keep: Collection[str] = (),
        layers: Collection[int] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Computed:
        """Run `text` through; `keep` names taps whose tensors go into the result.

        A source may leave out of its result the layers that are not among `layers`. `progress` is
        called with a few words when a stage begins.
        """
        ...

    def bytes_needed(self, text: TextInput, layers: Collection[int] | None = None) -> int:
        """The memory that `compute` takes for this text, with whole maps of these layers."""
        ...

    def compute_long(
        self,
        text: TextInput,
        pooling: Pooling,
        each: Each,
        layers: Collection[int] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> ComputedLong:
        """Run a long text through: `each` is given the queries and keys of each layer in turn.

        `pooling` says what will be made of them, so that memory can be asked for before.
        """
        ...

    def facts(self, run: Run | LongRun) -> list[Fact]:
        """What ran, in words: the layer's sizes, and where its numbers come from."""
        ...


def open_source(
    inputs: InputFlags,
    layer: LayerFlags,
    masking: MaskFlags,
    flags: SourceFlags,
    model: ModelFlags,
) -> Source:
    """The source that the flags name. Raises `ConfigError` where they contradict each other."""
    if model.model is not None and (model.image or model.audio):
        from attnviz.cli.media_source import MediaSource

        return MediaSource(inputs, layer, masking, flags, model)
    if model.model is not None:
        from attnviz.cli.model_source import ModelSource

        return ModelSource(inputs, layer, masking, flags, model)
    if model.given:
        raise ConfigError(f"{model.given[0]} goes with --model")
    if flags.weights is not None:
        from attnviz.cli.weights_source import WeightsSource

        return WeightsSource(inputs, layer, masking, flags)
    if flags.given:
        raise ConfigError(f"{flags.given[0]} goes with --weights FILE")
    return FlagsSource(inputs, layer, masking)


class FlagsSource:
    """A layer from flags: untrained, drawn from the seed."""

    n_layers, absent = 1, ()

    def __init__(self, inputs: InputFlags, layer: LayerFlags, masking: MaskFlags) -> None:
        self._inputs, self._masking = inputs, masking
        self._config = layer.config()

    @property
    def n_heads(self) -> int:
        return self._config.n_heads

    def read(self) -> TextInput:
        return read_sequences(self._inputs)

    def compute(
        self,
        text: TextInput,
        keep: Collection[str] = (),
        layers: Collection[int] | None = None,  # noqa: ARG002 - there is one
        progress: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> Computed:
        from attnviz.sources.from_config import from_config

        queries, keys = make_batches(self._inputs, text, self._config)
        rules, notices = make_rules(self._masking, queries, keys, self._config.n_heads)
        run = from_config(self._config, queries, keys, rules, keep)
        return Computed(run, queries, keys, rules, notices)

    def bytes_needed(self, text: TextInput, layers: Collection[int] | None = None) -> int:  # noqa: ARG002
        return bytes_of_maps(self._config, text.lengths(self._inputs))

    def compute_long(
        self,
        text: TextInput,
        pooling: Pooling,
        each: Each,
        layers: Collection[int] | None = None,  # noqa: ARG002 - there is one
        progress: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> ComputedLong:
        from attnviz.sources.long import long_from_config

        queries, keys = make_long_batches(self._inputs, text)
        rules, notices = make_rules(self._masking, queries, keys, self._config.n_heads)
        run = long_from_config(self._config, queries, keys, rules, pooling, each)
        return ComputedLong(run, queries, keys, notices)

    def facts(self, run: Run | LongRun) -> list[Fact]:  # noqa: ARG002 - the flags have said it all
        return [*layer_facts(self._config), *untrained_facts(self._config)]


def bytes_of_maps(config: AttentionConfig, sizes: dict[str, int], n_layers: int = 1) -> int:
    """The memory of a run with whole maps of a batch of these sizes, by axis name."""
    from attnviz.sources.from_config import bytes_of_run

    batch, queries, keys = sizes["B"], sizes["Tq"], sizes["Tk"]
    return bytes_of_run(config, batch, queries, keys, sizes["V"], n_layers)
