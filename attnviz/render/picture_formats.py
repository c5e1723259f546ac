"""The formats of pictures: one function and one row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz.render.figure_options import LARGEST_DPI, FigureOptions

if TYPE_CHECKING:
    from attnviz.render.drawing import Drawing


def _png(drawing: Drawing) -> bytes:
    from attnviz.render.raster import png

    return png(drawing)


def _svg(drawing: Drawing) -> bytes:
    from attnviz.render.vector import svg

    return svg(drawing)


def _pdf(drawing: Drawing) -> bytes:
    from attnviz.render.vector import pdf

    return pdf(drawing)


PICTURE_FORMATS: dict[str, Callable[[Drawing], bytes]] = {".png": _png, ".svg": _svg, ".pdf": _pdf}
"""Suffix → what writes a drawing. The same drawing gives the same bytes."""


def for_format(options: FigureOptions, path: Path) -> FigureOptions:
    """Options of a file: cells of a figure for print are placed on a fine grid."""
    if options.is_figure and path.suffix.lower() != ".png":
        return replace(options, dpi=LARGEST_DPI)
    return options


def write(drawing: Drawing, path: Path) -> None:
    """Write a drawing in the format that the suffix names."""
    path.write_bytes(PICTURE_FORMATS[path.suffix.lower()](drawing))
