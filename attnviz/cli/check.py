"""`attnviz check`: is this attention what its masks say it is? Exit code 3 where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from attnviz.cli.check_flags import TensorFlags, VerdictFlags
from attnviz.cli.options import (
    MASK,
    ArrayFlags,
    ObeyedFlags,
    flag,
    spread,
)
from attnviz.errors import ConfigError

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
