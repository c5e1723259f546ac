"""One query of one head in numbers, top to bottom: what `attnviz explain` prints.

Every number is the run's own: a copy of what the taps caught. What no tap catches (a norm, exp
of a score minus the largest) is worked out from those copies, and labelled as derived. On paper,
each printed number follows from the printed numbers before it, to within 1 in its last digit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, floor, isfinite, log10, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.text import Text

from attnviz.errors import InputError, printable
from attnviz.render.console import ascii_only, flow, write
from attnviz.render.tokens import cells, fit, notation, shorten, visible

if TYPE_CHECKING:
    from rich.console import Console

    from attnviz.result import AttentionResult
    from attnviz.trace import Step

FORMAT, VERSION = "attnviz.explain", 1

NEEDED = ("q", "k", "v", "products", "scores", "context")
"""Taps that a run must keep to be explained."""

WANTED = (*NEEDED, "projected")
"""With `projected` as well, the last section shows what all heads come to together."""

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""The largest relative error of one rounding to a dtype."""

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


# ── the numbers ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Explanation:
    """One query of one head: the run's numbers as float64 copies, and what follows from them.

    From taps: `q` `[d_k]`, `k` `[Tk d_k]`, `v` `[Tk d_v]`, `products` and `scores` `[Tk]` (before
    masking), `weights` `[Tk]`, `context` `[d_v]`, `projected` `[d_model]` (all heads through W_O,
    or None). `allowed` is bool `[Tk]`; `verdicts` has the same for each mask rule by name.

    `query` is the query's place in the padded batch, `query_position` its index in its own
    sequence, `occurrence` (n, m) says that it is the n-th of m queries with the same text.
    `parts` is `[H d_model]`, derived: each head's context through its own columns of W_O.
    """

    layer: int
    head: int
    sequence: int
    query: int
    n_layers: int
    n_heads: int
    batch_size: int
    query_token: str
    query_position: int
    query_is_padding: bool
    occurrence: tuple[int, int]
    is_cross: bool
    key_tokens: tuple[str, ...]
    key_positions: npt.NDArray[np.int64]
    key_is_padding: Bools
    source: str
    trained: bool
    dtype: str
    masks: tuple[str, ...]
    q: Floats
    k: Floats
    v: Floats
    products: Floats
    scores: Floats
    allowed: Bools
    verdicts: tuple[tuple[str, Bools], ...]
    weights: Floats
    context: Floats
    projected: Floats | None
    parts: Floats | None
    steps: tuple[Step, ...]

    @property
    def n_keys(self) -> int:
        return len(self.key_tokens)

    @property
    def scale(self) -> float:
        """√d_k, which the products are divided by."""
        return sqrt(len(self.q))

    @property
    def sees_something(self) -> bool:
        return bool(self.allowed.any())

    @cached_property
    def largest(self) -> int:
        """The allowed key with the largest score; -1 where the query sees nothing."""
        if not self.sees_something:
            return -1
        return int(np.argmax(np.where(self.allowed, self.scores, -np.inf)))

    @cached_property
    def shifted(self) -> Floats:
        """`[Tk]`, derived: each allowed score minus the largest of them; -inf where forbidden."""
        if not self.sees_something:
            return np.full(self.n_keys, -np.inf)
        with np.errstate(invalid="ignore"):  # inf - inf, where a score of the run is infinite
            shifted = self.scores - self.scores[self.largest]
        return np.where(self.allowed, shifted, -np.inf)

    @cached_property
    def exps(self) -> Floats:
        """`[Tk]`, derived: exp of `shifted`; 0 where forbidden."""
        return np.exp(self.shifted)

    @property
    def total(self) -> float:
        """Derived: the sum of `exps`, which each of them is divided by."""
        return float(self.exps.sum())

    @cached_property
    def weights_without_scale(self) -> Floats:
        """`[Tk]`, derived: what softmax would make of the products as they are."""
        if not self.sees_something:
            return np.zeros(self.n_keys)
        with np.errstate(invalid="ignore"):
            masked = np.where(self.allowed, self.products, -np.inf)
            exps = np.exp(masked - masked.max())
            return np.asarray(exps / exps.sum())

    def forbidding(self, key: int) -> tuple[str, ...]:
        """The names of the masks that forbid `key`; empty where it is allowed, or nobody says."""
        if self.allowed[key]:
            return ()
        if self.verdicts:
            return tuple(name for name, verdict in self.verdicts if not verdict[key])
        return self.masks if len(self.masks) == 1 else ()


def entropy(weights: Floats) -> float:
    """Bits: 0 where one key has all the weight, log₂ n for n equal weights."""
    some = weights[weights > 0]
    return float(0.0 - (some * np.log2(some)).sum())


def explain(
    result: AttentionResult,
    steps: Sequence[Step],
    sequence: int,
    layer: int,
    head: int,
    query: int,
    *,
    verdicts: Sequence[tuple[str, npt.NDArray[np.bool_]]] = (),
    w_o: npt.NDArray[Any] | None = None,
) -> Explanation:
    """Everything that one query of one head did in `result`, which must have kept `NEEDED`.

    Args:
        steps: the run's trace; it names where each number was made. May be empty.
        query: place in the padded batch, as `find_query` gives it.
        verdicts: (rule name, bool `[B 1|H Tq Tk]`, True = may look) for each mask in force.
        w_o: the weight of the output projection, `[d_model H·d_v]`, heads slowest.

    Raises:
        InputError: a number that is out of range, a tap that was not kept, a mask or matrix that
            does not fit, verdicts that do not combine to the run's own mask.
    """
    layers, batch, heads, queries = result.attention.shape[:4]
    for name, value, size in (
        ("sequence", sequence, batch),
        ("layer", layer, layers),
        ("head", head, heads),
        ("query", query, queries),
    ):
        if not 0 <= value < size:
            raise InputError(f"{name} {value} is not in this run, which has {_range(size, name)}")
    missing = [name for name in NEEDED if name not in result.kept]
    if missing:
        raise InputError(
            f"the run did not keep {', '.join(missing)}; {', '.join(NEEDED)} are needed"
        )

    at = (layer, sequence, head)
    mask = result.allowed[layer, sequence]
    allowed = mask[head if len(mask) > 1 else 0, query]
    named = tuple((name, _verdict(name, rule, result, at, query)) for name, rule in verdicts)
    if named and not np.array_equal(np.all([row for _, row in named], axis=0), allowed):
        raise InputError(
            f"the masks {', '.join(printable(name) for name, _ in named)} do not combine to the "
            f"mask of the run for query {query}"
        )
    tokens = result.query_tokens[sequence]
    twins = [i for i, token in enumerate(tokens) if token == tokens[query]]
    projected = result.kept.get("projected")
    return Explanation(
        layer=layer,
        head=head,
        sequence=sequence,
        query=query,
        n_layers=layers,
        n_heads=heads,
        batch_size=batch,
        query_token=tokens[query],
        query_position=int(result.query_positions[sequence, query]),
        query_is_padding=not result.query_valid[sequence, query],
        occurrence=(twins.index(query) + 1, len(twins)),
        is_cross=result.is_cross,
        key_tokens=result.key_tokens[sequence],
        key_positions=result.key_positions[sequence].copy(),
        key_is_padding=~result.key_valid[sequence],
        source=result.source,
        trained=result.trained,
        dtype=str(result.config.get("dtype", result.attention.dtype)),
        masks=result.masks,
        q=_float64(result.kept["q"][at][query]),
        k=_float64(_of_group(result.kept["k"], at, heads)),
        v=_float64(_of_group(result.kept["v"], at, heads)),
        products=_float64(result.kept["products"][at][query]),
        scores=_float64(result.kept["scores"][at][query]),
        allowed=allowed.copy(),
        verdicts=named,
        weights=_float64(result.attention[at][query]),
        context=_float64(result.kept["context"][at][query]),
        projected=None if projected is None else _float64(projected[layer, sequence, query]),
        parts=None if w_o is None else _parts(result.kept["context"], w_o, at, query),
        steps=tuple(step for step in steps if step.name in (*WANTED, "masked_scores", "weights")),
    )


def _of_group(kept: npt.NDArray[Any], at: tuple[int, int, int], heads: int) -> npt.NDArray[Any]:
    """Keys or values `[L B Hkv Tk d]` as a query head sees them: those of its group."""
    layer, sequence, head = at
    return np.asarray(kept[layer, sequence, head * kept.shape[2] // heads])


def _float64(array: npt.NDArray[Any]) -> Floats:
    return np.array(array, dtype=np.float64)


def _range(size: int, name: str) -> str:
    if size == 1:
        return f"1 {name}, number 0"
    plural = {"query": "queries"}.get(name, f"{name}s")
    return f"{size} {plural}, 0 to {size - 1}"


def _verdict(
    name: str,
    rule: npt.NDArray[np.bool_],
    result: AttentionResult,
    at: tuple[int, int, int],
    query: int,
) -> Bools:
    _, batch, heads, queries, keys = result.attention.shape
    if rule.shape not in ((batch, 1, queries, keys), (batch, heads, queries, keys)):
        raise InputError(
            f"mask {printable(name)} has shape {list(rule.shape)}; [B 1|H Tq Tk] with "
            f"B={batch} H={heads} Tq={queries} Tk={keys} is expected"
        )
    _, sequence, head = at
    return np.array(rule[sequence, head if rule.shape[1] > 1 else 0, query])


def _parts(
    context: npt.NDArray[Any], w_o: npt.NDArray[Any], at: tuple[int, int, int], query: int
) -> Floats:
    """`[H d_model]`: context_h @ W_O[:, h·d_v : (h+1)·d_v]ᵀ for each head h."""
    layer, sequence, _ = at
    heads, d_v = context.shape[2], context.shape[4]
    if w_o.ndim != 2 or w_o.shape[1] != heads * d_v:
        raise InputError(
            f"w_o has shape {list(w_o.shape)}; [d_model H·d_v] with "
            f"H·d_v = {heads}·{d_v} = {heads * d_v} is expected"
        )
    by_head = _float64(w_o).reshape(len(w_o), heads, d_v)
    by_query = _float64(context[layer, sequence, :, query])
    return np.asarray(np.einsum("hv,mhv->hm", by_query, by_head))


# ── finding the query ────────────────────────────────────────────────────────────────────────

LISTED = 8
"""Tokens that an error message lists."""


def find_query(result: AttentionResult, sequence: int, text: str) -> int:
    """The place in the padded batch of the query that a person means by `text`.

    An integer is an index into the sequence's own tokens, from the end where negative. Anything
    else is a token's text, the first one that equals it; `cat#2` is the second `cat`, and `3#1`
    the first token with the text `3`. Raises `InputError` that lists candidates.
    """
    tokens = result.query_tokens[sequence]
    length = int(result.lengths[sequence])
    start = int(np.argmax(result.query_valid[sequence])) if length else 0
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        index = int(text)
        if -length <= index < length:
            return start + index % length
        if text not in tokens:
            has = f"{length} token{'s' * (length != 1)}"
            places = f", 0 to {length - 1} or -{length} to -1" if length else ""
            raise InputError(f"query {text}: sequence {sequence} has {has}{places}")
    if text in tokens:
        return tokens.index(text)
    numbered = re.fullmatch(r"(.+)#([0-9]{1,9})", text, re.DOTALL)
    if numbered and numbered[1] in tokens:
        places_of = [i for i, token in enumerate(tokens) if token == numbered[1]]
        nth = int(numbered[2])
        if 1 <= nth <= len(places_of):
            return places_of[nth - 1]
        known = ", ".join(f"#{n}" for n in range(1, min(len(places_of), LISTED) + 1))
        raise InputError(
            f"query {printable(text)}: {printable(numbered[1])} stands {_times(len(places_of))} "
            f"in sequence {sequence}: {known}"
        )
    near = _near(text, tokens[start : start + length])
    raise InputError(f"query {printable(text)} is no token of sequence {sequence}; {near}")


def _times(n: int) -> str:
    return "once" if n == 1 else f"{n} times"


def _near(text: str, tokens: Sequence[str]) -> str:
    """The tokens most like `text` with their indices, or the first ones where none is like it."""
    if not tokens:
        return "it has none"
    folded: dict[str, list[int]] = {}
    for i, token in enumerate(tokens):
        folded.setdefault(token.casefold(), []).append(i)
    near = difflib.get_close_matches(text.casefold(), list(folded), n=LISTED, cutoff=0.5)
    places = [i for form in near for i in folded[form]] or list(range(len(tokens)))
    listed = ", ".join(f"{printable(tokens[i], 20)} ({i})" for i in places[:LISTED])
    more = f" and {len(places) - LISTED} more" if len(places) > LISTED else ""
    return f"{'near it' if near else 'its tokens'}: {listed}{more}"


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────


def explanation_as_json(explanation: Explanation) -> dict[str, Any]:
    """The document of `--json`: all numbers in full; NaN and infinity are null.

    `derived` lists the fields that no tap caught and that were worked out from those of the run.
    """
    from attnviz import __version__

    e = explanation
    keys = [
        {
            "index": i,
            "position": int(e.key_positions[i]),
            "token": token,
            "is_padding": bool(e.key_is_padding[i]),
            "k": _json(e.k[i]),
            "product": _json(e.products[i]),
            "score": _json(e.scores[i]),
            "allowed": bool(e.allowed[i]),
            "forbidden_by": list(e.forbidding(i)),
            "shifted": _json(e.shifted[i]),
            "exp": _json(e.exps[i]),
            "weight": _json(e.weights[i]),
            "weight_without_scale": _json(e.weights_without_scale[i]),
            "v": _json(e.v[i]),
        }
        for i, token in enumerate(e.key_tokens)
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "attnviz": __version__,
        "source": e.source,
        "trained": e.trained,
        "dtype": e.dtype,
        "masks": list(e.masks),
        "layer": e.layer,
        "head": e.head,
        "sequence": e.sequence,
        "query": {
            "index": e.query,
            "position": e.query_position,
            "token": e.query_token,
            "is_padding": e.query_is_padding,
            "sees_something": e.sees_something,
            "q": _json(e.q),
        },
        "d_k": len(e.q),
        "d_v": len(e.context),
        "scale": e.scale,
        "largest_score": _json(e.scores[e.largest]) if e.sees_something else None,
        "exp_sum": _json(e.total),
        "keys": keys,
        "context": _json(e.context),
        "projection": {
            "this_head": None if e.parts is None else _json(e.parts[e.head]),
            "all_heads": None if e.projected is None else _json(e.projected),
        },
        "derived": [
            "scale",
            "largest_score",
            "exp_sum",
            "keys.shifted",
            "keys.exp",
            "keys.weight_without_scale",
            "projection.this_head",
        ],
        "steps": [
            {
                "name": step.name,
                "axes": list(step.axes),
                "shape": list(step.shape),
                "source": step.source,
            }
            for step in e.steps
        ],
    }


def _json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_json(x) for x in value.tolist()]
    return float(value) if isfinite(value) else None


# ── how many keys and digits are shown ───────────────────────────────────────────────────────

MOST_KEYS = 16
"""Up to so many keys, all are shown."""

TOP_KEYS = 12
"""Of more keys than that, those with the largest weights are."""


def shown_keys(explanation: Explanation) -> list[int]:
    """The keys that are shown, in their order: all, or those with the largest weights.

    Among equal weights the keys nearest to the query come first.
    """
    e = explanation
    if e.n_keys <= MOST_KEYS:
        return list(range(e.n_keys))
    weights = np.nan_to_num(e.weights, nan=np.inf)  # a NaN is what a person wants to see
    order = sorted(range(e.n_keys), key=lambda i: (-weights[i], abs(i - e.query), i))
    return sorted(order[:TOP_KEYS])


@dataclass(frozen=True)
class Digits:
    """Decimals of each kind of printed number."""

    vector: int  # entries of q and k
    chain: int  # products, scores, scores minus the largest, and exp
    weight: int  # weights, and the sum of exp
    value: int  # entries of v
    context: int  # entries of the context


def choose_digits(explanation: Explanation, shown: Sequence[int], entries: int) -> Digits:
    """The fewest decimals with which the page adds up on paper; `entries` of v are shown.

    A number that is worked out from rounded ones needs a digit less than they have. How much less
    depends on how many are added, so it is tried out on the very numbers that are printed.
    """
    e = explanation
    top = float(np.nan_to_num(e.weights).max(initial=0))
    weight = 4 if top <= 0 else max(4, 2 + ceil(-log10(top)))
    chain = next(
        (c for c in range(weight + 1, weight + 4) if _softmax_holds(e, shown, c, weight)),
        weight + 4,
    )
    vector = _significant(np.concatenate([e.q, e.k.ravel()]))
    value = _significant(e.v)
    context = next(
        (c for c in range(value - 1, 0, -1) if _sum_holds(e, shown, entries, weight, value, c)), 0
    )
    return Digits(vector, chain, weight, value, context)


def full_digits(explanation: Explanation, shown: Sequence[int], chain: int) -> int:
    """The fewest decimals of q and k with which the printed products follow from them."""
    return next(
        (d for d in range(chain + 1, chain + 4) if _products_hold(explanation, shown, d, chain)),
        chain + 4,
    )


def _significant(values: Floats) -> int:
    """4 decimals, or more where the largest of the values would have fewer than 4 digits."""
    finite = np.abs(values[np.isfinite(values)])
    top = float(finite.max(initial=0))
    return 4 if top == 0 else min(max(4, 3 - floor(log10(top))), 12)


def printed(values: Floats | float, decimals: int) -> Floats:
    """The numbers that a reader of the page sees."""
    flat = np.atleast_1d(np.asarray(values, dtype=np.float64))
    return np.array([float(number(x, decimals)) for x in flat.ravel()]).reshape(flat.shape)


def number(x: float, decimals: int) -> str:
    """`x` with so many decimals; never -0."""
    text = f"{x:.{decimals}f}"
    return text[1:] if text.startswith("-") and not text.strip("-0.") else text


def _holds(worked_out: Floats, shown: Floats, decimals: int, slack: Floats | float = 0.0) -> bool:
    """Whether each is within 1 in the last digit, and `slack`, of what is worked out on paper."""
    both = np.isfinite(worked_out) & np.isfinite(shown)
    off = np.abs(np.where(both, worked_out - shown, 0.0))
    return bool((off <= 10.0**-decimals * (1 + 1e-6) + slack).all())


def _products_hold(e: Explanation, shown: Sequence[int], vector: int, chain: int) -> bool:
    terms = printed(e.q, vector) * printed(e.k[shown], vector)
    slack = _rounding(e) * np.abs(terms).sum(-1)
    return _holds(terms.sum(-1), printed(e.products[shown], chain), chain, slack)


def _softmax_holds(e: Explanation, shown: Sequence[int], chain: int, weight: int) -> bool:
    """Whether scores, exp, sum and weights each follow from what is printed before them."""
    eps = _rounding(e)
    scores = printed(e.scores[shown], chain)
    on_paper = printed(e.products[shown], chain) / printed(e.scale, chain + 1)
    if not _holds(on_paper, scores, chain, eps * np.abs(scores)):
        return False
    if not e.sees_something:
        return True
    rest = _rest(e, shown)
    seen = [i for i in shown if e.allowed[i]]
    shifted = printed(e.shifted[seen], chain)
    exps = printed(np.append(e.exps[seen], e.exps[rest].sum()), chain)
    total = printed(e.total, weight)
    weights = printed(np.append(e.weights[seen], e.weights[rest].sum()), weight)
    with np.errstate(invalid="ignore"):
        differences = printed(e.scores[seen], chain) - printed(e.scores[e.largest], chain)
        return (
            _holds(differences, shifted, chain)
            and _holds(np.exp(shifted), exps[:-1], chain)
            and _holds(exps.sum(keepdims=True), total, weight)
            and _holds(exps / total, weights, weight, eps * weights)
        )


def _sum_holds(
    e: Explanation, shown: Sequence[int], entries: int, weight: int, value: int, context: int
) -> bool:
    weights, values = _weighted(e, shown)
    terms = printed(weights, weight)[:, None] * printed(values[:, :entries], value)
    slack = _rounding(e) * np.abs(terms).sum(0)
    return _holds(terms.sum(0), printed(e.context[:entries], context), context, slack)


def _weighted(e: Explanation, shown: Sequence[int]) -> tuple[Floats, Floats]:
    """Weights `[n]` and values `[n d_v]` of the shown keys and, as one more, of all the others.

    The others' value is their weighted mean: derived. Forbidden keys add nothing and are left out.
    """
    rest = _rest(e, shown)
    seen = [i for i in shown if e.allowed[i]]
    weight = e.weights[rest].sum()
    if not weight > 0:
        return e.weights[seen], e.v[seen]
    mean = (e.weights[rest] @ e.v[rest]) / weight
    return np.append(e.weights[seen], weight), np.vstack([e.v[seen], mean])


def _rest(e: Explanation, shown: Sequence[int]) -> npt.NDArray[np.intp]:
    """The allowed keys that are not shown."""
    hidden = e.allowed.copy()
    hidden[list(shown)] = False
    return np.flatnonzero(hidden)


def _rounding(e: Explanation) -> float:
    return ROUNDING.get(e.dtype, ROUNDING["float32"])


# ── the page ─────────────────────────────────────────────────────────────────────────────────

WIDEST = 100
"""Columns; lines that are longer are hard to read."""

NARROWEST = 12
"""Columns; a terminal that says it has fewer is written to as if it had these."""

MOST_ENTRIES = 6
"""Entries that are shown of a vector that does not fit whole."""

WHOLE = 8
"""A vector of up to so many entries is shown whole where it fits."""


def print_explanation(explanation: Explanation, console: Console) -> None:
    """Write the page to `console`; no line is wider than it is."""
    page = _Page(console)
    _Writer(page, explanation).write()
    write(console, *page.lines)


@dataclass(frozen=True)
class _Row:
    """A line of a table. The first two cells name it; `bar` is a share of the longest bar."""

    cells: Sequence[str]
    style: str = ""
    bar: float | None = None
    is_sum: bool = False


class _Page:
    """Lines that fit the console's width, in the characters that it has."""

    def __init__(self, console: Console) -> None:
        self.ascii = ascii_only(console)
        self.width = max(min(console.width, WIDEST), NARROWEST)
        self.lines: list[Text] = []

    def spell(self, text: str) -> str:
        return notation(text, self.ascii)

    def label(self, token: str) -> str:
        """A token in a table."""
        limit = 16 if self.width >= 60 else 10
        return shorten(visible(token, self.ascii), limit, self.ascii)

    def quoted(self, token: str) -> str:
        """A token in a sentence."""
        return f'"{shorten(visible(token, self.ascii), 24, self.ascii)}"'

    def name(self, mask: str) -> str:
        """The name of a mask, which may be that of a stranger's file."""
        return visible(mask, self.ascii).replace(visible(" ", self.ascii), " ")

    def heading(self, text: str) -> None:
        self.lines.append(Text())
        before = len(self.lines)
        self.say(text, style="bold")
        width = _widest(line.plain for line in self.lines[before:])
        self.lines.append(Text(self._rule(width), "dim"))

    def say(self, *pieces: str, style: str = "", indent: str = "") -> None:
        """Sentences; a line ends between two pieces where it can."""
        texts = [Text(self.spell(piece), style) for piece in pieces]
        for line in flow(texts, self.width - len(indent), gap=" "):
            self.lines.append(Text(indent).append_text(line))

    def table(
        self, heads: Sequence[str], rows: Sequence[_Row], bars: bool = False, words: bool = False
    ) -> None:
        """A grid where it fits, else a block of lines for each row.

        Numbers stand to the right, names to the left; so does the last column where it is `words`.
        """
        heads = [self.spell(head) for head in heads]
        texts = [[self.spell(cell) for cell in row.cells] for row in rows]
        widths = [max(map(cells, column)) for column in zip(heads, *texts, strict=True)]
        left = {1, len(heads) - 1} if words else {1}
        used = 2 + sum(width + 2 for width in widths) - 2
        room = min(self.width - used - 2, 40) if bars else 0
        if used > self.width or (bars and room < 8):
            self._blocks(heads, rows, texts, bars)
            return

        def line(cells_of: Sequence[str]) -> str:
            columns = enumerate(zip(cells_of, widths, strict=True))
            padded = [fit(text, width, right=i not in left) for i, (text, width) in columns]
            return "  " + "  ".join(padded)

        self.lines.append(Text(line(heads), "dim"))
        for row, text in zip(rows, texts, strict=True):
            if row.is_sum:
                self.lines.append(Text("  " + self._rule(used - 2), "dim"))
            grid = Text(line(text), row.style)
            if row.bar is not None:
                grid.append("  ").append(self._bar(row.bar, room), "not bold cyan")
            self.lines.append(grid)

    def _blocks(
        self, heads: Sequence[str], rows: Sequence[_Row], texts: list[list[str]], bars: bool
    ) -> None:
        for row, text in zip(rows, texts, strict=True):
            name = " ".join(part for part in text[:2] if part)
            self.say(name, style=row.style or "underline")
            pairs = zip(heads[2:], text[2:], strict=True)
            named = (
                cell if cell == head else f"{head} {cell.strip()}" for head, cell in pairs if cell
            )
            pieces = [Text(piece, row.style) for piece in named]
            for line in flow(pieces, self.width - 2):
                self.lines.append(Text("  ").append_text(line))
            if bars and row.bar:
                self.lines.append(Text("  ").append(self._bar(row.bar, self.width - 2), "cyan"))

    def _rule(self, width: int) -> str:
        return ("-" if self.ascii else "─") * width

    def _bar(self, share: float, width: int) -> str:
        """`share` of `width` columns, to an eighth of one; something where there is something."""
        if not share > 0:
            return ""
        if self.ascii:
            return "#" * max(1, round(share * width))
        whole, eighths = divmod(max(1, round(share * width * 8)), 8)
        return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()


class _Writer:
    """The sections of the page, in the order of the computation."""

    def __init__(self, page: _Page, explanation: Explanation) -> None:
        self.page, self.e = page, explanation
        e = explanation
        self.shown = shown_keys(e)
        self.seen = [i for i in self.shown if e.allowed[i]]
        self.rest = _rest(e, self.shown)
        self.example = self._example()
        self.digits = choose_digits(e, self.shown, self._entries_of_values())
        self.n_entries = self._entries_of_keys()
        self.is_whole = self.n_entries == len(e.q)
        if self.is_whole:
            full = full_digits(e, self.shown, self.digits.chain)
            self.digits = replace(self.digits, vector=full)
        self.n_values = self._entries_of_values()

    def write(self) -> None:
        self._title()
        self._query()
        self._products()
        self._scale()
        self._mask()
        self._softmax()
        self._sum()
        self._projection()

    # ── what fits ──

    def _example(self) -> int:
        """The key whose numbers are worked out in full: the second largest weight, or the largest.

        The largest is always exp(0) = 1, which shows little. -1 where the query sees nothing.
        """
        weights = np.nan_to_num(self.e.weights)
        order = sorted(self.seen, key=lambda i: -weights[i])
        if len(order) > 1 and weights[order[1]] > 0.005:
            return order[1]
        return order[0] if order else -1

    def _room(self, *others: int) -> int:
        """Columns left beside a row's name and columns of these widths."""
        places = _widest(["at", *(self._place(i) for i in self.shown)])
        names = _widest(["key", self._others(), *(self._name(i)[1] for i in self.shown)])
        return self.page.width - (2 + places + 2 + names) - sum(width + 2 for width in others)

    def _entries(self, values: Floats, decimals: int, room: int) -> int:
        """How many entries of vectors `[n d]` fit in `room`: all of them, or some and a …."""
        length = int(values.shape[1])
        cell = 2 + _widest(["[0]", *(number(x, decimals) for x in values.ravel())])
        if length <= WHOLE and length * cell <= room:
            return length
        fitting = min((room - 3) // cell, MOST_ENTRIES)
        if fitting > 1:
            return min(length, fitting)
        return length if length <= 4 else 3  # the table becomes blocks

    def _entries_of_keys(self) -> int:
        e, d_k = self.e, len(self.e.q)
        vectors = np.vstack([e.q, e.k[self.shown]])
        room = self._room(_widest(["q·k", *(self._chain(e.products[i]) for i in self.shown)]))
        full = full_digits(e, self.shown, self.digits.chain)
        if d_k <= 4 or self._entries(vectors, full, room) == d_k:
            return d_k
        return min(self._entries(vectors, self.digits.vector, room), d_k - 1)

    def _entries_of_values(self) -> int:
        values = np.vstack([self.e.v[self.shown], self.e.context])
        return self._entries(values, _significant(self.e.v), self._room(6))

    # ── what several sections say ──

    def _place(self, key: int) -> str:
        """A key's index in its own text; padding has none."""
        return "" if self.e.key_is_padding[key] else str(self.e.key_positions[key])

    def _name(self, key: int) -> tuple[str, str]:
        return self._place(key), self.page.label(self.e.key_tokens[key])

    def _quoted(self, key: int) -> str:
        return self.page.quoted(self.e.key_tokens[key])

    def _style(self, key: int) -> str:
        return "bold" if key == self.example else ""

    def _chain(self, x: float) -> str:
        return number(x, self.digits.chain)

    def _weight(self, x: float) -> str:
        return number(x, self.digits.weight)

    def _vector(self, values: Floats, decimals: int) -> list[str]:
        return [number(x, decimals) for x in values]

    def _for_example(self, *terms: str) -> None:
        self.page.say(f"For {self._quoted(self.example)}:", *terms, indent="  ")

    def _run(self, *names: str, derived: str = "") -> None:
        """The taps that a section's numbers come from, with their shapes and source lines."""
        found = {step.name: step for step in self.e.steps}
        pieces = []
        for i, name in enumerate(names):
            end = ";" if i < len(names) - 1 else "."
            before = "" if i else "Run: "
            if name in found:
                step = found[name]
                axes, shape = " ".join(step.axes), " ".join(map(str, step.shape))
                pieces += [f"{before}{name} [{axes}] = [{shape}]", step.source + end]
            else:
                pieces.append(before + name + end)
        self.page.say(*pieces, *([f"Derived: {derived}."] if derived else []), style="dim")

    # ── the sections ──

    def _title(self) -> None:
        page, e = self.page, self.e
        token = page.quoted(e.query_token)
        page.say(f"What head {e.head} does for {token}", style="bold")
        facts = [
            "query: padding" if e.query_is_padding else f"query: position {e.query_position}",
            *([f"sequence {e.sequence} of {e.batch_size}"] if e.batch_size > 1 else []),
            *([f"layer {e.layer} of {e.n_layers}"] if e.n_layers > 1 else []),
            f"head {e.head} of {e.n_heads}",
            _count(e.n_keys, "key") + (" of the other text" if e.is_cross else ""),
            f"masks: {', '.join(map(page.name, e.masks)) or 'none'}",
            e.dtype,
        ]
        page.lines += flow([Text(fact, "dim") for fact in facts], page.width)
        page.lines.append(Text())
        slack = ""
        if e.dtype in ("float16", "bfloat16"):
            parts = f"{1 / ROUNDING[e.dtype]:.0f}"
            slack = f", or to within the rounding of {e.dtype} itself, 1 part in {parts}"
        page.say(
            "Every number is the run's own, rounded for print; what was worked out from such "
            "numbers is called derived. Follow with pencil and paper: from the printed numbers, "
            f"each next one comes out to within 1 in its last digit{slack}."
        )
        nth, twins = e.occurrence
        if twins > 1:
            page.say(f"The text has {token} {twins} times; this is number {nth}.")
        if e.query_is_padding:
            page.say(
                "This query is padding: the layer computes its row like any other, but nothing "
                "should read it."
            )
        if not e.trained:
            page.say("The layer is untrained: it shows how attention works, not what words mean.")

    def _query(self) -> None:
        page, e = self.page, self.e
        d_k, n = len(e.q), self.n_entries
        page.heading("1. The query vector q")
        page.say(
            f"W_Q turns the token's input into {_count(d_k, 'number')}, its query vector: a "
            "question that is put to every key."
        )
        entries = [*self._vector(e.q[:n], self.digits.vector), *([] if n == d_k else ["…"])]
        page.say("q =", *_listed(entries), indent="  ")
        some = "" if n == d_k else f"The first {n} of {d_k} entries are shown. "
        page.say(f"{some}Its norm, √(q·q), is {number(_norm(e.q), 4)}.")
        self._run("q", derived="the norm")

    def _products(self) -> None:
        page, e, digits = self.page, self.e, self.digits
        d_k, n = len(e.q), self.n_entries
        page.heading("2. The dot products q·k")
        other = " of the other text" if e.is_cross else ""
        page.say(
            f"Each key token{other} has a key vector k, the answer to such questions: it is "
            "multiplied with q entry by entry, and the results are added up. The sum is large "
            "where q and k point the same way."
        )
        if len(self.shown) < e.n_keys:
            hidden = e.n_keys - len(self.shown)
            weight = self._weight(float(e.weights[self.rest].sum()))
            page.say(
                f"Shown are the {len(self.shown)} keys that will get the largest weights. "
                f"{hidden} more are left out; their weights come to {weight} together."
            )
        more = [] if n == d_k else ["…"]
        rows = [_Row(["", "q", *self._vector(e.q[:n], digits.vector), *more, ""])]
        for i in self.shown:
            entries = self._vector(e.k[i, :n], digits.vector)
            rows.append(
                _Row([*self._name(i), *entries, *more, self._chain(e.products[i])], self._style(i))
            )
        page.table(["at", "key", *_numbered(n), *more, "q·k"], rows)
        if not self.is_whole:
            page.say(f"Each product adds up all {d_k} entries, not only those shown.")
        elif self.example >= 0:
            terms = _terms(e.q, digits.vector, e.k[self.example], digits.vector)
            self._for_example(*terms, f"= {self._chain(e.products[self.example])}")
        self._run("k", "products")

    def _scale(self) -> None:
        page, e = self.page, self.e
        d_k = len(e.q)
        whole = e.scale.is_integer()
        root = number(e.scale, 0 if whole else self.digits.chain + 1)
        page.heading("3. The scale √d_k")
        page.say(
            f"Each product is divided by √d_k = √{d_k} = {root}: a sum of d_k terms spreads √d_k "
            "times as wide as one term, and the wider the scores, the more of its weight softmax "
            "puts on a single key."
        )
        rows = [
            _Row(
                [*self._name(i), self._chain(e.products[i]), self._chain(e.scores[i])],
                self._style(i),
            )
            for i in self.shown
        ]
        page.table(["at", "key", "q·k", "score"], rows)
        if (i := self.example) >= 0:
            self._for_example(
                f"{self._chain(e.products[i])} / {root}", f"= {self._chain(e.scores[i])}"
            )
        page.say(self._without_scale())
        self._run("scores", derived="what would happen without the scale")

    def _without_scale(self) -> str:
        e = self.e
        if e.allowed.sum() < 2:
            return (
                "Without it nothing would change here: there are no two keys to share the weight."
            )
        if e.scale == 1:
            return "With d_k = 1 it changes nothing."
        without = e.weights_without_scale
        largest = int(np.nan_to_num(without).argmax())
        bits, bits_without = entropy(e.weights), entropy(without)
        return (
            f"Without it, the largest weight would be {self._weight(without[largest])}, on "
            f"{self._quoted(largest)}, instead of {self._weight(e.weights.max())}; the row would "
            f"have {number(bits_without, 2)} bits of entropy instead of {number(bits, 2)}, as if "
            f"{_few(2**bits_without)} keys shared the weight evenly instead of {_few(2**bits)}."
        )

    def _mask(self) -> None:
        page, e = self.page, self.e
        page.heading("4. The mask")
        forbidden = e.n_keys - int(e.allowed.sum())
        if not e.masks and not forbidden:
            page.say("A mask forbids keys. None is in force: this query may see every key.")
            return
        page.say(
            "A mask says which keys this query may see. The score of a forbidden key becomes -inf, "
            "so that exp makes exactly 0 of it."
        )
        rows = []
        for i in self.shown:
            score = self._chain(e.scores[i]) if e.allowed[i] else "-inf"
            style = self._style(i) if e.allowed[i] else "dim"
            rows.append(_Row([*self._name(i), score, self._verdict(i)], style))
        page.table(["at", "key", "score", "verdict"], rows, words=True)
        counts = [(page.name(name), int((~verdict).sum())) for name, verdict in e.verdicts]
        said = ", ".join(f"{name} forbids {n}" for name, n in counts)
        page.say(f"This query may see {e.n_keys - forbidden} of {_count(e.n_keys, 'key')}.", said)
        if said:
            page.lines[-1].append(".")
        self._run("masked_scores")

    def _verdict(self, key: int) -> str:
        if self.e.allowed[key]:
            return "may look"
        names = ", ".join(map(self.page.name, self.e.forbidding(key)))
        return f"no: {names}" if names else "no"

    def _softmax(self) -> None:
        page, e, digits = self.page, self.e, self.digits
        page.heading("5. Softmax")
        if not e.sees_something:
            page.say(
                "Softmax turns scores into weights that add up to 1, but this query may see no "
                "key, so there is nothing to share out: its weights are all 0."
            )
            self._run("weights")
            return
        top = self._chain(e.scores[e.largest])
        page.say(
            "Softmax turns scores into weights that are positive and add up to 1: exp of each "
            f"score, divided by the sum of them all. The largest score, {top} of "
            f"{self._quoted(e.largest)}, is subtracted first: this changes no weight, and exp "
            "cannot overflow."
        )
        weights = np.nan_to_num(e.weights)
        longest = float(weights[self.seen].max()) or 1.0
        rows = []
        for i in self.seen:
            cells_of = [
                self._chain(e.shifted[i]),
                self._chain(e.exps[i]),
                self._weight(e.weights[i]),
            ]
            bar = float(weights[i]) / longest
            rows.append(_Row([*self._name(i), *cells_of], self._style(i), bar))
        if len(self.rest):
            exp, weight = float(e.exps[self.rest].sum()), float(e.weights[self.rest].sum())
            rows.append(_Row(["+", self._others(), "", self._chain(exp), self._weight(weight)]))
        total = self._weight(e.total) + " " * (digits.chain - digits.weight)
        rows.append(_Row(["", "sum", "", total, self._sum_of_weights()], is_sum=True))
        page.table(["at", "key", "score - max", "exp", "weight"], rows, bars=True)
        forbidden = e.n_keys - int(e.allowed.sum())
        if forbidden:
            page.say(f"Left out: {_count(forbidden, 'forbidden key')}, whose weight is exactly 0.")
        i, shifted = self.example, self._chain(e.shifted[self.example])
        self._for_example(
            f"{self._chain(e.scores[i])} - {_bracketed(top)} = {shifted};",
            f"exp({shifted}) = {self._chain(e.exps[i])};",
            f"{self._chain(e.exps[i])} / {self._weight(e.total)} = {self._weight(e.weights[i])}",
        )
        self._run("weights", derived="score - max, exp and its sum")

    def _others(self) -> str:
        """The one line that stands for all keys that may be seen and are not shown."""
        return f"{len(self.rest)} others" if len(self.rest) else ""

    def _sum_of_weights(self) -> str:
        """The sum of the weights, with as many decimals as the printed ones add up to."""
        e, digits = self.e, self.digits.weight
        weights = np.append(e.weights[self.seen], e.weights[self.rest].sum())
        on_paper = printed(weights, digits).sum(keepdims=True)
        exact = e.weights.sum(keepdims=True)
        good = (d for d in range(digits, 0, -1) if _holds(on_paper, printed(exact, d), d))
        decimals = next(good, 0)
        return number(float(exact[0]), decimals) + " " * (digits - decimals)

    def _sum(self) -> None:
        page, e, digits, n = self.page, self.e, self.digits, self.n_values
        d_v = len(e.context)
        page.heading("6. The weighted sum of values")
        if not e.sees_something:
            page.say(
                "The context is the sum of the keys' value vectors, each times its weight. Here "
                "all weights are 0, and so is the context."
            )
            zeros = [*self._vector(e.context[:n], 1), *([] if n == d_v else ["…"])]
            page.say("context =", *_listed(zeros), indent="  ")
            self._run("context")
            return
        page.say(
            f"Each key token also has a value vector v, {_count(d_v, 'number')} that it has to "
            "give. The sum of these, each times its weight, is the context: what this head has "
            "found for the query."
        )
        weights, values = _weighted(e, self.shown)
        names = [(*self._name(i), self._style(i)) for i in self.seen]
        has_others = len(weights) > len(names)
        if has_others:
            names.append(("+", self._others(), ""))
        more = [] if n == d_v else ["…"]
        rows = []
        for (place, name, style), weight, value in zip(names, weights, values, strict=True):
            entries = self._vector(value[:n], digits.value)
            rows.append(_Row([place, name, self._weight(weight), *entries, *more], style))
        align = " " * (digits.value - digits.context)
        sums = [text + align for text in self._vector(e.context[:n], digits.context)]
        rows.append(_Row(["", "sum", "", *sums, *more], is_sum=True))
        page.table(["at", "key", "weight", *_numbered(n), *more], rows)
        notes = [] if n == d_v else [f"The first {n} of {d_v} entries are shown."]
        if has_others:
            notes.append("The others have one line: their weights' sum, and their weighted mean.")
        if notes:
            page.say(*notes)
        terms = _terms(weights, digits.weight, values[:, 0], digits.value)
        if len(terms) > 4:
            terms = [*terms[:3], "+ …", terms[-1]]
        page.say("Entry 0:", *terms, f"= {number(e.context[0], digits.context)}", indent="  ")
        self._run("v", "context", derived="the others' sum and mean" if has_others else "")

    def _projection(self) -> None:
        page, e = self.page, self.e
        page.heading("7. The output projection W_O")
        rows: list[tuple[str, Floats]] = []
        if e.parts is not None:
            rows.append((f"head {e.head}", e.parts[e.head]))
        if e.parts is not None and e.projected is not None:
            others = "other heads, bias" if e.n_heads > 1 else "bias"
            rows.append((others, e.projected - e.parts[e.head]))
        if e.projected is not None:
            rows.append(("sum" if rows else "all heads", e.projected))
        if not rows:
            page.say(
                "W_O mixes the contexts of the heads; this run kept neither it nor its result."
            )
            return
        length = len(rows[0][1])
        page.say(
            "W_O lays the contexts of all heads side by side and mixes them back to d_model = "
            f"{_count(length, 'number')}. It does so for each head with columns of its own, so "
            "that the layer's answer is a sum, and this head's part in it can be told."
        )
        values = np.vstack([row for _, row in rows])
        digits = _significant(values)
        norms = [number(_norm(row), digits) for row in values]
        names = _widest([name for name, _ in rows])
        n = self._entries(values, digits, page.width - 6 - names - _widest(norms) - 2)
        more = [] if n == length else ["…"]
        table = [
            _Row(["", name, *self._vector(row[:n], digits), *more, norm], is_sum=name == "sum")
            for (name, row), norm in zip(rows, norms, strict=True)
        ]
        page.table(["", "part", *_numbered(n), *more, "norm"], table)
        if more:
            page.say(f"The first {n} of {length} entries are shown. Norms do not add up.")
        if e.parts is not None and e.n_heads > 1:
            lengths = [_norm(part) for part in e.parts]
            rank = sum(other > lengths[e.head] for other in lengths) + 1
            page.say(f"By norm, this head's part is number {rank} of {e.n_heads}.")
        derived = (
            "" if e.parts is None else f"the context of head {e.head} times its columns of W_O"
        )
        self._run("context" if e.projected is None else "projected", derived=derived)


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}{'s' * (n != 1)}"


def _widest(texts: Iterable[str]) -> int:
    """Columns of the widest of `texts`."""
    return max(cells(text) for text in texts)


def _few(x: float) -> str:
    return number(x, 1 if x < 10 else 0)


def _norm(values: Floats) -> float:
    return float(np.sqrt((values * values).sum()))


def _numbered(n: int) -> list[str]:
    return [f"[{i}]" for i in range(n)]


def _listed(entries: Sequence[str]) -> list[str]:
    """`[a, b, c]` in pieces, so that a line can end after each comma."""
    ends = [","] * (len(entries) - 1) + ["]"]
    pieces = [entry + end for entry, end in zip(entries, ends, strict=True)]
    return ["[" + pieces[0], *pieces[1:]]


def _bracketed(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def _terms(a: Floats, decimals_a: int, b: Floats, decimals_b: int) -> list[str]:
    """a₀ · b₀, + a₁ · b₁, … as one writes them."""
    pairs = [(number(x, decimals_a), number(y, decimals_b)) for x, y in zip(a, b, strict=True)]
    return [
        f"{'+ ' if i else ''}{_bracketed(x)} · {_bracketed(y)}" for i, (x, y) in enumerate(pairs)
    ]
