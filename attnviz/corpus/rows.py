"""A long text's weights, some rows at a time: no map is ever whole."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attnviz.streaming import LongAttention, weight_blocks

LONGEST = 2048
"""Tokens of a text whose maps are made whole."""


MOST_HELD = 2**26
"""Weights of some rows of several heads: heads that come together share what masks cost."""

ROWS = 256


def head_rows(
    attention: LongAttention,
) -> Iterator[tuple[slice, range, Tensor, npt.NDArray[np.bool_]]]:
    """(heads, rows, their weights `[1 H R Tk]`, what was allowed) of a text that is alone."""
    keys = np.arange(attention.keys)
    together = max(1, MOST_HELD // (ROWS * attention.keys))
    for first in range(0, attention.n_heads, together):
        heads = range(first, min(first + together, attention.n_heads))
        blocks = (weight_blocks(attention, 0, head, ROWS) for head in heads)
        for parts in zip(*blocks, strict=True):
            rows = parts[0][0]
            at = np.arange(rows.start, rows.stop)[:, None]
            allowed = np.ones((1, 1, len(rows), len(keys)), dtype=np.bool_)
            for rule in attention.rules:
                allowed &= rule.allows(0, 0, at, keys)
            weights = torch.stack([part for _, part in parts])[None]
            yield slice(heads.start, heads.stop), rows, weights, allowed
