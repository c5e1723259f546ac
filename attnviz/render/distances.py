"""The distances of a comparison as one matrix: layers down, heads across."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attnviz.comparison import Comparison
from attnviz.render.cells import NOT_A_NUMBER, WEIGHT, Brush, Head, Verdicts
from attnviz.render.difference import facts
from attnviz.render.fonts import Fonts
from attnviz.render.furniture import (
    MARGIN,
    cell_pixels,
    draw_legend,
    draw_paragraph,
    draw_ramp,
    numbers,
    occurring,
    ticks,
)
from attnviz.render.heatmap import write
from attnviz.render.look import Look
from attnviz.render.sheet import COLOURS, Picture, Sheet, Text
from attnviz.wording import plural

WIDE, HIGH = 30.0, 18.0
"""A cell in points: its number has room."""

TITLE = "How far apart each head is"

SAID = (
    "mean Jensen–Shannon divergence of the rows of A and of B, in bits: 0 where all are the same, "
    "1 where no key has a share in both"
)


class DistanceBrush(Brush):
    """Paints bits."""

    def written(self, weight: float) -> str:
        if weight >= 0.0005 or not weight:
            return f"{weight:.3f}".removeprefix("0") if weight else "0"
        return f"{weight:.0e}"


def draw_distances(
    comparison: Comparison, path: Path, look: Look, names: tuple[str, str] = ("", "")
) -> list[str]:
    """Draw the distance of each compared head, over all sequences; see `draw_differences`."""
    caption = " · ".join(fact for fact in facts(comparison, None, names) if fact)
    fonts = Fonts([caption])
    write(_sheet(comparison, look, fonts, caption), path)
    return list(fonts.notices)


def _sheet(comparison: Comparison, look: Look, fonts: Fonts, caption: str) -> Sheet:
    layers = sorted({head.layer for head in comparison.heads})
    heads = sorted({head.head for head in comparison.heads})
    bits = np.full((len(layers), len(heads)), np.nan, dtype=np.float32)
    for head in comparison.heads:
        bits[layers.index(head.layer), heads.index(head.head)] = head.bits
    kinds = np.where(np.isnan(bits), NOT_A_NUMBER, WEIGHT).astype(np.uint8)
    matrix = Head(0, 0, np.nan_to_num(bits), Verdicts(kinds, np.zeros(len(layers), dtype=np.bool_)))
    top = float(matrix.weights.max()) or 1.0
    most, numbered = comparison.heads[0], comparison.a.layer_numbers
    sheet = Sheet(
        look,
        fonts,
        TITLE,
        f"A matrix of distances in bits for {plural(len(layers), 'layer')}, one a row, and "
        f"{plural(len(heads), 'head')}, one a column. {caption}. Colours run from 0 to {top:.3g}. "
        f"The first in order: layer {numbered[most.layer]} head {most.head}, {most.bits:.3g} bits.",
    )
    px_w, px_h = cell_pixels(WIDE, look.dpi), cell_pixels(HIGH, look.dpi)
    wide, high = px_w / sheet.scale, px_h / sheet.scale
    left = round((MARGIN + 34) * sheet.scale)
    x = left / sheet.scale
    right = x + wide * len(heads)
    width = max(right + 14 + 44 + MARGIN, 420.0)
    room = width - 2 * MARGIN
    sheet.texts.append(Text(MARGIN, MARGIN + 11, TITLE, 13, bold=True))
    y = MARGIN + 19
    y += draw_paragraph(sheet, MARGIN, y, caption, room, 8.5)
    y += draw_paragraph(sheet, MARGIN, y, SAID, room, 7.5)
    row = round((y + 14) * sheet.scale)
    y = row / sheet.scale
    brush = DistanceBrush(px_h, px_w, 1, look.dpi, top)
    sheet.pictures.append(Picture(left, row, brush.paint(matrix)))
    sheet.numbers += numbers(sheet, matrix, x, y, wide, high, brush)
    for i, layer in enumerate(layers):
        sheet.texts.append(
            Text(x - 5, y + (i + 0.68) * high, str(numbered[layer]), 8.5, 0.92, anchor="end")
        )
    bottom = y + high * len(layers)
    for i, number in enumerate(heads):
        at = x + (i + 0.5) * wide
        sheet.texts.append(Text(at, bottom + 11, str(number), 8.5, 0.92, anchor="middle"))
    sheet.texts.append(Text((x + right) / 2, bottom + 25, "head", 9, anchor="middle"))
    sheet.texts.append(Text(MARGIN + 8, (y + bottom) / 2, "layer", 9, anchor="middle", turn=90))
    height = min(max(bottom - y, 40.0), 180.0)
    ramp = np.linspace(COLOURS - 1, 0, round(height * sheet.scale)).round().astype(np.uint8)
    places = [(1 - value / top, text) for value, text in ticks(top, False, apart=10 / height)]
    draw_ramp(sheet, right + 14, y, ramp, "bits", places)
    bottom = max(bottom + 30, y + height + 8)
    used = draw_legend(sheet, MARGIN, bottom, room, *occurring([matrix]))
    sheet.width, sheet.height = width, bottom + used + MARGIN - 4
    return sheet
