"""Which measures `attnviz stats` takes, and whether those that are named are among them."""

from __future__ import annotations

from difflib import get_close_matches

from attnviz.cli.stats_flags import CorpusFlags, MeasureFlags, ReportFlags
from attnviz.corpus.measured_shards import MeasuredShards
from attnviz.errors import ConfigError, printable
from attnviz.measures.agreement import DOCUMENTS
from attnviz.measures.glossary import GLOSSARY
from attnviz.measures.gold import ANY, Gold
from attnviz.measures.induction import Induction
from attnviz.measures.measures import Measures, Options


def measure_options(corpus: CorpusFlags, measures: MeasureFlags, report: ReportFlags) -> Options:
    """The groups that are measured. Raises `ConfigError` for a name that none of them has."""
    groups = list(measures.groups)
    if measures.agreement is not None or report.agreement_out is not None:
        groups.append("agreement")
    if corpus.gold:
        groups.append("gold")
    options = Options(tuple(groups), measures.near, measures.first, measures.agreement or DOCUMENTS)
    _require_names(options, measures, report)
    return options


def _require_names(options: Options, measures: MeasureFlags, report: ReportFlags) -> None:
    """Raise `ConfigError` where a named measure does not exist, or will not be taken."""
    of_probe = set(Induction(1, 1).result())
    taken = set(Measures(1, 1, options).result())
    if measures.probe is not None:
        taken |= of_probe
    for flag, name in _named(report):
        if name in taken or (_label(name) and "gold" in taken):
            continue
        if name not in GLOSSARY:
            near = get_close_matches(name, GLOSSARY, n=3) or ["entropy", "self", "sink"]
            raise ConfigError(
                f"{flag} {printable(name)} is no measure of heads; near ones are {', '.join(near)}"
            )
        if name in of_probe:
            needs = "--probe induction"
        else:
            needs = "--gold" if name == "gold" else "another group in --measures"
        if flag == "--sort" or name != ReportFlags.measure:
            raise ConfigError(f"{flag} {name} is not measured: it needs {needs}")


def require_labels(report: ReportFlags, part: MeasuredShards) -> list[str]:
    """Raise `ConfigError` where the measure of a label is asked for that no pair has.

    The labels are known when the documents have been read, which is once. Where some documents were
    skipped, one of them may have had the label: then the measures are kept, and a note tells.
    """
    notes = []
    gold = part.measures.parts.get("gold")
    known = gold.labels() if isinstance(gold, Gold) else []
    for flag, name in _named(report):
        if _label(name) and _label(name) not in known:
            if part.counts.bad:
                notes.append(f"{flag} {printable(name)}: no such pair was measured")
                continue
            labels = ", ".join(printable(each, 40) for each in known[:8] if each != ANY) or "none"
            raise ConfigError(
                f"{flag} {printable(name)}: no pair of --gold has that label; labels are {labels}"
            )
    return notes


def _named(report: ReportFlags) -> list[tuple[str, str]]:
    """The measures that flags name, each with its flag."""
    flags = (("--measure", report.measure), ("--sort", report.sort))
    return [(flag, name) for flag, name in flags if name is not None]


def _label(name: str) -> str:
    """The label of annotated pairs whose measure `name` is, if it is one."""
    return name.removeprefix("gold ") if name.startswith("gold ") else ""
