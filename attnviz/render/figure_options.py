"""What a person can choose about pictures, checked without loading matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite

from attnviz.config import choice
from attnviz.errors import ConfigError, printable

THEMES = ("light", "dark")
SMALLEST_DPI, LARGEST_DPI = 50, 600

_CMAPS = """
Accent afmhot autumn berlin binary Blues bone BrBG brg BuGn BuPu bwr cividis CMRmap cool
coolwarm copper cubehelix Dark2 flag gist_earth gist_gray gist_grey gist_heat gist_ncar
gist_rainbow gist_stern gist_yarg gist_yerg GnBu gnuplot gnuplot2 gray Grays Greens grey
Greys hot hsv inferno jet magma managua nipy_spectral ocean okabe_ito Oranges OrRd Paired
Pastel1 Pastel2 pink PiYG plasma PRGn prism PuBu PuBuGn PuOr PuRd Purples rainbow RdBu RdGy
RdPu RdYlBu RdYlGn Reds seismic Set1 Set2 Set3 Spectral spring summer tab10 tab20 tab20b
tab20c terrain turbo twilight twilight_shifted vanimo viridis winter Wistia YlGn YlGnBu
YlOrBr YlOrRd
"""
CMAPS = tuple(_CMAPS.split())
"""Colour maps of matplotlib 3.11, each of which has a reverse with `_r`. Listed here, since asking
matplotlib for them takes longer than saying that a name is wrong."""


@dataclass(frozen=True)
class FigureOptions:
    """The choices behind `--cmap --vmax --annotate --theme --dpi`.

    `vmax` is the weight that the strongest colour stands for. None takes the largest weight that is
    drawn, over all heads of the picture or set of pictures: one scale, so that colours compare
    between heads, and no weight is off it. Raises `ConfigError` for values that cannot work.
    """

    cmap: str = "viridis"
    vmax: float | None = None
    annotate: bool = False
    theme: str = "light"
    dpi: int = 150

    def __post_init__(self) -> None:
        choice("--theme", self.theme, THEMES)
        if self.cmap.removesuffix("_r") not in CMAPS:
            near = get_close_matches(self.cmap, CMAPS, n=3) or ["viridis", "cividis", "magma"]
            raise ConfigError(
                f"--cmap {printable(self.cmap)} is no colour map of matplotlib; "
                f"near ones are {', '.join(near)}"
            )
        if self.vmax is not None and not (isfinite(self.vmax) and self.vmax > 0):
            raise ConfigError(
                f"--vmax is {self.vmax:g}; a weight above 0 is expected, 0.5 or 1, say"
            )
        if not SMALLEST_DPI <= self.dpi <= LARGEST_DPI:
            raise ConfigError(
                f"--dpi is {self.dpi}; it must be between {SMALLEST_DPI} and {LARGEST_DPI}"
            )
