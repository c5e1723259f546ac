"""`attnviz stats`: what each head does, measured over a corpus."""

from __future__ import annotations

from attnviz.cli.options import (
    LayerFlags,
    LookFlags,
    MaskFlags,
    ModelFlags,
    SourceFlags,
    spread,
)
from attnviz.cli.stats_flags import CorpusFlags, MeasureFlags, ReportFlags, WorkFlags

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
    look.combination("stats")
    from attnviz.cli.stats_run import StatsRun

    StatsRun(corpus, layer, weights, model, masking, measures, report, how, look).run()
