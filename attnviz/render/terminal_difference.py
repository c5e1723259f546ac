"""The difference of two heads in a terminal: red where B gives more, blue where it gives less.

Without colour a cell has a sign and a digit, `+9` for the largest difference of all, or, where a
cell has one column, one of `= - + #`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.console import Console
from rich.style import Style
from rich.text import Text

from attnviz.comparison import Comparison, HeadDifference
from attnviz.render import cells
from attnviz.render.comparison_report import head_name
from attnviz.render.console import ascii_only, flow, has_color, write
from attnviz.render.difference import ONLY_A, ONLY_B, DifferentHeads, cropped, diverging
from attnviz.render.terminal import (
    ASCII_MARKS,
    BLIND,
    COLORS,
    FORBIDDEN,
    MARKS,
    NOT_A_NUMBER,
    PADDING,
    SIXTEEN_TONES,
    WEIGHT,
    WORDS,
    Ink,
    Map,
    Plan,
    Shown,
    colors_of,
    plan_for,
    sample_of,
    side_by_side,
    sides_of,
)
from attnviz.render.visible import notation, signed
from attnviz.wording import plural

RAMPS = {
    1: ("=", "-", " ", "+", "#"),
    2: (*(f"-{i}" for i in range(9, 0, -1)), "  ", *(f"+{i}" for i in range(1, 10))),
}
"""From the largest loss to the largest gain, in equal steps; by columns a cell."""

SIXTEEN = ("bright_cyan", "blue", "black", "red", "bright_magenta")
"""The same with sixteen colours."""


def difference_map(
    comparison: Comparison,
    head: HeadDifference,
    sequence: int,
    console: Console,
    vmax: float | None = None,
) -> None:
    """Print B - A of one head on one sequence, between its real tokens.

    `vmax` is the difference of the strongest colours; None takes the largest that is shown.
    """
    plain = ascii_only(console)
    a, b = cropped(comparison.a, sequence), cropped(comparison.b, sequence)
    name = head_name(comparison, head)
    where = f"sequence {sequence}: " if comparison.a.batch_size > 1 else ""
    title = f"{where}{'head ' if not comparison.a.names_layers else ''}{name}: B − A"
    write(console, Text(notation(title, plain), "bold"))
    if not a.query_valid[0].any():
        write(console, Text("no tokens: there is nothing to draw"))
        return
    drawn = DifferentHeads(a, b, {(head.layer, head.head): head}).head(head.layer, head.head)
    whole = Map(head.layer, head.head, _kinds(drawn), drawn.weights.astype(np.float64))
    shown = Shown((whole,), *sides_of(a, 0, plain))
    plan = plan_for(shown, console)
    one = whole.pooled(plan.pool_queries, plan.pool_keys)
    ink = _ink(console, vmax or float(np.abs(one.weights).max()) or 1.0, plan.cell)
    write(console, *side_by_side(shown, [one], [""], plan, ink, console.width)[1:])
    write(console, *_legend(drawn, shown, one, plan, ink, console.width))


def _kinds(drawn: cells.Head) -> npt.NDArray[np.int64]:
    """What each cell is, in the terminal's numbers; the difference is drawn where masks differ."""
    number = {
        cells.PADDING: PADDING,
        cells.FORBIDDEN: FORBIDDEN,
        cells.NOT_A_NUMBER: NOT_A_NUMBER,
        **dict.fromkeys((cells.WEIGHT, ONLY_A, ONLY_B), WEIGHT),
    }
    kinds = np.array([number[kind] for kind in sorted(number)])[drawn.verdicts.kinds]
    kinds[drawn.verdicts.blind] = BLIND
    return kinds


@dataclass(frozen=True)
class SignedInk(Ink):
    """Ink whose level in the middle is no difference."""

    def codes(self, head: Map) -> npt.NDArray[np.int64]:
        half = self.levels // 2
        with np.errstate(over="ignore"):
            steps = np.clip(np.rint(head.weights / self.top * half), -half, half)
        return np.where(
            head.kinds == WEIGHT, half + steps.astype(np.int64), self.levels + head.kinds
        )


def _ink(console: Console, top: float, cell: int) -> SignedInk:
    plain = ascii_only(console)
    marks = [mark * cell for mark in (ASCII_MARKS if plain else MARKS)]
    if not has_color(console):
        glyphs = (*RAMPS[cell], *marks)
        none = (Style(),) * len(glyphs), (None,) * len(glyphs)
        return SignedInk(plain, top, len(RAMPS[cell]), glyphs, *none)
    tones: list[Color | None]
    if console.color_system in ("truecolor", "256"):
        table = np.round(diverging("dark", COLORS - 1) * 255)
        colors, tones = colors_of(table, few=console.color_system == "256")
    else:
        colors = [Color.parse(name) for name in SIXTEEN]
        tones = [Color.parse(name) if name else None for name in SIXTEEN_TONES]
    styles = [Style(bgcolor=color) for color in colors]
    styles += [Style(color=tone or Color.parse("bright_black")) for tone in tones]
    glyphs = (*(" " * cell for _ in colors), *marks)
    return SignedInk(plain, top, len(colors), glyphs, tuple(styles), (*colors, *tones))


def _legend(
    drawn: cells.Head, shown: Shown, one: Map, plan: Plan, ink: SignedInk, width: int
) -> list[Text]:
    """The scale, each mark that occurs, and what was done to make it fit."""
    steps = max(min(ink.levels, 19, (width - 20) // plan.cell), 3)
    codes = [round(i * (ink.levels - 1) / (steps - 1)) for i in range(steps)]
    left, right = ("", "") if ink.colored else ("[", "]")
    ends = [notation(signed(end), ink.ascii_only) for end in (-ink.top, ink.top)]
    pieces = [Text.assemble(f"{ends[0]} {left}", *map(ink.cell, codes), f"{right} {ends[1]}")]
    for kind in sorted({int(kind) for kind in np.unique(one.kinds)} - {WEIGHT}):
        pieces.append(sample_of(ink, ink.levels + kind, plan).append(f" {WORDS[kind]}"))
    remarks = ["rows: queries", "columns: keys"]
    for kind, which in ((ONLY_A, "A"), (ONLY_B, "B")):
        if n := int((drawn.verdicts.kinds == kind).sum()):
            remarks.append(f"{plural(n, 'cell')} allowed in {which} only")
    if plan.rows_a_label > 1:
        remarks.append(f"{plan.rows_a_label} queries a line: the label is the first one's")
    if plan.pools:
        remarks.append(
            f"each cell is the mean of {plan.pool_queries} × {plan.pool_keys} differences, "
            f"{len(shown.queries)} × {len(shown.keys)} in all"
        )
    if (np.abs(one.weights) > ink.top).any():
        remarks.append(f"differences over {ink.top:.4g} look like it")
    pieces += [Text(notation(remark, ink.ascii_only)) for remark in remarks]
    return flow(pieces, width)
