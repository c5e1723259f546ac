"""How much of an explanation is shown: which keys, and digits that pencil and paper can follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np
import numpy.typing as npt

from attnviz.render.explanation import ROUNDING, Explanation, Floats

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
    vector = significant(np.concatenate([e.q, e.k.ravel()]))
    value = significant(e.v)
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


def significant(values: Floats) -> int:
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


def holds(worked_out: Floats, shown: Floats, decimals: int, slack: Floats | float = 0.0) -> bool:
    """Whether each is within 1 in the last digit, and `slack`, of what is worked out on paper."""
    both = np.isfinite(worked_out) & np.isfinite(shown)
    off = np.abs(np.where(both, worked_out - shown, 0.0))
    return bool((off <= 10.0**-decimals * (1 + 1e-6) + slack).all())


def _products_hold(e: Explanation, shown: Sequence[int], vector: int, chain: int) -> bool:
    terms = printed(e.q, vector) * printed(e.k[shown], vector)
    slack = _rounding(e) * np.abs(terms).sum(-1)
    return holds(terms.sum(-1), printed(e.products[shown], chain), chain, slack)


def _softmax_holds(e: Explanation, shown: Sequence[int], chain: int, weight: int) -> bool:
    """Whether scores, exp, sum and weights each follow from what is printed before them."""
    eps = _rounding(e)
    scaled = printed(e.scaled[shown], chain)
    on_paper = printed(e.products[shown], chain) / printed(e.scale, chain + 1)
    if not holds(on_paper, scaled, chain, eps * np.abs(scaled)):
        return False
    if e.bias is not None:
        scores = printed(e.scores[shown], chain)
        if not holds(scaled + printed(e.bias[shown], chain), scores, chain, eps * np.abs(scores)):
            return False
    if not e.sees_something:
        return True
    rest = left_out(e, shown)
    seen = [i for i in shown if e.allowed[i]]
    shifted = printed(e.shifted[seen], chain)
    exps = printed(np.append(e.exps[seen], e.exps[rest].sum()), chain)
    total = printed(e.total, weight)
    weights = printed(np.append(e.weights[seen], e.weights[rest].sum()), weight)
    with np.errstate(invalid="ignore"):
        differences = printed(e.scores[seen], chain) - printed(e.scores[e.largest], chain)
        return (
            holds(differences, shifted, chain)
            and holds(np.exp(shifted), exps[:-1], chain)
            and holds(exps.sum(keepdims=True), total, weight)
            and holds(exps / total, weights, weight, eps * weights)
        )


def _sum_holds(
    e: Explanation, shown: Sequence[int], entries: int, weight: int, value: int, context: int
) -> bool:
    weights, values = weighted(e, shown)
    terms = printed(weights, weight)[:, None] * printed(values[:, :entries], value)
    slack = _rounding(e) * np.abs(terms).sum(0)
    return holds(terms.sum(0), printed(e.context[:entries], context), context, slack)


def weighted(e: Explanation, shown: Sequence[int]) -> tuple[Floats, Floats]:
    """Weights `[n]` and values `[n d_v]` of the shown keys and, as one more, of all the others.

    The others' value is their weighted mean: derived. Forbidden keys add nothing and are left out.
    """
    rest = left_out(e, shown)
    seen = [i for i in shown if e.allowed[i]]
    weight = e.weights[rest].sum()
    if not weight > 0:
        return e.weights[seen], e.v[seen]
    mean = (e.weights[rest] @ e.v[rest]) / weight
    return np.append(e.weights[seen], weight), np.vstack([e.v[seen], mean])


def left_out(e: Explanation, shown: Sequence[int]) -> npt.NDArray[np.intp]:
    """The allowed keys that are not shown."""
    hidden = e.allowed.copy()
    hidden[list(shown)] = False
    return np.flatnonzero(hidden)


def _rounding(e: Explanation) -> float:
    return ROUNDING.get(e.dtype, ROUNDING["float32"])
