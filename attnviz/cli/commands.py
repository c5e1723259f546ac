"""The commands. Each lives in a module of its own, which is imported when that command is meant."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "run": "Run text through multi-head attention; draw every head, print every shape.",
    "shapes": "Show every tensor on the way through the layer: its shape, cost and meaning.",
    "explain": "Explain one query of one head: every number from its vector to the head's output.",
    "render": "Draw attention from a file: a saved run, or an array that somebody else made.",
    "check": "Check attention from a file, and exit with 3 where something is wrong.",
    "compare": "Compare two results over the same tokens: which heads changed, where, by how much.",
    "stats": "Measure what each head does over a corpus: where it looks, how sharply, what it is.",
}
"""Each command and the first line of its help; module, function and command have one name."""

SETTINGS = {"help_option_names": ["-h", "--help"]}


class Commands(TyperGroup):
    """A group that knows its commands by name, and imports the one that is asked for.

    All of them together would take longer to import than the help takes to print.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, summary in COMMANDS.items():
            self.add_command(TyperCommand(name, help=summary))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """(name, command, the words after it) of `args`; what completes words asks this as well."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """The command with its flags."""
    module = import_module(f"attnviz.cli.{name}")
    alone = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings=SETTINGS,
        rich_markup_mode="rich",
    )
    kind = getattr(module, "COMMAND", TyperCommand)
    alone.command(name, epilog=module.EXAMPLES, cls=kind)(getattr(module, name))
    return typer.main.get_command(alone)
