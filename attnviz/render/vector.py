"""A drawing as SVG or PDF, through matplotlib: cells, lines and text as vectors."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from matplotlib.transforms import Affine2D, IdentityTransform

from attnviz.render.drawing import FRAME_TONE, CellSize, Drawing, PlacedPanel, font_properties
from attnviz.render.fonts import BASE
from attnviz.render.palette import ALARM, THEME_COLOURS, palette, tone_index
from attnviz.render.panel import BLIND, FORBIDDEN, NOT_A_NUMBER, ONLY_A, ONLY_B, PADDING
from attnviz.render.raster import ANCHORS, PanelPainter
from attnviz.render.scales import pooled

LARGEST_VECTOR_SIDE, MOST_VECTOR_CELLS = 64, 2**15
"""Cells of a panel along a side, and of a whole picture, that are drawn one by one; larger panels
are images."""

IMAGE_DPI = 300

HATCHES = {
    FORBIDDEN: ("///////", 0.07, 0.42),
    BLIND: ("///////", 0.07, 0.42),
    PADDING: ("...", 0.03, 0.22),
    ONLY_A: ("\\\\\\", None, 1.0),
    ONLY_B: ("|||", None, 1.0),
}
"""For each kind of cell that has a pattern: the pattern, the tone of its ground, and its own.
Without a ground, the value's colour shows."""


def svg(drawing: Drawing) -> bytes:
    """SVG whose text stays text, described for those who cannot see it."""
    stream = io.StringIO()
    canvas: Any = FigureCanvasSVG(_figure(drawing, as_text=True))
    with _settings():
        canvas.print_svg(stream, metadata={"Title": drawing.title, "Date": None})
    described = f"</title>\n <desc>{escape(drawing.description)}</desc>"
    text = stream.getvalue().replace("</title>", described, 1)
    return text.replace("<svg ", '<svg role="img" ', 1).encode()


def pdf(drawing: Drawing) -> bytes:
    """PDF with its fonts embedded as TrueType."""
    stream = io.BytesIO()
    canvas: Any = FigureCanvasPdf(_figure(drawing, as_text=False))
    metadata = {"Title": drawing.title, "Subject": drawing.description, "CreationDate": None}
    with _settings():
        canvas.print_pdf(stream, metadata=metadata)
    return stream.getvalue()


def _settings() -> Any:
    return rc_context({"svg.fonttype": "none", "svg.hashsalt": "attnviz", "pdf.fonttype": 42})


def _figure(drawing: Drawing, as_text: bool) -> Any:
    """A figure with nothing but the drawing: matplotlib writes its vector formats from figures."""
    red, green, blue = (part / 255 for part in THEME_COLOURS[drawing.options.theme][0])
    figure = Figure(
        figsize=(drawing.width / 72, drawing.height / 72),
        dpi=72,
        facecolor="none" if drawing.options.transparent else (red, green, blue),
    )
    figure.add_artist(_DrawingArtist(drawing, as_text))
    return figure


class _DrawingArtist(Artist):
    """Draws everything, a point a unit; `as_text` leaves fonts to the reader."""

    def __init__(self, drawing: Drawing, as_text: bool) -> None:
        super().__init__()
        self._drawing, self._as_text = drawing, as_text
        options = replace(drawing.options, transparent=False)  # tones as they are on paper
        self._colours = palette(options, drawing.two_maps) / 255

    def draw(self, renderer: Any) -> None:
        drawing = self._drawing
        shapes = [pooled(p.panel.kinds.cells, p.cell.pool).shape for p in drawing.panels]
        small = (
            sum(rows * columns for rows, columns in shapes) <= MOST_VECTOR_CELLS
            and max((max(shape) for shape in shapes), default=0) <= LARGEST_VECTOR_SIDE
        )
        for placed in drawing.panels:
            if small:
                self._draw_cells(renderer, placed)
            else:
                self._draw_image(renderer, placed)
        for placed in drawing.samples:
            self._draw_cells(renderer, placed)
        for bar in drawing.bars:
            entries = np.linspace(bar.colours[-1], bar.colours[0], len(bar.colours)).round()
            step = bar.height / len(entries)
            for i, entry in enumerate(entries.astype(int)):
                below = min(bar.height, (i + 1.5) * step)  # it reaches under the next: no seams
                box = bar.left, bar.top + i * step, bar.width, below - i * step
                self._fill(renderer, [box], self._colours[entry])
            self._frame(renderer, bar.left, bar.top, bar.width, bar.height)
        self._draw_lines(renderer)
        self._draw_texts(renderer)
        self._draw_numbers(renderer)

    # ── cells ───────────────────────────────────────────────────────────────────────────────

    def _draw_cells(self, renderer: Any, placed: PlacedPanel) -> None:
        """Each cell as a rectangle, and patterns over those that hold no weight."""
        panel, cell = placed.panel, placed.cell
        shades = panel.scale.shades(panel.values, cell.pool)
        kinds = pooled(panel.kinds.cells, cell.pool)
        plain = {kind for kind, (_, ground, _) in HATCHES.items() if ground is not None}
        whole = placed.left, placed.top, *placed.shape[::-1]
        self._fill(renderer, [whole], self._colours[int(shades.min())])  # seams are not paper
        coloured = ~np.isin(kinds, [*plain, NOT_A_NUMBER])
        for shade in np.unique(shades[coloured]).tolist():
            where = coloured & (shades == shade)
            self._fill(renderer, _boxes(placed, where), self._colours[shade])
        for kind in np.unique(kinds).tolist():
            boxes = _boxes(placed, kinds == kind)
            if kind in HATCHES:
                self._hatch(renderer, boxes, *HATCHES[kind])
            elif kind == NOT_A_NUMBER:
                self._cross(renderer, boxes)
        for row in np.flatnonzero(pooled(panel.kinds.blind[:, None], cell.pool)).tolist():
            y = placed.top + (row + 0.5) * cell.height
            line = [(placed.left, y), (placed.left + placed.shape[1], y)]
            self._stroke(renderer, line, tone_index(0.8), 1.0)
        self._frame(renderer, placed.left, placed.top, *placed.shape[::-1])

    def _draw_image(self, renderer: Any, placed: PlacedPanel) -> None:
        """The panel as an image of at least 300 dots per inch."""
        drawing, cell = self._drawing, placed.cell
        times = max(1, -(-IMAGE_DPI // drawing.options.dpi))
        fine = CellSize(cell.width * times, cell.height * times, cell.pool)
        indices = PanelPainter(fine, drawing.options.dpi * times).paint(placed.panel)
        rgba = np.full((*indices.shape, 4), 255, dtype=np.uint8)
        rgba[..., :3] = (self._colours * 255).round().astype(np.uint8)[indices]
        h, w = (n / drawing.scale for n in placed.shape)
        left, bottom = placed.left / drawing.scale, drawing.height - placed.top / drawing.scale - h
        place = Affine2D().scale(w, h).translate(left, bottom)
        renderer.draw_image(renderer.new_gc(), 0, 0, rgba[::-1], place)
        self._frame(renderer, placed.left, placed.top, *placed.shape[::-1])

    def _fill(self, renderer: Any, boxes: Any, colour: Any) -> None:
        context = renderer.new_gc()
        context.set_linewidth(0)
        renderer.draw_path(context, self._outline(boxes), IdentityTransform(), tuple(colour))

    def _hatch(
        self, renderer: Any, boxes: Any, pattern: str, ground: float | None, tone: float
    ) -> None:
        context = renderer.new_gc()
        context.set_linewidth(0)
        context.set_hatch(pattern)
        context.set_hatch_color((*self._colours[tone_index(tone)], 1.0))
        context.set_hatch_linewidth(0.5)
        colour = None if ground is None else tuple(self._colours[tone_index(ground)])
        renderer.draw_path(context, self._outline(boxes), IdentityTransform(), colour)

    def _cross(self, renderer: Any, boxes: Any) -> None:
        """A cross of alarm in each cell that is not a number."""
        self._fill(renderer, boxes, self._colours[tone_index(0.0)])
        for x, y, w, h in boxes:
            near, far = 0.14, 0.86
            for first, last in (((near, near), (far, far)), ((near, far), (far, near))):
                ends = [(x + w * a, y + h * b) for a, b in (first, last)]
                self._stroke(renderer, ends, ALARM, min(w, h) / self._drawing.scale * 0.12)

    def _frame(self, renderer: Any, left: float, top: float, width: float, height: float) -> None:
        half = 0.5
        x, y, x2, y2 = left - half, top - half, left + width + half, top + height + half
        corners = [(x, y), (x2, y), (x2, y2), (x, y2), (x, y)]
        self._stroke(renderer, corners, tone_index(FRAME_TONE), 1 / self._drawing.scale)

    def _stroke(self, renderer: Any, points: Any, entry: int, width: float) -> None:
        """A line through points in pixels of the drawing."""
        context = renderer.new_gc()
        context.set_foreground(tuple(self._colours[entry]))
        context.set_linewidth(width)
        outline = Outline(self._in_points(np.array(points, dtype=float)))
        renderer.draw_path(context, outline, IdentityTransform())

    def _outline(self, boxes: Any) -> Outline:
        """Rectangles, given by left, top, width and height in pixels, as one path."""
        x, y, w, h = np.array(boxes, dtype=float).reshape(-1, 4).T
        corners = np.stack([(x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)], axis=1)
        codes = [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY]
        points = self._in_points(corners.transpose(2, 1, 0).reshape(-1, 2))
        return Outline(points, codes * len(x))

    def _in_points(self, pixels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Pixels from the top left as points from the bottom left."""
        points = pixels / self._drawing.scale
        points[:, 1] = self._drawing.height - points[:, 1]
        return points.round(2)

    # ── lines and text ──────────────────────────────────────────────────────────────────────

    def _draw_lines(self, renderer: Any) -> None:
        scale = self._drawing.scale
        for line in self._drawing.lines:
            ends = [(line.x * scale, line.y * scale), (line.x2 * scale, line.y2 * scale)]
            self._stroke(renderer, ends, tone_index(line.tone), line.width)

    def _draw_texts(self, renderer: Any) -> None:
        drawing, context = self._drawing, renderer.new_gc()
        paper, ink = (np.array(rgb) / 255 for rgb in THEME_COLOURS[drawing.options.theme])
        for text in drawing.texts:
            context.set_foreground(tuple(paper + text.tone * (ink - paper)))
            families = drawing.fonts.families(text.text)
            properties = font_properties(families, text.size, text.bold)
            x, y, shown, anchor = text.x, text.y, text.text, None
            if self._as_text:
                anchor = _Anchor(x, drawing.height - y, text.anchor)
            else:
                shown = drawing.fonts.drawable(text.text)
                length, _, _ = renderer.get_text_width_height_descent(shown, properties, False)
                before = length * ANCHORS[text.anchor]
                x, y = (x, y + before) if text.turn else (x - before, y)
            y = y if renderer.flipy() else drawing.height - y
            renderer.draw_text(context, x, y, shown, properties, text.turn, mtext=anchor)

    def _draw_numbers(self, renderer: Any) -> None:
        context = renderer.new_gc()
        for number in self._drawing.numbers:
            context.set_foreground(tuple(part / 255 for part in number.colour))
            properties = font_properties((BASE,), number.size)
            width, _, _ = renderer.get_text_width_height_descent(number.text, properties, False)
            y = number.y + 0.365 * number.size
            y = y if renderer.flipy() else self._drawing.height - y
            renderer.draw_text(context, number.x - width / 2, y, number.text, properties, 0)


def _boxes(placed: PlacedPanel, where: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Left, top, width and height in pixels of the cells that are True: runs of a row as one.

    Each reaches a little into its neighbours to the right and below, so that viewers that smooth
    edges show no seams.
    """
    padded = np.pad(where, ((0, 0), (1, 1))).astype(np.int8)
    steps = np.diff(padded, axis=1)
    rows, starts = np.nonzero(steps == 1)
    ends = np.nonzero(steps == -1)[1]
    cell, (height, width) = placed.cell, placed.shape
    seam = 0.08 * min(cell.width, cell.height)
    left, top = starts * cell.width, rows * cell.height
    right = np.minimum(ends * cell.width + seam, width)
    bottom = np.minimum((rows + 1) * cell.height + seam, height)
    return np.stack([placed.left + left, placed.top + top, right - left, bottom - top], axis=-1)


class _Anchor:
    """What the SVG renderer asks of a text to align it where it is shown, in whatever font."""

    def __init__(self, x: float, y: float, anchor: str) -> None:
        self._at = (x, y)
        self._align = {"start": "left", "middle": "center", "end": "right"}[anchor]

    def get_transform(self) -> Any:
        return IdentityTransform()

    def get_unitless_position(self) -> tuple[float, float]:
        return self._at

    def get_rotation_mode(self) -> str:
        return "anchor"

    def get_ha(self) -> str:
        return self._align
