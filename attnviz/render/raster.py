"""A sheet as pixels: palette indices, written as PNG.

Most labels need no shaping, and Pillow draws them in a tenth of the time that matplotlib takes;
matplotlib draws the others: Arabic, Devanagari, emoji, and all that DejaVu Sans lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attnviz.render.sheet import (
    FRAME_TONE,
    Indices,
    Line,
    Picture,
    Sheet,
    Text,
    agg_renderer,
    base_font,
    font_properties,
    simple_width,
    tone_index,
)

Colours = npt.NDArray[np.uint8]

SHARE = {"start": 0.0, "middle": 0.5, "end": 1.0}
"""How much of a text's width lies before its anchor."""


def rasterize(sheet: Sheet) -> Indices:
    """The sheet as palette indices `[height, width]`; its numbers are left to `stamped`."""
    width, height = sheet.size
    page = np.full((height, width), tone_index(0.0), dtype=np.uint8)
    shaped = [text for text in sheet.texts if not sheet.fonts.is_simple(text.text)]
    if shaped:
        _draw_shaped(page, sheet, shaped)
    for text in sheet.texts:
        if sheet.fonts.is_simple(text.text):
            draw_simple(page, text, sheet.scale)
    for line in sheet.lines:
        _draw_line(page, line, sheet.scale)
    for picture in sheet.pictures:
        paste(page, picture)
    return page


def draw_simple(page: Indices, text: Text, scale: float) -> None:
    """Draw a text that needs no shaping, at `scale` pixels a point."""
    size = round(text.size * scale, 3)
    cover, left, top = _coverage(text.text, size, text.bold)
    before = SHARE[text.anchor] * simple_width(text.text, size, text.bold)
    x, y = text.x * scale, text.y * scale
    if text.turn:
        cover = np.rot90(cover)
        left, top = round(x) + top, round(y + before) - left - cover.shape[0]
    else:
        left, top = round(x - before) + left, round(y) + top
    _lay(page, _tones(text.tone)[cover], left, top)


def _lay(page: Indices, ink: Indices, left: int, top: int) -> None:
    """Put ink on a page where it is darker than what is there; what falls off the page is cut."""
    ink = ink[max(-top, 0) :, max(-left, 0) :]
    left, top = max(left, 0), max(top, 0)
    room = page[top : top + ink.shape[0], left : left + ink.shape[1]]
    np.maximum(room, ink[: room.shape[0], : room.shape[1]], out=room)


@lru_cache(8192)
def _coverage(text: str, size: float, bold: bool) -> tuple[npt.NDArray[np.uint8], int, int]:
    """How much of each pixel a text covers, 0-255; its left and top from its baseline's start."""
    from PIL import Image, ImageDraw

    font = base_font(size, bold)
    left, top, right, bottom = (round(edge) for edge in font.getbbox(text, anchor="ls"))
    image = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
    ImageDraw.Draw(image).text((-left, -top), text, fill=255, font=font, anchor="ls")
    return np.asarray(image), left, top


@lru_cache(64)
def _tones(tone: float) -> Indices:
    """The palette entry for each degree of coverage by ink of this tone."""
    return np.array([tone_index(tone * cover / 255) for cover in range(256)], dtype=np.uint8)


def _draw_shaped(page: Indices, sheet: Sheet, texts: Sequence[Text]) -> None:
    """Draw texts with matplotlib, black on nothing: their opacity is their tone."""
    height, width = page.shape
    renderer = agg_renderer(width, height, sheet.look.dpi)
    context = renderer.new_gc()
    for text in texts:
        shown, families = sheet.fonts.drawable(text.text), sheet.fonts.families(text.text)
        properties = font_properties(families, text.size, text.bold)
        length, _, _ = renderer.get_text_width_height_descent(shown, properties, False)
        before = length * SHARE[text.anchor]
        x, y = text.x * sheet.scale, text.y * sheet.scale
        x, y = (x, y + before) if text.turn else (x - before, y)
        context.set_alpha(text.tone)
        renderer.draw_text(context, x, y, shown, properties, text.turn)
    _lay(page, _tones(1.0)[np.asarray(renderer.buffer_rgba())[..., 3]], 0, 0)


def _draw_line(page: Indices, line: Line, scale: float) -> None:
    """Fill the pixels of a horizontal or vertical line."""
    thick = max(1, round(line.width * scale))
    left, right = sorted((round(line.x * scale), round(line.x2 * scale)))
    top, bottom = sorted((round(line.y * scale), round(line.y2 * scale)))
    bottom, right = max(bottom, top + thick), max(right, left + thick)
    page[top:bottom, left:right] = tone_index(line.tone)


def paste(page: Indices, picture: Picture) -> None:
    """Put a picture, and a frame of one pixel around it, on a page."""
    h, w = picture.cells.shape
    top, left = picture.top, picture.left
    if picture.framed:
        page[top - 1 : top + h + 1, left - 1 : left + w + 1] = tone_index(FRAME_TONE)
    page[top : top + h, left : left + w] = picture.cells


def stamped(page: Indices, colours: Colours, sheet: Sheet) -> npt.NDArray[np.uint8]:
    """The page in full colour with the sheet's numbers on it; the page as it is without any."""
    if not sheet.numbers:
        return page
    full = colours[page]
    for number in sheet.numbers:
        size = round(number.size * sheet.scale, 3)
        cover, left, top = _coverage(number.text, size, False)
        x = number.x * sheet.scale - simple_width(number.text, size, False) / 2
        y = (number.y + 0.365 * number.size) * sheet.scale
        left, top = round(x) + left, round(y) + top
        under = full[top : top + cover.shape[0], left : left + cover.shape[1]]
        share = cover[..., None] / 255
        under[...] = under + share * (np.array(number.colour) - under)
    return full


def write_png(
    page: npt.NDArray[np.uint8],
    colours: Colours,
    title: str,
    description: str,
    path: Path,
    dpi: int,
) -> None:
    """Write palette indices `[height, width]`, or colours `[height, width, 3]`, and notes."""
    from PIL import Image, PngImagePlugin

    mode = "P" if page.ndim == 2 else "RGB"
    image = Image.frombuffer(mode, page.shape[1::-1], np.ascontiguousarray(page), "raw", mode, 0, 1)
    if mode == "P":
        image.putpalette(colours.tobytes())
    notes = PngImagePlugin.PngInfo()
    notes.add_itxt("Title", title)
    notes.add_itxt("Description", description)
    image.save(path, "png", pnginfo=notes, dpi=(dpi, dpi), compress_level=1)
