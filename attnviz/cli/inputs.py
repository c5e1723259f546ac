"""From flags to the texts that a source reads."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from attnviz.cli.options import InputFlags
from attnviz.errors import InputError, printable
from attnviz.pipeline import Source
from attnviz.tokens import NO_TOKENS, Text, Texts, read_path, read_stream, texts_of_arguments
from attnviz.wording import plural

BUILT_IN = "The animal didn't cross the street because it was too tired."


def read_texts(flags: InputFlags, source: Source) -> Texts:
    """Read what the flags name; with nothing named, a pipe; with no pipe, the built-in sentence.

    A source that needs no text (files, vectors) gets what was named, and nothing else.
    """
    parts = []
    if flags.text:
        parts.append(_from_arguments(flags.text))
    parts += [_read(path, flags) for path in flags.file or ()]
    if not parts and source.needs_text:
        if is_piped():
            parts.append(_read(Path("-"), flags))
        else:
            parts.append(Texts((BUILT_IN,), notes=(f'no text was given: using "{BUILT_IN}"',)))
    keys = None
    if flags.keys:
        keys = _from_arguments(flags.keys)
    elif flags.key_file:
        keys = _read(flags.key_file, flags)
    queries = tuple(text for part in parts for text in part.queries)
    notes = [note for part in parts for note in part.notes]
    if keys is not None:
        notes += keys.notes
    if source.needs_text and not any(t.strip() if isinstance(t, str) else t for t in queries):
        raise InputError(NO_TOKENS)
    others = None if keys is None else _matched(keys.queries, len(queries))
    return Texts(queries, others, tuple(notes))


def named_files(texts: Iterable[str]) -> list[str]:
    """A warning for each text that is the name of a file: it may be meant for --file."""
    return [
        f"{printable(text)} is taken as a text; --file reads the file of that name"
        for text in texts
        if os.path.isfile(text)  # noqa: PTH113 - a text may be no path at all
    ]


def decoded_argument(text: str) -> str:
    """A text off the command line. In an ASCII locale Python keeps its bytes as surrogates."""
    try:
        return os.fsencode(text).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"the text is not utf-8: byte {error.start} is wrong") from None


def _from_arguments(texts: Sequence[str]) -> Texts:
    read = texts_of_arguments(map(decoded_argument, texts))
    return Texts(read.queries, notes=tuple(named_files(texts)))


def _read(path: Path, flags: InputFlags) -> Texts:
    if path == Path("-"):
        if sys.stdin is None or sys.stdin.closed:
            raise InputError("standard input is closed; give TEXT or --file")
        return read_stream(None, sys.stdin.buffer, flags.encoding)
    return read_path(path, flags.encoding)


def is_piped() -> bool:
    """Whether standard input is a pipe or a file; a terminal or /dev/null is not."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or not a real stream
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _matched(keys: tuple[Text, ...], n: int) -> tuple[Text, ...]:
    """As many key sequences as query sequences; a single one serves all."""
    if len(keys) == n:
        return keys
    if len(keys) == 1:
        return keys * n
    fit = "1" if n == 1 else f"{n}, or 1 for all"
    raise InputError(f"{len(keys)} key sequences for {plural(n, 'query sequence')}; give {fit}")
