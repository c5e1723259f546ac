"""Findings from tallies: what was counted in each head, with the worst place in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from attnviz.checks.checked_weights import Cells, CheckedWeights
from attnviz.checks.report import Finding, InHead, Location
from attnviz.checks.scan import HeadTally


def finding_from(
    checked: CheckedWeights,
    tally: HeadTally,
    name: str,
    what: str,
    cause: str,
    *,
    fails: bool = True,
    unit: str = "row",
    measure: str = "",
    layers: Collection[int] | None = None,
    chosen: Cells | None = None,
) -> Finding:
    """The finding of a tally, in some `layers` only, or in the `chosen` heads `[L H]`."""
    found, sizes = [], []
    for layer, head in np.argwhere(tally.count > 0 if chosen is None else chosen).tolist():
        if layers is not None and layer not in layers:
            continue
        at = tally.place[layer, head].tolist()
        place = _place(checked, layer, head, at, tally.value[layer, head])
        n = 1 if unit == "head" else int(tally.count[layer, head])
        found.append(InHead(place.layer, head, n, place))
        sizes.append(tally.size[layer, head])
    worst = found[int(np.argmax(sizes))].worst
    return Finding(name, fails, what, cause, unit, tuple(found), worst, measure)


def note_on_heads(
    checked: CheckedWeights,
    name: str,
    what: str,
    cause: str,
    chosen: Cells,
    sequence: int | None = None,
) -> Finding:
    """A note on whole heads, `[L H]`; the largest weight of a row stands for each.

    The row is the last one of `sequence`, or of the first sequence that has real tokens.
    """
    if sequence is None:
        sequence = int(np.argmax(checked.query_valid.any(1)))
    found = []
    for layer, head in np.argwhere(chosen).tolist():
        query = int(np.flatnonzero(checked.query_valid[sequence])[-1])
        row = checked.layers[layer][sequence, head, query]
        key = int(np.argmax(row))
        place = _place(checked, layer, head, (sequence, query, key), float(row[key]))
        found.append(InHead(place.layer, head, 1, place))
    first = found[0].worst
    return Finding(name, False, what, cause, "head", tuple(found), first, "largest weight")


def _place(
    checked: CheckedWeights, layer: int, head: int, at: Sequence[int], value: float
) -> Location:
    """A place from its sequence, query and key, -1 where there is none."""
    sequence, query, key = at
    at_q, at_k = (None if i < 0 else i for i in (query, key))
    return Location(
        checked.layer_numbers[layer],
        head,
        sequence,
        at_q,
        at_k,
        float(value),
        checked.token(sequence, at_q, of_keys=False),
        checked.token(sequence, at_k, of_keys=True),
    )
