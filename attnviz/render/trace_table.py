"""The trace as a table of text, as JSON and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from attnviz import __version__
from attnviz.machine import human_bytes, human_count
from attnviz.render.console import flow, write
from attnviz.render.text_grid import Paper, axis_text, grid, widest
from attnviz.render.visible import notation
from attnviz.trace import Step
from attnviz.trace_totals import (
    AXIS_WORDS,
    is_quadratic_product,
    own_parameters,
    quadratic,
    quadratic_flops,
    reads,
    sizes_of,
    totals_of,
)

FORMAT, VERSION = "attnviz.shapes", 1

LENGTHS = {"4k": 4096, "32k": 32768, "128k": 131072}
"""Lengths for which the steps that grow as T² are reckoned."""

_FOLDS = (
    ("q_projected", "k_projected", "v_projected"),
    ("q", "k", "v"),
    ("q_normed", "k_normed"),
    ("q_rotated", "k_rotated"),
    ("k_extended", "v_extended"),
    ("k_repeated", "v_repeated"),
)

_FOLDED_WORDS = {
    ("q_projected", "k_projected", "v_projected"): (
        "W_Q, W_K, W_V: what tokens ask for, answer to and give"
    ),
    ("q_projected", "k_projected"): "W_Q, W_K: what tokens ask for and answer to",
    ("k_projected", "v_projected"): "W_K, W_V: what tokens answer to and give",
    ("k", "v"): "cut into heads: view as (H, d_k), then swap T and H",
    ("k_extended", "v_extended"): "an extra key and its value at the end, no token's",
    ("k_repeated", "v_repeated"): "key and value heads lent to the H / Hkv heads of a group",
}


@dataclass(frozen=True)
class Row:
    """One line of the table: a step, or the steps that are folded onto it."""

    number: int
    steps: tuple[Step, ...]

    @property
    def first(self) -> Step:
        return self.steps[0]

    @property
    def name(self) -> str:
        """`q,k,v_projected` for three steps; a step's own name for one."""
        letters = ",".join(step.name[0] for step in self.steps[:-1])
        return f"{letters},{self.steps[-1].name}" if letters else self.first.name

    @property
    def words(self) -> str:
        names = tuple(step.name for step in self.steps)
        return _FOLDED_WORDS.get(names, self.first.words)

    @property
    def parameters(self) -> str:
        if self.first.kind.shares and self.first.parameters:
            return "shared"
        n = sum(map(own_parameters, self.steps))
        return human_count(n) if n else ""

    @property
    def flops(self) -> str:
        """Matrix products exactly, elementwise work as an estimate, `~`."""
        exact = sum(step.matmul_flops for step in self.steps)
        rough = sum(step.elementwise_flops for step in self.steps)
        parts = [human_count(exact)] if exact else []
        return " ".join([*parts, f"~{human_count(rough)}"] if rough else parts)

    @property
    def memory(self) -> str:
        n = sum(step.nbytes for step in self.steps)
        return "view" if self.first.is_view else human_bytes(n)

    @property
    def layout(self) -> str:
        return "contiguous" if self.first.is_contiguous else "strided"


def rows_of(steps: Sequence[Step], expand: bool = False, cross: bool = False) -> list[Row]:
    """The steps as rows. Unless `expand`, K and V fold onto Q where their tensors are alike.

    Alike means: the same shape, type and layout. In cross attention equal lengths of queries and
    keys are chance, so that K and V fold onto each other only.
    """
    rows = [Row(i, (step,)) for i, step in enumerate(steps, 1)]
    if expand:
        return rows
    for names in _FOLDS:
        for i, name in enumerate(names):
            anchor = next((r for r in rows if r.first.name == name), None)
            if anchor is None or (cross and i == 0):
                continue
            alike = [r for r in rows if r.first.name in names[i:] and _alike(r.first, anchor.first)]
            folded = Row(anchor.number, tuple(row.first for row in alike))
            rows = [folded if r is anchor else r for r in rows if r is anchor or r not in alike]
    return rows


def _alike(a: Step, b: Step) -> bool:
    return all(
        getattr(a, name) == getattr(b, name)
        for name in ("shape", "dtype", "is_view", "is_contiguous")
    )


def print_trace(
    steps: Sequence[Step],
    console: Console,
    *,
    sizes: Mapping[str, int] | None = None,
    source: bool = False,
    expand: bool = False,
    cross: bool = False,
    totals: bool = True,
) -> None:
    """Print every step: number, stage, name, shape, axes, cost, memory, layout, type, words.

    `sizes` gives each axis name its length; without it they are read off the steps. `source` adds
    the line of code. One line a step where the console is wide enough or is no terminal, else two,
    and in a very narrow one as many as it takes.
    """
    if not steps:
        return
    paper = Paper.of(console)
    sizes = sizes_of(steps) if sizes is None else sizes
    write(console, *flow(_size_pieces(sizes, AXIS_WORDS, paper), paper.width, "  "), Text())
    write(console, *_trace_lines(rows_of(steps, expand, cross), paper, source))
    if totals:
        write(console, Text(), *_total_lines(steps, paper))
        write(console, *_quadratic_lines(steps, sizes, paper))


def _size_pieces(sizes: Mapping[str, int], words: Mapping[str, str], paper: Paper) -> list[Text]:
    """`H 8 heads` for each axis, its name in its colour."""
    return [
        Text().append_text(axis_text(axis, paper)).append(f" {sizes[axis]:,} {words[axis]}")
        for axis in words
        if axis in sizes
    ]


def _shape(step: Step, paper: Paper) -> Text:
    """`2×8×12×64`, each number in its axis's colour."""
    numbers = zip(step.axes, step.shape, strict=True)
    times = Text.assemble((notation("×", paper.ascii_only), "dim"))
    return times.join(axis_text(axis, paper, str(n)) for axis, n in numbers)


def _axes(step: Step, paper: Paper) -> Text:
    return Text(" ").join(axis_text(axis, paper) for axis in step.axes)


def _trace_lines(rows: Sequence[Row], paper: Paper, source: bool) -> list[Text]:
    """The table in the widest form that fits."""
    heads, table = _full_cells(rows, paper, source)
    words = [paper.text(row.words) for row in rows]
    with_words = [[*line, word] for line, word in zip(table, words, strict=True)]
    lines = grid([*heads, "what happens"], with_words, FULL_RIGHT)
    if widest(lines) <= paper.width:
        return [lines[0], paper.rule(widest(lines)), *lines[1:]]
    lines = grid(heads, table, FULL_RIGHT)
    if widest(lines) <= paper.width:
        body = [
            part
            for line, word in zip(lines[1:], words, strict=True)
            for part in (line, *_indented(word, paper))
        ]
        return [lines[0], paper.rule(widest(lines)), *body]
    return _narrow_lines(rows, paper, source)


FULL_RIGHT = {0, 5, 6, 7}
"""Columns of the full table that are aligned on the right: numbers."""


def _full_cells(
    rows: Sequence[Row], paper: Paper, source: bool
) -> tuple[list[str], list[list[Text]]]:
    heads = [
        "#",
        "stage",
        "step",
        "shape",
        "axes",
        "parameters",
        "FLOP",
        "memory",
        "layout",
        "type",
    ]
    table = [
        [
            Text(str(row.number), "dim"),
            Text(row.first.stage),
            Text(row.name, "bold"),
            _shape(row.first, paper),
            _axes(row.first, paper),
            Text(row.parameters or "-"),
            Text(row.flops or "-"),
            Text(row.memory),
            Text(row.layout),
            Text(row.first.dtype),
            *([Text(_sources(row), "dim")] if source else []),
        ]
        for row in rows
    ]
    return [*heads, *(["source"] if source else [])], table


def _sources(row: Row) -> str:
    """`attention.py:133,137,141`."""
    file = row.first.source.rpartition(":")[0]
    return f"{file}:{','.join(step.source.rpartition(':')[2] for step in row.steps)}"


def _narrow_lines(rows: Sequence[Row], paper: Paper, source: bool) -> list[Text]:
    """Two lines a step, a line for each stage; no names, and marks only where something differs.

    Where even that is too wide, the parts of a step flow over as many lines as they need.
    """
    usual = _usual_dtype(rows)
    heads = ["#", "shape", "axes", "param", "FLOP", "memory", ""]
    marks = []
    for row in rows:
        dtype = [row.first.dtype] if row.first.dtype != usual else []
        layout = [] if row.first.is_contiguous else [row.layout]
        marks.append(" ".join(dtype + layout))
    table = [
        [
            Text(str(row.number), "dim"),
            _shape(row.first, paper),
            _axes(row.first, paper),
            Text(row.parameters or "-"),
            Text(row.flops or "-"),
            Text(row.memory),
            Text(mark),
        ]
        for row, mark in zip(rows, marks, strict=True)
    ]
    lines = grid(heads, table, {0, 3, 4, 5}, gap=1)
    fits = widest(lines) <= paper.width
    shown = list(flow([paper.text(f"{usual} and contiguous, unless marked")], paper.width))
    if fits:
        shown += [lines[0], paper.rule(widest(lines))]
    stage = ""
    for row, mark, line in zip(rows, marks, lines[1:], strict=True):
        if row.first.stage != stage:
            stage = row.first.stage
            shown += flow([Text(stage, "bold")], paper.width)
        shown += [line] if fits else _flowing(row, mark, paper)
        shown += _indented(paper.text(row.words), paper)
        if source:
            shown += _indented(Text(_sources(row), "dim"), paper)
    return shown


def _flowing(row: Row, mark: str, paper: Paper) -> list[Text]:
    pieces = [
        Text(f"{row.number}").append(" ").append_text(_shape(row.first, paper)),
        _axes(row.first, paper),
        Text(f"{row.parameters} param" if row.parameters else ""),
        Text(f"{row.flops} FLOP" if row.flops else ""),
        Text(row.memory),
        Text(mark),
    ]
    return flow([piece for piece in pieces if piece.plain], paper.width, "   ")


def _usual_dtype(rows: Sequence[Row]) -> str:
    dtypes = [row.first.dtype for row in rows]
    return max(dtypes, key=dtypes.count)


def _indented(words: Text, paper: Paper) -> list[Text]:
    """`words` on lines of their own, indented under their step."""
    lines = flow([words], paper.width - 3)
    return [Text("   ").append_text(line) for line in lines]


def _total_lines(steps: Sequence[Step], paper: Paper) -> list[Text]:
    totals = totals_of(steps)
    learned = sum(own_parameters(step) * step.item_bytes for step in steps)
    facts = {
        "parameters": f"{totals.parameters:,} ({human_bytes(learned)})",
        "FLOP": f"{totals.matmul_flops:,} in matrix products (exact, a multiply-add is 2), "
        f"~{totals.elementwise_flops:,} elementwise (an estimate)",
        "activations": f"{human_bytes(totals.activation_bytes)} if every tensor is kept, "
        "as training does",
        "peak": f"{human_bytes(totals.peak_bytes)} at step {totals.peak_step} if each is freed "
        "after its last reader; parameters come on top",
    }
    lines: list[Text] = []
    for name, words in facts.items():
        label = f"{name:13}" if paper.width >= 40 else f"{name}: "
        piece = Text.assemble((label, "bold"), notation(words, paper.ascii_only))
        lines += flow([piece], paper.width, " " * 13 if paper.width >= 40 else "  ")
    return lines


def _quadratic_lines(steps: Sequence[Step], sizes: Mapping[str, int], paper: Paper) -> list[Text]:
    """What grows as T², at lengths that people ask about."""
    found = quadratic(steps)
    if not found or not {"Tq", "Tk"} <= set(sizes):
        return []
    table: list[list[str]] = [[f"{number} {step.name}"] for number, step in found]
    products = [i for i, step in enumerate(steps, 1) if is_quadratic_product(step)]
    table += [["together"], [f"FLOP of {', '.join(map(str, products))}"]]
    for n in LENGTHS.values():
        there = [step.at({**sizes, "Tq": n, "Tk": n}) for step in steps]
        needs = [step.nbytes for _, step in quadratic(there)]
        column = [*map(human_bytes, needs), human_bytes(sum(needs))]
        for line, cell in zip(table, [*column, human_count(quadratic_flops(there))], strict=True):
            line.append(cell)
    heads = ["grows as T²", *(f"T = {name}" for name in LENGTHS)]
    lines = grid(
        [notation(head, paper.ascii_only) for head in heads],
        [[Text(cell) for cell in line] for line in table],
        {1, 2, 3},
    )
    if widest(lines) <= paper.width:
        return [Text(), lines[0], paper.rule(widest(lines)), *lines[1:]]
    shown = [Text(), *flow([paper.text("grows as T²:", "bold")], paper.width)]
    for line in table:
        cells_ = [f"{name} {cell}" for name, cell in zip(LENGTHS, line[1:], strict=True)]
        shown += flow([Text(part) for part in (line[0], *cells_)], paper.width, "  ")
    return shown


def trace_as_json(
    steps: Sequence[Step],
    *,
    sizes: Mapping[str, int] | None = None,
    config: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The trace as one JSON document, version 1; its schema is `shapes.schema.json`, beside this.

    Numbers are exact. `reads` has the numbers of the steps that a step reads.
    """
    sizes = sizes_of(steps) if sizes is None else sizes
    return {
        "format": FORMAT,
        "version": VERSION,
        "attnviz": __version__,
        **({} if config is None else {"config": dict(config)}),
        "sizes": dict(sizes),
        "steps": [
            _step_as_json(i, step, read)
            for i, (step, read) in enumerate(zip(steps, reads(steps), strict=True), 1)
        ],
        "totals": asdict(totals_of(steps)),
        "quadratic": {
            "steps": [number for number, _ in quadratic(steps)],
            "at": [_at_length(steps, sizes, n) for n in LENGTHS.values()],
        },
    }


def _step_as_json(number: int, step: Step, read: Sequence[int]) -> dict[str, Any]:
    return {
        "number": number,
        "name": step.name,
        "stage": step.stage,
        "words": step.words,
        "axes": list(step.axes),
        "shape": list(step.shape),
        "dtype": step.dtype,
        "parameters": [
            {"name": name, "axes": list(axes), "shape": list(shape)}
            for name, axes, shape in step.parameters
        ],
        "n_parameters": own_parameters(step),
        "matmul_flops": step.matmul_flops,
        "elementwise_flops": step.elementwise_flops,
        "bytes": step.nbytes,
        "view": step.is_view,
        "contiguous": step.is_contiguous,
        "reads": [i + 1 for i in read],
        "source": step.source,
    }


def _at_length(steps: Sequence[Step], sizes: Mapping[str, int], n: int) -> dict[str, int]:
    there = [step.at({**sizes, "Tq": n, "Tk": n}) for step in steps]
    return {
        "tokens": n,
        "bytes": sum(step.nbytes for _, step in quadratic(there)),
        "matmul_flops": quadratic_flops(there),
    }


def trace_as_markdown(
    steps: Sequence[Step], *, expand: bool = False, cross: bool = False, source: bool = False
) -> str:
    """The table in GitHub's Markdown."""
    rows = rows_of(steps, expand, cross)
    heads, table = _full_cells(rows, Paper(10**6, ascii_only=False), source)
    heads = [*heads, "what happens"]
    lines = [
        [*(cell.plain for cell in line), row.words] for line, row in zip(table, rows, strict=True)
    ]
    rule = ["---:" if i in FULL_RIGHT else "---" for i in range(len(heads))]
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in (heads, rule, *lines)]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)
