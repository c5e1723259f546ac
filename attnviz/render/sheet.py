"""A sheet of paper: text, lines and pictures placed in points, to be written as PNG, SVG or PDF.

Everything on a sheet is ink on paper, in tones from 0 (paper) to 1 (ink), beside the colours of one
colour map. A PNG therefore needs a palette and no more: `COLOURS` entries of the map, `TONES`
steps from paper to ink, and one colour of alarm. Pictures are arrays of those indices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.render.fonts import Fonts
from attnviz.render.look import Look

Indices = npt.NDArray[np.uint8]

COLOURS = 200
TONES = 48
ALARM = COLOURS + TONES
"""Index of the colour that no map and no tone has: cells that hold no number."""

RED = (214, 39, 40)
THEMES = {
    "light": ((255, 255, 255), (23, 26, 31)),
    "dark": ((18, 20, 24), (232, 234, 238)),
}
"""Paper and ink."""


FRAME_TONE = 0.55


def tone_index(tone: float) -> int:
    """The palette entry of a tone between 0 (paper) and 1 (ink)."""
    return COLOURS + round(tone * (TONES - 1))


def palette(look: Look) -> npt.NDArray[np.uint8]:
    """The 256 colours of a look, uint8 `[256, 3]`."""
    colours = np.zeros((256, 3))
    colours[:COLOURS] = look.ramp(COLOURS) * 255
    paper, ink = (np.array(rgb, dtype=float) for rgb in THEMES[look.theme])
    steps = np.linspace(0, 1, TONES)[:, None]
    colours[COLOURS : COLOURS + TONES] = paper + steps * (ink - paper)
    colours[ALARM] = RED
    return colours.round().astype(np.uint8)


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
class Number:
    """Digits in the middle of a cell at (x, y), in the ink that contrasts with its colour."""

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
class Picture:
    """Palette indices, one a pixel; where the top left of them is, in pixels of the sheet."""

    left: int
    top: int
    cells: Indices
    framed: bool = True


@dataclass
class Sheet:
    """What is on the paper. Points from the top left, y downwards; `dpi` pixels an inch."""

    look: Look
    fonts: Fonts
    title: str
    description: str
    width: float = 0.0
    height: float = 0.0
    texts: list[Text] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)

    @property
    def scale(self) -> float:
        """Pixels a point."""
        return self.look.dpi / 72

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return round(self.width * self.scale), round(self.height * self.scale)

    def text_width(self, text: str, size: float, bold: bool = False) -> float:
        """Width in points."""
        if self.fonts.is_simple(text):
            return simple_width(text, round(size * self.scale, 3), bold) / self.scale
        shown, families = self.fonts.drawable(text), self.fonts.families(text)
        return _shaped_width(shown, families, size, self.look.dpi)

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
    """How matplotlib is told of fonts, in the order to try."""
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=list(families), size=size, weight="bold" if bold else "normal")
