"""Cells that the masks allow and no head of a layer uses: was a stricter mask in force?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnviz.checks.checked_weights import Cells, CheckedWeights, all_of
from attnviz.checks.report import ranges
from attnviz.masks import earlier

FEWEST_TOKENS = 3
"""Queries and keys that a map must have to show a pattern."""

FEWEST_LOOKS = 3
"""Rows that may look at a key before it is worth a word that none does."""


def unused(
    checked: CheckedWeights, layer: int, sequence: int, support: Cells, leaks: bool = False
) -> str:
    """A whole pattern that the masks allow and no head of a layer ever looks at, in words.

    `support` is bool `[Tq Tk]`, True where some head has weight; "" where nothing stands out.
    `leaks` says that cells which a mask forbids have weight too: then its cause says enough.
    """
    queries, keys = support.shape
    if keys < FEWEST_TOKENS or not support.any():
        return ""
    rows, real = slice(0, queries), checked.query_valid[sequence][:, None]
    masks = [np.asarray(m.allows(layer, sequence, rows).any(0)) for m in checked.expected]
    allowed = all_of([np.broadcast_to(real, support.shape), *masks])
    assert allowed is not None
    if not (allowed & ~support).any():
        return ""
    best, fewest = "", int(allowed.sum())
    for words, cells in _patterns(checked, layer, sequence, masks, queries):
        left = allowed & cells
        n = int(left.sum())
        if n < fewest and not (support & real & ~left).any() and support[left].all():
            best, fewest = words, n
    return best or ("" if leaks else _unused_keys(sequence, allowed, support))


def _patterns(
    checked: CheckedWeights, layer: int, sequence: int, masks: list[Cells], queries: int
) -> Iterator[tuple[str, Cells]]:
    """What may have been in force in place of the masks, in words, with its cells `[Tq Tk]`."""
    keys = checked.shape[4]
    for mask, own in zip(checked.expected, masks, strict=True):
        for words, allows in mask.mistakes.items():
            cells = allows(layer, sequence, slice(0, queries))[0]
            yield f"the {mask.name} mask is as if {words}", cells
        if mask.kind != "padding" and queries >= FEWEST_TOKENS:
            yield f"the {mask.name} mask hides the last key that a query may see", earlier(own)
    if queries != keys:
        return
    q, k = np.arange(queries)[:, None], np.arange(keys)[None, :]
    if not masks:
        yield "nobody looks at earlier keys: a causal mask, transposed or inverted", k >= q
    yield "nobody looks at itself: a mask that is shifted by one", k != q
    yield "nobody looks at itself or later: a causal mask, shifted by one", k < q
    if not masks:
        yield "nobody looks at itself or earlier: a causal mask that is inverted", k > q


def _unused_keys(sequence: int, allowed: Cells, support: Cells) -> str:
    """Keys of one sequence that several rows may see and none does, while others are used whole."""
    looks, used = allowed.sum(0), support & allowed
    idle = (looks > 0) & ~used.any(0)
    busy = (looks > 0) & ~idle
    # small weights may round to 0 here and there; a mask hides whole keys, and leaves others whole
    if looks[idle].max(initial=0) < FEWEST_LOOKS or not busy.any():
        return ""
    if not (used | ~allowed)[:, busy].all():
        return ""
    keys = np.flatnonzero(idle).tolist()
    return (
        f"no query of sequence {sequence} looks at key{'s' * (len(keys) > 1)} {ranges(keys)}: "
        "the padding mask of another sequence, or lengths that are not given"
    )
