"""Pictures of all heads: a measure of each as layers × heads, and how alike they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.measures.agreement import clustered
from attnviz.render.axes import TokenAxis
from attnviz.render.drawing import CellSize, Drawing, Line
from attnviz.render.figure_options import FigureOptions
from attnviz.render.fonts import Fonts
from attnviz.render.headings import Heading
from attnviz.render.heads_report import HeadReport
from attnviz.render.labels import prose
from attnviz.render.layout import PanelLayout
from attnviz.render.panel import NOT_A_NUMBER, WEIGHT, CellKinds, Pair, Panel
from attnviz.render.panel_grid import whole_pixels
from attnviz.render.picture_formats import for_format, write
from attnviz.render.scales import LinearScale, two_digits
from attnviz.wording import plural

CELL_WIDE, CELL_HIGH = 30.0, 18.0
"""A cell in points: its number has room."""

LARGEST_SIDE, TREE_HEIGHT = 1008.0, 48.0
"""Points of a matrix along a side at most, and of the tree above it."""

FIRST = (0, 0)
"""Where the only panel is placed."""

AGREEMENT_TITLE = "How alike all heads are"
AGREEMENT_MEANING = (
    "Jensen–Shannon divergence of heads, in bits: 0 both look at the same, 1 at nothing alike"
)


def draw_matrix(report: HeadReport, measure: str, path: Path, options: FigureOptions) -> list[str]:
    """Layers (rows) × heads (columns), cells coloured by a measure; the suffix is the format.

    Returns notes: which characters no font has.
    """
    values = report.figures[measure]
    meaning = report.meaning(measure) or "of each head"
    options = for_format(options, path)
    heading = Heading.chosen(
        options, prose(measure, 40), caption=meaning, measured=_measured_on(report)
    )
    known = values[np.isfinite(values)]
    whole = bool(len(known) and (known == known.round()).all())  # offsets and positions

    def written(value: float) -> str:
        if whole or abs(value) >= 10:
            return f"{value:.0f}"
        return f"{value:.2f}".replace("0.", ".", 1) if 0 < abs(value) < 1 else f"{value:.2f}"

    numbers = report.layer_numbers, range(values.shape[1])
    name = prose(measure, 14)
    drawing, notes = head_matrix(values, numbers, heading, options, name=name, written=written)
    drawing.description = (
        f"A matrix of {prose(measure, 40)}, {meaning}: {plural(values.shape[0], 'layer')}, one a "
        f"row, and {plural(values.shape[1], 'head')}, one a column. {_measured_on(report)}."
    )
    write(drawing, path)
    return notes


def head_matrix(
    values: npt.NDArray[np.float64],
    numbers: tuple[Sequence[int], Sequence[int]],
    heading: Heading,
    options: FigureOptions,
    name: str,
    written: Callable[[float], str] = two_digits,
) -> tuple[Drawing, list[str]]:
    """A matrix of one value per head with its numbers, and the notes; NaN is crossed out.

    `numbers` are those of the layers and of the heads; `name` stands above the colour bar.
    """
    panel = matrix_panel(values, options.vmax, name, written)
    wide, high = (
        min(size, LARGEST_SIDE / n)
        for size, n in zip((CELL_WIDE, CELL_HIGH), values.shape[::-1], strict=True)
    )
    fonts = Fonts([heading.title, *heading.paragraphs, name])
    axes = TokenAxis.of_numbers("layer", numbers[0]), TokenAxis.of_numbers("head", numbers[1])
    cell = CellSize(whole_pixels(wide, options), whole_pixels(high, options))
    shape: Pair = values.shape
    layout = PanelLayout(
        Drawing(options, fonts), axes, shape, cell, (FIRST,), 8.5, 24, [panel.scale]
    )
    numbered = (wide, high) == (CELL_WIDE, CELL_HIGH)
    drawing = layout.drawing([panel], heading, named=False, numbered=numbered)
    return drawing, list(fonts.notes)


def matrix_panel(
    values: npt.NDArray[np.float64],
    vmax: float | None,
    name: str,
    written: Callable[[float], str] = two_digits,
    top: float | None = None,
) -> Panel:
    """One value per cell, on a scale from 0, or the least below it, to the largest, or `top`."""
    known = values[np.isfinite(values)]
    low = min(0.0, float(known.min(initial=0.0)))
    largest = max(float(known.max(initial=low)), low if top is None else top)
    high = vmax or (largest if largest > low else low + 1.0)
    kinds = np.where(np.isfinite(values), WEIGHT, NOT_A_NUMBER).astype(np.uint8)
    scale = LinearScale(high, largest > high, name, written=written, low=low)
    drawn = np.where(np.isfinite(values), values, 0.0).astype(np.float32)
    return Panel(drawn, CellKinds(kinds), scale)


def draw_agreement(report: HeadReport, path: Path, options: FigureOptions) -> list[str]:
    """Jensen–Shannon divergences of all pairs, like heads side by side (Clark et al. 2019, fig. 6).

    The tree above is SciPy's average linkage of √JS.
    """
    assert report.divergences is not None
    order, tree = clustered(report.divergences)
    values = report.divergences[np.ix_(order, order)]
    n = len(order)
    panel = matrix_panel(values, options.vmax, "bits", top=1.0)
    side = whole_pixels(max(230.0 / n, min(9.4, LARGEST_SIDE / n)), options)
    measured_on = _measured_on(report, report.compared)
    options = for_format(options, path)
    heading = Heading.chosen(
        options, AGREEMENT_TITLE, caption=AGREEMENT_MEANING, measured=measured_on
    )
    fonts = Fonts(heading.paragraphs)
    names = [report.name((i // report.n_heads, i % report.n_heads)) for i in order]
    axis = TokenAxis.of_numbers("", names)
    blank, cell = Drawing(options, fonts), CellSize(side, side)
    layout = PanelLayout(blank, (axis, axis), (n, n), cell, (FIRST,), 8.0, 24, [panel.scale])
    above = TREE_HEIGHT + 16 if len(tree) else 14.0
    drawing = layout.drawing([panel], heading, named=False, above=above)
    drawing.description = f"{AGREEMENT_TITLE}: {AGREEMENT_MEANING}. {measured_on}."
    if len(tree):
        _add_tree(drawing, tree, layout.cell.width / drawing.scale)
    write(drawing, path)
    return list(fonts.notes)


def _add_tree(drawing: Drawing, tree: Any, pitch: float) -> None:
    """The linkage above the matrix; its leaves are above their columns."""
    from scipy.cluster.hierarchy import dendrogram

    drawn = dendrogram(tree, no_plot=True)
    placed = drawing.panels[0]
    left, bottom = placed.left / drawing.scale, placed.top / drawing.scale - 3
    highest = max(max(heights) for heights in drawn["dcoord"]) or 1.0
    for xs, heights in zip(drawn["icoord"], drawn["dcoord"], strict=True):
        points = [
            (left + x / 10 * pitch, bottom - height / highest * TREE_HEIGHT)
            for x, height in zip(xs, heights, strict=True)
        ]
        for (x, y), (x2, y2) in pairwise(points):
            drawing.lines.append(Line(x, y, x2, y2, 1.0, 0.6))


def _measured_on(report: HeadReport, documents: int | None = None) -> str:
    """Whose heads they are, and over how many documents they were measured; all when None."""
    n = report.facts.get("documents", 0) if documents is None else documents
    return f"{prose(report.source, 40)}; {plural(n, 'document')}"
