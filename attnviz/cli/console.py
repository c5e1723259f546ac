"""Where the program speaks: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys

from attnviz.errors import printable


def remark(text: str) -> None:
    """One line on standard error."""
    print(printable(text, limit=1000), file=sys.stderr)  # noqa: T201


def result(*lines: str) -> None:
    """Lines on standard output, as they are."""
    for line in lines:
        print(line)  # noqa: T201
