"""What a check found: for a terminal, as JSON for programs, and as JUnit XML for CI."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from rich.text import Text

from attnviz.checks.report import CHECKS, Finding, InHead, Location, Report, number, ranges
from attnviz.errors import printable
from attnviz.render.console import flow, write
from attnviz.render.text_grid import Paper
from attnviz.wording import plural

if TYPE_CHECKING:
    from rich.console import Console

FORMAT, VERSION = "attnviz.check", 1

MARK = 7
"""Columns of the mark before a finding."""


def report_facts(report: Report) -> list[tuple[str, str]]:
    """What was checked: (label, text)."""
    sizes = report.sizes
    counts = [
        plural(sizes[axis], word)
        for axis, word in (("L", "layer"), ("B", "sequence"), ("H", "head"))
        if sizes[axis] > 1 or axis == "H"
    ]
    kind = report.dtype
    if report.precision != report.dtype:
        kind += f" that holds {report.precision} numbers"
    facts = [("attention", f"{', '.join(counts)}, {sizes['Tq']} × {sizes['Tk']}, {kind}")]
    none = "none expected: --causal, --lengths, --window, --mask and the like set them"
    facts.append(("masks", ", ".join(map(printable, report.masks)) or none))
    if words := [what_holds(name, report) for name in passed(report)]:
        facts.append(("holds", "; ".join(words)))
    return facts


def passed(report: Report) -> list[str]:
    """The checks that found nothing."""
    found = {finding.name for finding in report.findings}
    return [name for name in report.checked if name not in found]


def what_holds(name: str, report: Report) -> str:
    """What a check makes sure of, in words."""
    kind, _, mask = name.partition(":")
    if kind == "leak":
        return f"none where {printable(mask)} forbids it"
    if kind == "rows":
        return f"{CHECKS[kind]} (within {number(report.tolerance)})"
    return CHECKS[kind]


def print_findings(report: Report, console: Console) -> None:
    """Print each finding with its worst place and its cause, and the verdict at the end."""
    paper = Paper.of(console)
    indent = " " * (MARK if paper.width > 4 * MARK else 2)
    for finding in report.findings:
        style, mark = ("bold red", "FAILS") if finding.fails else ("bold yellow", "note")
        first, *rest = report.lines(finding)
        head = paper.text(mark.ljust(len(indent) - 1), style)
        words = [head, *(paper.text(word, "bold") for word in first.split(" "))]
        write(console, *flow(words, paper.width, indent, gap=" "))
        for line in rest:
            pieces = [paper.text(word) for word in line.split(" ")]
            lines = flow(pieces, max(paper.width - len(indent), 1), gap=" ")
            write(console, *(Text(indent) + part for part in lines))
        write(console, Text())
    style = "bold green" if report.passed else "bold red"
    write(console, *flow([paper.text(report.verdict, style)], paper.width))


# ── for programs ─────────────────────────────────────────────────────────────────────────────


def report_as_json(report: Report, source: str) -> dict[str, Any]:
    """Everything that was found, ready for JSON; `check.schema.json` describes it."""
    from attnviz import __version__

    return {
        "format": FORMAT,
        "version": VERSION,
        "attnviz": __version__,
        "source": source,
        "sizes": dict(report.sizes),
        "dtype": report.dtype,
        "precision": report.precision,
        "tolerance": report.tolerance,
        "layers": list(report.layers),
        "masks": list(report.masks),
        "remarks": list(report.notes_on_reading),
        "passed": report.passed,
        "checked": [
            {"name": name, "holds": what_holds(name, report), "found": name not in passed(report)}
            for name in report.checked
        ],
        "findings": [_finding(finding, report) for finding in report.findings],
    }


def _finding(finding: Finding, report: Report) -> dict[str, Any]:
    return {
        "name": finding.name,
        "fails": finding.fails,
        "what": finding.what,
        "cause": finding.cause,
        "unit": finding.unit,
        "count": finding.count,
        "of_heads": report.n_heads,
        "measure": finding.measure,
        "worst": _place(finding.worst),
        "heads": [_in_head(head) for head in finding.heads],
    }


def _in_head(head: InHead) -> dict[str, Any]:
    return {
        "layer": head.layer,
        "head": head.head,
        "count": head.count,
        "worst": _place(head.worst),
    }


def _place(place: Location) -> dict[str, Any]:
    value = place.value
    return {
        "layer": place.layer,
        "head": place.head,
        "sequence": place.sequence,
        "query": place.query,
        "key": place.key,
        "query_token": place.query_token,
        "key_token": place.key_token,
        "value": value if isfinite(value) else number(value),
    }


# ── for CI ───────────────────────────────────────────────────────────────────────────────────


def report_as_junit(report: Report, source: str) -> str:
    """JUnit XML: a test case for each check and layer; notes are its output, not failures.

    The form is the one that Jenkins, GitLab and GitHub's reporters read. It names no time and no
    host, so that the same report gives the same bytes.
    """
    cases = [
        (name, layer, _in_layer(report, name, layer))
        for name in report.checked
        for layer in report.layers
    ]
    failures = sum(any(finding.fails for finding in found) for _, _, found in cases)
    counts: dict[str, Any] = {
        "tests": str(len(cases)),
        "failures": str(failures),
        "errors": "0",
        "time": "0",
    }
    root = ET.Element("testsuites", name="attnviz check", **counts)
    shown = printable(source, 1000)
    suite = ET.SubElement(root, "testsuite", name=shown, skipped="0", **counts)
    for name, layer, found in cases:
        title = f"{what_holds(name, report)}, layer {layer}"
        case = ET.SubElement(
            suite, "testcase", classname=f"attnviz.check.{name.partition(':')[0]}", name=title
        )
        case.set("time", "0")
        wrong = [finding for finding in found if finding.fails]
        if wrong:
            text = "\n".join(line for finding in wrong for line in _lines(finding, layer, report))
            failure = ET.SubElement(
                case, "failure", message=text.splitlines()[0], type=wrong[0].name
            )
            failure.text = text
        notes = [line for f in found if not f.fails for line in _lines(f, layer, report)]
        if notes:
            ET.SubElement(case, "system-out").text = "\n".join(notes)
    ET.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + ET.tostring(root, encoding="unicode") + "\n"


def _in_layer(report: Report, name: str, layer: int) -> list[Finding]:
    return [
        finding
        for finding in report.findings
        if finding.name == name and any(head.layer == layer for head in finding.heads)
    ]


def _lines(finding: Finding, layer: int, report: Report) -> Iterator[str]:
    """A finding as it stands in one layer."""
    heads = [head for head in finding.heads if head.layer == layer]
    n = sum(head.count for head in heads)
    counted = "" if finding.unit == "head" else f"{plural(n, finding.unit)} in "
    yield f"{finding.what}: {counted}heads {ranges([head.head for head in heads])}"
    for head in heads:
        place = head.worst.words(False, report.sizes["B"] > 1)
        measure = f" {finding.measure}" if finding.measure else ""
        yield f"worst: {place}:{measure} {number(head.worst.value)}"
    if finding.cause:
        yield finding.cause
