"""`attnviz render`: attention that was computed before, by anybody → pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnviz.cli.options import (
    ArrayFlags,
    LookFlags,
    MaskFlags,
    OutputFlags,
    TokenFlags,
    WindowFlags,
    spread,
)
from attnviz.errors import InputError

EXAMPLES = """Examples:

attnviz run "The cat sat." -o cat.npz; attnviz render cat.npz -o cat.html

attnviz run "猫坐在垫子上" -o cat.json; attnviz render cat.json --heads 0 -o cat.pdf

Of an array: attnviz render dump.npy --axes "L H Q K" --tokens tokens.json --layers 3"""


@spread
def render(
    file: Annotated[
        Path,
        typer.Argument(
            help="A saved run (.npz .safetensors .json), or an array of attention with 2 to 5 axes "
            "(.npy .npz .safetensors .pt .pth).",
            show_default=False,
        ),
    ],
    array: ArrayFlags,
    masking: MaskFlags,
    look: LookFlags,
    tokens: TokenFlags,
    output: OutputFlags,
    part: WindowFlags,
) -> None:
    """Draw attention from a file: a saved run, or an array that somebody else made."""
    look.look()
    output.places()
    if file == Path("-"):
        raise InputError("attention is read from files, in parts; save what comes through the pipe")
    from attnviz.cli.render_files import render_file

    render_file(file, array, masking, look, tokens, output, part)
