"""The work of `attnviz stats`: open the source, measure the corpus, write what was asked for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from attnviz.cli.corpus import fingerprint, make_corpus, make_opening
from attnviz.cli.files import Staging
from attnviz.cli.inputs import named_files
from attnviz.cli.options import LayerFlags, LookFlags, MaskFlags, ModelFlags, SourceFlags
from attnviz.cli.progress import Work
from attnviz.cli.stats_flags import CorpusFlags, MeasureFlags, ReportFlags, WorkFlags
from attnviz.cli.stats_options import measure_options, require_labels
from attnviz.cli.stats_outputs import StatsOutputs, head_report, print_stats
from attnviz.cli.streams import verdict, warn
from attnviz.corpus.batches import SHARD, shards
from attnviz.corpus.checkpoint import Checkpoint
from attnviz.corpus.cluster import measure_on_ray, ray_at
from attnviz.corpus.documents import Bad, Corpus, Document
from attnviz.corpus.measure_corpus import MeasuringProgress, measure_corpus
from attnviz.corpus.measured_shards import MeasuredShards
from attnviz.corpus.opening import Opening
from attnviz.corpus.probing import probe_induction
from attnviz.corpus.reader import CorpusReader
from attnviz.errors import AttnvizError, ConfigError, InputError, OutputError, printable
from attnviz.measures.agreement import LENGTH, Agreement
from attnviz.measures.measures import Options
from attnviz.result import Attention
from attnviz.wording import plural

SOME_BAD = 3
"""The exit code where some documents could not be measured, and all others were."""


@dataclass(frozen=True)
class StatsRun:
    """One run of `attnviz stats`, by its flags."""

    corpus: CorpusFlags
    layer: LayerFlags
    weights: SourceFlags
    model: ModelFlags
    masking: MaskFlags
    measures: MeasureFlags
    report: ReportFlags
    how: WorkFlags
    look: LookFlags

    @cached_property
    def options(self) -> Options:
        """What is measured."""
        return measure_options(self.corpus, self.measures, self.report)

    def run(self) -> None:
        """Measure, write and print; ends with `SOME_BAD` where documents were left out."""
        flags, options = self.report, self.options
        with TemporaryDirectory(prefix="attnviz-") as scratch, Staging(flags.force) as staging:
            outputs = StatsOutputs(flags, self.look, staging)
            self._say(*self._require_checkpoint(staging), *named_files(self.corpus.text or ()))
            with Work() as work:
                work.stage("reading")
                documents = None
                if not self.corpus.saved:
                    documents = make_corpus(self.corpus, self.layer.seed, Path(scratch))
                opening = make_opening(
                    self.corpus, documents, self.layer, self.masking, self.weights, self.model,
                    self.measures.probe is not None, self._say,
                )  # fmt: skip
                opened = _OpenedOnce(opening, keep=self.how.engine == "local")
                for name, path in (("rollout", flags.rollout), ("flow", flags.flow)):
                    if path is not None:  # before the long work: what cannot be is refused now
                        work.stage(name)
                        maps = _rolled(name, opened(), self._documents(opened(), documents))
                        outputs.add_maps(maps, Path(path), work)
                part = self._measured(documents, opening, opened, work)
                probe = None
                if self.measures.probe is not None:
                    work.stage("probing with random tokens that repeat")
                    probe = probe_induction(opened(), 0)
                notes = require_labels(flags, part)
                work.stage("writing")
                made = head_report(part, options, probe)
                notes += opened.notes() + outputs.write(made)
        with verdict(SOME_BAD if part.counts.bad else 0):
            print_stats(made, part.counts, flags, self.how, self.look, dict.fromkeys(notes))

    def _say(self, *notes: str) -> None:
        if not self.report.quiet:
            for note in notes:
                warn(note)

    def _require_checkpoint(self, staging: Staging) -> list[str]:
        """Raise `InputError` or `OutputError` where no checkpoint could be read or written.

        Returns notes.
        """
        path = self.how.checkpoint
        if path is None:
            return []
        shown, exists = printable(path), path.exists()
        Staging(force=True).plan(path)  # says what is wrong with a place
        if Path(os.path.realpath(path)) in staging.places:
            raise OutputError(f"{shown} is both a checkpoint and an output; give each its own path")
        if exists and not self.how.resume and not self.report.force:
            raise OutputError(f"{shown} exists; --resume resumes from it, --force starts again")
        if not path.parent.is_dir():
            raise OutputError(f"--checkpoint {shown}: its folder is not there")
        if self.how.resume and not exists:
            return [f"--resume: there is no checkpoint {shown} yet; starting from the beginning"]
        return []

    def _documents(
        self, source: CorpusReader, documents: Corpus | None
    ) -> Iterator[tuple[Document | Bad, int]]:
        """What is measured: a corpus, or saved runs, which `source` has opened."""
        if documents is not None:
            return documents.documents()
        from attnviz.corpus.saved_documents import documents_of
        from attnviz.sources.saved_source import SavedSource

        assert isinstance(source.source, SavedSource)
        return islice(documents_of(source.source), self.corpus.limit)

    def _measured(
        self, documents: Corpus | None, opening: Opening, opened: _OpenedOnce, work: Work
    ) -> MeasuredShards:
        """The measures of the whole corpus, by the engine that was asked for."""
        how, checkpoint = self.how, None
        if how.checkpoint is not None:
            belongs_to = fingerprint(documents, opening, self.options)
            checkpoint = Checkpoint(how.checkpoint, belongs_to)
        drawn = self.report.agreement_out is not None
        watch = _MeasuringWatch(
            work, documents, self.options.agreement_documents if drawn else None
        )
        try:
            if how.engine == "ray":
                if documents is None:
                    raise ConfigError("--engine ray runs a model; --saved has its attention")
                work.stage("opening Ray, and what is measured in its workers")
                with ray_at(how.address, how.workers):
                    part = measure_on_ray(
                        opening, documents, self.options, workers=how.workers, strict=how.strict,
                        checkpoint=checkpoint, resume=how.resume, tell=watch,
                        gpus=float(self.layer.device == "cuda"),
                    )  # fmt: skip
            else:
                work.stage("opening")
                source = opened()
                part = measure_corpus(
                    source, shards(self._documents(source, documents)), self.options,
                    strict=how.strict, checkpoint=checkpoint, resume=how.resume, tell=watch,
                )  # fmt: skip
            if part is None or not part.counts.documents:
                raise InputError(_nothing(part))
            watch.require_agreement(part)
        except BaseException as error:
            kept = how.checkpoint is not None and how.checkpoint.exists()
            if kept and (watch.has_measured or not isinstance(error, AttnvizError)):
                kept_in = printable(how.checkpoint)
                warn(f"what has been measured is in {kept_in}; --resume continues from it")
            raise
        return part


class _OpenedOnce:
    """Opens the source at the first call. With `keep`, later calls return the same one.

    On Ray each worker has a model of its own, and none is held here meanwhile.
    """

    def __init__(self, opening: Opening, keep: bool) -> None:
        self._opening, self._keep = opening, keep
        self._source: CorpusReader | None = None

    def __call__(self) -> CorpusReader:
        source = self._source or self._opening()
        self._source = source if self._keep else None
        return source

    def notes(self) -> list[str]:
        """Notes of the source that is held."""
        return [] if self._source is None else self._source.notes


class _MeasuringWatch:
    """Shows how far the work is, and ends it where the agreement that is drawn cannot be had.

    `has_measured`: whether any shard is done. `compared` is the number of first documents of which
    one must be compared; None where the agreement is not drawn.
    """

    def __init__(self, work: Work, documents: Corpus | None, compared: int | None) -> None:
        self._work, self._start = work, time.monotonic()
        self._total = 0 if documents is None else documents.n_bytes
        self._compared = compared
        self.has_measured = False

    def __call__(self, progress: MeasuringProgress) -> None:
        self.has_measured, n = True, progress.part.counts.documents
        rate = n / max(time.monotonic() - self._start, 1e-9)
        name = f"measuring: {plural(n, 'document')}, {rate:,.0f} a second"
        self._work.reach(progress.position, max(self._total, progress.position), name)
        first_shards = range(-(-(self._compared or 0) // SHARD))
        if all(shard in progress.shards for shard in first_shards):
            self.require_agreement(progress.part)

    def require_agreement(self, part: MeasuredShards) -> None:
        """Raise `InputError` where no document was compared: the picture would hold no number."""
        agreement = part.measures.parts.get("agreement")
        if self._compared and isinstance(agreement, Agreement) and not agreement.compared:
            n, most = self._compared, f"at most {LENGTH} tokens"
            has = (
                f"none of the first {n:,} documents has" if n > 1 else "the first document has not"
            )
            raise InputError(
                f"--agreement-out: {has} {most}, and heads are compared on such documents only; "
                f"--max-len {LENGTH} cuts documents, --agreement N compares more of them"
            )


def _nothing(part: MeasuredShards | None) -> str:
    if part is None or not part.counts.bad:
        return "there are no documents: every text is empty"
    first, n = part.counts.named[0], part.counts.bad
    which = "the only document cannot" if n == 1 else f"none of {n:,} documents can"
    return f"{which} be measured: {first.name} {first.why}"


def _rolled(
    name: str, source: CorpusReader, documents: Iterator[tuple[Document | Bad, int]]
) -> Attention:
    """The rollout or flow of the first document that can be measured."""
    from attnviz.corpus.rolling import rolled

    for found, _ in documents:
        if isinstance(found, Document):
            try:
                ready = source.ready(found)
            except InputError:  # it is reported when the corpus is measured
                continue
            return rolled(source, ready, "flow" if name == "flow" else "rollout")
    raise InputError(f"--{name}: there is no document")
