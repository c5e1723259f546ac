"""A progress bar on standard error for work that takes over a second; shorter work shows none."""

from __future__ import annotations

import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 1.0
"""Seconds of silence before a bar appears."""


class Work:
    """Stages of work, each with a name and, where it is known, a number of steps.

    Used as a context. Nothing is shown before `PATIENCE` is over, nor where standard error is no
    terminal; the bar goes when the work ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stage: tuple[str, int | None, int] = ("working", None, 0)
        self._unit = ""
        self._over = False
        self._bar: tuple[Progress, TaskID] | None = None
        self._stream: TextIO = sys.stderr
        self._timer = threading.Timer(PATIENCE, self._appear)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty():
            self._stream = _own_stream(sys.stderr)
            self._timer.start()
        return self

    def stage(self, name: str, total: int | None = None, unit: str = "") -> None:
        """Begin a stage of `total` steps (None: unknown); with a `unit`, their rate is shown."""
        self._unit = unit
        self._update((name, total, 0))

    def reach(self, done: int, total: int, name: str | None = None) -> None:
        """`done` of `total` steps are done; `name` is what the stage is called from now on."""
        self._update((self._stage[0] if name is None else name, total, done))

    def advance(self, *_: object) -> None:
        """One step of the stage is done."""
        name, total, done = self._stage
        self._update((name, total, done + 1))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar[0].stop()
        if self._stream is not sys.stderr:
            self._stream.close()

    def _update(self, stage: tuple[str, int | None, int]) -> None:
        with self._lock:
            self._stage = stage
            if self._bar is not None:
                name, total, done = stage
                self._bar[0].update(
                    self._bar[1], description=name, total=total, completed=done, unit=self._unit
                )

    def _appear(self) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            ProgressColumn,
            Task,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.text import Text

        from attnviz.render.console import make_console

        class Rate(ProgressColumn):
            """`1.24 G weights/s`, where the steps have a unit."""

            def render(self, task: Task) -> Text:
                unit = task.fields["unit"]
                return Text(f"{_short(task.speed)} {unit}/s" if unit and task.speed else "")

        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), Rate())
        with self._lock:
            if self._over:  # the work ended meanwhile
                return
            bar = Progress(*columns, console=make_console(self._stream), transient=True)
            name, total, done = self._stage
            task = bar.add_task(name, total=total, completed=done, unit=self._unit)
            self._bar = (bar, task)
            bar.start()


def _own_stream(stream: TextIO) -> TextIO:
    """The terminal of `stream` by a descriptor of its own.

    Libraries are silenced by turning descriptor 2 away for a moment. A bar that starts in such a
    moment would find no terminal there, and stay away for good.
    """
    try:
        number = os.dup(stream.fileno())
    except (OSError, ValueError):  # a stream that is no file
        return stream
    return open(number, "w", encoding=stream.encoding, errors=stream.errors)  # noqa: PTH123


def _short(n: float) -> str:
    """`n` to three digits, in steps of 1000: 950, 1.24 G."""
    for unit in ("", " k", " M", " G"):
        if n < 999.5 or unit == " G":
            break
        n /= 1000
    return f"{n:.3g}{unit}"
