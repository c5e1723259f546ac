"""Pictures of attention: an overview of all heads, and one large picture per head.

Rows are queries ("query: looks"), columns are keys ("key: is looked at"), from the top left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, floor
from pathlib import Path

from attnviz.render.drawing import Drawing
from attnviz.render.figure_options import FigureOptions
from attnviz.render.fonts import Fonts
from attnviz.render.head_panels import head_panels
from attnviz.render.headings import Heading
from attnviz.render.layout import PanelLayout
from attnviz.render.palette import Indices
from attnviz.render.panel import Pair, Panel, PanelSet
from attnviz.render.panel_grid import grid, large_cells, overview_cells
from attnviz.render.picture_formats import for_format, write
from attnviz.render.raster import PanelPainter, draw_simple, paste, png, rasterize, with_numbers
from attnviz.result import Attention

LARGEST_PICTURE = 1024
"""Pixels of a long text's panel, along a side, in the picture of one head."""


def draw_overview(
    attention: Attention,
    sequence: int,
    path: Path,
    options: FigureOptions,
    pairs: Sequence[Pair] | None = None,
) -> list[str]:
    """Draw the chosen (index of the layer, head) pairs, all by default, as one picture.

    `path.suffix` selects the format; `layout.grid` says where each panel is placed. Returns notes
    for the person: labels left out, cells pooled, characters that no font has.
    """
    options = for_format(options, path)
    if pairs is None:
        layers = range(len(attention.layer_numbers))
        pairs = [(layer, head) for layer in layers for head in range(attention.n_heads)]
    if attention.is_pooled:
        attention = _with_room(attention, options, pairs)
    panels = head_panels(attention, sequence, pairs, options)
    drawing, notes = overview(panels, options)
    write(drawing, path)
    return notes


def draw_heads(
    attention: Attention,
    sequence: int,
    targets: Sequence[tuple[int, int, Path]],
    options: FigureOptions,
    on_done: Callable[[Path], None] | None = None,
) -> list[str]:
    """Draw one large picture for each (index of the layer, head, path).

    What all heads share is drawn once; a head's PNG is that page with its cells pasted in and its
    title written. `on_done` is called after each file. Returns notes for the person.
    """
    pairs = [(layer, head) for layer, head, _ in targets]
    options = for_format(options, targets[0][2]) if targets else options
    if attention.is_pooled:
        attention = attention.within(LARGEST_PICTURE)
    panels = head_panels(attention, sequence, pairs, options)
    pictures = HeadPictures(panels, options)
    for layer, head, path in targets:
        if path.suffix.lower() == ".png" and not options.is_figure:
            path.write_bytes(pictures.png((layer, head)))
        else:
            write(pictures.drawing((layer, head)), path)
        if on_done:
            on_done(path)
    return pictures.notes


def overview(panels: PanelSet, options: FigureOptions) -> tuple[Drawing, list[str]]:
    """All panels of a set as small multiples, and the notes for the person."""
    drawn = [panels.panel(pair) for pair in panels.pairs]
    blank, notes = blank_drawing(panels, options)
    shape: Pair = drawn[0].values.shape
    places, _, n_columns = grid(panels.pairs, shape[1] / shape[0], options.columns)
    cell = overview_cells(shape, n_columns, options)
    axes = panels.rows, panels.columns
    layout = PanelLayout(blank, axes, shape, cell, places, 8.0, 14, [drawn[0].shown_scale])
    cell = layout.cell
    if cell.pool > 1:
        notes.append(
            f"overview: each cell shows the largest of {cell.pool} × {cell.pool} {panels.values}; "
            "the heads' own pictures show more"
        )
    measured = panels.measured(layout.above_panels(drawn)[2])
    notes += layout.label_notes("overview")
    heading = Heading.chosen(options, panels.title, caption=panels.caption, measured=measured)
    drawing = layout.drawing(drawn, heading, numbered=options.annotate)
    if options.annotate and not drawing.numbers:
        notes.append("overview: the cells are too small for numbers")
    drawing.description = overview_in_words(panels, drawn)
    return drawing, notes


def overview_in_words(panels: PanelSet, drawn: Sequence[Panel]) -> str:
    """What the overview shows, and the strongest cell of the first heads."""
    words = "; ".join(f"{panel.names[0]}: {panel.in_words}" for panel in drawn[:8])
    more = f" And {len(drawn) - 8} more heads." if len(drawn) > 8 else ""
    words = panels.in_words or f"{words}.{more}"
    what, low = "attention weights", "0"
    if panels.two_maps:
        what, low = "differences of attention weights, B - A", f"{-drawn[0].scale.top:.3g}"
    return (
        f"Heatmaps of {what}, one for each of {len(drawn)} heads; rows are queries, columns are "
        f"keys. {panels.caption}. Colours run from {low} to {drawn[0].scale.top:.3g}. "
        f"{words}"
    )


def blank_drawing(panels: PanelSet, options: FigureOptions) -> tuple[Drawing, list[str]]:
    """An empty drawing with fonts for the texts of a set, and the notes so far."""
    fonts = Fonts([*panels.rows.labels, *panels.columns.labels, panels.caption])
    blank = Drawing(options, fonts, two_maps=panels.two_maps)
    return blank, [*fonts.notes, *panels.notes]


class HeadPictures:
    """Pictures of single heads: what they share is laid out, and drawn, once."""

    def __init__(self, panels: PanelSet, options: FigureOptions) -> None:
        self._panels, self._options = panels, options
        self._pages: dict[object, tuple[Drawing, Indices]] = {}
        blank, self.notes = blank_drawing(panels, options)
        first = panels.panel(panels.pairs[0])
        shape: Pair = first.values.shape
        axes, cell = (panels.rows, panels.columns), large_cells(shape, options)
        self._layout = PanelLayout(blank, axes, shape, cell, scales=[first.shown_scale])
        cell = self._layout.cell
        if options.annotate and not self._layout.numbers_fit:
            self.notes.append("heads: the cells are too small for numbers")
        if cell.pool > 1:
            self.notes.append(
                f"heads: each cell shows the largest of {cell.pool} × {cell.pool} weights"
            )
        self.notes += self._layout.label_notes("heads")
        self._painter = PanelPainter(cell, options.dpi)

    def drawing(self, pair: Pair) -> Drawing:
        """The whole picture of one head."""
        panel = self._panels.panel(pair)
        drawing = self._layout.drawing(
            [panel], self._heading(panel), named=False, numbered=self._options.annotate
        )
        drawing.title = panel.title
        drawing.description = self._in_words(panel)
        return drawing

    def png(self, pair: Pair) -> bytes:
        """One head's PNG on the shared page."""
        panel = self._panels.panel(pair)
        key = panel.kinds.present, panel.scale
        if key not in self._pages:
            whole = self._heading(panel)
            blank_lines = replace(
                whole, title=" " * bool(whole.title), subtitle=whole.subtitle and " "
            )
            shared = self._layout.drawing([panel], blank_lines, named=False)
            self._pages[key] = shared, rasterize(shared)
        shared, blank = self._pages[key]
        page = blank.copy()
        placed = replace(shared.panels[0], panel=panel)
        paste(page, placed, self._painter.paint(panel))
        for text in self._heading(panel).texts(self._layout.sizes):
            draw_simple(page, text, shared.scale)
        numbers = []
        if self._options.annotate and self._layout.numbers_fit:
            numbers = self._layout.numbers(placed, shared)
        drawing = replace(
            shared, title=panel.title, description=self._in_words(panel), numbers=numbers
        )
        return png(drawing, with_numbers(page, drawing))

    def _heading(self, panel: Panel) -> Heading:
        caption = self._panels.caption
        return Heading.chosen(self._options, panel.title, panel.summary, footer=caption)

    def _in_words(self, panel: Panel) -> str:
        panels = self._panels
        return (
            f"Heatmap of attention weights, {panel.title}: {panels.size}; rows are queries, "
            f"columns are keys. {panels.caption}. Means over queries: {panel.summary}. "
            f"In this head {panel.in_words}."
        )


def _with_room(pooled: Attention, options: FigureOptions, pairs: Sequence[Pair]) -> Attention:
    """As many pixels as the overview has room for, so that each is the mean of its weights."""
    whole = pooled.within(LARGEST_PICTURE)
    rows, columns = whole.mean.shape[3:]
    n_columns = grid(pairs, columns / rows, options.columns)[2]
    room = (72 * (7.0 + n_columns) / n_columns - 14) * options.dpi / 72
    return whole.coarser(ceil(max(rows, columns) / max(floor(room), 1)))
