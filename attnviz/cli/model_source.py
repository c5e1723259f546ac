"""`--model`: attention of a pretrained model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

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
from attnviz.render.visible import visible
from attnviz.tokens import WHOLE
from attnviz.wording import noun_for, plural

if TYPE_CHECKING:
    from attnviz.sources.from_pretrained import Wanted
    from attnviz.sources.loading import LoadedModel
    from attnviz.sources.long import Each, LongRun, Pooling
    from attnviz.sources.run import Run

MANY = 2**28
"""Bytes of maps from which on a text's tokens are counted: fewer fit wherever a model does."""

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
        self._loaded: LoadedModel | None = None

        from attnviz.sources.loading import choose_device, outline_model
        from attnviz.sources.towers import layer_numbers, n_heads

        self._device = choose_device(layer.device)
        with Work() as work:
            self._outline = outline_model(
                flags.model,
                revision=flags.revision,
                trust_remote_code=flags.trust_remote_code,
                generates=flags.generate is not None,
                progress=work.stage,
            )
        network = self._outline.network
        self._answers: list[tuple[int, str]] = []  # of each text: tokens of the prompt, what came
        self.tower = self._choose_tower()
        self._numbers = layer_numbers(network, self.tower)
        self.n_layers = max(self._numbers) + 1
        self.n_heads = n_heads(network, self.tower)

    def _choose_tower(self) -> str:
        from attnviz.sources.towers import choose_tower

        has_keys = bool(self._inputs.keys or self._inputs.key_file or self._flags.generate)
        outline = self._outline
        return choose_tower(outline.network, outline.source, self._flags.attention, has_keys)

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
        from attnviz.sources.from_pretrained import run_model
        from attnviz.sources.gathering import KEEPABLE
        from attnviz.sources.generating import Writing

        loaded = self._load(progress)
        if progress is not None:
            progress("computing attention")
        notices: list[str] = []
        flags, n_done = self._flags, count(1)
        of_all = (
            "tokens written" if flags.generate else f"of {len(self._numbers)} layers are through"
        )

        def advance() -> None:
            if progress is not None:
                progress(f"computing attention, {next(n_done)} {of_all}")

        writing = None
        if flags.generate is not None:
            writing = Writing(flags.generate, flags.temperature, self._layer.seed, advance)
        kept = [name for name in keep if name in KEEPABLE]
        wanted = replace(self._wanted(layers), keep=kept, writing=writing, advance=advance)
        done = run_model(loaded, *_texts(text), wanted, notices.append)
        self._answers = list(zip(done.n_prompt, done.answers, strict=False))
        return Computed(done.run, done.queries, done.keys, (), notices)

    def _load(self, progress: Callable[[str], None] | None) -> LoadedModel:
        """The model with its weights; they are read once."""
        from attnviz.sources.loading import load_model

        if self._loaded is None:
            self._loaded = load_model(
                self._outline, dtype=self._layer.dtype, device=self._device, progress=progress
            )
        return self._loaded

    def _wanted(self, layers: Collection[int] | None) -> Wanted:
        from attnviz.sources.from_pretrained import Wanted

        flags = self._flags
        return Wanted(
            attention=self.tower,
            layers=layers,
            max_len=flags.max_len,
            pad_side=self._inputs.pad_side,
            raw_tokens=flags.raw_tokens,
        )

    def bytes_needed(self, text: TextInput, layers: Collection[int] | None = None) -> int:
        """What whole maps of the layers take. Tokens are counted where characters are many."""
        flags = self._flags
        if flags.generate is not None:
            return 0  # maps that are put together from parts are whole
        n_layers = len(self._numbers) if layers is None else len(set(layers))

        def needed(tokens: int) -> int:
            tokens = min(tokens, flags.max_len or tokens)
            cells = len(text.queries) * tokens**2 * self.n_heads * DTYPES[self._layer.dtype]
            return (n_layers + 4) * cells

        longest = max(len(" ".join(pieces).encode(errors="replace")) for pieces in text.queries)
        if needed(longest) < MANY:
            return needed(longest)
        with Work() as work:
            loaded = self._load(work.stage)
            if loaded.tokenizer is None:
                return 0
            ids = loaded.tokenizer([" ".join(pieces) for pieces in text.queries])["input_ids"]
        return needed(max(map(len, ids)))

    def compute_long(
        self,
        text: TextInput,
        pooling: Pooling,
        each: Each,
        layers: Collection[int] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> ComputedLong:
        from attnviz.sources.model_blocks import run_model_long

        if self._flags.generate is not None:
            raise ConfigError("--generate needs whole maps: leave the flags for long texts out")
        loaded = self._load(progress)
        notices: list[str] = []
        run, queries, keys = run_model_long(
            loaded, *_texts(text), self._wanted(layers), pooling, each, notices.append
        )
        return ComputedLong(run, queries, keys, notices)

    def facts(self, run: Run | LongRun) -> list[Fact]:
        """The model by name, the sizes of its attention, the layers that are kept."""
        from attnviz.sources.run import Run

        if isinstance(run, Run):
            config, kept = run.result.config, run.result.layer_numbers
        else:
            config, kept = run.facts["config"], run.facts["layers"]
        heads = f"{self.n_heads} heads"
        sizes = {axis: size for s in run.steps for axis, size in zip(s.axes, s.shape, strict=True)}
        if "Hkv" in sizes:
            heads += f" on {sizes['Hkv']} key/value heads"
        widths = [f"{axis} {sizes[axis]}" for axis in ("d_k", "d_v") if axis in sizes]
        layers = f"{len(self._numbers)} layers of {heads}"
        facts = [
            ("model", f"{self._outline.name} ({config['model_type']}), its {self.tower}: {layers}"),
            ("", ", ".join([*widths, config["dtype"], "trained"])),
        ]
        if len(kept) < len(self._numbers):
            facts.append(("", f"kept: {noun_for(len(kept), 'layer')} {', '.join(map(str, kept))}"))
        elif run.steps:
            facts.append(("", f"the trace is of layer {kept[0]}, as its code handed it over"))
        for i, (n, answer) in enumerate(self._answers):
            facts.append((f"answer {i}", f"after {plural(n, 'token')}: {visible_text(answer)}"))
        return facts


def _texts(text: TextInput) -> tuple[list[str], list[str] | None]:
    """The texts of the queries, and of the keys."""
    keys = None if text.keys is None else [" ".join(pieces) for pieces in text.keys]
    return [" ".join(pieces) for pieces in text.queries], keys


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
