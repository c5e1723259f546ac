"""Two results over the same tokens: how far apart each head is, and where most.

Sequences are laid on each other token by token, wherever their padding stands. A run is read one
head and a block of rows at a time, so that two dumps larger than the memory can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan

import numpy as np
import numpy.typing as npt

from attnviz.divergence import jensen_shannon
from attnviz.errors import ConfigError, InputError, printable
from attnviz.npy import as_numpy
from attnviz.result import UNKNOWN_MASKS, Attention
from attnviz.wording import plural

BLOCK = 2**20
"""Weights of each side that are in work at once: 8 MiB as float64."""

LACKING = 0.01
"""A row whose sum is further than this from 1 is no rounding of a distribution: bfloat16 has steps
of 0.004 below 1."""

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ComparedCell:
    """One cell of both results. `query` and `key` are positions in their sequences, from 0.

    `layer` is an index, as in every part of a comparison: `layer_numbers` of A has its number.
    """

    layer: int
    head: int
    other: int
    """The head of B."""
    sequence: int
    query: int
    key: int
    query_token: str
    key_token: str
    a: float
    b: float

    @property
    def difference(self) -> float:
        """What B gives more than A."""
        return self.b - self.a


@dataclass(frozen=True)
class HeadDifference:
    """One head of A beside one of B, over all chosen sequences."""

    layer: int
    head: int
    other: int
    """The head of B: the same number, or its match."""
    bits: float
    """Mean Jensen–Shannon divergence of `rows` query rows; NaN where there is none."""
    by_sequence: tuple[float, ...]
    """The same of each chosen sequence."""
    rows: int
    largest: ComparedCell | None
    """The largest difference of a cell; None where no row can be compared."""
    broken: ComparedCell | None
    """The first cell that is NaN or infinite in A or B."""
    only_a: int
    """Cells that A's mask allows and B's forbids."""
    only_b: int

    @property
    def difference(self) -> float:
        """The size of the largest difference of a cell; NaN where no row can be compared."""
        return abs(self.largest.difference) if self.largest else float("nan")


@dataclass(frozen=True, eq=False)
class Comparison:
    """What `compare` found. `heads` has the one that changed most first."""

    a: Attention
    b: Attention
    sequences: tuple[int, ...]
    heads: tuple[HeadDifference, ...]
    matched: bool
    """Whether heads were paired by similarity; otherwise by index."""
    notes: tuple[str, ...]
    """What is unusual about the rows or the masks, a sentence each."""

    @property
    def largest(self) -> ComparedCell | None:
        """The largest difference of all cells."""
        places = [head.largest for head in self.heads if head.largest]
        return max(places, key=lambda place: abs(place.difference), default=None)

    @property
    def broken(self) -> ComparedCell | None:
        """The first cell that is NaN or infinite in A or B."""
        order = sorted(self.heads, key=lambda head: (head.layer, head.head))
        return next((head.broken for head in order if head.broken), None)

    @property
    def moved(self) -> dict[int, list[tuple[int, int]]]:
        """Layer → (head of A, head of B) in A's order."""
        pairs: dict[int, list[tuple[int, int]]] = {}
        for head in sorted(self.heads, key=lambda head: (head.layer, head.head)):
            pairs.setdefault(head.layer, []).append((head.head, head.other))
        return pairs

    def within(self, tolerance: float) -> bool:
        """Whether no cell differs by more; False where a cell is no number."""
        largest = self.largest
        return self.broken is None and (largest is None or abs(largest.difference) <= tolerance)


def compare(
    a: Attention | npt.ArrayLike,
    b: Attention | npt.ArrayLike,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    sequences: Sequence[int] | None = None,
    match: bool = False,
    on_done: Callable[[], object] = lambda: None,
) -> Comparison:
    """Compare two results over the same tokens, head by head.

    Each may be a result, an array or tensor `[L B H Tq Tk]` or without its first axes, or a list of
    layers `[B H Tq Tk]`; an array has the tokens of the other one, or their numbers, and what the
    other's mask forbids is no difference while the array gives it no weight.

    A head's distance is the mean Jensen–Shannon divergence, in bits, over the rows of real queries
    that may see something in A or in B. A row that sums to 1, but for rounding, is divided by its
    sum; what another lacks to 1 (a sink, dropout, weight on padding, a row that sees nothing)
    counts as one more outcome beside its keys. Differences of cells are b - a as they stand.

    Heads are paired by index, or with `match` so that the distances of each layer have the smallest
    sum (Kuhn 1955, through SciPy): a layer computes the same with its heads in any order.
    `layers`, `heads` (of A) and `sequences` choose what is compared. `on_done` is called after each
    head, and after each layer's matching.

    Raises `InputError` where tokens or sizes differ, naming the first difference.
    """
    a, b = as_results(a, b)
    layers = range(a.n_layers) if layers is None else layers
    heads = range(a.n_heads) if heads is None else heads
    sequences = range(a.batch_size) if sequences is None else sequences
    check_alike(a, b, sequences, match)
    sides = _SideRows(a), _SideRows(b)
    found = []
    notes = list(_layer_notes(a, b))
    for layer in layers:
        pairs = [(head, head) for head in heads]
        if match:
            pairs = _matched(sides, layer, heads, sequences)
            alone = sorted(set(heads) - {head for head, _ in pairs})
            if alone:
                names = ", ".join(map(str, alone))
                word = f"A's heads {names} have" if len(alone) > 1 else f"A's head {names} has"
                where = f"layer {a.layer_numbers[layer]}"
                notes.append(f"{where}: {word} no partner in B")
            on_done()
        for head, other in pairs:
            found.append(_compare_heads(sides, layer, head, other, sequences))
            on_done()
    found.sort(key=_most_changed)
    notes += _mask_notes(found, a, b)
    for name, side in zip("AB", sides, strict=True):
        notes += side.notes(name)
    return Comparison(a, b, tuple(sequences), tuple(found), match, tuple(notes))


def _most_changed(head: HeadDifference) -> tuple[bool, float, float, int, int]:
    """Heads that cannot be compared first; equal distances by their largest cell."""
    bits, largest = (0.0 if isnan(x) else x for x in (head.bits, head.difference))
    return head.broken is None, -bits, -largest, head.layer, head.head


# ── the same tokens ──────────────────────────────────────────────────────────────────────────


def as_results(
    a: Attention | npt.ArrayLike, b: Attention | npt.ArrayLike
) -> tuple[Attention, Attention]:
    """Both as results: a bare array takes from the other what it does not say itself."""
    both = [side if isinstance(side, Attention) else _numbered(side) for side in (a, b)]
    if isinstance(a, Attention) is not isinstance(b, Attention):
        known = isinstance(b, Attention)
        both[not known] = with_tokens_of(both[not known], both[known], "AB"[not known])
    return both[0], both[1]


def with_tokens_of(array: Attention, known: Attention, name: str) -> Attention:
    """A bare array as a result with the tokens, and the padding, of another; `name` is A or B."""
    sizes = [(n.attention.shape[1], *n.attention.shape[3:]) for n in (array, known)]
    if sizes[0] != sizes[1]:
        given, expected = ("{} × {} × {}".format(*size) for size in sizes)
        raise InputError(
            f"{name} has sequences × queries × keys {given}, and the other {expected}; both must "
            "be over the same tokens"
        )
    return replace(
        array,
        query_tokens=known.query_tokens,
        key_tokens=known.key_tokens,
        lengths=known.lengths,
        key_lengths=known.key_lengths,
        pad_side=known.pad_side,
        layers=known.layers if array.n_layers == known.n_layers else (),
    )


def _numbered(array: npt.ArrayLike) -> Attention:
    """An array as a result whose tokens are their positions, and whose mask is unknown."""
    if isinstance(array, (list, tuple)):  # a layer each, as transformers gives them
        weights = np.stack([as_numpy(layer) for layer in array])
    else:
        weights = as_numpy(array)
    if not 2 <= weights.ndim <= 5:
        raise InputError(
            f"an array has {weights.ndim} axes, shape {list(weights.shape)}; [Tq Tk] to "
            "[L B H Tq Tk] are expected"
        )
    weights = weights.reshape((1,) * (5 - weights.ndim) + weights.shape)
    layers, batch, _, queries, keys = weights.shape
    return Attention(
        attention=weights,
        allowed=np.ones((layers, batch, 1, queries, keys), dtype=np.bool_),
        query_tokens=(tuple(map(str, range(queries))),) * batch,
        key_tokens=(tuple(map(str, range(keys))),) * batch,
        lengths=np.full(batch, queries),
        key_lengths=np.full(batch, keys),
        masks=UNKNOWN_MASKS,
    )


def check_sizes(a: Sequence[int], b: Sequence[int], match: bool = False) -> None:
    """Raise `InputError` where shapes `[L B H Tq Tk]` differ in layers, sequences or heads.

    With `match` the numbers of heads may differ; queries and keys may, by padding.
    """
    for what, in_a, in_b in zip(("layer", "sequence", "head"), a, b, strict=False):
        if in_a != in_b and not (match and what == "head"):
            hint = "; --match pairs those that are alike" if what == "head" else ""
            raise InputError(f"A has {plural(in_a, what)} and B has {in_b}{hint}")


def check_alike(a: Attention, b: Attention, sequences: Sequence[int], match: bool = False) -> None:
    """Raise `InputError` that names the first difference in sizes or tokens.

    With `match` the numbers of heads may differ. Padding may stand anywhere.
    """
    check_sizes(a.attention.shape, b.attention.shape, match)
    for s in sequences:
        where = f"sequence {s}: " if a.batch_size > 1 else ""
        for side, what in enumerate(("query", "key")):
            difference = _first_difference(what, a.real_tokens(s, side), b.real_tokens(s, side))
            if difference:
                raise InputError(f"{where}{difference}; both must be over the same tokens")


def _first_difference(what: str, a: Sequence[str], b: Sequence[str]) -> str:
    for i, (in_a, in_b) in enumerate(zip(a, b, strict=False)):
        if in_a != in_b:
            shown = f"'{printable(in_a, 40)}' in A and '{printable(in_b, 40)}' in B"
            return f"{what} token {i} is {shown}"
    if len(a) == len(b):
        return ""
    longer, rest = ("A", a[len(b) :]) if len(a) > len(b) else ("B", b[len(a) :])
    counts = f"A has {len(a)} {what} tokens and B has {len(b)}"
    return f"{counts}: {longer} goes on with '{printable(rest[0], 40)}'"


# ── two heads ────────────────────────────────────────────────────────────────────────────────


@dataclass
class _SideRows:
    """One of the two results, and what was unusual about the rows that were read from it."""

    result: Attention
    short: int = 0
    lowest: float = 1.0
    long: int = 0
    highest: float = 1.0
    negative: int = 0
    broken: int = 0
    on_padding: float = 0.0

    def note(self, rows: _Rows) -> None:
        """Take in rows; those that see nothing have a sum of 0 and are not unusual."""
        finite = np.isfinite(rows.weights).all(-1)
        negative = finite & (rows.weights < 0).any(-1)
        sums = rows.sums[finite & rows.sees]
        self.broken += int((~finite).sum())
        self.negative += int(negative.sum())
        self.short += int((sums < 1 - LACKING).sum())
        self.long += int((sums > 1 + LACKING).sum())
        self.lowest = min(self.lowest, float(sums.min(initial=1.0)))
        self.highest = max(self.highest, float(sums.max(initial=1.0)))
        self.on_padding = max(self.on_padding, float(rows.on_padding[finite].max(initial=0.0)))

    def notes(self, name: str) -> Iterator[str]:
        """A sentence about each thing that was unusual."""
        if self.broken:
            yield f"{name}: {plural(self.broken, 'row')} with NaN or infinity: no distance for them"
        if self.negative:
            yield (
                f"{name}: {plural(self.negative, 'row')} with negative weights: no distance for "
                "them (scores before softmax?)"
            )
        if self.on_padding > LACKING:
            yield f"{name}: queries give up to {self.on_padding:.3g} of their weight to padding"
        if self.short and not self.negative:
            yield (
                f"{name}: {plural(self.short, 'row')} with a sum below 1, down to "
                f"{self.lowest:.3g}: what they lack counts as one more key"
            )
        if self.long and not self.negative:
            yield (
                f"{name}: {plural(self.long, 'row')} with a sum above 1, up to {self.highest:.3g}: "
                "their distance is that of their shares"
            )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of one head between real tokens: float64 and bool `[rows, keys]`; sums `[rows]`.

    `sees` says whether a row may see any key, padding among them.
    """

    weights: Array
    allowed: Mask
    sees: Mask
    sums: Array
    on_padding: Array


def _rows(result: Attention, layer: int, sequence: int, head: int, block: slice) -> _Rows:
    """The real rows from `block.start` to `block.stop`."""
    first, _ = result.places(sequence, 0)
    block = slice(first + block.start, first + block.stop)
    weights = result.attention[layer, sequence, head, block].astype(np.float64)
    allowed = result.mask_of(layer, sequence, head)[block]
    keys = result.key_valid[sequence]
    within = weights[:, keys]
    on_padding = weights[:, ~keys].sum(-1)
    return _Rows(within, allowed[:, keys], np.asarray(allowed.any(-1)), within.sum(-1), on_padding)


def _told(result: Attention, rows: _Rows, others: _Rows) -> _Rows:
    """Rows of an array whose mask nobody knows: what the other forbids and it gives no weight."""
    if result.masks != UNKNOWN_MASKS:
        return rows
    allowed = others.allowed | (rows.weights != 0)
    return replace(rows, allowed=allowed, sees=others.sees | allowed.any(-1))


def _blocks(a: Attention, b: Attention, sequence: int, heads: int) -> Iterator[slice]:
    """Blocks of real rows, of which `heads` heads together have `BLOCK` weights at most."""
    rows = int(a.query_valid[sequence].sum())
    size = max(1, BLOCK // (heads * max(a.attention.shape[4], b.attention.shape[4])))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _compare_heads(
    sides: tuple[_SideRows, _SideRows], layer: int, head: int, other: int, sequences: Sequence[int]
) -> HeadDifference:
    a, b = (side.result for side in sides)
    bits, rows = np.zeros(len(sequences)), np.zeros(len(sequences), dtype=np.int64)
    only_a, only_b, size = 0, 0, -1.0
    largest = broken = None
    for i, s in enumerate(sequences):
        for block in _blocks(a, b, s, 1):
            in_a, in_b = _rows(a, layer, s, head, block), _rows(b, layer, s, other, block)
            in_a, in_b = _told(a, in_a, in_b), _told(b, in_b, in_a)
            place = partial(_place, a, (layer, head, other), s, block.start, in_a, in_b)
            odd = ~(np.isfinite(in_a.weights) & np.isfinite(in_b.weights))
            if broken is None and odd.any():
                broken = place(int(odd.argmax()))
            with np.errstate(invalid="ignore"):  # infinity - infinity
                gaps = np.where(odd, -1.0, np.abs(in_b.weights - in_a.weights))
            if gaps.max(initial=-1.0) > size:
                size = float(gaps.max())
                largest = place(int(gaps.argmax()))
            distances = _distances(in_a, in_b)
            bits[i] += np.nansum(distances)
            rows[i] += (~np.isnan(distances)).sum()
            only_a += int((in_a.allowed & ~in_b.allowed).sum())
            only_b += int((in_b.allowed & ~in_a.allowed).sum())
            sides[0].note(in_a)
            sides[1].note(in_b)
    with np.errstate(invalid="ignore"):  # a mean of no rows
        means = [float(mean) for mean in (bits.sum() / rows.sum(), *(bits / rows))]
    places = layer, head, other, means[0], tuple(means[1:]), int(rows.sum()), largest, broken
    return HeadDifference(*places, only_a, only_b)


def _place(
    tokens: Attention,
    heads: tuple[int, int, int],
    s: int,
    first: int,
    in_a: _Rows,
    in_b: _Rows,
    at: int,
) -> ComparedCell:
    """The cell at index `at` of rows whose first one is query `first` of sequence `s`."""
    row, key = divmod(at, in_a.weights.shape[1])
    named = tokens.real_tokens(s, 0)[first + row], tokens.real_tokens(s, 1)[key]
    values = float(in_a.weights[row, key]), float(in_b.weights[row, key])
    return ComparedCell(*heads, s, first + row, key, *named, *values)


def _distances(a: _Rows, b: _Rows) -> Array:
    """The divergence of each pair of rows, in bits; NaN where there is none."""
    lacks = [np.maximum(1 - rows.sums, 0) for rows in (a, b)]
    either = (lacks[0] > LACKING) | (lacks[1] > LACKING)  # what one lacks, the other may lack too
    p, q = (
        np.concatenate([rows.weights, np.where(either, lack, 0)[:, None]], axis=1)
        for rows, lack in zip((a, b), lacks, strict=True)
    )
    return np.where(a.sees | b.sees, jensen_shannon(p, q), np.nan)


# ── heads that are alike ─────────────────────────────────────────────────────────────────────


def _matched(
    sides: tuple[_SideRows, _SideRows], layer: int, heads: Sequence[int], sequences: Sequence[int]
) -> list[tuple[int, int]]:
    """Pairs (head of A, head of B) of one layer whose distances have the smallest sum."""
    assign = _linear_sum_assignment()
    a, b = (side.result for side in sides)
    bits = np.zeros((len(heads), b.n_heads))
    rows = np.zeros((len(heads), b.n_heads))
    for s in sequences:
        for block in _blocks(a, b, s, b.n_heads):
            others = [_rows(b, layer, s, other, block) for other in range(b.n_heads)]
            for i, head in enumerate(heads):
                one = _rows(a, layer, s, head, block)
                for j, other in enumerate(others):
                    distances = _distances(one, other)
                    bits[i, j] += np.nansum(distances)
                    rows[i, j] += (~np.isnan(distances)).sum()
    # heads that cannot be compared are further apart than any: a distance is 1 at most
    costs = np.divide(bits, rows, out=np.full_like(bits, 2.0), where=rows > 0)
    return [(heads[int(i)], int(j)) for i, j in zip(*assign(costs), strict=True)]


def _linear_sum_assignment() -> Callable[[Array], tuple[npt.NDArray[np.int64], ...]]:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise ConfigError(
            "--match needs SciPy, which is not installed: pip install 'attnviz[corpus]'; without "
            "--match, heads are compared by index"
        ) from None
    return linear_sum_assignment  # type: ignore[no-any-return]


# ── words ────────────────────────────────────────────────────────────────────────────────────


def _layer_notes(a: Attention, b: Attention) -> Iterator[str]:
    if a.layer_numbers != b.layer_numbers:
        numbers = (", ".join(map(str, result.layer_numbers)) for result in (a, b))
        yield "A's layers are {} of their model and B's {}: they are compared in order".format(
            *numbers
        )


def _mask_notes(found: Sequence[HeadDifference], a: Attention, b: Attention) -> Iterator[str]:
    only_a, only_b = sum(head.only_a for head in found), sum(head.only_b for head in found)
    names = [", ".join(map(printable, result.masks)) or "none" for result in (a, b)]
    if only_a or only_b:
        yield (
            f"the masks differ: {plural(only_a, 'cell')} allowed in A only, "
            f"{only_b:,} in B only (masks of A: {names[0]}; of B: {names[1]})"
        )
    elif set(a.masks) != set(b.masks) and UNKNOWN_MASKS not in (a.masks, b.masks):
        yield f"the masks have other names (A: {names[0]}; B: {names[1]}) and allow the same"
