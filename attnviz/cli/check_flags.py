"""The flags that `check` has of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from attnviz.cli.options import OUTPUT, FlagGroup, flag, optional
from attnviz.errors import ConfigError, OutputError, printable

EXPECT = "Compare with q, k, v"


@dataclass(frozen=True)
class TensorFlags(FlagGroup):
    """The tensors that weights and context are computed from again."""

    expect: Annotated[
        list[Path] | None,
        optional(
            "--expect",
            panel=EXPECT,
            metavar="Q K [V]",
            help="Compute softmax(QKᵀ/√d_k) again from these files, and name the mistake where the "
            "weights differ. One file that holds q, k (and v) will do. It takes all words up to "
            "the next flag, so FILE stands before it.",
        ),
    ] = None
    context: Annotated[
        Path | None,
        optional(
            "--context",
            panel=EXPECT,
            help="Weights · V as the code made it, compared with what the weights and v give.",
        ),
    ] = None
    positions: Annotated[
        str,
        flag(
            panel=EXPECT,
            help="What q and k still lack: rope (as Llama), rope-pairs (as GPT-J), rope:500000 for "
            "another base, alibi, or none.",
        ),
    ] = "none"

    def __post_init__(self) -> None:
        n = len(self.expect or ())
        if n > 3:
            raise ConfigError(f"--expect has {n} files; q, k and v at most are expected")
        if self.expect is None and (self.context is not None or self.positions != "none"):
            name = "--context" if self.context is not None else "--positions"
            raise ConfigError(f"{name} goes with --expect Q K")


@dataclass(frozen=True)
class VerdictFlags(FlagGroup):
    """What fails, and how it is reported."""

    tolerance: Annotated[
        float | None,
        optional(
            panel=OUTPUT,
            metavar="X",
            help="How far from 1 a row may sum. Without it, what the precision allows.",
        ),
    ] = None
    strict: Annotated[bool, flag("--strict", panel=OUTPUT, help="Notes fail, too.")] = False
    as_json: Annotated[bool, flag("--json", panel=OUTPUT, help="Print all findings as JSON.")] = (
        False
    )
    junit: Annotated[
        Path | None,
        optional(
            "--junit", panel=OUTPUT, help="Write JUnit XML for CI: a test for each check and layer."
        ),
    ] = None
    force: Annotated[
        bool, flag("--force", panel=OUTPUT, help="Replace that file if it exists.")
    ] = False

    def __post_init__(self) -> None:
        if self.tolerance is not None and not 0 <= self.tolerance < 1:
            raise ConfigError(f"--tolerance is {self.tolerance}; it must be at least 0 and below 1")
        if self.junit is not None and self.junit.suffix.lower() != ".xml":
            raise OutputError(f"--junit {printable(self.junit)}: the suffix must be .xml")
