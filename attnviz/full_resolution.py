"""Windows of a long text at full resolution, computed from the queries and keys that were kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from attnviz.errors import InputError
from attnviz.machine import require_memory
from attnviz.masks import Rule
from attnviz.result import Attention, as_window
from attnviz.scores import Scores
from attnviz.streaming import window


def layer_of(result: Attention, layer: int) -> Scores:
    """What the weights of the layer at index `layer` are made of, for `streaming.window`.

    Raises `InputError` where q and k were not kept.
    """
    if not result.has_weights_kept:
        raise InputError(
            "this long run was saved without its queries and keys; attnviz run … --keep q,k keeps "
            "what its weights can be computed from"
        )
    kept = {name: torch.from_numpy(np.array(x[layer])) for name, x in result.kept.items()}
    first, end = (result.kept[name][layer] for name in ("first_key", "end_key"))
    rule = Rule(
        " and ".join(result.masks) or "none",
        lambda b, h, q, k: (k >= first[b, q]) & (k < end[b, q]),
        span=lambda b: (first[b], end[b]),
    )
    softcap = float(kept["softcap"])
    starts = [[result.places(b, side)[0] for b in range(result.batch_size)] for side in (0, 1)]
    return Scores(
        kept["q"],
        kept["k"],
        (rule,),
        scale=float(kept["scale"]),
        softcap=None if np.isnan(softcap) else softcap,
        slopes=kept.get("slopes"),
        sinks=kept.get("sinks"),
        query_starts=starts[0],
        key_starts=starts[1],
    )


def windows_of(
    attention: Scores, rows: range, columns: range, b: int, heads: Sequence[int]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """(weights, allowed), both `[heads rows columns]`, of some heads of one sequence."""
    weights = np.stack(
        [window(attention, rows, columns, b, h).cpu().float().numpy() for h in heads]
    )
    first, end = (span.numpy()[rows.start : rows.stop, None] for span in attention.spans(b))
    q = np.arange(rows.start, rows.stop)[:, None]
    k = np.arange(columns.start, columns.stop)
    allowed = np.repeat(((k >= first) & (k < end))[None], len(heads), axis=0)
    for rule in attention.unbounded:
        for i, head in enumerate(heads):
            allowed[i] &= rule.allows(b, head, q, k)
    return weights, allowed


Window = Callable[
    [range, range, int, tuple[int, int]], tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]
]
"""(queries, keys, sequence, (index of the layer, head)) -> (weights, allowed)."""


def windows_kept(result: Attention) -> Window | None:
    """Computes single windows from the q and k that were kept; None where they were not."""
    if not result.has_weights_kept:
        return None
    layers: dict[int, Scores] = {}

    def compute(
        rows: range, columns: range, sequence: int, head: tuple[int, int]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        if head[0] not in layers:
            layers.clear()
            layers[head[0]] = layer_of(result, head[0])
        weights, allowed = windows_of(layers[head[0]], rows, columns, sequence, [head[1]])
        return weights[0], allowed[0]

    return compute


def part_at_full_resolution(
    result: Attention,
    rows: range,
    columns: range,
    sequence: int,
    heads: Sequence[tuple[int, int]],
) -> Attention:
    """A window of one sequence, computed from the q and k that were kept.

    Its layers are those of `heads`, (index of the layer, head); heads that are not in it are zeros.
    Raises `InputError` where the window lies outside of the text, or q and k were not kept.
    """
    places = sorted({place for place, _ in heads})
    require_memory(
        13 * len(rows) * len(columns) * result.n_heads * len(places),
        f"a window of {len(rows):,} × {len(columns):,}",
        "give fewer rows or columns",
    )
    shape = (len(places), 1, result.n_heads, len(rows), len(columns))
    weights, allowed = np.zeros(shape, np.float32), np.zeros(shape, np.bool_)
    for i, place in enumerate(places):
        some = [head for each, head in heads if each == place]
        weights[i, 0, some], allowed[i, 0, some] = windows_of(
            layer_of(result, place), rows, columns, sequence, some
        )
    numbers = tuple(result.layer_numbers[place] for place in places)
    layers = numbers if result.names_layers else ()
    return as_window(result, weights, allowed, rows, columns, sequence, layers)
