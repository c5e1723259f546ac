"""The flags of `attnviz shapes`: sizes in place of a text, a module of one's own, the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from attnviz.cli.options import INPUT, OUTPUT, FlagGroup, flag, optional
from attnviz.config import check_size, choice
from attnviz.errors import ConfigError

FORMATS = ("table", "json", "markdown")

MODULE = "A module of your own"

USUAL_VOCABULARY = 37000
"""Tokens of the shared vocabulary of Vaswani et al. 2017, section 5.1."""


@dataclass(frozen=True)
class SizeFlags(FlagGroup):
    """Lengths in place of a text, and a model in place of the layer."""

    length: Annotated[
        int | None,
        optional("--len", metavar="N", help="Queries in place of a text: any number.", panel=INPUT),
    ] = None
    key_length: Annotated[
        int | None,
        optional("--key-len", metavar="N", help="Keys, if they are another text.", panel=INPUT),
    ] = None
    batch: Annotated[
        int | None,
        optional(metavar="N", help="Sequences of that length; 1 if omitted.", panel=INPUT),
    ] = None
    vocabulary: Annotated[
        int | None,
        optional(
            "--vocab",
            metavar="N",
            help=f"Rows of the embedding table, with --len; {USUAL_VOCABULARY} if omitted.",
            panel=INPUT,
        ),
    ] = None
    model: Annotated[
        Path | None,
        optional(
            "--model",
            help="A real architecture from its config.json, or from the folder that holds it: no "
            "weights.",
            panel=INPUT,
        ),
    ] = None

    def check(self) -> None:
        """Raise `ConfigError` for a size that cannot be, or one beside a text."""
        alone = {"--batch": self.batch, "--key-len": self.key_length, "--vocab": self.vocabulary}
        for name, size in {"--len": self.length, **alone}.items():
            if size is not None:
                check_size(name, size)
            if size is not None and self.length is None and self.model is None:
                raise ConfigError(f"{name} goes with --len; a text has sizes of its own")


@dataclass(frozen=True)
class ModuleFlags(FlagGroup):
    """A module of one's own, to be traced."""

    module: Annotated[
        str | None,
        optional(
            "--module",
            metavar="FILE.py:CLASS",
            help="Trace a module of your own, and warn where a reshape, softmax or mask mixes what "
            "it should not. attnviz executes the file.",
            panel=MODULE,
        ),
    ] = None
    init: Annotated[
        str | None,
        optional(
            metavar="ARGUMENTS",
            help='Arguments of its constructor: "d_model=512, n_heads=8".',
            panel=MODULE,
        ),
    ] = None
    inputs_of_module: Annotated[
        list[str] | None,
        optional(
            "--input",
            metavar="SIZES",
            help='Input of its forward: "2,6,512", "T=6,B=2,512", "mask: bool 2,1,6,6". '
            "Repeatable.",
            panel=MODULE,
        ),
    ] = None


@dataclass(frozen=True)
class TableFlags(FlagGroup):
    """What the trace is printed as, and beside what."""

    versus: Annotated[
        str | None,
        optional(
            "--vs",
            metavar="FLAGS",
            help="Compare with other flags of the layer, the length or the masks "
            '("--n-heads 4 --causal"), or with another config.json.',
            panel=OUTPUT,
        ),
    ] = None
    source: Annotated[
        bool, flag("--source", help="Name each step's line of code.", panel=OUTPUT)
    ] = False
    expand: Annotated[
        bool, flag("--expand", help="Keys and values in rows of their own.", panel=OUTPUT)
    ] = False
    form: Annotated[str, flag("--format", help="table, json or markdown.", panel=OUTPUT)] = "table"
    as_json: Annotated[bool, flag("--json", help="As --format json.", panel=OUTPUT)] = False

    @property
    def format(self) -> str:
        """One of `FORMATS`. Raises `ConfigError` for two, and for one that --vs does not have."""
        choice("--format", self.form, FORMATS)
        if self.as_json and self.form not in ("table", "json"):
            raise ConfigError(f"--json and --format {self.form} both give the format; give one")
        form = "json" if self.as_json else self.form
        if self.versus is not None and form != "table":
            raise ConfigError(f"--vs makes a table; --format {form} shows one layer at a time")
        return form
