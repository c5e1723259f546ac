"""What heads do, over a corpus: the table, the picture in the terminal, and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.text import Text

from attnviz.errors import printable
from attnviz.measures.glossary import GLOSSARY
from attnviz.measures.head_classes import THRESHOLDS, HeadClass, classify, form_of
from attnviz.render.console import flow, write
from attnviz.render.text_grid import Paper, grid, widest
from attnviz.render.visible import cells
from attnviz.wording import plural

Floats = npt.NDArray[np.float64]

COLUMNS = ("self", "previous", "next", "first", "separator", "same_token", "entropy", "largest",
           "distance", "sink", "rank")  # fmt: skip
OTHERS = ("prefix_matching", "gold")
"""Figures of the table, or where none of them was taken all that were; files have them all."""

FEW = 3
"""Heads of a class that get a sentence in the terminal."""

CLASS_COLOURS = {
    "induction": "bright_magenta",
    "previous": "cyan",
    "next": "cyan",
    "self": "cyan",
    "offset": "cyan",
    "separator": "yellow",
    "sink": "bright_black",
    "same token": "green",
    "block": "blue",
    "broad": "red",
    "mixed": "",
}

GAP = 2
"""Spaces between columns."""


@dataclass(frozen=True, eq=False)
class HeadReport:
    """Figures of all heads `[L H]` by name, and what goes with them.

    `layer_numbers` are those of the model. `facts` say how much was measured. `alpha` `[L H K]` are
    the α_k of `Sinks`, `offset_shares` `[L H n]` those of `offsets` `[n]`; `divergences`
    `[L·H L·H]` are in bits, over the documents that were `compared`. `gold_offsets` has the best
    fixed offset and its accuracy by label.
    """

    figures: Mapping[str, Floats]
    layer_numbers: tuple[int, ...]
    source: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    alpha: Floats | None = None
    offsets: npt.NDArray[np.int64] | None = None
    offset_shares: Floats | None = None
    divergences: Floats | None = None
    compared: int = 0
    gold_offsets: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    probe: Mapping[str, Any] | None = None

    @property
    def n_layers(self) -> int:
        return len(self.layer_numbers)

    @cached_property
    def n_heads(self) -> int:
        return int(next(iter(self.figures.values())).shape[1])

    @property
    def heads(self) -> list[tuple[int, int]]:
        """(row, head) of all heads; a row is a layer."""
        return [(i, j) for i in range(self.n_layers) for j in range(self.n_heads)]

    @cached_property
    def classes(self) -> dict[tuple[int, int], HeadClass]:
        """Each head's class."""
        return {head: classify(self.figures, *head) for head in self.heads}

    @cached_property
    def forms(self) -> dict[tuple[int, int], str]:
        """Each head's kind after Kovaleva et al. 2019; empty where it was not measured."""
        if "fixed" not in self.figures:
            return {}
        return {head: form_of(self.figures, *head) for head in self.heads}

    def name(self, head: tuple[int, int]) -> str:
        """`layer.head`, from 0."""
        return f"{self.layer_numbers[head[0]]}.{head[1]}"

    def sorted_heads(self, by: str | None) -> list[tuple[int, int]]:
        """By a figure, the largest first; in their own order without one. NaN comes last."""
        if by is None:
            return self.heads
        values = self.figures[by]
        return sorted(self.heads, key=lambda head: _order(float(values[head])))

    def sink_share(self) -> float | None:
        """The share of heads that have a sink at the first key (Gu et al. 2024)."""
        if "sink" not in self.figures:
            return None
        from attnviz.measures.sinks import EPSILON

        known = self.figures["sink"][np.isfinite(self.figures["sink"])]
        return float((known > EPSILON).mean()) if len(known) else None

    def meaning(self, name: str) -> str:
        """What a figure says, in a few words, with the numbers that were chosen."""
        if name == "near" and "near" in self.facts:
            return f"share within {plural(self.facts['near'], 'position')}"
        if name == "first_tokens" and "first_tokens" in self.facts:
            return f"share on the first {plural(self.facts['first_tokens'], 'token')}"
        label = name.removeprefix("gold ")
        if label != name:
            return f"share of the pairs labelled {printable(label, 40)} that the head finds"
        return GLOSSARY.get(name, "")


def _order(value: float) -> float:
    return np.inf if np.isnan(value) else -value


# ── sentences ────────────────────────────────────────────────────────────────────────────────


def sentence(report: HeadReport, head: tuple[int, int]) -> str | None:
    """What a head does, in plain words; None for one that does nothing in particular."""
    found = report.classes[head]

    def figure(name: str) -> float:
        return float(report.figures[name][head]) if name in report.figures else np.nan

    words = {
        "induction": f"looks at what followed the same token before: prefix-matching score "
        f"{found.value:.2f} on random tokens that repeat",
        "previous": f"looks at the previous token, {figure('previous'):.2f} of its weight",
        "next": f"looks at the next token, {figure('next'):.2f} of its weight",
        "self": f"looks at the query's own token, {figure('self'):.2f} of its weight",
        "offset": f"looks {_offset(found.offset)}, {found.value:.2f} of its largest weights",
        "separator": f"looks at separators, {found.value:.2f} of its weight",
        "sink": f"rests on the first token, {found.value:.2f} of its weight (α₀)",
        "same token": f"looks at the same token elsewhere, {found.value:.2f} of its weight",
        "block": f"stays in its own segment, {found.value:.2f} of its weight on ordinary tokens, "
        f"where its distances alone would give {figure('segment_evenly'):.2f}",
        "broad": f"spreads its weight, as if {found.value:.0f} keys shared a row evenly",
    }.get(found.name)
    return (
        None if words is None else f"layer {report.layer_numbers[head[0]]} head {head[1]}: {words}"
    )


def _offset(offset: int | None) -> str:
    return f"{plural(abs(offset or 0), 'token')} {'back' if (offset or 0) < 0 else 'ahead'}"


def notable(report: HeadReport, few: int | None = FEW) -> list[str]:
    """Sentences of the clearest heads of each class, the classes in the order of `THRESHOLDS`."""
    said = []
    for name in THRESHOLDS:
        members = [head for head, found in report.classes.items() if found.name == name]
        members.sort(key=lambda head: _order(report.classes[head].value))
        said += [s for head in members[:few] if (s := sentence(report, head)) is not None]
    return said


def summary(report: HeadReport) -> list[str]:
    """How many heads of each class, and what else holds of all of them together."""
    counts = Counter(found.name for found in report.classes.values())
    lines = [", ".join(f"{counts[name]} {name}" for name in THRESHOLDS if counts[name])]
    share = report.sink_share()
    if share is not None:
        mean = float(np.nanmean(report.figures["first"])) if "first" in report.figures else np.nan
        some = "" if np.isnan(mean) else f"; the first token gets {mean:.2f} of all weight"
        lines.append(f"{share:.2f} of the heads have a sink at the first token (α₀ > 0.3){some}")
    if report.forms:
        forms = Counter(report.forms.values())
        shown = ", ".join(f"{n} {form}" for form, n in forms.most_common())
        lines.append(f"kinds after Kovaleva et al. 2019: {shown}")
    if "gold" in report.figures and np.isfinite(report.figures["gold"]).any():
        lines += _gold(report)
    probe = report.probe
    if probe is not None and probe["first_copy"] is not None:
        lines.append(
            f"loss on random tokens: {probe['first_copy']:.2f} nats on the first copy, "
            f"{probe['later_copies']:.2f} on later ones"
        )
    return lines


def _gold(report: HeadReport) -> list[str]:
    lines = []
    for name, values in report.figures.items():
        if name != "gold" and not name.startswith("gold "):
            continue
        label = name.removeprefix("gold").strip()
        best = np.unravel_index(int(np.nanargmax(values)), values.shape)
        head = (int(best[0]), int(best[1]))
        offset, accuracy = report.gold_offsets.get(label, (0, np.nan))
        lines.append(
            f"gold {printable(label, 40) or 'pairs'}: head {report.name(head)} finds "
            f"{values[head]:.2f}, the best fixed offset ({offset:+d}) {accuracy:.2f}"
        )
    return lines


# ── the terminal ─────────────────────────────────────────────────────────────────────────────


def print_report(
    report: HeadReport, console: Console, sort: str | None = None, top: int | None = None
) -> None:
    """The table of heads, the classes and the sentences."""
    paper = Paper.of(console)
    rows, documents = report.facts.get("rows", 0), report.facts.get("documents", 0)
    over = f"means over {plural(rows, 'query row')} of {plural(documents, 'document')}"
    title = f"heads of {printable(report.source, 200)}: {over}"
    write(console, *flow([paper.text(title, "bold")], paper.width, "  "))
    columns = [name for name in (*COLUMNS, *OTHERS) if name in report.figures]
    columns = columns or list(report.figures)
    if sort is not None and sort not in columns:
        columns.insert(0, sort)
    _print_table(report, console, paper, columns, report.sorted_heads(sort)[:top])
    left_out = len(report.heads) - (top or len(report.heads))
    if left_out > 0:
        more = paper.text(f"{plural(left_out, 'more head')}; --top 0 shows all", "dim")
        write(console, *flow([more], paper.width, "  "))
    words = [report_text(f"{printable(n, 40)}: {report.meaning(n)}", paper, "dim") for n in columns]
    write(console, *flow(words, min(paper.width, 100), "  "))
    for line in (*summary(report), *notable(report)):
        write(console, *flow([report_text(line, paper)], paper.width, "  "))


def report_text(text: str, paper: Paper, style: str = "") -> Text:
    """The Greek letter of sinks is spelled where there is none."""
    return paper.text(text.replace("α₀", "alpha_0") if paper.ascii_only else text, style)


def _print_table(
    report: HeadReport,
    console: Console,
    paper: Paper,
    columns: Sequence[str],
    heads: Sequence[tuple[int, int]],
) -> None:
    """One table where it fits; else some figures under the others; else a head in lines."""
    names = [printable(name, 40) for name in columns]
    tops = [np.nanmax(report.figures[name], initial=0.0) for name in columns]
    labels, rows = [], []
    for head in heads:
        found = report.classes[head]
        offset = "" if found.offset is None or found.name != "offset" else f" {found.offset:+d}"
        kind = paper.text(found.name + offset, CLASS_COLOURS[found.name])
        labels.append([Text(report.name(head), "bold"), kind])
        values = [report.figures[name][head] for name in columns]
        rows.append([_cell(value, top) for value, top in zip(values, tops, strict=True)])
    room = paper.width - widest(grid(["head", "class"], labels, set()))
    widths = [
        max(map(cells, (name, *(row[i].plain for row in rows)))) for i, name in enumerate(names)
    ]
    if max(widths) + GAP <= room:
        for i, band in enumerate(_bands(widths, room)):
            table = [label + row[band] for label, row in zip(labels, rows, strict=True)]
            lines = grid(["head", "class", *names[band]], table, set(range(2, len(table[0]))), GAP)
            write(console, *([Text()] * (i > 0)), lines[0], paper.rule(widest(lines)), *lines[1:])
        return
    for label, row in zip(labels, rows, strict=True):
        pieces = [Text(f"{name} ").append_text(cell) for name, cell in zip(names, row, strict=True)]
        write(console, *flow([*label, *pieces], paper.width, "  "))


def _bands(widths: Sequence[int], room: int) -> list[slice]:
    """Which columns stand side by side, band after band."""
    bands, start, used = [], 0, 0
    for i, width in enumerate(widths):
        if used + GAP + width > room:
            bands.append(slice(start, i))
            start, used = i, 0
        used += GAP + width
    return [*bands, slice(start, len(widths))]


def _cell(value: float, top: float) -> Text:
    """A figure, bold where it is among the largest of its column."""
    if np.isnan(value):
        return Text("-", "dim")
    shown = f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
    return Text(shown, "bold" if top > 0 and value >= 0.8 * top else "")
