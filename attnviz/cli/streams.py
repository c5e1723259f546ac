"""Standard output for results, standard error for everything else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from attnviz.errors import printable


def warn(text: str) -> None:
    """Print a warning: one line on standard error."""
    print(printable(text, limit=1000), file=sys.stderr)  # noqa: T201


def result(*lines: str) -> None:
    """Lines on standard output, as they are."""
    for line in lines:
        print(line)  # noqa: T201


@contextmanager
def verdict(code: int) -> Iterator[None]:
    """What is printed inside, and then an end with `code`: also where nobody reads to the end.

    A script counts on the code of `attnviz check run.npz | head -1`. 0 goes on.
    """
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:
        if not is_unread(error):
            raise
        close_output()
    if code:
        raise typer.Exit(code)


def is_unread(error: BaseException) -> bool:
    """Whether `error` says that the reader of the output has left: it has what it wanted.

    typer and rich make an exit with code 1 of a broken pipe that they see first.
    """
    if isinstance(error, SystemExit):
        error = error.__context__ or error
    return isinstance(error, BrokenPipeError)


def close_output() -> None:
    """Let everything that is still said go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.close(nowhere)
