"""Panels in a terminal: half-blocks in colour, or a ramp of ever denser characters without.

A short text gets cells of two columns and a label on every row and column. A longer one gets half a
line and one column a cell, and a still longer one is reduced: the legend says how. The legend names
only what occurs. Differences are red where B gives more and blue where it gives less; without
colour a cell has a sign and a digit, `+9` for the largest difference of all, or, where a cell has
one column, one of `= - + #`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from math import ceil

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.style import Style
from rich.text import Text

from attnviz.comparison import Comparison, HeadDifference
from attnviz.errors import printable
from attnviz.render.axes import PositionAxis, TokenAxis
from attnviz.render.comparison_report import head_name
from attnviz.render.console import ascii_only, flow, write
from attnviz.render.difference_panels import difference_panels
from attnviz.render.figure_options import FigureOptions
from attnviz.render.head_panels import head_panels
from attnviz.render.panel import (
    BLIND,
    FORBIDDEN,
    NOT_A_NUMBER,
    ONLY_A,
    ONLY_B,
    PADDING,
    WEIGHT,
    CellKinds,
    Pair,
    Panel,
    PanelSet,
)
from attnviz.render.terminal_colours import CellGlyphs, colours_maps, glyphs_for
from attnviz.render.visible import cells, characters, fit, notation, start, visible
from attnviz.result import Attention, reduced
from attnviz.wording import plural

LARGEST_LABELLED = 24
"""Rows that still get two columns a cell and labels, in colour; longer texts get half-blocks."""

LARGEST_SIDE = 96
"""Cells along one side of a map; a longer text is reduced to this or less."""

LABEL_LINES = 3
"""Lines for the keys' labels, which are written downwards, a character a line."""

GAP = "  "
"""Between heads that stand side by side."""

AXES_IN_WORDS = ("rows: queries", "columns: keys")

NO_TOKENS = "no tokens: there is nothing to draw"

SPELLED = re.compile("<U\\+([0-9A-F]{4,6})>")
"""How `visible` writes a character that cannot be shown."""

KIND_WORDS = {
    PADDING: "padding",
    BLIND: "a row that sees nothing",
    FORBIDDEN: "forbidden",
    NOT_A_NUMBER: "not a number",
}


def print_maps(
    attention: Attention,
    sequence: int,
    console: Console,
    pairs: Sequence[Pair] | None = None,
    vmax: float | None = None,
    cmap: str = FigureOptions.cmap,
) -> None:
    """Print a map for each of `pairs`, (index of the layer, head), of one sequence.

    Rows are queries, columns are keys. `vmax` is the weight of the strongest colour; None takes the
    largest that is shown, so that one scale holds for all heads. `cmap` is a matplotlib name.
    Raises `ConfigError` for a map that matplotlib does not have.
    """
    if pairs is None:
        layers = range(len(attention.layer_numbers))
        pairs = [(layer, head) for layer in layers for head in range(attention.n_heads)]
    if attention.batch_size > 1:
        write(console, Text(f"sequence {sequence}", "bold"))
    options = FigureOptions(cmap, vmax)
    if attention.is_pooled:
        _print_pooled(attention, sequence, console, pairs, options)
        return
    if not attention.query_valid[sequence].any():
        write(console, Text(NO_TOKENS))
        return
    panels = head_panels(attention, sequence, pairs, options)
    notes = map(printable, panels.changes)
    padding = panels.on_padding
    after: tuple[str, ...] = ()
    if padding > 0:
        after = (f"up to {padding:.3g} of a row lies on padding, where no weight is drawn",)
    _print_set(_TerminalMaps.of(panels, console), panels, console, options, notes, after)


def print_difference_map(
    comparison: Comparison,
    head: HeadDifference,
    sequence: int,
    console: Console,
    vmax: float | None = None,
) -> None:
    """Print B - A of one head on one sequence, between its real tokens.

    `vmax` is the difference of the strongest colours; None takes the largest that is shown.
    """
    where = f"sequence {sequence}: " if comparison.a.batch_size > 1 else ""
    name = head_name(comparison, head)
    title = f"{where}{'head ' if not comparison.a.names_layers else ''}{name}: B − A"
    write(console, Text(notation(title, ascii_only(console)), "bold"))
    if not comparison.a.query_valid[sequence].any():
        write(console, Text(NO_TOKENS))
        return
    options = FigureOptions(vmax=vmax)
    panels = difference_panels(comparison, sequence, options, heads=[head])
    maps = _TerminalMaps.of(panels, console)
    kinds = maps.panels[0].kinds.cells
    notes = [
        f"{plural(n, 'cell')} allowed in {which} only"
        for kind, which in ((ONLY_A, "A"), (ONLY_B, "B"))
        if (n := int((kinds == kind).sum()))
    ]
    _print_set(maps, panels, console, options, notes, titled=False)


def _print_pooled(
    pooled: Attention,
    sequence: int,
    console: Console,
    pairs: Sequence[Pair],
    options: FigureOptions,
) -> None:
    """Maps of a long text: a cell is the mean of many weights, on a logarithmic scale."""
    label = len(str(pooled.n_queries)) + 1
    side = max(min(console.width - label - 1, LARGEST_SIDE), 1)
    coarse = pooled.coarser(ceil(max(pooled.mean.shape[3:]) / side))
    panels = head_panels(coarse, sequence, pairs, options)
    half = colours_maps(console) and not ascii_only(console)
    drawn = tuple(panels.panel(pair) for pair in panels.pairs)
    maps = _TerminalMaps(
        drawn, _positions(panels.rows, not half), _positions(panels.columns, not half)
    )
    plan = MapPlan(label, 1, half)
    glyphs = glyphs_for(console, 1, drawn[0].scale, options.cmap)
    rows, keys = coarse.cells
    of = f"each cell is the mean of {rows} × {keys} weights, those that are allowed"
    size = f"{pooled.n_queries:,} × {pooled.n_keys:,} in all"
    write(console, *side_by_side(maps, plan, glyphs, console.width))
    notes = (*AXES_IN_WORDS, "numbers: positions", f"{of}; {size}")
    write(console, *map_legend(drawn, panels.masks, plan, glyphs, console.width, notes))


def _positions(axis: TokenAxis | PositionAxis, named: bool) -> TokenAxis:
    """Rows or columns by the position of their first token; a line of two rows says it itself."""
    names = axis.tokens if named else ("",) * len(axis.tokens)
    return TokenAxis(axis.name, names, axis.positions, axis.valid)


def _print_set(
    maps: _TerminalMaps,
    panels: PanelSet,
    console: Console,
    options: FigureOptions,
    notes: Sequence[str] | Iterator[str] = (),
    after: Sequence[str] = (),
    titled: bool = True,
) -> None:
    """The maps of whole heads as large as they fit, and their legend."""
    plan = plan_for(maps, console)
    if plan.cell == 1:  # room is short: padding has nothing to say
        maps = maps.without_padding()
        plan = plan_for(maps, console)
    drawn = [mean_pooled(panel, plan.pool_queries, plan.pool_keys) for panel in maps.panels]
    top = max(float(np.abs(panel.values).max(initial=0.0)) for panel in drawn)
    scale = replace(drawn[0].scale, top=options.vmax or top or 1.0)
    glyphs = glyphs_for(console, plan.cell, scale, options.cmap)
    shown = replace(maps, panels=tuple(drawn))
    lines = side_by_side(shown, plan, glyphs, console.width, titled)
    write(console, *lines)
    parts = (
        *AXES_IN_WORDS,
        *(notes if not titled else ()),
        *_plan_notes(maps, plan, panels.values),
        *(notes if titled else ()),
        *_scale_notes(drawn, glyphs, panels.values),
        *after,
    )
    write(console, *map_legend(drawn, panels.masks, plan, glyphs, console.width, parts))


# ── what is shown ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class _TerminalMaps:
    """The panels of one sequence, with their rows and columns as the terminal can write them.

    `left_out` counts the padded positions that are not shown.
    """

    panels: tuple[Panel, ...]
    queries: TokenAxis
    keys: TokenAxis
    left_out: int = 0

    @classmethod
    def of(cls, panels: PanelSet, console: Console) -> _TerminalMaps:
        plain = ascii_only(console)
        axes = []
        for axis in (panels.rows, panels.columns):
            tokens = tuple(visible(token, plain) for token in axis.tokens)
            axes.append(TokenAxis(axis.name, tokens, axis.positions, axis.valid, axis.answer))
        return cls(tuple(panels.panel(pair) for pair in panels.pairs), axes[0], axes[1])

    def without_padding(self) -> _TerminalMaps:
        rows, columns = self.queries.real, self.keys.real
        panels = tuple(
            replace(
                panel,
                values=panel.values[rows, columns],
                kinds=CellKinds(panel.kinds.cells[rows, columns]),
            )
            for panel in self.panels
        )
        queries, keys = self.queries.cut(rows), self.keys.cut(columns)
        lost = max(self.queries.length - queries.length, self.keys.length - keys.length)
        return _TerminalMaps(panels, queries, keys, lost)


def mean_pooled(panel: Panel, queries: int, keys: int) -> Panel:
    """Each `queries` × `keys` block as one cell: the mean of its values, else its mark."""
    if queries == keys == 1:
        return panel
    has_value = (panel.kinds.cells == WEIGHT) | (panel.kinds.cells > NOT_A_NUMBER)
    total = reduced(np.add, panel.values.astype(np.float64), queries, keys)
    number = reduced(np.add, has_value.astype(np.int64), queries, keys)
    kinds = np.where(has_value, np.uint8(WEIGHT), panel.kinds.cells)
    kinds = reduced(np.maximum, kinds, queries, keys)
    means = np.divide(total, number, out=np.zeros_like(total), where=kinds == WEIGHT)
    return replace(panel, values=means, kinds=CellKinds(kinds))


# ── how it fits ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class MapPlan:
    """How maps are laid out: columns for a label and for a cell, two rows a line or one.

    A cell stands for `pool_queries` × `pool_keys` values.
    """

    label: int
    cell: int
    half: bool = False
    pool_queries: int = 1
    pool_keys: int = 1

    @property
    def pools(self) -> bool:
        return self.pool_queries * self.pool_keys > 1

    @property
    def rows_a_label(self) -> int:
        """Queries on one line, which one label stands for."""
        return self.pool_queries * (2 if self.half else 1)


def plan_for(maps: _TerminalMaps, console: Console) -> MapPlan:
    """Two columns a cell and a label a row where that fits, else less: see the module."""
    queries, keys = maps.queries.length, maps.keys.length
    half = colours_maps(console) and not ascii_only(console)
    most = max(console.width // 4, 3)  # columns for labels
    widest = max(map(cells, maps.queries.tokens))
    label = min(widest, most)
    if 2 * keys <= console.width - label - 1 and queries <= (
        LARGEST_LABELLED if half else LARGEST_SIDE // 2
    ):
        return MapPlan(label, cell=2)
    label = min(widest + 1 + len(str(queries)), most) if half or queries > LARGEST_SIDE else label
    side = max(min(console.width - label - 1, LARGEST_SIDE), 1)
    return MapPlan(label, 1, half, ceil(queries / side), ceil(keys / side))


# ── lines ────────────────────────────────────────────────────────────────────────────────────


def side_by_side(
    maps: _TerminalMaps, plan: MapPlan, glyphs: CellGlyphs, width: int, titled: bool = True
) -> list[Text]:
    """As many maps side by side as fit, and the next ones below; labels on the left of each row."""
    n_columns = maps.panels[0].values.shape[1]
    titles = [_title(panel, n_columns * plan.cell) if titled else "" for panel in maps.panels]
    body = max(n_columns * plan.cell, *map(cells, titles))
    room = width - plan.label - 1
    across = max((room + len(GAP)) // (body + len(GAP)), 1)
    labels = _labels(maps.queries, plan, glyphs.ascii_only)
    above = _column_labels(maps.keys, plan, n_columns)
    codes = [glyphs.codes(panel) for panel in maps.panels]
    margin = Text(" " * (plan.label + 1))
    lines: list[Text] = []
    for left in range(0, len(codes), across):
        some = range(left, min(left + across, len(codes)))
        if titled:
            lines.append(_beside(margin, [Text(titles[i], "bold") for i in some], body))
        lines += [_beside(margin, [line] * len(some), body) for line in above]
        painted = [map_lines(codes[i], plan, glyphs) for i in some]
        for label, *row in zip(labels, *painted, strict=True):
            lines.append(_beside(label, row, body))
        lines.append(Text())
    return lines


def _title(panel: Panel, room: int) -> str:
    """`head 3`, with its entropy where there is room for that over the map."""
    name, first = panel.terminal_name, panel.measures[0]
    longer = f"{name}  {first}"
    return longer if first.endswith("bits") and cells(longer) <= room else name


def _beside(margin: Text, parts: Sequence[Text], body: int) -> Text:
    line = margin.copy()
    for i, part in enumerate(parts):
        line.append(GAP if i else "").append_text(part)
        line.append(" " * (body - cells(part.plain)))
    return line


def map_lines(codes: npt.NDArray[np.int64], plan: MapPlan, glyphs: CellGlyphs) -> Iterator[Text]:
    """The lines of one map."""
    lines = codes.tolist()
    if plan.half:
        for upper, lower in zip_longest(lines[::2], lines[1::2]):
            pairs = groupby(zip(upper, lower or [None] * len(upper), strict=True))
            yield Text.assemble(*(glyphs.halves(*pair, len(list(run))) for pair, run in pairs))
    else:
        for line in lines:
            runs = groupby(line)
            yield Text.assemble(*(glyphs.cell(code, len(list(run))) for code, run in runs))


def _labels(queries: TokenAxis, plan: MapPlan, plain: bool) -> list[Text]:
    """A label for each line, right-aligned; with a position where a line holds several queries."""
    step = plan.rows_a_label
    labels = []
    digits = len(str(max(int(queries.positions.max()), 0)))
    for at in range(0, queries.length, step):
        token = queries.tokens[at]
        if step > 1:
            number = str(queries.positions[at]) if queries.valid[at] else ""
            room = plan.label - digits - 1
            token = fit(token, room, True, plain) if room > 0 else ""
            token = f"{token} {number:>{digits}}".lstrip()
        label = fit(token, plan.label, True, plain)
        style = "" if queries.valid[at] else "dim"
        if queries.answer is not None and queries.valid[at]:
            style = "bold" if queries.positions[at] >= queries.answer else ""
        labels.append(Text(f"{label} ", style))
    return labels


def _column_labels(keys: TokenAxis, plan: MapPlan, columns: int) -> list[Text]:
    """The keys' names written downwards, or, where cells are narrow, a ruler of their positions."""
    if plan.cell == 1:
        return [Text(_ruler(keys, plan, columns), "dim")]
    downwards = [_downwards(token) for token in keys.tokens]
    return [
        Text().join(
            Text(fit(token[i] if i < len(token) else "", 2), "" if valid else "dim")
            for token, valid in zip(downwards, keys.valid, strict=True)
        )
        for i in range(max(map(len, downwards)))
    ]


def _downwards(token: str) -> list[str]:
    """The first characters, each at most two columns wide; of `<U+202E>` the digits, two by two."""
    spelled = SPELLED.match(token)
    parts = re.findall("..?", spelled[1]) if spelled else characters(token)
    return [start(part, 2) for part in parts[:LABEL_LINES]]


def _ruler(keys: TokenAxis, plan: MapPlan, columns: int) -> str:
    """The position of every tenth column, where it stands."""
    line = ""
    for at in range(0, columns, 10):
        position = int(keys.positions[at * plan.pool_keys])
        number = str(position) if position >= 0 else ""
        if at + len(number) <= columns:
            line = line.ljust(at) + number
    return line


# ── the legend ───────────────────────────────────────────────────────────────────────────────


def map_legend(
    panels: Sequence[Panel],
    masks: Sequence[str],
    plan: MapPlan,
    glyphs: CellGlyphs,
    width: int,
    notes: Sequence[str],
) -> list[Text]:
    """The scale, each mark that occurs, and what was done to make it fit."""
    plain = glyphs.ascii_only
    most = 16 if glyphs.levels % 2 == 0 or glyphs.levels < 19 else 19
    room = (width - 14) // len(glyphs.glyphs[0])
    ramp = glyphs.ramp(max(min(glyphs.levels, most, room), 2))
    pieces = [Text(notation(ramp.plain, plain)) if plain else ramp]
    present: set[int] = set().union(*(panel.kinds.present for panel in panels))
    for kind, words in KIND_WORDS.items():
        if kind not in present:
            continue
        names = [name for name in masks if name != "padding"]
        if kind == FORBIDDEN and names:
            words += f" by {', '.join(map(printable, names))}"
        sample = sample_of(glyphs, glyphs.levels + kind, plan)
        pieces.append(sample.append(notation(f" {words}", plain)))
    pieces += [Text(notation(note, plain)) for note in notes]
    return flow(pieces, width)


def sample_of(glyphs: CellGlyphs, code: int, plan: MapPlan) -> Text:
    """The mark, and where two rows share a line, also how it looks beside a weight."""
    if plan.half and glyphs.pixels[code]:
        return Text.assemble(glyphs.cell(code), ("▄", Style(color=glyphs.pixels[code])))
    return Text.assemble(glyphs.cell(code, 2 // plan.cell))


def _plan_notes(maps: _TerminalMaps, plan: MapPlan, values: str) -> Iterator[str]:
    """What was done to make the maps fit."""
    queries, keys = maps.queries, maps.keys
    if plan.rows_a_label > 1:
        yield f"{plan.rows_a_label} queries a line: the label is the first one's"
    if plan.pools:
        yield (
            f"each cell is the mean of {plan.pool_queries} × {plan.pool_keys} {values}, "
            f"{queries.length} × {keys.length} in all"
        )
    if maps.left_out:
        yield f"{maps.left_out} padded places left out"
    if queries.answer is not None:
        yield f"from query {queries.answer} on, in bold, the model wrote"


def _scale_notes(panels: Sequence[Panel], glyphs: CellGlyphs, values: str) -> Iterator[str]:
    """Which values lie beyond the scale."""
    top = glyphs.scale.top
    if any((np.abs(panel.values) > top).any() for panel in panels):
        yield f"{values} over {top:.4g} look like it"
    if values == "weights" and any((panel.values < 0).any() for panel in panels):
        yield "weights under 0 look like 0"
