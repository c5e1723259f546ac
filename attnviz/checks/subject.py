"""What is checked: weights by layers, where their tokens stand, and the masks they should obey."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.batch import PAD_SIDES, SEP, Batch, make_batch
from attnviz.config import check_size
from attnviz.errors import InputError, printable
from attnviz.masks import Rule
from attnviz.result import AttentionResult

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Rows = slice

AXES = {2: "Q K", 3: "H Q K", 4: "B H Q K", 5: "L B H Q K"}
"""What the axes of an array are taken for where nothing is said, by their number."""


@dataclass(frozen=True)
class Bfloat16:
    """bfloat16 numbers as NumPy can have them, two bytes each, read as float32 where looked at."""

    raw: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.raw.shape

    def __getitem__(self, index: Any) -> Array:
        part = np.ascontiguousarray(self.raw[index]).view(np.uint16)
        return (part.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Told:
    """One mask that the weights should obey, and what people make of it by mistake.

    `allows(layer, sequence, rows)` is bool `[1|H rows Tk]`, True where a query may look.
    `mistakes` are other masks of that kind by what they are, in words that follow "as if".
    """

    name: str
    kind: str
    allows: Callable[[int, int, Rows], Mask]
    mistakes: Mapping[str, Callable[[int, int, Rows], Mask]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Subject:
    """Weights `[B H Tq Tk]` for each layer, and the padded batches of their queries and keys.

    `named` says whether the tokens are somebody's, or made up.
    """

    layers: Sequence[Array | Bfloat16]
    queries: Batch
    keys: Batch
    named: bool = False
    told: tuple[Told, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """L, B, H, Tq, Tk."""
        batch, heads, queries, keys = self.layers[0].shape
        return len(self.layers), batch, heads, queries, keys

    @property
    def sizes(self) -> dict[str, int]:
        """The axes' lengths by name."""
        return dict(zip(("L", "B", "H", "Tq", "Tk"), self.shape, strict=True))

    @property
    def dtype(self) -> str:
        """The type of number that the weights are saved as."""
        layer = self.layers[0]
        return "bfloat16" if isinstance(layer, Bfloat16) else layer.dtype.name

    def layer(self, layer: int) -> Array:
        """All weights of a layer, `[B H Tq Tk]`."""
        return self.layers[layer][:]

    @cached_property
    def query_valid(self) -> Mask:
        """`[B Tq]`: True on real query tokens, False on padding."""
        return self.queries.valid

    def allowed(self, layer: int, sequence: int, rows: Rows) -> Mask | None:
        """All masks together, bool `[1|H rows Tk]`; None where none is told."""
        masks = [told.allows(layer, sequence, rows) for told in self.told]
        return all_of(masks)

    def token(self, sequence: int, place: int | None, of_keys: bool) -> str | None:
        """The token at a place, where tokens are known."""
        if not self.named or place is None:
            return None
        batch = self.keys if of_keys else self.queries
        return batch.vocabulary[int(batch.ids[sequence, place])]


def all_of(masks: Sequence[Mask]) -> Mask | None:
    if not masks:
        return None
    together = masks[0]
    for mask in masks[1:]:
        together = together & mask
    return together


# ── from what people have in their hands ─────────────────────────────────────────────────────


def make_subject(
    weights: Any,
    axes: str | None = None,
    lengths: Sequence[int] | None = None,
    key_lengths: Sequence[int] | None = None,
    pad_side: str | None = None,
    tokens: Sequence[Any] | None = None,
    key_tokens: Sequence[Any] | None = None,
) -> Subject:
    """`weights` as a subject; the masks of an `AttentionResult` are told, no others.

    Raises `InputError` where the sizes do not fit each other.
    """
    if isinstance(weights, Subject):
        return weights
    if isinstance(weights, AttentionResult):
        return _from_result(weights, lengths, key_lengths, pad_side)
    layers = _layers_of(weights, axes)
    batch, _, n_queries, n_keys = layers[0].shape
    side = pad_side or "right"
    if side not in PAD_SIDES:
        raise InputError(f"pad_side is '{printable(side)}'; right or left is expected")
    if key_lengths is None and n_queries == n_keys:
        key_lengths = lengths
    if key_tokens is None and n_queries == n_keys:
        key_tokens = tokens
    queries = _batch("", lengths, tokens, batch, n_queries, side)
    keys = _batch("key_", key_lengths, key_tokens, batch, n_keys, side)
    return Subject(layers, queries, keys, named=tokens is not None)


def _from_result(
    result: AttentionResult,
    lengths: Sequence[int] | None,
    key_lengths: Sequence[int] | None,
    pad_side: str | None,
) -> Subject:
    side = pad_side or result.pad_side
    *_, n_queries, n_keys = result.attention.shape
    if key_lengths is None and n_queries == n_keys:
        key_lengths = lengths
    sides = []
    for name, given, own, rows, width in (
        ("", lengths, result.lengths, result.query_tokens, n_queries),
        ("key_", key_lengths, result.key_lengths, result.key_tokens, n_keys),
    ):
        sides.append(_batch(name, own if given is None else given, rows, len(rows), width, side))
    numbered = tuple(str(i) for i in range(n_queries))
    named = any(row != numbered for row in result.query_tokens)
    told: tuple[Told, ...] = ()
    if not result.allowed.all():
        allowed, name = result.allowed, ", ".join(result.masks) or "saved"
        told = (Told(name, "run", lambda layer, b, rows: allowed[layer, b][:, rows]),)
    return Subject(list(result.attention), sides[0], sides[1], named, told)


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
        given = f"axes '{printable(axes)}'" if axes is not None else f"{array.ndim} axes"
        raise InputError(
            f"weights of shape {list(array.shape)} do not go with {given}; [Q K], [H Q K], "
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


def as_array(given: Any) -> Array:
    """What NumPy, torch, JAX or a list holds, as NumPy; bfloat16 becomes float32, exactly."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        if "bfloat16" in str(given.dtype):
            given = given.float()
        return np.asarray(given.numpy())
    try:
        array = np.asarray(given)
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
    """A padded batch whose tokens are those given, or the same for every place."""
    wanted = np.full(batch, width) if lengths is None else np.asarray(as_array(lengths))
    if wanted.ndim != 1 or len(wanted) not in (1, batch) or wanted.dtype.kind not in "iu":
        raise InputError(
            f"{name}lengths are {printable(wanted.tolist())}; {batch} whole number"
            f"{'s' * (batch != 1)} {'are' if batch != 1 else 'is'} expected, one a sequence"
        )
    wanted = np.broadcast_to(wanted, batch)
    if wanted.min() < 0 or wanted.max() > width:
        far = int(wanted.max() if wanted.max() > width else wanted.min())
        raise InputError(f"{name}lengths has {far}; the array has {width} places, 0 to {width} fit")
    rows: Sequence[Any] = [("·",) * width] if tokens is None else tokens
    if rows and isinstance(rows[0], str):
        rows = [rows]
    if len(rows) not in (1, batch):
        raise InputError(f"{name}tokens has {len(rows)} sequences; the array has {batch}")
    sequences = []
    for i, n in enumerate(wanted.tolist()):
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


def make_lengths_mask(lengths: Array, width: int, pad_side: str) -> Mask:
    """`[B width]`, True on the real tokens."""
    places = np.arange(width)
    if pad_side == "right":
        return np.asarray(places < lengths[:, None])
    return np.asarray(places >= width - lengths[:, None])


# ── the masks that are told ──────────────────────────────────────────────────────────────────


def with_masks(
    subject: Subject,
    causal: bool = False,
    window: int | None = None,
    prefix: int | None = None,
    segments: bool = False,
    mask: Any = None,
    mask_name: str = "mask",
) -> Subject:
    """`subject`, told these masks too, and padding where it has any.

    Raises `InputError` where a mask does not fit.
    """
    from attnviz import masks

    queries, keys = subject.queries, subject.keys
    _, batch, heads, n_queries, n_keys = subject.shape
    told = list(subject.told)

    def tell(rule: Rule, kind: str, **mistakes: Callable[[Array, Array], Mask]) -> None:
        told.append(
            Told(
                rule.name,
                kind,
                _rows_of(rule, heads, n_queries, n_keys),
                {
                    words.replace("_", " "): _pattern(cells, n_queries, n_keys)
                    for words, cells in mistakes.items()
                },
            )
        )

    if not keys.valid.all() and not any(mask.kind == "run" for mask in told):
        tell(masks.padding(keys), "padding")
    if causal:
        later = n_keys - n_queries
        ends = {"the_last_query_stood_at_the_last_key": lambda q, k: k <= q + later}
        tell(masks.causal(queries, keys), "causal", **(ends if later > 0 else {}))
    if window is not None:
        check_size("window", window)
        tell(
            masks.window(window, queries, keys),
            "window",
            it_reached_one_key_further=lambda q, k: (k <= q) & (k > q - window - 1),
            it_were_one_key_narrower=lambda q, k: (k <= q) & (k > q - window + 1),
            it_reached_both_ways=lambda q, k: abs(q - k) < window,
            it_had_no_limit=lambda q, k: k <= q,
            it_did_not_stop_at_the_query=lambda q, k: k > q - window,
        )
    if prefix is not None:
        check_size("prefix", prefix)
        tell(
            masks.prefix(prefix, queries, keys),
            "prefix",
            positions_counted_the_padding=lambda q, k: (k <= q) | (k < prefix),
            its_prefix_were_one_key_longer=lambda q, k: (k <= q) | (k < prefix + 1),
            it_were_causal_alone=lambda q, k: k <= q,
        )
    if segments:
        if not subject.named:
            raise InputError(f"segments end at {SEP}, and the tokens are not known; give tokens")
        tell(masks.segments(queries, keys), "segments")
    if mask is not None:
        array = as_array(mask)
        if array.dtype != np.bool_ and ((array != 0) & (array != 1)).any():
            raise InputError(
                f"the mask is {printable(array.dtype)} with other numbers than 0 and 1; give "
                "True where a query may look: mask == 0 of one that is added to scores"
            )
        size = (batch, heads, n_queries, n_keys)
        tell(masks.from_array(array.astype(bool), mask_name, *size), "mask")
    return replace(subject, told=tuple(told))


def _rows_of(rule: Rule, heads: int, queries: int, keys: int) -> Callable[[int, int, Rows], Mask]:
    """The rule's `[1|H rows Tk]` of one sequence, the same in every layer."""
    import torch

    h = torch.arange(heads if rule.per_head else 1)[:, None, None]
    k = torch.arange(keys)[None, None, :]

    def allows(_layer: int, sequence: int, rows: Rows) -> Mask:
        q = torch.arange(queries)[rows][None, :, None]
        found = rule.allows(torch.tensor(sequence), h, q, k)
        return np.broadcast_to(found.numpy(), (len(h), q.shape[1], keys))

    return allows


def _pattern(
    cells: Callable[[Array, Array], Mask], queries: int, keys: int
) -> Callable[[int, int, Rows], Mask]:
    """A mask over places in the array, the same everywhere."""

    def allows(_layer: int, _sequence: int, rows: Rows) -> Mask:
        return cells(np.arange(queries)[rows][:, None], np.arange(keys)[None, :])[None]

    return allows
