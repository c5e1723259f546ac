"""How pictures look: what a person can choose, checked without loading matplotlib."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite

from attnviz.config import choice
from attnviz.errors import ConfigError, printable

THEMES = ("light", "dark")
SMALLEST_DPI, LARGEST_DPI = 50, 600


@dataclass(frozen=True)
class Look:
    """The choices behind `--cmap --vmax --annotate --theme --dpi`.

    `vmax` is the weight that the strongest colour stands for. None takes the largest weight that is
    drawn, over all heads of the picture or set of pictures: one scale, so that colours compare
    between heads, and no weight is off it. Raises `ConfigError` for values that cannot work; the
    colour map's name is looked up later, by `require_cmap`, as that loads matplotlib.
    """

    cmap: str = "viridis"
    vmax: float | None = None
    annotate: bool = False
    theme: str = "light"
    dpi: int = 150

    def __post_init__(self) -> None:
        choice("--theme", self.theme, THEMES)
        if self.vmax is not None and not (isfinite(self.vmax) and self.vmax > 0):
            raise ConfigError(
                f"--vmax is {self.vmax:g}; a weight above 0 is expected, 0.5 or 1, say"
            )
        if not SMALLEST_DPI <= self.dpi <= LARGEST_DPI:
            raise ConfigError(
                f"--dpi is {self.dpi}; it must be between {SMALLEST_DPI} and {LARGEST_DPI}"
            )

    def require_cmap(self) -> None:
        """Raise `ConfigError` that names near ones when matplotlib has no such colour map."""
        from matplotlib import colormaps

        known = list(colormaps)
        if self.cmap not in known:
            near = get_close_matches(self.cmap, known, n=3) or ["viridis", "cividis", "magma"]
            raise ConfigError(
                f"--cmap {printable(self.cmap)} is no colour map of matplotlib; "
                f"near ones are {', '.join(near)}"
            )
