"""The README says what the program does: its console blocks are run, letter by letter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from attnviz.cli.commands import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n\$ (.*)\n((?s:.*?))```\n", README)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "samples", tmp_path / "samples")
    run("python samples/link_models.py", tmp_path)
    return tmp_path


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        encoding="utf-8",
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "PATH": path},
        check=False,
    )


def test_there_are_blocks_to_try() -> None:
    assert len(BLOCKS) >= 3


@pytest.mark.parametrize(("command", "output"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_a_command_prints_what_the_readme_shows(command: str, output: str, clone: Path) -> None:
    done = run(command, clone)
    assert (done.returncode, done.stdout.rstrip("\n")) == (0, output.rstrip("\n"))


def test_every_sample_command_works(clone: Path) -> None:
    commands = re.findall(r"`(attnviz [^`]*)`", (ROOT / "samples/README.md").read_text("utf-8"))
    assert len(commands) >= 8
    for command in commands:
        small = "" if "--weights" in command else "--n-heads 2 --d-model 16"
        done = run(f"{command} {small} -o out/x.npz --force", clone)
        assert done.returncode == 0, (command, done.stderr)


def test_every_sample_has_its_line() -> None:
    listed = (ROOT / "samples/README.md").read_text("utf-8")
    for path in (ROOT / "samples").iterdir():
        if path.is_file() and path.name != "README.md":
            assert f"`{path.name}`" in listed


OTHER_PROGRAMS = {"--cov", "--no-deps"}
"""Flags of pytest and pip that the README names."""


def test_the_flags_that_the_readme_names_exist(clone: Path) -> None:
    helps = "".join(run(f"attnviz {name} --help", clone).stdout for name in ("", *COMMANDS))
    known = set(re.findall(r"--[a-z][a-z0-9-]+", helps)) | OTHER_PROGRAMS
    assert set(re.findall(r"(--[a-z][a-z0-9-]+)", README)) - known == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_in_the_help_work(name: str, clone: Path) -> None:
    examples = import_module(f"attnviz.cli.{name}").EXAMPLES
    commands = [line for line in examples.splitlines() if line.startswith("attnviz ")]
    assert len(commands) == 2
    for command in commands:
        assert f"attnviz {name} " in command
        done = run(command, clone)
        assert done.returncode == 0, (command, done.stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_readme_names_every_command(name: str) -> None:
    assert f"| `attnviz {name}` |" in README
