"""A bar for long work, on a terminal only; nothing for short work."""

from __future__ import annotations

import io
import os
import select
import sys
import time

import pytest

from attnviz.cli import progress
from attnviz.cli.progress import Work


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for(terminal: io.StringIO, text: str) -> None:
    for _ in range(500):
        if text in terminal.getvalue():
            return
        time.sleep(0.01)
    pytest.fail(f"{text!r} never appeared in {terminal.getvalue()!r}")


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error is a terminal from here on (pytest sets its own between fixture and test)."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return made


def test_long_work_shows_its_stages_and_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with Work() as work:
        work.stage("computing")
        wait_for(terminal, "computing")
        work.stage("drawing", 4)
        wait_for(terminal, "drawing")
        for _ in range(4):
            work.advance()
        assert work._bar is not None
        bar, task = work._bar
        assert (bar.tasks[task].completed, bar.tasks[task].total) == (4, 4)
    assert bar.finished
    assert not bar.live.is_started


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with Work() as work:
        work.stage("drawing", 1)
        work.advance()
    assert terminal.getvalue() == ""


def test_a_pipe_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with Work() as work:
        work.stage("drawing", 1)
        time.sleep(0.05)
    assert pipe.getvalue() == ""


def test_a_bar_that_comes_too_late_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with Work() as work:
        pass
    work._appear()
    assert (work._bar, terminal.getvalue()) == (None, "")


def test_a_bar_that_appears_while_descriptor_2_is_turned_away_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Ray's start is silenced; the terminal is a pseudo-terminal, read by another descriptor."""
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal, open(os.devnull, "w") as nowhere:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        kept = os.dup(theirs)
        with Work() as work:
            work.stage("opening")
            os.dup2(nowhere.fileno(), theirs)
            seen = b""
            while b"opening" not in seen:
                assert select.select([ours], [], [], 10)[0], seen
                seen += os.read(ours, 4096)
            os.dup2(kept, theirs)
        os.close(kept)
    os.close(ours)
