"""A drawing as pixels: palette indices, written as PNG.

Most labels need no shaping, and Pillow draws them in a tenth of the time that matplotlib takes;
matplotlib draws the others: Arabic, Devanagari, emoji, and all that DejaVu Sans lacks.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from attnviz.render.drawing import (
    FRAME_TONE,
    CellSize,
    Drawing,
    Line,
    PlacedPanel,
    Text,
    agg_renderer,
    base_font,
    font_properties,
    simple_width,
)
from attnviz.render.palette import ALARM, Indices, opacities, palette, tone_index
from attnviz.render.panel import (
    BLIND,
    FORBIDDEN,
    NOT_A_NUMBER,
    ONLY_A,
    ONLY_B,
    PADDING,
    CellKinds,
    Panel,
)
from attnviz.render.scales import pooled

Pixels = npt.NDArray[np.uint8]

ANCHORS = {"start": 0.0, "middle": 0.5, "end": 1.0}
"""How much of a text's width lies before its anchor."""


# ── cells ────────────────────────────────────────────────────────────────────────────────────


class PanelPainter:
    """Paints panels of one cell size. Patterns over cells that hold no weight are kept for the
    next panel with the same kinds."""

    def __init__(self, cell: CellSize, dpi: int) -> None:
        self._cell, self._dpi = cell, dpi
        self._kept: tuple[CellKinds, npt.NDArray[np.bool_], Indices] | None = None

    def paint(self, panel: Panel) -> Indices:
        """Palette indices, `[rows/pool · height, columns/pool · width]`, rounded up."""
        cells = self._spread(panel.scale.shades(panel.values, self._cell.pool))
        covered, overlay = self._overlay(panel.kinds)
        np.copyto(cells, overlay, where=covered)
        return cells

    def _overlay(self, kinds: CellKinds) -> tuple[npt.NDArray[np.bool_], Indices]:
        """Which pixels are covered, and with what."""
        if self._kept is None or self._kept[0] is not kinds:
            cells = self._spread(pooled(kinds.cells, self._cell.pool))
            overlay, covered = np.zeros_like(cells), np.zeros(cells.shape, dtype=np.bool_)
            for where, pattern in self._patterns(cells):
                np.copyto(overlay, pattern, where=where)
                covered |= where
            for row in np.flatnonzero(pooled(kinds.blind[:, None], self._cell.pool)):
                overlay[self._strike(int(row))] = tone_index(0.8)
            self._kept = (kinds, covered, overlay)
        return self._kept[1], self._kept[2]

    def _patterns(self, kinds: Indices) -> list[tuple[npt.NDArray[np.bool_], Indices]]:
        present = set(np.unique(kinds).tolist())
        found = []
        if PADDING in present:
            found.append((kinds == PADDING, dots(kinds.shape, self._dpi)))
        if present & {FORBIDDEN, BLIND}:
            where = (kinds == FORBIDDEN) | (kinds == BLIND)
            found.append((where, hatch(kinds.shape, self._dpi)))
        if NOT_A_NUMBER in present:
            found.append((kinds == NOT_A_NUMBER, self._crosses(kinds.shape)))
        if present & {ONLY_A, ONLY_B}:  # the difference shows between the lines
            ink = np.full(kinds.shape, tone_index(1.0), dtype=np.uint8)
            period, thick = max(4, round(self._dpi / 16)), max(1, round(self._dpi / 150))
            y, x = np.ogrid[: kinds.shape[0], : kinds.shape[1]]
            found.append(((kinds == ONLY_A) & ((x - y) % period < thick), ink))
            found.append(((kinds == ONLY_B) & (x % period < thick), ink))
        return found

    def _strike(self, row: int) -> slice:
        """The pixel rows of the line through a query row that may attend to nothing."""
        height = self._cell.height
        thick = max(1, min(round(self._dpi / 60), height // 3))
        start = row * height + (height - thick) // 2
        return slice(start, start + thick)

    def _crosses(self, shape: tuple[int, ...]) -> Indices:
        """A cross of alarm in each cell; cells too small for one are filled."""
        height, width = self._cell.height, self._cell.width
        if min(height, width) < 5:
            return np.full(shape, ALARM, dtype=np.uint8)
        y = (np.arange(shape[0]) % height)[:, None] / (height - 1)
        x = (np.arange(shape[1]) % width)[None, :] / (width - 1)
        near = np.minimum(abs(x - y), abs(x + y - 1)) < 0.09
        inside = (abs(x - 0.5) < 0.36) & (abs(y - 0.5) < 0.36)
        return np.where(near & inside, ALARM, tone_index(0.0)).astype(np.uint8)

    def _spread(self, cells: Indices) -> Indices:
        return np.repeat(np.repeat(cells, self._cell.width, axis=1), self._cell.height, axis=0)


def hatch(shape: tuple[int, ...], dpi: int) -> Indices:
    """Diagonal lines on a pale ground: no weight looks like this."""
    period = max(3, round(dpi / 20))
    phase = np.add.outer(np.arange(shape[0]), np.arange(shape[1])) % period
    tones = np.full(period, tone_index(0.07), dtype=np.uint8)
    tones[0] = tone_index(0.42)
    tones[[1, -1]] = tone_index(0.2)
    return np.asarray(tones[phase])


def dots(shape: tuple[int, ...], dpi: int) -> Indices:
    """Sparse dots on a paler ground: nothing is here."""
    period = max(3, round(dpi / 20))
    size = max(1, round(dpi / 150))
    ground = np.full(shape, tone_index(0.03), dtype=np.uint8)
    y, x = (np.arange(n) % period < size for n in shape)
    ground[np.outer(y, x)] = tone_index(0.3)
    return ground


# ── the page ─────────────────────────────────────────────────────────────────────────────────


def rasterize(drawing: Drawing) -> Indices:
    """The drawing as palette indices `[height, width]`, without the numbers in its cells."""
    width, height = drawing.size
    page = np.full((height, width), tone_index(0.0), dtype=np.uint8)
    shaped = [text for text in drawing.texts if not drawing.fonts.is_simple(text.text)]
    if shaped:
        _draw_shaped(page, drawing, shaped)
    for text in drawing.texts:
        if drawing.fonts.is_simple(text.text):
            draw_simple(page, text, drawing.scale)
    for line in drawing.lines:
        _draw_line(page, line, drawing.scale)
    painters: dict[CellSize, PanelPainter] = {}
    for placed in (*drawing.panels, *drawing.samples):
        if placed.cell not in painters:
            painters[placed.cell] = PanelPainter(placed.cell, drawing.options.dpi)
        paste(page, placed, painters[placed.cell].paint(placed.panel))
    for bar in drawing.bars:
        entries = np.linspace(bar.colours[-1], bar.colours[0], bar.height).round()
        column = entries.astype(np.uint8)[:, None]
        _frame(page, bar.left, bar.top, bar.height, bar.width)
        page[bar.top : bar.top + bar.height, bar.left : bar.left + bar.width] = column
    return page


def paste(page: Indices, placed: PlacedPanel, cells: Indices) -> None:
    """Put a painted panel, and a frame of one pixel around it, on a page."""
    (h, w), top, left = cells.shape, placed.top, placed.left
    _frame(page, left, top, h, w)
    page[top : top + h, left : left + w] = cells


def _frame(page: Indices, left: int, top: int, height: int, width: int) -> None:
    page[top - 1 : top + height + 1, left - 1 : left + width + 1] = tone_index(FRAME_TONE)


def draw_simple(page: Indices, text: Text, scale: float) -> None:
    """Draw a text that needs no shaping, at `scale` pixels a point."""
    size = round(text.size * scale, 3)
    cover, left, top = _coverage(text.text, size, text.bold)
    before = ANCHORS[text.anchor] * simple_width(text.text, size, text.bold)
    x, y = text.x * scale, text.y * scale
    if text.turn:
        cover = np.rot90(cover)
        left, top = round(x) + top, round(y + before) - left - cover.shape[0]
    else:
        left, top = round(x - before) + left, round(y) + top
    _darken(page, _tones(text.tone)[cover], left, top)


def _darken(page: Indices, tones: Indices, left: int, top: int) -> None:
    """Put tones on a page where they are darker; what falls off the page is cut."""
    tones = tones[max(-top, 0) :, max(-left, 0) :]
    left, top = max(left, 0), max(top, 0)
    room = page[top : top + tones.shape[0], left : left + tones.shape[1]]
    np.maximum(room, tones[: room.shape[0], : room.shape[1]], out=room)


@lru_cache(8192)
def _coverage(text: str, size: float, bold: bool) -> tuple[Pixels, int, int]:
    """How much of each pixel a text covers, 0-255; its left and top from its baseline's start."""
    from PIL import Image, ImageDraw

    font = base_font(size, bold)
    left, top, right, bottom = (round(edge) for edge in font.getbbox(text, anchor="ls"))
    image = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
    ImageDraw.Draw(image).text((-left, -top), text, fill=255, font=font, anchor="ls")
    return np.asarray(image), left, top


@lru_cache(64)
def _tones(tone: float) -> Indices:
    """The palette entry for each degree of coverage by text of this tone."""
    return np.array([tone_index(tone * cover / 255) for cover in range(256)], dtype=np.uint8)


def _draw_shaped(page: Indices, drawing: Drawing, texts: Sequence[Text]) -> None:
    """Draw texts with matplotlib, black on nothing: their opacity is their tone."""
    height, width = page.shape
    renderer = agg_renderer(width, height, drawing.options.dpi)
    context = renderer.new_gc()
    for text in texts:
        shown, families = drawing.fonts.drawable(text.text), drawing.fonts.families(text.text)
        properties = font_properties(families, text.size, text.bold)
        length, _, _ = renderer.get_text_width_height_descent(shown, properties, False)
        before = length * ANCHORS[text.anchor]
        x, y = text.x * drawing.scale, text.y * drawing.scale
        x, y = (x, y + before) if text.turn else (x - before, y)
        context.set_alpha(text.tone)
        renderer.draw_text(context, x, y, shown, properties, text.turn)
    _darken(page, _tones(1.0)[np.asarray(renderer.buffer_rgba())[..., 3]], 0, 0)


def _draw_line(page: Indices, line: Line, scale: float) -> None:
    """Fill the pixels of a horizontal or vertical line."""
    thick = max(1, round(line.width * scale))
    left, right = sorted((round(line.x * scale), round(line.x2 * scale)))
    top, bottom = sorted((round(line.y * scale), round(line.y2 * scale)))
    bottom, right = max(bottom, top + thick), max(right, left + thick)
    page[top:bottom, left:right] = tone_index(line.tone)


def with_numbers(page: Indices, drawing: Drawing) -> Pixels:
    """The page in full colour with the numbers in its cells; the page as it is without any."""
    if not drawing.numbers:
        return page
    colours = palette(drawing.options, drawing.two_maps)
    if drawing.options.transparent:
        colours = np.column_stack([colours, opacities()])
    full: Pixels = colours[page]
    for number in drawing.numbers:
        size = round(number.size * drawing.scale, 3)
        cover, left, top = _coverage(number.text, size, False)
        x = number.x * drawing.scale - simple_width(number.text, size, False) / 2
        y = (number.y + 0.365 * number.size) * drawing.scale
        left, top = round(x) + left, round(y) + top
        under = full[top : top + cover.shape[0], left : left + cover.shape[1], :3]
        share = cover[..., None] / 255
        under[...] = under + share * (np.array(number.colour) - under)
    return full


def png(drawing: Drawing, page: Pixels | None = None) -> bytes:
    """PNG of a drawing, whose `page` may be given: indices `[h w]` or colours `[h w 3|4]`."""
    from PIL import Image, PngImagePlugin

    if page is None:
        page = with_numbers(rasterize(drawing), drawing)
    mode = "P" if page.ndim == 2 else {3: "RGB", 4: "RGBA"}[page.shape[2]]
    image = Image.frombuffer(mode, page.shape[1::-1], np.ascontiguousarray(page), "raw", mode, 0, 1)
    if mode == "P":
        image.putpalette(palette(drawing.options, drawing.two_maps).tobytes())
    words = PngImagePlugin.PngInfo()
    words.add_itxt("Title", drawing.title)
    words.add_itxt("Description", drawing.description)
    stream = io.BytesIO()
    dpi = drawing.options.dpi
    more = {}
    if mode == "P" and drawing.options.transparent:
        more["transparency"] = opacities().tobytes()
    image.save(stream, "png", pnginfo=words, dpi=(dpi, dpi), compress_level=1, **more)
    return stream.getvalue()
