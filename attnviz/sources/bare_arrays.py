"""Attention that somebody else computed: a saved run, or a bare array and what makes it one.

A bare array does not say which of its axes is which, what its tokens are, or which cells a mask
forbids. Flags say so; where they do not, the usual order is assumed, and a note says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable, why_unreadable
from attnviz.machine import require_memory
from attnviz.npy import BFLOAT16
from attnviz.result import FLOATS, UNKNOWN_MASKS, Attention, from_batches, only_layers
from attnviz.saved_runs import load
from attnviz.sources.array_files import READERS, Array, Arrays, is_saved_run, read_arrays
from attnviz.sources.array_tokens import AxisTokens, Given, token_batches
from attnviz.tokens import Batch
from attnviz.wording import plural

AXES = {"L": "layer", "B": "sequence", "H": "head", "Q": "query", "K": "key"}
"""The axes of attention, in the order of a result."""

USUAL = {2: "Q K", 3: "H Q K", 4: "B H Q K", 5: "L B H Q K"}
"""How arrays of so many axes are read where nobody says otherwise: a layer's attention has the
axes that PyTorch and transformers give it."""

ALTERNATIVES = {
    3: 'for layers or sequences, --axes "L Q K" or "B Q K"',
    4: 'for layers × heads, --axes "L H Q K"',
}

Places = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Layers, sequences and heads by number: their product is what is wanted of an array."""


def read_attention(
    path: Path | str,
    *,
    axes: str | None = None,
    tokens: Given | None = None,
    key_tokens: Given | None = None,
    softmax: bool = False,
    lengths: Sequence[int] | None = None,
    key_lengths: Sequence[int] | None = None,
    pad_side: str | None = None,
    attention: str | None = None,
) -> tuple[Attention, list[str]]:
    """A saved run, or a bare array of attention in `.npy`, `.npz`, `.safetensors`, `.pt`, `.pth`.

    `axes` are letters of `L B H Q K`, one for each axis of the array, in its order; `tokens` and
    `key_tokens` name its queries and keys, `lengths` and `key_lengths` `[B]` count the real ones;
    `attention` is the name of one array among several. With `softmax` the numbers are scores.
    Returns the attention, mapped where the format allows it, and notes on what was assumed.

    Raises `InputError` for a file or a flag that does not fit.
    """
    found = open_attention(path, axes=axes, attention=attention)
    if isinstance(found, Attention):
        given = {
            "--axes": axes,
            "--tokens": tokens,
            "--key-tokens": key_tokens,
            "--softmax": softmax or None,
            "--lengths": lengths,
            "--key-lengths": key_lengths,
            "--pad-side": pad_side,
            "--attention": attention,
        }
        refuse_for_saved_run(path, [name for name, value in given.items() if value is not None])
        return found, []
    batches = found.batches(tokens, key_tokens, lengths, key_lengths, pad_side)
    return found.read(*batches, softmax=softmax), found.notes


def refuse_for_saved_run(path: Path | str, given: Sequence[str]) -> None:
    """Raise `InputError` when flags of bare arrays are given with a saved run."""
    if given:
        raise InputError(
            f"{printable(path)} is a saved run, which knows its axes and tokens; "
            f"{given[0]} is for bare arrays"
        )


def open_attention(
    path: Path | str,
    *,
    axes: str | None = None,
    attention: str | None = None,
    pooled: bool = False,
) -> Attention | BareArray:
    """A saved run, or a bare array whose axes are known and whose numbers are not read yet.

    A run whose cells are pixels is refused unless `pooled` says that they will do.
    """
    path = Path(path)
    shown, suffix = printable(path), path.suffix.lower()
    if suffix not in (*READERS, ".json"):
        raise InputError(_unknown_format(path))
    try:
        if path.stat().st_size == 0:
            raise InputError("is empty")
        if not is_saved_run(path):
            arrays, name = read_arrays(path, attention)
            return BareArray(path, *arranged(arrays, axes), name)
    except InputError as error:
        raise InputError(f"{shown} {error}") from None
    except OSError as error:
        raise InputError(f"{shown}: {why_unreadable(path, error)}") from None
    run = load(path)
    if max(run.cells) > 1 and not pooled:
        raise InputError(
            f"{shown} is a saved long run, whose maps are pooled, and every weight is needed here; "
            "save whole maps of a shorter text"
        )
    return run


def _unknown_format(path: Path) -> str:
    shown = printable(path)
    if path.is_dir():
        return f"{shown} is a folder; a file of attention is expected"
    if not path.exists():
        return f"{shown}: no such file or directory"
    known = ", ".join((*READERS, ".json"))
    suffix = printable(path.suffix)
    given = f"has the suffix '{suffix}'" if suffix else "has no suffix"
    hint = "; unpack it first" if suffix in (".gz", ".bz2", ".xz", ".zst", ".zip") else ""
    return f"{shown} {given}; attention is read from {known}{hint}"


# ── axes ─────────────────────────────────────────────────────────────────────────────────────


def arranged(arrays: Arrays, axes: str | None) -> tuple[Arrays, str]:
    """A view `[L B H Q K]`, or of each layer `[B H Q K]`, and in words how the axes were read.

    Raises `InputError` for axes that do not fit, sizes of 0 and numbers that are no real numbers.
    """
    layers = arrays if isinstance(arrays, list) else [arrays]
    for array in layers:
        _require_numbers(array)
    for i, array in enumerate(layers):
        if array.ndim != layers[0].ndim:
            raise InputError(_different_sizes(layers, i))
    n_axes = layers[0].ndim + isinstance(arrays, list)
    shape = ((len(layers),) if isinstance(arrays, list) else ()) + layers[0].shape
    letters = _letters(axes, shape, isinstance(arrays, list))
    if 0 in shape:
        raise InputError(f"has shape {printable(list(shape))}: there is nothing in it")
    own = letters[isinstance(arrays, list) :]
    for i, array in enumerate(layers):
        pairs = zip(own, array.shape, layers[0].shape, strict=True)
        if any(n != first for letter, n, first in pairs if letter != "H"):
            raise InputError(_different_sizes(layers, i))
    heads = [array.shape[own.index("H")] if "H" in own else 1 for array in layers]
    sizes = dict(zip(letters, shape, strict=True))
    sizes |= {"H": max(heads)} if "H" in sizes else {}
    words = f"read as {' '.join(letters)}: {_sizes(sizes)}"
    if len(set(heads)) > 1:
        words += f"; heads of each layer: {printable(', '.join(map(str, heads)))}"
    if axes is None and n_axes in ALTERNATIVES and not isinstance(arrays, list):
        words += f"; {ALTERNATIVES[n_axes]}"
    if isinstance(arrays, list):
        return [_ordered(array, letters[1:], "BHQK") for array in layers], words
    return _ordered(arrays, letters, "LBHQK"), words


def _different_sizes(layers: Sequence[Array], i: int) -> str:
    first, other = list(layers[0].shape), list(layers[i].shape)
    return f"has layers of different sizes: layer 0 is {first}, layer {i} is {other}"


def _letters(axes: str | None, shape: tuple[int, ...], has_layers: bool) -> list[str]:
    """The letter of each axis; a list of layers has the axis L first, though no array has it."""
    if axes is None:
        own = len(shape) - has_layers
        if own not in range(2, 6 - has_layers):
            many = "from 2 to 4 axes for a layer" if has_layers else "from 2 to 5 axes"
            raise InputError(
                f"has {plural(own, 'axis', 'axes')}, shape {printable(list(shape[has_layers:]))}; "
                f"attention has {many}"
            )
        return [*("L" * has_layers), *USUAL[own].split()]
    letters = [c for c in axes.upper().replace("TQ", "Q").replace("TK", "K") if c not in " ,"]
    if has_layers and letters[:1] != ["L"]:
        letters.insert(0, "L")
    asked = f"--axes '{printable(axes)}'"
    wrong = next((c for c in letters if c not in AXES or letters.count(c) > 1), None)
    if wrong is not None:
        why = "stands twice" if wrong in AXES else "is none of L B H Q K"
        raise InputError(f"cannot be read by {asked}: {printable(wrong)} {why}")
    if not {"Q", "K"} <= set(letters):
        raise InputError(f"cannot be read by {asked}: Q and K, queries and keys, are needed")
    if len(letters) != len(shape):
        raise InputError(
            f"cannot be read by {asked}: it has {plural(len(shape), 'axis', 'axes')}, "
            f"shape {printable(list(shape))}"
        )
    return letters


def _ordered(array: Array, letters: Sequence[str], wanted: str) -> Array:
    """A view with the axes `wanted`, in this order; those that the array lacks have size 1."""
    present = [letter for letter in wanted if letter in letters]
    array = array.transpose([letters.index(letter) for letter in present])
    missing = [i for i, letter in enumerate(wanted) if letter not in letters]
    return np.expand_dims(array, tuple(missing))


def _require_numbers(array: Array) -> None:
    """Raise `InputError` unless the array holds real numbers."""
    if array.dtype.kind not in "biuf" and array.dtype != BFLOAT16:
        raise InputError(f"holds {printable(array.dtype)}; attention is real numbers")


def sizes_in_words(shape: Sequence[int]) -> str:
    """`[L B H Q K]` as `2 layers, 12 heads, 7 queries × 9 keys`; a single layer goes without."""
    sizes = dict(zip(AXES, shape, strict=True))
    return _sizes({k: n for k, n in sizes.items() if n > 1 or k not in "LB"})


def _sizes(sizes: dict[str, int]) -> str:
    words = [plural(sizes[letter], AXES[letter]) for letter in "LBH" if letter in sizes]
    queries, keys = plural(sizes["Q"], "query"), plural(sizes["K"], "key")
    return ", ".join([*words, f"{queries} × {keys}"])


# ── the array ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class BareArray:
    """An array of attention whose axes are known and whose numbers are not read yet.

    `layers` is `[L B H Q K]`, or a list of `[B H Q K]`.
    """

    path: Path
    layers: Array | list[Array]
    words: str
    name: str = ""

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """`[L B H Q K]`, with the heads of the layer that has the most."""
        batch, _, queries, keys = self.layers[0].shape
        return len(self.layers), batch, max(self.n_heads), queries, keys

    @property
    def n_heads(self) -> list[int]:
        """The heads of each layer."""
        return [layer.shape[1] for layer in self.layers]

    @property
    def layer_numbers(self) -> range:
        return range(len(self.layers))

    @property
    def names_layers(self) -> bool:
        return len(self.layers) > 1

    def require_as_many_heads(self) -> None:
        """Raise `InputError` where layers have different numbers of heads."""
        odd = next((i for i, n in enumerate(self.n_heads) if n != self.n_heads[0]), None)
        if odd is not None:
            why = _different_sizes(list(self.layers), odd)
            raise InputError(f"{printable(self.path)} {why}; attnviz render draws them")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of number that the result has: the array's own, else the next that holds it."""
        own = {layer.dtype.newbyteorder("=") for layer in self.layers}
        floats = [np.dtype(t) for t in own if t.kind == "f"]
        if len(floats) < len(own):  # bfloat16, whole numbers, True and False
            floats.append(np.dtype(np.float32))
        return min(np.result_type(*floats), np.dtype(np.float64))

    @property
    def notes(self) -> list[str]:
        """How the file was read, in words."""
        found = f"{printable(self.path)}: "
        if self.name:
            found += f"{printable(self.name)} "
        found += self.words
        own = {layer.dtype for layer in self.layers}
        before = sorted({"bfloat16" if t == BFLOAT16 else t.name for t in own} - {self.dtype.name})
        if before:
            verb = "becomes" if len(before) == 1 else "become"
            found += f"; {' and '.join(before)} {verb} {self.dtype.name}"
        return [found]

    def batches(
        self,
        tokens: Given | None = None,
        key_tokens: Given | None = None,
        lengths: Sequence[int] | None = None,
        key_lengths: Sequence[int] | None = None,
        pad_side: str | None = None,
    ) -> tuple[Batch, Batch]:
        """Queries and keys as batches; see `token_batches`."""
        _, batch, _, n_queries, n_keys = self.shape
        queries = AxisTokens("queries", n_queries, tokens, lengths)
        return token_batches(
            batch, queries, AxisTokens("keys", n_keys, key_tokens, key_lengths), pad_side
        )

    def read(
        self,
        queries: Batch,
        keys: Batch,
        *,
        softmax: bool = False,
        allowed: npt.NDArray[np.bool_] | None = None,
        masks: Sequence[str] = UNKNOWN_MASKS,
        wanted: Places | None = None,
    ) -> Attention:
        """The attention. Numbers that need no change stay where they are, on disk.

        `allowed`, bool `[B 1|H Q K]`, is the mask, True = may look, by the names `masks`; with
        `softmax` the numbers are scores, and shared among the keys that it allows. Of `wanted` the
        layers alone are in the result, by their numbers; and where numbers do need a change, other
        sequences and heads are not read, and are 0. A head that a layer lacks is 0 and forbidden.

        Raises `InputError` when memory for them is short.
        """
        n_layers, batch, n_heads, n_queries, n_keys = self.shape
        places = wanted or (range(n_layers), range(batch), range(n_heads))
        if allowed is None:
            allowed = np.broadcast_to(np.True_, (batch, 1, n_queries, n_keys))
        dtype = np.result_type(self.dtype, np.float32) if softmax else self.dtype
        attention = None if softmax else self._as_it_is()
        changed = attention is None
        if attention is None:
            attention = self._changed(dtype, allowed if softmax else None, places)
        source = self.path.name + (f", {self.name}" if self.name else "")
        some = list(places[0]) != list(range(n_layers))
        seen = np.broadcast_to(allowed, (len(attention), *allowed.shape))
        if len(set(self.n_heads)) > 1:
            seen = np.broadcast_to(seen, attention.shape).copy()
            for i, layer in enumerate(places[0]):
                seen[i, :, self.n_heads[layer] :] = False
        result = from_batches(
            attention,
            seen,
            queries,
            keys,
            masks=tuple(masks),
            config={"dtype": dtype.name},
            source=f"softmax of {source}" if softmax else source,
            layers=tuple(places[0]) if some and changed else (),
        )
        return only_layers(result, places[0]) if some and not changed else result

    def _as_it_is(self) -> Array | None:
        """All layers as one array, where they are one and its type of number is known."""
        whole = self.layers
        if isinstance(whole, list):
            if len(whole) > 1:
                return None
            whole = whole[0][None]
        return whole if whole.dtype in FLOATS and whole.dtype.isnative else None

    def _changed(
        self, dtype: np.dtype[Any], allowed: npt.NDArray[np.bool_] | None, wanted: Places
    ) -> Array:
        """The wanted heads as numbers of `dtype`, through a softmax where `allowed` is given."""
        layers, sequences, heads = wanted
        shape = (len(layers), *self.shape[1:])
        n = len(layers) * len(sequences) * len(heads)
        require_memory(
            shape[3] * shape[4] * dtype.itemsize * (n + 6),
            f"{printable(self.path)}: {plural(n, 'head')} of {shape[3]} × {shape[4]}",
            "choose fewer layers, heads or sequences",
        )
        attention = np.zeros(shape, dtype)  # what is not written to takes no memory
        for (i, layer), sequence, head in product(enumerate(layers), sequences, heads):
            if head >= self.n_heads[layer]:
                continue
            part = _decoded(self.layers[layer][sequence, head]).astype(dtype)
            if allowed is not None:
                mask = allowed[sequence]
                part = softmax_of(part, mask[head if len(mask) > 1 else 0])
            attention[i, sequence, head] = part
        return attention


def softmax_of(scores: Array, allowed: npt.NDArray[np.bool_]) -> Array:
    """Softmax over the last axis, among the keys that `allowed` allows; rows of none are 0.

    A score of -inf forbids as well. NaN and +inf make their row NaN.
    """
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        raised = np.exp(scores - np.where(top == -np.inf, 0, top))
        total = raised.sum(-1, keepdims=True)
        return np.asarray(raised / np.where(total == 0, 1, total), dtype=scores.dtype)


def _decoded(part: Array) -> Array:
    """bfloat16 is the upper half of a float32."""
    if part.dtype != BFLOAT16:
        return part
    return (part.view("<u2").astype(np.uint32) << 16).view(np.float32)
