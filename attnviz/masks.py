"""One table of masks: flag, rule, wording, and the mistakes that `check` knows for each.

A mask says who **may** look: True lets a query see a key. Masks combine by "and". Positions count
from a sequence's first real token, so that padding on the left changes nothing.

Adding a mask takes one row in `MASKS`: every command then has its flag, obeys its rule, checks it
and words it. Rows only use operators and methods that arrays have, so that this module imports no
array library: help, and answers to wrong flags, need the table and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from attnviz.config import check_size
from attnviz.errors import InputError
from attnviz.tokens import SEP

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attnviz.result import Attention
    from attnviz.tokens import Batch

    Bools = npt.NDArray[np.bool_]
    Ints = npt.NDArray[np.int64]

SWITCH, NUMBER, FILE, PADDING = "switch", "number", "file", "padding"
"""What a mask's flag takes: nothing, a number of 1 or more, a file, or its opposite."""

Settings = Mapping[str, Any]
"""The value of each mask by its name. A mask that is absent, None or False is not in force."""


# ── where queries and keys stand ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Places:
    """What masks know of queries and keys, place by place of the padded batch.

    `q` and `k` are positions, `[B Tq]` and `[B Tk]`; `real` `[B Tk]` is
    False on padded keys, `real_queries` `[B Tq]` on padded queries.
    `separators` gives `[B Tq]` and `[B Tk]`, True where the token is `[SEP]`. `cached` says that
    earlier tokens are not among the queries: their keys are in a cache.
    """

    q: Ints
    k: Ints
    real: Bools
    real_queries: Bools
    separators: Callable[[], tuple[Bools, Bools]]
    cached: bool = False

    @cached_property
    def segments(self) -> tuple[Ints, Ints]:
        """How many `[SEP]` stand before each query and each key."""
        of_q, of_k = (closes.cumsum(1) - closes for closes in self.separators())
        return of_q, of_k


def places_of(queries: Batch, keys: Batch) -> Places:
    """Where the tokens of padded batches stand."""

    def separators() -> tuple[Bools, Bools]:
        of_q, of_k = (
            batch.ids == (batch.vocabulary.index(SEP) if SEP in batch.vocabulary else -1)
            for batch in (queries, keys)
        )
        return of_q, of_k

    cached = queries.before is not None
    return Places(queries.positions, keys.positions, keys.valid, queries.valid, separators, cached)


# ── the table ────────────────────────────────────────────────────────────────────────────────

Cells = Callable[[Any, Any], Any]
"""(q, k) index arrays of the padded batch → True where a query may look by mistake."""


@dataclass(frozen=True)
class MaskMistake:
    """What may become of a whole mask by mistake.

    `change` makes the wrong mask `[… Tq Tk]`, or None where it cannot be made. `seems` says what
    happened where only the weights' pattern is known, `is_so` where their numbers are; `{mask}` is
    the mask's name, `{side}` the side of the padding and `{other}` the other one.
    """

    change: Callable[[Bools], Bools | None]
    seems: str
    is_so: str


def _transposed(mask: Bools) -> Bools | None:
    """Rows for columns, which only a square mask can have confused."""
    return mask.swapaxes(-2, -1) if mask.shape[-2] == mask.shape[-1] else None


def _later(mask: Bools) -> Bools:
    """Each query sees what it may, one key further on."""
    wrong = mask.copy()
    wrong[..., 1:] = mask[..., :-1]
    return wrong


def earlier(mask: Bools) -> Bools:
    """Each query sees what it may, one key further back."""
    wrong = mask & False
    wrong[..., :-1] = mask[..., 1:]
    return wrong


OF_ANY_MASK: Mapping[str, MaskMistake] = {
    "inverted": MaskMistake(
        lambda mask: ~mask,
        "the {mask} mask looks inverted: True meant keep where the code reads it as drop, or the "
        "reverse (nn.MultiheadAttention: True forbids; scaled_dot_product_attention: True allows)",
        "the {mask} mask is inverted: what it forbids is what is seen",
    ),
    "transposed": MaskMistake(
        _transposed,
        "the {mask} mask looks transposed: its rows are keys where they should be queries (tril "
        "for triu, or mask.T)",
        "the {mask} mask is transposed: rows are taken for columns",
    ),
    "one key too many": MaskMistake(
        _later,
        "the {mask} mask looks shifted by one: every query also sees the next key "
        "(triu(diagonal=2) for diagonal=1, tril(diagonal=1) for 0)",
        "the {mask} mask is shifted by one: the next key is seen too",
    ),
    "one key too few": MaskMistake(
        earlier,
        "the {mask} mask looks shifted by one: no query sees the last key that it may, itself "
        "under a causal mask (tril(diagonal=-1), or triu(diagonal=0) to forbid)",
        "the {mask} mask is shifted by one: the last key is hidden",
    ),
    "ignored": MaskMistake(
        lambda mask: mask | True,
        "the {mask} mask looks ignored: forbidden keys have weight like others; it was never "
        "applied, or as numbers that are too small",
        "the {mask} mask is not applied",
    ),
}
"""Mistakes of any mask, simplest last: of two that explain as much, the first is named."""

OF_PADDING: Mapping[str, MaskMistake] = {
    **OF_ANY_MASK,
    "transposed": MaskMistake(
        _transposed,
        "the padding mask looks applied to queries, not to keys: it must forbid columns (mask[:, "
        "None, None, :]), and rows were forbidden (mask[:, None, :, None])",
        "the padding mask is applied to queries, not to keys",
    ),
    "one key too many": MaskMistake(
        _later,
        "the padding mask looks shifted by one: the first padded key is seen (<= length for < "
        "length)",
        OF_ANY_MASK["one key too many"].is_so,
    ),
    "one key too few": MaskMistake(
        earlier,
        "the padding mask looks shifted by one: the last real key is hidden",
        OF_ANY_MASK["one key too few"].is_so,
    ),
    "mirrored": MaskMistake(
        lambda mask: mask[..., ::-1],
        "padding is masked on the other side: it stands on the {side}, and the mask forbids the "
        "{other}",
        "the {mask} mask forbids the other side",
    ),
    "ignored": OF_ANY_MASK["ignored"],
}


@dataclass(frozen=True)
class Mask:
    """One row of the table.

    Args:
        name: of the mask, in every output, and of its flag. A number follows it.
        help: what `--help` says of the flag.
        allows: (places, value, b, h, q, k) with index arrays that broadcast → True = may look.
        reason: why a cell is forbidden, in words that follow its key; `{n}` is the number.
        takes: what the flag takes.
        span: (places, value, b) → (first, end): in sequence b, query q may see the keys first[q] ≤
            k < end[q] and no others. One number stands for all queries. An empty span has end ≤
            first; neither need lie within 0 … Tk. None: what a query sees is no run of neighbours.
        by_position: whether it depends on where the queries stand among the keys.
        reads_tokens: how it depends on the tokens themselves, "" where it does not.
        note: (settings, queries, keys) → what the person who sets it should know; "" for nothing.
        of_any: the mistakes that any mask may suffer, as they are worded for this one.
        mistakes: (places, value) → what people make of this mask alone, in words that follow "the
            mask is as if"; q counts the keys in a cache.
    """

    name: str
    help: str
    allows: Callable[..., Any]
    reason: str
    takes: str = SWITCH
    span: Callable[[Places, Any, int], tuple[Any, Any]] | None = None
    by_position: bool = False
    reads_tokens: str = ""
    note: Callable[[Settings, Batch, Batch], str] = lambda settings, queries, keys: ""
    of_any: Mapping[str, MaskMistake] = field(default_factory=lambda: OF_ANY_MASK)
    mistakes: Callable[[Places, Any], Mapping[str, Cells]] = lambda at, n: {}

    @property
    def flag(self) -> str:
        return f"--{self.name}"

    def named(self, value: Any) -> str:
        """The name of this mask in force: `causal`, `window 3`."""
        return f"{self.name} {value}" if self.takes == NUMBER else self.name


def _alignments(at: Places, _value: Any) -> dict[str, Cells]:
    """Where fewer queries than keys may have been put, and do not belong."""
    before = at.k.shape[1] - at.q.shape[1]
    if before <= 0:
        return {}
    if at.cached:
        words = "queries stood at the first keys and not at the last"
        return {words: lambda q, k: k <= q - before}
    return {"queries stood at the last keys": lambda q, k: k <= q + before}


def _prefix_note(settings: Settings, _queries: Batch, _keys: Batch) -> str:
    if not settings.get("causal"):
        return ""
    return (
        f"--causal cancels --prefix {settings['prefix']}; --prefix alone is causal after its prefix"
    )


def _segments_note(_settings: Settings, queries: Batch, keys: Batch) -> str:
    if any(SEP in tokens for tokens in (*queries.tokens, *keys.tokens)):
        return ""
    return f"--segments: no {SEP} in the text, so all is one segment"


def _file_note(settings: Settings, _queries: Batch, _keys: Batch) -> str:
    of_file: MaskArray = settings["mask"]
    return of_file.note


MASKS: list[Mask] = [
    Mask(
        "padding",
        "No token looks at padding (on where there is any).",
        lambda at, value, b, h, q, k: at.real[b, k],
        "it is padding",
        takes=PADDING,
        span=lambda at, value, b: (
            at.real[b].argmax(keepdims=True),
            at.real[b].argmax(keepdims=True) + at.real[b].sum(),
        ),
        of_any=OF_PADDING,
    ),
    Mask(  # Vaswani et al. 2017, section 3.2.3
        "causal",
        "No token looks at later tokens.",
        lambda at, value, b, h, q, k: at.k[b, k] <= at.q[b, q],
        "it comes later",
        span=lambda at, value, b: (0, at.q[b] + 1 - at.k[b, 0]),
        by_position=True,
        mistakes=_alignments,
    ),
    Mask(  # the sliding window of Jiang et al. 2023
        "window",
        "Each token looks at itself and the N-1 tokens before it only.",
        lambda at, n, b, h, q, k: (at.k[b, k] <= at.q[b, q]) & (at.k[b, k] > at.q[b, q] - n),
        "it is not among the {n} tokens that end with the query",
        takes=NUMBER,
        span=lambda at, n, b: (at.q[b] + 1 - n - at.k[b, 0], at.q[b] + 1 - at.k[b, 0]),
        by_position=True,
        mistakes=lambda at, n: {
            "it reached one key further": lambda q, k: (k <= q) & (k > q - n - 1),
            "it were one key narrower": lambda q, k: (k <= q) & (k > q - n + 1),
            "it reached both ways": lambda q, k: abs(q - k) < n,
            "it had no limit": lambda q, k: k <= q,
            "it did not stop at the query": lambda q, k: k > q - n,
        },
    ),
    Mask(  # Raffel et al. 2020, figure 4
        "prefix",
        "Causal, but every token looks at the first N tokens.",
        lambda at, n, b, h, q, k: (at.k[b, k] <= at.q[b, q]) | (at.k[b, k] < n),
        "it comes later, and is not among the first {n}",
        takes=NUMBER,
        span=lambda at, n, b: (0, (at.q[b] + 1).clip(n) - at.k[b, 0]),
        by_position=True,
        note=_prefix_note,
        mistakes=lambda at, n: {
            "positions counted the padding": lambda q, k: (k <= q) | (k < n),
            "its prefix were one key longer": lambda q, k: (k <= q) | (k < n + 1),
            "it were causal alone": lambda q, k: k <= q,
        },
    ),
    Mask(  # each [SEP] belongs to the segment that it closes
        "segments",
        "No token looks across [SEP].",
        lambda at, value, b, h, q, k: at.segments[0][b, q] == at.segments[1][b, k],
        "it is in another segment",
        span=lambda at, value, b: (
            at.segments[1][b].searchsorted(at.segments[0][b]),
            at.segments[1][b].searchsorted(at.segments[0][b], side="right"),
        ),
        reads_tokens=f"segments end at {SEP}",
        note=_segments_note,
    ),
    Mask(
        "mask",
        "A 0/1 mask, rows are queries: .npy, .npz, .csv or .txt.",
        lambda at, cells, b, h, q, k: cells[b, h, q, k],
        "the mask's file forbids it",
        takes=FILE,
        note=_file_note,
    ),
]
"""All masks, in the order in which they are named. Add one here, and nowhere else."""


def mask_named(name: str) -> Mask:
    """The row of that name. Raises `KeyError` where there is none."""
    return {mask.name: mask for mask in MASKS}[name]


def mask_from_name(name: str) -> tuple[Mask, Any, tuple[int, ...] | None] | None:
    """What `Mask.named` wrote, read back: the row, its value, and the layers, None for all.

    A model's masks may hold in some layers only: `window 5 in layers 0,2`. None where the name does
    not say which cells are forbidden, as that of a file.
    """
    words, _, where = name.partition(" in layer")
    layers = None
    if where:
        numbers = where.removeprefix("s").strip().split(",")
        if not all(number.isdecimal() for number in numbers):
            return None
        layers = tuple(map(int, numbers))
    for mask in MASKS:
        if mask.takes == NUMBER:
            number = words.removeprefix(f"{mask.name} ")
            if number != words and number.isdecimal():
                return mask, int(number), layers
        elif mask.takes != FILE and words == mask.name:
            return mask, True, layers
    return None


# ── rules: the masks of one batch ────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Rule:
    """One mask in force: its name in every output, and its predicate over the padded batch.

    `allows` takes index arrays (b, h, q, k) that broadcast and says where a query may look. `span`
    says the same, where it can, so that whole blocks of a long map are known to be forbidden before
    they are made; see `Mask`. `mask` is the row that it is made from, if any.
    """

    name: str
    allows: Callable[[Any, Any, Any, Any], Any]
    per_head: bool = False
    span: Callable[[int], tuple[Any, Any]] | None = None
    mask: Mask | None = None


class MaskArray(NamedTuple):
    """A mask given whole, True = may look: `[Tq Tk]`, `[B Tq Tk]` or `[B H Tq Tk]`.

    B, H and Tq may be 1, and the mask is then the same for all of them.
    """

    cells: Bools
    name: str
    note: str = ""


def rules_from(settings: Settings, queries: Batch, keys: Batch, n_heads: int) -> list[Rule]:
    """The rules that are set, padding first. Where `settings` do not say, padding is masked.

    Raises `InputError` that names both shapes, axis by axis, when a mask's array does not fit.
    """
    at = places_of(queries, keys)
    rules = []
    for mask in MASKS:
        value = settings.get(mask.name)
        if mask.takes == PADDING and value is None:
            value = not keys.valid.all()
        if value is None or value is False:
            continue
        if mask.takes == FILE:
            size = (queries.size, n_heads, queries.width, keys.width)
            rules.append(_from_array(mask, value, *size))
        else:
            rules.append(_from_row(mask, value, at))
    return rules


def rule(name: str, queries: Batch, keys: Batch, value: Any = True) -> Rule:
    """The rule of one mask by its name: `rule("window", queries, keys, 3)`."""
    return _from_row(mask_named(name), value, places_of(queries, keys))


def _from_row(mask: Mask, value: Any, at: Places) -> Rule:
    if mask.takes == NUMBER:
        check_size(mask.flag, value)
    span = None if mask.span is None else partial(mask.span, at, value)
    return Rule(mask.named(value), partial(mask.allows, at, value), span=span, mask=mask)


def notes_on(settings: Settings, queries: Batch, keys: Batch) -> list[str]:
    """What the person who set these masks should know."""
    notes = [mask.note(settings, queries, keys) for mask in MASKS if settings.get(mask.name)]
    return [note for note in notes if note]


def from_array(cells: Bools, name: str, batch: int, heads: int, queries: int, keys: int) -> Rule:
    """The rule of a mask given whole; see `MaskArray`.

    Raises `InputError` that names both shapes, axis by axis, when it does not fit.
    """
    return _from_array(mask_named("mask"), MaskArray(cells, name), batch, heads, queries, keys)


def _from_array(
    mask: Mask, whole: MaskArray, batch: int, heads: int, queries: int, keys: int
) -> Rule:
    import numpy as np

    array, name = whole.cells, whole.name
    want = {"B": batch, "H": heads, "Tq": queries, "Tk": keys}
    layouts = {2: ("Tq", "Tk"), 3: ("B", "Tq", "Tk"), 4: ("B", "H", "Tq", "Tk")}
    axes = layouts.get(array.ndim)
    if axes is None:
        raise InputError(
            f"mask {name} has {array.ndim} axes, shape {list(array.shape)}; "
            "[Tq Tk], [B Tq Tk] or [B H Tq Tk] is expected"
        )
    axes_sizes = list(zip(axes, array.shape, strict=True))
    wrong = [
        f"{axis} {size} ≠ {want[axis]}"
        for axis, size in axes_sizes
        if size != want[axis] and (size != 1 or axis == "Tk")
    ]
    if wrong:
        actual = " ".join(f"{axis}={size}" for axis, size in axes_sizes)
        expected = " ".join(f"{axis}={want[axis]}" for axis in axes)
        hint = ""
        if array.shape == (heads, queries, keys):
            hint = "; that is one mask a head: add the batch axis, [1 H Tq Tk]"
        elif array.shape == (batch * heads, queries, keys):
            hint = f"; {len(array)} = B·H: reshape it to [B H Tq Tk], [{batch} {heads} …]"
        elif array.shape[-2:] == (keys, queries) and keys != queries:
            hint = "; it looks transposed: rows are queries, columns are keys"
        raise InputError(
            f"mask {name} is [{actual}], expected [{expected}]: {', '.join(wrong)}{hint}"
        )
    with_heads = array[:, None] if array.ndim == 3 else array
    full = np.broadcast_to(with_heads, (batch, heads, queries, keys))
    per_head = array.ndim == 4 and array.shape[1] > 1
    return Rule(name, partial(mask.allows, None, full), per_head, mask=mask)


def build(rules: Sequence[Rule], batch: int, heads: int, queries: int, keys: int) -> Bools | None:
    """All rules combined by "and": bool `[B 1|H Tq Tk]`, or None when there is no rule."""
    if not rules:
        return None
    import numpy as np

    of_heads = heads if any(rule.per_head for rule in rules) else 1
    b, h, q, k = np.ogrid[:batch, :of_heads, :queries, :keys]
    allowed = np.ones((batch, of_heads, queries, keys), dtype=np.bool_)
    for rule in rules:
        allowed &= rule.allows(b, h, q, k)
    return allowed


# ── names read back ──────────────────────────────────────────────────────────────────────────


def spans_from_names(
    names: Sequence[str], at: Places, b: int, layer: int
) -> tuple[Any, Any] | None:
    """(first, end) of the keys that each query of a sequence may see; see `Mask`.

    None where the names do not say, or what a query sees is no run of neighbours.
    """
    import numpy as np

    first, end = np.zeros_like(at.q[b]), np.full_like(at.q[b], at.k.shape[1])
    for name in names:
        found = mask_from_name(name)
        if found is None:
            return None
        mask, value, layers = found
        if mask.span is None:
            return None
        if layers is None or layer in layers:
            low, high = mask.span(at, value, b)
            first, end = np.maximum(first, low), np.minimum(end, high)
    return first, end


@dataclass(frozen=True, eq=False)
class Reasons:
    """Which mask forbids each cell of an `Attention`, worked out from the names of its masks.

    What a name says is held against the run: a mask that would forbid cells which the run allows is
    not the one of the table.

    Args:
        names: of the masks; those that do not say which cells they forbid are the reason for the
            cells that no other forbids.
        at: where the tokens stand.
        allowed: bool `[L B 1|H Tq Tk]`, what the masks of the run came to.
        layers: the layers' numbers in their model.
    """

    names: tuple[str, ...]
    at: Places
    allowed: Bools
    layers: tuple[int, ...]

    def of_head(
        self, layer: int, sequence: int, head: int
    ) -> tuple[npt.NDArray[np.int64], list[str]]:
        """(codes `[Tq Tk]`, sentences): code i of a cell stands for sentence i.

        Sentence 0 is "", of cells that are allowed. Others name each mask that forbids a cell, and
        why: `causal: it comes later`.
        """
        import numpy as np

        allowed = self.allowed[layer, sequence]
        allowed = allowed[head if len(allowed) > 1 else 0]
        q, k = np.ogrid[: allowed.shape[0], : allowed.shape[1]]
        bits, words, opaque = np.zeros(allowed.shape, dtype=np.int64), [], 0
        for i, name in enumerate(self.names):
            found = mask_from_name(name)
            if found is not None:
                mask, value, layers = found
                if layers is not None and self.layers[layer] not in layers:
                    words.append(name)
                    continue
                forbidden = ~np.broadcast_to(
                    mask.allows(self.at, value, sequence, head, q, k), allowed.shape
                )
                # a model's window that looks ahead as well has the name of one that does not
                if not (forbidden & allowed)[self.at.real_queries[sequence]].any():
                    bits |= forbidden.astype(np.int64) << i
                    words.append(f"{name}: {mask.reason.format(n=value)}")
                    continue
            words.append(name)
            opaque |= 1 << i
        everything = (1 << len(self.names)) - 1
        bits[bits == 0] = opaque or everything
        bits[allowed] = 0
        # bit 0 first, so that sentence 0 is that of the allowed cells even if there are none
        present = np.unique(np.append(bits, 0))
        sentences = [
            "; ".join(word for i, word in enumerate(words) if code >> i & 1)
            for code in present.tolist()
        ]
        return np.searchsorted(present, bits), sentences


def places_in(result: Attention) -> Places:
    """Where the tokens of a result stand."""
    import numpy as np

    def separators() -> tuple[Bools, Bools]:
        of_q, of_k = (
            np.array([[token == SEP for token in row] for row in rows])
            for rows in (result.query_tokens, result.key_tokens)
        )
        return of_q, of_k

    return Places(
        result.query_positions,
        result.key_positions,
        result.key_valid,
        result.query_valid,
        separators,
    )


def reasons_of(result: Attention) -> Reasons:
    """Why each forbidden cell of a result is forbidden."""
    return Reasons(result.masks, places_in(result), result.allowed, result.layer_numbers)
