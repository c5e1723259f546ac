"""Heatmaps in a terminal: half-blocks in colour, or a ramp of ever denser characters without.

A short text gets cells of two columns and a label on every row and column. A longer one gets half a
line and one column a cell, and a still longer one is reduced: the legend says how. The legend names
only what occurs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, zip_longest
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.color import Color, ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from attnviz.errors import printable
from attnviz.measures import measure
from attnviz.render.console import ascii_only, flow, has_color, write
from attnviz.render.look import Look
from attnviz.render.visible import cells, characters, fit, notation, start, visible
from attnviz.result import Attention

LARGEST_LABELLED = 24
"""Rows that still get two columns a cell and labels, in colour; longer texts get half-blocks."""

LARGEST_SIDE = 96
"""Cells along one side of a map; a longer text is reduced to this or less."""

LABEL_LINES = 3
"""Lines for the keys' labels, which are written downwards, a character a line."""

GAP = "  "
"""Between heads that stand side by side."""

SPELLED = re.compile("<U\\+([0-9A-F]{4,6})>")
"""How `visible` writes a character that cannot be shown."""

PADDING, BLIND, FORBIDDEN, WEIGHT, NOT_A_NUMBER = range(5)
"""What a cell is. Where cells are pooled, the largest of these wins."""

WORDS = ("padding", "a row that sees nothing", "forbidden", "", "not a number")
"""For each kind that is no weight, what the legend calls it."""

MARKS, ASCII_MARKS = "·─╱ ×", "_-/ ?"
"""For each kind that is no weight, a character that no weight has."""

RAMPS = {
    1: (" ", "░", "▒", "▓", "█"),
    2: ("  ", "░ ", "░░", "▒░", "▒▒", "▓▒", "▓▓", "█▓", "██"),
}
ASCII_RAMP = " .:=+*#%@"
"""From the smallest weights to the largest, in equal steps of the scale; by columns a cell."""

COLORS = 256
"""Steps of a colour map."""

# Matplotlib's viridis (Smith, van der Walt and Firing, 2015) at 33 even places; in between, linear,
# it is within 2 of 255 of the original.
_VIRIDIS = (
    "440154 470d60 48186a 482374 472d7b 453781 424086 3e4989 3b528b 375b8d 33638d "
    "2f6b8e 2c728e 297a8e 26828e 23898e 21918c 1f978b 1f9f88 21a685 27ad81 31b57b "
    "3dbc74 4cc26c 5cc863 6ece58 81d34d 95d840 aadc32 c0df25 d5e21a eae51a fde725"
)

SIXTEEN = ("blue", "cyan", "green", "bright_green", "bright_yellow")
"""Viridis with sixteen colours: from dark to light, and from blue to yellow."""

SIXTEEN_TONES = ("", "red", "bright_black", "", "bright_magenta")
"""For each kind that is no weight, its colour; padding has none."""

TONES: tuple[tuple[tuple[int, int, int], ...], ...] = (
    (),
    ((150, 75, 40), (60, 100, 160), (40, 130, 60)),
    ((112, 112, 112), (120, 60, 60), (60, 60, 130)),
    (),
    ((255, 0, 90), (0, 230, 255), (255, 255, 255)),
)
"""The same by preference: the first that is far from every colour of the map is taken."""

Array = npt.NDArray[np.float64]
Run = tuple[str, Style]
Kinds = npt.NDArray[np.int64]


def heatmaps(
    result: Attention,
    sequence: int,
    console: Console,
    heads: Sequence[tuple[int, int]] | None = None,
    vmax: float | None = None,
    cmap: str = Look.cmap,
) -> None:
    """Print a heatmap for each of `heads`, (layer, head) pairs from 0, of one sequence.

    Rows are queries, columns are keys. `vmax` is the weight of the strongest colour; None takes the
    largest that is shown, so that one scale holds for all heads. `cmap` is a matplotlib name; with
    sixteen colours, or none, there is one fixed scale of tones. Raises `ConfigError` for a map that
    matplotlib does not have.
    """
    if heads is None:
        heads = [(i, j) for i in range(result.n_layers) for j in range(result.n_heads)]
    if result.batch_size > 1:
        write(console, Text(f"sequence {sequence}", "bold"))
    if not result.query_valid[sequence].any():
        write(console, Text("no tokens: there is nothing to draw"))
        return
    shown = _shown(result, sequence, heads, ascii_only(console))
    plan = plan_for(shown, console)
    if plan.cell == 1:  # room is short: padding has nothing to say
        shown = shown.without_padding()
        plan = plan_for(shown, console)
    maps = [head.pooled(plan.pool_queries, plan.pool_keys) for head in shown.maps]
    largest = max(float(head.weights.max(initial=0.0)) for head in maps)
    ink = ink_for(console, cmap, (largest or 1.0) if vmax is None else vmax, plan.cell)
    titles = _titles(result, sequence, heads, plan, len(maps[0].kinds[0]))
    write(console, *side_by_side(shown, maps, titles, plan, ink, console.width))
    write(console, *_legend(result, sequence, shown, maps, plan, ink, console.width))


# ── what is shown ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Map:
    """One head's cells: what each is, and its weight where it is one (else 0); both `[Tq Tk]`."""

    layer: int
    head: int
    kinds: Kinds
    weights: Array

    def pooled(self, queries: int, keys: int) -> Map:
        """Each `queries` × `keys` block as one cell: the mean of its weights, else its mark.

        Blocks at the far edges may be smaller.
        """
        if queries == keys == 1:
            return self
        is_weight = self.kinds == WEIGHT
        total = _reduced(np.add, self.weights, queries, keys)
        count = _reduced(np.add, is_weight.astype(np.int64), queries, keys)
        kinds = _reduced(np.maximum, self.kinds, queries, keys)
        means = np.divide(total, count, out=np.zeros_like(total), where=kinds == WEIGHT)
        return replace(self, kinds=kinds, weights=means)


def _reduced(ufunc: np.ufunc, array: npt.NDArray[Any], queries: int, keys: int) -> Any:
    rows = ufunc.reduceat(array, np.arange(0, array.shape[0], queries), axis=0)
    return ufunc.reduceat(rows, np.arange(0, array.shape[1], keys), axis=1)


@dataclass(frozen=True, eq=False)
class Side:
    """Queries or keys: what to call each, its position in its sequence, and whether it is real.

    A model wrote those from the position `answer` on, if it wrote any.
    """

    tokens: tuple[str, ...]
    positions: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]
    answer: int | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, kept: slice) -> Side:
        return replace(
            self,
            tokens=self.tokens[kept],
            positions=self.positions[kept],
            valid=self.valid[kept],
        )

    @property
    def real(self) -> slice:
        """From the first real token to the last; one place of padding where there is none."""
        at = np.flatnonzero(self.valid)
        return slice(int(at[0]), int(at[-1]) + 1) if len(at) else slice(0, 1)


@dataclass(frozen=True, eq=False)
class Shown:
    """The maps of one sequence, with their rows and columns.

    `left_out` counts the padded places that are not shown.
    """

    maps: tuple[Map, ...]
    queries: Side
    keys: Side
    left_out: int = 0

    def without_padding(self) -> Shown:
        rows, columns = self.queries.real, self.keys.real
        maps = tuple(
            replace(m, kinds=m.kinds[rows, columns], weights=m.weights[rows, columns])
            for m in self.maps
        )
        queries, keys = self.queries.cut(rows), self.keys.cut(columns)
        lost = max(len(self.queries) - len(queries), len(self.keys) - len(keys))
        return Shown(maps, queries, keys, lost)


def _shown(
    result: Attention, sequence: int, heads: Sequence[tuple[int, int]], plain: bool
) -> Shown:
    maps = tuple(_map(result, sequence, *at) for at in heads)
    return Shown(maps, *sides_of(result, sequence, plain))


def sides_of(result: Attention, sequence: int, plain: bool) -> tuple[Side, Side]:
    """The queries and the keys of one sequence; in ASCII where it is `plain`."""
    queries, keys = (
        Side(tuple(visible(token, plain) for token in tokens[sequence]), at[sequence], valid)
        for tokens, at, valid in (
            (result.query_tokens, result.query_positions, result.query_valid[sequence]),
            (result.key_tokens, result.key_positions, result.key_valid[sequence]),
        )
    )
    if result.n_prompt:
        queries = replace(queries, answer=result.n_prompt[sequence])
    return queries, keys


def _map(result: Attention, sequence: int, layer: int, head: int) -> Map:
    """Padding is padding whatever the array holds there."""
    weights = result.attention[layer, sequence, head].astype(np.float64)
    allowed = result.allowed[layer, sequence]
    allowed = allowed[head if len(allowed) > 1 else 0]
    kinds = np.where(allowed, WEIGHT, FORBIDDEN)
    kinds[allowed & ~np.isfinite(weights)] = NOT_A_NUMBER
    kinds[:, ~result.key_valid[sequence]] = PADDING
    kinds[~allowed.any(-1)] = BLIND
    kinds[~result.query_valid[sequence]] = PADDING
    return Map(layer, head, kinds, np.where(kinds == WEIGHT, weights, 0.0))


# ── how it fits ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Plan:
    """How maps are laid out: columns for a label and for a cell, two rows a line or one.

    A cell stands for `pool_queries` × `pool_keys` weights.
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


def plan_for(shown: Shown, console: Console) -> Plan:
    """Two columns a cell and a label a row where that fits, else less: see the module."""
    queries, keys = len(shown.queries), len(shown.keys)
    half = has_color(console) and not ascii_only(console)
    most = max(console.width // 4, 3)  # columns for labels
    widest = max(map(cells, shown.queries.tokens))
    label = min(widest, most)
    if 2 * keys <= console.width - label - 1 and queries <= (
        LARGEST_LABELLED if half else LARGEST_SIDE // 2
    ):
        return Plan(label, cell=2)
    label = min(widest + 1 + len(str(queries)), most) if half or queries > LARGEST_SIDE else label
    side = max(min(console.width - label - 1, LARGEST_SIDE), 1)
    return Plan(label, 1, half, ceil(queries / side), ceil(keys / side))


def _titles(
    result: Attention,
    sequence: int,
    heads: Sequence[tuple[int, int]],
    plan: Plan,
    columns: int,
) -> list[str]:
    """`head 3`, with its entropy where there is room for that over the map."""
    with np.errstate(invalid="ignore"):  # a foreign array may hold infinity
        entropy = measure(result, sequence, heads).result()["entropy"]
    titles = []
    for layer, head in heads:
        name = f"head {head}"
        if result.names_layers:
            name = f"L{result.layer_numbers[layer]} H{head}"
        bits = f"{name}  {entropy[layer, head]:.2f} bits"
        titles.append(bits if cells(bits) <= columns * plan.cell and "nan" not in bits else name)
    return titles


# ── how it looks ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Ink:
    """What a cell is printed with. A code is the level of a weight, or `levels` + the cell's kind.

    `glyphs` and `styles` have an entry for each code, for a cell that has its own line; `pixels`
    has its colour for half a line, None where nothing is printed.
    """

    ascii_only: bool
    top: float
    levels: int
    glyphs: tuple[str, ...]
    styles: tuple[Style, ...]
    pixels: tuple[Color | None, ...]

    @property
    def colored(self) -> bool:
        return bool(self.styles[0])

    def codes(self, head: Map) -> npt.NDArray[np.int64]:
        """The code of each cell. The scale 0 … top is cut into equal steps."""
        with np.errstate(over="ignore"):
            steps = np.clip(head.weights / self.top * self.levels, 0, self.levels - 1)
        return np.where(head.kinds == WEIGHT, steps.astype(np.int64), self.levels + head.kinds)

    def cell(self, code: int, times: int = 1) -> Run:
        """The cell, `times` side by side, and its style."""
        return self.glyphs[code] * times, self.styles[code]

    def halves(self, upper: int, lower: int | None, times: int = 1) -> Run:
        """Two cells, one over the other; there may be no lower one. Twice a mark is the mark."""
        if lower in (upper, None) and upper >= self.levels:
            return self.cell(upper, times)
        above, below = self.pixels[upper], None if lower is None else self.pixels[lower]
        if above is None:
            return ("▄" if below else " ") * times, _style(below, None)
        return "▀" * times, _style(above, below)


@lru_cache(maxsize=2**16)
def _style(color: Color | None, behind: Color | None) -> Style:
    """A style is slow to make and remembers its escape codes, so each is made once."""
    return Style(color=color, bgcolor=behind)


def ink_for(console: Console, cmap: str, top: float, cell: int) -> Ink:
    plain = ascii_only(console)
    marks = [mark * cell for mark in (ASCII_MARKS if plain else MARKS)]
    if not has_color(console):
        ramp = [c * cell for c in ASCII_RAMP] if plain else RAMPS[cell]
        glyphs = (*ramp, *marks)
        return Ink(plain, top, len(ramp), glyphs, (Style(),) * len(glyphs), (None,) * len(glyphs))
    if console.color_system in ("truecolor", "256"):
        colors, tones = colors_of(color_table(cmap), few=console.color_system == "256")
    else:
        colors = [Color.parse(name) for name in SIXTEEN]
        tones = [Color.parse(name) if name else None for name in SIXTEEN_TONES]
    styles = [Style(bgcolor=color) for color in colors]
    styles += [Style(color=tone or Color.parse("bright_black")) for tone in tones]
    glyphs = (*(" " * cell for _ in colors), *marks)
    return Ink(plain, top, len(colors), glyphs, tuple(styles), (*colors, *tones))


def colors_of(table: npt.NDArray[np.float64], few: bool) -> tuple[list[Color], list[Color | None]]:
    """The map's colours from 0 to the top, and for each mark one that is far from all of these.

    They are colours that the console has: rich would find the nearest by itself, but the escape
    codes of the first console are remembered for all others that are given the same colour.
    """
    tones: list[Color | None] = []
    for choices in TONES:
        apart = [float(np.sqrt(((table - tone) ** 2).sum(-1)).min()) for tone in choices]
        best = next((i for i, d in enumerate(apart) if d > 50), int(np.argmax(apart or [0.0])))
        tones.append(Color.from_rgb(*choices[best]) if choices else None)
    if few:
        near = [tone and tone.downgrade(ColorSystem.EIGHT_BIT) for tone in tones]
        return [Color.from_ansi(int(number)) for number in nearest_of_256(table)], near
    return [Color.from_rgb(*color) for color in table.tolist()], tones


def nearest_of_256(table: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The number of the nearest colour in the 6 × 6 × 6 cube of a terminal with 256 colours.

    Where the map has no greys, no grey is taken: it would pass for a cell that is forbidden.
    """
    steps = np.array([0, 95, 135, 175, 215, 255])
    cube = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1).reshape(-1, 3)
    distance = ((table[:, None] - cube) ** 2).sum(-1)
    if np.ptp(table, axis=-1).min() > 60:
        distance[:, np.ptp(cube, axis=-1) < 100] = np.inf
    return np.asarray(16 + distance.argmin(-1))


def color_table(cmap: str) -> npt.NDArray[np.float64]:
    """`[256 3]`: red, green and blue, 0 … 255, of a matplotlib map; viridis without matplotlib."""
    if cmap == "viridis":
        anchors = np.array([list(bytes.fromhex(color)) for color in _VIRIDIS.split()], dtype=float)
        at = np.linspace(0, len(anchors) - 1, COLORS)
        red, green, blue = (np.interp(at, np.arange(len(anchors)), c) for c in anchors.T)
        return np.round(np.stack([red, green, blue], axis=-1))
    Look(cmap)  # refuses an unknown name
    from matplotlib import colormaps

    return np.round(colormaps[cmap](np.linspace(0, 1, COLORS))[:, :3] * 255.0)


# ── lines ────────────────────────────────────────────────────────────────────────────────────


def side_by_side(
    shown: Shown,
    maps: Sequence[Map],
    titles: Sequence[str],
    plan: Plan,
    ink: Ink,
    width: int,
) -> list[Text]:
    """As many maps side by side as fit, and the next ones below; labels on the left of each row."""
    body = max(len(maps[0].kinds[0]) * plan.cell, *map(cells, titles))
    room = width - plan.label - 1
    across = max((room + len(GAP)) // (body + len(GAP)), 1)
    labels = _labels(shown.queries, plan, ink.ascii_only)
    above = _column_labels(shown.keys, plan, len(maps[0].kinds[0]))
    codes = [ink.codes(head) for head in maps]
    margin = Text(" " * (plan.label + 1))
    lines: list[Text] = []
    for left in range(0, len(maps), across):
        some = range(left, min(left + across, len(maps)))
        lines.append(_beside(margin, [Text(titles[i], "bold") for i in some], body))
        lines += [_beside(margin, [line] * len(some), body) for line in above]
        painted = [_rows(codes[i], plan, ink) for i in some]
        for label, *row in zip(labels, *painted, strict=True):
            lines.append(_beside(label, row, body))
        lines.append(Text())
    return lines


def _beside(margin: Text, parts: Sequence[Text], body: int) -> Text:
    line = margin.copy()
    for i, part in enumerate(parts):
        line.append(GAP if i else "").append_text(part)
        line.append(" " * (body - cells(part.plain)))
    return line


def _rows(codes: npt.NDArray[np.int64], plan: Plan, ink: Ink) -> Iterator[Text]:
    """The lines of one map."""
    lines = codes.tolist()
    if plan.half:
        for upper, lower in zip_longest(lines[::2], lines[1::2]):
            pairs = groupby(zip(upper, lower or [None] * len(upper), strict=True))
            yield Text.assemble(*(ink.halves(*pair, len(list(run))) for pair, run in pairs))
    else:
        for line in lines:
            runs = groupby(line)
            yield Text.assemble(*(ink.cell(code, len(list(run))) for code, run in runs))


def _labels(queries: Side, plan: Plan, plain: bool) -> list[Text]:
    """A label for each line, right-aligned; with a position where a line holds several queries."""
    step = plan.rows_a_label
    labels = []
    digits = len(str(max(int(queries.positions.max()), 0)))
    for at in range(0, len(queries), step):
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


def _column_labels(keys: Side, plan: Plan, columns: int) -> list[Text]:
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


def _ruler(keys: Side, plan: Plan, columns: int) -> str:
    """The position of every tenth column, where it stands."""
    line = ""
    for at in range(0, columns, 10):
        position = int(keys.positions[at * plan.pool_keys])
        number = str(position) if position >= 0 else ""
        if at + len(number) <= columns:
            line = line.ljust(at) + number
    return line


# ── the legend ───────────────────────────────────────────────────────────────────────────────


def _legend(
    result: Attention,
    sequence: int,
    shown: Shown,
    maps: Sequence[Map],
    plan: Plan,
    ink: Ink,
    width: int,
) -> list[Text]:
    """The scale, each mark that occurs, and what was done to make it fit."""
    present = sorted({int(kind) for head in maps for kind in np.unique(head.kinds)} - {WEIGHT})
    pieces = [_scale(ink, width)]
    for kind in present:
        words = WORDS[kind]
        names = [name for name in result.masks if name != "padding"]
        if kind == FORBIDDEN and names:
            words += f" by {', '.join(map(printable, names))}"
        words = notation(f" {words}", ink.ascii_only)
        pieces.append(sample_of(ink, ink.levels + kind, plan).append(words))
    remarks = (
        "rows: queries",
        "columns: keys",
        *_remarks(result, sequence, shown, maps, plan, ink),
    )
    pieces += [Text(notation(remark, ink.ascii_only)) for remark in remarks]
    return flow(pieces, width)


def _scale(ink: Ink, width: int) -> Text:
    """`0 ░▒▓█ 0.9`: from the smallest weight to the largest, in as many steps as there is room."""
    room = (width - 14) // len(ink.glyphs[0])
    steps = max(min(ink.levels, 16, room), 2)
    codes = [round(i * (ink.levels - 1) / (steps - 1)) for i in range(steps)]
    left, right = ("", "") if ink.colored else ("[", "]")
    return Text.assemble(f"0 {left}", *map(ink.cell, codes), f"{right} {ink.top:.4g}")


def sample_of(ink: Ink, code: int, plan: Plan) -> Text:
    """The mark, and where two rows share a line, also how it looks beside a weight."""
    if plan.half and ink.pixels[code]:
        return Text.assemble(ink.cell(code), ("▄", Style(color=ink.pixels[code])))
    return Text.assemble(ink.cell(code, 2 // plan.cell))


def _remarks(
    result: Attention,
    sequence: int,
    shown: Shown,
    maps: Sequence[Map],
    plan: Plan,
    ink: Ink,
) -> Iterator[str]:
    if plan.rows_a_label > 1:
        yield f"{plan.rows_a_label} queries a line: the label is the first one's"
    if plan.pools:
        yield (
            f"each cell is the mean of {plan.pool_queries} × {plan.pool_keys} weights, "
            f"{len(shown.queries)} × {len(shown.keys)} in all"
        )
    if shown.left_out:
        yield f"{shown.left_out} padded places left out"
    if shown.queries.answer is not None:
        yield f"from query {shown.queries.answer} on, in bold, the model wrote"
    yield from map(printable, result.notes)
    if any((head.weights > ink.top).any() for head in maps):
        yield f"weights over {ink.top:.4g} look like it"
    if any((head.weights < 0).any() for head in maps):
        yield "weights under 0 look like 0"
    on_padding = _weight_on_padding(result, sequence, shown.maps)
    if on_padding > 0:
        yield f"up to {on_padding:.3g} of a row lies on padding, where no weight is drawn"


def _weight_on_padding(result: Attention, sequence: int, maps: Sequence[Map]) -> float:
    """The largest share that a real query gives to padded keys."""
    real, padded = result.query_valid[sequence], ~result.key_valid[sequence]
    if not padded.any():
        return 0.0
    return max(
        float(np.nan_to_num(weights[real][:, padded].sum(-1)).max(initial=0.0))
        for weights in (result.attention[m.layer, sequence, m.head] for m in maps)
    )
