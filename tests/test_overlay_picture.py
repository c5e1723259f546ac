"""A query's attention laid over a picture: what is drawn where, read back from the pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from attnviz.errors import InputError
from attnviz.render.figure_options import FigureOptions
from attnviz.render.overlay_picture import FAINTEST, STRONGEST, draw_overlay
from attnviz.render.palette import palette, sequential
from attnviz.result import Attention, from_batches
from attnviz.tokens import make_batch

ROWS, COLUMNS = 3, 5
GREY = 120
OPTIONS = FigureOptions(dpi=72)


@dataclass(frozen=True, eq=False)
class Seen:
    pixels: npt.NDArray[np.uint8]
    rows: int = ROWS
    columns: int = COLUMNS
    n_before: int = 1


PHOTO = Seen(np.full((30, 50, 3), GREY, np.uint8))


def result(before: tuple[str, ...] = ("[CLS]",), padded: int = 0) -> Attention:
    """2 layers of 2 heads: each query gives half of its weight to the patch after it."""
    names = [f"r{r}c{c}" for r in range(ROWS) for c in range(COLUMNS)]
    batch = make_batch([(*before, *names)], None, len(before) + len(names) + padded)
    n = batch.width
    weights = np.zeros((2, 1, 2, n, n), np.float32)
    for layer in range(2):
        for head in range(2):
            for q in range(n):
                weights[layer, 0, head, q, (q + 1 + layer + head) % (n - padded)] = 0.5
                weights[layer, 0, head, q, 0] += 0.5
    return from_batches(weights, np.ones((2, 1, 1, n, n), bool), batch, batch, source="a model")


def tiles(path: Path) -> list[npt.NDArray[Any]]:
    """The pictures on the page, the photo first, each `[rows columns h w 3]` by its patches.

    At 72 dpi a patch is 26 × 26 pixels: the longer side is 132 points of 5 patches.
    """
    page = np.asarray(Image.open(path).convert("RGB")).astype(int)
    side = 26
    high, wide = ROWS * side, COLUMNS * side
    found = []
    for y, x in corners(page, high, wide):
        tile = page[y : y + high, x : x + wide]
        found.append(tile.reshape(ROWS, side, COLUMNS, side, 3).swapaxes(1, 2))
    return found


def corners(page: npt.NDArray[Any], high: int, wide: int) -> list[tuple[int, int]]:
    """Where frames of that size are: lines of the frame's tone around."""
    frame = palette(OPTIONS)[200 + round(0.55 * 47)]
    lines = (page == frame).all(-1)
    found = []
    for y, x in np.argwhere(lines):
        if y + high + 1 < len(lines) and x + wide + 1 < lines.shape[1]:
            edges = (
                lines[y, x : x + wide + 2],
                lines[y + high + 1, x : x + wide + 2],
                lines[y : y + high + 2, x],
                lines[y : y + high + 2, x + wide + 1],
            )
            if all(edge.all() for edge in edges):
                found.append((int(y) + 1, int(x) + 1))
    return found


def words_of(path: Path) -> dict[Any, Any]:
    with Image.open(path) as page:
        return dict(page.info)


def laid_over(weight: float, top: float) -> npt.NDArray[Any]:
    """The colour of a patch of the grey photo with this weight."""
    strength = min(weight / top, 1)
    colour = sequential(OPTIONS.cmap, 200)[min(int(strength * 200), 199)] * 255
    share = FAINTEST + (STRONGEST - FAINTEST) * strength
    return GREY + share * (colour - GREY)


def test_each_patch_has_the_colour_of_its_weight(tmp_path: Path) -> None:
    assert draw_overlay(result(), 0, PHOTO, tmp_path / "a.png", OPTIONS) == []
    found = tiles(tmp_path / "a.png")
    assert len(found) == 5  # the picture, and four heads
    assert (found[0] == GREY).all()
    for tile, (layer, head) in zip(found[1:], [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True):
        hot = layer + head  # [CLS] looks at the patch with this number
        for n in range(ROWS * COLUMNS):
            expected = laid_over(0.5 if n == hot else 0.0, 0.5)
            patch = tile[divmod(n, COLUMNS)]
            assert np.abs(patch - expected).max() <= 1, (layer, head, n)


def test_a_patch_that_looks_is_outlined(tmp_path: Path) -> None:
    draw_overlay(result(), 0, PHOTO, tmp_path / "a.png", OPTIONS, [(0, 0)], "r1c2")
    photo, tile = tiles(tmp_path / "a.png")
    for picture in (photo, tile):
        patch = picture[1, 2]
        assert (patch[0] == 0).all()
        assert (patch[-1] == 0).all()
        assert (patch[:, [0, -1]] == 0).all()
        assert (patch[1, 1:-1] == 255).all()
        assert (patch[1:-1, [1, -2]] == 255).all()
    assert np.abs(tile[1, 3] - laid_over(0.5, 0.5)).max() <= 1  # the one after it
    assert (photo[0, 0] == GREY).all()


def test_without_a_token_for_the_whole_it_is_the_mean(tmp_path: Path) -> None:
    seen = Seen(PHOTO.pixels, n_before=0)
    draw_overlay(result(()), 0, seen, tmp_path / "a.png", OPTIONS, [(0, 0)])
    assert words_of(tmp_path / "a.png")["Title"] == (
        "Attention on the picture: mean over all queries"
    )
    _, tile = tiles(tmp_path / "a.png")
    # every patch is looked at by the one before it; the first by all, and by the last
    first, other = 0.5 + 0.5 / 15, 0.5 / 15
    assert np.abs(tile[0, 0] - laid_over(first, first)).max() <= 1
    assert np.abs(tile[2, 4] - laid_over(other, first)).max() <= 1


def test_a_scale_of_ones_own_and_words_for_those_who_cannot_see(tmp_path: Path) -> None:
    options = FigureOptions(dpi=72, vmax=0.25)
    draw_overlay(result(), 0, PHOTO, tmp_path / "a.png", options, [(1, 0)], "[CLS]")
    _, tile = tiles(tmp_path / "a.png")
    assert np.abs(tile[0, 1] - laid_over(0.5, 0.25)).max() <= 1
    info = words_of(tmp_path / "a.png")
    assert info["Title"] == "Attention on the picture: query [CLS]"
    assert info["Description"] == (
        "Attention on the picture: query [CLS], 1 head. a model · no mask. "
        "layer 1 · head 0: r0c1 gets most, 0.50."
    )


def test_padding_behind_the_patches_is_left_out(tmp_path: Path) -> None:
    for padded in (0, 3):
        draw_overlay(result(padded=padded), 0, PHOTO, tmp_path / f"{padded}.png", OPTIONS)
    assert (tmp_path / "0.png").read_bytes() == (tmp_path / "3.png").read_bytes()


def test_patches_of_a_pixel_have_room_for_one_line(tmp_path: Path) -> None:
    """A picture of very many patches: the outline is what fits."""
    side = 70
    names = [f"r{r}c{c}" for r in range(side) for c in range(side)]
    batch = make_batch([tuple(names)])
    n = side * side
    weights = np.broadcast_to(np.float32(1 / n), (1, 1, 1, n, n))
    allowed = np.broadcast_to(np.True_, (1, 1, 1, n, n))
    many = from_batches(weights, allowed, batch, batch)
    seen = Seen(np.full((side, side, 3), GREY, np.uint8), side, side, 0)
    draw_overlay(many, 0, seen, tmp_path / "a.png", OPTIONS, None, "r1c1")
    page = np.asarray(Image.open(tmp_path / "a.png").convert("RGB"))
    assert (page == 0).all(-1).sum() >= 4


def test_patches_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        draw_overlay(result(("[CLS]", "[REG1]")), 0, PHOTO, tmp_path / "a.png", OPTIONS)
    assert str(caught.value) == (
        "a picture of 3 × 5 patches after 1 other tokens does not fit sequence 0, which has 17"
    )
    with pytest.raises(InputError, match="query r9c9 is not a token of sequence 0"):
        draw_overlay(result(), 0, PHOTO, tmp_path / "a.png", OPTIONS, None, "r9c9")
    assert list(tmp_path.iterdir()) == []
