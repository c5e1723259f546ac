"""How pictures look: what is refused, and that the list of colour maps is matplotlib's."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib import colormaps

from attnviz.errors import ConfigError
from attnviz.render.figure_options import CMAPS, FigureOptions


def test_the_known_colour_maps_are_those_of_matplotlib() -> None:
    assert set(CMAPS) <= set(colormaps)
    assert {f"{name}_r" for name in CMAPS} <= set(colormaps)
    for name in ("viridis", "magma_r"):
        assert FigureOptions(cmap=name).cmap == name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"cmap": "virdis"},
            "--cmap virdis is no colour map of matplotlib; near ones are viridis, cividis",
        ),
        (
            {"cmap": "\x1b"},
            "--cmap \\x1b is no colour map of matplotlib; near ones are viridis, cividis, magma",
        ),
        ({"theme": "sepia"}, "--theme is 'sepia'; it must be one of light, dark"),
        ({"vmax": 0.0}, "--vmax is 0; a weight above 0 is expected, 0.5 or 1, say"),
        ({"vmax": float("nan")}, "--vmax is nan; a weight above 0 is expected, 0.5 or 1, say"),
        ({"dpi": 9}, "--dpi is 9; it must be between 50 and 600"),
        ({"dpi": 601}, "--dpi is 601; it must be between 50 and 600"),
        ({"dpi": 0}, "--dpi is 0; it must be between 50 and 600"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FigureOptions(**given)
    assert str(caught.value) == message
