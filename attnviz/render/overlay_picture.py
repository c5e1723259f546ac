"""One query's attention laid over the picture that a vision transformer looked at.

Under every patch is the picture in grey; over it the colour of the weight that the patch got, the
more opaque the larger the weight is, so that strongly attended patches stand out and the rest
of the picture stays visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from attnviz.errors import InputError
from attnviz.render.axes import TokenAxis
from attnviz.render.drawing import CellSize, Drawing, PlacedPanel
from attnviz.render.figure_options import FigureOptions
from attnviz.render.fonts import Fonts
from attnviz.render.head_panels import caption_of
from attnviz.render.headings import Heading
from attnviz.render.labels import label
from attnviz.render.layout import PanelLayout
from attnviz.render.palette import COLOURS, palette
from attnviz.render.panel import WEIGHT, CellKinds, Pair, Panel, head_names
from attnviz.render.panel_grid import grid
from attnviz.render.query_lookup import find_query
from attnviz.render.raster import png, rasterize
from attnviz.render.scales import LinearScale, Scale
from attnviz.result import Attention
from attnviz.wording import plural

Pixels = npt.NDArray[np.uint8]
Shares = npt.NDArray[np.float64]

FAINTEST, STRONGEST = 0.15, 0.85
"""How opaque the colours of weight 0 and of the largest weight are."""

TILE = 132.0
"""The longer side of a head's picture, in points."""

MEAN = "mean over all queries"

MEASURED = "above each head, how much of the query's weight falls on patches"


class Photo(Protocol):
    """A picture `[height, width, 3]` in `rows` × `columns` patches, row by row.

    They are the tokens from the index `n_before` on.
    """

    @property
    def pixels(self) -> Pixels: ...

    @property
    def rows(self) -> int: ...

    @property
    def columns(self) -> int: ...

    @property
    def n_before(self) -> int: ...


def draw_overlay(
    result: Attention,
    sequence: int,
    photo: Photo,
    path: Path,
    options: FigureOptions,
    heads: Sequence[Pair] | None = None,
    query: str | None = None,
) -> list[str]:
    """Draw the chosen (layer, head) pairs, all by default, as one PNG; returns notes.

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
    options = replace(options, transparent=False)  # pictures cover their panels
    if heads is None:
        heads = [(la, h) for la in range(result.n_layers) for h in range(result.n_heads)]
    at = _query_index(result, sequence, query)
    maps = [_patch_weights(result, sequence, pair, at, photo) for pair in heads]
    largest = max(float(shares.max()) for shares in maps)
    top = options.vmax or largest or 1.0
    names = [head_names(result, *pair) for pair in heads]
    panels = _panels(maps, names, LinearScale(top, largest > top))
    whose = MEAN if at is None else f"query {label(result.query_tokens[sequence][at], 14)}"
    title, caption = f"Attention on the picture: {whose}", caption_of(result, sequence)
    heading = Heading.chosen(options, title, caption=caption, measured=MEASURED)
    drawing = _drawing(panels, heads, photo, heading, options)
    drawing.description = _in_words(title, caption, panels[1:])
    colours = palette(options)
    full = colours[rasterize(drawing)]
    outlined = None if at is None or at < photo.n_before else at - photo.n_before
    _paint(full, drawing.panels, photo, outlined, colours)
    path.write_bytes(png(drawing, full))
    return list(drawing.fonts.notes)


def _query_index(result: Attention, sequence: int, query: str | None) -> int | None:
    """Which row the query is; None for the mean."""
    if query is not None:
        return find_query(result, sequence, query)
    tokens = result.query_tokens[sequence]
    return tokens.index("[CLS]") if "[CLS]" in tokens else None


def _patch_weights(
    result: Attention, sequence: int, pair: Pair, at: int | None, photo: Photo
) -> Shares:
    """What each patch gets, `[rows columns]`."""
    layer, head = pair
    rows = result.attention[layer, sequence, head].astype(np.float64)
    row = rows[result.query_valid[sequence]].mean(0) if at is None else rows[at]
    patches = np.nan_to_num(row[result.key_valid[sequence]][photo.n_before :])
    shares: Shares = patches.reshape(photo.rows, photo.columns)
    return shares


def _panels(maps: Sequence[Shares], names: Sequence[tuple[str, ...]], scale: Scale) -> list[Panel]:
    """The picture itself first, then a panel for each head."""
    kinds = CellKinds(np.full(maps[0].shape, WEIGHT, dtype=np.uint8))
    empty = np.zeros(maps[0].shape, dtype=np.float32)
    panels = [Panel(empty, kinds, scale, ("the picture",), ("as the model saw it",))]
    for shares, name in zip(maps, names, strict=True):
        values = shares.astype(np.float32)
        panels.append(Panel(values, kinds, scale, name, (f"{shares.sum():.2f} on patches",)))
    return panels


def _drawing(
    panels: Sequence[Panel],
    heads: Sequence[Pair],
    photo: Photo,
    heading: Heading,
    options: FigureOptions,
) -> Drawing:
    """The page, with the picture in a column of its own, and whole pixels for every patch."""
    height, width = photo.pixels.shape[:2]
    zoom = TILE * options.dpi / 72 / max(height, width)
    cell = CellSize(
        max(2, round(width / photo.columns * zoom)), max(2, round(height / photo.rows * zoom))
    )
    places = [(0, 0), *((r, c + 1) for r, c in grid(heads, width / height, options.columns)[0])]
    axes = TokenAxis.unnamed(photo.rows), TokenAxis.unnamed(photo.columns)
    blank = Drawing(options, Fonts([heading.title, *heading.paragraphs]))
    shape, scales = (photo.rows, photo.columns), [panels[0].scale]
    layout = PanelLayout(blank, axes, shape, cell, places, scales=scales)
    return layout.drawing(panels, heading)


def _paint(
    full: Pixels,
    placed: Sequence[PlacedPanel],
    photo: Photo,
    outlined: int | None,
    colours: Pixels,
) -> None:
    """Put the picture and every head's panel on the page in full colour."""
    (high, wide), cell = placed[0].shape, placed[0].cell
    image = Image.fromarray(photo.pixels).resize((wide, high), Image.Resampling.LANCZOS)
    grey = np.asarray(image.convert("L"), dtype=np.float64)[..., None]
    for i, one in enumerate(placed):
        pixels = np.asarray(image).copy()
        if i:
            values, top = one.panel.values.astype(np.float64), one.panel.scale.top
            strength = np.clip(values / top, 0, 1)
            shades = np.clip(strength * COLOURS, 0, COLOURS - 1).astype(int)
            opacity = FAINTEST + (STRONGEST - FAINTEST) * strength
            colour, share = (
                part.repeat(cell.height, 0).repeat(cell.width, 1)
                for part in (colours[shades].astype(np.float64), opacity[..., None])
            )
            pixels = np.rint(grey + share * (colour - grey)).astype(np.uint8)
        if outlined is not None:
            row, column = divmod(outlined, photo.columns)
            y, x = row * cell.height, column * cell.width
            _outline(pixels[y : y + cell.height, x : x + cell.width])
        full[one.top : one.top + high, one.left : one.left + wide] = pixels


def _in_words(title: str, caption: str, panels: Sequence[Panel]) -> str:
    """The page in words: of the first heads, the patch that gets most."""
    parts = []
    for panel in panels[:8]:
        row, column = divmod(int(panel.values.argmax()), panel.values.shape[1])
        parts.append(f"{panel.names[0]}: r{row}c{column} gets most, {panel.values.max():.2f}")
    return f"{title}, {plural(len(panels), 'head')}. {caption}. {'; '.join(parts)}."


def _outline(patch: Pixels) -> None:
    """Two thin frames inside the edges of a patch, white in black: seen on any picture."""
    for inset, value in ((0, 0), (1, 255)):
        if min(patch.shape[:2]) <= 2 * inset:
            continue
        end_y, end_x = patch.shape[0] - 1 - inset, patch.shape[1] - 1 - inset
        patch[[inset, end_y], inset : end_x + 1] = value
        patch[inset : end_y + 1, [inset, end_x]] = value
