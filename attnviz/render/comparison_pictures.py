"""Pictures of a comparison: all differences, single heads beside each other, and all distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from attnviz.comparison import Comparison, HeadDifference
from attnviz.render.attention_pictures import blank_drawing, overview
from attnviz.render.difference_panels import (
    ComparisonScales,
    common_scales,
    comparison_caption,
    difference_panels,
    three_panels,
    three_panels_title,
)
from attnviz.render.drawing import Drawing
from attnviz.render.figure_options import FigureOptions
from attnviz.render.head_matrices import head_matrix
from attnviz.render.headings import Heading
from attnviz.render.layout import PanelLayout
from attnviz.render.panel import Pair
from attnviz.render.panel_grid import large_cells
from attnviz.render.picture_formats import for_format, write
from attnviz.wording import plural

DISTANCES_TITLE = "How far apart each head is"

DISTANCES_MEANING = (
    "mean Jensen–Shannon divergence of the rows of A and of B, in bits: 0 where all are the same, "
    "1 where no key has a share in both"
)


def draw_differences(
    comparison: Comparison,
    sequence: int,
    path: Path,
    options: FigureOptions,
    names: tuple[str, str] = ("", ""),
) -> list[str]:
    """Draw B - A of every compared head of one sequence as one picture.

    `names` are those of A and B. Heads of several layers make a layers × heads matrix. Returns
    notes for the person.
    """
    options = for_format(options, path)
    drawing, notes = overview(difference_panels(comparison, sequence, options, names), options)
    write(drawing, path)
    return notes


def draw_three_panels(
    comparison: Comparison,
    sequence: int,
    targets: Sequence[tuple[HeadDifference, Path]],
    options: FigureOptions,
    names: tuple[str, str] = ("", ""),
    on_done: Callable[[], object] = lambda: None,
) -> list[str]:
    """Draw A, B and B - A of each head side by side, on common scales; see `draw_differences`.

    `on_done` is called after each file.
    """
    notes: dict[str, None] = {}
    options = for_format(options, targets[0][1]) if targets else options
    scales = common_scales(comparison, sequence, [head for head, _ in targets], options)
    for head, path in targets:
        drawing, own = three_panel_drawing(comparison, sequence, head, options, names, scales)
        write(drawing, path)
        notes.update(dict.fromkeys(own))
        on_done()
    return list(notes)


def three_panel_drawing(
    comparison: Comparison,
    sequence: int,
    head: HeadDifference,
    options: FigureOptions,
    names: tuple[str, str],
    scales: ComparisonScales,
) -> tuple[Drawing, list[str]]:
    """The picture of one head, and the notes for the person."""
    shared = difference_panels(comparison, sequence, options, names, [head])
    panels = three_panels(comparison, sequence, head, scales)
    blank, notes = blank_drawing(shared, options)
    shape: Pair = panels[0].values.shape
    cell = large_cells(shape, options, cell=22, largest=320, narrowest=120 / shape[1], pixels=1024)
    if cell.pool > 1:
        notes.append(f"heads: each cell shows the largest of {cell.pool} × {cell.pool} weights")
    places = [(0, 0), (0, 1), (0, 2)]
    axes, bars = (shared.rows, shared.columns), (scales.weight, scales.difference)
    layout = PanelLayout(blank, axes, shape, cell, places, 9.0, scales=bars)
    layout.above_panels(panels)
    notes += layout.label_notes("heads")
    title, summary = three_panels_title(comparison, head), panels[-1].summary
    heading = Heading.chosen(options, title, summary, footer=shared.caption)
    drawing = layout.drawing(panels, heading, numbered=options.annotate)
    if options.annotate and not drawing.numbers:
        notes.append("heads: the cells are too small for numbers")
    drawing.description = (
        f"Three heatmaps of attention: A, B and the difference B - A. {title}: {summary}; rows are "
        f"queries, columns are keys. {shared.caption}. Weights run from 0 to "
        f"{scales.weight.top:.3g}, differences from {-scales.difference.top:.3g} to "
        f"{scales.difference.top:.3g}."
    )
    return drawing, notes


def draw_distances(
    comparison: Comparison, path: Path, options: FigureOptions, names: tuple[str, str] = ("", "")
) -> list[str]:
    """Draw the distance of each compared head, over all sequences; see `draw_differences`."""
    options, caption = for_format(options, path), comparison_caption(comparison, None, names)
    drawing, notes = distances_drawing(comparison, options, caption)
    write(drawing, path)
    return notes


def distances_drawing(
    comparison: Comparison, options: FigureOptions, caption: str
) -> tuple[Drawing, list[str]]:
    """The distances as a matrix: layers down, heads across."""
    layers = sorted({head.layer for head in comparison.heads})
    heads = sorted({head.head for head in comparison.heads})
    bits = np.full((len(layers), len(heads)), np.nan)
    for head in comparison.heads:
        bits[layers.index(head.layer), heads.index(head.head)] = head.bits
    numbers = [comparison.a.layer_numbers[layer] for layer in layers]
    heading = Heading.chosen(options, DISTANCES_TITLE, caption=caption, measured=DISTANCES_MEANING)
    drawing, notes = head_matrix(
        bits, (numbers, heads), heading, options, name="bits", written=bits_in_cell
    )
    most = comparison.heads[0]
    number = comparison.a.layer_numbers[most.layer]
    drawing.description = (
        f"A matrix of distances in bits for {plural(len(layers), 'layer')}, one a row, and "
        f"{plural(len(heads), 'head')}, one a column. {caption}. Colours run from 0 to "
        f"{drawing.panels[0].panel.scale.top:.3g}. The first in order: layer {number} head "
        f"{most.head}, {most.bits:.3g} bits."
    )
    return drawing, notes


def bits_in_cell(bits: float) -> str:
    """How a distance is written into its cell."""
    if bits >= 0.0005 or not bits:
        return f"{bits:.3f}".removeprefix("0") if bits else "0"
    return f"{bits:.0e}"
