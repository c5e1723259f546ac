"""A result whose tokens are merged or left out: words for their pieces, special tokens hidden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.batch import PAD
from attnviz.result import AttentionResult

Groups = Sequence[Sequence[Sequence[int]]]
"""For each sequence, for each new token: the old tokens that it stands for, counted from the
sequence's first. An old token in no group is left out."""

Labels = Sequence[Sequence[str]]


def regrouped(
    result: AttentionResult,
    queries: Groups,
    query_labels: Labels,
    keys: Groups,
    key_labels: Labels,
) -> AttentionResult:
    """Attention between groups of tokens: columns are added up, rows averaged.

    So Clark et al. 2019 (section 4.1) have it: attention *to* a word is the sum over its pieces,
    attention *from* a word their mean, and rows still sum to 1. Where tokens are left out, what
    they got is missing from the rows; nothing is renormalised. A group may look at another when
    one of its tokens may look at one of the other's. Kept tensors are dropped.
    """
    lengths = np.array([len(groups) for groups in queries], dtype=np.int64)
    key_lengths = np.array([len(groups) for groups in keys], dtype=np.int64)
    layers, batch, heads = result.attention.shape[:3]
    shape = (batch, max(1, *lengths), max(1, *key_lengths))
    attention = np.zeros((layers, shape[0], heads, *shape[1:]), result.attention.dtype)
    allowed = np.zeros((layers, shape[0], result.allowed.shape[2], *shape[1:]), dtype=bool)
    for b in range(batch):
        rows = _matrix(queries[b], result.query_valid[b], result.attention.dtype)
        columns = _matrix(keys[b], result.key_valid[b], result.attention.dtype)
        means = rows / np.maximum(rows.sum(1, keepdims=True), 1)
        q = _places(len(rows), shape[1], result.pad_side)
        k = _places(len(columns), shape[2], result.pad_side)
        attention[:, b, :, q, k] = means @ result.attention[:, b] @ columns.T
        allowed[:, b, :, q, k] = (rows @ result.allowed[:, b].astype(rows.dtype) @ columns.T) > 0
    return replace(
        result,
        attention=attention,
        allowed=allowed,
        query_tokens=_padded(query_labels, shape[1], result.pad_side),
        key_tokens=_padded(key_labels, shape[2], result.pad_side),
        lengths=lengths,
        key_lengths=key_lengths,
        kept={},
    )


def _matrix(
    groups: Sequence[Sequence[int]], valid: npt.NDArray[np.bool_], dtype: Any
) -> npt.NDArray[Any]:
    """`[groups T]`: 1 where a place in the padded row belongs to the group."""
    start = int(np.argmax(valid))
    matrix = np.zeros((len(groups), len(valid)), dtype)
    for i, group in enumerate(groups):
        matrix[i, [start + place for place in group]] = 1
    return matrix


def _places(length: int, width: int, pad_side: str) -> slice:
    return slice(0, length) if pad_side == "right" else slice(width - length, width)


def _padded(labels: Labels, width: int, pad_side: str) -> tuple[tuple[str, ...], ...]:
    rows = []
    for row in labels:
        fill = (PAD,) * (width - len(row))
        rows.append((*row, *fill) if pad_side == "right" else (*fill, *row))
    return tuple(rows)
