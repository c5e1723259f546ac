"""A sheet of paper: text, lines and pictures placed in points, then written as PNG, SVG or PDF.

Everything on a sheet is ink on paper, in tones from 0 (paper) to 1 (ink), beside the colours of one
colour map. A PNG therefore needs a palette and no more: `COLOURS` entries of the map, `TONES`
steps from paper to ink, and one colour of alarm. Pictures are arrays of those indices.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.render.fonts import BASE, Fonts
from attnviz.render.look import Look

Indices = npt.NDArray[np.uint8]

COLOURS = 200
TONES = 48
ALARM = COLOURS + TONES
"""Index of the colour that no map and no tone has: cells that hold no number."""

RED = (214, 39, 40)
THEMES = {
    "light": ((255, 255, 255), (23, 26, 31)),
    "dark": ((18, 20, 24), (232, 234, 238)),
}
"""Paper and ink."""


FRAME_TONE = 0.55


def tone_index(tone: float) -> int:
    """The palette entry of a tone between 0 (paper) and 1 (ink)."""
    return COLOURS + round(tone * (TONES - 1))


def palette(look: Look) -> npt.NDArray[np.uint8]:
    """The 256 colours of a look, uint8 `[256, 3]`."""
    from matplotlib import colormaps

    look.require_cmap()
    colours = np.zeros((256, 3))
    colours[:COLOURS] = colormaps[look.cmap](np.linspace(0, 1, COLOURS))[:, :3] * 255
    paper, ink = (np.array(rgb, dtype=float) for rgb in THEMES[look.theme])
    steps = np.linspace(0, 1, TONES)[:, None]
    colours[COLOURS : COLOURS + TONES] = paper + steps * (ink - paper)
    colours[ALARM] = RED
    return colours.round().astype(np.uint8)


@dataclass(frozen=True)
class Text:
    """A line of text. (x, y) is where its baseline starts, has its middle, or ends, by `anchor`.

    `turn` 90 reads upwards.
    """

    x: float
    y: float
    text: str
    size: float
    tone: float = 1.0
    bold: bool = False
    anchor: str = "start"
    turn: int = 0


@dataclass(frozen=True)
class Number:
    """Digits in the middle of a cell at (x, y), in the ink that contrasts with its colour."""

    x: float
    y: float
    text: str
    size: float
    colour: tuple[int, int, int]


@dataclass(frozen=True)
class Line:
    """A straight line between two points."""

    x: float
    y: float
    x2: float
    y2: float
    tone: float
    width: float


@dataclass(frozen=True)
class Picture:
    """Palette indices, one a pixel; where the top left of them is, in pixels of the sheet."""

    left: int
    top: int
    cells: Indices
    framed: bool = True


@dataclass
class Sheet:
    """What is on the paper. Points from the top left, y downwards; `dpi` pixels an inch."""

    look: Look
    fonts: Fonts
    title: str
    description: str
    width: float = 0.0
    height: float = 0.0
    texts: list[Text] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)

    @property
    def scale(self) -> float:
        """Pixels a point."""
        return self.look.dpi / 72

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return round(self.width * self.scale), round(self.height * self.scale)

    def text_width(self, text: str, size: float, bold: bool = False) -> float:
        """Width in points."""
        shown, families = self.fonts.drawable(text), self.fonts.families(text)
        return _text_width(shown, families, size, bold, self.look.dpi)

    def wrapped(self, text: str, size: float, width: float) -> list[str]:
        """`text` in lines of at most `width` points, broken at spaces."""
        lines: list[str] = []
        for word in text.split(" "):
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self.text_width(longer, size) <= width:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines


@lru_cache(16384)
def _text_width(text: str, families: tuple[str, ...], size: float, bold: bool, dpi: int) -> float:
    properties = _properties(families, size, bold)
    width, _, _ = _ruler(dpi).get_text_width_height_descent(text, properties, ismath=False)
    return float(width) * 72 / dpi


@lru_cache(4)
def _ruler(dpi: int) -> Any:
    """Text is measured at the resolution that it is drawn at: hinting moves whole pixels."""
    return _raster(1, 1, dpi)


def _raster(width: int, height: int, dpi: int) -> Any:
    """A renderer of matplotlib that draws into an array of pixels."""
    from matplotlib.backends.backend_agg import RendererAgg

    make: Any = RendererAgg
    return make(width, height, dpi)


@lru_cache(1024)
def _properties(families: tuple[str, ...], size: float, bold: bool) -> Any:
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=list(families), size=size, weight="bold" if bold else "normal")


# ── painting: the same marks through any of matplotlib's renderers ──────────────────────────


def _paint(sheet: Sheet, renderer: Any, scale: float, as_text: bool) -> None:
    """Draw lines and texts at `scale` pixels a point; `as_text` leaves fonts to the reader."""
    from matplotlib.path import Path as Outline
    from matplotlib.transforms import IdentityTransform

    height = sheet.height * scale
    paper, ink = (np.array(rgb) / 255 for rgb in _paper_and_ink(sheet, renderer))
    context, plain = renderer.new_gc(), IdentityTransform()

    def outline(points: Iterable[tuple[float, float]], tone: float, width: float) -> None:
        context.set_foreground(tuple(paper + tone * (ink - paper)))
        context.set_linewidth(renderer.points_to_pixels(width))
        corners = np.array([(x * scale, height - y * scale) for x, y in points])
        renderer.draw_path(context, Outline(corners), plain)

    context.set_snap(True)
    for line in sheet.lines:
        outline([(line.x, line.y), (line.x2, line.y2)], line.tone, line.width)
    for text in sheet.texts:
        context.set_foreground(tuple(paper + text.tone * (ink - paper)))
        families = sheet.fonts.families(text.text)
        properties = _properties(families, text.size, text.bold)
        x, y = text.x * scale, text.y * scale
        shown = text.text if as_text else sheet.fonts.drawable(text.text)
        anchor = _Anchor(x, height - y, text.anchor) if as_text else None
        if not as_text and text.anchor != "start":
            share = {"middle": 0.5, "end": 1.0}[text.anchor]
            length = renderer.get_text_width_height_descent(shown, properties, False)[0] * share
            x, y = (x, y + length) if text.turn else (x - length, y)
        renderer.draw_text(
            context,
            x,
            y if renderer.flipy() else height - y,
            shown,
            properties,
            text.turn,
            ismath=False,
            mtext=anchor,
        )


class _Anchor:
    """What the SVG renderer asks of a text to align it where it is shown, in whatever font."""

    def __init__(self, x: float, y: float, anchor: str) -> None:
        self._at = (x, y)
        self._align = {"start": "left", "middle": "center", "end": "right"}[anchor]

    def get_transform(self) -> Any:
        from matplotlib.transforms import IdentityTransform

        return IdentityTransform()

    def get_unitless_position(self) -> tuple[float, float]:
        return self._at

    def get_rotation_mode(self) -> str:
        return "anchor"

    def get_ha(self) -> str:
        return self._align


def _paper_and_ink(sheet: Sheet, renderer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A PNG is drawn black on white, and gets its colours from the palette."""
    from matplotlib.backends.backend_agg import RendererAgg

    if isinstance(renderer, RendererAgg):
        return (255, 255, 255), (0, 0, 0)
    return THEMES[sheet.look.theme]


def rasterize(sheet: Sheet) -> Indices:
    """The sheet as palette indices `[height, width]`, pictures included."""
    from matplotlib.path import Path as Outline
    from matplotlib.transforms import Affine2D

    width, height = sheet.size
    renderer = _raster(width, height, sheet.look.dpi)
    white = renderer.new_gc()
    white.set_linewidth(0)
    renderer.draw_path(white, Outline.unit_rectangle(), Affine2D().scale(width, height), (1, 1, 1))
    _paint(sheet, renderer, sheet.scale, as_text=False)
    page: Indices = _TONE_OF_GREY[np.asarray(renderer.buffer_rgba())[..., 0]]
    for picture in sheet.pictures:
        paste(page, picture)
    return page


def paste(page: Indices, picture: Picture) -> None:
    """Put a picture, and a frame of one pixel around it, on a page."""
    h, w = picture.cells.shape
    top, left = picture.top, picture.left
    if picture.framed:
        page[top - 1 : top + h + 1, left - 1 : left + w + 1] = tone_index(FRAME_TONE)
    page[top : top + h, left : left + w] = picture.cells


_TONE_OF_GREY = (COLOURS + np.round((255 - np.arange(256)) / 255 * (TONES - 1))).astype(np.uint8)


# ── writing ─────────────────────────────────────────────────────────────────────────────────


def write(sheet: Sheet, path: Path) -> None:
    """Write `.png`, `.svg` or `.pdf` by the suffix. The same sheet gives the same bytes."""
    suffix = path.suffix.lower()
    if suffix == ".png":
        colours = palette(sheet.look)
        page = stamped(rasterize(sheet), colours, sheet)
        write_png(page, colours, sheet.title, sheet.description, path, sheet.look.dpi)
        return
    path.write_bytes(_svg(sheet) if suffix == ".svg" else _pdf(sheet))


def stamped(page: Indices, colours: npt.NDArray[np.uint8], sheet: Sheet) -> npt.NDArray[np.uint8]:
    """The page in full colour with the sheet's numbers on it; the page as it is without any."""
    if not sheet.numbers:
        return page
    full = colours[page]
    for number in sheet.numbers:
        x, y = _number_start(sheet, number)
        left, base = round(x * sheet.scale), round(y * sheet.scale)
        mask, up = _digits(number.text, round(number.size * sheet.scale, 2))
        h, w = mask.shape
        under = full[base - up : base - up + h, left : left + w]
        ink = np.array(number.colour, dtype=np.int32)
        under += ((ink - under) * mask[..., None] // 255).astype(np.uint8)
    return full


def _number_start(sheet: Sheet, number: Number) -> tuple[float, float]:
    """Where a number's baseline starts, in points, so that it stands in the middle of its cell."""
    width = _text_width(number.text, (BASE,), number.size, False, sheet.look.dpi)
    return number.x - width / 2, number.y + 0.365 * number.size


@lru_cache(4096)
def _digits(text: str, size: float) -> tuple[npt.NDArray[np.int32], int]:
    """Coverage 0-255 of a drawn text, and how many pixels above the baseline it starts."""
    from PIL import ImageFont

    font = ImageFont.truetype(base_font_file(), size, layout_engine=ImageFont.Layout.BASIC)
    mask, (_, top) = font.getmask2(text, mode="L", anchor="ls")
    return np.asarray(mask, dtype=np.int32).reshape(mask.size[::-1]), -top


def base_font_file(bold: bool = False) -> str:
    """The file of DejaVu Sans that matplotlib ships."""
    from matplotlib import get_data_path

    return f"{get_data_path()}/fonts/ttf/DejaVuSans{'-Bold' if bold else ''}.ttf"


def write_png(
    page: npt.NDArray[np.uint8],
    colours: npt.NDArray[np.uint8],
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


def _svg(sheet: Sheet) -> bytes:
    from xml.sax.saxutils import escape

    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = io.StringIO()
    canvas: Any = FigureCanvasSVG(_figure(sheet, as_text=True))
    with _settings():
        canvas.print_svg(stream, metadata={"Title": sheet.title, "Date": None})
    described = f"</title>\n <desc>{escape(sheet.description)}</desc>"
    text = stream.getvalue().replace("</title>", described, 1)
    return text.replace("<svg ", '<svg role="img" ', 1).encode()


def _pdf(sheet: Sheet) -> bytes:
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    stream = io.BytesIO()
    canvas: Any = FigureCanvasPdf(_figure(sheet, as_text=False))
    metadata = {"Title": sheet.title, "Subject": sheet.description, "CreationDate": None}
    with _settings():
        canvas.print_pdf(stream, metadata=metadata)
    return stream.getvalue()


def _settings() -> Any:
    from matplotlib import rc_context

    return rc_context({"svg.fonttype": "none", "svg.hashsalt": "attnviz", "pdf.fonttype": 3})


def _figure(sheet: Sheet, as_text: bool) -> Any:
    """A figure with nothing but the sheet: matplotlib writes its vector formats from figures."""
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
    from matplotlib.path import Path as Outline
    from matplotlib.transforms import Affine2D, IdentityTransform

    class Marks(Artist):
        def draw(self, renderer: Any) -> None:
            context, hairline = renderer.new_gc(), renderer.new_gc()
            hairline.set_foreground(tuple(colours[tone_index(FRAME_TONE)] / 255))
            hairline.set_linewidth(1 / sheet.scale)
            for picture in sheet.pictures:
                h, w = (n / sheet.scale for n in picture.cells.shape)
                left, top = picture.left / sheet.scale, picture.top / sheet.scale
                rgba = np.full((*picture.cells.shape, 4), 255, dtype=np.uint8)
                rgba[..., :3] = colours[picture.cells]
                place = Affine2D().scale(w, h).translate(left, sheet.height - top - h)
                renderer.draw_image(context, 0, 0, rgba[::-1], place)
                if picture.framed:
                    half = 0.5 / sheet.scale
                    corners = np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)])
                    corners = corners * (w + 2 * half, h + 2 * half)
                    corners += (left - half, sheet.height - top - h - half)
                    renderer.draw_path(hairline, Outline(corners), IdentityTransform())
            _paint(sheet, renderer, 1.0, as_text)
            for number in sheet.numbers:
                context.set_foreground(tuple(part / 255 for part in number.colour))
                x, y = _number_start(sheet, number)
                y = y if renderer.flipy() else sheet.height - y
                properties = _properties((BASE,), number.size, bold=False)
                renderer.draw_text(context, x, y, number.text, properties, 0)

    colours = palette(sheet.look)
    red, green, blue = (part / 255 for part in THEMES[sheet.look.theme][0])
    figure = Figure(
        figsize=(sheet.width / 72, sheet.height / 72),
        dpi=72,
        facecolor=(red, green, blue),
    )
    figure.add_artist(Marks())
    return figure
