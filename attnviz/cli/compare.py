"""`attnviz compare A B`: how far apart two results are, head by head."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnviz.cli.compare_flags import ComparisonFlags, ComparisonOutput
from attnviz.cli.options import (
    ArrayFlags,
    LookFlags,
    spread,
)
from attnviz.errors import InputError

EXAMPLES = """Examples:

attnviz run "a cat" -o a.npz; attnviz run "a cat" --causal -o b.npz; attnviz compare a.npz b.npz

attnviz run 猫坐 -o c.npz; attnviz run 猫坐 --seed 1 -o d.npz; attnviz compare c.npz d.npz --match

Of another code: attnviz compare ours.npz theirs.npy --tolerance 1e-5 -o changes/"""


@spread
def compare(
    a: Annotated[
        Path,
        typer.Argument(
            metavar="A",
            help="A saved run, or an array of attention (.npy .npz .safetensors .pt .pth).",
            show_default=False,
        ),
    ],
    b: Annotated[
        Path,
        typer.Argument(metavar="B", help="Another, over the same tokens.", show_default=False),
    ],
    array: ArrayFlags,
    look: LookFlags,
    output: ComparisonOutput,
    how: ComparisonFlags,
) -> None:
    """Compare two results over the same tokens: which heads changed, where, by how much."""
    look.look()
    look.combination("compare")
    output.places()
    if Path("-") in (a, b):
        raise InputError("attention is read from files, not from standard input; save it first")
    from attnviz.cli.compare_files import compare_files

    compare_files((a, b), array, look, output, how)
