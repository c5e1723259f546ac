"""`--model`: attention of a pretrained model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import count
from typing import TYPE_CHECKING

from attnviz.batch import WHOLE
from attnviz.cli.facts import Fact
from attnviz.cli.inputs import TextInput, read_sequences
from attnviz.cli.options import (
    InputFlags,
    LayerFlags,
    MaskFlags,
    ModelFlags,
    SourceFlags,
    flags_of,
)
from attnviz.cli.progress import Work
from attnviz.cli.source import Computed, ComputedLong
from attnviz.config import DTYPES, choice
from attnviz.errors import ConfigError
from attnviz.render.tokens import visible

if TYPE_CHECKING:
    from attnviz.sources.long import Each, LongRun, Pooling
    from attnviz.sources.run import Run

ALLOWED = ("dtype", "device", "seed")
"""Flags of the layer that hold for a model as well."""


class ModelSource:
    """A pretrained model: its configuration is read, its weights not yet."""

    def __init__(
        self,
        inputs: InputFlags,
        layer: LayerFlags,
        masking: MaskFlags,
        origin: SourceFlags,
        flags: ModelFlags,
    ) -> None:
        assert flags.model is not None
        require_alone(inputs, layer, masking, origin)
        choice("--dtype", layer.dtype, tuple(DTYPES))
        self._inputs, self._layer, self._flags = inputs, layer, flags

        from attnviz.sources.loading import choose_device, outline_model
        from attnviz.sources.towers import choose_tower, layer_numbers, n_heads

        self._device = choose_device(layer.device)
        with Work() as work:
            self._outline = outline_model(
                flags.model,
                revision=flags.revision,
                trust_remote_code=flags.trust_remote_code,
                generates=flags.generate is not None,
                progress=work.stage,
            )
        network, self._answers = self._outline.network, tuple[str, ...]()
        has_keys = bool(inputs.keys or inputs.key_file or flags.generate)
        self.tower = choose_tower(network, self._outline.source, flags.attention, has_keys)
        self._numbers = layer_numbers(network, self.tower)
        self.n_layers = max(self._numbers) + 1
        self.n_heads = n_heads(network, self.tower)

    @property
    def absent(self) -> Collection[int]:
        return set(range(self.n_layers)) - set(self._numbers)

    def read(self) -> TextInput:
        """The texts, each whole: the model's own tokenizer cuts them."""
        return read_sequences(self._inputs, WHOLE)

    def compute(
        self,
        text: TextInput,
        keep: Collection[str] = (),
        layers: Collection[int] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Computed:
        from attnviz.sources.from_pretrained import Wanted, run_model
        from attnviz.sources.gathering import KEEPABLE
        from attnviz.sources.generating import Writing
        from attnviz.sources.loading import load_model

        loaded = load_model(
            self._outline, dtype=self._layer.dtype, device=self._device, progress=progress
        )
        if progress is not None:
            progress("computing attention")
        notices: list[str] = []
        flags, n_written = self._flags, count()

        def advance() -> None:
            if progress is not None:
                progress(f"computing attention, {next(n_written)} tokens written")

        wanted = Wanted(
            attention=self.tower,
            layers=layers,
            keep=[name for name in keep if name in KEEPABLE],
            max_len=flags.max_len,
            pad_side=self._inputs.pad_side,
            words=flags.words,
            hide_special=flags.hide_special,
            raw_tokens=flags.raw_tokens,
            writing=None
            if flags.generate is None
            else Writing(flags.generate, flags.temperature, self._layer.seed, advance),
        )
        texts = [" ".join(pieces) for pieces in text.queries]
        keys = None if text.keys is None else [" ".join(pieces) for pieces in text.keys]
        done = run_model(loaded, texts, keys, wanted, notices.append)
        self._answers = done.answers
        return Computed(done.run, done.queries, done.keys, (), notices)

    def bytes_needed(self, text: TextInput) -> int:  # noqa: ARG002
        """0: how many tokens a text has is known when its tokenizer is loaded; `compute` asks then.

        With --pool, `compute_long` is asked for whatever this says.
        """
        return 0

    def compute_long(
        self,
        text: TextInput,  # noqa: ARG002
        pooling: Pooling,  # noqa: ARG002
        each: Each,  # noqa: ARG002
        layers: Collection[int] | None = None,  # noqa: ARG002
        progress: Callable[[str], None] | None = None,  # noqa: ARG002
    ) -> ComputedLong:
        raise ConfigError(
            "--model runs with whole maps: leave the flags for long texts out, and keep fewer "
            "layers with --layers"
        )

    def facts(self, run: Run | LongRun) -> list[Fact]:
        """The model by name, the sizes of its attention, the layers that are kept."""
        from attnviz.sources.run import Run

        assert isinstance(run, Run)  # there are no long ones
        heads = f"{self.n_heads} heads"
        sizes = {axis: size for s in run.steps for axis, size in zip(s.axes, s.shape, strict=True)}
        if "Hkv" in sizes:
            heads += f" on {sizes['Hkv']} key/value heads"
        widths = [f"{axis} {sizes[axis]}" for axis in ("d_k", "d_v") if axis in sizes]
        config = run.result.config
        kept = run.result.layer_numbers
        layers = f"{len(self._numbers)} layers of {heads}"
        facts = [
            ("model", f"{self._outline.name} ({config['model_type']}), its {self.tower}: {layers}"),
            ("", ", ".join([*widths, config["dtype"], "trained"])),
        ]
        if len(kept) < len(self._numbers):
            facts.append(("", f"kept: layer{'s' * (len(kept) > 1)} {', '.join(map(str, kept))}"))
        elif run.steps:
            facts.append(("", f"the trace is of layer {kept[0]}, as its code handed it over"))
        prompts = config.get("n_prompt", ())
        for i, (n, answer) in enumerate(zip(prompts, self._answers, strict=True)):
            facts.append(
                (f"answer {i}", f"after {n} token{'s' * (n != 1)}: {visible_text(answer)}")
            )
        return facts


def visible_text(text: str) -> str:
    """A text that a model wrote, safe to print on one line; its spaces stay spaces."""
    return " ".join(visible(word) for word in text.split(" "))


def require_alone(
    inputs: InputFlags, layer: LayerFlags, masking: MaskFlags, origin: SourceFlags
) -> None:
    """Raise `ConfigError` that names both when a flag of another source was given."""
    if origin.weights is not None:
        raise ConfigError("--model and --weights both say where attention comes from; give one")
    if origin.given:
        raise ConfigError(f"{origin.given[0]} goes with --weights FILE, not with --model")
    for field in flags_of(layer):
        if layer.says(field.name) and field.name not in ALLOWED:
            name = field.name.replace("_", "-")
            raise ConfigError(f"--model and --{name} both give the layer; give one of them")
    for field in flags_of(masking):
        if getattr(masking, field.name) != field.default:
            name = field.name.replace("_", "-")
            raise ConfigError(f"--model and --{name}: a model masks by itself; leave --{name} out")
    if inputs.tokenizer != InputFlags.tokenizer:
        raise ConfigError("--model and --tokenizer: a model cuts text by its own tokenizer")
    if inputs.pad_to is not None:
        raise ConfigError("--model and --pad-to: texts are padded to the longest of them")
