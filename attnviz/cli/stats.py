"""`attnviz stats`: what each head does, measured over a corpus."""

from __future__ import annotations

import json
import os
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
from attnviz.cli.inputs import named_files
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
from attnviz.corpus.documents import Bad, Corpus, Document
from attnviz.errors import AttnvizError, ConfigError, InputError, OutputError, printable
from attnviz.wording import plural

if TYPE_CHECKING:
    from attnviz.corpus.drive import Progress
    from attnviz.corpus.opening import Opening
    from attnviz.corpus.probing import Probe
    from attnviz.corpus.reader import CorpusReader
    from attnviz.corpus.tally import Part
    from attnviz.measures.block import Annotation
    from attnviz.measures.measures import Options
    from attnviz.render.heads_report import HeadReport
    from attnviz.result import Attention

Writer = Callable[["HeadReport"], list[str] | None]
"""Writes one output and returns remarks."""

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
    say = _say_nothing if report.quiet else remark
    with TemporaryDirectory(prefix="attnviz-") as scratch, Staging(report.force) as staging:
        writers = _plan(report, look, staging)
        _require_place(how, report.force, staging)
        for notice in named_files(corpus.text or ()):
            say(notice)
        with Work() as work:
            work.stage("reading")
            documents = None if corpus.saved else make_corpus(corpus, layer.seed, Path(scratch))
            _require_labels(report, documents)
            opening = make_opening(
                corpus, documents, layer, masking, weights, model, measures.probe is not None, say
            )
            # on Ray the models are those of the workers, and none is held here meanwhile
            source: Callable[[], CorpusReader] = opening if how.engine == "ray" else cache(opening)
            for name, shown in (("rollout", report.rollout), ("flow", report.flow)):
                if shown is not None:  # before the long work, so that what cannot be is told now
                    work.stage(name)
                    opened = source()
                    maps = _rolled(name, opened, _documents(opened, documents, corpus))
                    writers.append(_drawn(maps, Path(shown), staging, look, work))
            gpus = float(layer.device == "cuda")
            done = _measure(
                corpus, documents, opening, source, options, measures, how, work, gpus
            )  # fmt: skip
            work.stage("writing")
            notices = list(done.notices)

            def write(writer: Writer) -> None:
                notices.extend(writer(done.report) or ())

            staging.write([partial(write, writer) for writer in writers])
    with verdict(SOME_BAD if done.part.tally.bad else 0):
        _say(done, report, how, look, dict.fromkeys(notices))


def _say_nothing(_text: str) -> None:
    pass


# ── what is measured, and with what ──────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Done:
    """What came of the measuring."""

    part: Part
    report: HeadReport
    notices: Sequence[str]


def _options(corpus: CorpusFlags, measures: MeasureFlags, report: ReportFlags) -> Options:
    from attnviz.measures.agreement import DOCUMENTS
    from attnviz.measures.measures import Options

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

    from attnviz.measures.glossary import GLOSSARY
    from attnviz.measures.induction import Induction
    from attnviz.measures.measures import Measures

    taken = set(Measures(1, 1, options).result())
    if measures.probe is not None:
        taken |= set(Induction(1, 1).result())
    for flag, name in (("--measure", report.measure), ("--sort", report.sort)):
        if name is None or name in taken or (_label(name) and "gold" in taken):
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


def _label(name: str) -> str:
    """The label of annotated pairs whose figure `name` is, if it is one."""
    return name.removeprefix("gold ") if name.startswith("gold ") else ""


def _require_labels(report: ReportFlags, documents: Corpus | None) -> None:
    """Raise `ConfigError` where the figure of a label is asked for that no pair has."""
    for flag, name in (("--measure", report.measure), ("--sort", report.sort)):
        label = _label(name or "")
        if label and label not in (known := _labels(documents)):
            some = ", ".join(printable(each, 40) for each in sorted(known)[:8]) or "none"
            raise ConfigError(
                f"{flag} {printable(name)}: no pair of --gold has that label; labels are {some}"
            )


def _measure(
    corpus: CorpusFlags,
    documents: Corpus | None,
    opening: Opening,
    source: Callable[[], CorpusReader],
    options: Options,
    measures: MeasureFlags,
    how: WorkFlags,
    work: Work,
    gpus: float,
) -> _Done:
    from attnviz.corpus.batches import shards
    from attnviz.corpus.checkpoint import Checkpoint
    from attnviz.corpus.drive import drive

    checkpoint = None
    if how.checkpoint is not None:
        checkpoint = Checkpoint(how.checkpoint, fingerprint(documents, opening, options))
    teller = _Teller(work, documents)
    try:
        if how.engine == "ray":
            from attnviz.corpus.cluster import drive_on_ray, ray_at

            if documents is None:
                raise ConfigError("--engine ray runs a model; --saved has its attention")
            work.stage("opening Ray, and what is measured in its workers")
            with ray_at(how.address, how.workers):
                part = drive_on_ray(
                    opening, documents, options, workers=how.workers, strict=how.strict,
                    checkpoint=checkpoint, resume=how.resume, tell=teller, gpus=gpus,
                )  # fmt: skip
        else:
            work.stage("opening")
            opened = source()
            part = drive(
                opened, shards(_documents(opened, documents, corpus)), options,
                strict=how.strict, checkpoint=checkpoint, resume=how.resume, tell=teller,
            )  # fmt: skip
    except BaseException as error:
        kept = how.checkpoint is not None and how.checkpoint.exists()
        if kept and (teller.told or not isinstance(error, AttnvizError)):
            remark(f"what has been measured is in {printable(how.checkpoint)}; --resume goes on")
        raise
    if part is None or not part.tally.documents:
        raise InputError(_nothing(part))
    probe = None
    if measures.probe is not None:
        from attnviz.corpus.probing import probe_induction

        work.stage("probing with random tokens that repeat")
        probe = probe_induction(source(), 0)
    notices = source().notes if how.engine == "local" else ()
    return _Done(part, _report(part, options, probe, documents), notices)


def _nothing(part: Part | None) -> str:
    if part is None or not part.tally.bad:
        return "there are no documents: every text is empty"
    first, n = part.tally.named[0], part.tally.bad
    which = "the only document cannot" if n == 1 else f"none of {n:,} documents can"
    return f"{which} be measured: {first.name} {first.why}"


def _require_place(how: WorkFlags, force: bool, staging: Staging) -> None:
    """Raise `InputError` or `OutputError` where no checkpoint could be read or written."""
    path = how.checkpoint
    if path is None:
        return
    shown, there = printable(path), path.exists()
    if how.resume and not there:
        raise InputError(f"--resume: there is no checkpoint {shown}")
    Staging(force=True).plan(path)  # says what is wrong with a place
    if Path(os.path.realpath(path)) in staging.places:
        raise OutputError(f"{shown} would be a checkpoint and an output; give each its own path")
    if there and not how.resume and not force:
        raise OutputError(f"{shown} exists; --resume goes on from it, --force begins anew")
    if not path.parent.is_dir():
        raise OutputError(f"--checkpoint {shown}: its folder is not there")


def _documents(
    source: CorpusReader, documents: Corpus | None, flags: CorpusFlags
) -> Iterator[tuple[Document | Bad, int]]:
    """What is measured: a corpus, or saved runs, which `source` has opened."""
    if documents is not None:
        return documents.documents()
    from attnviz.corpus.saved_documents import documents_of
    from attnviz.sources.saved_source import SavedSource

    assert isinstance(source.source, SavedSource)
    return islice(documents_of(source.source), flags.limit)


class _Teller:
    """Shows how far the work is; `told` is whether any of it is done."""

    def __init__(self, work: Work, documents: Corpus | None) -> None:
        self._work, self._begun = work, time.monotonic()
        self._total = 0 if documents is None else documents.n_bytes
        self.told = False

    def __call__(self, progress: Progress) -> None:
        self.told = True
        rate = progress.documents / max(time.monotonic() - self._begun, 1e-9)
        name = f"measuring: {plural(progress.documents, 'document')}, {rate:,.0f} a second"
        self._work.reach(progress.position, max(self._total, progress.position), name)


# ── what comes of it ─────────────────────────────────────────────────────────────────────────


def _report(
    part: Part, options: Options, probe: Probe | None, documents: Corpus | None
) -> HeadReport:
    from attnviz.measures.agreement import Agreement
    from attnviz.measures.gold import best_offsets
    from attnviz.measures.offsets import Offsets
    from attnviz.measures.sinks import Sinks
    from attnviz.render.heads_report import HeadReport

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


def _labels(documents: Corpus | None) -> set[str]:
    return {label for each in _annotations(documents) for _, _, label in each.pairs}


def _annotations(documents: Corpus | None) -> list[Annotation]:
    from attnviz.measures.block import Annotation

    assert documents is not None
    found = (each for each, _ in documents.documents())
    return [
        Annotation(each.pairs, ())
        for each in found
        if isinstance(each, Document) and each.pairs is not None
    ]


def _plan(report: ReportFlags, look: LookFlags, staging: Staging) -> list[Writer]:
    """A writer for each output; all places are claimed."""
    writers: list[Writer] = []
    for given in report.out or ():
        place = staging.plan(Path(given))
        writers.append(partial(_write, place, report.measure, look))
    if report.agreement_out is not None:
        place = staging.plan(Path(report.agreement_out))
        writers.append(partial(_draw_agreement, place, look))
    return writers


def _write(place: Path, measure: str, look: LookFlags, made: HeadReport) -> list[str]:
    from attnviz.render import heads_files

    measure, suffix = _drawable(measure, made), place.suffix.lower()
    if suffix in DRAWN:
        from attnviz.render.head_matrices import draw_matrix

        return draw_matrix(made, measure, place, look.look())
    if suffix == ".html":
        from attnviz.render.heads_page import write_page

        write_page(made, place, measure)
    else:
        forms = {
            ".json": heads_files.write_json,
            ".csv": heads_files.write_csv,
            ".parquet": heads_files.write_parquet,
        }
        forms[suffix](made, place)
    return []


def _drawable(measure: str, made: HeadReport) -> str:
    """`measure`, or where nobody asked for it and it was not taken, the first that was."""
    return measure if measure in made.figures else next(iter(made.figures))


def _draw_agreement(place: Path, look: LookFlags, made: HeadReport) -> list[str]:
    from attnviz.render.head_matrices import draw_agreement

    return draw_agreement(made, place, look.look())


def _rolled(
    name: str, source: CorpusReader, documents: Iterable[tuple[Document | Bad, int]]
) -> Attention:
    """The rollout or flow of the first document that can be measured."""
    from attnviz.corpus.rolling import rolled

    how: Any = name
    for found, _ in documents:
        if isinstance(found, Document):
            try:
                ready = source.ready(found)
            except InputError:  # it was skipped, and said to be
                continue
            return rolled(source, ready, how)
    raise InputError(f"--{name}: there is no document")


def _drawn(maps: Attention, path: Path, staging: Staging, look: LookFlags, work: Work) -> Writer:
    """A writer of a picture of `maps`, one a layer."""
    from attnviz.cli.outputs import Outputs

    pairs = [(number, 0) for number in maps.layer_numbers]
    outputs = Outputs(staging, look, [0], pairs, (True, False), work)
    outputs.plan(path, kind_of(str(path)))
    writers = outputs.writers(maps)

    def write(_report: HeadReport) -> list[str]:
        for writer in writers:
            writer()
        return outputs.warnings

    return write


def _say(
    done: _Done, report: ReportFlags, how: WorkFlags, look: LookFlags, notices: Iterable[str]
) -> None:
    """Figures on standard output, everything else on standard error."""
    tally = done.part.tally
    if not report.quiet:
        for notice in notices:
            remark(notice)
    if tally.bad:
        for bad in tally.named[:NAMED]:
            remark(f"skipped: {bad.name} {bad.why}")
        more = tally.bad - NAMED
        if more > 0:
            remark(f"skipped: {plural(more, 'more document')}")
    if report.as_json:
        from attnviz.render.heads_files import report_as_json

        document = report_as_json(done.report)
        result(json.dumps(document, ensure_ascii=True, indent=1, allow_nan=False))
    elif not report.quiet:
        from attnviz.render.console import make_console
        from attnviz.render.heads_report import print_report

        console = make_console()
        sort = report.sort if report.sort in done.report.figures else None
        if sort != report.sort:  # a label of pairs
            remark(f"--sort {printable(report.sort)}: no such pair was measured")
        print_report(done.report, console, sort, report.top or None)
        if console.is_terminal if report.show is None else report.show:
            from attnviz.render.terminal_matrix import print_matrix

            result("")
            measure = _drawable(report.measure, done.report)
            print_matrix(done.report, measure, console, look.look())
        if tally.cut:
            what, were = plural(tally.documents, "document"), "was" if tally.cut == 1 else "were"
            remark(f"{tally.cut:,} of {what} {were} cut by --max-len")
    if report.quiet:
        return
    for given in (*(report.out or ()), report.agreement_out, report.rollout, report.flow):
        if given is not None:
            remark(f"Wrote {printable(given)}")
    if how.checkpoint is not None:
        remark(f"Wrote {printable(how.checkpoint)}")
