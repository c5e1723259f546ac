"""The masks that weights should obey, told by flags or arguments, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attnviz.checks.given import as_array
from attnviz.checks.subject import Array, Mask, Rows, Subject, Told
from attnviz.errors import InputError, printable
from attnviz.masks import MASKS, NUMBER, SWITCH, MaskArray, Rule, Settings, places_of, rules_from


def with_masks(subject: Subject, settings: Settings) -> Subject:
    """`subject`, told these masks too, and padding where it has any; see `masks.rules_from`.

    Raises `InputError` where a mask does not fit.
    """
    queries, keys = subject.queries, subject.keys
    *_, heads, n_queries, n_keys = subject.shape
    for mask in MASKS:
        if mask.reads_tokens and settings.get(mask.name) and not subject.named:
            raise InputError(f"{mask.reads_tokens}, and the tokens are not known; give tokens")
    at = places_of(queries, keys)
    hidden = {} if subject.hides_padding else {"padding": False}
    told = list(subject.told)
    for rule in rules_from({**settings, **hidden}, queries, keys, heads):
        assert rule.mask is not None
        mistakes = rule.mask.mistakes(at, settings.get(rule.mask.name))
        told.append(
            Told(
                rule.name,
                rule.mask.name,
                _rows_of(rule, heads, n_queries, n_keys),
                {
                    words: _pattern(cells, n_queries, n_keys, queries.before)
                    for words, cells in mistakes.items()
                },
            )
        )
    return replace(subject, told=tuple(told))


def mask_settings(masks: Mapping[str, Any], mask: Any, mask_name: str) -> dict[str, Any]:
    """Arguments as `masks.rules_from` takes them. Raises `TypeError` for an unknown one."""
    known = {row.name for row in MASKS if row.takes in (SWITCH, NUMBER)}
    if unknown := set(masks) - known:
        raise TypeError(f"check() got an unexpected keyword argument '{min(unknown)}'")
    if mask is None:
        return dict(masks)
    array = as_array(mask)
    if array.dtype != np.bool_ and ((array != 0) & (array != 1)).any():
        raise InputError(
            f"the mask is {printable(array.dtype)} with other numbers than 0 and 1; give True "
            "where a query may look: mask == 0 of one that is added to scores"
        )
    return {**masks, "mask": MaskArray(array.astype(bool), mask_name)}


def _rows_of(rule: Rule, heads: int, queries: int, keys: int) -> Callable[[int, int, Rows], Mask]:
    """The rule's `[1|H rows Tk]` of one sequence, the same in every layer."""
    h, k = np.arange(heads if rule.per_head else 1)[:, None, None], np.arange(keys)[None, None]

    def allows(_layer: int, sequence: int, rows: Rows) -> Mask:
        q = np.arange(queries)[rows][None, :, None]
        found = rule.allows(sequence, h, q, k)
        return np.broadcast_to(found, (len(h), q.shape[1], keys))

    return allows


def _pattern(
    cells: Callable[[Array, Array], Mask], queries: int, keys: int, before: Array | None
) -> Callable[[int, int, Rows], Mask]:
    """A mask over places in the array, the same everywhere; queries may follow on a cache."""

    def allows(_layer: int, sequence: int, rows: Rows) -> Mask:
        first = 0 if before is None else before[sequence]
        q = first + np.arange(queries)[rows]
        return np.broadcast_to(cells(q[:, None], np.arange(keys)), (1, len(q), keys))

    return allows
