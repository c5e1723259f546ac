"""One query's attention laid over the picture that a vision transformer looked at.

Under every patch is the picture in grey; over it the colour of the weight that the patch got, the
more opaque the larger the weight is, so that what is looked at shines and the rest can be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError
from attnviz.render.explain import find_query
from attnviz.render.furniture import MARGIN, Pair, Subject, draw_paragraph
from attnviz.render.look import Look
from attnviz.render.overview import grid
from attnviz.render.raster import rasterize, write_png
from attnviz.render.sheet import COLOURS, Picture, Sheet, Text, palette
from attnviz.result import Attention
from attnviz.wording import plural

Pixels = npt.NDArray[np.uint8]

FAINTEST, STRONGEST = 0.15, 0.85
"""How opaque the colours of weight 0 and of the largest weight are."""

TILE = 132.0
"""The longer side of a head's picture, in points."""

MEAN = "mean over all queries"


class Photo(Protocol):
    """A picture `[height, width, 3]` in `rows` × `columns` patches, row by row.

    They are the tokens from the place `n_before` on.
    """

    @property
    def pixels(self) -> Pixels: ...

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def n_before(self) -> int: ...


def draw_photo(
    result: Attention,
    sequence: int,
    photo: Photo,
    path: Path,
    look: Look,
    heads: Sequence[Pair] | None = None,
    query: str | None = None,
) -> list[str]:
    """Draw the chosen (layer, head) pairs, all by default, as one PNG; returns remarks.

    `query` is a token as `find_query` takes it. When None it is `[CLS]`, or where there is none
    the mean over all queries. Raises `InputError` when patches and tokens do not fit.
    """
    length = int(result.key_lengths[sequence])
    n_patches = photo.rows * photo.columns
    if photo.n_before + n_patches != length:
        raise InputError(
            f"a picture of {photo.rows} × {photo.columns} patches after {photo.n_before} other "
            f"tokens does not fit sequence {sequence}, which has {length}"
        )
    if heads is None:
        heads = [(la, h) for la in range(result.n_layers) for h in range(result.n_heads)]
    place = _place(result, sequence, query)
    maps = [_weights(result, sequence, pair, place, photo) for pair in heads]
    subject = Subject(result, sequence, look, list(heads), longest_label=14)
    found = max(float(shares.max()) for shares in maps)
    subject.largest, subject.top = found, look.vmax or found or 1.0
    name = MEAN if place is None else f"query {subject.queries[place]}"
    page = _Page(subject, photo, maps, place, name)
    sheet = page.sheet()
    colours = palette(look)
    full = colours[rasterize(sheet)]
    page.paint(full, colours)
    write_png(full, colours, sheet.title, sheet.description, path, look.dpi)
    return []


def _place(result: Attention, sequence: int, query: str | None) -> int | None:
    """Where the query stands; None for the mean."""
    if query is not None:
        return find_query(result, sequence, query)
    tokens = result.query_tokens[sequence]
    return tokens.index("[CLS]") if "[CLS]" in tokens else None


def _weights(
    result: Attention, sequence: int, pair: Pair, place: int | None, photo: Photo
) -> npt.NDArray[np.float64]:
    """What each patch gets, `[rows columns]`."""
    layer, head = pair
    rows = result.attention[layer, sequence, head].astype(np.float64)
    row = rows[result.query_valid[sequence]].mean(0) if place is None else rows[place]
    patches = np.nan_to_num(row[result.key_valid[sequence]][photo.n_before :])
    shares: npt.NDArray[np.float64] = patches.reshape(photo.rows, photo.columns)
    return shares


class _Page:
    """Where everything is on the page: the picture itself first, then a tile for each head."""

    def __init__(
        self,
        subject: Subject,
        photo: Photo,
        maps: Sequence[npt.NDArray[np.float64]],
        place: int | None,
        name: str,
    ) -> None:
        self._subject, self._photo, self._maps, self._name = subject, photo, maps, name
        self._query = None if place is None else place - photo.n_before
        self._corners: list[tuple[int, int]] = []
        scale = subject.look.dpi / 72
        height, width = photo.pixels.shape[:2]
        patch_h, patch_w = height / photo.rows, width / photo.columns
        zoom = TILE * scale / max(height, width)
        # whole pixels a patch, so that the grid is even
        self._cell_h, self._cell_w = (max(2, round(side * zoom)) for side in (patch_h, patch_w))
        self._high, self._wide = self._cell_h * photo.rows, self._cell_w * photo.columns

    def sheet(self) -> Sheet:
        """The page without its pictures, which leave frames; their corners are remembered."""
        subject = self._subject
        places, n_rows, n_columns = grid(subject.pairs, subject)
        title = f"Attention on the picture: {self._name}"
        sheet = subject.sheet(title, self._describe(title))
        scale = sheet.scale
        wide, high = self._wide / scale, self._high / scale
        gap, head_room = 12.0, 24.0
        first = MARGIN + wide + 2 * gap  # the picture stands in a column of its own
        inner = n_columns * wide + (n_columns - 1) * gap
        bar_left = first + inner + 14
        sheet.width = max(bar_left + 44 + MARGIN, 330.0)
        room = sheet.width - 2 * MARGIN
        sheet.texts.append(Text(MARGIN, MARGIN + 11, title, 13, bold=True))
        y = MARGIN + 19
        y += draw_paragraph(sheet, MARGIN, y, subject.caption, room, 8.5)
        said = "above each head, how much of the query's weight falls on patches"
        y += draw_paragraph(sheet, MARGIN, y, said, room, 7.5)
        top = y + 6
        names = next(iter(subject.short_names()))
        lines = [("the picture", "as the model saw it", MARGIN, top + head_room)]
        for (row, column), name, shares in zip(places, names, self._maps, strict=True):
            x = first + column * (wide + gap)
            y = top + row * (high + head_room) + head_room
            lines.append((name, f"{shares.sum():.2f} on patches", x, y))
        for name, line, x, y in lines:
            corner = round(x * scale), round(y * scale)
            self._corners.append(corner)
            blank = np.zeros((self._high, self._wide), np.uint8)
            sheet.pictures.append(Picture(*corner, blank))
            sheet.texts.append(Text(x, y - 13, name, 8.5, bold=True))
            sheet.texts.append(Text(x, y - 4, line, 7.0, 0.7))
        bottom = top + n_rows * (high + head_room)
        subject.bar(sheet, bar_left, top + head_room, min(bottom - top - head_room, 180.0))
        sheet.height = bottom + MARGIN
        return sheet

    def paint(self, full: Pixels, colours: Pixels) -> None:
        """Put the picture and every head's tile on the page in full colour."""
        from PIL import Image

        image = Image.fromarray(self._photo.pixels).resize(
            (self._wide, self._high), Image.Resampling.LANCZOS
        )
        grey = np.asarray(image.convert("L"), dtype=np.float64)[..., None]
        self._put(full, 0, np.asarray(image))
        for i, shares in enumerate(self._maps, 1):
            strength = np.clip(shares / self._subject.top, 0, 1)
            shades = np.clip(strength * COLOURS, 0, COLOURS - 1).astype(int)
            opacity = FAINTEST + (STRONGEST - FAINTEST) * strength
            colour, share = (
                values.repeat(self._cell_h, 0).repeat(self._cell_w, 1)
                for values in (colours[shades].astype(np.float64), opacity[..., None])
            )
            self._put(full, i, grey + share * (colour - grey))

    def _put(self, full: Pixels, i: int, tile: npt.NDArray[np.generic]) -> None:
        left, top = self._corners[i]
        pixels = np.rint(tile).astype(np.uint8).copy()
        if self._query is not None and self._query >= 0:
            row, column = divmod(self._query, self._photo.columns)
            _outline(
                pixels[
                    row * self._cell_h : (row + 1) * self._cell_h,
                    column * self._cell_w : (column + 1) * self._cell_w,
                ]
            )
        full[top : top + self._high, left : left + self._wide] = pixels

    def _describe(self, title: str) -> str:
        """The page in words: of the first heads, the patch that gets most."""
        subject = self._subject
        said = []
        for (layer, head), shares in list(zip(subject.pairs, self._maps, strict=True))[:8]:
            row, column = np.unravel_index(int(shares.argmax()), shares.shape)
            most = f"r{row}c{column} gets most, {shares.max():.2f}"
            said.append(f"{subject.name(layer, head)}: {most}")
        heads = plural(len(subject.pairs), "head")
        return f"{title}, {heads}. {subject.caption}. {'; '.join(said)}."


def _outline(patch: Pixels) -> None:
    """Two thin frames inside the edges of a patch, white in black: seen on any picture."""
    for inset, value in ((0, 0), (1, 255)):
        if min(patch.shape[:2]) <= 2 * inset:
            continue
        end_y, end_x = patch.shape[0] - 1 - inset, patch.shape[1] - 1 - inset
        patch[[inset, end_y], inset : end_x + 1] = value
        patch[inset : end_y + 1, [inset, end_x]] = value
