"""One family of errors. Each knows the exit code that the command line ends with."""

from __future__ import annotations

import codecs
from pathlib import Path


class AttnvizError(Exception):
    """A failure that has been understood: its text is one line that a person can act on.

    Exit code 1 means that the machine failed (disk full, out of memory); the subclasses below
    stand for what the person gave, and end with 2.
    """

    exit_code = 1


class ConfigError(AttnvizError):
    """A size, flag or combination of flags that cannot work."""

    exit_code = 2


class InputError(AttnvizError):
    """A text, token list, mask or other input that cannot be read or does not fit."""

    exit_code = 2


class OutputError(AttnvizError):
    """An output path that cannot be used: a wrong suffix, an existing file, no permission."""

    exit_code = 2


def printable(text: object, limit: int = 80) -> str:
    """Show hostile text inside a one-line message: control characters escaped, the middle cut."""
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text)
    )
    if len(shown) <= limit:
        return shown
    half = (limit - 1) // 2
    return f"{shown[:half]}…{shown[-half:]}"


PLAIN = str.maketrans(
    {"×": "x", "…": "...", "−": "-", "–": "-", "·": "*", "→": "->", "≤": "<=", "≥": ">=", "±": "+-"}
)
"""What this program's own signs are where an encoding lacks them."""


def in_plain_signs(error: UnicodeError) -> tuple[str, int]:
    """How a stream writes what its encoding lacks: signs in plain letters, the rest escaped."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end].translate(PLAIN)
    return lacking.encode("ascii", "backslashreplace").decode(), error.end


LACKING = "attnviz"
"""The name of that among Python's handlers of errors."""

codecs.register_error(LACKING, in_plain_signs)


def why_unreadable(path: Path, error: OSError) -> str:
    """Why `path` could not be read, in the words that follow its name in a message."""
    if path.is_dir():
        return "is a folder"
    return printable((error.strerror or str(error)).lower())
