"""What every source returns and every renderer draws: weights, masks, tokens, facts.

The saved form has a version. Version 1, the same names in `.npz` and `.safetensors`:

- `attention`: `[L B H Tq Tk]`, float; 0 where forbidden.
- `allowed`: `[L B 1|H Tq Tk]`, bool; True where a query may look.
- `lengths`, `key_lengths`: `[B]`, int64; real tokens in each sequence.
- tensors kept on request, under their tap names, the layer axis first: `q` `[L B H Tq d_k]`, `k`
  `[L B H Tk d_k]`, `v` `[L B H Tk d_v]`, `scores` `[L B H Tq Tk]` (before masking), `context`
  `[L B H Tq d_v]`, `output` `[L B Tq d_model]`.
- metadata: one JSON object; in `.npz` the string array `metadata`, in `.safetensors` the header
  entry `attnviz`. It has `format` ("attnviz.run"), `version`, `query_tokens` and `key_tokens`
  `[B][T]` with `[PAD]` where padded, `pad_side`, `config`, `masks`, `source`, `trained`, `attnviz`.

`.json` is that object with the arrays in it, as nested lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.batch import Batch
from attnviz.errors import InputError, printable

FORMAT, VERSION = "attnviz.run", 1

KEEPABLE = ("q", "k", "v", "scores", "context", "output")
"""Taps that a saved run can hold beside the weights."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class AttentionResult:
    """Attention weights with everything that is needed to draw, measure or check them.

    Shapes are those of the saved form above. `masks` are the names of the masks in force,
    `source` says where the attention came from, in words; `trained` whether its weights are.
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

    def __post_init__(self) -> None:
        if self.attention.ndim != 5:
            raise InputError(
                f"attention has shape {list(self.attention.shape)}; [L B H Tq Tk] is expected"
            )
        layers, batch, heads, queries, keys = self.attention.shape
        fits = {
            "allowed": self.allowed.shape
            in ((layers, batch, 1, queries, keys), (layers, batch, heads, queries, keys)),
            "query_tokens": [len(row) for row in self.query_tokens] == [queries] * batch,
            "key_tokens": [len(row) for row in self.key_tokens] == [keys] * batch,
            "lengths": self.lengths.shape == (batch,)
            and bool(((self.lengths >= 0) & (self.lengths <= queries)).all()),
            "key_lengths": self.key_lengths.shape == (batch,)
            and bool(((self.key_lengths >= 0) & (self.key_lengths <= keys)).all()),
        }
        for name, fit in fits.items():
            if not fit:
                raise InputError(
                    f"{name} does not fit attention "
                    f"[L={layers} B={batch} H={heads} Tq={queries} Tk={keys}]"
                )

    @property
    def n_layers(self) -> int:
        return int(self.attention.shape[0])

    @property
    def batch_size(self) -> int:
        return int(self.attention.shape[1])

    @property
    def n_heads(self) -> int:
        return int(self.attention.shape[2])

    @property
    def is_cross(self) -> bool:
        """Whether queries and keys are different texts."""
        return self.query_tokens != self.key_tokens

    @cached_property
    def query_positions(self) -> npt.NDArray[np.int64]:
        """`[B Tq]`: each query's index in its own sequence; outside 0 … length-1 it is padding."""
        return _positions(self.lengths, self.attention.shape[3], self.pad_side)

    @cached_property
    def key_positions(self) -> npt.NDArray[np.int64]:
        """`[B Tk]`: each key's index in its own sequence."""
        return _positions(self.key_lengths, self.attention.shape[4], self.pad_side)

    @cached_property
    def query_valid(self) -> npt.NDArray[np.bool_]:
        """`[B Tq]`: True on real query tokens, False on padding."""
        return np.asarray(
            (self.query_positions >= 0) & (self.query_positions < self.lengths[:, None])
        )

    @cached_property
    def key_valid(self) -> npt.NDArray[np.bool_]:
        """`[B Tk]`: True on real key tokens, False on padding."""
        return np.asarray(
            (self.key_positions >= 0) & (self.key_positions < self.key_lengths[:, None])
        )

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


def _positions(lengths: npt.NDArray[np.int64], width: int, pad_side: str) -> npt.NDArray[np.int64]:
    starts = width - lengths if pad_side == "left" else np.zeros_like(lengths)
    return np.asarray(np.arange(width)[None, :] - starts[:, None])


def from_batches(
    attention: Array, allowed: npt.NDArray[np.bool_], queries: Batch, keys: Batch, **facts: Any
) -> AttentionResult:
    """A result whose tokens and lengths are those of its two batches."""
    return AttentionResult(
        attention=attention,
        allowed=allowed,
        query_tokens=queries.padded_tokens,
        key_tokens=keys.padded_tokens,
        lengths=queries.lengths,
        key_lengths=keys.lengths,
        pad_side=queries.pad_side,
        **facts,
    )


# ── the saved form ───────────────────────────────────────────────────────────────────────────


def save_npz(result: AttentionResult, path: Path) -> None:
    """Write an uncompressed `.npz`; the same result gives the same bytes."""
    arrays = {"metadata": np.array(_compact(result.metadata())), **result.arrays()}
    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def save_safetensors(result: AttentionResult, path: Path) -> None:
    """Write a `.safetensors` file; the same result gives the same bytes."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in result.arrays().items()}
    path.write_bytes(save(arrays, metadata={"attnviz": _compact(result.metadata())}))


def save_json(result: AttentionResult, path: Path) -> None:
    """Write one JSON object; a float has the shortest digits that give the same number back."""
    document = result.metadata()
    document.update({name: _plain(array) for name, array in result.arrays().items()})
    path.write_text(_compact(document) + "\n", encoding="ascii")


def load(path: Path) -> AttentionResult:
    """Read a saved run by its suffix: `.npz`, `.safetensors` or `.json`. No pickle is loaded.

    Raises `InputError` for a file that is not a saved run, or of a newer version.
    """
    shown = printable(path)
    readers = {".npz": _load_npz, ".safetensors": _load_safetensors, ".json": _load_json}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"{shown}: unknown suffix {path.suffix!r}; a saved run is {', '.join(readers)}"
        )
    try:
        arrays, metadata = reader(path)
        return _from_parts(arrays, metadata)
    except InputError as error:
        raise InputError(f"{shown}: {error}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"{shown}: {printable(reason)}") from None
    except Exception as error:  # each format has errors of its own; what they mean is the same
        raise InputError(f"{shown} is not a saved run: {printable(error)}") from None


def _load_npz(path: Path) -> tuple[dict[str, Array], Any]:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    return arrays, json.loads(str(arrays.pop("metadata")))


def _load_safetensors(path: Path) -> tuple[dict[str, Array], Any]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as archive:
        metadata = json.loads((archive.metadata() or {})["attnviz"])
        return {name: archive.get_tensor(name) for name in archive.keys()}, metadata  # noqa: SIM118


def _load_json(path: Path) -> tuple[dict[str, Array], Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    names = ("attention", "allowed", "lengths", "key_lengths", *KEEPABLE)
    dtype = np.dtype(document["config"].get("dtype", "float32").replace("bfloat16", "float32"))
    kinds = {
        "allowed": np.dtype(bool),
        "lengths": np.dtype("int64"),
        "key_lengths": np.dtype("int64"),
    }
    arrays = {
        n: np.array(document.pop(n), dtype=kinds.get(n, dtype)) for n in names if n in document
    }
    return arrays, document


def _from_parts(arrays: dict[str, Array], metadata: Any) -> AttentionResult:
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise InputError(f"it is no saved run: its metadata has no format {FORMAT!r}")
    if metadata.get("version") != VERSION:
        raise InputError(
            f"it has version {printable(metadata.get('version'))}; "
            f"this attnviz reads version {VERSION}"
        )
    tokens = {
        name: tuple(tuple(str(token) for token in row) for row in metadata[name])
        for name in ("query_tokens", "key_tokens")
    }
    return AttentionResult(
        attention=arrays.pop("attention"),
        allowed=arrays.pop("allowed"),
        lengths=arrays.pop("lengths"),
        key_lengths=arrays.pop("key_lengths"),
        pad_side=metadata["pad_side"],
        masks=tuple(metadata["masks"]),
        config=metadata["config"],
        source=metadata["source"],
        trained=metadata["trained"],
        kept=arrays,
        **tokens,
    )


def _compact(value: object) -> str:
    """One line of ASCII; NaN and infinity are null."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _plain(array: Array) -> Any:
    """Nested lists. float32 and float16 get their own shortest digits; NaN, infinity: None."""
    if array.dtype.kind != "f":
        return array.tolist()
    if array.ndim > 1:
        return [_plain(row) for row in array]
    if array.dtype == np.float64:
        return [x if np.isfinite(x) else None for x in array.tolist()]
    return [float(str(x)) if np.isfinite(x) else None for x in array]
