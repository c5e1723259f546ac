"""What `attnviz stats` writes and prints of the measures of heads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from attnviz.cli.files import Staging, kind_of
from attnviz.cli.options import LookFlags
from attnviz.cli.outputs import Outputs
from attnviz.cli.progress import Work
from attnviz.cli.stats_flags import DRAWN, ReportFlags, WorkFlags
from attnviz.cli.streams import result, warn
from attnviz.corpus.measured_shards import DocumentCounts, MeasuredShards
from attnviz.corpus.probing import Probe
from attnviz.errors import printable
from attnviz.measures.agreement import Agreement
from attnviz.measures.gold import Gold
from attnviz.measures.measures import Options
from attnviz.measures.offsets import Offsets
from attnviz.measures.sinks import Sinks
from attnviz.render.console import make_console
from attnviz.render.head_matrices import draw_agreement, draw_matrix
from attnviz.render.heads_files import report_as_json, write_csv, write_json, write_parquet
from attnviz.render.heads_page import write_page
from attnviz.render.heads_report import HeadReport, print_report
from attnviz.render.terminal_matrix import print_matrix
from attnviz.result import Attention
from attnviz.wording import plural

NAMED = 5
"""Bad documents that are named; `--json` names up to 100."""

MOST_NOTES = 10
"""Notes that are printed: of a thousand saved runs each may have one."""


class StatsOutputs:
    """The files of a run: all places are claimed at once, and all are written together."""

    def __init__(self, report: ReportFlags, look: LookFlags, staging: Staging) -> None:
        self._look, self._staging = look, staging
        self._writers: list[Callable[[HeadReport], list[str]]] = []
        for given in report.out or ():
            place = staging.plan(Path(given))
            self._writers.append(partial(self._write, place, report.measure))
        if report.agreement_out is not None:
            place = staging.plan(Path(report.agreement_out))
            self._writers.append(partial(self._draw_agreement, place))

    def add_maps(self, maps: Attention, path: Path, work: Work) -> None:
        """Also write `maps`, one a layer: a picture, a page or a saved run."""
        pairs = [(number, 0) for number in maps.layer_numbers]
        outputs = Outputs(self._staging, self._look, [0], pairs, (True, False), work)
        outputs.plan(path, kind_of(str(path)))
        writers = outputs.writers(maps)

        def write(_report: HeadReport) -> list[str]:
            for writer in writers:
                writer()
            return outputs.warnings

        self._writers.append(write)

    def write(self, made: HeadReport) -> list[str]:
        """Write everything; returns notes."""
        notes: list[str] = []

        def write(writer: Callable[[HeadReport], list[str]]) -> None:
            notes.extend(writer(made))

        self._staging.write([partial(write, writer) for writer in self._writers])
        return notes

    def _draw_agreement(self, place: Path, made: HeadReport) -> list[str]:
        return draw_agreement(made, place, self._look.look())

    def _write(self, place: Path, measure: str, made: HeadReport) -> list[str]:
        measure, suffix = _drawable(measure, made), place.suffix.lower()
        if suffix in DRAWN:
            return draw_matrix(made, measure, place, self._look.look())
        if suffix == ".html":
            write_page(made, place, measure)
        else:
            formats = {".json": write_json, ".csv": write_csv, ".parquet": write_parquet}
            formats[suffix](made, place)
        return []


def _drawable(measure: str, made: HeadReport) -> str:
    """`measure`, or where nobody asked for it and it was not taken, the first that was."""
    return measure if measure in made.figures else next(iter(made.figures))


def head_report(part: MeasuredShards, options: Options, probe: Probe | None) -> HeadReport:
    """The measures of all heads, and what is reported beside them."""
    values, of_probe = part.measures.result(), None
    if probe is not None:
        values |= probe.scores
        of_probe = {name: value for name, value in vars(probe).items() if name != "scores"}
    parts, counts = part.measures.parts, part.counts
    rows = [each.sums["rows"].max() for each in parts.values() if "rows" in each.sums]
    facts = {
        "documents": counts.documents,
        "tokens": counts.tokens,
        "rows": int(max(rows, default=0)),
        "cut": counts.cut,
        "longest": counts.longest,
        "n_bad": counts.bad,
        "bad": [{"document": bad.name, "why": bad.why} for bad in counts.named],
        "near": options.window,
        "first_tokens": options.first,
    }
    sinks, offsets = parts.get("sinks"), parts.get("offsets")
    agreement, gold = parts.get("agreement"), parts.get("gold")
    shares, places = offsets.shares() if isinstance(offsets, Offsets) else (None, None)
    return HeadReport(
        values,
        part.summary.layer_numbers,
        part.summary.name,
        facts,
        alpha=sinks.alpha() if isinstance(sinks, Sinks) else None,
        offsets=places,
        offset_shares=shares,
        divergences=agreement.divergences() if isinstance(agreement, Agreement) else None,
        compared=agreement.compared if isinstance(agreement, Agreement) else 0,
        gold_offsets=gold.best_offsets() if isinstance(gold, Gold) else {},
        probe=of_probe,
    )


def print_stats(
    made: HeadReport,
    counts: DocumentCounts,
    report: ReportFlags,
    how: WorkFlags,
    look: LookFlags,
    notes: Iterable[str],
) -> None:
    """The measures on standard output, everything else on standard error."""
    if not report.quiet:
        first, rest = list(notes)[:MOST_NOTES], list(notes)[MOST_NOTES:]
        for note in (*first, *([plural(len(rest), "more note")] if rest else [])):
            warn(note)
    for bad in counts.named[:NAMED]:
        warn(f"skipped: {bad.name} {bad.why}")
    if counts.bad > NAMED:
        warn(f"skipped: {plural(counts.bad - NAMED, 'more document')}")
    if report.as_json:
        document = report_as_json(made)
        result(json.dumps(document, ensure_ascii=True, indent=1, allow_nan=False))
    elif not report.quiet:
        _print_tables(made, report, look)
        if counts.cut:
            what, were = plural(counts.documents, "document"), "was" if counts.cut == 1 else "were"
            warn(f"{counts.cut:,} of {what} {were} cut by --max-len")
    if report.quiet:
        return
    written = *(report.out or ()), report.agreement_out, report.rollout, report.flow, how.checkpoint
    for path in written:
        if path is not None:
            warn(f"Wrote {printable(path)}")


def _print_tables(made: HeadReport, report: ReportFlags, look: LookFlags) -> None:
    console = make_console()
    sort = report.sort if report.sort in made.figures else None  # a label that was not measured
    print_report(made, console, sort, report.top or None)
    if console.is_terminal if report.show is None else report.show:
        result("")
        print_matrix(made, _drawable(report.measure, made), console, look.look())
