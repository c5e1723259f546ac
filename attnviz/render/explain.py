"""One query of one head in numbers: what `attnviz explain` shows, and finding the query.

Every number is the run's own: a copy of what the taps caught. What no tap catches (a norm, exp
of a score minus the largest) is worked out from those copies, and labelled as derived. On paper,
each printed number follows from the printed numbers before it, to within 1 in its last digit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable
from attnviz.wording import plural

if TYPE_CHECKING:
    from attnviz.result import Attention
    from attnviz.trace import Step

FORMAT, VERSION = "attnviz.explain", 1

NEEDED = ("q", "k", "v", "products", "scores", "context")
"""Taps that a run must keep to be explained."""

TURNED = ("q_normed", "q_rotated", "k_normed", "k_rotated", "k_extended", "v_extended")
"""Taps of what some layers do with q, k and v before they are used."""

BIASES = ("alibi", "position_bias")
"""Taps of what some layers add to the scores."""

WANTED = (*NEEDED, *TURNED, *BIASES, "biased", "projected")
"""With `projected` as well, the last section shows what all heads come to together."""

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
"""The largest relative error of one rounding to a dtype."""

CLOSE = 2.0**-7
"""How far the quotient of two numbers in bfloat16 may be from what it would be without rounding."""

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


# ── the numbers ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Explanation:
    """One query of one head: the run's numbers as float64 copies, and what follows from them.

    From taps: `q` `[d_k]`, `k` `[Tk d_k]`, `v` `[Tk d_v]` (normed and turned, where the layer does
    that: `done_to_q` names it), `products` `[Tk]`, `scaled` `[Tk]` (divided by `scale`: √d_k, what
    the layer has in its place, or 1 where it does not divide), `bias` `[Tk]` (what places add, or
    None), `scores` `[Tk]` (all that, before masking), `weights` `[Tk]`, `context` `[d_v]`,
    `projected` `[d_model]` (all heads through W_O, or None). `allowed` is bool `[Tk]`; `verdicts`
    has the same for each mask rule by name.

    `is_normed` says that a norm came before W_Q. The layer of a model that is not attnviz's own
    `is_foreign`: its products and scores were worked out again from its q and k.

    `query` is the query's place in the padded batch, `query_position` its index in its own
    sequence, `occurrence` (n, m) says that it is the n-th of m queries with the same text.
    `parts` is `[H d_model]`, derived: each head's context through its own columns of W_O.
    """

    layer: int
    head: int
    sequence: int
    query: int
    n_layers: int
    names_layer: bool
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
    done_to_q: tuple[str, ...]
    products: Floats
    scale: float
    scaled: Floats
    bias: Floats | None
    scores: Floats
    allowed: Bools
    verdicts: tuple[tuple[str, Bools], ...]
    weights: Floats
    context: Floats
    projected: Floats | None
    parts: Floats | None
    steps: tuple[Step, ...]
    is_normed: bool
    is_foreign: bool

    @property
    def n_keys(self) -> int:
        return len(self.key_tokens)

    @property
    def is_scaled(self) -> bool:
        """Whether the products are divided, by the root of d_k = 1 if by nothing else."""
        return self.scale != 1 or len(self.q) == 1

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
            scores = self.products if self.bias is None else self.products + self.bias
            masked = np.where(self.allowed, scores, -np.inf)
            exps = np.exp(masked - masked.max())
            return np.asarray(exps / exps.sum())

    def forbidding(self, key: int) -> tuple[str, ...]:
        """The names of the masks that forbid `key`; empty where it is allowed, or nobody says."""
        if self.allowed[key]:
            return ()
        if self.verdicts:
            return tuple(name for name, verdict in self.verdicts if not verdict[key])
        return self.masks if len(self.masks) == 1 else ()


def explain(
    result: Attention,
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
    kept = result.kept
    is_scaled = "scores" in kept or "biased" not in kept
    missing = [name for name in NEEDED if name not in kept and (name != "scores" or is_scaled)]
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
    projected = kept.get("projected")
    of_q = [name for name in ("q_normed", "q_rotated") if name in kept]
    of_k = [name for name in ("k_normed", "k_rotated") if name in kept]
    is_foreign = bool(steps) and all(step.name != "products" for step in steps)
    products = kept["products"][at][query]
    scaled = kept["scores"][at][query] if is_scaled else products
    return Explanation(
        layer=result.layer_numbers[layer],
        head=head,
        sequence=sequence,
        query=query,
        n_layers=layers,
        names_layer=result.names_layers,
        n_heads=heads,
        batch_size=batch,
        query_token=tokens[query],
        query_position=int(result.query_positions[sequence, query]),
        query_is_padding=not result.query_valid[sequence, query],
        occurrence=(twins.index(query) + 1, len(twins)),
        # a key of the layer's own after the tokens makes no other text
        is_cross=result.key_tokens[sequence][: len(tokens)] != tokens,
        key_tokens=result.key_tokens[sequence],
        key_positions=result.key_positions[sequence].copy(),
        key_is_padding=~result.key_valid[sequence],
        source=result.source,
        trained=result.trained,
        dtype=str(result.config.get("dtype", result.attention.dtype)),
        masks=result.masks,
        q=_float64(kept[["q", *of_q][-1]][at][query]),
        k=_float64(_of_group(kept[["k", *of_k][-1]], at, heads)),
        v=_float64(_of_group(kept["v"], at, heads)),
        done_to_q=tuple(of_q),
        products=_float64(products),
        scale=_divisor(products, scaled, kept["q"].shape[-1]) if is_scaled else 1.0,
        scaled=_float64(scaled),
        bias=_bias(kept, at, query, is_foreign),
        scores=_float64(kept["biased"][at][query] if "biased" in kept else scaled),
        allowed=allowed.copy(),
        verdicts=named,
        weights=_float64(result.attention[at][query]),
        context=_float64(kept["context"][at][query]),
        projected=None if projected is None else _float64(projected[layer, sequence, query]),
        parts=None if w_o is None else _parts(kept["context"], w_o, at, query),
        steps=tuple(step for step in steps if step.name in (*WANTED, "masked_scores", "weights")),
        is_normed=any(step.name == "normed" for step in steps),
        is_foreign=is_foreign,
    )


def _divisor(products: npt.NDArray[Any], scaled: npt.NDArray[Any], d_k: int) -> float:
    """What the products of a row were divided by: √d_k, or what the layer has in its place."""
    usual = sqrt(d_k)
    sure = np.where(np.isfinite(products) & np.isfinite(scaled), np.abs(_float64(scaled)), 0)
    best = int(sure.argmax())
    if not sure[best]:
        return usual
    found = float(products[best]) / float(scaled[best])
    whole = float(round(found))
    if abs(found - usual) < CLOSE * usual:
        return usual
    return whole if abs(found - whole) < 1e-5 * whole else found


def _bias(
    kept: Mapping[str, npt.NDArray[Any]], at: tuple[int, int, int], query: int, is_foreign: bool
) -> Floats | None:
    """What places added to this query's scores; attnviz's own table has the heads last."""
    layer, sequence, head = at
    if "alibi" in kept:
        return _float64(kept["alibi"][at][query])
    if "position_bias" in kept and is_foreign:
        return _float64(kept["position_bias"][at][query])
    if "position_bias" in kept:
        return _float64(kept["position_bias"][layer, sequence, query, :, head])
    return None


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
    result: Attention,
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


def find_query(result: Attention, sequence: int, text: str) -> int:
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
            has = plural(length, "token")
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
            "scaled": _json(e.scaled[i]),
            "bias": None if e.bias is None else _json(e.bias[i]),
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
        "done_to_q": list(e.done_to_q),
        "largest_score": _json(e.scores[e.largest]) if e.sees_something else None,
        "exp_sum": _json(e.total),
        "keys": keys,
        "context": _json(e.context),
        "projection": {
            "this_head": None if e.parts is None else _json(e.parts[e.head]),
            "all_heads": None if e.projected is None else _json(e.projected),
        },
        "derived": [
            *(["keys.product", "keys.scaled", "keys.score"] if e.is_foreign else []),
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
