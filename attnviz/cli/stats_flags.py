"""The flags of `attnviz stats`: which corpus, which measures, what comes of it, how it is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from attnviz.cli.options import INPUT, OUTPUT, FlagGroup, flag, optional
from attnviz.config import check_size, choice
from attnviz.errors import ConfigError, OutputError, printable
from attnviz.machine import require_package

MEASURES, WORK = "Measures", "Work"
TABLES, DRAWN = (".json", ".csv", ".parquet", ".html"), (".png", ".svg", ".pdf")
MAPS = (*DRAWN, ".html", ".npz", ".safetensors", ".json")
ENGINES = ("local", "ray")
PROBES = ("induction",)
DEFAULT_GROUPS = "where,sharpness,offsets,sinks,evenness,rank"


@dataclass(frozen=True)
class CorpusFlags(FlagGroup):
    """Where the documents come from, and which of them are taken."""

    text: Annotated[
        list[str] | None,
        typer.Argument(help="Documents, one an argument; or --file.", show_default=False),
    ] = None
    file: Annotated[
        list[str] | None,
        optional(
            "--file",
            panel=INPUT,
            metavar="FILE",
            help="One document per line: text, .jsonl, .parquet; .gz and .zst are unpacked; "
            "'a/*.txt' takes all that match; - is standard input. Repeatable.",
        ),
    ] = None
    field: Annotated[
        str | None,
        optional(
            panel=INPUT,
            metavar="NAME",
            help="Which field or column holds the documents; tokens or text if omitted.",
        ),
    ] = None
    saved: Annotated[
        list[str] | None,
        optional(
            "--saved",
            panel=INPUT,
            metavar="FILE",
            help="Saved runs, or arrays of attention, in place of a corpus and a source. "
            "Repeatable.",
        ),
    ] = None
    axes: Annotated[
        str | None,
        optional(
            panel=INPUT,
            metavar="LETTERS",
            help='Of arrays of --saved: which axis is which, "L B H Q K" in their order: layers, '
            "sequences, heads, queries, keys.",
        ),
    ] = None
    gold: Annotated[
        list[str] | None,
        optional(
            "--gold",
            panel=INPUT,
            metavar="FILE",
            help='Annotated documents, JSON lines: {"words": ["a", "cat"], "pairs": [[1, 0, '
            '"det"]]}. Repeatable.',
        ),
    ] = None
    limit: Annotated[
        int | None, optional(panel=INPUT, metavar="N", help="Take the first N documents.")
    ] = None
    sample: Annotated[
        int | None,
        optional(panel=INPUT, metavar="N", help="Take N documents, drawn by --seed."),
    ] = None
    tokenizer: Annotated[
        str,
        flag(panel=INPUT, help="words, chars, bytes, or a tokenizer.json; a model has its own."),
    ] = "words"
    encoding: Annotated[str, flag(panel=INPUT, help="Of the files.")] = "utf-8"

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_size("--limit", self.limit)
        if self.sample is not None:
            check_size("--sample", self.sample)
        if self.limit is not None and self.sample is not None:
            raise ConfigError("--limit and --sample both say how many documents; give one of them")
        if self.saved:
            others = {
                "TEXT": self.text,
                "--file": self.file,
                "--gold": self.gold,
                "--field": self.field,
                "--sample": self.sample,
                "--tokenizer": self.tokenizer != "words",
                "--encoding": self.encoding != "utf-8",
            }
            for name, value in others.items():
                if value:
                    raise ConfigError(
                        f"--saved and {name} both say what is measured; give one of them"
                    )
        elif self.axes is not None:
            raise ConfigError("--axes are those of the arrays of --saved")
        if self.text and self.field:
            raise ConfigError("--field is one of --file; TEXT has none")


@dataclass(frozen=True)
class MeasureFlags(FlagGroup):
    """What is measured."""

    measures: Annotated[
        str,
        flag(
            panel=MEASURES,
            metavar="GROUPS",
            help="Groups of measures, of where, sharpness, offsets, sinks, evenness, rank.",
        ),
    ] = DEFAULT_GROUPS
    near: Annotated[
        int, flag(panel=MEASURES, metavar="K", help="Positions on each side that count as near.")
    ] = 5
    first: Annotated[
        int, flag(panel=MEASURES, metavar="N", help="How many first tokens are counted together.")
    ] = 4
    agreement: Annotated[
        int | None,
        optional(
            panel=MEASURES,
            metavar="N",
            help="Compare all pairs of heads, on the first N documents: Jensen–Shannon.",
        ),
    ] = None
    probe: Annotated[
        str | None,
        optional(
            panel=MEASURES,
            metavar="NAME",
            help="induction: scores on random tokens that repeat, with the model's loss on them.",
        ),
    ] = None

    def __post_init__(self) -> None:
        check_size("--near", self.near)
        check_size("--first", self.first)
        if self.agreement is not None:
            check_size("--agreement", self.agreement)
        if self.probe is not None:
            choice("--probe", self.probe, PROBES)
        known = DEFAULT_GROUPS.split(",")
        if not self.groups:
            raise ConfigError(f"--measures names none; known are {', '.join(known)}")
        for name in self.groups:
            if name not in known:
                raise ConfigError(f"--measures {printable(name)}: known are {', '.join(known)}")

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups, each once."""
        return tuple(dict.fromkeys(name for name in self.measures.replace(",", " ").split()))


@dataclass(frozen=True)
class ReportFlags(FlagGroup):
    """What comes of the measures."""

    out: Annotated[
        list[str] | None,
        optional(
            "--out",
            "-o",
            panel=OUTPUT,
            metavar="FILE",
            help="The suffix selects the format: .json .csv .parquet (all measures), .png .svg "
            ".pdf (layers × heads, coloured by --measure), .html (a page). Repeatable.",
        ),
    ] = None
    measure: Annotated[
        str,
        flag(panel=OUTPUT, metavar="NAME", help="Which measure pictures and --show draw."),
    ] = "entropy"
    agreement_out: Annotated[
        str | None,
        optional(
            panel=OUTPUT,
            metavar="FILE",
            help="A picture of how alike all heads are, clustered: .png .svg .pdf.",
        ),
    ] = None
    rollout: Annotated[
        str | None,
        optional(
            panel=OUTPUT,
            metavar="FILE",
            help="Attention rollout of the first document, up to each layer: a picture, a page or "
            "a run.",
        ),
    ] = None
    flow: Annotated[
        str | None,
        optional(
            panel=OUTPUT,
            metavar="FILE",
            help="Attention flow of the first document, of at most 64 tokens: likewise.",
        ),
    ] = None
    sort: Annotated[
        str | None,
        optional(panel=OUTPUT, metavar="NAME", help="Sort the heads by a measure, largest first."),
    ] = None
    top: Annotated[
        int, flag(panel=OUTPUT, metavar="N", help="Rows of the table; 0 shows every head.")
    ] = 40
    show: Annotated[
        bool | None,
        optional(
            "--show/--no-show",
            panel=OUTPUT,
            help="Layers × heads in the terminal (on when it is one).",
        ),
    ] = None
    as_json: Annotated[
        bool,
        flag("--json", panel=OUTPUT, help="Print all measures as JSON, and nothing else."),
    ] = False
    force: Annotated[bool, flag("--force", panel=OUTPUT, help="Replace files that are there.")] = (
        False
    )
    quiet: Annotated[
        bool, flag("--quiet", "-q", panel=OUTPUT, help="Print nothing but errors.")
    ] = False

    def __post_init__(self) -> None:
        for given in self.out or ():
            _suffix("-o", given, (*TABLES, *DRAWN))
            if given.lower().endswith(".parquet"):
                require_package("pyarrow", f"-o {printable(given)}", "corpus")
        if self.agreement_out is not None:
            _suffix("--agreement-out", self.agreement_out, DRAWN)
            require_package("scipy", "--agreement-out", "corpus")
        for name, value in (("--rollout", self.rollout), ("--flow", self.flow)):
            if value is not None:
                _suffix(name, value, MAPS)
        if self.flow is not None:
            require_package("scipy", "--flow", "corpus")
        if self.top < 0:
            raise ConfigError(f"--top is {self.top}; it must be 0 or more")
        if self.as_json and self.quiet:
            raise ConfigError("--json prints measures, and --quiet nothing; give one of them")


@dataclass(frozen=True)
class WorkFlags(FlagGroup):
    """How the work goes."""

    checkpoint: Annotated[
        Path | None,
        optional(
            panel=WORK,
            metavar="FILE",
            help="Save what has been measured to this file from time to time.",
        ),
    ] = None
    resume: Annotated[
        bool, flag("--resume", panel=WORK, help="Resume from the checkpoint, where there is one.")
    ] = False
    strict: Annotated[
        bool,
        flag("--strict", panel=WORK, help="Stop at the first document that cannot be measured."),
    ] = False
    engine: Annotated[
        str, flag(panel=WORK, help="local, or ray: several processes, a cluster.")
    ] = "local"
    address: Annotated[
        str | None,
        optional(
            panel=WORK,
            metavar="HOST:PORT",
            help="Address of a Ray cluster; a local one is started if omitted.",
        ),
    ] = None
    workers: Annotated[
        int | None,
        optional(panel=WORK, metavar="N", help="Number of Ray workers; all CPUs by default."),
    ] = None

    def __post_init__(self) -> None:
        choice("--engine", self.engine, ENGINES)
        if self.engine != "ray" and (self.address is not None or self.workers is not None):
            given = "--address" if self.address is not None else "--workers"
            raise ConfigError(f"{given} goes with --engine ray")
        if self.workers is not None:
            check_size("--workers", self.workers)
        if self.resume and self.checkpoint is None:
            raise ConfigError("--resume needs a checkpoint: name it with --checkpoint FILE")


def _suffix(name: str, given: str, known: tuple[str, ...]) -> None:
    suffix = Path(given).suffix.lower()
    if suffix not in known:
        raise OutputError(
            f"{name} {printable(given)}: unknown suffix {printable(suffix) or '(none)'}; known are "
            f"{' '.join(known)}"
        )
