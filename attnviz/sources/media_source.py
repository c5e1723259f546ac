"""A pretrained model on pictures or sound as a source: patches and moments are its tokens.

Each file is a sequence of its own and runs by itself, so that nothing is padded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.errors import ConfigError, InputError, printable
from attnviz.machine import require_memory
from attnviz.pipeline import Collector, Line, Pass, Progress, Tokenized
from attnviz.sources.call_tensors import mask_names, review
from attnviz.sources.capturing import Call, capture
from attnviz.sources.generating import side_by_side
from attnviz.sources.loading import LoadedModel, blaming, quiet
from attnviz.sources.media import read_picture, read_wave, resampled
from attnviz.sources.model_options import ModelOptions
from attnviz.sources.model_source import HandOver, ModelSource
from attnviz.sources.own_layers import TokenizedBatch
from attnviz.sources.towers import choose_layers, n_heads, tower_names
from attnviz.tokens import Batch, Texts, Tokens, make_batch

Pixels = npt.NDArray[np.uint8]

Say = Callable[[str], None]
"""Called with a note for the user."""

SENSES = {"image": ("vision", "encoder"), "audio": ("audio", "encoder")}
"""For each kind of file, the towers that take it, the usual one first."""


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """A picture as the model saw it: resized and cut, `[height, width, 3]`, in a grid of patches.

    Tokens of the first `n_before` places are no patches; the others go row by row.
    """

    pixels: Pixels
    rows: int
    columns: int
    n_before: int


class MediaSource(ModelSource):
    """A model that is given files in place of text.

    Vision transformers (ViT, DeiT, DINOv2, CLIP, SigLIP …) have `[CLS]` and others of the kind
    where the model has them, then the patches, `r0c0` the upper left one and `r3c5` that of row 3,
    column 5. Audio encoders (Whisper, wav2vec 2.0, HuBERT …) have moments, named by the second at
    which they begin: `0.00s`, `0.02s`, …

    Raises `InputError` in one line for files of another kind, for models that do not take them, and
    for those whose tokens are not the patches of one grid (Swin's windows, say).
    """

    needs_text = False

    def __init__(
        self,
        options: ModelOptions,
        kind: str,
        files: Sequence[Path | str],
        progress: Progress | None = None,
    ) -> None:
        self._kind, self._files = kind, [Path(file) for file in files]
        super().__init__(options, progress)

    @classmethod
    def of_files(
        cls, loaded: LoadedModel, options: ModelOptions, kind: str, files: Sequence[Path | str]
    ) -> MediaSource:
        """A source of files for a model that has been loaded already."""
        source = cls.__new__(cls)
        source._kind, source._files = kind, [Path(file) for file in files]
        source._adopt(loaded, options)
        return source

    def _choose_tower(self) -> str:
        if self.options.attention is None:
            names = tower_names(self._outline.network)
            wanted = next((tower for tower in SENSES[self._kind] if tower in names), None)
            self.options = replace(self.options, attention=wanted)
        return super()._choose_tower()

    def tokens(self, texts: Texts) -> TokenizedBatch:  # type: ignore[override]  # noqa: ARG002
        """The files by name; how many tokens each has is known when the model has seen it."""
        return TokenizedBatch(make_batch([(printable(file.name),) for file in self._files]))

    def bytes_needed(
        self,
        tokens: Tokenized,  # noqa: ARG002
        layers: Collection[int] | None = None,  # noqa: ARG002
        by_rows: bool = False,  # noqa: ARG002
    ) -> int:
        """0: the number of tokens is known when the model has seen a file; it is asked then."""
        return 0

    def can_stream(self, tokens: Tokenized) -> bool:  # noqa: ARG002
        return False

    def run(
        self,
        tokens: Tokenized,  # noqa: ARG002 - names of the files
        collector: Collector,
        layers: Collection[int] | None = None,
        progress: Progress | None = None,
    ) -> Pass:
        if collector.by_rows:
            raise ConfigError(
                f"--{self._kind} needs whole maps: leave the flags for long texts out"
            )
        if collector.keep:
            raise ConfigError(f"--keep and --{self._kind}: nothing but weights is kept of files")
        loaded = self.loaded(progress)
        if progress is not None:
            progress("computing attention")
        numbers = sorted(set(choose_layers(loaded.network, self.tower, layers)))
        notes: list[str] = []
        names, seen, views = [], [], []
        for file in self._files:
            if self._kind == "image":
                given, describe = _picture(loaded, file)
            else:
                given, describe = _sound(loaded, file, notes.append)
            calls = _calls(loaded, self.tower, numbers, given, len(self._files))
            tokens_of_file, view = describe(calls[0].weights)
            names.append(tokens_of_file)
            seen.append([_with_mask(call) for call in calls])
            views += [] if view is None else [view]
        batch = make_batch(names)
        hand_over = HandOver(collector, ())
        for call in side_by_side(seen):
            hand_over(call)
        return Pass(
            batch,
            None,
            partial(self._about_files, hand_over, batch, views),
            steps=hand_over.steps,
            notes=notes,
            lines=self._lines(batch, views),
            views=views,
            review=partial(review, dtype=hand_over.dtype),
        )

    def _about_files(
        self, hand_over: HandOver, batch: Batch, views: Sequence[PatchGrid]
    ) -> dict[str, Any]:
        about = self._about(hand_over.dtype)
        about["config"][self._kind] = [printable(file.name) for file in self._files]
        if views:
            about["config"]["grid"] = [views[0].rows, views[0].columns]
        return {
            **about,
            "masks": mask_names(hand_over.masks, batch.valid, batch.valid, self.tower),
            "layers": tuple(sorted(hand_over.seen)),
        }

    def _lines(self, batch: Batch, views: Sequence[PatchGrid]) -> list[Line]:
        """What each file became: `photo.png: 14 × 14 patches, after [CLS]`."""
        lines = []
        for i, (file, tokens) in enumerate(zip(self._files, batch.tokens, strict=True)):
            text = f"{len(tokens)} moments, {tokens[0]} to {tokens[-1]}"
            if views:
                view = views[i]
                before = f", after {', '.join(tokens[: view.n_before])}" if view.n_before else ""
                text = f"{view.rows} × {view.columns} patches{before}"
            lines.append((f"{self._kind} {i}", f"{printable(file.name)}: {text}"))
        return lines


def _calls(
    loaded: LoadedModel, tower: str, layers: Sequence[int], given: dict[str, Tensor], batch: int
) -> list[Call]:
    """One forward pass of the part of the model that takes what is `given`."""
    network = loaded.network
    target, takes = _part(network, next(iter(given)))
    if target is None:
        raise InputError(f"{loaded.source} takes no {next(iter(given))}: it is {takes}")
    given = {
        name: tensor.to(loaded.device, getattr(torch, str(network.dtype).split(".")[-1]))
        for name, tensor in given.items()
    }
    only = [tower] if len(tower_names(network)) > 1 else None
    heads = n_heads(network, tower)
    counted: list[Call] = []

    def count(call: Call) -> None:
        if not counted:  # the first layer's map tells what all of them will take
            cells = call.weights.shape[0] * call.weights.shape[2] * call.weights.shape[3]
            require_memory(
                (2 * len(layers) * batch + 4) * cells * heads * 4,
                f"attention for {batch} × {len(layers)} layers × {heads} heads × "
                f"{call.weights.shape[2]} tokens",
                "keep fewer layers with --layers",
            )
        counted.append(call)

    with (
        torch.no_grad(),
        capture(network, layers, towers=only, trace=True, each=count),
        blaming(loaded, "this file"),
    ):
        target(**given)
    # a head that pools looks from one query of its own: it belongs to no layer
    calls = [call for call in counted if call.weights.shape[2] == call.weights.shape[3]]
    calls.sort(key=lambda call: call.layer)
    if not calls:
        raise InputError(f"{loaded.source}: its {tower} did not look at the file")
    return calls


def _part(network: Any, name: str) -> tuple[Any, str]:
    """What of a model takes an input of this name; None, and what it takes instead."""
    if name == "pixel_values" and hasattr(network, "get_image_features"):
        return network.get_image_features, ""
    both = getattr(network.config, "is_encoder_decoder", False)
    target = network.get_encoder() if both else network
    takes = list(inspect.signature(target.forward).parameters)
    if name in takes:
        return target, ""
    kind = type(network).__name__
    return None, f"a {kind}, which takes {takes[0]}"


def _with_mask(call: Call) -> Call:
    """`call` with a mask in any case."""
    batch, _, queries, keys = call.weights.shape
    allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool) if call.allowed is None else call.allowed
    return replace(call, allowed=allowed.expand(batch, allowed.shape[1], queries, keys))


# ── pictures ─────────────────────────────────────────────────────────────────────────────────


def _picture(loaded: LoadedModel, file: Path | str) -> tuple[dict[str, Tensor], Any]:
    """The input that a picture becomes, and what names the tokens of its maps."""
    picture = read_picture(file)
    processor = loaded.processor
    if processor is None or not hasattr(processor, "image_mean"):
        raise InputError(
            f"{loaded.source} has no image processor that could be read (preprocessor_config.json)"
        )
    try:
        with quiet():
            values = processor(images=picture, return_tensors="pt")["pixel_values"]
    except Exception as error:  # each processor has errors of its own
        raise InputError(
            f"the image processor of {loaded.source} fails: {printable(error)}"
        ) from None
    if values.ndim != 4 or values.shape[1] != 3:
        raise InputError(
            f"the image processor of {loaded.source} gives {list(values.shape)}; "
            "[1, 3, height, width] is expected"
        )

    def about(weights: Tensor) -> tuple[Tokens, PatchGrid]:
        return _patches(loaded, values, weights)

    return {"pixel_values": values}, about


def _patches(loaded: LoadedModel, values: Tensor, weights: Tensor) -> tuple[Tokens, PatchGrid]:
    """Names of the tokens that a map `[B H T T]` is between, and the picture under them."""
    patch_h, patch_w = _patch_size(loaded)
    height, width = values.shape[-2:]
    rows, columns = height // patch_h, width // patch_w
    n_before = weights.shape[3] - rows * columns
    if len(weights) != 1 or not 0 <= n_before <= 64:
        raise InputError(
            f"the maps of {loaded.source} have [B H Tq Tk] = {list(weights.shape)}: its tokens are "
            f"not the {rows} × {columns} patches of a picture (windows, say, that look at "
            "themselves alone), and no picture can be laid under them"
        )
    patches = [f"r{row}c{column}" for row in range(rows) for column in range(columns)]
    names = (*_names_before(n_before, loaded.config.model_type), *patches)
    pixels = _as_seen(loaded.processor, values)[: rows * patch_h, : columns * patch_w]
    return names, PatchGrid(pixels, rows, columns, n_before)


def _patch_size(loaded: LoadedModel) -> tuple[int, int]:
    config = loaded.config
    for owner in (getattr(config, "vision_config", None), getattr(config, "encoder", None), config):
        size = getattr(owner, "patch_size", None)
        if isinstance(size, int):
            return size, size
        if isinstance(size, (list, tuple)) and len(size) == 2:
            return int(size[0]), int(size[1])
    raise InputError(f"{loaded.source} does not say how large its patches are")


def _names_before(n: int, model_type: str) -> Tokens:
    """Tokens that stand before the patches: the class's, DeiT's teacher's, registers."""
    if not n:
        return ()
    if model_type == "deit" and n == 2:
        return ("[CLS]", "[DISTILL]")
    return ("[CLS]", *(f"[REG{i}]" for i in range(1, n)))


def _as_seen(processor: Any, values: Tensor) -> Pixels:
    """The pixels that a processor has made, before it normalized them."""
    pixels = values[0].permute(1, 2, 0).double().numpy()  # height width 3
    if getattr(processor, "do_normalize", True):
        pixels = pixels * np.array(processor.image_std) + np.array(processor.image_mean)
    if getattr(processor, "do_rescale", True):
        pixels = pixels * 255
    seen: Pixels = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    return seen


# ── sound ────────────────────────────────────────────────────────────────────────────────────


def _sound(loaded: LoadedModel, file: Path | str, say: Say) -> tuple[dict[str, Tensor], Any]:
    """The input that a sound becomes, and what names the tokens of its maps."""
    samples, rate = read_wave(file)
    extractor = loaded.processor
    wanted = getattr(extractor, "sampling_rate", None)
    if wanted is None:
        raise InputError(
            f"{loaded.source} has no feature extractor that could be read "
            "(preprocessor_config.json)"
        )
    samples = resampled(samples, rate, wanted)
    try:
        with quiet():
            made = extractor(samples, sampling_rate=wanted, return_tensors="pt")
    except Exception as error:
        raise InputError(
            f"the feature extractor of {loaded.source} fails: {printable(error)}"
        ) from None
    name, values = next((name, made[name]) for name in made)
    if name == "input_values" and values.ndim != 2:
        raise InputError(
            f"{loaded.source} hears patches of a spectrogram, not one moment after the other; "
            "Whisper and wav2vec 2.0 hear moments"
        )
    seconds = len(samples) / wanted
    padded = getattr(extractor, "n_samples", None) if name == "input_features" else None
    if padded is not None:
        whole = padded / wanted
        if seconds > whole:
            say(f"{printable(file)} has {seconds:.1f} s, of which the model hears {whole:.1f} s")
        else:
            say(f"the model hears {whole:.1f} s in any case; after {seconds:.1f} s it is silence")
        seconds = whole
    stride = getattr(loaded.config, "inputs_to_logits_ratio", None)

    def about(weights: Tensor) -> tuple[Tokens, None]:
        keys = weights.shape[3]
        step = seconds / keys if stride is None else stride / wanted
        digits = 2 if step >= 0.01 else 3
        return tuple(f"{i * step:.{digits}f}s" for i in range(keys)), None

    return {name: values}, about
