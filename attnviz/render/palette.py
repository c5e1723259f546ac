"""The 256 colours of a picture: one colour map or two, tones from paper to ink, and an alarm.

A PNG needs a palette and no more: `COLOURS` entries of the colour map, `TONES` steps from paper to
ink, and one colour of alarm. Cells are arrays of those indices.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.render.figure_options import FigureOptions

Indices = npt.NDArray[np.uint8]

COLOURS = 200
TONES = 48
ALARM = COLOURS + TONES
"""Index of the colour that no map and no tone has: cells that hold no number."""

ALL_COLOURS = range(COLOURS)
WEIGHT_COLOURS, DIFFERENCE_COLOURS = range(99), range(99, COLOURS)
"""Entries of the two maps of a comparison. The second has an odd number: the one in the middle is
no difference."""

RED = (214, 39, 40)
THEME_COLOURS = {
    "light": ((255, 255, 255), (23, 26, 31)),
    "dark": ((18, 20, 24), (232, 234, 238)),
}
"""Paper and ink."""

DIVERGING = {
    "light": "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f",
    "dark": "cfe6ff 8ec2f7 5599e0 3a6ca6 2d425c 2a2d33 5c3a34 a64f3f e0705a f7a48e ffdbcf",
}
"""For each theme a map from less to more whose middle is near its paper: that of light paper is
ColorBrewer's RdBu (Brewer 2003), which the colour-blind can tell apart as well."""


def tone_index(tone: float) -> int:
    """The palette entry of a tone between 0 (paper) and 1 (ink)."""
    return COLOURS + round(tone * (TONES - 1))


def opacities() -> Indices:
    """The opacity of each entry on transparent paper, from 0 to 255: tones are more or less ink."""
    alphas = np.full(256, 255, dtype=np.uint8)
    alphas[COLOURS : COLOURS + TONES] = np.linspace(0, 255, TONES).round()
    return alphas


@lru_cache(16)
def palette(options: FigureOptions, two_maps: bool = False) -> npt.NDArray[np.uint8]:
    """The 256 colours, uint8 `[256, 3]`; with `two_maps` those of weights and of differences."""
    colours = np.zeros((256, 3))
    if two_maps:
        colours[WEIGHT_COLOURS] = sequential(options.cmap, len(WEIGHT_COLOURS)) * 255
        colours[DIFFERENCE_COLOURS] = diverging(options.theme, len(DIFFERENCE_COLOURS)) * 255
    else:
        colours[ALL_COLOURS] = sequential(options.cmap, COLOURS) * 255
    paper, ink = (np.array(rgb, dtype=float) for rgb in THEME_COLOURS[options.theme])
    steps = np.linspace(0, 1, TONES)[:, None]
    steps = np.ones_like(steps) if options.transparent else steps  # see `opacities`
    colours[COLOURS : COLOURS + TONES] = paper + steps * (ink - paper)
    colours[ALARM] = RED
    return colours.round().astype(np.uint8)


def sequential(cmap: str, n: int) -> npt.NDArray[np.float64]:
    """`n` colours of a matplotlib map, `[n 3]`, from 0 to 1."""
    from matplotlib import colormaps

    colours: Any = colormaps[cmap](np.linspace(0, 1, n))
    return np.asarray(colours[:, :3])


def diverging(theme: str, n: int) -> npt.NDArray[np.float64]:
    """`n` colours from less to more, `[n 3]`, from 0 to 1."""
    return between(DIVERGING[theme], n) / 255


def between(anchors: str, n: int) -> npt.NDArray[np.float64]:
    """`n` colours along evenly spaced ones in hexadecimal, `[n 3]`, from 0 to 255."""
    known = np.array([list(bytes.fromhex(colour)) for colour in anchors.split()], dtype=float)
    at = np.linspace(0, len(known) - 1, n)
    return np.stack([np.interp(at, np.arange(len(known)), part) for part in known.T], axis=-1)


def prefers_white(colours: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """For each colour whether white stands out more than black, by WCAG's relative luminance."""
    part = colours / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    return np.asarray(1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05)
