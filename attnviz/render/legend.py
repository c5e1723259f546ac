"""The colour bar and the samples of cells that hold no weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnviz.render.drawing import CellSize, ColourBar, Drawing, Line, PlacedPanel, Text
from attnviz.render.headings import Measurements
from attnviz.render.panel import (
    BLIND,
    FORBIDDEN,
    NOT_A_NUMBER,
    ONLY_A,
    ONLY_B,
    PADDING,
    CellKinds,
    Panel,
)
from attnviz.render.scales import Scale

LEGEND = {
    FORBIDDEN: "forbidden by a mask",
    BLIND: "sees nothing",
    PADDING: "padding",
    NOT_A_NUMBER: "not a number",
    ONLY_A: "allowed in A only",
    ONLY_B: "allowed in B only",
}


def add_bar(
    drawing: Drawing, left: float, top: float, height: float, scale: Scale, sizes: Measurements
) -> None:
    """A colour bar, its name above it and its values beside it."""
    pixels, small = drawing.scale, sizes.small
    x, y = round(left * pixels), round(top * pixels)
    w, h = round(sizes.bar * pixels), max(2, round(height * pixels))
    drawing.bars.append(ColourBar(x, y, w, h, scale.colours))
    left, top, width, height = x / pixels, y / pixels, w / pixels, h / pixels
    drawing.texts.append(Text(left, top - 6, scale.name, small, 0.75))
    for share, text in scale.ticks(height):
        at = top + height * (1 - share)
        drawing.lines.append(Line(left + width, at, left + width + 2.5, at, 0.55, 0.6))
        drawing.texts.append(Text(left + width + 4.5, at + 0.36 * small, text, small, 0.75))


def add_legend(
    drawing: Drawing,
    left: float,
    top: float,
    width: float,
    panels: Sequence[Panel],
    size: float = 8.0,
) -> float:
    """One line, or more, with a sample of each kind of cell that occurs; returns its height."""
    present = set().union(*(kinds.present for kinds in {panel.kinds for panel in panels}))
    scale = drawing.scale
    cell = CellSize(round(14 * scale), round(size * scale))
    x, y = left, top
    for kind, text in LEGEND.items():
        if kind not in present:
            continue
        long = 14 + 5 + drawing.text_width(text, size) + 16
        if x > left and x + long - 16 > left + width:
            x, y = left, y + size + 5
        kinds = CellKinds(np.full((1, 1), kind, dtype=np.uint8))
        sample = Panel(np.zeros((1, 1), dtype=np.float32), kinds, panels[-1].scale)
        drawing.samples.append(PlacedPanel(round(x * scale), round((y + 1) * scale), sample, cell))
        drawing.texts.append(Text(x + 14 + 5, y + size, text, size, 0.75))
        x += long
    return y + size + 5 - top if drawing.samples else 0.0
