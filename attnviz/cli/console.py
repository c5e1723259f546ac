"""Where the program speaks: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from attnviz.errors import printable

if TYPE_CHECKING:
    from rich.console import Console


def make_console() -> Console:
    """Standard output as rich writes it; markup in a token is text."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def remark(text: str) -> None:
    """One line on standard error."""
    print(printable(text, limit=1000), file=sys.stderr)  # noqa: T201


def result(text: str) -> None:
    """Text on standard output, as it is."""
    print(text)  # noqa: T201
