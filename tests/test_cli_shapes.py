"""`attnviz shapes` on the command line: any size at once, text with its masks, four forms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnviz.cli.main import call


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert call(["shapes", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def step(found: dict, name: str) -> dict:
    return next(step for step in found["steps"] if step["name"] == name)


def test_a_size_that_no_machine_holds_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--d-model", "65536", "--n-heads", "512", "--d-k", "128", "--len", "1000000"]
    found = document(capsys, *sizes, "--batch", "3")
    assert step(found, "scores")["shape"] == [3, 512, 1000000, 1000000]
    assert step(found, "q")["shape"] == [3, 512, 1000000, 128]
    assert step(found, "embedded")["shape"] == [3, 1000000, 65536]


def test_it_takes_no_more_memory_than_a_small_one() -> None:
    script = (
        "import resource, sys\n"
        "from attnviz.cli.main import call\n"
        "call(['shapes', '--len', sys.argv[1], '--d-model', sys.argv[1], '--json'])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "-c", script, size], capture_output=True, text=True, check=True
            ).stdout.splitlines()[-1]
        )
        for size in ("8", "8000000")
    ]
    assert peaks[1] < peaks[0] + 10_000  # KiB


def test_keys_of_another_length_are_cross_attention(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--len", "5", "--key-len", "7", "--d-v", "3")
    assert step(found, "key_input")["shape"] == [1, 7, 512]
    assert step(found, "weights")["shape"] == [1, 8, 5, 7]
    assert step(found, "context")["shape"] == [1, 8, 5, 3]


def test_a_text_gives_its_own_sizes_and_what_its_masks_forbid(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["shapes", "the cat sat", "a", "--window", "1", "--pad-side", "left"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "layer       8 heads, d_model 512, d_k 64, d_v 64, float32, positions sinusoidal\n"
        "masks       padding, window 1: 6 of 10 cells forbidden; 2 padded keys\n"
    )
    assert "2×8×3×3" in out
    assert "masked_scores" in out


def test_a_mask_of_ones_own_counts_rows_that_see_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "m.txt").write_text("0 0\n0 1\n")
    assert call(["shapes", "a b", "--mask", str(tmp_path / "m.txt")]) == 0
    out = capsys.readouterr().out
    assert "3 of 4 cells forbidden; 1 row with nothing to see" in out


def test_the_other_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["shapes", "a b", "--format", "markdown", "--source", "--expand"]) == 0
    markdown = capsys.readouterr().out
    assert markdown.startswith("| # | stage | step |")
    assert "attention.py:" in markdown
    assert call(["shapes", "a b", "--format", "mermaid"]) == 0
    assert capsys.readouterr().out.startswith("flowchart TD\n")
    assert call(["shapes", "a b", "--format", "xml"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: --format is 'xml'; it must be one of table, json, markdown, mermaid\n"
    )


def test_the_shapes_are_those_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["the cat sat", "a", "--d-model", "24", "--n-heads", "3", "--causal"]
    assert call(["shapes", *flags]) == 0
    _, table = capsys.readouterr().out.split("\n\n", 1)
    assert call(["run", *flags, "-o", str(tmp_path / "r.npz")]) == 0
    # shapes, costs, layouts: the same letters from a shadow run and from a real one
    assert table in capsys.readouterr().out
