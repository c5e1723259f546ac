"""What is unusual about weights, a line each. `attnviz check` looks at everything."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from attnviz.errors import printable
from attnviz.result import HIDDEN, Attention

TOLERANCE = 0.02
"""How far from 1 a row may sum: bfloat16 keeps two to three digits."""


def weight_warnings(
    result: Attention,
    sequences: Sequence[int],
    pairs: Sequence[tuple[int, int]],
    softmax: str = "--softmax",
) -> list[str]:
    """Warnings about the heads, (index of the layer, head), of these sequences.

    They name numbers that are NaN or infinite, weights below 0, rows that do not sum to 1, and
    weight where the mask forbids it. Rows of padding do not count, nor does the weight of special
    tokens that are hidden. One head is read at a time. `softmax` is the command or flag that makes
    weights of scores.
    """
    odd, lowest, smallest, largest, leak, leak_at = 0, 0.0, inf, -inf, 0.0, ""
    columns_are_shares = True
    lacks_hidden = any(note.startswith(HIDDEN) for note in result.notes)
    for sequence in sequences:
        real, keys = result.query_valid[sequence], result.key_valid[sequence]
        for layer, head in pairs:
            weights = result.attention[layer, sequence, head][real].astype(np.float64)
            allowed = result.mask_of(layer, sequence, head)[real]
            finite = np.isfinite(weights)
            odd += int((~finite).sum())
            weights[~finite] = 0
            lowest = min(lowest, float(weights.min(initial=0)))
            sums = weights.sum(-1)[finite.all(-1) & allowed.any(-1)]
            smallest = min(smallest, float(sums.min(initial=inf)))
            largest = max(largest, float(sums.max(initial=-inf)))
            columns_are_shares &= bool((abs(weights.sum(0)[keys] - 1) < TOLERANCE).all())
            weights[allowed | ~keys] = 0
            if weights.max(initial=0) > leak:
                leak = float(weights.max())
                query, key = np.unravel_index(int(weights.argmax()), weights.shape)
                query = np.flatnonzero(real)[query]
                leak_at = _place(result, sequence, layer, head, int(query), int(key))
    warnings = []
    if odd:
        warnings.append(f"{odd:,} of the weights are NaN or infinite: they are marked as such")
    if lowest < 0:
        warnings.append(
            f"there are weights below 0, down to {lowest:.3g}: scores become weights by {softmax}"
        )
    elif max(0 if lacks_hidden else 1 - smallest, largest - 1) > TOLERANCE:
        rows = f"rows sum to {_range(smallest, largest)}, not to 1"
        if columns_are_shares:
            rows += ", and columns do: are Q and K the other way round? --axes says"
        warnings.append(rows)
    if leak > 0:
        masks = ", ".join(printable(name) for name in result.masks if name != "padding")
        warnings.append(f"a leak: {leak:.3g} where the mask ({masks}) forbids it, {leak_at}")
    if warnings:
        warnings[-1] += "; attnviz check names every place"
    return warnings


def _place(result: Attention, sequence: int, layer: int, head: int, query: int, key: int) -> str:
    parts = [f"layer {result.layer_numbers[layer]}"] if result.names_layers else []
    parts += [f"sequence {sequence}"] if result.batch_size > 1 else []
    tokens = result.query_tokens[sequence][query], result.key_tokens[sequence][key]
    named = " → ".join(
        f"{what} {i}" + (f" '{printable(token, 24)}'" if token != str(i) else "")
        for what, i, token in zip(("query", "key"), (query, key), tokens, strict=True)
    )
    return ", ".join([*parts, f"head {head}", named])


def _range(low: float, high: float) -> str:
    shown = f"{low:.3g}", f"{high:.3g}"
    return shown[0] if shown[0] == shown[1] else f"{shown[0]} … {shown[1]}"
