"""What a picture consists of: text, lines, colour bars and panels, placed in points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from attnviz.render.figure_options import FigureOptions
from attnviz.render.fonts import Fonts
from attnviz.render.panel import Panel

FRAME_TONE = 0.55


@dataclass(frozen=True)
class Text:
    """A line of text. (x, y) is where its baseline starts, has its middle, or ends, by `anchor`.

    `turn` 90 reads upwards.
    """

    x: float
    y: float
    text: str
    size: float
    tone: float = 1.0
    bold: bool = False
    anchor: str = "start"
    turn: int = 0


@dataclass(frozen=True)
class CellNumber:
    """Digits in the middle of a cell at (x, y), in the colour that contrasts with the cell's."""

    x: float
    y: float
    text: str
    size: float
    colour: tuple[int, int, int]


@dataclass(frozen=True)
class Line:
    """A straight line between two points."""

    x: float
    y: float
    x2: float
    y2: float
    tone: float
    width: float


@dataclass(frozen=True)
class CellSize:
    """Pixels of a cell, `pool` × `pool` values in each."""

    width: int
    height: int
    pool: int = 1


@dataclass(frozen=True)
class PlacedPanel:
    """A panel, and where its top left is, in pixels of the drawing."""

    left: int
    top: int
    panel: Panel
    cell: CellSize

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        rows, columns = (-(-n // self.cell.pool) for n in self.panel.values.shape)
        return rows * self.cell.height, columns * self.cell.width


@dataclass(frozen=True)
class ColourBar:
    """The colours of a scale, the strongest on top; in pixels of the drawing."""

    left: int
    top: int
    width: int
    height: int
    colours: range


@dataclass
class Drawing:
    """What is on the paper. Points from the top left, y downwards; `dpi` pixels an inch."""

    options: FigureOptions
    fonts: Fonts
    title: str = ""
    description: str = ""
    width: float = 0.0
    height: float = 0.0
    texts: list[Text] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    numbers: list[CellNumber] = field(default_factory=list)
    panels: list[PlacedPanel] = field(default_factory=list)
    samples: list[PlacedPanel] = field(default_factory=list)
    """Cells of the legend."""
    bars: list[ColourBar] = field(default_factory=list)
    two_maps: bool = False
    """Whether the palette has a map of differences beside that of weights."""

    @property
    def scale(self) -> float:
        """Pixels a point."""
        return self.options.dpi / 72

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return round(self.width * self.scale), round(self.height * self.scale)

    def add(self, texts: Sequence[Text], lines: Sequence[Line]) -> None:
        self.texts += texts
        self.lines += lines

    def text_width(self, text: str, size: float, bold: bool = False) -> float:
        """Width in points."""
        if self.fonts.is_simple(text):
            return simple_width(text, round(size * self.scale, 3), bold) / self.scale
        shown, families = self.fonts.drawable(text), self.fonts.families(text)
        return _shaped_width(shown, families, size, self.options.dpi)

    def wrapped(self, text: str, size: float, width: float) -> list[str]:
        """`text` in lines of at most `width` points, broken at spaces."""
        lines: list[str] = []
        for word in text.split(" "):
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self.text_width(longer, size) <= width:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines

    def add_paragraph(self, left: float, top: float, text: str, width: float, size: float) -> float:
        """Lines of text in a quiet tone; returns the height that they took."""
        lines = self.wrapped(text, size, width) if text else []
        for i, line in enumerate(lines):
            self.texts.append(Text(left, top + size + i * size * 1.4, line, size, 0.62))
        return len(lines) * size * 1.4


@lru_cache(16384)
def simple_width(text: str, size: float, bold: bool) -> float:
    """Width in pixels of a text that needs no shaping."""
    return float(base_font(size, bold).getlength(text))


@lru_cache(64)
def base_font(size: float, bold: bool) -> Any:
    """DejaVu Sans as matplotlib ships it, `size` pixels an em, for text that needs no shaping."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    file = f"{get_data_path()}/fonts/ttf/DejaVuSans{'-Bold' if bold else ''}.ttf"
    return ImageFont.truetype(file, size, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(16384)
def _shaped_width(text: str, families: tuple[str, ...], size: float, dpi: int) -> float:
    properties = font_properties(families, size)
    width, _, _ = agg_renderer(1, 1, dpi).get_text_width_height_descent(text, properties, False)
    return float(width) * 72 / dpi


def agg_renderer(width: int, height: int, dpi: int) -> Any:
    """A renderer of matplotlib that draws into an array of pixels."""
    from matplotlib.backends.backend_agg import RendererAgg

    make: Any = RendererAgg
    return make(width, height, dpi)


@lru_cache(1024)
def font_properties(families: tuple[str, ...], size: float, bold: bool = False) -> Any:
    """Fonts as matplotlib takes them, in the order to try."""
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=list(families), size=size, weight="bold" if bold else "normal")
