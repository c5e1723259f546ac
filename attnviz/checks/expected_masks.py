"""The masks that weights should obey, from flags or arguments, and their usual mistakes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attnviz.checks.checked_weights import Allows, Array, Cells, CheckedWeights, ExpectedMask, Rows
from attnviz.checks.reading_weights import as_array
from attnviz.errors import InputError, printable
from attnviz.masks import MASKS, NUMBER, SWITCH, MaskArray, Rule, Settings, places_of, rules_from


def with_masks(checked: CheckedWeights, settings: Settings) -> CheckedWeights:
    """`checked` with these masks too, and that of padding where it has any; see `masks.rules_from`.

    Raises `InputError` where a mask does not fit.
    """
    queries, keys = checked.queries, checked.keys
    *_, heads, n_queries, n_keys = checked.shape
    for mask in MASKS:
        if mask.reads_tokens and settings.get(mask.name) and not checked.named:
            raise InputError(f"{mask.reads_tokens}, and the tokens are not known; give tokens")
    at = places_of(queries, keys)
    hidden = {} if checked.hides_padding else {"padding": False}
    expected = list(checked.expected)
    for rule in rules_from({**settings, **hidden}, queries, keys, heads):
        assert rule.mask is not None
        mistakes = rule.mask.mistakes(at, settings.get(rule.mask.name))
        expected.append(
            ExpectedMask(
                rule.name,
                rule.mask.name,
                _allows(rule, heads, n_queries, n_keys),
                {
                    words: _pattern(cells, n_queries, n_keys, queries.before)
                    for words, cells in mistakes.items()
                },
                rule.mask.of_any,
            )
        )
    return replace(checked, expected=tuple(expected))


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


def _allows(rule: Rule, heads: int, queries: int, keys: int) -> Allows:
    """The rule's `[1|H rows Tk]` of one sequence, the same in every layer."""
    h, k = np.arange(heads if rule.per_head else 1)[:, None, None], np.arange(keys)[None, None]

    def allows(_layer: int, sequence: int, rows: Rows) -> Cells:
        q = np.arange(queries)[rows][None, :, None]
        found = rule.allows(sequence, h, q, k)
        return np.broadcast_to(found, (len(h), q.shape[1], keys))

    return allows


def _pattern(
    cells: Callable[[Array, Array], Cells], queries: int, keys: int, before: Array | None
) -> Allows:
    """A mask over places in the array, the same everywhere; queries may follow on a cache."""

    def allows(_layer: int, sequence: int, rows: Rows) -> Cells:
        first = 0 if before is None else before[sequence]
        q = first + np.arange(queries)[rows]
        return np.broadcast_to(cells(q[:, None], np.arange(keys)), (1, len(q), keys))

    return allows
