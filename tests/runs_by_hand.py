"""Small results by hand, and from a layer, with hostile tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from one_pass import from_config

from attnviz import masks
from attnviz.config import AttentionConfig
from attnviz.result import Attention
from attnviz.tokens import make_batch

HOSTILE = ("$\\frac", "</script>", "\x1b[31m", "\u202e", "猫", "👩\u200d👧", "a\nb", '"', "\0")


def run(dtype: str = "float32", cross: bool = False, keep: tuple[str, ...] = ()) -> Attention:
    """Two sequences, padded on the left, with hostile tokens."""
    queries, keys = [HOSTILE[:5], HOSTILE[2:4]], [HOSTILE, ("x",)]
    known = ("[PAD]", "[SEP]", "x", *HOSTILE)
    a = make_batch(queries, known, pad_side="left")
    b = make_batch(keys, known, pad_side="left") if cross else a
    config = AttentionConfig(17, 3, 11, 13, dtype=dtype)
    rules = [masks.rule("padding", b, b), masks.rule("causal", a, b)]
    return from_config(config, a, b if cross else None, rules, keep).result


def uniform(**changes: Any) -> Attention:
    """A small result by hand, `[L=1 B=2 H=3 Tq=2 Tk=4]`."""
    fields: dict[str, Any] = {
        "attention": np.full((1, 2, 3, 2, 4), 0.25, dtype=np.float32),
        "allowed": np.ones((1, 2, 1, 2, 4), dtype=bool),
        "query_tokens": (("a", "b"),) * 2,
        "key_tokens": (("w", "x", "y", "z"),) * 2,
        "lengths": np.array([2, 1]),
        "key_lengths": np.array([4, 3]),
    }
    return Attention(**{**fields, **changes})
