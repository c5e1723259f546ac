"""Files of named weights: `.safetensors`, whole or in shards, and `.pt` of `torch.save`.

What a file says of its tensors is read at once; the numbers stay on disk until they are asked for.
Nothing is unpickled but tensors, and nothing large is made before it is known to fit.
"""

from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnviz.errors import InputError, printable, why_unreadable
from attnviz.machine import human_bytes, require_memory
from attnviz.sources.torch_files import is_archive

FLOATS = ("float64", "float32", "bfloat16", "float16")

SAFETENSORS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Types of weights by the names that safetensors gives them; others are shown as they are."""

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")

INDEX = ".safetensors.index.json"

IN_A_FOLDER = ("model.safetensors", f"model{INDEX}", "pytorch_model.bin")
"""What transformers calls the weights of a model, the best form first."""

NESTS = ("state_dict", "model_state_dict", "model", "module")
"""Entries of a training checkpoint that hold the weights."""

LARGEST_JSON = 2**26


@dataclass(frozen=True)
class Entry:
    """What is known of a tensor before it is read."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class WeightFile:
    """Named tensors. `config` is the `config.json` beside them, empty where there is none."""

    path: Path
    entries: Mapping[str, Entry]
    read: Callable[[str], Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        return printable(self.path)

    def floats(self, name: str) -> Tensor:
        """A tensor as the file has it. Raises `InputError` where it is not all finite floats."""
        entry = self.entries[name]
        what = f"{self.shown}: {printable(name)}"
        if entry.dtype not in FLOATS:
            kind = printable(entry.dtype)
            raise InputError(f"{what} is {kind}; weights are one of {', '.join(FLOATS)}")
        needed = prod(entry.shape) * getattr(torch, entry.dtype).itemsize
        require_memory(needed, f"{what} of shape {list(entry.shape)}", "give a smaller layer")
        try:
            tensor = self.read(name)
        except OSError as error:
            raise InputError(f"{self.shown}: {why_unreadable(self.path, error)}") from None
        except Exception as error:  # a damaged archive
            raise InputError(f"{what} cannot be read: {_first_line(error)}") from None
        low, high = tensor.aminmax() if tensor.numel() else (tensor.new_zeros(()),) * 2
        if not torch.isfinite(high - low):
            bad = (~torch.isfinite(tensor)).nonzero()
            if len(bad):
                at = bad[0].tolist()
                value = tensor[tuple(at)].item()
                raise InputError(f"{what} has {value} at {at}; weights are finite numbers")
        return tensor


def open_weight_file(path: Path) -> WeightFile:
    """Open a file of weights, or the one in the folder `path`.

    Raises `InputError`, one line, for whatever is not such a file.
    """
    shown = printable(path)
    try:
        if path.is_dir():
            path = _in_folder(path)
            shown = printable(path)
        if path.name.endswith(INDEX):
            entries, read, metadata = _open_shards(path)
        elif path.suffix.lower() not in SUFFIXES:
            kind = printable(path.suffix)
            hint = "; --model runs it" if kind.lower() == ".gguf" else ""
            raise InputError(
                f"has the suffix '{kind}'; weights have one of {', '.join(SUFFIXES)}{hint}"
            )
        elif path.suffix.lower() == ".safetensors":
            entries, read, metadata = _open_safetensors(path)
        else:
            entries, read, metadata = _open_torch(path)
    except InputError as error:
        raise InputError(f"{shown} {error}") from None
    except OSError as error:
        raise InputError(f"{shown}: {why_unreadable(path, error)}") from None
    return WeightFile(path, entries, read, metadata, _config_beside(path))


Opened = tuple[dict[str, Entry], Callable[[str], Tensor], dict[str, str]]


def _in_folder(folder: Path) -> Path:
    for name in IN_A_FOLDER:
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"is a folder without {', '.join(IN_A_FOLDER)}; give a file of weights")


def _open_safetensors(path: Path) -> Opened:
    from safetensors import SafetensorError, safe_open

    path.open("rb").close()  # what cannot be opened says so in the system's words
    try:
        archive: Any = safe_open(path, framework="pt")
        entries = {}
        for name in archive.keys():  # noqa: SIM118 - it is no dict
            part = archive.get_slice(name)
            kind = part.get_dtype()
            entries[name] = Entry(tuple(part.get_shape()), SAFETENSORS.get(kind, kind))
    except SafetensorError as error:
        raise InputError(f"is not a .safetensors file, or is damaged: {printable(error)}") from None
    return entries, archive.get_tensor, archive.metadata() or {}


def _open_shards(path: Path) -> Opened:
    """The tensors of several `.safetensors` files, by the index beside them."""
    found = _read_json(path)
    places = found.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
        raise InputError('is not an index of shards: "weight_map", from names to files, is missing')
    entries, readers = {}, {}
    for file in dict.fromkeys(places.values()):
        if Path(file).name != file:
            raise InputError(f"names a shard outside of its folder: {printable(file)}")
        try:
            inside, read, _ = _open_safetensors(path.parent / file)
        except InputError as error:
            raise InputError(f"names a shard that {error}: {printable(file)}") from None
        for name, entry in inside.items():
            if places.get(name) == file:
                entries[name], readers[name] = entry, read
    return entries, lambda name: readers[name](name), {}


def _open_torch(path: Path) -> Opened:
    is_zip = is_archive(path)
    size = path.stat().st_size
    if not is_zip:  # the form of before 2020, which is read whole
        require_memory(2 * size, f"is a file of {human_bytes(size)}, which", "save it again")
    try:
        with warnings.catch_warnings(action="ignore"):  # of a pickle in a form that torch has not
            found = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        blocked = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f" ({printable(blocked[1], 60)})" if blocked else ""
        raise InputError(
            f"holds Python objects beside tensors{what}, which are never loaded; "
            "save the weights alone: torch.save(layer.state_dict(), FILE)"
        ) from None
    except (OSError, MemoryError):
        raise
    except Exception as error:  # whatever a damaged file brings about
        reason = f": {_first_line(error)}" if isinstance(error, RuntimeError) else ""
        raise InputError(f"is not a file of torch.save, or is damaged{reason}") from None
    tensors = _tensors(found)
    entries = {
        name: Entry(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    }
    return entries, tensors.__getitem__, {}


def _tensors(found: object) -> dict[str, Tensor]:
    """The tensors of a state dict, or of the one that a checkpoint holds."""
    for _ in range(3):
        if isinstance(found, Mapping):
            inner = next((found[n] for n in NESTS if isinstance(found.get(n), Mapping)), None)
            if inner is not None:
                found = inner
    if not isinstance(found, Mapping):
        kind = "a tensor" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise InputError(f"holds {kind}; a state dict is expected, tensors by their names")
    tensors = {
        name: tensor.detach()
        for name, tensor in found.items()
        if isinstance(name, str) and isinstance(tensor, Tensor)
    }
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise InputError(f"holds {printable(name)}, which is not a dense tensor of numbers")
    return tensors


def _config_beside(path: Path) -> dict[str, Any]:
    """What a model's `config.json` says; `{}` where there is none that can be read."""
    try:
        return _read_json(path.parent / "config.json")
    except (InputError, OSError):
        return {}


def _read_json(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        data = stream.read(LARGEST_JSON + 1)
    if len(data) > LARGEST_JSON:
        raise InputError(f"has over {LARGEST_JSON >> 20} MiB")
    try:
        found = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {printable(error)}") from None
    if not isinstance(found, dict):
        raise InputError("is not a JSON object")
    return found


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return printable(lines[0] if lines else type(error).__name__)
