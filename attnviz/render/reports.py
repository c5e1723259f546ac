"""What stands beside a trace: a step that cannot work, two layers side by side, a model's cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from attnviz.architectures import Architecture
from attnviz.diagnose import Diagnosis
from attnviz.machine import human_bytes, human_count
from attnviz.render.console import flow, write
from attnviz.render.text_grid import Paper, grid, widest
from attnviz.trace import Step
from attnviz.trace_totals import own_parameters, totals_of


def print_diagnosis(diagnosis: Diagnosis, number: int, console: Console) -> None:
    """The step that fails: what meets there, by axis name; the factors; what would work.

    `number` is the step's in the trace that was printed up to it.
    """
    paper = Paper.of(console)
    lines = [Text(), paper.text(f"{number} {diagnosis.step} cannot work: ", "bold red")]
    lines[-1].append_text(paper.text(diagnosis.problem))
    name_width = max(len(operand.name) for operand in diagnosis.operands)
    lines += [
        paper.text(
            f"   {operand.name:{name_width}}  {' '.join(operand.axes)}  =  "
            f"{'×'.join(map(str, operand.shape))}"
        )
        for operand in diagnosis.operands
    ]
    lines += [paper.text(f"   {factor}") for factor in diagnosis.factors]
    lines += [paper.text("   works: ", "green") + paper.text(fix) for fix in diagnosis.fixes]
    for line in lines:
        write(console, *(flow([line], paper.width, "     ") or [Text()]))


def print_comparison(a: Sequence[Step], b: Sequence[Step], console: Console) -> None:
    """Two traces side by side, step by step by name; rows that differ are marked `≠`.

    In a terminal that is too narrow for one line a step, each side has a line of its own.
    """
    paper = Paper.of(console)
    sides = [{step.name: step for step in steps} for steps in (a, b)]
    longer = max(
        sides, key=len
    )  # its order, so that a step that one side lacks stands in its place
    names = list(dict.fromkeys([*longer, *sides[0], *sides[1]]))
    rows = []
    for name in names:
        left, right = (side.get(name) for side in sides)
        rows.append((name, [_facts(left), _facts(right)], _numbers(left) != _numbers(right)))
    totals = [totals_of(steps) for steps in (a, b)]
    for label, field in TOTALS.items():
        values = [getattr(total, field) for total in totals]
        rows.append((label, [["", f"{value:,}"] for value in values], values[0] != values[1]))
    heads = ["", "step", "A", "B", "A", "B"]
    table = [
        [
            paper.text("≠" if differs else "", "bold yellow"),
            paper.text(name),
            *(paper.text(side[0]) for side in shown),
            *(paper.text(side[1], "bold yellow" if differs else "") for side in shown),
        ]
        for name, shown, differs in rows
    ]
    lines = grid(heads, table, {4, 5})
    if widest(lines) > paper.width:
        lines = []
        for name, shown, differs in rows:
            mark = paper.text("≠ " if differs else "  ", "bold yellow")
            lines += flow([mark + paper.text(name)], paper.width)
            for side, facts in zip("AB", shown, strict=True):
                pieces = [paper.text(f"    {side}"), *(paper.text(f) for f in facts if f)]
                lines += flow(pieces, paper.width, "      ")
    write(console, *lines)


def _facts(step: Step | None) -> list[str]:
    """A step's shape, and its costs in one phrase."""
    if step is None:
        return ["-", "-"]
    costs = []
    if own_parameters(step):
        costs.append(f"{human_count(own_parameters(step))} parameters")
    if step.matmul_flops or step.elementwise_flops:
        mark = "" if step.matmul_flops else "~"
        costs.append(f"{mark}{human_count(step.matmul_flops or step.elementwise_flops)} FLOP")
    costs.append("view" if step.is_view else human_bytes(step.nbytes))
    return ["×".join(map(str, step.shape)), ", ".join(costs)]


def _numbers(step: Step | None) -> tuple[object, ...]:
    """What two steps have to share to be the same: all of it, before any rounding."""
    if step is None:
        return ()
    costs = (own_parameters(step), step.matmul_flops, step.elementwise_flops, step.nbytes)
    return (step.shape, step.dtype, step.is_view, *costs)


TOTALS = {
    "parameters": "parameters",
    "FLOP": "matmul_flops",
    "bytes, all kept": "activation_bytes",
    "bytes, peak": "peak_bytes",
}
"""Label → field of `Totals`."""


def architecture_facts(architecture: Architecture) -> list[tuple[str, str]]:
    """A model's attention in words: (label, what is said)."""
    groups = "" if not architecture.grouped else f" on {architecture.n_kv_heads} key/value heads"
    kinds = ", ".join(
        f"{kind.count} {kind.name}" + (f" (window {kind.window:,})" if kind.window else "")
        for kind in architecture.kinds
    )
    return [
        ("model", f"{architecture.model_type}, d_model {architecture.d_model}"),
        (
            "heads",
            f"{architecture.n_heads}{groups}, d_k {architecture.head_dim}, "
            f"positions: {architecture.positions}",
        ),
        ("layers", f"{architecture.n_layers}: {kinds}"),
        (
            "attention",
            f"{architecture.attention_parameters:,} parameters a layer, "
            f"{architecture.all_attention_parameters:,} in all",
        ),
    ]


def cache_as_json(
    architecture: Architecture, length: int, batch: int, dtype: str
) -> dict[str, Any]:
    """The key/value cache, kind by kind, in bytes."""
    rows = architecture.cache(length, dtype, batch)
    return {
        "dtype": dtype,
        "tokens": length,
        "batch": batch,
        "kinds": [
            {
                "kind": row.kind,
                "layers": row.count,
                "tokens": row.tokens,
                "bytes_per_token_and_layer": row.bytes_per_token,
                "bytes": row.nbytes,
            }
            for row in rows
        ],
        "bytes": sum(row.nbytes for row in rows),
    }


def print_cache(cache: Mapping[str, Any], console: Console) -> None:
    """The cache as a table; `cache` is what `cache_as_json` gives."""
    paper = Paper.of(console)
    if not cache["kinds"]:
        write(console, Text(), paper.text("KV cache     none: every token is read at once"))
        return
    sequences = f" of {cache['batch']:,} sequences" if cache["batch"] > 1 else ""
    title = f"KV cache at {cache['tokens']:,} tokens{sequences}, {cache['dtype']}"
    table = [
        [
            paper.text(row["kind"]),
            paper.text(f"{row['layers']:,}"),
            paper.text(f"{row['tokens']:,}"),
            paper.text(f"{row['bytes_per_token_and_layer']:,} B"),
            paper.text(human_bytes(row["layers"] * row["bytes_per_token_and_layer"])),
            paper.text(human_bytes(row["bytes"])),
        ]
        for row in cache["kinds"]
    ]
    total = [
        Text("together"),
        Text(),
        Text(),
        Text(),
        Text(),
        paper.text(human_bytes(cache["bytes"])),
    ]
    heads = ["layers", "count", "tokens kept", "a token, a layer", "a token, all", "cache"]
    lines = grid(heads, [*table, total], {1, 2, 3, 4, 5})
    write(console, Text(), *flow([paper.text(title, "bold")], paper.width))
    if widest(lines) <= paper.width:
        write(console, *lines)
        return
    for cells in [*table, total]:
        pieces = [
            Text(f"{head} ") + cell for head, cell in zip(heads, cells, strict=True) if cell.plain
        ]
        write(console, *flow(pieces, paper.width, "  "))
