"""The measures of heads as a table of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from attnviz.measures import MEASURES, measure, measure_all
from attnviz.render.console import flow, write
from attnviz.render.text_grid import Paper, grid, widest
from attnviz.result import Attention
from attnviz.wording import plural


def print_heads(
    result: Attention,
    sequence: int | None,
    console: Console,
    heads: Sequence[tuple[int, int]] | None = None,
) -> None:
    """Print the measures of each head on one sequence, or (None) on all of them together.

    `heads` are (layer, head) pairs, from 0; None means all.
    """
    paper = Paper.of(console)
    if heads is None:
        heads = [(i, j) for i in range(result.n_layers) for j in range(result.n_heads)]
    if result.rows is not None and sequence is not None:
        _print_row_means(result, sequence, result.rows.near, console, heads)
        return
    each = measure_all(result, heads) if sequence is None else measure(result, sequence, heads)
    means = each.result()
    where = "all sequences" if sequence is None else f"sequence {sequence}"
    rows = sorted({int(each.rows[at]) for at in heads})
    counted = " to ".join(f"{n:,}" for n in (rows[:1] + rows[1:][-1:]))
    title = f"heads of {where}: means over {counted} query rows"
    if rows in ([], [0]):
        write(console, *flow([paper.text(title, "bold")], paper.width, "  "))
        return
    names = [name_of_head(result, at) for at in heads]
    values = [[float(means[measure_][at]) for measure_ in MEASURES] for at in heads]
    print_measures(title, names, values, MEASURES, console)


def _print_row_means(
    result: Attention,
    sequence: int,
    near: int,
    console: Console,
    heads: Sequence[tuple[int, int]],
) -> None:
    """The means of the statistics that every row has, those of a whole text."""
    measures = {
        "entropy": "bits",
        "largest": "mean of the largest weight",
        "self": "share on the same position",
        "previous": "on the one before",
        "near": f"less than {near} positions away",
        "first": "share on the first token",
        "distance": "positions",
    }
    means = result.row_means(sequence)
    rows = int(result.query_valid[sequence].sum())
    values = [[float(means[name][at]) for name in measures] for at in heads]
    title = f"heads of sequence {sequence}: means over {plural(rows, 'query row')}"
    names = [name_of_head(result, at) for at in heads]
    print_measures(title, names, values, measures, console)


def print_measures(
    title: str,
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    measures: Mapping[str, str],
    console: Console,
) -> None:
    """A line of numbers for each head by name, `-` for NaN; `measures` tells their names, units."""
    paper = Paper.of(console)
    write(console, *flow([paper.text(title, "bold")], paper.width, "  "))
    numbers = [[f"{value:.3f}" for value in line] for line in values]
    numbers = [["-" if number == "nan" else number for number in line] for line in numbers]
    table = [
        [Text(name, "bold"), *map(Text, line)] for name, line in zip(names, numbers, strict=True)
    ]
    lines = grid(["head", *measures], table, set(range(1, len(measures) + 1)))
    if widest(lines) <= paper.width:
        write(console, lines[0], paper.rule(widest(lines)), *lines[1:])
    else:
        for name, line in zip(names, numbers, strict=True):
            pieces = [f"{m} {n}" for m, n in zip(measures, line, strict=True)]
            write(
                console,
                *flow([Text(f"head {name}", "bold"), *map(Text, pieces)], paper.width, "  "),
            )
    units = [Text(f"{name}: {unit}", "dim") for name, unit in measures.items()]
    write(console, *flow(units, min(paper.width, 100), "  "))


def name_of_head(result: Attention, at: tuple[int, int]) -> str:
    """`3`, or `L1 H3` where there are several layers."""
    layer, head = at
    return f"L{result.layer_numbers[layer]} H{head}" if result.names_layers else str(head)
