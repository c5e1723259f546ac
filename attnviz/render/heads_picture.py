"""Pictures of all heads: a figure of each as layers × heads, and how alike they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attnviz.measures.agreement import clustered
from attnviz.render.fonts import Fonts
from attnviz.render.heads_report import HeadReport
from attnviz.render.labels import prose
from attnviz.render.look import Look
from attnviz.wording import plural

THEMES = {"light": ("white", "#17191f"), "dark": ("#121418", "#e8eaee")}
"""Paper and ink."""

CELL, MOST = 0.32, 14.0
"""Inches of a cell, and of a side at most."""


def draw_matrix(report: HeadReport, measure: str, path: Path, look: Look) -> list[str]:
    """Layers (rows) × heads (columns), cells coloured by a figure; `path.suffix` is the form.

    Returns remarks: which characters no font has.
    """
    values = report.figures[measure]
    layers, heads = values.shape
    wide, high = min(MOST, 2.2 + CELL * heads * 1.25), min(MOST, 1.5 + CELL * layers)
    figure, axes = _figure(max(wide, 4.2), max(high, 2.2), look)
    ink = THEMES[look.theme][1]
    title = f"{prose(measure, 40)}: {report.meaning(measure) or 'of each head'}\n{_of(report)}"
    notices = _title(axes, title, figure, ink)
    _map(figure, axes, values, look)
    axes.set_xlabel("head", color=ink)
    axes.set_ylabel("layer", color=ink)
    _ticks(axes.xaxis, [str(i) for i in range(heads)])
    _ticks(axes.yaxis, [str(number) for number in report.layer_numbers])
    if max(wide, high) < MOST:  # cells have their full size: numbers fit into them
        _number_cells(axes, values)
    _write(figure, path, look)
    return notices


def draw_agreement(report: HeadReport, path: Path, look: Look) -> list[str]:
    """Jensen–Shannon divergences of all pairs, like heads side by side (Clark et al. 2019, fig. 6).

    The tree above is SciPy's average linkage of √JS.
    """
    from scipy.cluster.hierarchy import dendrogram

    assert report.divergences is not None
    order, tree = clustered(report.divergences)
    values = report.divergences[np.ix_(order, order)]
    n = len(order)
    side = min(MOST, max(4.5, 1.8 + n * 0.13))
    figure, axes = _figure(side, side, look)
    ink = THEMES[look.theme][1]
    _map(figure, axes, values, look, top=1.0)
    names = [report.name((i // report.n_heads, i % report.n_heads)) for i in order]
    size = max(3.0, min(8.0, 72 * side * 0.7 / n))
    _ticks(axes.yaxis, names, size, every=1 if n <= 300 else None)
    _ticks(axes.xaxis, names, size, every=1 if n <= 300 else None)
    axes.tick_params(axis="x", rotation=90)
    title = (
        "Jensen–Shannon divergence of heads, in bits: 0 both look at the same, 1 at nothing alike"
        f"\n{_of(report)}"
    )
    if len(tree):
        crown = axes.inset_axes((0, 1.005, 1, 0.12))
        crown.set_axis_off()
        drawn = dendrogram(tree, no_plot=True)
        for x, y in zip(drawn["icoord"], drawn["dcoord"], strict=True):
            crown.plot(np.array(x) / 10 - 0.5, y, color=ink, linewidth=0.6)
        crown.set_xlim(-0.5, n - 0.5)
        crown.set_ylim(0, None)
    else:
        crown = axes
    notices = _title(crown, title, figure, ink)
    _write(figure, path, look)
    return notices


def _of(report: HeadReport) -> str:
    """Whose heads they are, and over how much they were measured."""
    return f"{prose(report.source, 40)}; {plural(report.facts.get('documents', 0), 'document')}"


def _figure(width: float, height: float, look: Look) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    paper, ink = THEMES[look.theme]
    figure = Figure((width, height), layout="constrained", facecolor=paper)
    axes = figure.add_subplot()
    axes.set_facecolor(paper)
    axes.tick_params(colors=ink, length=0, labelsize=8)
    for spine in axes.spines.values():
        spine.set_color(ink)
        spine.set_linewidth(0.6)
    return figure, axes


def _map(figure: Any, axes: Any, values: Any, look: Look, top: float | None = None) -> None:
    """The cells with their bar; a figure that is not there is left as paper, and crossed."""
    known = values[np.isfinite(values)]
    low = min(0.0, float(known.min())) if len(known) else 0.0
    high = float(known.max()) if len(known) else 1.0
    if top is not None:
        high = max(top, high)
    if look.vmax is not None:
        high = look.vmax
    shown = np.ma.masked_invalid(values)
    extend = "max" if len(known) and known.max() > high else "neither"
    image = axes.imshow(
        shown, cmap=look.cmap, vmin=low, vmax=high, aspect="auto", interpolation="nearest"
    )
    ink = THEMES[look.theme][1]
    for row, column in np.argwhere(~np.isfinite(values)):
        axes.text(column, row, "×", color=ink, ha="center", va="center", fontsize=8)
    bar = figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, extend=extend)
    bar.ax.tick_params(colors=ink, labelsize=8)
    bar.outline.set_edgecolor(ink)
    bar.outline.set_linewidth(0.6)


def _ticks(axis: Any, names: list[str], size: float = 8, every: int | None = None) -> None:
    step = every or max(1, -(-len(names) // 40))
    axis.set_ticks(range(0, len(names), step), names[::step], fontsize=size)


def _number_cells(axes: Any, values: Any) -> None:
    image = axes.images[0]
    known = values[np.isfinite(values)]
    whole = bool((known == known.round()).all())  # offsets and places
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5
            text = f"{value:.0f}" if whole or abs(value) >= 10 else f"{value:.2f}"
            axes.text(
                column, row, text.replace("0.", ".", 1) if 0 < abs(value) < 1 else text,
                ha="center", va="center", fontsize=7, color="white" if dark else "black",
            )  # fmt: skip


def _title(axes: Any, title: str, figure: Any, ink: str) -> list[str]:
    """A title, folded to the width of the figure. `$` in a name begins no formula."""
    from textwrap import fill

    fonts = Fonts([title])
    width = max(24, int(figure.get_figwidth() * 11))
    lines = [fill(fonts.drawable(line), width) for line in title.split("\n")]
    families = list(fonts.families(title))
    axes.set_title(
        "\n".join(lines), color=ink, fontsize=10, loc="left", family=families, parse_math=False
    )
    return fonts.notices


def _write(figure: Any, path: Path, look: Look) -> None:
    """The same report gives the same bytes."""
    suffix = path.suffix.lower()
    if suffix == ".svg":
        from matplotlib import rc_context

        with rc_context({"svg.hashsalt": "attnviz", "svg.fonttype": "path"}):
            figure.savefig(path, metadata={"Date": None})
        return
    nothing = {".png": {"Software": None}, ".pdf": {"CreationDate": None}}[suffix]
    figure.savefig(path, dpi=look.dpi, metadata=nothing)
