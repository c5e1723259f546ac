"""The trace of a person's own module, as text and as JSON: its ops, then what looks wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from attnviz.errors import printable
from attnviz.module_trace import ModuleStep, ModuleTrace
from attnviz.render.console import flow, write
from attnviz.render.text_grid import Paper, axis_text, grid, widest
from attnviz.wording import noun_for

FORMAT, VERSION = "attnviz.module", 1

LONGEST_LINE = 88
"""Characters of a line of code; a longer one loses its middle."""


def print_module_trace(trace: ModuleTrace, console: Console, *, source: bool = True) -> None:
    """Print every op: number, what it is, shape, axes, memory, line; then findings and notes.

    `source` adds the line of code, once for the ops that it calls in a row. Where that is wider
    than the console, each line of code stands above its ops.
    """
    paper = Paper.of(console)
    write(console, *_head(trace, paper))
    if trace.steps:
        write(console, Text(), *_table(trace.steps, paper, source))
    for finding in trace.findings:
        mark = Text.assemble(("warning", "bold yellow"), " ", (printable(finding.source), "bold"))
        write(console, Text(), mark)
        for words in (finding.text, finding.advice):
            write(console, *_indented(words, paper))
    if trace.failure is not None:
        place, code = trace.failure
        mark = Text.assemble(("fails here", "bold red"), " ", (printable(place), "bold"))
        write(console, Text(), mark, *_indented(printable(code, LONGEST_LINE), paper))
    elif trace.steps and not trace.findings and not trace.notes:
        write(console, Text(), *flow([_established(trace, paper)], paper.width))
    for note in trace.notes:
        write(
            console,
            Text(),
            *flow([paper.text(f"note: {printable(note, 1000)}", "dim")], paper.width),
        )


def module_trace_as_json(trace: ModuleTrace) -> dict[str, Any]:
    """The whole trace, ready for JSON: the fields of `ModuleTrace` under their names."""
    return {"format": FORMAT, "version": VERSION, **asdict(trace)}


def _head(trace: ModuleTrace, paper: Paper) -> list[Text]:
    title = Text.assemble(
        (printable(trace.class_name), "bold"),
        f"  {printable(trace.file)}",
        f"  {trace.n_parameters:,} parameters",
    )
    sizes = [axis_text(name, paper, printable(f"{name} {n}")) for name, n in trace.sizes.items()]
    return [*flow([title], paper.width, "  "), *flow(sizes, paper.width, "  ")]


def _established(trace: ModuleTrace, paper: Paper) -> Text:
    """What was found to be right, and no more than that."""
    good = "no reshape regroups elements"
    if not trace.softmaxes:
        return paper.text(f"{good}; no softmax of scores was seen", "green")
    if trace.along_keys == trace.softmaxes:
        return paper.text(f"{good}, and every softmax of scores runs along keys", "green")
    untold = trace.softmaxes - trace.along_keys
    return paper.text(
        f"{good}; of {trace.softmaxes} {noun_for(trace.softmaxes, 'softmax')}, {untold} could not "
        "be followed to a sum with the values: whether it runs along keys is not known"
    )


def _table(steps: Sequence[ModuleStep], paper: Paper, source: bool) -> list[Text]:
    """One line an op with its code beside it, or the code above where that is too wide."""
    heads = ["#", "op", "shape", "axes", "memory", "line"]
    cells = [_cells(i, step, paper) for i, step in enumerate(steps, 1)]
    if not source:
        lines = grid(heads, cells, {0})
        return (
            _ruled(lines, paper) if widest(lines) <= paper.width else _narrow(steps, cells, paper)
        )
    code = [
        Text("") if i and step.source == steps[i - 1].source else _code(step, paper)
        for i, step in enumerate(steps)
    ]
    lines = grid([*heads, "code"], [[*c, t] for c, t in zip(cells, code, strict=True)], {0})
    return _ruled(lines, paper) if widest(lines) <= paper.width else _narrow(steps, cells, paper)


def _cells(i: int, step: ModuleStep, paper: Paper) -> list[Text]:
    times = f" ×{step.count}" if step.count > 1 else ""
    numbers = zip(step.axes, step.shape, strict=True)
    return [
        Text(str(i), "dim"),
        paper.text(printable(step.operation) + times),
        paper.text("×", "dim").join(axis_text(axis, paper, str(n)) for axis, n in numbers),
        Text(" ").join(axis_text(axis, paper, printable(axis)) for axis in step.axes),
        Text("view" if step.is_view else "", "dim"),
        Text(printable(step.source), "dim"),
    ]


def _code(step: ModuleStep, paper: Paper) -> Text:
    return paper.text(printable(step.text, LONGEST_LINE))


def _ruled(lines: list[Text], paper: Paper) -> list[Text]:
    return [lines[0], paper.rule(widest(lines)), *lines[1:]]


def _narrow(steps: Sequence[ModuleStep], cells: list[list[Text]], paper: Paper) -> list[Text]:
    """Each line of code with the ops that it calls below it."""
    lines: list[Text] = []
    before = None
    for step, row in zip(steps, cells, strict=True):
        number, operation, shape, axes, memory, line = row
        if step.source != before:
            code = Text.assemble(line, "  ", _code(step, paper))
            lines += flow([code], paper.width, "    ")
        before = step.source
        lines += flow([Text.assemble(number.plain.rjust(4), " ", operation), shape, axes, memory],
                      paper.width, "      ")  # fmt: skip
    return lines


def _indented(words: str, paper: Paper) -> list[Text]:
    room = max(paper.width - 2, 1)
    return [Text.assemble("  ", line) for line in flow([paper.text(printable(words, 1000))], room)]
