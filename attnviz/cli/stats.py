"""`attnviz stats`: what each head does, measured over a corpus."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
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
    from attnviz.measuring.opening import Opening
    from attnviz.measuring.probing import Probe
    from attnviz.measuring.source import Source
    from attnviz.measuring.tally import Part
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
                    found = _documents(done.source, documents, corpus)
                    maps = _rolled(name, done.source(), found)
                    writers.append(_drawn(maps, Path(shown), staging, look, work))
            work.stage("writing")
            staging.write([partial(writer, done.report) for writer in writers])
    with verdict(SOME_BAD if done.part.tally.bad else 0):
        _say(done, report, how)


# ── what is measured, and with what ──────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Done:
    """What came of the measuring; `source` opens what was measured where that is not open yet."""

    part: Part
    report: HeadReport
    source: Callable[[], Source]
    notices: Sequence[str]


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
    tell = _teller(work, documents)
    source: Callable[[], Source] = cache(opening)
    try:
        if how.engine == "ray":
            from attnviz.measuring.cluster import drive_on_ray, ray_at

            if documents is None:
                raise ConfigError("--engine ray runs a model; --saved has its attention")
            work.stage("opening Ray, and what is measured in its workers")
            with ray_at(how.address, how.workers):
                part = drive_on_ray(
                    opening, documents, options, workers=how.workers, strict=how.strict,
                    checkpoint=checkpoint, resume=how.resume, tell=tell, gpus=gpus,
                )  # fmt: skip
        else:
            work.stage("opening")
            made = shards(_documents(source, documents, corpus))
            part = drive(
                source(), made, options, strict=how.strict, checkpoint=checkpoint,
                resume=how.resume, tell=tell,
            )  # fmt: skip
    except BaseException:
        if how.checkpoint is not None and how.checkpoint.exists():
            remark(f"what has been measured is in {printable(how.checkpoint)}; --resume goes on")
        raise
    if part is None or not part.tally.documents:
        raise InputError(_nothing(part))
    probe = None
    if measures.probe is not None:
        from attnviz.measuring.probing import probe_induction

        work.stage("probing with random tokens that repeat")
        probe = probe_induction(source(), 0)
    notices = getattr(source(), "notices", ()) if how.engine == "local" else ()
    return _Done(part, _report(part, options, probe, documents), source, notices)


def _nothing(part: Part | None) -> str:
    if part is None or not part.tally.bad:
        return "there are no documents: every line is empty"
    first = part.tally.named[0]
    return f"none of {part.tally.bad:,} documents could be measured: {first.name} {first.why}"


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
    source: Callable[[], Source], documents: Corpus | None, flags: CorpusFlags
) -> Iterator[tuple[Document | Bad, int]]:
    """What is measured: a corpus, or the saved runs that `source` opens."""
    if documents is not None:
        return documents.documents()
    from attnviz.measuring.saved import Saved

    saved = source()
    assert isinstance(saved, Saved)
    return islice(saved.documents(), flags.limit)


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
    part: Part, options: Options, probe: Probe | None, documents: Corpus | None
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
        part.facts.layer_numbers,
        part.facts.name,
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
    name: str, source: Source, documents: Iterable[tuple[Document | Bad, int]]
) -> AttentionResult:
    """The rollout or flow of the first document that can be measured."""
    from attnviz.measuring.rolling import rolled

    how: Any = name
    for found, _ in documents:
        if isinstance(found, Document):
            try:
                ready = source.ready(found)
            except InputError:  # it was skipped, and said to be
                continue
            return rolled(source, ready, source.tokens(ready), how)
    raise InputError(f"--{name}: there is no document")


def _drawn(
    maps: AttentionResult, path: Path, staging: Staging, look: LookFlags, work: Work
) -> Callable[[HeadReport], object]:
    """A writer of a picture of `maps`, one a layer."""
    from attnviz.cli.outputs import Outputs
    from attnviz.sources.run import Run

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
        for notice in done.notices:
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
