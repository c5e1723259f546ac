"""The flags that `compare` has of its own."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated

from attnviz.cli.files import PICTURES, kind_of
from attnviz.cli.options import OUTPUT, FlagGroup, OutputFlags, flag, optional
from attnviz.errors import ConfigError, OutputError, printable

COMPARE = "Compare"


@dataclass(frozen=True)
class ComparisonOutput(OutputFlags):
    """The formats that a comparison can be written in."""

    out: Annotated[
        list[str] | None,
        optional(
            "--out",
            "-o",
            help="The suffix picks the format: a folder (a matrix of distances, the differences of "
            "all heads, and A, B and their difference for each of the --top heads), .png .svg .pdf "
            "(the differences), .json. Repeatable. Nothing is written without it.",
            panel=OUTPUT,
        ),
    ] = None

    def places(self) -> list[tuple[Path, str]]:
        """Each path to write, and its format."""
        places = [(Path(given), kind_of(given)) for given in self.out or ()]
        for path, kind in places:
            if kind not in ("folder", ".json", *PICTURES):
                raise OutputError(
                    f"-o {printable(path)}: a comparison is written as .png .svg .pdf .json, "
                    "or to a folder (no suffix)"
                )
        return places


@dataclass(frozen=True)
class ComparisonFlags(FlagGroup):
    """How two results are compared, and what is printed."""

    match: Annotated[
        bool,
        flag(
            "--match",
            panel=COMPARE,
            help="Pair the heads of each layer by likeness; otherwise by index.",
        ),
    ] = False
    tolerance: Annotated[
        float | None,
        optional(
            panel=COMPARE,
            metavar="X",
            help="Exit with 3 where a weight differs by more than X, or is no number: 1e-5, say.",
        ),
    ] = None
    top: Annotated[
        int,
        flag(panel=COMPARE, metavar="N", help="How many of the most changed heads to show."),
    ] = 10
    as_json: Annotated[
        bool, flag("--json", help="Print all heads, as JSON, and nothing else.", panel=OUTPUT)
    ] = False

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ConfigError(f"--top is {self.top}; at least 1 is expected")
        if self.tolerance is not None and not (isfinite(self.tolerance) and self.tolerance >= 0):
            raise ConfigError(
                f"--tolerance is {self.tolerance:g}; 0 or more is expected, 1e-5, say"
            )
