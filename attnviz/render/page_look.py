"""What the flags of pictures mean on a page: it has their colours, and starts with their scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnviz.render.figure_options import FigureOptions
from attnviz.render.one_file import page_file
from attnviz.render.palette import sequential

COLOURS = 256
PLAIN = FigureOptions()


@dataclass(frozen=True)
class PageLook:
    """`look` is that of the pictures; `theme` is light or dark, "" follows the reader's system."""

    look: FigureOptions = PLAIN
    theme: str = ""

    def described(self) -> dict[str, Any]:
        return {
            "theme": self.theme,
            "ramp": self._ramp(),
            "vmax": self.look.vmax,
            "annotate": self.look.annotate,
            "scale": self.look.scale,
            "curve": self.look.curve,
        }

    def _ramp(self) -> str:
        """256 colours from weight 0 to the largest one, six hexadecimal digits each."""
        if self.look.cmap == FigureOptions.cmap:  # without the time that matplotlib takes to load
            return page_file("viridis.txt").strip()
        colours = (sequential(self.look.cmap, COLOURS) * 255).round().astype("uint8")
        return "".join(map("{:02x}{:02x}{:02x}".format, *colours.T))
