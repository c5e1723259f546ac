"""Attention of a pretrained model on pictures and on sound: patches and moments are its tokens."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.errors import InputError, printable
from attnviz.machine import require_memory
from attnviz.result import Attention, from_batches
from attnviz.sources.capturing import Call, capture
from attnviz.sources.encoding import Say
from attnviz.sources.from_pretrained import ModelRun
from attnviz.sources.gathering import maps, mask_names, remarks
from attnviz.sources.generating import side_by_side
from attnviz.sources.loading import LoadedModel, blaming, load_model, quiet
from attnviz.sources.media import read_picture, read_wave, resampled
from attnviz.sources.run import Run
from attnviz.sources.towers import choose_layers, choose_tower, n_heads, tower_names
from attnviz.tokens import Tokens, make_batch

Pixels = npt.NDArray[np.uint8]

SENSES = {"image": ("vision", "encoder"), "audio": ("audio", "encoder")}
"""For each kind of file, the towers that look at it, the one that is meant first."""


@dataclass(frozen=True, eq=False)
class View:
    """A picture as the model saw it: resized and cut, `[height, width, 3]`, in a grid of patches.

    Tokens of the first `n_before` places are no patches; the others go row by row.
    """

    pixels: Pixels
    rows: int
    columns: int
    n_before: int


@dataclass(frozen=True)
class MediaRun:
    """A run on files, a sequence each; `views` are there for pictures."""

    done: ModelRun
    views: tuple[View, ...] = ()


def from_images(
    model: LoadedModel | str,
    files: Sequence[Path | str],
    *,
    attention: str | None = None,
    layers: Collection[int] | None = None,
    say: Say = lambda _: None,
) -> Attention:
    """What a vision transformer (ViT, DeiT, DINOv2, CLIP, SigLIP …) attends to in pictures.

    Each file is a sequence. Its tokens are `[CLS]` and others of the kind where the model has
    them, then the patches, `r0c0` the upper left one and `r3c5` that of row 3, column 5.

    Raises `InputError` in one line for files that are no pictures, for models that look at no
    pictures, and for those whose tokens are not the patches of one grid (Swin's windows, say).
    """
    loaded = model if isinstance(model, LoadedModel) else load_model(model)
    return run_media(loaded, "image", files, attention, layers, say).done.run.result


def from_audio(
    model: LoadedModel | str,
    files: Sequence[Path | str],
    *,
    attention: str | None = None,
    layers: Collection[int] | None = None,
    say: Say = lambda _: None,
) -> Attention:
    """What an audio encoder (Whisper, wav2vec 2.0, HuBERT …) attends to in `.wav` files.

    Each file is a sequence, brought to the model's own sampling rate. Its tokens are moments,
    named by the second at which they begin: `0.00s`, `0.02s`, …

    Raises `InputError` in one line for files that are no sound, and models that do not hear.
    """
    loaded = model if isinstance(model, LoadedModel) else load_model(model)
    return run_media(loaded, "audio", files, attention, layers, say).done.run.result


def media_tower(network: Any, shown: str, kind: str, wanted: str | None) -> str:
    """The tower that looks at files of this kind. Raises `ConfigError` that names the towers."""
    if wanted is None:
        names = tower_names(network)
        wanted = next((tower for tower in SENSES[kind] if tower in names), None)
    return choose_tower(network, shown, wanted, False)


def run_media(
    loaded: LoadedModel,
    kind: str,
    files: Sequence[Path | str],
    attention: str | None = None,
    layers: Collection[int] | None = None,
    say: Say = lambda _: None,
) -> MediaRun:
    """What `from_images` and `from_audio` do, with the pictures beside the run.

    Each file runs by itself, so that nothing is padded.
    """
    tower = media_tower(loaded.network, loaded.source, kind, attention)
    numbers = sorted(set(choose_layers(loaded.network, tower, layers)))
    tokens, seen, views = [], [], []
    for file in files:
        given, about = _picture(loaded, file) if kind == "image" else _sound(loaded, file, say)
        calls = _calls(loaded, tower, numbers, given, len(files))
        names, view = about(calls[0].weights)
        tokens.append(names)
        seen.append([_with_mask(call) for call in calls])
        views += [] if view is None else [view]
    batch = make_batch(tokens)
    calls = side_by_side(seen)
    result = from_batches(
        *maps(calls),
        batch,
        batch,
        masks=mask_names(calls, batch.valid, batch.valid, tower),
        config={
            "model": loaded.name,
            "model_type": loaded.config.model_type,
            "attention": tower,
            "dtype": str(calls[0].weights.dtype).removeprefix("torch."),
            kind: [printable(Path(file).name) for file in files],
            **({"grid": [views[0].rows, views[0].columns]} if views else {}),
        },
        source=f"{loaded.name}, {tower}",
        layers=tuple(call.layer for call in calls),
    )
    for remark in remarks(result):
        say(remark)
    return MediaRun(ModelRun(Run(result, tuple(calls[0].steps)), batch, None), tuple(views))


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

    def about(weights: Tensor) -> tuple[Tokens, View]:
        return _patches(loaded, values, weights)

    return {"pixel_values": values}, about


def _patches(loaded: LoadedModel, values: Tensor, weights: Tensor) -> tuple[Tokens, View]:
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
    return names, View(pixels, rows, columns, n_before)


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
