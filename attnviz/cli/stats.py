"""`attnviz stats`: what each head does, measured over a corpus."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from attnviz.cli.console import remark, result, verdict
from attnviz.cli.corpus import fingerprint, make_corpus, make_opening
from attnviz.cli.files import Staging, kind_of
from attnviz.cli.options import (
    LayerFlags,
    LookFlags,
    MaskFlags,
    ModelFlags,
    SourceFlags,
    spread,
)
from attnviz.cli.progress import Work
from attnviz.cli.stats_flags import DRAWN, CorpusFlags, MeasureFlags, ReportFlags, WorkFlags
from attnviz.errors import ConfigError, InputError, OutputError, printable
from attnviz.measuring.documents import Bad, Corpus, Document

if TYPE_CHECKING:
    from attnviz.measuring.drive import Progress
    from attnviz.measuring.probing import Probe
    from attnviz.measuring.source import Opening, Source
    from attnviz.measuring.tally import Part, Tally
    from attnviz.render.heads_report import HeadReport
    from attnviz.result import AttentionResult
    from attnviz.stats.block import Annotation
    from attnviz.stats.measures import Options

SOME_BAD = 3
"""The exit code where some documents could not be measured, and all others were."""

NAMED = 5
"""Bad documents that are named; `--json` names up to 100."""

EXAMPLES = """Examples:

attnviz stats "The cat sat on the mat." "A dog came in, and the cat ran." --causal

attnviz stats --file 'samples/*.txt' --causal --sort first -o heads.csv --force

Of a model: attnviz stats --model ./all-MiniLM-L6-v2 --file 'corpus/*.txt.gz' -o heads.csv"""


@spread
def stats(
    corpus: CorpusFlags,
    layer: LayerFlags,
    weights: SourceFlags,
    model: ModelFlags,
    masking: MaskFlags,
    measures: MeasureFlags,
    report: ReportFlags,
    how: WorkFlags,
    look: LookFlags,
) -> None:
    """Measure what each head does over a corpus: where it looks, how sharply, what it is."""
    look.look()
    options = _options(corpus, measures, report)
    with TemporaryDirectory(prefix="attnviz-") as scratch, Staging(report.force) as staging:
        writers = _plan(report, look, staging)
        with Work() as work:
            work.stage("reading")
            documents = None if corpus.saved else make_corpus(corpus, layer.seed, Path(scratch))
            opening = make_opening(
                corpus, documents, layer, masking, weights, model, measures.probe is not None
            )
            gpus = float(layer.device == "cuda")
            done = _measure(corpus, documents, opening, options, measures, how, report, work, gpus)
            for name, shown in (("rollout", report.rollout), ("flow", report.flow)):
                if shown is not None:
                    work.stage(name)
                    writers.append(_rolled(name, Path(shown), done, staging, look, work))
            work.stage("writing")
            staging.write([partial(writer, done.report) for writer in writers])
    with verdict(SOME_BAD if done.part.tally.bad else 0):
        _say(done, report, how)


# ── what is measured, and with what ──────────────────────────────────────────────────────────


class _Done:
    """What came of the measuring: the figures, and the source where it is still open."""

    def __init__(
        self, part: Part, report: HeadReport, source: Source, first: Document | None
    ) -> None:
        self.part, self.report, self.source, self.first = part, report, source, first


def _options(corpus: CorpusFlags, measures: MeasureFlags, report: ReportFlags) -> Options:
    from attnviz.stats.agreement import DOCUMENTS
    from attnviz.stats.measures import Options

    groups = list(measures.groups)
    if measures.agreement is not None or report.agreement_out is not None:
        groups.append("agreement")
    if corpus.gold:
        groups.append("gold")
    options = Options(tuple(groups), measures.near, measures.first, measures.agreement or DOCUMENTS)
    _require_figures(options, measures, report)
    return options


def _require_figures(options: Options, measures: MeasureFlags, report: ReportFlags) -> None:
    """Raise `ConfigError` where a figure that is asked for is none, or will not be measured."""
    from difflib import get_close_matches

    from attnviz.stats.glossary import GLOSSARY
    from attnviz.stats.induction import Induction
    from attnviz.stats.measures import Measures

    taken = set(Measures(1, 1, options).result())
    if measures.probe is not None:
        taken |= set(Induction(1, 1).result())
    for flag, name in (("--measure", report.measure), ("--sort", report.sort)):
        if name is None or name in taken:
            continue
        if name not in GLOSSARY:
            near = get_close_matches(name, GLOSSARY, n=3) or ["entropy", "self", "sink"]
            raise ConfigError(
                f"{flag} {printable(name)} is no figure of heads; near ones are {', '.join(near)}"
            )
        if name in Induction(1, 1).result():
            wants = "--probe induction"
        else:
            wants = "--gold" if name == "gold" else "another group in --measures"
        if flag == "--sort" or name != ReportFlags.measure:
            raise ConfigError(f"{flag} {name} is not measured: it wants {wants}")


def _measure(
    corpus: CorpusFlags,
    documents: Corpus | None,
    opening: Opening,
    options: Options,
    measures: MeasureFlags,
    how: WorkFlags,
    report: ReportFlags,
    work: Work,
    gpus: float,
) -> _Done:
    from attnviz.measuring.batches import shards
    from attnviz.measuring.checkpoint import Checkpoint
    from attnviz.measuring.drive import drive

    checkpoint = None
    if how.checkpoint is not None:
        told = fingerprint(documents, opening, options)
        checkpoint = Checkpoint(how.checkpoint, told)
        _require_place(how, report.force)
    work.stage("opening")
    source = opening()
    first: list[Document] = []
    made = _watched(_documents(source, documents, corpus), first)
    tell = _teller(work, documents)
    try:
        if how.engine == "ray":
            from attnviz.measuring.cluster import drive_on_ray

            if documents is None:
                raise ConfigError("--engine ray runs a model; --saved has its attention")
            first += [f for f, _ in islice(documents.documents(), 1) if isinstance(f, Document)]
            part = drive_on_ray(
                opening, source, documents, options, address=how.address, workers=how.workers,
                strict=how.strict, checkpoint=checkpoint, resume=how.resume, tell=tell,
                gpus=gpus,
            )  # fmt: skip
        else:
            part = drive(
                source, shards(made), options, strict=how.strict, checkpoint=checkpoint,
                resume=how.resume, tell=tell,
            )  # fmt: skip
    except BaseException:
        if how.checkpoint is not None and how.checkpoint.exists():
            remark(f"what has been measured is in {printable(how.checkpoint)}; --resume goes on")
        raise
    if not part.tally.documents:
        raise InputError(_nothing(part.tally))
    probe = None
    if measures.probe is not None:
        from attnviz.measuring.probing import probe_induction

        work.stage("probing with random tokens that repeat")
        probe = probe_induction(source, 0)
    made_report = _report(part, source, options, probe, documents)
    return _Done(part, made_report, source, first[0] if first else None)


def _nothing(tally: Tally) -> str:
    if not tally.bad:
        return "there are no documents: every line is empty"
    first = tally.named[0]
    return f"none of {tally.bad:,} documents could be measured: {first.name} {first.why}"


def _require_place(how: WorkFlags, force: bool) -> None:
    assert how.checkpoint is not None
    shown, there = printable(how.checkpoint), how.checkpoint.exists()
    if how.resume and not there:
        raise InputError(f"--resume: there is no checkpoint {shown}")
    if there and not how.resume and not force:
        raise OutputError(f"{shown} exists; --resume goes on from it, --force begins anew")
    if not how.checkpoint.parent.is_dir():
        raise OutputError(f"--checkpoint {shown}: its folder is not there")


def _documents(
    source: Source, documents: Corpus | None, flags: CorpusFlags
) -> Iterator[tuple[Document | Bad, int]]:
    if documents is not None:
        yield from documents.documents()
        return
    from attnviz.measuring.saved import Saved

    assert isinstance(source, Saved)
    for i, found in enumerate(source.documents()):
        if flags.limit is not None and i >= flags.limit:
            return
        yield found


def _watched(
    documents: Iterator[tuple[Document | Bad, int]], first: list[Document]
) -> Iterator[tuple[Document | Bad, int]]:
    """The same; the first good document is remembered."""
    for found, position in documents:
        if not first and isinstance(found, Document):
            first.append(found)
        yield found, position


def _teller(work: Work, documents: Corpus | None) -> Callable[[Progress], None]:
    begun = time.monotonic()
    total = 0 if documents is None else documents.n_bytes

    def tell(progress: Progress) -> None:
        rate = progress.documents / max(time.monotonic() - begun, 1e-9)
        name = f"measuring: {progress.documents:,} documents, {rate:,.0f} a second"
        work.reach(progress.position, max(total, progress.position), name)

    return tell


# ── what comes of it ─────────────────────────────────────────────────────────────────────────


def _report(
    part: Part, source: Source, options: Options, probe: Probe | None, documents: Corpus | None
) -> HeadReport:
    from attnviz.render.heads_report import HeadReport
    from attnviz.stats.agreement import Agreement
    from attnviz.stats.gold import best_offsets
    from attnviz.stats.offsets import Offsets
    from attnviz.stats.sinks import Sinks

    figures = part.measures.result()
    told = None
    if probe is not None:
        figures |= probe.scores
        told = {name: value for name, value in vars(probe).items() if name != "scores"}
    parts, tally = part.measures.parts, part.tally
    sinks, offsets = parts.get("sinks"), parts.get("offsets")
    agreement = parts.get("agreement")
    rows = [part.sums["rows"].max() for part in parts.values() if "rows" in part.sums]
    facts = {
        "documents": tally.documents,
        "tokens": tally.tokens,
        "rows": int(max(rows, default=0)),
        "cut": tally.cut,
        "longest": tally.longest,
        "n_bad": tally.bad,
        "bad": [{"document": bad.name, "why": bad.why} for bad in tally.named],
        "near": options.window,
        "first_tokens": options.first,
    }
    shares, places = offsets.shares() if isinstance(offsets, Offsets) else (None, None)
    return HeadReport(
        figures,
        source.layer_numbers,
        source.name,
        facts,
        alpha=sinks.alpha() if isinstance(sinks, Sinks) else None,
        offsets=places,
        offset_shares=shares,
        divergences=agreement.divergences() if isinstance(agreement, Agreement) else None,
        gold_offsets=best_offsets(_annotations(documents)) if "gold" in parts else {},
        probe=told,
    )


def _annotations(documents: Corpus | None) -> list[Annotation]:
    from attnviz.stats.block import Annotation

    assert documents is not None
    found = (each for each, _ in documents.documents())
    return [
        Annotation(each.pairs, ())
        for each in found
        if isinstance(each, Document) and each.pairs is not None
    ]


def _plan(
    report: ReportFlags, look: LookFlags, staging: Staging
) -> list[Callable[[HeadReport], object]]:
    """A writer for each output; all places are claimed."""
    writers: list[Callable[[HeadReport], object]] = []
    for given in report.out or ():
        place = staging.plan(Path(given))
        writers.append(partial(_write, place, report.measure, look))
    if report.agreement_out is not None:
        place = staging.plan(Path(report.agreement_out))
        writers.append(partial(_draw_agreement, place, look))
    return writers


def _write(place: Path, measure: str, look: LookFlags, made: HeadReport) -> None:
    from attnviz.render import heads_files

    measure, suffix = _drawable(measure, made), place.suffix.lower()
    if suffix in DRAWN:
        from attnviz.render.heads_picture import draw_matrix

        draw_matrix(made, measure, place, look.look())
    elif suffix == ".html":
        from attnviz.render.heads_page import write_page

        write_page(made, place, measure)
    else:
        forms = {
            ".json": heads_files.write_json,
            ".csv": heads_files.write_csv,
            ".parquet": heads_files.write_parquet,
        }
        forms[suffix](made, place)


def _drawable(measure: str, made: HeadReport) -> str:
    """`measure`, or where nobody asked for it and it was not taken, the first that was."""
    return measure if measure in made.figures else next(iter(made.figures))


def _draw_agreement(place: Path, look: LookFlags, made: HeadReport) -> None:
    from attnviz.render.heads_picture import draw_agreement

    draw_agreement(made, place, look.look())


def _rolled(
    name: str, path: Path, done: _Done, staging: Staging, look: LookFlags, work: Work
) -> Callable[[HeadReport], object]:
    """A writer of the rollout or flow of the first document."""
    from attnviz.cli.outputs import Outputs
    from attnviz.measuring.rolling import rolled
    from attnviz.sources.run import Run

    if done.first is None:
        raise InputError(f"--{name}: there is no document")
    ready = done.source.ready(done.first)
    tokens = done.source.tokens(ready)
    how: Any = name
    maps: AttentionResult = rolled(done.source, ready, tokens, how)
    pairs = [(number, 0) for number in maps.layer_numbers]
    outputs = Outputs(staging, look, [0], pairs, (True, False), work)
    outputs.plan(path, kind_of(str(path)))
    writers = outputs.writers(Run(maps, ()))

    def write(_report: HeadReport) -> None:
        for writer in writers:
            writer()

    return write


def _say(done: _Done, report: ReportFlags, how: WorkFlags) -> None:
    """Figures on standard output, everything else on standard error."""
    tally = done.part.tally
    if not report.quiet:
        for notice in getattr(done.source, "notices", ()):
            remark(notice)
    if tally.bad:
        for bad in tally.named[:NAMED]:
            remark(f"skipped: {bad.name} {bad.why}")
        more = tally.bad - NAMED
        if more > 0:
            remark(f"skipped: {more:,} more documents")
    if report.as_json:
        from attnviz.render.heads_files import report_as_json

        document = report_as_json(done.report)
        result(json.dumps(document, ensure_ascii=True, indent=1, allow_nan=False))
    elif not report.quiet:
        from attnviz.render.console import make_console
        from attnviz.render.heads_report import print_matrix, print_report

        console = make_console()
        print_report(done.report, console, report.sort, report.top or None)
        if console.is_terminal if report.show is None else report.show:
            result("")
            print_matrix(done.report, _drawable(report.measure, done.report), console)
        if tally.cut:
            remark(f"{tally.cut:,} of {tally.documents:,} documents were cut by --max-len")
    if report.quiet:
        return
    for given in (*(report.out or ()), report.agreement_out, report.rollout, report.flow):
        if given is not None:
            remark(f"Wrote {printable(given)}")
    if how.checkpoint is not None:
        remark(f"Wrote {printable(how.checkpoint)}")
