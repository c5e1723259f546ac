"""One measure of all heads in a terminal: layers down, heads across."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from attnviz.errors import printable
from attnviz.render.console import flow, write
from attnviz.render.figure_options import FigureOptions
from attnviz.render.head_matrices import matrix_panel
from attnviz.render.heads_report import HeadReport, report_text
from attnviz.render.terminal_colours import glyphs_for
from attnviz.render.terminal_maps import MapPlan, map_legend, map_lines
from attnviz.render.text_grid import Paper


def print_matrix(
    report: HeadReport, measure: str, console: Console, options: FigureOptions | None = None
) -> None:
    """Layers × heads with the colours of the pictures, and a legend of what occurs.

    A matrix that is wider than the console continues below.
    """
    options = options or FigureOptions()
    panel = matrix_panel(report.figures[measure], options.vmax, measure)
    title = f"{printable(measure, 40)}: {report.meaning(measure)}"
    paper = Paper.of(console)
    write(console, *flow([report_text(title, paper, "bold")], paper.width, "  "))
    digits = max(len(str(number)) for number in report.layer_numbers)
    room = max(1, console.width - digits - 1)
    plan = MapPlan(digits, cell=2 if report.n_heads * 2 <= room else 1)
    glyphs = glyphs_for(console, plan.cell, panel.scale, options.cmap)
    codes = glyphs.codes(panel)
    tall, abreast = len(str(report.n_heads - 1)), max(1, room // plan.cell)
    for start in range(0, report.n_heads, abreast):
        heads = range(start, min(start + abreast, report.n_heads))
        for i in range(tall):  # the numbers stand upright, a digit under the other
            marks = "".join(f"{head:>{tall}}"[i].ljust(plan.cell) for head in heads)
            write(console, Text(" " * (digits + 1) + marks, "dim"))
        lines = map_lines(codes[:, heads.start : heads.stop], plan, glyphs)
        for number, line in zip(report.layer_numbers, lines, strict=True):
            write(console, Text.assemble((f"{number:>{digits}} ", "dim"), line))
    notes = ("rows: layers", "columns: heads")
    write(console, *map_legend([panel], (), plan, glyphs, console.width, notes))
