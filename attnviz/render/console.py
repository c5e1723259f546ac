"""What a terminal can do, decided once; lines are laid out here and never cut by rich."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from io import TextIOWrapper
from typing import IO

from rich.console import Console
from rich.text import Text

from attnviz.errors import LACKING
from attnviz.render.visible import cells, start


def make_console(file: IO[str] | None = None, environ: Mapping[str, str] = os.environ) -> Console:
    """A console on `file` (standard output) for everything that this package prints.

    - Colour is what rich finds; none in a pipe, with `TERM=dumb` or with a `NO_COLOR` that is not
      empty: then no escape sequence at all, where rich would keep bold.
    - `LC_ALL=C` or `POSIX` means ASCII, unless Python was told to use UTF-8: Python itself takes
      the C locale for UTF-8 (PEP 540), and the person who set `LC_ALL` knew better.
    - Markup, emoji codes and highlighting are off: a token is text.
    """
    file = sys.stdout if file is None else file
    told = environ.get("PYTHONUTF8") == "1" or "PYTHONIOENCODING" in environ
    if environ.get("LC_ALL") in ("C", "POSIX") and not told and isinstance(file, TextIOWrapper):
        file.reconfigure(encoding="ascii", errors=LACKING)
    return Console(
        file=file,
        color_system=None if environ.get("NO_COLOR") else "auto",
        markup=False,
        emoji=False,
        highlight=False,
        _environ=environ,
    )


def ascii_only(console: Console) -> bool:
    """Whether the console's encoding is not one that holds all of Unicode."""
    return not console.encoding.startswith("utf")


def has_color(console: Console) -> bool:
    """Whether the console shows colours."""
    return console.color_system is not None and not console.no_color


def write(console: Console, *lines: Text) -> None:
    """Write each line as it is: never wrapped or cut, nothing but text where there is no colour."""
    colored = has_color(console)  # then a space at the end may be a cell
    for line in lines:
        console.print(line if colored else Text(line.plain.rstrip()), soft_wrap=True)


def flow(pieces: Iterable[Text], width: int, indent: str = "", gap: str = "  ") -> list[Text]:
    """`pieces` side by side, `gap` between them, in lines of at most `width` columns.

    Lines after the first begin with `indent`. A piece that is wider than a line is folded at its
    spaces, or inside a word where that alone is too wide: nothing is left out.
    """
    lines: list[Text] = []
    line = Text()
    for piece in pieces:
        for i, word in enumerate(_words(piece, width - cells(indent))):
            space = "" if not line.plain.strip() else gap if i == 0 else " "
            if line.plain.strip() and cells(line.plain) + len(space) + cells(word.plain) > width:
                lines.append(line)
                line, space = Text(indent), ""
            line.append(space).append(word)
    if line.plain.strip():
        lines.append(line)
    return lines


def _words(piece: Text, width: int) -> list[Text]:
    """`piece` whole where it fits in a line, else its words, the widest ones in parts."""
    if cells(piece.plain) <= width:
        return [piece]
    parts: list[Text] = []
    for word in piece.split(" "):
        while cells(word.plain) > max(width, 1):
            cut = max(len(start(word.plain, max(width, 1))), 1)
            head, word = word[:cut], word[cut:]
            parts.append(head)
        parts.append(word)
    return parts
