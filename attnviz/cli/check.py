"""`attnviz check`: is this attention what its masks say it is? Exit code 3 where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from attnviz.cli.options import (
    MASK,
    OUTPUT,
    ArrayFlags,
    FlagGroup,
    ObeyedFlags,
    flag,
    optional,
    spread,
)
from attnviz.errors import ConfigError, OutputError, printable

EXPECT = "Compare with q, k, v"

EXAMPLES = """Examples:

attnviz run "The cat sat" --causal --keep q,k -o run.npz && attnviz check run.npz --expect run.npz

attnviz run "The cat sat" --causal -o run.npz --force && attnviz check run.npz --junit check.xml"""


class ManyAfterOne(typer.core.TyperCommand):
    """A command whose `--expect` takes all the words up to the next flag: `--expect q.npy k.npy`.

    click's options take a fixed number of words, so `--expect A B` becomes `--expect A --expect B`.
    """

    flag = "--expect"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.repeated(args))

    def repeated(self, words: Sequence[str]) -> list[str]:
        """`words` with the flag before each of its values."""
        done: list[str] = []
        taking = False
        for i, word in enumerate(words):
            if word == "--":
                return [*done, *words[i:]]
            if word == self.flag:
                taking = True
                if i + 1 == len(words) or words[i + 1].startswith("-"):
                    done.append(word)  # nothing follows: click says so
            elif word.startswith("-"):
                taking = word.startswith(f"{self.flag}=")
                done.append(word)
            else:
                done += [self.flag, word] if taking else [word]
        return done


COMMAND = ManyAfterOne
"""The kind of this command."""


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


@spread
def check(
    file: Annotated[
        Path,
        typer.Argument(
            help="A saved run (.npz .safetensors .json), or an array of attention with 2 to 5 axes "
            "(.npy .npz .safetensors .pt .pth).",
            show_default=False,
        ),
    ],
    array: ArrayFlags,
    masking: ObeyedFlags,
    tensors: TensorFlags,
    verdict: VerdictFlags,
    sinks: Annotated[
        bool,
        flag(
            "--sinks",
            panel=MASK,
            help="Rows may sum to less than 1: learned sinks, softmax-off-by-one.",
        ),
    ] = False,
) -> None:
    """Check attention from a file, and exit with 3 where something is wrong."""
    if masking.padding_mask is not None and (array.lengths or array.key_lengths):
        raise ConfigError("--padding-mask and --lengths both give the padding; give one of them")
    from attnviz.cli.check_files import check_files

    check_files(file, array, masking, tensors, verdict, sinks)
