"""What makes the weights of one layer: queries, keys, and what turns their products into scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.masks import Rule


@dataclass(frozen=True, eq=False)
class Scores:
    """softmax(q kᵀ · scale) of one layer, not yet computed.

    Args:
        q: `[B H Tq d_k]`, k: `[B Hkv Tk d_k]`, after rotation where positions rotate them. Each
            key head serves H / Hkv neighbouring query heads (Ainslie et al. 2023). float64 is
            computed in float64, every other type in float32.
        rules: which query may attend to which key. A rule with a span costs next to nothing, and
            blocks outside of it are never computed; any other is asked about each cell.
        scale: what products are multiplied by; 1/√d_k when None.
        softcap: c in c · tanh(score / c), before the mask (Gemma 2, 2024); None: no cap.
        slopes: `[H]`, ALiBi: slope · distance is taken off each score (Press et al. 2022).
        distances: `[H 2F+1]`, added to the score of a key F places before the query, …, F places
            after it; keys further away get the first or the last (T5's table, Raffel et al. 2020).
        sinks: `[H]`, a logit that takes part in each row's sum and belongs to no key, so that the
            weights of a row sum to less than 1 (gpt-oss, 2025).
        query_starts, key_starts: `[B]`, the place of position 0 in each sequence, where padding
            stands before it (`Batch.starts`) or earlier queries are not given (less than 0).
        n_extra: how many of the last keys are no token's; they stand at no position.

    Raises:
        InputError: the shapes do not fit each other; both are named.
    """

    q: Tensor
    k: Tensor
    rules: tuple[Rule, ...] = ()
    scale: float | None = None
    softcap: float | None = None
    slopes: Tensor | None = None
    sinks: Tensor | None = None
    query_starts: Sequence[int] | None = None
    key_starts: Sequence[int] | None = None
    distances: Tensor | None = None
    n_extra: int = 0

    def __post_init__(self) -> None:
        q, k = list(self.q.shape), list(self.k.shape)
        fit = len(q) == len(k) == 4 and 0 not in q + k and q[0] == k[0] and q[3] == k[3]
        if not fit or q[1] % k[1]:
            raise InputError(
                f"q is {q} and k is {k}; [B H Tq d_k] and [B Hkv Tk d_k] are expected, none of "
                "them 0, H a multiple of Hkv"
            )
        for name, values in (("slopes", self.slopes), ("sinks", self.sinks)):
            if values is not None and list(values.shape) != [q[1]]:
                raise InputError(f"{name} is {list(values.shape)}; one for each of {q[1]} heads")
        for name, starts in (("query_starts", self.query_starts), ("key_starts", self.key_starts)):
            if starts is not None and len(starts) != q[0]:
                raise InputError(f"{name} has {len(starts)} numbers; one for each of {q[0]}")
        if self.softcap is not None and not self.softcap > 0:
            raise InputError(f"softcap is {self.softcap:g}; it must be more than 0")
        table = self.distances
        if table is not None and (table.ndim != 2 or len(table) != q[1] or not table.shape[1] % 2):
            raise InputError(f"distances is {list(table.shape)}; [H 2F+1] is expected, H {q[1]}")

    @property
    def batch_size(self) -> int:
        return self.q.shape[0]

    @property
    def n_heads(self) -> int:
        return self.q.shape[1]

    @property
    def queries(self) -> int:
        """Tq."""
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        """Tk."""
        return self.k.shape[2]

    @property
    def multiplier(self) -> float:
        """What products are multiplied by."""
        return 1 / sqrt(self.q.shape[3]) if self.scale is None else self.scale

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        return torch.float64 if self.q.dtype is torch.float64 else torch.float32

    @property
    def tokens(self) -> int:
        """How many keys are tokens."""
        return self.keys - self.n_extra

    @property
    def unbounded(self) -> tuple[Rule, ...]:
        """The rules that only their predicate knows."""
        return tuple(rule for rule in self.rules if rule.span is None)

    def key_start(self, b: int) -> int:
        """The place of the first key of sequence `b`."""
        return 0 if self.key_starts is None else int(self.key_starts[b])

    def shift(self, b: int) -> int:
        """The key at query q's own position stands at place q + shift."""
        return self.key_start(b) - (0 if self.query_starts is None else int(self.query_starts[b]))

    def spans(self, b: int) -> tuple[Tensor, Tensor]:
        """(first, end), int64 `[Tq]`: all that the rules with spans let each query see.

        Both lie within 0 … Tk. A query that sees nothing has first = Tk and end = 0.
        """
        first = np.zeros(self.queries, dtype=np.int64)
        end = np.full_like(first, self.keys)
        for rule in self.rules:
            if rule.span is not None:
                low, high = rule.span(b)
                first, end = np.maximum(first, low), np.minimum(end, high)
        blind = end <= first
        first[blind], end[blind] = self.keys, 0
        return torch.from_numpy(first), torch.from_numpy(end)
