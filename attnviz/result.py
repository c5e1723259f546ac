"""Attention with everything that is needed to draw, measure, compare or check it.

What every source returns and every renderer draws. `attnviz.saved_runs` writes and reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable
from attnviz.tokens import PAD_SIDES, Batch, make_batch, positions_of, real_places

KEEPABLE = ("q", "k", "v", "scores", "context", "output")
"""Taps that a saved run can hold beside the weights."""

AXES = {
    "allowed": "L B 1|H Pq Pk",
    "largest": "L B H Pq Pk",
    "counts": "L B 1|H Pq Pk",
    "top_keys": "L B H Tq *",
    "top_weights": "L B H Tq *",
}
"""The axes of the arrays beside `attention`, which is `[L B H Pq Pk]`; * is any size. Pq and Pk are
Tq and Tk where cells are weights. A row statistic is `[L B H Tq]`."""

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
    "first_key": "L B Tq",
    "end_key": "L B Tq",
    "scale": "L",
    "softcap": "L",
    "slopes": "L H",
    "sinks": "L H",
}
"""The axes of kept tensors; widths, and the number of key/value heads, are free."""

NEEDED_FOR_WEIGHTS = ("q", "k", "first_key", "end_key", "scale", "softcap")
"""Kept tensors that the weights of any window can be computed from; `slopes` and `sinks` as well,
where the layer has them."""

ROW_STATISTICS = {
    "entropy": "bits",
    "largest": "the largest weight",
    "largest_key": "the position of its key in the row, -1 where all weights are 0",
    "distance": "mean distance, in positions",
    "first": "weight on the first token",
    "previous": "weight on the token before",
    "self": "weight on the token itself",
    "near": "weight on tokens less than `near` positions away",
}
"""The statistics of each query row, and what they are."""

UNKNOWN_MASKS = ("unknown",)
"""The masks of an array that came without any word of them."""

HIDDEN = "special tokens hidden"
"""How the note starts that says that rows lack the weight of special tokens."""

FLOATS = tuple(np.dtype(name) for name in ("float16", "float32", "float64"))

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class About:
    """What attention says about itself: its tokens, its masks and where it came from.

    `query_tokens` and `key_tokens` are `[B][T]`, `[PAD]` where padded; `lengths` and `key_lengths`
    int64 `[B]` count the real ones. `masks` are the names of the masks in force, `source` says
    where the attention came from, `trained` whether its weights are. `layers` are the numbers that
    the layers have in their model; () stands for 0, 1, 2, … `n_prompt` counts, for each sequence,
    the queries that a model was given before it wrote the others; () where it wrote none. `notes`
    say what was done to the maps since they were computed: tokens that are merged or hidden.
    """

    query_tokens: tuple[tuple[str, ...], ...]
    key_tokens: tuple[tuple[str, ...], ...]
    lengths: npt.NDArray[np.int64]
    key_lengths: npt.NDArray[np.int64]
    pad_side: str = "right"
    masks: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    trained: bool = True
    layers: tuple[int, ...] = ()
    n_prompt: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def n_queries(self) -> int:
        """Tq, padding included."""
        return len(self.query_tokens[0])

    @property
    def n_keys(self) -> int:
        """Tk, padding included."""
        return len(self.key_tokens[0])

    @property
    def is_part(self) -> bool:
        """Whether this is a window of a map: its rows continue beyond it, and have no measures."""
        return "part" in self.config

    @property
    def is_cross(self) -> bool:
        """Whether queries and keys are different texts."""
        return self.query_tokens != self.key_tokens

    @cached_property
    def query_positions(self) -> npt.NDArray[np.int64]:
        """`[B Tq]`: each query's index in its own sequence; outside 0 … length-1 it is padding."""
        return positions_of(self.lengths, self.n_queries, self.pad_side)

    @cached_property
    def key_positions(self) -> npt.NDArray[np.int64]:
        """`[B Tk]`: each key's index in its own sequence."""
        return positions_of(self.key_lengths, self.n_keys, self.pad_side)

    @cached_property
    def query_valid(self) -> npt.NDArray[np.bool_]:
        """`[B Tq]`: True on real query tokens, False on padding."""
        return real_places(self.query_positions, self.lengths)

    @cached_property
    def key_valid(self) -> npt.NDArray[np.bool_]:
        """`[B Tk]`: True on real key tokens, False on padding."""
        return real_places(self.key_positions, self.key_lengths)

    def places(self, sequence: int, side: int) -> tuple[int, int]:
        """Where the real queries (`side` 0) or keys (1) of a sequence start and end in its row."""
        width, lengths = ((self.n_queries, self.lengths), (self.n_keys, self.key_lengths))[side]
        length = int(lengths[sequence])
        start = width - length if self.pad_side == "left" else 0
        return start, start + length

    def real_tokens(self, sequence: int, side: int) -> tuple[str, ...]:
        """The queries (`side` 0) or keys (1) of a sequence without padding."""
        return (self.query_tokens, self.key_tokens)[side][sequence][
            slice(*self.places(sequence, side))
        ]


@dataclass(frozen=True, eq=False)
class Pixels:
    """What cells have beside their mean, where each pools the weights of many cells.

    Pixel (i, j) stands for the queries i·cells[0] … and the keys j·cells[1] …; those at the edges
    may hold fewer. `counts` says how many weights of each are allowed.
    """

    cells: tuple[int, int]
    largest: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Numbers of every query row, over all its weights.

    `statistics` are `[L B H Tq]` by the names of `ROW_STATISTICS`; `top_keys` int64 and
    `top_weights` float32 `[L B H Tq n]` are the largest weights of a row and the positions of their
    keys, -1 and 0 where fewer are more than 0.
    """

    near: int
    statistics: Mapping[str, Array]
    top_keys: npt.NDArray[np.int64]
    top_weights: npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Attention(About):
    """The attention of layers and heads; its cells are weights, or pixels that each pool many.

    - `attention`: float `[L B H Pq Pk]`, the weights, or the mean of the weights that are allowed
      in each pixel; 0 where forbidden. Rows of padding hold what the layer computed for them, and
      mean nothing.
    - `allowed`: bool `[L B 1|H Pq Pk]`, True where a query may look.
    - `kept`: tensors under their tap names, `[L B …]`.
    - `pixels` is None where cells are weights; `rows` has the statistics of every row where they
      were computed, which they are for maps that are pooled.

    Raises `InputError` when the arrays do not fit each other.
    """

    attention: Array
    allowed: npt.NDArray[np.bool_]
    kept: Mapping[str, Array] = field(default_factory=dict, kw_only=True)
    pixels: Pixels | None = field(default=None, kw_only=True)
    rows: RowStatistics | None = field(default=None, kw_only=True)

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
        for name, fits in self._fits().items():
            if not fits:
                names = ("L", "B", "H", "Tq", "Tk") if self.pixels is None else PIXEL_AXES
                sizes = " ".join(f"{axis}={n}" for axis, n in zip(names, shape, strict=True))
                raise InputError(f"{printable(name)} does not fit attention [{sizes}]")

    def _fits(self) -> dict[str, bool]:
        """Whether each field fits the others, by its name."""
        layers, batch, _, rows, columns = shape = self.attention.shape
        cells = self.cells
        if min(cells) < 1:
            return {"cells": False}
        queries, keys = (
            len(side[0]) if side else 0 for side in (self.query_tokens, self.key_tokens)
        )
        fits = {
            "query_tokens": [len(row) for row in self.query_tokens] == [queries] * batch
            and rows == -(-queries // cells[0]),
            "key_tokens": [len(row) for row in self.key_tokens] == [keys] * batch
            and columns == -(-keys // cells[1]),
            "lengths": _are_lengths(self.lengths, batch, queries),
            "key_lengths": _are_lengths(self.key_lengths, batch, keys),
            "layers": len(self.layers) in (0, layers),
            "n_prompt": len(self.n_prompt) in (0, batch)
            and all(0 <= n <= of for n, of in zip(self.n_prompt, self.lengths, strict=False)),
        }
        sizes = dict(zip((*PIXEL_AXES, "Tq", "Tk"), (*shape, queries, keys), strict=True))
        for name, array in self._beside().items():
            fits[name] = _has_axes(array, AXES.get(name, "L B H Tq"), sizes)
        for name, array in self.kept.items():
            fits[name] = _has_axes(array, KEPT_AXES.get(name, "L B …"), sizes)
        fits["allowed"] &= self.allowed.dtype == np.bool_
        if self.rows is not None:
            top = self.rows.top_keys
            fits["top_keys"] &= top.dtype.kind == "i" and bool(((top >= -1) & (top < keys)).all())
            fits["top_weights"] &= top.shape == self.rows.top_weights.shape
        if self.has_weights_kept and all(fits.values()):
            fits |= self._kept_fit()
        return fits

    def _kept_fit(self) -> dict[str, bool]:
        """Whether weights can be computed from what was kept."""
        q, k = self.kept["q"], self.kept["k"]
        floats = ("q", "k", "scale", "softcap", "slopes", "sinks")
        fits = {n: self.kept[n].dtype.kind == "f" for n in floats if n in self.kept}
        fits |= {n: self.kept[n].dtype.kind in "iu" for n in ("first_key", "end_key")}
        heads = k.shape[2]
        fits["k"] &= heads > 0 and self.n_heads % heads == 0 and k.shape[4] == q.shape[4]
        return fits

    def _beside(self) -> dict[str, Array]:
        """The arrays beside the attention and what was kept, by the names of their fields."""
        arrays: dict[str, Array] = {"allowed": self.allowed}
        if self.pixels is not None:
            arrays |= {"largest": self.pixels.largest, "counts": self.pixels.counts}
        if self.rows is not None:
            arrays |= {"top_keys": self.rows.top_keys, "top_weights": self.rows.top_weights}
            arrays |= {f"row.{name}": array for name, array in self.rows.statistics.items()}
        return arrays

    @property
    def shape(self) -> tuple[int, ...]:
        """`[L B H Pq Pk]`."""
        return self.attention.shape

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
    def layer_numbers(self) -> tuple[int, ...]:
        """The number of each layer in its model."""
        return self.layers or tuple(range(self.n_layers))

    @property
    def names_layers(self) -> bool:
        """Whether a head's name needs its layer: there are several, or one of a model's."""
        return self.n_layers > 1 or self.layers != ()

    # ── cells ────────────────────────────────────────────────────────────────────────────────

    @property
    def is_pooled(self) -> bool:
        """Whether cells are pixels that pool the weights of many."""
        return self.pixels is not None

    @property
    def cells(self) -> tuple[int, int]:
        """Queries and keys that a cell stands for; (1, 1) where it is a weight."""
        return (1, 1) if self.pixels is None else self.pixels.cells

    @property
    def mean(self) -> Array:
        """`[L B H Pq Pk]`: the mean of the allowed weights of each cell; a weight is its own."""
        return self.attention

    @property
    def largest(self) -> Array:
        """`[L B H Pq Pk]`: the largest allowed weight of each cell."""
        return self.attention if self.pixels is None else self.pixels.largest

    @property
    def counts(self) -> Array:
        """`[L B 1|H Pq Pk]`: how many weights of each cell are allowed, 0 or 1 of a weight."""
        return self.allowed if self.pixels is None else self.pixels.counts

    def mask_of(self, layer: int, sequence: int, head: int) -> npt.NDArray[np.bool_]:
        """`[Pq Pk]`: `allowed` of one head."""
        masks = self.allowed[layer, sequence]
        return np.asarray(masks[head if len(masks) > 1 else 0])

    @property
    def has_weights_kept(self) -> bool:
        """Whether the weights of any window can be computed again: see `full_resolution`."""
        return all(name in self.kept for name in NEEDED_FOR_WEIGHTS)

    def row_means(self, sequence: int) -> dict[str, npt.NDArray[np.float64]]:
        """Each row statistic's mean over the real rows that see something, `[L H]`; NaN for none.

        Empty where rows have no statistics.
        """
        if self.rows is None:
            return {}
        statistics = self.rows.statistics
        real = self.query_valid[sequence]
        sees = real & (statistics["largest_key"][:, sequence] >= 0)  # L H Tq
        n = sees.sum(-1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return {
                name: np.where(sees, values[:, sequence], 0).sum(-1, dtype=np.float64) / n
                for name, values in statistics.items()
                if name != "largest_key"
            }

    def coarser(self, factor: int) -> Attention:
        """`factor` × `factor` cells as one; exact, as if they had been pooled so at once."""
        if factor == 1:
            return self
        counts = self.counts
        if self.pixels is None:  # rows of padding mean nothing
            counts = self.allowed & self.query_valid[:, None, :, None]
        mean, largest, counts = pooled_cells(self.attention, self.largest, counts, factor)
        cells = self.cells[0] * factor, self.cells[1] * factor
        pixels = Pixels(cells, largest, counts)
        return replace(self, attention=mean, allowed=counts > 0, pixels=pixels)

    def within(self, pixels: int) -> Attention:
        """The same with at most `pixels` cells a side."""
        return self.coarser(-(-max(self.attention.shape[3:]) // pixels))

    def as_map(self) -> Attention:
        """Each cell as if it were a weight; a pixel is named by its first position."""
        if self.pixels is None:
            return self
        (rows, keys), shape = self.cells, self.attention.shape[3:]

        def lengths(real: Array, width: int, cells: int, pixels: int) -> npt.NDArray[np.int64]:
            if self.pad_side == "right":
                return -(-real // cells)
            return np.asarray(pixels - (width - real) // cells)

        def names(n: int, cells: int) -> tuple[tuple[str, ...], ...]:
            return (tuple(str(i * cells) for i in range(n)),) * self.batch_size

        return replace(
            self,
            query_tokens=names(shape[0], rows),
            key_tokens=names(shape[1], keys),
            lengths=lengths(self.lengths, self.n_queries, rows, shape[0]),
            key_lengths=lengths(self.key_lengths, self.n_keys, keys, shape[1]),
            n_prompt=(),
            kept={},
            pixels=None,
            rows=None,
        )


PIXEL_AXES = ("L", "B", "H", "Pq", "Pk")


def _are_lengths(lengths: Array, batch: int, width: int) -> bool:
    whole = lengths.dtype.kind in "iu" and lengths.shape == (batch,)
    return whole and bool(((lengths >= 0) & (lengths <= width)).all())


def _has_axes(array: Array, axes: str, sizes: Mapping[str, int]) -> bool:
    """Whether an array has these axes: sizes by name, * for any, … for any others."""
    names = axes.split()
    if array.ndim != len(names) and names[-1] != "…":
        return False
    for name, size in zip(names, array.shape, strict=False):
        if name in sizes and size != sizes[name]:
            return False
        if name == "1|H" and size not in (1, sizes["H"]):
            return False
    return True


def pooled_cells(
    mean: Array, largest: Array, counts: Array, factor: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """(mean, largest, counts) of `factor` × `factor` cells as one, all `[… Pq Pk]`.

    `counts` says how many weights of each cell are allowed; a cell without any is 0.
    """
    seen = counts > 0
    sums = reduced(np.add, np.where(seen, mean, 0).astype(np.float64) * counts, factor, factor)
    top = reduced(np.maximum, np.where(seen, largest, -np.inf), factor, factor)
    counts = reduced(np.add, counts.astype(np.int64), factor, factor)
    mean = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0)
    return mean.astype(np.float32), np.where(counts > 0, top, 0).astype(np.float32), counts


def reduced(ufunc: np.ufunc, cells: Array, rows: int, columns: int) -> Array:
    """Each `rows` × `columns` block of the last two axes as one cell; blocks at the far edges may
    be smaller."""
    for axis, step in ((-2, rows), (-1, columns)):
        if step > 1:
            cells = ufunc.reduceat(cells, np.arange(0, cells.shape[axis], step), axis=axis)
    return cells


# ── from batches, and to them ────────────────────────────────────────────────────────────────


def from_batches(
    attention: Array, allowed: npt.NDArray[np.bool_], queries: Batch, keys: Batch, **fields: Any
) -> Attention:
    """Attention whose tokens and lengths are those of its two batches; `fields` are the others."""
    return Attention(attention, allowed, **_tokens_of(queries, keys), **fields)


def about_batches(queries: Batch, keys: Batch, **fields: Any) -> About:
    """What is known of attention between two batches before there is any."""
    return About(**_tokens_of(queries, keys), **fields)


def _tokens_of(queries: Batch, keys: Batch) -> dict[str, Any]:
    return {
        "query_tokens": queries.padded_tokens,
        "key_tokens": keys.padded_tokens,
        "lengths": queries.lengths,
        "key_lengths": keys.lengths,
        "pad_side": queries.pad_side,
    }


def batches_of(result: About) -> tuple[Batch, Batch]:
    """The tokens of a result as batches of queries and of keys; one and the same where they are.

    Raises `InputError` when all of them are padding.
    """
    made = []
    for side, width in enumerate((result.n_queries, result.n_keys)[: 1 + result.is_cross]):
        real = [result.real_tokens(sequence, side) for sequence in range(len(result.lengths))]
        made.append(make_batch(real, None, width, result.pad_side))
    return made[0], made[-1]


# ── parts ────────────────────────────────────────────────────────────────────────────────────


def only_layers(result: Attention, places: Sequence[int]) -> Attention:
    """`result` with the layers that stand at `places`, which keep their numbers.

    Neighbours in order are a view; others are copied.
    """
    first, last = places[0], places[-1]
    in_order = list(places) == list(range(first, last + 1))
    some: slice | list[int] = slice(first, last + 1) if in_order else list(places)
    pixels, rows = result.pixels, result.rows
    if pixels is not None:
        pixels = replace(pixels, largest=pixels.largest[some], counts=pixels.counts[some])
    if rows is not None:
        statistics = {name: array[some] for name, array in rows.statistics.items()}
        top = (rows.top_keys[some], rows.top_weights[some])
        rows = RowStatistics(rows.near, statistics, *top)
    return replace(
        result,
        attention=result.attention[some],
        allowed=result.allowed[some],
        kept={name: array[some] for name, array in result.kept.items()},
        layers=tuple(result.layer_numbers[place] for place in places),
        pixels=pixels,
        rows=rows,
    )


def part_of(result: Attention, rows: range, columns: range, sequence: int) -> Attention:
    """A window of one sequence of a whole map; its numbers are shared, not copied."""
    cut = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
    window = (slice(None), slice(sequence, sequence + 1), slice(None), *cut)
    return as_window(
        result, result.attention[window], result.allowed[window], rows, columns, sequence
    )


def as_window(
    about: About,
    weights: Array,
    allowed: npt.NDArray[np.bool_],
    rows: range,
    columns: range,
    sequence: int,
    layers: tuple[int, ...] | None = None,
) -> Attention:
    """A window, `[L 1 H rows columns]`, as attention of its own, which says where it stands.

    `about` is the whole that it was cut from, or what is known of it; `layers` are the numbers of
    the layers where they are not those of the whole.
    """
    part = [[rows.start, rows.stop], [columns.start, columns.stop]]
    where = f"queries {rows.start}:{rows.stop}, keys {columns.start}:{columns.stop}"
    return Attention(
        weights,
        allowed,
        query_tokens=(tuple(about.query_tokens[sequence][rows.start : rows.stop]),),
        key_tokens=(tuple(about.key_tokens[sequence][columns.start : columns.stop]),),
        lengths=np.array([len(rows)]),
        key_lengths=np.array([len(columns)]),
        masks=about.masks,
        config={**about.config, "part": part},
        source=", ".join(text for text in (about.source, where) if text),
        trained=about.trained,
        layers=about.layers if layers is None else layers,
    )
