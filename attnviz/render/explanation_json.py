"""An explanation as one JSON document."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from attnviz import __version__
from attnviz.render.explanation import Explanation

FORMAT, VERSION = "attnviz.explain", 1


def explanation_as_json(explanation: Explanation) -> dict[str, Any]:
    """The document of `--json`: all numbers in full; NaN and infinity are null."""
    e = explanation
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
        "keys": [_key(e, i) for i in range(e.n_keys)],
        "context": _json(e.context),
        "projection": {
            "this_head": None if e.parts is None else _json(e.parts[e.head]),
            "all_heads": None if e.projected is None else _json(e.projected),
        },
        "derived": _derived(e),
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


def _key(e: Explanation, i: int) -> dict[str, Any]:
    """The numbers of one key."""
    return {
        "index": i,
        "position": int(e.key_positions[i]),
        "token": e.key_tokens[i],
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


def _derived(e: Explanation) -> list[str]:
    """The fields that no tap caught: they are computed from those of the run."""
    return [
        *(["keys.product", "keys.scaled", "keys.score"] if e.is_foreign else []),
        "scale",
        "largest_score",
        "exp_sum",
        "keys.shifted",
        "keys.exp",
        "keys.weight_without_scale",
        "projection.this_head",
    ]


def _json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_json(x) for x in value.tolist()]
    return float(value) if isfinite(value) else None
