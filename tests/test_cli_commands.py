"""The table of commands, and how the program begins and ends: signals, pipes, completion."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from attnviz.cli import STOPPED
from attnviz.cli.commands import COMMANDS
from attnviz.cli.main import call

LONG = " ".join(f"w{i}" for i in range(60))


PROGRAM = [sys.executable, "-m", "attnviz"]


# ── the table ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name: str) -> None:
    command = getattr(import_module(f"attnviz.cli.{name}"), name)
    assert COMMANDS[name] == inspect.getdoc(command).split("\n\n")[0]


def test_the_help_lists_every_command_and_imports_none() -> None:
    script = (
        "import sys\n"
        "from attnviz.cli.main import call\n"
        "call(['--help'])\n"
        f"print([n for n in {list(COMMANDS)!r} if 'attnviz.cli.' + n in sys.modules])\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert shown.splitlines()[-1] == "[]"
    listed = [line.split()[1] for line in shown.splitlines() if line.startswith("│ ")]
    assert [word for word in listed if word in COMMANDS] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_imports_no_other(name: str) -> None:
    script = (
        "import sys\n"
        "from attnviz.cli.main import call\n"
        f"call([{name!r}, '--help'])\n"
        f"print([n for n in {list(COMMANDS)!r} if 'attnviz.cli.' + n in sys.modules])\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert f"Usage: attnviz {name} [OPTIONS]" in shown
    assert shown.splitlines()[-1] == f"[{name!r}]"


def test_a_command_that_is_none_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["explane"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: No such command 'explane'. Did you mean 'explain'? (see attnviz --help)\n"
    )


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("attnviz ", set(COMMANDS)),
        ("attnviz ex", {"explain"}),
        ("attnviz explain --que", {"--query"}),
        ("attnviz check --jun", {"--junit"}),
        ("attnviz stats --agreement-", {"--agreement-out"}),
    ],
)
def test_the_shell_completes_commands_and_their_flags(words: str, offered: set[str]) -> None:
    told = {
        "_ATTNVIZ_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(PROGRAM, capture_output=True, env={**os.environ, **told}, check=False)
    assert (set(done.stdout.decode().split()), done.stderr) == (offered, b"")


# ── pipes ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    small = ["--d-model", "16", "--n-heads", "2", "-q", "-o"]
    assert call(["run", LONG, "--causal", *small, str(folder / "a.npz")]) == 0
    assert call(["run", LONG, "--seed", "1", *small, str(folder / "b.npz")]) == 0
    return folder


UNREAD = {
    "--help": 0,
    "run --help": 0,  # typer's console ends the program by itself where nobody reads
    "run x --d-model 16 --n-heads 2 --show --force -o maps": 0,
    "shapes --len 9 --expand": 0,
    "shapes --len 9 --json": 0,
    "explain a --d-model 16 --n-heads 2": 0,
    "explain a --json": 0,
    "render a.npz --show --force -o maps": 0,
    "check a.npz": 0,
    "check b.npz --causal": 3,  # a script counts on the code, whoever reads the report
    "check b.npz --causal --json": 3,
    "compare a.npz b.npz": 0,
    "compare a.npz b.npz --tolerance 1e-9 --json": 3,
    "stats a b": 0,
    "stats a b --json": 0,
}


@pytest.fixture
def unread() -> Iterator[int]:
    """The writing end of a pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize("line", UNREAD)
def test_a_reader_that_leaves_is_no_failure(line: str, runs: Path, unread: int) -> None:
    done = subprocess.run(
        [*PROGRAM, *line.split()], cwd=runs, stdout=unread, stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == UNREAD[line]
    assert not any(word in done.stderr.decode() for word in ("attnviz:", "Traceback", "ignored"))


@pytest.mark.parametrize("line", ["run --file long.txt --n-heads 8", "render a.npz"])
def test_a_reader_of_one_line_of_much_output(line: str, runs: Path, tmp_path: Path) -> None:
    (runs / "long.txt").write_text(LONG)
    words = [*PROGRAM, *line.split(), "--show", "-o", str(tmp_path / "maps")]
    with (tmp_path / "errors").open("wb") as errors:
        with subprocess.Popen(words, cwd=runs, stdout=subprocess.PIPE, stderr=errors) as running:
            assert running.stdout is not None
            assert running.stdout.read(1) != b""
        assert running.returncode == 0
    said = (tmp_path / "errors").read_text()
    assert not any(word in said for word in ("attnviz:", "Traceback", "ignored"))
    assert len(list((tmp_path / "maps").iterdir())) > 2  # the files were written all the same


@pytest.mark.parametrize("line", ["nosuch", "run x --heads 99", "check nosuch.npz"])
def test_an_error_that_nobody_reads_keeps_its_code(line: str, unread: int) -> None:
    done = subprocess.run([*PROGRAM, *line.split()], stderr=unread, check=False)
    assert done.returncode == 2


# ── signals ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("module", ["typer", "attnviz.cli.explain", "torch"])
def test_ctrl_c_at_an_import_is_one_line(module: str) -> None:
    script = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from attnviz.__main__ import main\n"
        "sys.argv = ['attnviz', 'explain', 'a']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (130, f"attnviz: {STOPPED}\n")
