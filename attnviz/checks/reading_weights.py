"""Weights, lengths and tokens as people have them in their hands, made into a checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.checks.checked_weights import Bfloat16, Cells, CheckedWeights, ExpectedMask
from attnviz.errors import InputError, printable
from attnviz.npy import as_numpy
from attnviz.result import Attention
from attnviz.tokens import PAD_SIDES, Batch, after_cache, make_batch

Array = npt.NDArray[Any]

AXES = {2: "Q K", 3: "H Q K", 4: "B H Q K", 5: "L B H Q K"}
"""What the axes of an array are taken for by default, by their number."""


def read_weights(
    weights: Any,
    axes: str | None = None,
    lengths: Sequence[int] | None = None,
    key_lengths: Sequence[int] | None = None,
    pad_side: str | None = None,
    tokens: Sequence[Any] | None = None,
    key_tokens: Sequence[Any] | None = None,
) -> CheckedWeights:
    """`weights` with the batches of their tokens, and with the masks of an `Attention`.

    Its own masks say whether its padding is hidden, unless lengths are given.

    Raises `InputError` where the sizes do not fit each other.
    """
    if isinstance(weights, CheckedWeights):
        return weights
    if isinstance(weights, Attention):
        return _from_result(weights, lengths, key_lengths, pad_side)
    layers = _layers_of(weights, axes)
    batch, heads, n_queries, n_keys = layers[0].shape
    if axes is None and batch == 1 < heads and lengths is not None and len(lengths) == heads:
        raise InputError(
            f"lengths are of {heads} sequences, and the array was read as {heads} heads of one; of "
            'a map a sequence, as nn.MultiheadAttention gives it, say axes="B Q K"'
        )
    side = pad_side or "right"
    if side not in PAD_SIDES:
        raise InputError(f"pad_side is '{printable(side)}'; right or left is expected")
    if key_lengths is None and n_queries == n_keys:
        key_lengths = lengths
    if key_tokens is None and n_queries == n_keys:
        key_tokens = tokens
    queries = _batch("", lengths, tokens, batch, n_queries, side)
    keys = _batch("key_", key_lengths, key_tokens, batch, n_keys, side)
    return CheckedWeights(layers, after_cache(queries, keys), keys, named=tokens is not None)


def _from_result(
    result: Attention,
    lengths: Sequence[int] | None,
    key_lengths: Sequence[int] | None,
    pad_side: str | None,
) -> CheckedWeights:
    hides = lengths is not None or key_lengths is not None or result.masks == ("unknown",)
    side = pad_side or result.pad_side
    *_, n_queries, n_keys = result.attention.shape
    if key_lengths is None and n_queries == n_keys:
        key_lengths = lengths
    sides = []
    for name, counts, own, rows, width in (
        ("", lengths, result.lengths, result.query_tokens, n_queries),
        ("key_", key_lengths, result.key_lengths, result.key_tokens, n_keys),
    ):
        sides.append(_batch(name, own if counts is None else counts, rows, len(rows), width, side))
    numbered = tuple(str(i) for i in range(n_queries))
    named = any(row != numbered for row in result.query_tokens)
    expected: tuple[ExpectedMask, ...] = ()
    if not result.allowed.all():
        allowed, name = result.allowed, ", ".join(result.masks) or "saved"
        expected = (ExpectedMask(name, "run", lambda layer, b, rows: allowed[layer, b][:, rows]),)
    if result.masks == ("unknown",):  # a bare array once
        sides[0] = after_cache(*sides)
    parts = [*result.notes, *(["a part of a map"] if result.is_part else [])]
    return CheckedWeights(
        list(result.attention),
        sides[0],
        sides[1],
        named,
        hides,
        expected,
        numbers=result.layers,
        cut=", ".join(parts),
    )


def _layers_of(weights: Any, axes: str | None) -> list[Array]:
    """`[B H Tq Tk]` for each layer: of one array, or of a list with an array for each."""
    if isinstance(weights, (list, tuple)) and any(hasattr(w, "shape") for w in weights):
        if axes is not None and "L" in axes.split():
            raise InputError("axes names L, and a list has a layer for each item; leave L out")
        layers = [layer for item in weights for layer in _layers_of(item, axes)]
        shapes = list(dict.fromkeys(layer.shape for layer in layers))
        if len(shapes) > 1:
            raise InputError(
                f"layers have shapes {list(shapes[0])} and {list(shapes[1])}; one is expected"
            )
        return layers
    array = as_array(weights)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise InputError(f"weights are {printable(array.dtype)}; floats of 16 to 64 bits expected")
    names = (axes or AXES.get(array.ndim, "")).split()
    if len(names) != array.ndim or len({*names}) < len(names) or not {"Q", "K"} <= {*names}:
        axes_words = f"axes '{printable(axes)}'" if axes is not None else f"{array.ndim} axes"
        raise InputError(
            f"weights of shape {list(array.shape)} do not go with {axes_words}; [Q K], [H Q K], "
            "[B H Q K] or [L B H Q K] is expected, or their order as axes"
        )
    if unknown := {*names} - {*"LBHQK"}:
        odd = printable(min(unknown))
        raise InputError(f"axes '{printable(axes)}': {odd} is none of L B H Q K")
    if 0 in array.shape:
        raise InputError(f"weights have shape {list(array.shape)}; none of its sizes may be 0")
    order = [names.index(name) for name in "LBHQK" if name in names]
    missing = tuple(i for i, name in enumerate("LBHQK") if name not in names)
    return list(np.expand_dims(array.transpose(order), missing))


def as_array(values: Any) -> Array:
    """What NumPy, torch, JAX or a list holds, as NumPy; bfloat16 becomes float32, exactly."""
    try:
        array = as_numpy(values)
    except ValueError:  # rows of several lengths
        raise InputError("an even list of numbers is expected; rows differ in length") from None
    return Bfloat16(array)[:] if is_bfloat16(array) else array


def is_bfloat16(array: Array) -> bool:
    """Whether these are the two bytes a number that a library without NumPy's help writes."""
    return array.dtype.itemsize == 2 and array.dtype.kind == "V"


def _batch(
    name: str,
    lengths: Sequence[int] | Array | None,
    tokens: Sequence[Any] | None,
    batch: int,
    width: int,
    pad_side: str,
) -> Batch:
    """A padded batch whose tokens are `tokens`, or the same for every place."""
    real = np.full(batch, width) if lengths is None else np.asarray(as_array(lengths))
    if real.ndim != 1 or len(real) not in (1, batch) or real.dtype.kind not in "iu":
        raise InputError(
            f"{name}lengths are {printable(real.tolist())}; {batch} whole number"
            f"{'s' * (batch != 1)} {'are' if batch != 1 else 'is'} expected, one a sequence"
        )
    real = np.broadcast_to(real, batch)
    if real.min() < 0 or real.max() > width:
        far = int(real.max() if real.max() > width else real.min())
        raise InputError(f"{name}lengths has {far}; the array has {width} places, 0 to {width} fit")
    rows: Sequence[Any] = [("·",) * width] if tokens is None else tokens
    if rows and isinstance(rows[0], str):
        rows = [rows]
    if len(rows) not in (1, batch):
        raise InputError(f"{name}tokens has {len(rows)} sequences; the array has {batch}")
    sequences = []
    for i, n in enumerate(real.tolist()):
        row = tuple(map(str, rows[i % len(rows)]))
        if len(row) not in (n, width):
            raise InputError(
                f"{name}tokens of sequence {i} are {len(row)}; {n} or, with padding, {width} fit"
            )
        start = 0 if pad_side == "right" or len(row) == n else width - n
        sequences.append(row[start : start + n])
    if not any(sequences):
        raise InputError(f"every one of {name}lengths is 0; there is nothing to check")
    return make_batch(sequences, None, width, pad_side)


def lengths_of(mask: Any, batch: int, width: int) -> tuple[list[int], str]:
    """A padding mask `[B T]`, True on real tokens, as lengths and the side of the padding.

    Raises `InputError` where real tokens do not stand together at one end.
    """
    array = as_array(mask)
    rows = array[None] if array.ndim == 1 else array
    rows = rows.reshape(len(rows), -1) if rows.ndim == 4 and rows.shape[1:3] == (1, 1) else rows
    if rows.ndim != 2 or rows.shape[1] != width or len(rows) not in (1, batch):
        raise InputError(
            f"the padding mask has shape {list(array.shape)}; [{batch} {width}] is expected"
        )
    if ((rows != 0) & (rows != 1)).any():
        raise InputError("the padding mask holds other numbers than 0 and 1")
    real = np.broadcast_to(rows.astype(bool), (batch, width))
    lengths = real.sum(1)
    for side in PAD_SIDES:
        if (make_lengths_mask(lengths, width, side) == real).all():
            return lengths.tolist(), side
    raise InputError(
        "the padding mask has padding between real tokens, or on both sides; give it as a mask "
        "[B 1 Tk] instead"
    )


def make_lengths_mask(lengths: Array, width: int, pad_side: str) -> Cells:
    """`[B width]`, True on the real tokens."""
    places = np.arange(width)
    if pad_side == "right":
        return np.asarray(places < lengths[:, None])
    return np.asarray(places >= width - lengths[:, None])
