"""`attnviz check`: what it prints, writes and exits with, for right, wrong and hostile files."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from attnviz.cli.check import ManyAfterOne
from attnviz.cli.main import call

SCHEMA = json.loads(
    (Path(__file__).parent.parent / "attnviz/render/check.schema.json").read_text("utf-8")
)

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def empty_folder(here: Path) -> Path:
    return here


def softmax(scores: np.ndarray, mask: Any = True) -> np.ndarray:
    powers = np.exp(scores - scores.max(-1, keepdims=True)) * mask
    return powers / powers.sum(-1, keepdims=True)


def make(batch: int = 2, heads: int = 3, tokens: int = 5, width: int = 11) -> dict[str, np.ndarray]:
    """q, k, v, right causal weights and their context, float32."""
    generator = np.random.default_rng(0)
    q, k, v = generator.normal(size=(3, batch, heads, tokens, width))
    scores = q @ k.swapaxes(-1, -2)
    causal = np.tri(tokens)
    made = {
        "q": q,
        "k": k,
        "v": v,
        "right": softmax(scores / width**0.5, causal),
        "unscaled": softmax(scores, causal),
        "leaky": softmax(scores / width**0.5),
    }
    made["context"] = made["right"] @ v
    return {name: array.astype(np.float32) for name, array in made.items()}


@pytest.fixture
def files(empty_folder: Path) -> dict[str, np.ndarray]:
    made = make()
    for name, array in made.items():
        np.save(f"{name}.npy", array)
    return made


# ── what it says ─────────────────────────────────────────────────────────────────────────────


def test_right_attention_exits_with_0(files: Any, capsys: Said) -> None:
    assert call(["check", "right.npy", "--causal"]) == 0
    assert capsys.readouterr().out == (
        "attention   2 sequences, 3 heads, 5 × 5, float32\n"
        "masks       causal\n"
        "holds       weights are finite; none is negative; rows sum to 1 (within 1.59e-06); none "
        "where causal forbids it; rows that see nothing have none; every row sees something; no "
        "head is uniform throughout; no two heads are equal; no head is sunk into one token; what "
        "the masks allow is used\n"
        "\n"
        "nothing is wrong\n"
    )


def test_a_leak_exits_with_3_and_is_explained(files: Any, capsys: Said) -> None:
    assert call(["check", "leaky.npy", "--causal"]) == 3
    said = capsys.readouterr().out
    weights = files["leaky"] * ~np.tri(5, dtype=bool)
    b, h, q, k = np.unravel_index(weights.argmax(), weights.shape)
    assert said.splitlines()[4:] == [
        "FAILS  weight where the causal mask forbids it: 60 cells in 3 of 3 heads",
        f"       worst: sequence {b} head {h} query {q} key {k}: weight {weights.max():.3g}",
        "       the causal mask looks ignored: forbidden keys have weight like others; it was "
        "never applied, or as numbers that are too small",
        "",
        "1 finding fails",
    ]


def test_notes_fail_only_when_strict(capsys: Said) -> None:
    np.save("dead.npy", np.full((1, 5, 5), 0.2))
    assert call(["check", "dead.npy"]) == 0
    assert "note   heads that are uniform for every query: 1 of 1 head\n" in capsys.readouterr().out
    assert call(["check", "dead.npy", "--strict"]) == 3
    np.save("right.npy", make()["right"])
    assert call(["check", "right.npy", "--strict"]) == 0


def test_a_run_of_ours_is_right_with_all_that_it_keeps(capsys: Said) -> None:
    line = ["run", "a b c d", "e f", "--causal", "--keep", "q,k,v,context", "--no-trace"]
    for name in ("run.npz", "run.safetensors"):
        assert call([*line, "-o", name]) == 0
        capsys.readouterr()
        assert call(["check", name, "--expect", name, "--context", name]) == 0
        said = capsys.readouterr()
        assert "masks       padding, causal\n" in said.out
        assert "weights are softmax(QKᵀ/√d_k); context is weights · V\n" in said.out
        assert said.err == (
            "read as q [L B H T d], k [L B H T d], v [L B H T d], context [L B H T d]\n"
        )
    assert call([*line, "-o", "run.json"]) == 0
    assert call(["check", "run.json"]) == 0


def test_a_run_under_a_mask_that_it_was_not_made_with(capsys: Said) -> None:
    assert call(["run", "a b c d e f", "--causal", "-o", "run.npz", "--no-trace"]) == 0
    capsys.readouterr()
    assert call(["check", "run.npz", "--window", "3"]) == 3
    assert "the window 3 mask is as if it had no limit" in capsys.readouterr().out


# ── --expect ─────────────────────────────────────────────────────────────────────────────────


def test_expect_takes_the_words_up_to_the_next_flag(files: Any, capsys: Said) -> None:
    for words in (
        ["--expect", "q.npy", "k.npy", "--causal"],
        ["--causal", "--expect", "q.npy", "k.npy"],
        ["--expect=q.npy", "k.npy", "--causal"],
        ["--expect", "q.npy", "--expect", "k.npy", "--causal"],
        ["--expect", "q.npy", "k.npy", "v.npy", "--context", "context.npy", "--causal"],
    ):
        assert call(["check", "right.npy", *words]) == 0, capsys.readouterr().err
        assert call(["check", "unscaled.npy", *words]) == 3
        assert "the scale is missing: scores are QKᵀ, not QKᵀ/√d_k" in capsys.readouterr().out


def test_how_the_words_are_repeated() -> None:
    repeated = ManyAfterOne(name="check").repeated
    assert repeated(["f", "--expect", "q", "k", "--json"]) == [
        "f", "--expect", "q", "--expect", "k", "--json",
    ]  # fmt: skip
    assert repeated(["--expect=q", "k", "-h"]) == ["--expect=q", "--expect", "k", "-h"]
    assert repeated(["--expect"]) == ["--expect"]
    assert repeated(["--expect", "--json", "f"]) == ["--expect", "--json", "f"]
    assert repeated(["--expect", "q", "--", "--expect", "k"]) == [
        "--expect", "q", "--", "--expect", "k",
    ]  # fmt: skip


def test_one_file_may_hold_q_and_k(files: dict[str, np.ndarray], capsys: Said) -> None:
    q, k, v = (torch.from_numpy(files[name]) for name in "qkv")
    np.savez("qk.npz", q=files["q"], k=files["k"])
    context = torch.from_numpy(files["context"])
    save_file({"q": q, "k": k, "v": v, "context": context}, "qkv.safetensors")
    torch.save({"q": q, "k": k}, "qk.pt")
    torch.save(q.bfloat16(), "q.pt")
    for name in ("qk.npz", "qkv.safetensors", "qk.pt"):
        assert call(["check", "right.npy", "--causal", "--expect", name]) == 0
        assert call(["check", "unscaled.npy", "--causal", "--expect", name]) == 3
    both = ["--expect", "qkv.safetensors", "--context", "qkv.safetensors"]
    assert call(["check", "right.npy", "--causal", *both]) == 0
    capsys.readouterr()
    np.savez("other.npz", a=files["q"], b=files["k"])
    assert call(["check", "right.npy", "--expect", "other.npz"]) == 2
    assert capsys.readouterr().err == "attnviz: other.npz has no attention 'q'; it holds a, b\n"


def test_layers_of_several_tensors(files: dict[str, np.ndarray], capsys: Said) -> None:
    right, unscaled = (torch.from_numpy(files[name]) for name in ("right", "unscaled"))
    torch.save((right, unscaled), "two.pt")
    torch.save([torch.from_numpy(files["q"])] * 2, "q.pt")
    torch.save([torch.from_numpy(files["k"])] * 2, "k.pt")
    assert call(["check", "two.pt", "--causal", "--expect", "q.pt", "k.pt"]) == 3
    assert "cells in 3 of 6 heads (layer 1: all heads)\n" in capsys.readouterr().out


def test_positions(capsys: Said) -> None:
    made = make()
    half = 5
    angles = np.arange(5)[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)

    def turn(x: np.ndarray) -> np.ndarray:
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)

    scores = turn(made["q"]) @ turn(made["k"]).swapaxes(-1, -2) / 11**0.5
    np.save("w.npy", softmax(scores).astype(np.float32))
    np.savez("qk.npz", q=made["q"], k=made["k"])
    assert call(["check", "w.npy", "--expect", "qk.npz"]) == 3
    assert "(RoPE): --positions rope turns them" in capsys.readouterr().out
    assert call(["check", "w.npy", "--expect", "qk.npz", "--positions", "rope"]) == 0


# ── masks ────────────────────────────────────────────────────────────────────────────────────


def test_padding_by_lengths_or_by_a_mask(capsys: Said) -> None:
    made = make()["leaky"]
    np.save("w.npy", made)
    np.save("real.npy", np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
    np.save("pads.npy", np.array([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]))
    outputs = []
    for flags in (
        ["--lengths", "5,3"],
        ["--padding-mask", "real.npy"],
        ["--padding-mask", "pads.npy", "--mask-means", "drop"],
    ):
        assert call(["check", "w.npy", *flags]) == 3
        outputs.append(capsys.readouterr().out)
    assert len(set(outputs)) == 1
    assert "weight where the padding mask forbids it: 18 cells in 3 of 3 heads\n" in outputs[0]


def test_a_mask_file_is_named_with_its_meaning(files: Any, capsys: Said) -> None:
    np.save("m.npy", np.tri(5, dtype=int))
    assert call(["check", "right.npy", "--mask", "m.npy"]) == 0
    assert capsys.readouterr().err == (
        "right.npy: read as B H Q K: 2 sequences, 3 heads, 5 queries × 5 keys; for layers × heads, "
        '--axes "L H Q K"\n'
        "mask file m.npy (1 = keep): 1 means may look; --mask-means drop for the opposite\n"
    )
    assert call(["check", "right.npy", "--mask", "m.npy", "--mask-means", "drop"]) == 3
    assert "the file m.npy (1 = drop) mask looks inverted" in capsys.readouterr().out


def test_sinks_scores_tolerance(files: dict[str, np.ndarray], capsys: Said) -> None:
    np.save("short.npy", files["right"] * np.float32(0.9))
    assert call(["check", "short.npy"]) == 3
    assert call(["check", "short.npy", "--sinks"]) == 0
    np.save("off.npy", files["right"] * np.float32(1.0004))
    assert call(["check", "off.npy"]) == 3
    assert call(["check", "off.npy", "--tolerance", "0.001"]) == 0
    right = files["right"]
    logs = np.log(np.where(right > 0, right, 1)) + np.where(np.tri(5), 0, -np.inf)
    np.save("logs.npy", logs)
    capsys.readouterr()
    assert call(["check", "logs.npy", "--causal"]) == 3
    assert "these are logarithms of weights: exp of a row sums to 1" in capsys.readouterr().out
    np.save("scores.npy", logs + 0.3)
    capsys.readouterr()
    assert call(["check", "scores.npy", "--causal"]) == 3
    assert "these look like scores, before softmax; --softmax" in capsys.readouterr().out
    assert call(["check", "scores.npy", "--causal", "--softmax"]) == 0


def test_numbers_that_need_a_change_are_changed(capsys: Said) -> None:
    one_hot = np.eye(5)[[0, 0, 1, 2, 4]]
    np.save("ints.npy", one_hot.astype(np.int8))
    np.save("big.npy", one_hot.astype(">f4"))
    torch.save(torch.from_numpy(one_hot).bfloat16(), "b.pt")
    for name in ("ints.npy", "big.npy", "b.pt"):
        assert call(["check", name, "--causal"]) == 0
        assert call(["check", name, "--window", "1"]) == 3
    assert "attention   1 head, 5 × 5, bfloat16\n" in capsys.readouterr().out


# ── for programs ─────────────────────────────────────────────────────────────────────────────


def as_json(line: list[str], capsys: Said) -> Any:
    capsys.readouterr()
    code = call(["check", *line, "--json"])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert (code == 3) == (not document["passed"])
    return document


def test_json_holds_every_head(files: dict[str, np.ndarray], capsys: Said) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    document = as_json(["leaky.npy", "--causal"], capsys)
    [finding] = document["findings"]
    leaks = files["leaky"] * ~np.tri(5, dtype=bool)
    assert [head["head"] for head in finding["heads"]] == [0, 1, 2]
    for head in finding["heads"]:
        of_head = leaks[:, head["head"]]
        assert head["count"] == (of_head > 0).sum() == 20
        assert head["worst"]["value"] == pytest.approx(float(of_head.max()))
        worst = head["worst"]
        assert of_head[worst["sequence"], worst["query"], worst["key"]] == of_head.max()
    assert document["sizes"] == {"L": 1, "B": 2, "H": 3, "Tq": 5, "Tk": 5}
    found = [check["name"] for check in document["checked"] if check["found"]]
    assert found == ["leak:causal"]


def test_json_of_numbers_that_are_none_and_of_notes(capsys: Said) -> None:
    weights = make()["right"]
    weights[0, 1, 2, 0] = np.nan
    weights[1, 1, 2, 0] = -np.inf
    weights[:, 2] = 0
    weights[:, 2, :, 0] = 1
    np.save("w.npy", weights)
    document = as_json(["w.npy"], capsys)
    assert [f["name"] for f in document["findings"]] == ["finite", "sink"]
    assert document["findings"][0]["worst"]["value"] == "NaN"
    assert document["findings"][1]["worst"]["query"] is None


def test_junit_has_a_case_for_each_check_and_layer(capsys: Said) -> None:
    made = make()
    np.save("w.npy", np.stack([made["right"], made["leaky"], made["right"]]))
    assert call(["check", "w.npy", "--causal", "--junit", "out/check.xml"]) == 3
    assert capsys.readouterr().err.endswith("Wrote out/check.xml\n")
    root = ET.parse("out/check.xml").getroot()
    [suite] = root
    cases = suite.findall("testcase")
    assert (root.tag, suite.tag, suite.get("name")) == ("testsuites", "testsuite", "w.npy")
    for element in (root, suite):
        counts = [element.get(name) for name in ("tests", "failures", "errors")]
        assert counts == [str(len(cases)), "1", "0"]
    assert len(cases) == 3 * 10
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases)
    [failed] = [case for case in cases if case.find("failure") is not None]
    assert failed.get("name") == "none where causal forbids it, layer 1"
    failure = failed.find("failure")
    assert failure is not None
    assert failure.get("message") == (
        "weight where the causal mask forbids it: 60 cells in heads 0-2"
    )
    assert (failure.get("type"), len((failure.text or "").splitlines())) == ("leak:causal", 5)
    notes = [case for case in cases if case.find("system-out") is not None]
    assert [case.get("name") for case in notes] == [
        "no two heads are equal, layer 2",
    ]
    before = Path("out/check.xml").read_bytes()
    assert call(["check", "w.npy", "--causal", "--junit", "out/check.xml", "--force"]) == 3
    assert Path("out/check.xml").read_bytes() == before


# ── what cannot work ─────────────────────────────────────────────────────────────────────────

ERRORS = {
    "missing.npy": "missing.npy: no such file or directory",
    "right.npy --tolerance 2": "--tolerance is 2.0; it must be at least 0 and below 1",
    "right.npy --window 0": "--window is 0; it must be at least 1",
    "right.npy --context v.npy": "--context goes with --expect Q K",
    "right.npy --positions rope": "--positions goes with --expect Q K",
    "right.npy --expect q.npy": "--expect q.npy: q and k are expected, a file each",
    "right.npy --expect q.npy k.npy v.npy k.npy": (
        "--expect has 4 files; q, k and v at most are expected"
    ),
    "right.npy --expect q.txt k.npy": (
        "q.txt has the suffix '.txt'; known are .npy, .npz, .safetensors, .pt, .pth"
    ),
    "right.npy --expect q.npy missing.npy": "missing.npy: no such file or directory",
    "--expect q.npy k.npy": "Missing argument 'FILE' (see attnviz check --help)",
    "right.npy --lengths 5,3 --padding-mask m.npy": (
        "--padding-mask and --lengths both give the padding; give one of them"
    ),
    "right.npy --junit check.txt": "--junit check.txt: the suffix must be .xml",
    "right.npy --junit there.xml": (
        "there.xml exists; --force replaces it, or give another path with -o"
    ),
    "-": "attention is read from files, in parts; save what comes through the pipe",
    "run.npz --lengths 3": (
        "run.npz is a saved run, which knows its axes and tokens; --lengths is for bare arrays"
    ),
    "run.npz --padding-mask m.npy": (
        "run.npz is a saved run, which knows its axes and tokens; --padding-mask is for bare arrays"
    ),
    "right.npy --mask m.npy": (
        "mask file m.npy (1 = keep) is [Tq=2 Tk=5], expected [Tq=5 Tk=5]: Tq 2 ≠ 5"
    ),
}


@pytest.mark.parametrize("line", ERRORS)
def test_what_cannot_work_is_one_line(line: str, files: Any, capsys: Said) -> None:
    Path("there.xml").write_text("precious")
    np.save("m.npy", np.ones((2, 5)))
    if "run.npz" in line:
        assert call(["run", "a b c", "-o", "run.npz", "--no-trace"]) == 0
        capsys.readouterr()
    code = call(["check", *line.split()])
    said = capsys.readouterr()
    assert (code, said.out, said.err) == (2, "", f"attnviz: {ERRORS[line]}\n")
    assert Path("there.xml").read_text() == "precious"


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("harmed"),))


def hostile_files() -> dict[str, bytes]:
    """Files that a stranger could send, by name."""
    import io

    def npy(array: Any, **more: Any) -> bytes:
        stream = io.BytesIO()
        np.save(stream, array, **more)
        return stream.getvalue()

    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        header = npy(np.zeros(1)).replace(b"(1,)", b"(999999999999,)"[:4])
        archive.writestr("attention.npy", header + bytes(10**6))
    good = npy(np.eye(5))
    huge = good.replace(b"(5, 5), }      ", b"(99999, 99999),}"[:15])
    return {
        "empty.npy": b"",
        "text.npy": b"hello",
        "cut.npy": good[:-9],
        "huge.npy": huge,
        "objects.npy": npy(np.array([Harm()], dtype=object), allow_pickle=True),
        "words.npy": npy(np.array([["a", "b"], ["c", "d"]])),
        "complex.npy": npy(np.eye(3) * 1j),
        "bomb.npz": bomb.getvalue(),
        "not.npz": b"PK\x03\x04nothing",
        "huge.safetensors": (2**62).to_bytes(8, "little") + b"{}",
        "harm.pt": pickle.dumps(Harm()),
        "text.pt": b"hello",
        "half.json": b'{"format": "attnviz.run"',
        "w.exe": b"MZ",
    }


@pytest.mark.parametrize("name", hostile_files())
@pytest.mark.parametrize("role", ["file", "expect"])
def test_a_hostile_file_is_one_line(name: str, role: str, files: Any, capsys: Said) -> None:
    Path(name).write_bytes(hostile_files()[name])
    line = ["check", name] if role == "file" else ["check", "right.npy", "--expect", "q.npy", name]
    assert call(line) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("attnviz: ")
    assert said.err.count("\n") == 1
    assert not Path("harmed").exists()


def run_program(
    *words: str, columns: str | None = None, **environ: str
) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PYTHONUTF8": "", **environ}
    if columns is not None:
        env["COLUMNS"] = columns
    return subprocess.run(
        [sys.executable, "-m", "attnviz", "check", *words],
        capture_output=True,
        env=env,
        check=False,
    )


def test_hostile_tokens_do_nothing_to_a_terminal(capsys: Said) -> None:
    tokens = ["\x1b[31m", "[/red]", "<script>", "a\nb", "\u202e", "$(x)", "#"]
    Path("t.json").write_text(json.dumps([tokens]))
    weights = make(tokens=7)["leaky"][:1]
    weights[0, :, 3, 4:] += 1
    np.save("w.npy", weights)
    line = ["check", "w.npy", "--causal", "--tokens", "t.json", "--junit", "check.xml"]
    assert call(line) == 3
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert r"query 3 'a\nb' key" in said
    ET.parse("check.xml")
    document = as_json(["w.npy", "--causal", "--tokens", "t.json"], capsys)
    assert document["findings"][1]["worst"]["query_token"] == "a\nb"


def test_ascii_and_no_colour() -> None:
    np.save("w.npy", make()["unscaled"])
    np.savez("qk.npz", q=make()["q"], k=make()["k"])
    done = run_program("w.npy", "--causal", "--expect", "qk.npz", LC_ALL="C", NO_COLOR="1")
    assert done.returncode == 3
    assert done.stdout.isascii()
    assert b"\x1b" not in done.stdout
    assert b"the scale is missing: scores are QK^T, not QK^T/sqrt(d_k)" in done.stdout


def test_nothing_is_cut_in_20_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from rich.console import Console

    from attnviz.checks import check
    from attnviz.render.check_report import print_findings

    report = check(make()["leaky"], causal=True)
    texts = []
    for width in (20, 200):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
        print_findings(report, console)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, text.splitlines())) <= width
        texts.append(text.split())
    assert "".join(texts[0]) == "".join(texts[1])


def test_help_and_wrong_flags_load_nothing_heavy() -> None:
    for words in (["--help"], ["x.npy", "--window", "0"], ["x.npy", "--tolerance", "7"]):
        script = (
            "import sys\nfrom attnviz.cli.main import call\n"
            f"call(['check', *{words!r}])\n"
            "heavy = ('torch', 'matplotlib', 'transformers', 'numpy', 'scipy')\n"
            "print('loaded:', [m for m in heavy if m in sys.modules])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[-1] == "loaded: []"


def test_a_long_run_is_refused(capsys: Said) -> None:
    assert call(["run", "a b c d e f", "--pool", "3", "-o", "long.npz", "--quiet"]) == 0
    capsys.readouterr()
    assert call(["check", "long.npz"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: long.npz is a saved long run, whose maps are pooled, and every weight is "
        "needed here; save whole maps of a shorter text\n"
    )


def test_the_examples_in_the_help_work() -> None:
    from attnviz.cli.check import EXAMPLES

    lines = [line for line in EXAMPLES.splitlines() if line.startswith("attnviz ")]
    assert len(lines) == 2
    for command in " && ".join(lines).split(" && "):
        assert call(shlex.split(command)[1:]) == 0
