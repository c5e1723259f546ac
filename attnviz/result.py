"""What every source returns and every renderer draws: weights, masks, tokens, facts.

The saved form has a version. Version 1, the same names in `.npz` and `.safetensors`:

- `attention`: `[L B H Tq Tk]`, float; 0 where forbidden. Rows of padding hold what the layer
  computed for them, and mean nothing: `lengths` and `pad_side` tell which rows are real.
- `allowed`: `[L B 1|H Tq Tk]`, bool; True where a query may look.
- `lengths`, `key_lengths`: `[B]`, int64; real tokens in each sequence.
- tensors kept on request, under their tap names, the layer axis first: `q` `[L B H Tq d_k]`, `k`
  `[L B H Tk d_k]`, `v` `[L B H Tk d_v]`, `scores` `[L B H Tq Tk]` (before masking), `context`
  `[L B H Tq d_v]`, `output` `[L B Tq d_model]`. H of `k` and `v` is Hkv where heads share them.
- metadata: one JSON object; in `.npz` the string array `metadata`, in `.safetensors` the header
  entry `attnviz`. It has `format` ("attnviz.run"), `version`, `query_tokens` and `key_tokens`
  `[B][T]` with `[PAD]` where padded, `pad_side`, `config`, `masks`, `source`, `trained`, `attnviz`;
  and `layers`, their numbers in the model, where these are not 0, 1, 2, …; `n_prompt` and `notes`
  where there are any.

`.json` is that object with the arrays in it, as nested lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable, why_unreadable
from attnviz.machine import human_bytes, require_memory
from attnviz.npy import MAPPED_FROM, names_in_safetensors, read_npz, read_safetensors
from attnviz.tokens import PAD_SIDES, Batch, make_batch, positions_of, real_places

FORMAT, VERSION = "attnviz.run", 1

KEEPABLE = ("q", "k", "v", "scores", "context", "output")
"""Taps that a saved run can hold beside the weights."""

KEPT_AXES = {
    "q": "L B H Tq *",
    "k": "L B * Tk *",
    "v": "L B * Tk *",
    "products": "L B H Tq Tk",
    "scores": "L B H Tq Tk",
    "masked_scores": "L B H Tq Tk",
    "context": "L B H Tq *",
    "merged": "L B Tq *",
    "projected": "L B Tq *",
    "residual": "L B Tq *",
    "output": "L B Tq *",
}
"""The axes of kept tensors; widths, and the number of key/value heads, are free."""

FLOATS = tuple(np.dtype(name) for name in ("float16", "float32", "float64"))

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention weights with everything that is needed to draw, measure or check them.

    Shapes are those of the saved form above. `masks` are the names of the masks in force,
    `source` says where the attention came from, in words; `trained` whether its weights are.
    `layers` are the numbers that the layers have in their model; () stands for 0, 1, 2, …
    `n_prompt` are, for each sequence, the first of its queries that were given to a model, which
    wrote the others; () where it wrote none. `notes` say in words what was done to the maps since
    they were computed: tokens that are merged or hidden.

    Raises `InputError` when the arrays do not fit each other.
    """

    attention: Array
    allowed: npt.NDArray[np.bool_]
    query_tokens: tuple[tuple[str, ...], ...]
    key_tokens: tuple[tuple[str, ...], ...]
    lengths: npt.NDArray[np.int64]
    key_lengths: npt.NDArray[np.int64]
    pad_side: str = "right"
    masks: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    trained: bool = True
    kept: Mapping[str, Array] = field(default_factory=dict)
    layers: tuple[int, ...] = ()
    n_prompt: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = self.attention.shape
        if len(shape) != 5 or 0 in shape:
            raise InputError(
                f"attention has shape {list(shape)}; [L B H Tq Tk] is expected, none of them 0"
            )
        if self.attention.dtype not in FLOATS:
            known = ", ".join(map(str, FLOATS))
            raise InputError(f"attention is {printable(self.attention.dtype)}; known are {known}")
        if self.pad_side not in PAD_SIDES:
            raise InputError(f"pad_side is '{printable(self.pad_side)}'; right or left is expected")
        layers, batch, heads, queries, keys = shape
        fits = {
            "allowed": self.allowed.dtype == np.bool_
            and self.allowed.shape in (shape, (layers, batch, 1, queries, keys)),
            "query_tokens": [len(row) for row in self.query_tokens] == [queries] * batch,
            "key_tokens": [len(row) for row in self.key_tokens] == [keys] * batch,
            "lengths": _are_lengths(self.lengths, batch, queries),
            "key_lengths": _are_lengths(self.key_lengths, batch, keys),
            "layers": len(self.layers) in (0, layers),
            "n_prompt": len(self.n_prompt) in (0, batch)
            and all(0 <= n <= of for n, of in zip(self.n_prompt, self.lengths, strict=False)),
        }
        sizes = {"L": layers, "B": batch, "H": heads, "Tq": queries, "Tk": keys}
        for name, array in self.kept.items():
            axes = KEPT_AXES.get(name, "L B …").split()
            pairs = zip(axes, array.shape, strict=False)
            fits[name] = (array.ndim == len(axes) or "…" in axes) and all(
                size == sizes.get(axis, size) for axis, size in pairs
            )
        for name, fit in fits.items():
            if not fit:
                given = " ".join(f"{axis}={size}" for axis, size in sizes.items())
                raise InputError(f"{name} does not fit attention [{given}]")

    @property
    def n_layers(self) -> int:
        return int(self.attention.shape[0])

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The number of each layer in its model."""
        return self.layers or tuple(range(self.n_layers))

    @property
    def names_layers(self) -> bool:
        """Whether a head's name needs its layer: there are several, or one of a model's."""
        return self.n_layers > 1 or self.layers != ()

    @property
    def batch_size(self) -> int:
        return int(self.attention.shape[1])

    @property
    def n_heads(self) -> int:
        return int(self.attention.shape[2])

    @property
    def is_part(self) -> bool:
        """Whether this is a window of a map: its rows go on beyond it, and have no measures."""
        return "part" in self.config

    @property
    def is_cross(self) -> bool:
        """Whether queries and keys are different texts."""
        return self.query_tokens != self.key_tokens

    @cached_property
    def query_positions(self) -> npt.NDArray[np.int64]:
        """`[B Tq]`: each query's index in its own sequence; outside 0 … length-1 it is padding."""
        return positions_of(self.lengths, self.attention.shape[3], self.pad_side)

    @cached_property
    def key_positions(self) -> npt.NDArray[np.int64]:
        """`[B Tk]`: each key's index in its own sequence."""
        return positions_of(self.key_lengths, self.attention.shape[4], self.pad_side)

    @cached_property
    def query_valid(self) -> npt.NDArray[np.bool_]:
        """`[B Tq]`: True on real query tokens, False on padding."""
        return real_places(self.query_positions, self.lengths)

    @cached_property
    def key_valid(self) -> npt.NDArray[np.bool_]:
        """`[B Tk]`: True on real key tokens, False on padding."""
        return real_places(self.key_positions, self.key_lengths)

    def metadata(self) -> dict[str, Any]:
        """The JSON object of the saved form, without the arrays."""
        from attnviz import __version__

        return {
            "format": FORMAT,
            "version": VERSION,
            "attnviz": __version__,
            "source": self.source,
            "trained": self.trained,
            "config": dict(self.config),
            "masks": list(self.masks),
            "pad_side": self.pad_side,
            "query_tokens": [list(row) for row in self.query_tokens],
            "key_tokens": [list(row) for row in self.key_tokens],
            **{
                name: list(values)
                for name in ("layers", "n_prompt", "notes")
                if (values := getattr(self, name))
            },
        }

    def arrays(self) -> dict[str, Array]:
        """The arrays of the saved form by name."""
        return {
            "attention": self.attention,
            "allowed": self.allowed,
            "lengths": self.lengths,
            "key_lengths": self.key_lengths,
            **self.kept,
        }


def _are_lengths(lengths: Array, batch: int, width: int) -> bool:
    whole = lengths.dtype.kind in "iu" and lengths.shape == (batch,)
    return whole and bool(((lengths >= 0) & (lengths <= width)).all())


def from_batches(
    attention: Array, allowed: npt.NDArray[np.bool_], queries: Batch, keys: Batch, **facts: Any
) -> Attention:
    """A result whose tokens and lengths are those of its two batches."""
    return Attention(
        attention=attention,
        allowed=allowed,
        query_tokens=queries.padded_tokens,
        key_tokens=keys.padded_tokens,
        lengths=queries.lengths,
        key_lengths=keys.lengths,
        pad_side=queries.pad_side,
        **facts,
    )


def only_layers(result: Attention, places: Sequence[int]) -> Attention:
    """`result` with the layers that stand at `places`, which keep their numbers.

    Neighbours in order are a view; others are copied.
    """
    first, last = places[0], places[-1]
    in_order = list(places) == list(range(first, last + 1))
    some: slice | list[int] = slice(first, last + 1) if in_order else list(places)
    return replace(
        result,
        attention=result.attention[some],
        allowed=result.allowed[some],
        kept={name: array[some] for name, array in result.kept.items()},
        layers=tuple(result.layer_numbers[place] for place in places),
    )


def batches_of(result: Attention) -> tuple[Batch, Batch]:
    """The tokens of a result as batches of queries and of keys; one and the same where they are.

    Raises `InputError` when all of them are padding.
    """
    sides = [(result.query_tokens, result.query_valid), (result.key_tokens, result.key_valid)]
    made = []
    for rows, valid in sides if result.is_cross else sides[:1]:
        real = [
            tuple(token for token, is_real in zip(row, places, strict=True) if is_real)
            for row, places in zip(rows, valid, strict=True)
        ]
        made.append(make_batch(real, None, valid.shape[1], result.pad_side))
    return made[0], made[-1]


# ── the saved form ───────────────────────────────────────────────────────────────────────────


def save_npz(result: Attention, path: Path) -> None:
    """Write an uncompressed `.npz`; the same result gives the same bytes."""
    arrays = {"metadata": np.array(_compact(result.metadata())), **result.arrays()}
    _make_way(path)
    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def save_safetensors(result: Attention, path: Path) -> None:
    """Write a `.safetensors` file; the same result gives the same bytes."""
    from safetensors.numpy import save

    size = sum(array.nbytes for array in result.arrays().values())
    what = f"a .safetensors file of {human_bytes(size)}"
    require_memory(3 * size, what, "save the run as .npz, which is written in parts")
    arrays = {name: np.ascontiguousarray(array) for name, array in result.arrays().items()}
    data = save(arrays, metadata={"attnviz": _compact(result.metadata())})
    _make_way(path)
    path.write_bytes(data)


def save_json(result: Attention, path: Path) -> None:
    """Write one JSON object, row by row.

    A float has the shortest digits that give the same number of its dtype back; NaN and infinity
    are null.
    """
    _make_way(path)
    with path.open("w", encoding="ascii", newline="\n") as stream:
        stream.write(_compact(result.metadata())[:-1])
        for name, array in result.arrays().items():
            stream.write(f',"{name}":')
            _write_array(array, stream)
        stream.write("}\n")


def _make_way(path: Path) -> None:
    """Take a large file at `path` away before it is written anew: a run that was loaded from it is
    mapped, and would lose its numbers if they were overwritten in place."""
    place = path.resolve()
    if place.is_file() and place.stat().st_size >= MAPPED_FROM:
        place.unlink()


def load(path: Path | str) -> Attention:
    """Read a saved run by its suffix: `.npz`, `.safetensors` or `.json`. No pickle is loaded.

    Arrays of a large file are mapped, read-only: numbers are read when they are looked at. Raises
    `InputError` for a file that is not a saved run, or of a newer version. null in a JSON file
    comes back as NaN.
    """
    path = Path(path)
    shown = printable(path)
    readers = {".npz": _load_npz, ".safetensors": _load_safetensors, ".json": _load_json}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"{shown} has the suffix '{printable(path.suffix)}'; a saved run has one of "
            f"{', '.join(readers)}"
        )
    try:
        arrays, metadata = reader(path)
        fields = _fields(arrays, metadata)
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
    arrays = read_npz(path, at_most=5 + len(KEPT_AXES))
    metadata = arrays.pop("metadata", None)
    if metadata is None or metadata.dtype.kind != "U" or metadata.ndim:
        raise InputError("is not a saved run: it has no metadata")
    return arrays, json.loads(str(metadata))


def _load_safetensors(path: Path) -> tuple[dict[str, Array], object]:
    metadata = names_in_safetensors(path)[1].get("attnviz")
    if metadata is None:
        raise InputError("is not a saved run: it has no metadata")
    return dict(read_safetensors(path)), json.loads(metadata)


def _load_json(path: Path) -> tuple[dict[str, Array], object]:
    # a number of two or three digits becomes a Python object of 32 bytes
    size = path.stat().st_size
    require_memory(12 * size, f"is JSON of {human_bytes(size)}, which", "save the run as .npz")
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        return {}, document
    config = document.get("config")
    dtype = config.get("dtype") if isinstance(config, dict) else None
    number = np.dtype({"float64": "f8", "float16": "f2"}.get(str(dtype), "f4"))
    arrays = {}
    for name in ("attention", "allowed", "lengths", "key_lengths", *KEPT_AXES):
        if name in document:
            exact = name in ("allowed", "lengths", "key_lengths")  # of bool and int, as they stand
            try:
                arrays[name] = np.array(document.pop(name), dtype=None if exact else number)
            except (ValueError, TypeError):
                raise InputError(
                    f"is not a saved run: its array {name} is no even list of numbers"
                ) from None
    return arrays, document


def _fields(arrays: dict[str, Array], metadata: object) -> dict[str, Any]:
    """The fields of a result, each of the type that it must have."""
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise InputError(f"is not a saved run: its metadata has no format '{FORMAT}'")
    if metadata.get("version") != VERSION:
        raise InputError(
            f"has version {printable(metadata.get('version'))}; this attnviz reads {VERSION}"
        )
    kinds = {"pad_side": str, "masks": list, "config": dict, "source": str, "trained": bool}
    fields: dict[str, Any] = {}
    for name, kind in {**kinds, "query_tokens": list, "key_tokens": list}.items():
        fields[name] = metadata.get(name)
        if not isinstance(fields[name], kind):
            raise InputError(f"is not a saved run: its metadata has no proper {name}")
    fields["masks"] = _strings(fields["masks"], "masks")
    for name in ("layers", "n_prompt"):
        fields[name] = _numbers(metadata.get(name, []), name)
    fields["notes"] = _strings(metadata.get("notes", []), "notes")
    for name in ("query_tokens", "key_tokens"):
        fields[name] = tuple(_strings(row, name) for row in fields[name])
    for name in ("attention", "allowed", "lengths", "key_lengths"):
        if name not in arrays:
            raise InputError(f"is not a saved run: it has no array {name}")
    arrays = {
        name: array.astype(array.dtype.newbyteorder("="), copy=False)
        for name, array in arrays.items()
    }
    for name in ("attention", "allowed", "lengths", "key_lengths"):
        fields[name] = arrays.pop(name)
    unknown = next((name for name in arrays if name not in KEPT_AXES), None)
    if unknown is not None:
        raise InputError(f"has an array '{printable(unknown)}' that no saved run has")
    return {**fields, "kept": arrays}


def _strings(values: object, name: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f"is not a saved run: its {name} are not lists of strings")
    if any("\ud800" <= c <= "\udfff" for value in values for c in value):
        raise InputError(f"is not a saved run: its {name} hold lone surrogates")
    return tuple(values)


def _numbers(values: object, name: str) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise InputError(f"is not a saved run: its {name} are no list of numbers")
    return tuple(values)


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
