"""A sheet as SVG or PDF, through matplotlib: text on top of pictures of the cells."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from attnviz.render.fonts import BASE
from attnviz.render.raster import SHARE
from attnviz.render.sheet import FRAME_TONE, THEMES, Sheet, font_properties, palette, tone_index


def svg(sheet: Sheet) -> bytes:
    """SVG whose text stays text, described for those who cannot see it."""
    from xml.sax.saxutils import escape

    from matplotlib.backends.backend_svg import FigureCanvasSVG

    stream = io.StringIO()
    canvas: Any = FigureCanvasSVG(_figure(sheet, as_text=True))
    with _settings():
        canvas.print_svg(stream, metadata={"Title": sheet.title, "Date": None})
    described = f"</title>\n <desc>{escape(sheet.description)}</desc>"
    text = stream.getvalue().replace("</title>", described, 1)
    return text.replace("<svg ", '<svg role="img" ', 1).encode()


def pdf(sheet: Sheet) -> bytes:
    """PDF with its fonts embedded."""
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
            _paint(sheet, renderer, as_text)
            for number in sheet.numbers:
                context.set_foreground(tuple(part / 255 for part in number.colour))
                properties = font_properties((BASE,), number.size)
                width, _, _ = renderer.get_text_width_height_descent(number.text, properties, False)
                y = number.y + 0.365 * number.size
                y = y if renderer.flipy() else sheet.height - y
                renderer.draw_text(context, number.x - width / 2, y, number.text, properties, 0)

    colours = palette(sheet.look)
    red, green, blue = (part / 255 for part in THEMES[sheet.look.theme][0])
    figure = Figure(
        figsize=(sheet.width / 72, sheet.height / 72),
        dpi=72,
        facecolor=(red, green, blue),
    )
    figure.add_artist(Marks())
    return figure


def _paint(sheet: Sheet, renderer: Any, as_text: bool) -> None:
    """Draw lines and texts, a point a unit; `as_text` leaves fonts to the reader."""
    from matplotlib.path import Path as Outline
    from matplotlib.transforms import IdentityTransform

    paper, ink = (np.array(rgb) / 255 for rgb in THEMES[sheet.look.theme])
    context, plain, height = renderer.new_gc(), IdentityTransform(), sheet.height
    for line in sheet.lines:
        context.set_foreground(tuple(paper + line.tone * (ink - paper)))
        context.set_linewidth(line.width)
        ends = np.array([(line.x, height - line.y), (line.x2, height - line.y2)])
        renderer.draw_path(context, Outline(ends), plain)
    for text in sheet.texts:
        context.set_foreground(tuple(paper + text.tone * (ink - paper)))
        properties = font_properties(sheet.fonts.families(text.text), text.size, text.bold)
        x, y, shown, anchor = text.x, text.y, text.text, None
        if as_text:
            anchor = _Anchor(x, height - y, text.anchor)
        else:
            shown = sheet.fonts.drawable(text.text)
            length, _, _ = renderer.get_text_width_height_descent(shown, properties, False)
            before = length * SHARE[text.anchor]
            x, y = (x, y + before) if text.turn else (x - before, y)
        y = y if renderer.flipy() else height - y
        renderer.draw_text(context, x, y, shown, properties, text.turn, mtext=anchor)


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
