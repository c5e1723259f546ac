"""The masks that weights should obey, told by flags or arguments, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnviz.checks.given import as_array
from attnviz.checks.subject import Array, Mask, Rows, Subject, Told
from attnviz.config import check_size
from attnviz.errors import InputError, printable
from attnviz.masks import Rule
from attnviz.tokens import SEP


def with_masks(
    subject: Subject,
    causal: bool = False,
    window: int | None = None,
    prefix: int | None = None,
    segments: bool = False,
    mask: Any = None,
    mask_name: str = "mask",
) -> Subject:
    """`subject`, told these masks too, and padding where it has any.

    Raises `InputError` where a mask does not fit.
    """
    from attnviz import masks

    queries, keys = subject.queries, subject.keys
    _, batch, heads, n_queries, n_keys = subject.shape
    told = list(subject.told)

    def tell(rule: Rule, kind: str, **mistakes: Callable[[Array, Array], Mask]) -> None:
        told.append(
            Told(
                rule.name,
                kind,
                _rows_of(rule, heads, n_queries, n_keys),
                {
                    words.replace("_", " "): _pattern(cells, n_queries, n_keys, queries.before)
                    for words, cells in mistakes.items()
                },
            )
        )

    if subject.hides_padding and not keys.valid.all():
        tell(masks.padding(keys), "padding")
    if causal:
        before = n_keys - n_queries
        starts = {
            "queries_stood_at_the_first_keys_and_not_at_the_last": lambda q, k: k <= q - before
        }
        ends = {"queries_stood_at_the_last_keys": lambda q, k: k <= q + before}
        others = starts if queries.before is not None else ends
        tell(masks.causal(queries, keys), "causal", **(others if before > 0 else {}))
    if window is not None:
        check_size("window", window)
        tell(
            masks.window(window, queries, keys),
            "window",
            it_reached_one_key_further=lambda q, k: (k <= q) & (k > q - window - 1),
            it_were_one_key_narrower=lambda q, k: (k <= q) & (k > q - window + 1),
            it_reached_both_ways=lambda q, k: abs(q - k) < window,
            it_had_no_limit=lambda q, k: k <= q,
            it_did_not_stop_at_the_query=lambda q, k: k > q - window,
        )
    if prefix is not None:
        check_size("prefix", prefix)
        tell(
            masks.prefix(prefix, queries, keys),
            "prefix",
            positions_counted_the_padding=lambda q, k: (k <= q) | (k < prefix),
            its_prefix_were_one_key_longer=lambda q, k: (k <= q) | (k < prefix + 1),
            it_were_causal_alone=lambda q, k: k <= q,
        )
    if segments:
        if not subject.named:
            raise InputError(f"segments end at {SEP}, and the tokens are not known; give tokens")
        tell(masks.segments(queries, keys), "segments")
    if mask is not None:
        array = as_array(mask)
        if array.dtype != np.bool_ and ((array != 0) & (array != 1)).any():
            raise InputError(
                f"the mask is {printable(array.dtype)} with other numbers than 0 and 1; give "
                "True where a query may look: mask == 0 of one that is added to scores"
            )
        size = (batch, heads, n_queries, n_keys)
        tell(masks.from_array(array.astype(bool), mask_name, *size), "mask")
    return replace(subject, told=tuple(told))


def _rows_of(rule: Rule, heads: int, queries: int, keys: int) -> Callable[[int, int, Rows], Mask]:
    """The rule's `[1|H rows Tk]` of one sequence, the same in every layer."""
    import torch

    h = torch.arange(heads if rule.per_head else 1)[:, None, None]
    k = torch.arange(keys)[None, None, :]

    def allows(_layer: int, sequence: int, rows: Rows) -> Mask:
        q = torch.arange(queries)[rows][None, :, None]
        found = rule.allows(torch.tensor(sequence), h, q, k)
        return np.broadcast_to(found.numpy(), (len(h), q.shape[1], keys))

    return allows


def _pattern(
    cells: Callable[[Array, Array], Mask], queries: int, keys: int, before: Array | None
) -> Callable[[int, int, Rows], Mask]:
    """A mask over places in the array, the same everywhere; queries may follow on a cache."""

    def allows(_layer: int, sequence: int, rows: Rows) -> Mask:
        first = 0 if before is None else before[sequence]
        return cells(first + np.arange(queries)[rows][:, None], np.arange(keys)[None, :])[None]

    return allows
