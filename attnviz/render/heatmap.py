"""Heatmaps: an overview of all heads as small multiples, and one large picture a head.

Rows are queries ("query: looks"), columns are keys ("key: is looked at"), from the top left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from attnviz.render.furniture import Pair, Subject
from attnviz.render.head_page import HeadPages
from attnviz.render.look import Look
from attnviz.render.overview import overview_sheet
from attnviz.render.raster import rasterize, stamped, write_png
from attnviz.render.sheet import Sheet, palette
from attnviz.result import Attention


def draw_overview(
    result: Attention,
    sequence: int,
    path: Path,
    look: Look,
    heads: Sequence[Pair] | None = None,
) -> list[str]:
    """Draw the chosen (layer, head) pairs, all by default, as one picture.

    `path.suffix` picks its form: .png, .svg or .pdf; `overview.grid` says where each map stands.
    Returns remarks for the person: labels left out, cells pooled, characters that no font has.
    """
    if heads is None:
        heads = [(la, h) for la in range(result.n_layers) for h in range(result.n_heads)]
    subject = Subject(result, sequence, look, list(heads), longest_label=14)
    write(overview_sheet(subject), path)
    return subject.notices


def draw_heads(
    result: Attention,
    sequence: int,
    targets: Sequence[tuple[int, int, Path]],
    look: Look,
    on_done: Callable[[Path], None] | None = None,
) -> list[str]:
    """Draw one large picture for each (layer, head, path); `path.suffix` picks its form.

    What all heads share is drawn once; a head's PNG is that page with its cells pasted in and its
    title written. `on_done` is called after each file. Returns remarks for the person.
    """
    pairs = [(layer, number) for layer, number, _ in targets]
    pages = HeadPages(Subject(result, sequence, look, pairs, longest_label=24))
    for layer, number, path in targets:
        if path.suffix.lower() == ".png":
            pages.write_png(layer, number, path)
        else:
            write(pages.sheet(layer, number), path)
        if on_done:
            on_done(path)
    return pages.subject.notices


def write(sheet: Sheet, path: Path) -> None:
    """Write a sheet in the form that the suffix names. The same sheet gives the same bytes."""
    suffix = path.suffix.lower()
    if suffix == ".png":
        colours = palette(sheet.look)
        page = stamped(rasterize(sheet), colours, sheet)
        write_png(page, colours, sheet.title, sheet.description, path, sheet.look.dpi)
        return
    from attnviz.render import vector

    path.write_bytes({".svg": vector.svg, ".pdf": vector.pdf}[suffix](sheet))
