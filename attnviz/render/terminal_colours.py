"""What the cells of a map are printed with: colours, or a ramp of ever denser characters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from rich.color import Color, ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from attnviz.render.console import ascii_only, has_color
from attnviz.render.figure_options import FigureOptions
from attnviz.render.palette import between, diverging, sequential
from attnviz.render.panel import WEIGHT, Panel
from attnviz.render.scales import Scale, SignedScale

MARKS, ASCII_MARKS = "·─╱ ×", "_-/ ?"
"""For each kind of cell that is not a weight, from padding on, a character that no weight has."""

RAMPS = {
    1: (" ", "░", "▒", "▓", "█"),
    2: ("  ", "░ ", "░░", "▒░", "▒▒", "▓▒", "▓▓", "█▓", "██"),
}
ASCII_RAMP = " .:=+*#%@"
"""From the smallest weights to the largest, in equal steps of the scale; by columns a cell."""

SIGNED_RAMPS = {
    1: ("=", "-", " ", "+", "#"),
    2: (*(f"-{i}" for i in range(9, 0, -1)), "  ", *(f"+{i}" for i in range(1, 10))),
}
"""From the largest loss to the largest gain."""

N_COLOURS = 256
"""Steps of a colour map."""

# Matplotlib's viridis (Smith, van der Walt and Firing, 2015) at 33 even places; in between, linear,
# it is within 2 of 255 of the original.
_VIRIDIS = (
    "440154 470d60 48186a 482374 472d7b 453781 424086 3e4989 3b528b 375b8d 33638d "
    "2f6b8e 2c728e 297a8e 26828e 23898e 21918c 1f978b 1f9f88 21a685 27ad81 31b57b "
    "3dbc74 4cc26c 5cc863 6ece58 81d34d 95d840 aadc32 c0df25 d5e21a eae51a fde725"
)

MARK_COLOURS: tuple[tuple[tuple[int, int, int], ...], ...] = (
    (),
    ((150, 75, 40), (60, 100, 160), (40, 130, 60)),
    ((112, 112, 112), (120, 60, 60), (60, 60, 130)),
    (),
    ((255, 0, 90), (0, 230, 255), (255, 255, 255)),
)
"""For each kind its colours by preference: the first that is far from all of the map is taken."""

Run = tuple[str, Style]


@dataclass(frozen=True)
class CellGlyphs:
    """What a cell is printed with. A code is the step of a value, or `levels` + the cell's kind.

    `glyphs` and `styles` have an entry for each code, for a cell that has its own line; `pixels`
    has its colour for half a line, None where nothing is printed.
    """

    ascii_only: bool
    scale: Scale
    levels: int
    glyphs: tuple[str, ...]
    styles: tuple[Style, ...]
    pixels: tuple[Color | None, ...]

    @property
    def colored(self) -> bool:
        return bool(self.styles[0])

    def codes(self, panel: Panel) -> npt.NDArray[np.int64]:
        """The code of each cell. What only one mask of a comparison allows shows its value."""
        steps = self.scale.steps(panel.values.astype(np.float64), self.levels).astype(np.int64)
        kinds = panel.kinds.cells.astype(np.int64)
        return np.where((kinds == WEIGHT) | (kinds >= len(MARKS)), steps, self.levels + kinds)

    def cell(self, code: int, times: int = 1) -> Run:
        """The cell, `times` side by side, and its style."""
        return self.glyphs[code] * times, self.styles[code]

    def halves(self, upper: int, lower: int | None, times: int = 1) -> Run:
        """Two cells, one over the other; there may be no lower one. Twice a mark is the mark."""
        if lower in (upper, None) and upper >= self.levels:
            return self.cell(upper, times)
        above, below = self.pixels[upper], None if lower is None else self.pixels[lower]
        if above is None:
            return ("▄" if below else " ") * times, _style(below, None)
        return "▀" * times, _style(above, below)

    def ramp(self, steps: int) -> Text:
        """Evenly spaced cells from the smallest value to the largest, and the ends of the scale."""
        codes = [round(i * (self.levels - 1) / (steps - 1)) for i in range(steps)]
        low, high = self.scale.ends
        left, right = ("", "") if self.colored else ("[", "]")
        return Text.assemble(f"{low} {left}", *map(self.cell, codes), f"{right} {high}")


@lru_cache(maxsize=2**16)
def _style(color: Color | None, behind: Color | None) -> Style:
    """A style is slow to make and remembers its escape codes, so each is made once."""
    return Style(color=color, bgcolor=behind)


def colours_maps(console: Console) -> bool:
    """Whether the console has enough colours for a map: sixteen are too few."""
    return has_color(console) and console.color_system in ("truecolor", "256")


def glyphs_for(
    console: Console, cell: int, scale: Scale, cmap: str = FigureOptions.cmap
) -> CellGlyphs:
    """Glyphs of `cell` columns. Differences have their own colours and characters."""
    plain, is_signed = ascii_only(console), isinstance(scale, SignedScale)
    marks = [mark * cell for mark in (ASCII_MARKS if plain else MARKS)]
    if not colours_maps(console):
        ramp = [c * cell for c in ASCII_RAMP] if plain else RAMPS[cell]
        glyphs = (*(SIGNED_RAMPS[cell] if is_signed else ramp), *marks)
        none = (Style(),) * len(glyphs), (None,) * len(glyphs)
        return CellGlyphs(plain, scale, len(glyphs) - len(marks), glyphs, *none)
    table = np.round(diverging("dark", N_COLOURS - 1) * 255) if is_signed else color_table(cmap)
    colors, tones = colors_of(table, few=console.color_system == "256")
    styles = [Style(bgcolor=color) for color in colors]
    styles += [Style(color=tone or Color.parse("bright_black")) for tone in tones]
    glyphs = (*(" " * cell for _ in colors), *marks)
    return CellGlyphs(plain, scale, len(colors), glyphs, tuple(styles), (*colors, *tones))


def colors_of(table: npt.NDArray[np.float64], few: bool) -> tuple[list[Color], list[Color | None]]:
    """The map's colours from 0 to the top, and for each mark one that is far from all of these.

    They are colours that the console has: rich would find the nearest by itself, but the escape
    codes of the first console are remembered for all others that are given the same colour.
    """
    tones: list[Color | None] = []
    for choices in MARK_COLOURS:
        apart = [float(np.sqrt(((table - tone) ** 2).sum(-1)).min()) for tone in choices]
        best = next((i for i, d in enumerate(apart) if d > 50), int(np.argmax(apart or [0.0])))
        tones.append(Color.from_rgb(*choices[best]) if choices else None)
    if few:
        near = [tone and tone.downgrade(ColorSystem.EIGHT_BIT) for tone in tones]
        return [Color.from_ansi(int(number)) for number in nearest_of_256(table)], near
    return [Color.from_rgb(*color) for color in table.tolist()], tones


def nearest_of_256(table: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The number of the nearest colour in the 6 × 6 × 6 cube of a terminal with 256 colours.

    Where the map has no greys, no grey is taken: it would look like a forbidden cell.
    """
    steps = np.array([0, 95, 135, 175, 215, 255])
    cube = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    distance = ((table[:, None] - cube) ** 2).sum(-1)
    if np.ptp(table, axis=-1).min() > 60:
        distance[:, np.ptp(cube, axis=-1) < 100] = np.inf
    return np.asarray(16 + distance.argmin(-1))


def color_table(cmap: str) -> npt.NDArray[np.float64]:
    """`[256 3]`: red, green and blue, 0 … 255, of a matplotlib map; viridis without matplotlib."""
    if cmap == "viridis":
        return np.round(between(_VIRIDIS, N_COLOURS))
    FigureOptions(cmap)  # refuses an unknown name
    return np.round(sequential(cmap, N_COLOURS) * 255.0)
