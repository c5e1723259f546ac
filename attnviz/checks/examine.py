"""All checks of one subject, and the report of what they found."""

from __future__ import annotations

import numpy as np

from attnviz.checks import judge, recompute
from attnviz.checks.finding import Report
from attnviz.checks.recompute import Given
from attnviz.checks.scan import least_roundoff, scan
from attnviz.checks.subject import Subject

ALWAYS = ("uniform", "blind", "dead", "equal", "sink", "stricter")
"""Checks that need nothing told, after those of the numbers and the masks."""


def examine(
    subject: Subject,
    given: Given | None = None,
    sinks: bool = False,
    tolerance: float | None = None,
) -> Report:
    """Check the weights of `subject`, and with `given` compute them again.

    `sinks` lets rows sum to less than 1; `tolerance` is how far from 1 a row may sum, None for what
    its precision allows.
    """
    remarks = []
    if subject.cut:
        sinks = True
        remarks.append(f"rows may sum to less than 1: {subject.cut}")
    checked = ["finite", "negative", "rows", *(f"leak:{told.name}" for told in subject.told)]
    checked += ALWAYS
    with np.errstate(all="ignore"):  # NaN and infinity are findings, not warnings
        seen = scan(subject, tolerance, sinks)
        findings = list(judge.findings_of(subject, seen, sinks))
        if given is not None:
            findings += recompute.findings_of(subject, given, sinks)
            checked += given.checked
    findings.sort(key=lambda finding: not finding.fails)  # stable: each kind keeps its order
    return Report(
        sizes=subject.sizes,
        dtype=subject.dtype,
        precision=least_roundoff(seen.precision),
        tolerance=seen.tolerance,
        masks=tuple(told.name for told in subject.told),
        checked=tuple(checked),
        findings=tuple(findings),
        layers=subject.layer_numbers,
        remarks=(*remarks, *(() if given is None else given.remarks)),
    )
