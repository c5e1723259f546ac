"""What a long run returns: pictures of pixels, numbers for each row, and what a later zoom needs.

Its saved form, version 1, has the same names in `.npz` and `.safetensors`:

- `mean`, `largest`: float32 `[L B H Pq Pk]`, of the allowed weights of each pixel; `allowed`: int64
  `[L B 1|H Pq Pk]`, how many they are.
- `row.entropy`, `row.largest`, …: `[L B H Tq]`, by the names of `ROW_STATISTICS`.
- `top_keys` int64 and `top_weights` float32, `[L B H Tq n]`; `lengths`, `key_lengths` `[B]`.
- `column_sums`: float32 `[L B H Tk]`, where wanted.
- where they were kept, `kept.q` `[L B H Tq d_k]` and `kept.k` `[L B Hkv Tk d_k]`, with
  `kept.first` and `kept.end` `[L B Tq]`, the span of keys that each query may see, and
  `kept.slopes` and `kept.sinks` `[L H]` where there are any.
- metadata: one JSON object, in the place that a saved run has it: `format` ("attnviz.pooled"),
  `cells` (rows and keys of a pixel), `near`, `scale` and `softcap` of each layer, and what a saved
  run tells of its tokens, masks and source.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable, why_unreadable
from attnviz.npy import names_in_safetensors, read_npz, read_safetensors
from attnviz.result import Attention
from attnviz.tokens import PAD_SIDES, positions_of, real_places

if TYPE_CHECKING:
    from attnviz.streaming import LongAttention

FORMAT, VERSION = "attnviz.pooled", 1

ROW_PREFIX, KEPT_PREFIX = "row.", "kept."

MOST_ARRAYS = 40

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class PooledResult:
    """Every head of a long text, each weight folded into a pixel and into its row's numbers.

    Shapes are those of the saved form above. Pixel (i, j) stands for the queries i·cells[0] … and
    the keys j·cells[1] …; those at the edges may hold fewer. The other fields are those of
    `Attention`.

    Raises `InputError` when the arrays do not fit each other.
    """

    mean: npt.NDArray[np.float32]
    largest: npt.NDArray[np.float32]
    allowed: npt.NDArray[np.int64]
    cells: tuple[int, int]
    near: int
    statistics: Mapping[str, Array]
    top_keys: npt.NDArray[np.int64]
    top_weights: npt.NDArray[np.float32]
    query_tokens: tuple[tuple[str, ...], ...]
    key_tokens: tuple[tuple[str, ...], ...]
    lengths: npt.NDArray[np.int64]
    key_lengths: npt.NDArray[np.int64]
    column_sums: npt.NDArray[np.float32] | None = None
    pad_side: str = "right"
    masks: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    trained: bool = True
    layers: tuple[int, ...] = ()
    kept: Mapping[str, Array] = field(default_factory=dict)
    scale: tuple[float, ...] = ()
    softcap: tuple[float | None, ...] = ()

    def __post_init__(self) -> None:
        shape = self.mean.shape
        if len(shape) != 5 or 0 in shape or min(self.cells) < 1:
            raise InputError(
                f"mean has shape {list(shape)}; [L B H Pq Pk] is expected, none of them 0"
            )
        layers, batch, heads, rows, columns = shape
        queries, keys = (
            len(side[0]) if side else 0 for side in (self.query_tokens, self.key_tokens)
        )
        if self.pad_side not in PAD_SIDES:
            raise InputError(f"pad_side is '{printable(self.pad_side)}'; right or left is expected")
        of_rows = (layers, batch, heads, queries)
        fits = {
            "largest": self.largest.shape == shape,
            "allowed": self.allowed.shape in (shape, (layers, batch, 1, rows, columns)),
            "query_tokens": [len(row) for row in self.query_tokens] == [queries] * batch
            and rows == -(-queries // self.cells[0]),
            "key_tokens": [len(row) for row in self.key_tokens] == [keys] * batch
            and columns == -(-keys // self.cells[1]),
            "top_keys": self.top_keys.shape == self.top_weights.shape
            and self.top_keys.shape[:-1] == of_rows
            and bool(((self.top_keys >= -1) & (self.top_keys < keys)).all()),
            "lengths": _are_lengths(self.lengths, batch, queries),
            "key_lengths": _are_lengths(self.key_lengths, batch, keys),
            "layers": len(self.layers) in (0, layers),
            "column_sums": self.column_sums is None
            or self.column_sums.shape == (layers, batch, heads, keys),
            **{ROW_PREFIX + n: x.shape == of_rows for n, x in self.statistics.items()},
            **self._kept_fit(of_rows, keys),
        }
        for name, fit in fits.items():
            if not fit:
                raise InputError(f"{printable(name)} does not fit mean {list(shape)}")

    def _kept_fit(self, of_rows: tuple[int, ...], keys: int) -> dict[str, bool]:
        layers, batch, heads, queries = of_rows
        if not self.kept:
            return {}
        q, k = self.kept.get("q"), self.kept.get("k")
        if q is None or k is None or q.ndim != 5 or k.ndim != 5:
            return {"kept.q": False}
        fits = {
            "kept.q": q.shape[:4] == of_rows and q.dtype.kind == "f",
            "kept.k": (*k.shape[:2], k.shape[3]) == (layers, batch, keys)
            and k.shape[2] > 0
            and heads % k.shape[2] == 0
            and k.shape[4] == q.shape[4]
            and k.dtype.kind == "f",
            "scale": len(self.scale) == len(self.softcap) == layers,
        }
        spans: tuple[int, ...] = (layers, batch, queries)
        shapes: dict[str, tuple[int, ...]] = {"first": spans, "end": spans}
        shapes |= {name: (layers, heads) for name in ("slopes", "sinks") if name in self.kept}
        for name, shape in shapes.items():
            fits[f"kept.{name}"] = name in self.kept and self.kept[name].shape == shape
        return fits

    @property
    def n_layers(self) -> int:
        return int(self.mean.shape[0])

    @property
    def batch_size(self) -> int:
        return int(self.mean.shape[1])

    @property
    def n_heads(self) -> int:
        return int(self.mean.shape[2])

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The number of each layer in its model."""
        return self.layers or tuple(range(self.n_layers))

    @property
    def names_layers(self) -> bool:
        """Whether a head's name needs its layer: there are several, or one of a model's."""
        return self.n_layers > 1 or self.layers != ()

    @property
    def n_queries(self) -> int:
        """Tq, padding included."""
        return len(self.query_tokens[0])

    @property
    def n_keys(self) -> int:
        """Tk, padding included."""
        return len(self.key_tokens[0])

    @property
    def is_cross(self) -> bool:
        """Whether queries and keys are different texts."""
        return self.query_tokens != self.key_tokens

    @cached_property
    def query_valid(self) -> npt.NDArray[np.bool_]:
        """`[B Tq]`: True on real query tokens, False on padding."""
        return real_places(positions_of(self.lengths, self.n_queries, self.pad_side), self.lengths)

    def places(self, sequence: int, side: int) -> tuple[int, int]:
        """The places of the first real query (`side` 0) or key (1) of a sequence, and the end."""
        width, lengths = ((self.n_queries, self.lengths), (self.n_keys, self.key_lengths))[side]
        length = int(lengths[sequence])
        start = width - length if self.pad_side == "left" else 0
        return start, start + length

    def row_means(self, sequence: int) -> dict[str, npt.NDArray[np.float64]]:
        """Each statistic's mean over the real rows that see something, `[L H]`; NaN for none."""
        real = self.query_valid[sequence]
        sees = real & (self.statistics["largest_key"][:, sequence] >= 0)  # L H Tq
        n = sees.sum(-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                name: np.where(sees, values[:, sequence], 0).sum(-1, dtype=np.float64) / n
                for name, values in self.statistics.items()
                if name != "largest_key"
            }

    def coarser(self, factor: int) -> PooledResult:
        """`factor` × `factor` pixels as one; exact, as if it had been pooled so at once."""
        if factor == 1:
            return self
        allowed = _reduced(np.add, self.allowed, factor)
        sums = _reduced(np.add, self.mean.astype(np.float64) * self.allowed, factor)
        mean = np.divide(sums, allowed, out=np.zeros_like(sums), where=allowed > 0)
        return replace(
            self,
            mean=mean.astype(np.float32),
            largest=_reduced(np.maximum, self.largest, factor),
            allowed=allowed,
            cells=(self.cells[0] * factor, self.cells[1] * factor),
        )

    def within(self, pixels: int) -> PooledResult:
        """The same with at most `pixels` pixels a side."""
        return self.coarser(-(-max(self.mean.shape[3:]) // pixels))

    def as_map(self) -> Attention:
        """The mean of each pixel as if it were a weight; each is named by its first place."""
        rows, columns = self.mean.shape[3:]

        def lengths(real: Array, width: int, cells: int, pixels: int) -> npt.NDArray[np.int64]:
            if self.pad_side == "right":
                return -(-real // cells)
            return np.asarray(pixels - (width - real) // cells)

        def names(n: int, cells: int) -> tuple[tuple[str, ...], ...]:
            return (tuple(str(i * cells) for i in range(n)),) * self.batch_size

        return Attention(
            self.mean,
            self.allowed > 0,
            names(rows, self.cells[0]),
            names(columns, self.cells[1]),
            lengths(self.lengths, self.n_queries, self.cells[0], rows),
            lengths(self.key_lengths, self.n_keys, self.cells[1], columns),
            self.pad_side,
            self.masks,
            self.config,
            self.source,
            self.trained,
            layers=self.layers,
        )

    def attention(self, layer: int) -> LongAttention:
        """What the weights of a layer are made of, for `streaming.window`.

        Raises `InputError` where q and k were not kept.
        """
        import torch

        from attnviz.masks import Rule
        from attnviz.streaming import LongAttention

        if not self.kept:
            raise InputError(
                "this long run was saved without its queries and keys; attnviz run … --keep q,k "
                "keeps what its weights can be computed from"
            )
        kept = {name: torch.from_numpy(np.array(x[layer])) for name, x in self.kept.items()}
        k = torch.arange(self.n_keys)
        rule = Rule(
            " and ".join(self.masks) or "none",
            lambda b, h, q, at: (k[at] >= kept["first"][b, q]) & (k[at] < kept["end"][b, q]),
            span=lambda b: (kept["first"][b], kept["end"][b]),
        )
        starts = [[self.places(b, side)[0] for b in range(self.batch_size)] for side in (0, 1)]
        return LongAttention(
            kept["q"],
            kept["k"],
            (rule,),
            scale=self.scale[layer],
            softcap=self.softcap[layer],
            slopes=kept.get("slopes"),
            sinks=kept.get("sinks"),
            query_starts=starts[0],
            key_starts=starts[1],
        )

    def part(
        self, rows: range, columns: range, sequence: int, heads: Sequence[tuple[int, int]]
    ) -> Attention:
        """A window of one sequence at full resolution, computed from the q and k that were kept.

        Its layers are those of `heads`, (place of the layer, head); heads that are not in it are
        zeros. Raises `InputError` where the window lies outside of the text, or q and k were not
        kept.
        """
        places = sorted({place for place, _ in heads})
        shape = (len(places), 1, self.n_heads, len(rows), len(columns))
        weights, allowed = np.zeros(shape, np.float32), np.zeros(shape, np.bool_)
        for i, place in enumerate(places):
            some = [head for each, head in heads if each == place]
            weights[i, 0, some], allowed[i, 0, some] = windows_of(
                self.attention(place), rows, columns, sequence, some
            )
        numbers = tuple(self.layer_numbers[place] for place in places)
        facts = {
            "masks": self.masks,
            "config": self.config,
            "source": self.source,
            "trained": self.trained,
            "layers": numbers if self.names_layers else (),
        }
        tokens = self.query_tokens, self.key_tokens
        return window_result(*tokens, weights, allowed, rows, columns, sequence, facts)


def windows_of(
    attention: LongAttention, rows: range, columns: range, b: int, heads: Sequence[int]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """(weights, allowed), both `[heads rows columns]`, of some heads of one sequence."""
    import torch

    from attnviz.streaming import window

    weights = np.stack(
        [window(attention, rows, columns, b, h).cpu().float().numpy() for h in heads]
    )
    first, end = (span[rows.start : rows.stop, None] for span in attention.spans(b))
    q = torch.arange(rows.start, rows.stop)[:, None]
    k = torch.arange(columns.start, columns.stop)
    allowed = ((k >= first) & (k < end)).expand(len(heads), -1, -1).clone()
    for rule in attention.unbounded:
        for i, head in enumerate(heads):
            allowed[i] &= rule.allows(torch.tensor(b), torch.tensor(head), q, k)
    return weights, allowed.numpy()


def part_of(result: Attention, rows: range, columns: range, sequence: int) -> Attention:
    """A window of one sequence of a whole map; its numbers are shared, not copied."""
    cut = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
    window = (slice(None), slice(sequence, sequence + 1), slice(None), *cut)
    names = ("masks", "config", "source", "trained", "layers")
    facts = {name: getattr(result, name) for name in names}
    return window_result(
        result.query_tokens,
        result.key_tokens,
        result.attention[window],
        result.allowed[window],
        rows,
        columns,
        sequence,
        facts,
    )


def window_result(
    query_tokens: Sequence[Sequence[str]],
    key_tokens: Sequence[Sequence[str]],
    weights: npt.NDArray[np.float32],
    allowed: npt.NDArray[np.bool_],
    rows: range,
    columns: range,
    sequence: int,
    facts: Mapping[str, Any],
) -> Attention:
    """A window, `[L 1 H rows columns]`, as a result of its own, which says where it stands.

    Its tokens are those of the window; `facts` are the fields that say what ran.
    """
    part = [[rows.start, rows.stop], [columns.start, columns.stop]]
    where = f"queries {rows.start}:{rows.stop}, keys {columns.start}:{columns.stop}"
    source = ", ".join(part for part in (facts["source"], where) if part)
    return Attention(
        weights,
        allowed,
        (tuple(query_tokens[sequence][rows.start : rows.stop]),),
        (tuple(key_tokens[sequence][columns.start : columns.stop]),),
        np.array([len(rows)]),
        np.array([len(columns)]),
        **{**facts, "source": source, "config": {**facts["config"], "part": part}},
    )


def _are_lengths(lengths: Array, batch: int, width: int) -> bool:
    whole = lengths.dtype.kind in "iu" and lengths.shape == (batch,)
    return whole and bool(((lengths >= 0) & (lengths <= width)).all())


def _reduced(ufunc: np.ufunc, array: Array, factor: int) -> Array:
    rows = ufunc.reduceat(array, np.arange(0, array.shape[-2], factor), axis=-2)
    return np.asarray(ufunc.reduceat(rows, np.arange(0, array.shape[-1], factor), axis=-1))


# ── the saved form ───────────────────────────────────────────────────────────────────────────


def save(result: PooledResult, path: Path) -> None:
    """Write `.npz` or `.safetensors`, by the suffix; the same result gives the same bytes."""
    metadata = json.dumps(_metadata(result), separators=(",", ":"), allow_nan=False)
    arrays = {name: np.ascontiguousarray(array) for name, array in _arrays(result).items()}
    if path.suffix.lower() == ".safetensors":
        from safetensors.numpy import save_file

        save_file(arrays, path, metadata={"attnviz": metadata})
        return
    with path.open("wb") as stream:
        np.savez(stream, allow_pickle=False, metadata=np.array(metadata), **arrays)


def is_pooled(path: Path) -> bool:
    """Whether `path` is a saved long run; False for whatever cannot be read."""
    try:
        return _read_metadata(path).get("format") == FORMAT
    except (OSError, ValueError, InputError, RecursionError):
        return False
    except Exception:  # safetensors has an error of its own, in no public module
        return False


def load(path: Path) -> PooledResult:
    """Read a saved long run. Raises `InputError` for a file that is none, or of a newer version."""
    shown = printable(path)
    try:
        metadata = _read_metadata(path)
        if metadata.get("format") != FORMAT:
            raise InputError(f"is not a saved long run: its format is not '{FORMAT}'")
        if metadata.get("version") != VERSION:
            version = printable(metadata.get("version"))
            raise InputError(f"has version {version}; this attnviz reads {VERSION}")
        if path.suffix.lower() == ".npz":
            arrays = read_npz(path, at_most=MOST_ARRAYS)
            arrays.pop("metadata")
        else:
            arrays = dict(read_safetensors(path))
        return PooledResult(**_fields(arrays, metadata))
    except InputError as error:
        raise InputError(f"{shown} {error}") from None
    except OSError as error:
        raise InputError(f"{shown}: {why_unreadable(path, error)}") from None
    except Exception as error:  # each format has errors of its own; what they mean is the same
        raise InputError(f"{shown} is not a saved long run: {printable(error)}") from None


def _read_metadata(path: Path) -> dict[str, Any]:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        found = read_npz(path, MOST_ARRAYS, wanted=("metadata",)).get("metadata")
        text = str(found) if found is not None and found.dtype.kind == "U" else "{}"
    elif suffix == ".safetensors":
        text = names_in_safetensors(path)[1].get("attnviz", "{}")
    else:
        raise InputError("is not a saved long run: it has one of .npz, .safetensors")
    metadata = json.loads(text)
    if not isinstance(metadata, dict):
        raise InputError("is not a saved long run: its metadata is no object")
    return metadata


def _metadata(result: PooledResult) -> dict[str, Any]:
    from attnviz import __version__

    return {
        "format": FORMAT,
        "version": VERSION,
        "attnviz": __version__,
        "source": result.source,
        "trained": result.trained,
        "config": dict(result.config),
        "masks": list(result.masks),
        "pad_side": result.pad_side,
        "cells": list(result.cells),
        "near": result.near,
        "layers": list(result.layers),
        "scale": list(result.scale),
        "softcap": list(result.softcap),
        "query_tokens": [list(row) for row in result.query_tokens],
        "key_tokens": [list(row) for row in result.key_tokens],
    }


NAMES = ("mean", "largest", "allowed", "top_keys", "top_weights", "lengths", "key_lengths")
"""Arrays that every saved long run has."""


def _arrays(result: PooledResult) -> dict[str, Array]:
    arrays: dict[str, Array] = {name: getattr(result, name) for name in NAMES}
    if result.column_sums is not None:
        arrays["column_sums"] = result.column_sums
    arrays |= {ROW_PREFIX + name: array for name, array in result.statistics.items()}
    return arrays | {KEPT_PREFIX + name: array for name, array in result.kept.items()}


def _fields(arrays: dict[str, Array], metadata: Mapping[str, Any]) -> dict[str, Any]:
    from attnviz.streaming import ROW_STATISTICS

    kinds = {"pad_side": str, "config": dict, "source": str, "trained": bool, "near": int}
    lists = ("masks", "cells", "layers", "scale", "softcap", "query_tokens", "key_tokens")
    fields: dict[str, Any] = {}
    for name, kind in {**kinds, **dict.fromkeys(lists, list)}.items():
        fields[name] = metadata.get(name)
        if not isinstance(fields[name], kind):
            raise InputError(f"is not a saved long run: its metadata has no proper {name}")
    for name in lists[:-2]:
        fields[name] = tuple(fields[name])
    whole = [type(x) is int for x in (*fields["cells"], *fields["layers"])]
    if len(fields["cells"]) != 2 or not all(whole):
        raise InputError("is not a saved long run: its cells and layers are no whole numbers")
    for name in lists[-2:]:
        fields[name] = tuple(map(_strings, fields[name]))
    _strings(list(fields["masks"]))
    for name in NAMES:
        if name not in arrays:
            raise InputError(f"is not a saved long run: it has no array {name}")
        fields[name] = arrays.pop(name)
    fields["column_sums"] = arrays.pop("column_sums", None)
    for field_name, prefix, known in (
        ("statistics", ROW_PREFIX, tuple(ROW_STATISTICS)),
        ("kept", KEPT_PREFIX, ("q", "k", "first", "end", "slopes", "sinks")),
    ):
        fields[field_name] = {
            name: arrays.pop(prefix + name) for name in known if prefix + name in arrays
        }
    missing = next((name for name in ROW_STATISTICS if name not in fields["statistics"]), None)
    if missing is not None:
        raise InputError(f"is not a saved long run: it has no array {ROW_PREFIX}{missing}")
    if arrays:
        unknown = printable(next(iter(arrays)))
        raise InputError(f"has an array '{unknown}' that no saved long run has")
    return fields


def _strings(values: object) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError("is not a saved long run: its tokens or masks are not lists of strings")
    if any("\ud800" <= c <= "\udfff" for value in values for c in value):
        raise InputError("is not a saved long run: its tokens hold lone surrogates")
    return tuple(values)
