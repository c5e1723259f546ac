"""Files of arrays: `.npy`, `.npz`, `.safetensors`, `.pt`. Of pickles, only tensors are loaded.

Files are mapped where their format allows it: a number is read when it is used.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable
from attnviz.machine import human_bytes, require_memory
from attnviz.npy import (
    BFLOAT16,
    map_npy,
    names_in_npz,
    names_in_safetensors,
    read_npz,
    read_safetensors,
)
from attnviz.sources.torch_files import is_archive

Array = npt.NDArray[Any]

Arrays = Array | list[Array]
"""One array, or one for each layer."""

EAGER = 'transformers returns attention with attn_implementation="eager" only'

MOST_ARRAYS = 10_000
MOST_NAMES = 8
"""Names of arrays that a message lists."""


def read_arrays(path: Path, wanted: str | None = None) -> tuple[Arrays, str]:
    """The attention in a file, and what it is called there ("" where it has no name).

    `wanted` is the name of one among several: an array's, or that of a list of layers (arrays
    `name.0`, `name.1`, … are one); `cross` finds `cross_attentions`. Raises `InputError` whose text
    follows the path, `OSError` as it comes.
    """
    return READERS[path.suffix.lower()](path, wanted)


def _read_npy(path: Path, wanted: str | None) -> tuple[Arrays, str]:
    if wanted is not None:
        raise InputError("holds one array, without a name; --attention is for files of several")
    return map_npy(path), ""


def _read_npz(path: Path, wanted: str | None) -> tuple[Arrays, str]:
    groups = _layers_together(names_in_npz(path, MOST_ARRAYS))
    name = _chosen(groups, wanted)
    arrays = read_npz(path, MOST_ARRAYS, groups[name])
    layers = [arrays[member] for member in groups[name]]
    return (layers if len(layers) > 1 else layers[0]), name


def _read_safetensors(path: Path, wanted: str | None) -> tuple[Arrays, str]:
    groups = _layers_together(names_in_safetensors(path)[0])
    name = _chosen(groups, wanted)
    tensors = read_safetensors(path, groups[name])
    layers = [tensors[member] for member in groups[name]]
    return (layers if len(layers) > 1 else layers[0]), name


def _read_torch(path: Path, wanted: str | None) -> tuple[Arrays, str]:
    found = _load_torch(path)
    name = ""
    while isinstance(found, Mapping):
        groups = _named_attention(found)
        name = _chosen(groups, wanted)
        members = groups[name]
        found = found[members[0]] if len(members) == 1 else [found[member] for member in members]
        wanted = None
    if wanted is not None:
        raise InputError("holds one attention, without a name; --attention is for files of several")
    if isinstance(found, list | tuple):
        if not found:
            raise InputError(f"is no attention: it is an empty list; {EAGER}")
        layers = [_from_torch(tensor, f"layer {i} of it") for i, tensor in enumerate(found)]
        return layers, name
    return _from_torch(found, "it"), name


READERS: dict[str, Callable[[Path, str | None], tuple[Arrays, str]]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    ".pt": _read_torch,
    ".pth": _read_torch,
}
"""Formats of bare arrays by suffix."""


def is_saved_run(path: Path) -> bool:
    """Whether a file is a saved run, or claims to be one, and no bare array.

    Raises `InputError` and `OSError` as `read_arrays` does.
    """
    suffix = path.suffix.lower()
    if suffix == ".npz":
        names = set(names_in_npz(path, MOST_ARRAYS))
        return "metadata" in names and not names.isdisjoint(("attention", "mean"))
    if suffix == ".safetensors":
        return "attnviz" in names_in_safetensors(path)[1]
    return suffix == ".json"


# ── one among several ────────────────────────────────────────────────────────────────────────


def _layers_together(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of arrays by what they are together: `attn.0`, `attn.1`, … are layers of `attn`."""
    numbered: dict[str, dict[int, str]] = {}
    for name in names:
        stem, number = re.fullmatch(r"(.*?)[._/]?(\d{1,6})?", name, re.DOTALL).groups()  # type: ignore[union-attr]
        numbered.setdefault(stem if number else name, {})[int(number or 0)] = name
    groups: dict[str, list[str]] = {}
    for stem, members in numbered.items():
        if len(members) > 1 and sorted(members) == list(range(len(members))):
            groups[stem] = [members[i] for i in range(len(members))]
        else:
            groups.update({name: [name] for name in members.values()})
    return groups


def _chosen(groups: Mapping[str, list[str]], wanted: str | None) -> str:
    """The name that `wanted` means: itself, or `wanted_attentions`. None serves where there is one
    name, or one that says attention."""
    if not groups:
        raise InputError("holds no array")
    known = ", ".join(printable(name, 40) for name in list(groups)[:MOST_NAMES])
    known += f" and {len(groups) - MOST_NAMES} more" if len(groups) > MOST_NAMES else ""
    if wanted is None:
        likely = [name for name in groups if re.search("attention|attn", name, re.IGNORECASE)]
        likely = likely if len(groups) > 1 else list(groups)
        if len(likely) != 1:
            raise InputError(f"holds {known}; --attention NAME says which")
        return likely[0]
    for name in (wanted, f"{wanted}_attentions", f"{wanted}_attention"):
        if name in groups:
            return name
    raise InputError(f"has no attention '{printable(wanted)}'; it holds {known}")


# ── torch ────────────────────────────────────────────────────────────────────────────────────


def _load_torch(path: Path) -> Any:
    """What `torch.save` wrote, tensors and plain containers only, mapped where it is a zip."""
    import pickle

    import torch

    is_zip = is_archive(path)
    if not is_zip:  # the format before 2020
        size = path.stat().st_size
        require_memory(2 * size, f"is a file of {human_bytes(size)}, which", "save it again")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of pickles that it then refuses
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        blocked = re.search(r"GLOBAL ([\w.]+)", str(error))
        if blocked is None:
            raise InputError("is not a file of torch.save, or is damaged") from None
        raise InputError(
            f"holds pickled Python objects ({printable(blocked[1], 60)}), which are never loaded; "
            "save tensors: torch.save(tuple(outputs.attentions), FILE)"
        ) from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever a damaged archive brings about
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"is not a file of torch.save, or is damaged: {printable(first[0])}"
        ) from None


def _named_attention(found: Mapping[Any, Any]) -> dict[str, list[str]]:
    """The entries of a dict that can be attention."""
    import torch

    def fits(value: object) -> bool:
        if isinstance(value, list | tuple):
            return all(isinstance(item, torch.Tensor | None) for item in value)
        return isinstance(value, torch.Tensor | Mapping)

    return _layers_together(
        key for key, value in found.items() if isinstance(key, str) and fits(value)
    )


def _from_torch(tensor: Any, what: str) -> Array:
    """A tensor as an array over the same memory."""
    import torch

    if isinstance(tensor, list | tuple):
        raise InputError(
            "holds lists of lists, as `generate` returns them, step by step; "
            "save those of one forward pass"
        )
    if tensor is None:
        raise InputError(f"is no attention: {what} is None; {EAGER}")
    if not isinstance(tensor, torch.Tensor):
        kind = printable(type(tensor).__name__)
        raise InputError(f"is no attention: {what} is a {kind}; a tensor is expected")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise InputError(f"is no attention: {what} is no dense tensor of numbers")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InputError(
            f"is no attention: {what} has shape {printable(list(tensor.shape))} and fewer numbers, "
            "which it repeats; save tensor.contiguous()"
        )
    tensor = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        return np.asarray(tensor.view(torch.int16)).view(BFLOAT16)
    try:
        return np.asarray(tensor)
    except (TypeError, RuntimeError):  # float8 and the like
        raise InputError(f"is no attention: {what} is {printable(tensor.dtype)}") from None
