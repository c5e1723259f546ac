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


UNITS = {"in": 72.0, "cm": 72 / 2.54, "mm": 72 / 25.4, "pt": 1.0}
"""Points of each unit of `--width`."""

CURVES, SCALES = ("linear", "root", "log"), ("all", "head")
COMBINED_OVER = ("heads", "layers", "all")
"""What `--average` and `--maximum` combine: the heads of each layer, each head over the layers, or
all heads."""

SMALLEST_FONT, LARGEST_FONT = 6.0, 24.0
NARROWEST, WIDEST = 72.0, 1440.0


@dataclass(frozen=True)
class FigureOptions:
    """The choices behind the flags of pictures; each field is the flag of its name.

    `vmax` is the weight that the strongest colour stands for. None takes the largest weight that is
    drawn, over all heads of the picture or set of pictures: one scale, so that colours compare
    between heads, and no weight is off it. With `width` a picture is a figure for a paper: it has
    exactly that width, narrow margins, and no type below 6 points. Raises `ConfigError` for values
    that cannot work.
    """

    cmap: str = "viridis"
    vmax: float | None = None
    annotate: bool = False
    theme: str = "light"
    dpi: int = 150
    width: str | None = None
    font_size: float | None = None
    title: str | None = None
    no_title: bool = False
    no_measures: bool = False
    bare: bool = False
    columns: int | None = None
    transparent: bool = False
    scale: str = "all"
    curve: str | None = None
    axis_labels: str | None = None

    def __post_init__(self) -> None:
        choice("--theme", self.theme, THEMES)
        choice("--scale", self.scale, SCALES)
        if self.curve is not None:
            choice("--curve", self.curve, CURVES)
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
        self._check_figure()

    def _check_figure(self) -> None:
        if self.width is not None:
            _points_of(self.width)
        if self.font_size is not None and not SMALLEST_FONT <= self.font_size <= LARGEST_FONT:
            raise ConfigError(
                f"--font-size is {self.font_size:g}; it must be between {SMALLEST_FONT:g} and "
                f"{LARGEST_FONT:g} points"
            )
        if self.columns is not None and self.columns < 1:
            raise ConfigError(f"--columns is {self.columns}; it must be at least 1")
        if self.scale == "head" and self.curve == "log":
            raise ConfigError("--scale head works with --curve linear or root, not with log")
        if self.title is not None and not self.has_title:
            flag = "--bare" if self.bare else "--no-title"
            raise ConfigError(f"--title and {flag} contradict each other; give one of them")
        if self.axis_labels not in (None, "none") and self.axis_labels.count(",") != 1:
            raise ConfigError(
                f"--axis-labels {printable(self.axis_labels)}: the names of rows and columns are "
                "expected, 'query,key', or none"
            )

    @property
    def is_figure(self) -> bool:
        """Whether the picture is for a paper: type and margins are those of print."""
        return self.width is not None or self.font_size is not None

    @property
    def points(self) -> float | None:
        """The width in points."""
        return None if self.width is None else _points_of(self.width)

    @property
    def has_title(self) -> bool:
        return not (self.no_title or self.bare)

    @property
    def has_measures(self) -> bool:
        return not (self.no_measures or self.bare)

    def axis_names(self, rows: str, columns: str) -> tuple[str, str]:
        """The names of the axes: these, the ones that were chosen, or none."""
        if self.axis_labels is None:
            return rows, columns
        if self.axis_labels == "none":
            return "", ""
        first, _, second = self.axis_labels.partition(",")
        return first.strip(), second.strip()


def _points_of(width: str) -> float:
    """`3.3in` → 237.6."""
    number, unit = width[:-2].strip(), width[-2:].lower()
    try:
        points = float(number) * UNITS[unit]
    except (ValueError, KeyError):
        raise ConfigError(
            f"--width {printable(width)}: a length is expected, 3.3in or 8.4cm"
        ) from None
    if not NARROWEST <= points <= WIDEST:
        raise ConfigError(f"--width {printable(width)}: it must be between 1in and 20in")
    return points
