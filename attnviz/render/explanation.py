"""One query of one head in numbers: what `attnviz explain` shows.

Every number is the run's own: a copy of what the taps caught. What no tap catches (a norm, exp
of a score minus the largest) is worked out from those copies, and labelled as derived. On paper,
each printed number follows from the printed numbers before it, to within 1 in its last digit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable
from attnviz.result import Attention
from attnviz.trace import Step
from attnviz.wording import plural

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
Taps = Mapping[str, npt.NDArray[Any]]


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
    at = (layer, sequence, head)
    _require_in_range(result, at, query)
    kept = result.kept
    is_scaled = "scores" in kept or "biased" not in kept
    missing = [name for name in NEEDED if name not in kept and (name != "scores" or is_scaled)]
    if missing:
        raise InputError(
            f"the run did not keep {', '.join(missing)}; {', '.join(NEEDED)} are needed"
        )
    allowed, named = _masks(result, at, query, verdicts)
    is_foreign = bool(steps) and all(step.name != "products" for step in steps)
    return Explanation(
        **_identity(result, at, query),
        **_vectors(kept, at, query, result.n_heads),
        **_scores(kept, at, query, is_scaled, is_foreign),
        allowed=allowed.copy(),
        verdicts=named,
        weights=_float64(result.attention[at][query]),
        parts=None if w_o is None else _parts(kept["context"], w_o, at, query),
        steps=tuple(step for step in steps if step.name in (*WANTED, "masked_scores", "weights")),
        is_normed=any(step.name == "normed" for step in steps),
        is_foreign=is_foreign,
    )


At = tuple[int, int, int]
"""Layer, sequence and head, as indices of an array `[L B H …]`."""


def _require_in_range(result: Attention, at: At, query: int) -> None:
    layers, batch, heads, queries = result.attention.shape[:4]
    for name, value, size in zip(
        ("layer", "sequence", "head", "query"),
        (*at, query),
        (layers, batch, heads, queries),
        strict=True,
    ):
        if not 0 <= value < size:
            numbers = f"0 to {size - 1}" if size > 1 else "number 0"
            raise InputError(
                f"{name} {value} is not in this run, which has {plural(size, name)}, {numbers}"
            )


def _masks(
    result: Attention, at: At, query: int, verdicts: Sequence[tuple[str, Bools]]
) -> tuple[Bools, tuple[tuple[str, Bools], ...]]:
    """What the query may see, in all and by each mask: they have to agree."""
    layer, sequence, head = at
    mask = result.allowed[layer, sequence]
    allowed = mask[head if len(mask) > 1 else 0, query]
    named = tuple((name, _verdict(name, rule, result, at, query)) for name, rule in verdicts)
    if named and not np.array_equal(np.all([row for _, row in named], axis=0), allowed):
        raise InputError(
            f"the masks {', '.join(printable(name) for name, _ in named)} do not combine to the "
            f"mask of the run for query {query}"
        )
    return allowed, named


def _identity(result: Attention, at: At, query: int) -> dict[str, Any]:
    """The fields that say which query of which run this is."""
    layer, sequence, head = at
    tokens, key_tokens = result.query_tokens[sequence], result.key_tokens[sequence]
    twins = [i for i, token in enumerate(tokens) if token == tokens[query]]
    return {
        "layer": result.layer_numbers[layer],
        "head": head,
        "sequence": sequence,
        "query": query,
        "n_layers": result.n_layers,
        "names_layer": result.names_layers,
        "n_heads": result.n_heads,
        "batch_size": result.batch_size,
        "query_token": tokens[query],
        "query_position": int(result.query_positions[sequence, query]),
        "query_is_padding": not result.query_valid[sequence, query],
        "occurrence": (twins.index(query) + 1, len(twins)),
        # keys of the layer's own after the tokens do not make another text
        "is_cross": key_tokens[: len(tokens)] != tokens,
        "key_tokens": key_tokens,
        "key_positions": result.key_positions[sequence].copy(),
        "key_is_padding": ~result.key_valid[sequence],
        "source": result.source,
        "trained": result.trained,
        "dtype": str(result.config.get("dtype", result.attention.dtype)),
        "masks": result.masks,
    }


def _vectors(kept: Taps, at: At, query: int, heads: int) -> dict[str, Any]:
    """q, k and v as they were used, and what came of them."""
    layer, sequence, _ = at
    of_q = [name for name in ("q_normed", "q_rotated") if name in kept]
    of_k = [name for name in ("k_normed", "k_rotated") if name in kept]
    projected = kept.get("projected")
    return {
        "q": _float64(kept[["q", *of_q][-1]][at][query]),
        "k": _float64(_of_group(kept[["k", *of_k][-1]], at, heads)),
        "v": _float64(_of_group(kept["v"], at, heads)),
        "done_to_q": tuple(of_q),
        "context": _float64(kept["context"][at][query]),
        "projected": None if projected is None else _float64(projected[layer, sequence, query]),
    }


def _scores(kept: Taps, at: At, query: int, is_scaled: bool, is_foreign: bool) -> dict[str, Any]:
    """The way from products to scores."""
    products = kept["products"][at][query]
    scaled = kept["scores"][at][query] if is_scaled else products
    return {
        "products": _float64(products),
        "scale": _divisor(products, scaled, kept["q"].shape[-1]) if is_scaled else 1.0,
        "scaled": _float64(scaled),
        "bias": _bias(kept, at, query, is_foreign),
        "scores": _float64(kept["biased"][at][query] if "biased" in kept else scaled),
    }


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


def _bias(kept: Taps, at: At, query: int, is_foreign: bool) -> Floats | None:
    """What places added to this query's scores; attnviz's own table has the heads last."""
    layer, sequence, head = at
    if "alibi" in kept:
        return _float64(kept["alibi"][at][query])
    if "position_bias" in kept and is_foreign:
        return _float64(kept["position_bias"][at][query])
    if "position_bias" in kept:
        return _float64(kept["position_bias"][layer, sequence, query, :, head])
    return None


def _of_group(kept: npt.NDArray[Any], at: At, heads: int) -> npt.NDArray[Any]:
    """Keys or values `[L B Hkv Tk d]` as a query head sees them: those of its group."""
    layer, sequence, head = at
    return np.asarray(kept[layer, sequence, head * kept.shape[2] // heads])


def _float64(array: npt.NDArray[Any]) -> Floats:
    return np.array(array, dtype=np.float64)


def _verdict(
    name: str,
    rule: npt.NDArray[np.bool_],
    result: Attention,
    at: At,
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


def _parts(context: npt.NDArray[Any], w_o: npt.NDArray[Any], at: At, query: int) -> Floats:
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
