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
    zero, keys = torch.zeros(1, 1, 1, 1, dtype=torch.long), torch.arange(attention.keys)
    together = max(1, MOST_HELD // (ROWS * attention.keys))
    for first in range(0, attention.n_heads, together):
        heads = range(first, min(first + together, attention.n_heads))
        blocks = (weight_blocks(attention, 0, head, ROWS) for head in heads)
        for parts in zip(*blocks, strict=True):
            rows = parts[0][0]
            at = torch.arange(rows.start, rows.stop)[:, None]
            allowed = torch.ones(1, 1, len(rows), len(keys), dtype=torch.bool)
            for rule in attention.rules:
                allowed &= rule.allows(zero, zero, at, keys)
            weights = torch.stack([part for _, part in parts])[None]
            yield slice(heads.start, heads.stop), rows, weights, allowed.numpy()
