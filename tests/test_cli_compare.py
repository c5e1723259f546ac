"""`attnviz compare` on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import attnviz
from attnviz.cli.main import call
from attnviz.comparison import compare
from attnviz.result import Attention
from attnviz.saved_runs import save

TOKENS = [["the", "cat", "sat", "on", "the", "mat"], ["猫", "坐", "下"]]


def saved(name: str, seed: int, heads: int = 3, tokens: list[list[str]] = TOKENS) -> None:
    """Write a causal run of one layer with random weights; rows of padding are nonsense."""
    lengths = np.array([len(row) for row in tokens])
    width = int(lengths.max())
    at = np.arange(width)
    allowed = (at[None, :] <= at[:, None]) & (at < lengths[:, None])[:, None]  # B Tq Tk
    scores = 2 * np.random.default_rng(seed).standard_normal((1, len(tokens), heads, width, width))
    weights = np.exp(scores) * allowed[None, :, None]
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    padded = tuple(tuple(row + ["[PAD]"] * (width - len(row))) for row in tokens)
    masks = ("padding", "causal")
    run = Attention(
        weights,
        allowed[None, :, None],
        query_tokens=padded,
        key_tokens=padded,
        lengths=lengths,
        key_lengths=lengths,
        masks=masks,
    )
    save(run, Path(f"{name}.npz"))


@pytest.fixture
def runs(here: Path) -> Path:
    """a.npz and b.npz, of two sequences and three heads, in an empty folder."""
    saved("a", 0)
    saved("b", 1)
    return here


def said(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> Any:
    assert call(["compare", *arguments]) == code
    return capsys.readouterr()


def test_the_report(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, 0, "a.npz", "b.npz")
    lines = out.splitlines()
    assert lines[:3] == [
        "A           a.npz: 3 heads, float32, masks: padding, causal",
        "B           b.npz: 3 heads, float32, masks: padding, causal",
        "compared    3 heads by index, 2 sequences, means over 9 query rows",
    ]
    found = compare(attnviz.load("a.npz"), attnviz.load("b.npz"))
    assert [line.split()[:3] for line in lines[7:10]] == [
        [str(rank), str(head.head), f"{head.bits:.3g}"] for rank, head in enumerate(found.heads, 1)
    ]
    assert lines[-1] == f"weights differ by up to {abs(found.largest.difference):.3g}"
    assert err == ""


def test_exit_codes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = abs(compare(attnviz.load("a.npz"), attnviz.load("b.npz")).largest.difference)
    above, below = str(size * 1.001), str(size * 0.999)
    assert call(["compare", "a.npz", "b.npz", "--tolerance", above]) == 0
    assert call(["compare", "a.npz", "b.npz", "--tolerance", below]) == 3
    assert call(["compare", "a.npz", "a.npz", "--tolerance", "0"]) == 0
    assert "tolerance 0: the same: no weight differs" in capsys.readouterr().out
    assert call(["compare", "a.npz", "b.npz", "--tolerance", below, "--quiet"]) == 3
    assert capsys.readouterr() == ("", "")


def test_nan_is_within_no_tolerance(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = attnviz.load("a.npz")
    run.attention[0, 1, 2, 2, 0] = np.nan
    save(run, Path("nan.npz"))
    out, _ = said(capsys, 3, "a.npz", "nan.npz", "--tolerance", "1e9")
    assert "note        B: 1 row with NaN or infinity: no distance for them\n" in out
    assert "B is no number at sequence 1: 2 下 → 0 猫" in out
    assert call(["compare", "a.npz", "nan.npz"]) == 0


def test_json_and_nothing_else(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, 3, "a.npz", "b.npz", "--json", "--tolerance", "0.001", "--top", "1")
    document = json.loads(out)
    assert err == ""
    assert document["format"] == "attnviz.comparison"
    assert document["a"]["file"] == "a.npz"
    assert document["within"] is False
    assert len(document["heads"]) == 3
    found = compare(attnviz.load("a.npz"), attnviz.load("b.npz"))
    assert [head["bits"] for head in document["heads"]] == [head.bits for head in found.heads]
    assert out.isascii()


def test_every_form(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = ["-o", "out", "-o", "d.png", "-o", "d.svg", "-o", "d.pdf", "-o", "c.json"]
    _, err = said(capsys, 0, "a.npz", "b.npz", "--top", "2", *outputs, "--dpi", "60")
    assert sorted(path.name for path in Path("out").iterdir()) == [
        f"seq{s}-{name}.png" for s in (0, 1) for name in ("differences", "top1", "top2")
    ]
    assert sorted(path.name for path in Path().glob("d*")) == sorted(
        f"d-seq{s}.{form}" for s in (0, 1) for form in ("png", "svg", "pdf")
    )
    assert json.loads(Path("c.json").read_text())["tolerance"] is None
    assert err.splitlines() == [
        "Wrote out/: seq0-differences.png … seq1-top2.png (6 files)",
        *(f"Wrote d-seq{s}.{form}" for form in ("png", "svg", "pdf") for s in (0, 1)),
        "Wrote c.json",
    ]
    head = compare(attnviz.load("a.npz"), attnviz.load("b.npz")).heads[1]
    with Image.open("out/seq1-top2.png") as image:
        assert image.info["Title"] == f"Head {head.head}"
        assert "A: a.npz, " in image.info["Description"]


def test_several_layers_have_a_matrix(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for name in "ab":
        np.save(f"{name}.npy", rng.dirichlet(np.ones(4), (2, 1, 3, 4)))
    _, err = said(capsys, 0, "a.npy", "b.npy", "-o", "out", "--top", "1", "--dpi", "60")
    assert err.endswith("Wrote out/: distances.png … seq0-top1.png (3 files)\n")
    with Image.open("out/distances.png") as image:
        assert image.info["Title"] == "How far apart each head is"


def test_what_is_there_stays(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["compare", "a.npz", "b.npz", "-o", "out", "--dpi", "60", "-q"]) == 0
    _, err = said(capsys, 2, "a.npz", "b.npz", "-o", "out")
    assert err == (
        "attnviz: out/seq0-differences.png exists; --force replaces it, or give another path "
        "with -o\n"
    )
    _, err = said(
        capsys, 0, "a.npz", "b.npz", "-o", "out", "--force", "--sequences", "1", "--dpi", "60"
    )
    assert "out/ still holds 4 pictures of an earlier run\n" in err


def test_what_is_chosen(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--heads", "2,0", "--sequences", "1", "--layers", "0", "--json"]
    out, _ = said(capsys, 0, "a.npz", "b.npz", *chosen)
    document = json.loads(out)
    assert sorted(head["head"] for head in document["heads"]) == [0, 2]
    assert document["sequences"] == [1]
    assert {head["rows"] for head in document["heads"]} == {3}


def test_the_map(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = said(capsys, 0, "a.npz", "b.npz", "--show")
    assert out.count(": B − A\n") == 2
    assert "rows: queries" in out
    assert ": B − A\n" not in said(capsys, 0, "a.npz", "b.npz").out


def test_heads_in_another_order_are_matched(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = attnviz.load("a.npz")
    np.save("moved.npy", run.attention[0][:, [2, 0, 1]])
    out, err = said(capsys, 0, "a.npz", "moved.npy", "--match", "--tolerance", "0")
    assert "matched     0~1 1~2 2~0\n" in out
    assert "3 heads in which no weight differs\n" in out
    assert err.startswith("moved.npy: read as B H Q K: 2 sequences, 3 heads, 6 queries × 6 keys")
    assert call(["compare", "a.npz", "moved.npy", "--tolerance", "0"]) == 3


def test_an_array_has_the_tokens_and_padding_of_the_run(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = attnviz.load("a.npz")
    weights = run.attention[0].copy()
    weights[1, :, 3:] = 7  # padding
    np.save("bare.npy", weights)
    out, _ = said(capsys, 0, "bare.npy", "a.npz", "--tolerance", "0")
    assert "compared    3 heads by index, 2 sequences, means over 9 query rows\n" in out
    assert "note" not in out
    weights[1, 2, 1, 2] = 0.25  # a leak
    np.save("bare.npy", weights)
    out, _ = said(capsys, 0, "a.npz", "bare.npy")
    assert (
        "note        the masks differ: 0 cells allowed in A only, 1 in B only (masks of A: "
        "padding, causal; of B: unknown)\n"
    ) in out
    assert "+0.25  0.000  0.250  sequence 1: 1 坐 → 2 下\n" in out


def test_two_arrays(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    np.save("a.npy", rng.dirichlet(np.ones(4), (2, 4)))
    np.save("b.npy", rng.dirichlet(np.ones(4), (2, 4)))
    Path("tokens.json").write_text('[["a", "b", "<script>", "\\u001b[31m"]]')
    out, _ = said(capsys, 0, "a.npy", "b.npy")
    assert "masks: unknown" in out
    out, _ = said(capsys, 0, "a.npy", "b.npy", "--tokens", "tokens.json", "--json")
    assert json.loads(out)["largest"]["query_token"] in ("a", "b", "<script>", "\x1b[31m")


def test_scores_become_weights(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = np.random.default_rng(0).standard_normal((3, 5, 5))
    grown = np.exp(scores)
    np.save("scores.npy", scores)
    np.save("shifted.npy", scores + 3)
    assert call(["compare", "scores.npy", "shifted.npy", "--softmax", "--tolerance", "1e-12"]) == 0
    np.save("weights.npy", grown / grown.sum(-1, keepdims=True))
    assert call(["compare", "scores.npy", "weights.npy"]) == 0
    assert "(scores before softmax?)" in capsys.readouterr().out


def test_subword_marks_decoded(runs: Path) -> None:
    flags = ["a.npz", "b.npz", "-o", "d.svg", "--sequences", "0", "--dpi", "60", "-q"]
    for name in ("a", "b"):
        run = attnviz.load(f"{name}.npz")
        tokens = tuple(tuple(f"▁{token}" for token in row) for row in run.query_tokens)
        save(replace(run, query_tokens=tokens, key_tokens=tokens), Path(f"{name}.npz"))
    assert call(["compare", *flags]) == 0
    assert "▁cat" in Path("d-seq0.svg").read_text()
    assert call(["compare", *flags, "--force", "--decode"]) == 0
    assert "▁cat" not in Path("d-seq0.svg").read_text()
    assert ">cat<" in Path("d-seq0.svg").read_text()


def test_ascii_where_the_terminal_has_no_more(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnviz.render.console.ascii_only", lambda console: True)
    out, _ = said(capsys, 0, "a.npz", "b.npz", "--tolerance", "1")
    assert out.splitlines()[-1].isascii()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.npz", "none.npz"], "none.npz: no such file or directory"),
        (
            ["a.npz", "-"],
            "attention is read from files, not from standard input; save it first",
        ),
        (["a.npz"], "Missing argument 'B' (see attnviz compare --help)"),
        (["a.npz", "b.npz", "--top", "0"], "--top is 0; at least 1 is expected"),
        (
            ["a.npz", "b.npz", "--tolerance", "-1"],
            "--tolerance is -1; 0 or more is expected, 1e-5, say",
        ),
        (
            ["a.npz", "b.npz", "--tolerance", "nan"],
            "--tolerance is nan; 0 or more is expected, 1e-5, say",
        ),
        (["a.npz", "b.npz", "--heads", "3"], "--heads 3: there are 3 heads, 0 to 2"),
        (["a.npz", "b.npz", "--layers", "1"], "--layers 1: there is 1 layer, 0"),
        (
            ["a.npz", "b.npz", "-o", "x.html"],
            "-o x.html: a comparison is written as .png .svg .pdf .json, or to a folder (no "
            "suffix)",
        ),
        (
            ["a.npz", "b.npz", "-o", "x.npz"],
            "-o x.npz: a comparison is written as .png .svg .pdf .json, or to a folder (no suffix)",
        ),
        (
            ["a.npz", "b.npz", "--softmax"],
            "both files are saved runs, which know their axes and tokens; --softmax is for bare "
            "arrays",
        ),
        (
            ["a.npz", "short.npy"],
            "A has 2 sequences and B has 1; short.npy: read as H Q K: 3 heads, 5 queries × 5 keys; "
            'for layers or sequences, --axes "L Q K" or "B Q K"',
        ),
        (
            ["a.npz", "dog.npz"],
            "sequence 0: query token 1 is 'cat' in A and 'dog' in B; both must be over the same "
            "tokens",
        ),
        (
            ["a.npz", "four.npz"],
            "A has 3 heads and B has 4; --match pairs those that are alike",
        ),
    ],
)
def test_what_cannot_work(
    arguments: list[str], message: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("short.npy", np.full((3, 5, 5), 0.2))
    saved("dog", 0, tokens=[["the", "dog", *TOKENS[0][2:]], TOKENS[1]])
    saved("four", 0, heads=4)
    out, err = said(capsys, 2, *arguments)
    assert err == f"attnviz: {message}\n"
    assert out == ""


@pytest.mark.usefixtures("here")
def test_sizes_are_compared_before_anything_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither of two layers may be compared with one that is alone, whatever the numbers are."""
    weights = np.full((2, 1, 3, 5, 5), 0.2, dtype=np.float32)
    np.save("sequences.npy", weights)
    np.save("heads.npy", weights[:, 0])
    np.save("one.npy", weights[:1])
    np.savez("two.npz", **{f"a.{i}": weights[i] for i in range(2)})
    read = {
        "sequences.npy": "2 layers, 1 sequence, 3 heads",
        "one.npy": "1 layer, 1 sequence, 3 heads",
    }
    for name, words in read.items():
        read[name] = f"{name}: read as L B H Q K: {words}, 5 queries × 5 keys"
    read["heads.npy"] = (
        "heads.npy: read as B H Q K: 2 sequences, 3 heads, 5 queries × 5 keys; for layers × heads, "
        '--axes "L H Q K"'
    )
    for a, b, message in (
        ("sequences.npy", "heads.npy", "A has 2 layers and B has 1"),
        ("heads.npy", "sequences.npy", "A has 1 layer and B has 2"),
        ("sequences.npy", "one.npy", "A has 2 layers and B has 1"),
        ("one.npy", "sequences.npy", "A has 1 layer and B has 2"),
    ):
        assert call(["compare", a, b]) == 2
        assert capsys.readouterr().err == f"attnviz: {message}; {read[a]}; {read[b]}\n"
    assert call(["compare", "two.npz", "one.npy"]) == 2
    assert capsys.readouterr().err.startswith("attnviz: A has 2 layers and B has 1; two.npz: ")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("b", ["two.npz", "two.npy", "run.npz"])
@pytest.mark.parametrize("a", ["two.npz", "two.npy", "run.npz"])
def test_one_of_several_layers(a: str, b: str, capsys: pytest.CaptureFixture[str]) -> None:
    weights = np.random.default_rng(0).random((2, 1, 3, 5, 5))
    weights /= weights.sum(-1, keepdims=True)
    np.save("two.npy", weights)
    np.savez("two.npz", **{f"a.{i}": weights[i] for i in range(2)})
    assert call(["render", "two.npy", "-o", "run.npz", "-q", "--force"]) == 0
    weights[0] = 0.2
    assert call(["compare", a, b, "--layers", "1", "--json"]) == 0
    heads = json.loads(capsys.readouterr().out)["heads"]
    assert [(head["layer"], head["head"]) for head in heads] == [(1, 0), (1, 1), (1, 2)]
    assert all(head["bits"] == 0 for head in heads)
