"""Attention in a file: `.npz`, `.safetensors` or `.json`, whatever its cells are.

The format has a version. Version 2 has the same names in `.npz` and `.safetensors`:

- `attention`: `[L B H Pq Pk]`, float: weights, or the mean of the weights of each pixel; 0 where
  forbidden. Rows of padding hold what the layer computed for them, and mean nothing: `lengths` and
  `pad_side` tell which rows are real.
- `allowed`: `[L B 1|H Pq Pk]`: bool, True where a query may look; of pixels int64, how many of
  their weights are allowed.
- `lengths`, `key_lengths`: `[B]`, int64; real tokens in each sequence.
- of pixels, `largest`: float32 `[L B H Pq Pk]`, the largest of their weights.
- where rows have statistics, `row.entropy`, `row.largest`, …: `[L B H Tq]`, by the names of
  `ROW_STATISTICS`; `top_keys` int64 and `top_weights` float32 `[L B H Tq n]`.
- tensors kept on request, under their tap names, the layer axis first: `q` `[L B H Tq d_k]`, `k`
  `[L B H Tk d_k]`, `v` `[L B H Tk d_v]`, `scores` `[L B H Tq Tk]` (before masking), `context`
  `[L B H Tq d_v]`, `output` `[L B Tq d_model]`. H of `k` and `v` is Hkv where heads share them.
  Beside the `q` and `k` of pixels, what weights are computed from: `first_key` and `end_key`
  `[L B Tq]`, the span of keys that each query may see; `scale` and `softcap` `[L]`, NaN for none;
  `slopes` and `sinks` `[L H]` where there are any.
- metadata: one JSON object; in `.npz` the string array `metadata`, in `.safetensors` the header
  entry `attnviz`. It has `format` ("attnviz.run"), `version`, `query_tokens` and `key_tokens`
  `[B][T]` with `[PAD]` where padded, `pad_side`, `config`, `masks`, `source`, `trained`, `attnviz`;
  `layers`, their numbers in the model, where these are not 0, 1, 2, …; `n_prompt` and `notes` where
  there are any; `cells` (queries and keys of a pixel) and `near`, of pixels and row statistics.

`.json` is that object with the arrays in it, as nested lists.

Version 1 is read as well: whole maps ("attnviz.run") as they are here, and pooled ones
("attnviz.pooled"), whose `mean` is `attention` here, whose kept tensors start with `kept.`, and
whose `scale` and `softcap` stand in the metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from attnviz.errors import InputError, printable, why_unreadable
from attnviz.machine import human_bytes, require_memory
from attnviz.npy import MAPPED_FROM, names_in_safetensors, read_npz, read_safetensors
from attnviz.result import KEPT_AXES, ROW_STATISTICS, Array, Attention, Pixels, RowStatistics

FORMAT, VERSION = "attnviz.run", 2

POOLED_FORMAT = "attnviz.pooled"
"""What version 1 called a saved run whose cells are pixels."""

ROW_PREFIX = "row."

ROWS = tuple(ROW_PREFIX + name for name in ROW_STATISTICS)

NEEDED = ("attention", "allowed", "lengths", "key_lengths")
"""Arrays that every saved run has."""

EXACT = {*NEEDED[1:], "top_keys", "row.largest_key", "first_key", "end_key"}
"""Arrays of whole numbers, or of True and False."""

NAMES = (*NEEDED, "largest", "top_keys", "top_weights", *ROWS, *KEPT_AXES)
"""All arrays that a saved run may have."""

MOST_ARRAYS = 40
"""More than any saved run holds."""


# ── writing ──────────────────────────────────────────────────────────────────────────────────


def save(result: Attention, path: Path, suffix: str | None = None) -> None:
    """Write `result` in the format of its suffix, or of the one that is given instead; the same
    result gives the same bytes."""
    WRITERS[suffix or path.suffix.lower()](result, path)


def _save_npz(result: Attention, path: Path) -> None:
    """Uncompressed, array by array."""
    arrays = {"metadata": np.array(_compact(metadata_of(result))), **arrays_of(result)}
    _make_way(path)
    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def _save_safetensors(result: Attention, path: Path) -> None:
    from safetensors.numpy import save as as_bytes

    arrays = arrays_of(result)
    size = sum(array.nbytes for array in arrays.values())
    what = f"a .safetensors file of {human_bytes(size)}"
    require_memory(3 * size, what, "save the run as .npz, which is written in parts")
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    data = as_bytes(arrays, metadata={"attnviz": _compact(metadata_of(result))})
    _make_way(path)
    path.write_bytes(data)


def _save_json(result: Attention, path: Path) -> None:
    """One JSON object, row by row.

    A float has the shortest digits that give the same number of its dtype back; NaN and infinity
    are null.
    """
    _make_way(path)
    with path.open("w", encoding="ascii", newline="\n") as stream:
        stream.write(_compact(metadata_of(result))[:-1])
        for name, array in arrays_of(result).items():
            stream.write(f',"{name}":')
            _write_array(array, stream)
        stream.write("}\n")


WRITERS = {".npz": _save_npz, ".safetensors": _save_safetensors, ".json": _save_json}


def metadata_of(result: Attention) -> dict[str, Any]:
    """The JSON object of the saved format, without the arrays."""
    from attnviz import __version__

    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "attnviz": __version__,
        "source": result.source,
        "trained": result.trained,
        "config": dict(result.config),
        "masks": list(result.masks),
        "pad_side": result.pad_side,
        "query_tokens": [list(row) for row in result.query_tokens],
        "key_tokens": [list(row) for row in result.key_tokens],
    }
    for name in ("layers", "n_prompt", "notes"):
        if values := getattr(result, name):
            metadata[name] = list(values)
    if result.pixels is not None:
        metadata["cells"] = list(result.cells)
    if result.rows is not None:
        metadata["near"] = result.rows.near
    return metadata


def arrays_of(result: Attention) -> dict[str, Array]:
    """The arrays of the saved format by name."""
    arrays: dict[str, Array] = {
        "attention": result.attention,
        "allowed": result.counts,
        "lengths": result.lengths,
        "key_lengths": result.key_lengths,
    }
    if result.pixels is not None:
        arrays["largest"] = result.pixels.largest
    if rows := result.rows:
        arrays |= {ROW_PREFIX + name: array for name, array in rows.statistics.items()}
        arrays |= {"top_keys": rows.top_keys, "top_weights": rows.top_weights}
    return arrays | dict(result.kept)


def _make_way(path: Path) -> None:
    """Take a large file at `path` away before it is written anew: a run that was loaded from it is
    mapped, and would lose its numbers if they were overwritten in place."""
    place = path.resolve()
    if place.is_file() and place.stat().st_size >= MAPPED_FROM:
        place.unlink()


def _compact(value: object) -> str:
    """One line of ASCII."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _write_array(array: Array, stream: TextIO) -> None:
    """Nested lists; a row is one piece of text."""
    if array.ndim > 1:
        stream.write("[")
        for i, part in enumerate(array):
            stream.write("," if i else "")
            _write_array(part, stream)
        stream.write("]")
    elif array.dtype.kind == "f":
        finite = np.isfinite(array).all()
        cells = [str(x) if finite or np.isfinite(x) else "null" for x in array]
        stream.write(f"[{','.join(cells)}]")
    else:
        stream.write(_compact(array.tolist()))


# ── reading ──────────────────────────────────────────────────────────────────────────────────


def load(path: Path | str) -> Attention:
    """Read a saved run by its suffix: `.npz`, `.safetensors` or `.json`. No pickle is loaded.

    Arrays of a large file are mapped, read-only: numbers are read when they are looked at. Raises
    `InputError` for a file that is not a saved run, or of a newer version. null in a JSON file
    comes back as NaN.
    """
    path = Path(path)
    shown = printable(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"{shown} has the suffix '{printable(path.suffix)}'; a saved run has one of "
            f"{', '.join(READERS)}"
        )
    try:
        fields = _fields(*reader(path))
    except InputError as error:
        raise InputError(f"{shown} {error}") from None
    except OSError as error:
        raise InputError(f"{shown}: {why_unreadable(path, error)}") from None
    except Exception as error:  # each format has errors of its own; what they mean is the same
        raise InputError(f"{shown} is not a saved run: {printable(error)}") from None
    try:
        return Attention(**fields)
    except InputError as error:
        raise InputError(f"{shown}: {error}") from None


def _load_npz(path: Path) -> tuple[dict[str, Array], object]:
    arrays = read_npz(path, MOST_ARRAYS)
    metadata = arrays.pop("metadata", None)
    if metadata is None or metadata.dtype.kind != "U" or metadata.ndim:
        raise InputError("is not a saved run: it has no metadata")
    return arrays, json.loads(str(metadata))


def _load_safetensors(path: Path) -> tuple[dict[str, Array], object]:
    metadata = names_in_safetensors(path)[1].get("attnviz")
    if metadata is None:
        raise InputError("is not a saved run: it has no metadata")
    return read_safetensors(path), json.loads(metadata)


def _load_json(path: Path) -> tuple[dict[str, Array], object]:
    # a number of two or three digits becomes a Python object of 32 bytes
    size = path.stat().st_size
    require_memory(12 * size, f"is JSON of {human_bytes(size)}, which", "save the run as .npz")
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        return {}, document
    arrays = {}
    for name in NAMES:
        if name in document:
            kind = _json_dtype(name, document)
            try:
                arrays[name] = np.array(document.pop(name), dtype=kind)
            except (ValueError, TypeError):
                raise InputError(
                    f"is not a saved run: its array {name} is no even list of numbers"
                ) from None
    return arrays, document


def _json_dtype(name: str, document: Mapping[str, Any]) -> np.dtype[Any] | None:
    """The dtype of an array in JSON; None leaves it to NumPy, for numbers that are exact."""
    if name in EXACT:
        return None
    config = document.get("config")
    dtype = str(config.get("dtype")) if isinstance(config, dict) else ""
    kinds = {"float64": "f8", "float16": "f2"}
    if "cells" in document:  # pixels are float32 whatever was computed with
        kinds = {"float64": "f8"} if name in KEPT_AXES else {}
    return np.dtype("f8" if name in WIDE else kinds.get(dtype, "f4"))


WIDE = {"scale", "softcap", "slopes"}
"""Arrays of float64, whatever was computed with."""

READERS = {".npz": _load_npz, ".safetensors": _load_safetensors, ".json": _load_json}


def _fields(arrays: dict[str, Array], metadata: object) -> dict[str, Any]:
    """The fields of a result, each of the type that it must have."""
    if not isinstance(metadata, dict) or metadata.get("format") not in (FORMAT, POOLED_FORMAT):
        raise InputError(f"is not a saved run: its metadata has no format '{FORMAT}'")
    version = metadata.get("version")
    known = (1,) if metadata["format"] == POOLED_FORMAT else (1, VERSION)
    if type(version) is not int or version not in known:
        reads = " and ".join(map(str, known))
        raise InputError(f"has version {printable(version)}; this attnviz reads {reads}")
    arrays = {
        name: array.astype(array.dtype.newbyteorder("="), copy=False)
        for name, array in arrays.items()
    }
    if metadata["format"] == POOLED_FORMAT:
        arrays = _from_pooled_version_1(arrays, metadata)
    for name in NEEDED:
        if name not in arrays:
            raise InputError(f"is not a saved run: it has no array {name}")
    fields: dict[str, Any] = {**_about(metadata), **_cells(arrays, metadata)}
    fields |= {name: arrays.pop(name) for name in NEEDED}
    unknown = next((name for name in arrays if name not in KEPT_AXES), None)
    if unknown is not None:
        raise InputError(f"has an array '{printable(unknown)}' that no saved run has")
    return {**fields, "kept": arrays}


def _about(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not arrays."""
    kinds = {"pad_side": str, "masks": list, "config": dict, "source": str, "trained": bool}
    fields: dict[str, Any] = {}
    for name, kind in {**kinds, "query_tokens": list, "key_tokens": list}.items():
        fields[name] = metadata.get(name)
        if not isinstance(fields[name], kind):
            raise InputError(f"is not a saved run: its metadata has no proper {name}")
    fields["masks"] = _strings(fields["masks"], "masks")
    fields["notes"] = _strings(metadata.get("notes", []), "notes")
    for name in ("layers", "n_prompt"):
        fields[name] = _whole_numbers(metadata.get(name, []), name)
    for name in ("query_tokens", "key_tokens"):
        fields[name] = tuple(_strings(row, name) for row in fields[name])
    return fields


def _cells(arrays: dict[str, Array], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Pixels and row statistics where the file has them; their arrays are taken out of `arrays`."""
    fields: dict[str, Any] = {}
    if "cells" in metadata:
        cells = _whole_numbers(metadata["cells"], "cells")
        if len(cells) != 2:
            raise InputError("is not a saved run: its cells are not two numbers")
        counts = _taken(arrays, "allowed")
        if counts.dtype.kind not in "iu":
            raise InputError("is not a saved run: its pixels do not count what is allowed")
        fields["pixels"] = Pixels((cells[0], cells[1]), _taken(arrays, "largest"), counts)
        arrays["allowed"] = counts > 0
    if "near" in metadata:
        (near,) = _whole_numbers([metadata["near"]], "near")
        statistics = {name: _taken(arrays, ROW_PREFIX + name) for name in ROW_STATISTICS}
        top = _taken(arrays, "top_keys"), _taken(arrays, "top_weights")
        fields["rows"] = RowStatistics(near, statistics, *top)
    return fields


def _taken(arrays: dict[str, Array], name: str) -> Array:
    if name not in arrays:
        raise InputError(f"is not a saved run: it has no array {name}")
    return arrays.pop(name)


def _from_pooled_version_1(
    arrays: Mapping[str, Array], metadata: Mapping[str, Any]
) -> dict[str, Array]:
    """The arrays of a pooled run of version 1 by the names of version 2."""
    renamed = {"mean": "attention", "kept.first": "first_key", "kept.end": "end_key"}
    found = {
        renamed.get(name, name.removeprefix("kept.")): array
        for name, array in arrays.items()
        if name != "column_sums"
    }
    if "q" in found:
        for name in ("scale", "softcap"):
            try:
                found[name] = np.array(metadata.get(name), dtype=np.float64)  # None becomes NaN
            except (ValueError, TypeError):
                raise InputError(f"is not a saved run: its metadata has no proper {name}") from None
    return found


def _strings(values: object, name: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f"is not a saved run: its {name} are not lists of strings")
    if any("\ud800" <= c <= "\udfff" for value in values for c in value):
        raise InputError(f"is not a saved run: its {name} hold lone surrogates")
    return tuple(values)


def _whole_numbers(values: object, name: str) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise InputError(f"is not a saved run: its {name} are no list of numbers")
    return tuple(values)
