"""Long texts, end to end: `run` and `render` in blocks, parts of maps, what is said and refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from attnviz.cli import progress, run_work
from attnviz.cli.main import call
from attnviz.saved_runs import load

FEW = ("--d-model", "24", "--n-heads", "3", "--causal")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    words = "the cat sat on the mat because it was tired and the dog was not\n"
    Path("text.txt").write_text(
        words.replace("\n", " ") * 20 + "\n", encoding="utf-8"
    )  # 300 tokens
    Path("two.txt").write_text("a b c d e f g h\n猫 坐 在 垫 子\n", encoding="utf-8")
    return tmp_path


def said(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> tuple[list[str], str]:
    """The lines on standard error, and standard output."""
    assert call([*arguments]) == code
    out, err = capsys.readouterr()
    return err.splitlines(), out


def run(capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> tuple[list[str], str]:
    return said(capsys, "run", "--file", "text.txt", *FEW, "--no-trace", *more, code=code)


# ── pooled ───────────────────────────────────────────────────────────────────────────────────


def test_it_pools_when_it_is_told_to_and_says_what_is_exact(
    capsys: pytest.CaptureFixture[str],
) -> None:
    err, out = run(capsys, "--pool", "64", "-o", "text.png")
    assert err == ["Wrote text.png"]
    lines = out.splitlines()
    assert lines[2] == "masks       causal"
    assert lines[3] == "pooled      --pool 64"
    assert lines[4] == (
        "            300 × 300 weights a head as 60 × 60 pixels of 5 × 5; means, largest weights "
        "and each row's numbers are of every weight; none is left out"
    )
    assert "heads of sequence 0: means over 300 query rows" in lines
    assert Path("text.png").stat().st_size > 1000


def test_it_pools_by_itself_where_whole_maps_take_too_much(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, whole = run(capsys, "-o", "whole.npz", "--memory", "1GB")
    assert "pooled" not in whole
    _, out = run(capsys, "-o", "text.npz", "--memory", "1 MB")
    reason = next(line for line in out.splitlines() if line.startswith("pooled"))
    assert re.fullmatch(
        r"pooled      whole maps would take [\d.]+ MiB, more than --memory 1 MB", reason
    )
    found, expect = load("text.npz"), load("whole.npz")
    assert found.cells == (1, 1)
    np.testing.assert_allclose(found.mean, expect.attention, rtol=0, atol=2e-6)
    assert found.masks == expect.masks


def test_half_of_the_free_memory_is_the_usual_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_work, "free_memory", lambda: 2**21)
    _, out = run(capsys, "-o", "text.png")
    assert "more than half of the free memory, 1 MiB" in out


def test_what_a_saved_long_run_is_drawn_as(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--pool", "64", "-o", "text.npz", "-o", "a.svg", "-o", "first", "-q")
    err, out = said(capsys, "render", "text.npz", "-o", "b.svg", "-o", "second", "-o", "c.html")
    assert Path("a.svg").read_bytes() == Path("b.svg").read_bytes()
    drawn = sorted(path.name for path in Path("first").iterdir())
    assert drawn == ["seq0-head0.png", "seq0-head1.png", "seq0-head2.png", "seq0-overview.png"]
    for name in drawn:
        assert Path("first", name).read_bytes() == Path("second", name).read_bytes()
    assert out.splitlines()[:4] == [
        "source      a layer from flags, untrained, seed 0",
        "attention   1 × 1 × 3 maps (layers, sequences, heads)",
        "masks       causal",
        "pooled      a saved long run",
    ]
    assert [line for line in err if line.startswith("Wrote")] == [
        "Wrote b.svg",
        "Wrote second/: seq0-overview.png … seq0-head2.png (4 files)",
        "Wrote c.html",
    ]


def test_several_sequences_and_chosen_heads(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("run", "--file", "two.txt", *FEW, "--pool", "4", "--heads", "1", "-o", "t.png")
    err, out = said(capsys, *given, "--show")
    assert [line for line in err if line.startswith("Wrote")] == [
        "Wrote t-seq0.png",
        "Wrote t-seq1.png",
    ]
    assert "heads of sequence 1: means over 5 query rows" in out
    assert "masks       padding, causal" in out
    assert out.count("each cell is the mean of 2 × 2 weights") == 2


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--pool", "9", "-o", "t.svg", "-q") == ([], "")
    assert run(capsys, "--rows", "0:9", "-o", "u.svg", "-q") == ([], "")


def test_the_terminal_in_colour_and_without(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    _, plain = run(capsys, "--pool", "64", "--heads", "0", "--show", "-o", "a.png")
    assert "logarithmic" in plain
    assert "╱╱ forbidden by causal" in plain
    assert max(map(len, plain.splitlines()[6:])) < 140
    rows = [line for line in plain.splitlines() if "╱╱╱" in line]
    assert rows[0].split()[0] == "0"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    _, coloured = run(capsys, "--pool", "64", "--heads", "0", "--show", "-o", "b.png")
    assert "▀" in coloured
    monkeypatch.delenv("FORCE_COLOR")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")


# ── parts ────────────────────────────────────────────────────────────────────────────────────


def test_a_part_is_that_of_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "-o", "whole.npz", "-q")
    run(capsys, "--pool", "64", "--keep", "q,k", "-o", "long.npz", "-q")
    cut = ("--rows", "200:230", "--cols", "190:240")
    _, out = run(capsys, *cut, "-o", "a.npz", "-o", "a.png")
    assert "part        queries 200 to 229, keys 190 to 239, exactly" in out
    assert "heads of sequence" not in out
    said(capsys, "render", "long.npz", *cut, "-o", "b.npz", "-o", "b.png")
    said(capsys, "render", "whole.npz", *cut, "-o", "c.npz")
    whole = load("whole.npz")
    for name in ("a.npz", "b.npz", "c.npz"):
        part = load(name)
        np.testing.assert_allclose(
            part.attention, whole.attention[..., 200:230, 190:240], rtol=0, atol=2e-6
        )
        assert np.array_equal(
            np.broadcast_to(part.allowed, part.attention.shape),
            np.broadcast_to(whole.allowed[..., 200:230, 190:240], part.attention.shape),
        )
        assert part.config["part"] == [[200, 230], [190, 240]]
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()
    assert load("a.npz").attention.tobytes() == load("b.npz").attention.tobytes()


def test_a_part_of_a_sequence_with_padding_on_the_left(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ("run", "--file", "two.txt", *FEW, "--pad-side", "left", "--sequences", "1")
    said(capsys, *given, "--rows", "1:3", "--cols", "0:5", "-o", "part.json", "-q")
    assert json.loads(Path("part.json").read_text())["query_tokens"] == [["坐", "在"]]
    given = ("run", "--file", "two.txt", *FEW, "--pad-side", "left", "--pool", "4")
    said(capsys, *given, "--keep", "q,k", "-o", "long.safetensors", "-q")
    cut = ("--sequences", "1", "--rows", "1:3", "--cols", "0:5")
    said(capsys, "render", "long.safetensors", *cut, "-o", "again.json", "-q")
    parts = [json.loads(Path(name).read_text()) for name in ("part.json", "again.json")]
    assert parts[0]["attention"] == parts[1]["attention"]


# ── what is refused ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--pool", "0"), "--pool is 0; it must be at least 1"),
        (("--pool", "9999"), "--pool is 9999; the most is 8192"),
        (("--memory", "lots"), "--memory lots: a size is expected, 4GB or 500MB, say"),
        (("--rows", "5"), "--rows 5: two numbers are expected, 5000:5200"),
        (
            ("--rows", "9:3"),
            "--rows 9:3 ends before it starts; 5000:5200, say",
        ),
        (("--cols", "9:9"), "--cols 9:9 is empty; 5000:5200, say"),
        (
            ("--rows", "99999999999999:999999999999999"),
            "--rows 99999999999999:999999999999999: there are 300 queries, 0:300 for all",
        ),
        (
            ("--pool", "9", "--cols", "0:9"),
            "--pool folds the whole map, --cols draws a part: give one",
        ),
        (
            ("--memory", "0", "--words"),
            "--words goes with whole maps, and this text is run in blocks (whole maps would take "
            "REASON, more than --memory 0)",
        ),
        (("--rows", "9:301"), "--rows 9:301: there are 300 queries, 0:300 for all"),
        (("--cols", "0:1000"), "--cols 0:1000: there are 300 keys, 0:300 for all"),
        (
            ("--pool", "9", "-o", "t.npz", "--keep", "v"),
            "--keep v: this text is pooled (--pool 9), and q,k is all that can be kept",
        ),
        (
            ("--rows", "0:9", "-o", "t.npz", "--keep", "q"),
            "--keep q keeps whole tensors; --rows and --cols a part",
        ),
        (
            ("--pool", "9", "--save-layer", "l.safetensors"),
            "--save-layer goes with whole maps, and this text is run in blocks (--pool 9)",
        ),
    ],
)
def test_flags_that_cannot_be(
    flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    err, out = run(capsys, *flags, code=2)
    err = [re.sub(r"take [\d.]+ MiB", "take REASON", line) for line in err]
    assert (err, out) == ([f"attnviz: {message}"], "")
    assert sorted(path.name for path in Path().iterdir()) == ["text.txt", "two.txt"]


def test_a_part_is_of_one_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    message = (
        "attnviz: --rows and --cols draw a part of one sequence, there are 2: --sequences 0, say"
    )
    cut = ("--rows", "0:3", "-o", "t.png")
    assert said(capsys, "run", "--file", "two.txt", *FEW, *cut, code=2)[0] == [message]
    for name, more in (("long.npz", ("--pool", "4")), ("whole.npz", ())):
        said(capsys, "run", "--file", "two.txt", *FEW, *more, "-o", name, "-q")
        assert said(capsys, "render", name, *cut, code=2)[0] == [message]


def test_a_saved_long_run_knows_its_own_masks(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "--pool", "9", "-o", "long.npz", "-q")
    for flags, shown in ((("--causal",), "masks"), (("--axes", "Q K"), "--axes")):
        err, _ = said(capsys, "render", "long.npz", *flags, code=2)
        assert err == [f"attnviz: {shown}: long.npz is a saved long run, which knows its own"]
    err, _ = said(capsys, "render", "long.npz", "--rows", "0:9", "-o", "t.png", code=2)
    assert err == [
        "attnviz: this long run was saved without its queries and keys; attnviz run … --keep q,k "
        "keeps what its weights can be computed from"
    ]


def test_what_needs_every_weight_refuses_a_saved_long_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(capsys, "--pool", "9", "-o", "long.npz", "-o", "long.safetensors", "-o", "long.json", "-q")
    for name in ("long.npz", "long.safetensors", "long.json"):
        err, _ = said(capsys, "compare", name, name, code=2)
        assert err == [
            f"attnviz: {name} is a saved long run, whose maps are pooled, and every weight is "
            "needed here; save whole maps of a shorter text"
        ]
        err, _ = said(capsys, "render", name, "--words", "-o", "t.png", code=2)
        assert err == [f"attnviz: --words goes with whole maps; {name} is a saved long run"]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_part_of_a_saved_whole_run_is_counted_without_padding(
    side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("run", "--file", "two.txt", *FEW, "--pad-side", side)
    said(capsys, *given, "-o", "whole.npz", "-q")
    cut = ("--sequences", "1", "--rows", "1:3", "--cols", "0:5", "-q")
    said(capsys, *given, *cut, "-o", "run.json")
    said(capsys, "render", "whole.npz", *cut, "-o", "render.json")
    parts = [json.loads(Path(name).read_text()) for name in ("run.json", "render.json")]
    assert parts[0]["query_tokens"] == parts[1]["query_tokens"] == [["坐", "在"]]
    np.testing.assert_allclose(parts[0]["attention"], parts[1]["attention"], atol=2e-6)
    err, _ = said(capsys, "render", "whole.npz", *cut[:2], "--rows", "0:6", code=2)
    assert err == ["attnviz: --rows 0:6: there are 5 queries, 0:5 for all"]


def test_ctrl_c_leaves_nothing_half_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(progress.Work, "reach", stop)
    assert call(["run", "--file", "text.txt", *FEW, "--pool", "9", "-o", "new/t.png"]) == 130
    assert capsys.readouterr().err == "attnviz: stopped; no file was left half written\n"
    assert sorted(path.name for path in Path().iterdir()) == ["text.txt", "two.txt"]


# ── progress ─────────────────────────────────────────────────────────────────────────────────


def test_rates_are_short() -> None:
    shown = [progress._short(n) for n in (3, 950, 1240, 999_700, 1.236e9, 5e12)]
    assert shown == ["3", "950", "1.24 k", "1 M", "1.24 G", "5e+03 G"]


def test_many_heads_have_fewer_pixels_and_pages_more() -> None:
    assert run_work.usual_pixels(8, pages=False) == 1024
    assert run_work.usual_pixels(1, pages=True) == 4096
    assert run_work.usual_pixels(8, pages=True) == 1024
    assert run_work.usual_pixels(300, pages=False) == 256
    assert run_work.usual_pixels(10**6, pages=True) == 128
