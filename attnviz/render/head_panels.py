"""Panels of attention: one for each head of a sequence, of whole maps or of pooled ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.combined_heads import COMBINED
from attnviz.measures import measure
from attnviz.render.axes import PositionAxis, TokenAxis
from attnviz.render.figure_options import FigureOptions
from attnviz.render.labels import prose
from attnviz.render.panel import (
    KEY_AXIS,
    QUERY_AXIS,
    WEIGHT,
    HeadCells,
    Pair,
    Panel,
    PanelSet,
    head_names,
    sizes_in_words,
    token_axes,
    why_unmeasured,
)
from attnviz.render.scales import LinearScale, LogScale, Scale
from attnviz.render.visible import shorten, visible
from attnviz.result import Attention
from attnviz.wording import plural

MEASURE_FORMS = {
    "entropy": ("{:.2f} bits", "entropy in bits"),
    "largest": ("max {:.2f}", "largest weight (max)"),
    "diagonal": ("diag {:.2f}", "share on the own position (diag)"),
    "first": ("first {:.2f}", "share on the first token (first)"),
    "distance": ("dist {:.1f}", "positions from query to key (dist)"),
}
"""Each measure above a small panel, and the words of the heading for it."""

Measured = Mapping[str, npt.NDArray[np.float64]]


def head_panels(
    attention: Attention, sequence: int, pairs: Sequence[Pair], options: FigureOptions
) -> PanelSet:
    """The chosen heads of one sequence, on one scale.

    Pixels that pool many weights are drawn as their mean, on a logarithmic scale; their measures
    are means over the rows of the whole text.
    """
    axes: tuple[TokenAxis | PositionAxis, TokenAxis | PositionAxis]
    cells = HeadCells(attention.as_map() if attention.is_pooled else attention, sequence)
    caption = caption_of(attention, sequence)
    if attention.is_pooled:
        axes = _position_axes(attention, sequence)
        measured: Measured = attention.row_means(sequence)
        measured = {**measured, "diagonal": measured["self"]}
        rows, keys = attention.cells
        what = f"mean of {rows} × {keys} weights a pixel" if rows * keys > 1 else "a weight a pixel"
        caption += f" · {what}, those that are allowed"
    else:
        axes = token_axes(attention, sequence)
        with np.errstate(invalid="ignore"):  # a weight that is not a number is marked in its cell
            measured = measure(attention, sequence, pairs).result()
    scale, bar, kind = _scales(attention, sequence, pairs, cells, options)
    caption += kind

    noun = "map" if COMBINED in attention.config else "head"
    no_measures = "a part of the map" if attention.is_part else ""
    if attention.config.get(COMBINED, {}).get("how") == "maximum":  # rows do not sum to 1
        no_measures = "largest weights"

    def panel(pair: Pair) -> Panel:
        weights, kinds = cells.cells(*pair)
        if isnan(measured["entropy"][pair]) or no_measures:
            why = no_measures or why_unmeasured(kinds)
            texts: tuple[tuple[str, ...], str] = (why,), f"no measures: {why}"
        else:
            texts = measures_in_words(measured, pair)
        words = "no query sees a key"
        if WEIGHT in kinds.present and attention.is_pooled:
            words = _strongest_of_text(attention, sequence, pair)
        elif WEIGHT in kinds.present:
            q, k = divmod(int(weights.argmax()), weights.shape[1])
            words = strongest(weights[q, k], axes[0].called(q), axes[1].called(k))
        own = scale if bar is None else replace(bar, top=float(weights.max(initial=0)) or 1.0)
        return Panel(weights, kinds, own, head_names(attention, *pair), *texts, words, bar)

    return PanelSet(
        list(pairs),
        panel,
        axes[0],
        axes[1],
        title=f"Attention: {plural(len(pairs), noun)}, {sizes_in_words(*axes)}",
        caption=caption,
        measured=partial(_measured, no_measures),
        values="pixels" if attention.is_pooled else "weights",
        masks=attention.masks,
        changes=attention.notes,
        on_padding=cells.weight_on_padding(pairs),
    )


def _scales(
    attention: Attention,
    sequence: int,
    pairs: Sequence[Pair],
    cells: HeadCells,
    options: FigureOptions,
) -> tuple[Scale, Scale | None, str]:
    """The scale of all heads, that of the colour bar where each head has its own, and the words
    that the caption has for it."""
    own = options.scale == "head" and options.vmax is None
    curve = options.curve or ("log" if attention.is_pooled and not own else "linear")
    words = {"linear": "", "root": " · colours follow the square root", "log": ""}[curve]
    name = "mean weight" if attention.is_pooled else "weight"
    if own:
        words += " · each head has its own scale, up to its largest weight"
        name = "of its largest"
    if curve == "log":
        words += "; the scale is logarithmic" if attention.is_pooled else " · logarithmic scale"
        drawn = np.stack([attention.mean[layer, sequence, head] for layer, head in pairs])
        scale: Scale = replace(LogScale.of(drawn, options.vmax), name=name)
        return scale, None, words
    largest = cells.largest(pairs)
    top = options.vmax or largest
    exponent = 0.5 if curve == "root" else 1.0
    if own:
        bar = LinearScale(1.0, name=name, exponent=exponent)
        return bar, bar, words
    return LinearScale(top, largest > top, name, exponent=exponent), None, words


def _position_axes(attention: Attention, sequence: int) -> tuple[PositionAxis, PositionAxis]:
    shape, cells = attention.mean.shape[3:], attention.cells
    return (
        PositionAxis(QUERY_AXIS, shape[0], cells[0], *attention.places(sequence, 0)),
        PositionAxis(KEY_AXIS, shape[1], cells[1], *attention.places(sequence, 1)),
    )


def caption_of(result: Attention, sequence: int) -> str:
    """Where the attention came from, its masks, and what was done to it."""
    masks = ", ".join(prose(name, 60) for name in result.masks)
    where = f"sequence {sequence} of {result.batch_size}" if result.batch_size > 1 else ""
    source = prose(result.source, 60)
    if not result.trained and "untrained" not in source:
        source = f"{source}, untrained".removeprefix(", ")
    notes = [prose(note, 60) for note in result.notes]
    if result.n_prompt:
        after = plural(result.n_prompt[sequence], "token")
        notes.append(f"the answer begins after {after}, at the line")
    parts = [source, f"masks: {masks}" if masks else "no mask", where, *notes]
    return " · ".join(part for part in parts if part)


def measures_in_words(measured: Measured, pair: Pair) -> tuple[tuple[str, ...], str]:
    """The measures above a small panel, and the line of a picture of its own."""
    values = {name: float(measured[name][pair]) for name in MEASURE_FORMS}
    short = tuple(form.format(values[name]) for name, (form, _) in MEASURE_FORMS.items())
    return short, (
        f"entropy {values['entropy']:.2f} bits · largest weight {values['largest']:.2f} · "
        f"diagonal {values['diagonal']:.2f} · first token {values['first']:.2f} · "
        f"distance {values['distance']:.1f}"
    )


def strongest(weight: Any, query: str, key: str) -> str:
    """The largest weight in words, for those who cannot see it."""
    return f"the largest weight is {weight:.2f}, from query {query} to key {key}"


def _strongest_of_text(pooled: Attention, sequence: int, pair: Pair) -> str:
    """The largest weight of the whole text."""
    at = (pair[0], sequence, pair[1])
    assert pooled.rows is not None  # maps that are pooled have them
    statistics = pooled.rows.statistics
    row = int(statistics["largest"][at].argmax())
    key = int(statistics["largest_key"][(*at, row)])
    names = (pooled.query_tokens[sequence][row], pooled.key_tokens[sequence][key])
    query_name, key_name = (shorten(visible(name), 14) for name in names)
    weight = statistics["largest"][(*at, row)]
    return strongest(weight, f"{row:,} “{query_name}”", f"{key:,} “{key_name}”")


def _measured(no_measures: str, n: int) -> str:
    """What the first n measures above each panel are."""
    if no_measures == "largest weights":
        return "each cell is the largest weight of its heads: rows do not sum to 1"
    if no_measures:
        return "a weight is its share of all keys, not of those shown"
    names = ", ".join(text for _, text in list(MEASURE_FORMS.values())[:n])
    return f"above each map, means over its queries: {names}"
