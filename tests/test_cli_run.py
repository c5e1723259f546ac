"""`attnviz run`, end to end: what it writes, what it prints, and that it is the same each time."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import load_file

import attnviz
from attnviz.cli.inputs import BUILT_IN
from attnviz.cli.main import call

SMALL = ["--d-model", "24", "--n-heads", "3"]

Shell = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shell(*arguments: str, **more: object) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **more.pop("env", {})}  # type: ignore[dict-item]
    return subprocess.run(
        [sys.executable, "-m", "attnviz", *arguments],
        capture_output=True,
        env=environment,
        check=False,
        **{"stdin": subprocess.DEVNULL, **more},  # type: ignore[arg-type]
    )


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# ── files ────────────────────────────────────────────────────────────────────────────────────


def test_the_default_is_an_overview_and_a_picture_for_each_head(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    assert call(["run", "The cat sat", *SMALL]) == 0
    expected = ["seq0-head0.png", "seq0-head1.png", "seq0-head2.png", "seq0-overview.png"]
    assert names(empty_folder) == [f"attnviz-out/{name}" for name in expected]
    pixels = []
    for name in expected:
        with Image.open(empty_folder / "attnviz-out" / name) as picture:
            assert picture.format == "PNG"
            assert min(picture.size) > 100
            pixels.append(np.asarray(picture.convert("RGB")))
    assert not np.array_equal(pixels[0], pixels[1])
    assert capsys.readouterr().err == (
        "Wrote attnviz-out/: seq0-overview.png … seq0-head2.png (4 files)\n"
    )


def test_several_sequences_and_chosen_heads(empty_folder: Path) -> None:
    call(["run", "a b", "c d e", "f", *SMALL, "--sequences", "0,2", "--heads", "1-2", "-o", "o"])
    assert names(empty_folder) == [
        "o/seq0-head1.png",
        "o/seq0-head2.png",
        "o/seq0-overview.png",
        "o/seq2-head1.png",
        "o/seq2-head2.png",
        "o/seq2-overview.png",
    ]


def test_head_numbers_sort_as_text(empty_folder: Path) -> None:
    call(["run", "a b", "--d-model", "24", "--n-heads", "12", "--heads", "9-10", "-o", "o"])
    assert names(empty_folder) == ["o/seq0-head09.png", "o/seq0-head10.png", "o/seq0-overview.png"]


def test_every_form_in_one_run(empty_folder: Path) -> None:
    outputs = ["x.png", "x.svg", "x.pdf", "x.html", "x.json", "x.npz", "x.safetensors"]
    flags = [part for name in outputs for part in ("-o", name)]
    assert call(["run", "The cat", *SMALL, *flags]) == 0
    assert names(empty_folder) == sorted(outputs)
    starts = {"x.png": b"\x89PNG", "x.svg": b"<?xml", "x.pdf": b"%PDF", "x.html": b"<!doctype html"}
    for name, start in starts.items():
        assert (empty_folder / name).read_bytes()[: len(start)].lower() == start.lower()


def test_a_picture_of_several_sequences_is_one_file_each(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    assert call(["run", "a b", "c", *SMALL, "-o", "deep/er/x.png", "-o", "y.npz"]) == 0
    assert names(empty_folder) == ["deep/er/x-seq0.png", "deep/er/x-seq1.png", "y.npz"]
    wrote = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Wrote")]
    assert wrote == [
        "Wrote deep/er/x-seq0.png",
        "Wrote deep/er/x-seq1.png",
        "Wrote y.npz",
    ]


def test_what_is_there_is_kept_unless_forced(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    assert call(["run", "a b", *SMALL]) == 0
    before = {name: (empty_folder / name).read_bytes() for name in names(empty_folder)}
    capsys.readouterr()
    assert call(["run", "c d", *SMALL]) == 2
    assert capsys.readouterr().err == (
        "attnviz: attnviz-out/seq0-overview.png exists; --force replaces it, or give another "
        "path with -o\n"
    )
    assert {name: (empty_folder / name).read_bytes() for name in names(empty_folder)} == before
    assert call(["run", "c d", *SMALL, "--force"]) == 0
    assert all((empty_folder / name).read_bytes() != before[name] for name in before)


def test_the_saved_run_has_the_documented_layout(empty_folder: Path) -> None:
    kept = "q,k,v,scores,context,output"
    flags = [*SMALL, "--d-k", "5", "--d-v", "7", "--causal", "--keep", kept, "--seed", "3"]
    code = call(["run", "the cat sat", "a dog", *flags, "-o", "r.npz", "-o", "r.safetensors"])
    assert code == 0
    with np.load("r.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    metadata = json.loads(str(arrays.pop("metadata")))
    L, B, H, T, d_k, d_v, d_model = 1, 2, 3, 3, 5, 7, 24
    assert {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == {
        "attention": ((L, B, H, T, T), "float32"),
        "allowed": ((L, B, 1, T, T), "bool"),
        "lengths": ((B,), "int64"),
        "key_lengths": ((B,), "int64"),
        "q": ((L, B, H, T, d_k), "float32"),
        "k": ((L, B, H, T, d_k), "float32"),
        "v": ((L, B, H, T, d_v), "float32"),
        "scores": ((L, B, H, T, T), "float32"),
        "context": ((L, B, H, T, d_v), "float32"),
        "output": ((L, B, T, d_model), "float32"),
    }
    assert metadata == {
        "format": "attnviz.run",
        "version": 2,
        "attnviz": attnviz.__version__,
        "source": "a layer from flags, untrained, seed 3",
        "trained": False,
        "config": {
            "d_model": 24,
            "n_heads": 3,
            "d_k": 5,
            "d_v": 7,
            "n_kv_heads": 3,
            "positions": "sinusoidal",
            "seed": 3,
            "dtype": "float32",
            "device": "cpu",
        },
        "masks": ["padding", "causal"],
        "pad_side": "right",
        "query_tokens": [["the", "cat", "sat"], ["a", "dog", "[PAD]"]],
        "key_tokens": [["the", "cat", "sat"], ["a", "dog", "[PAD]"]],
    }
    # the kept tensors belong together: by hand, in float64
    q, k, v = (arrays[name].astype(np.float64) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(d_k)
    np.testing.assert_allclose(arrays["scores"], scores, atol=2e-6)
    powers = np.exp(scores) * arrays["allowed"]
    weights = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(arrays["attention"], weights, atol=1e-6)
    np.testing.assert_allclose(arrays["context"], weights @ v, atol=2e-6)
    np.testing.assert_allclose(arrays["output"].mean(-1), 0, atol=1e-6)

    other = load_file("r.safetensors")
    assert other.keys() == arrays.keys()
    assert all(np.array_equal(other[name], arrays[name]) for name in arrays)
    with safe_open("r.safetensors", framework="numpy") as archive:
        assert json.loads(archive.metadata()["attnviz"]) == metadata


def test_the_layer_is_saved_with_its_names(empty_folder: Path) -> None:
    assert call(["run", "a b", *SMALL, "--d-k", "5", "-q", "--save-layer", "l.safetensors"]) == 0
    shapes = {name: array.shape for name, array in load_file("l.safetensors").items()}
    assert shapes == {
        "w_q.weight": (15, 24),
        "w_q.bias": (15,),
        "w_k.weight": (15, 24),
        "w_k.bias": (15,),
        "w_v.weight": (15, 24),
        "w_v.bias": (15,),
        "w_o.weight": (24, 15),
        "w_o.bias": (24,),
        "norm.weight": (24,),
        "norm.bias": (24,),
    }


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(empty_folder: Path) -> None:
    outputs = ["x.png", "x.svg", "x.pdf", "x.html", "x.json", "x.npz", "x.safetensors"]
    flags = [part for name in ["heads", *outputs] for part in ("-o", name)]
    files = {}
    for run, seed in (("first", "7"), ("second", "7"), ("other", "8")):
        folder = empty_folder / run
        folder.mkdir()
        done = shell(
            *["run", "The 猫 sat", *SMALL, "--seed", seed, "--save-layer", "l.safetensors", *flags],
            cwd=folder,
        )
        assert done.returncode == 0, done.stderr
        files[run] = {name: (folder / name).read_bytes() for name in names(folder)}
    assert len(files["first"]) == 4 + len(outputs) + 1
    assert files["first"] == files["second"]
    assert [name for name in files["first"] if files["first"][name] == files["other"][name]] == []


# ── input ────────────────────────────────────────────────────────────────────────────────────


def tokens_of(path: str = "r.npz") -> list[list[str]]:
    with np.load(path) as archive:
        return json.loads(str(archive["metadata"]))["query_tokens"]


def test_a_pipe_is_read_when_no_text_is_given() -> None:
    done = shell("run", *SMALL, "-o", "r.npz", stdin=None, input="一只猫\r\n\r\na cat\n".encode())
    assert done.returncode == 0
    assert tokens_of() == [["一", "只", "猫"], ["a", "cat", "[PAD]"]]
    assert done.stderr == b"standard input: 1 empty line skipped\nWrote r.npz\n"


def test_text_wins_over_a_pipe() -> None:
    done = shell("run", "one two", *SMALL, "-o", "r.npz", stdin=None, input=b"not this\n")
    assert done.returncode == 0
    assert tokens_of() == [["one", "two"]]


def test_a_dash_and_a_file_are_read_in_order(empty_folder: Path) -> None:
    (empty_folder / "a.json").write_text('["x y", "z"]')
    done = shell(
        *["run", *SMALL, "-o", "r.npz", "--file", "a.json", "--file", "-"],
        stdin=None,
        input=b"from a pipe",
    )
    assert done.returncode == 0
    assert tokens_of() == [["x y", "z", "[PAD]"], ["from", "a", "pipe"]]


def test_nothing_at_all_is_the_built_in_sentence() -> None:
    done = shell("run", *SMALL, "-o", "r.npz")
    assert done.returncode == 0
    assert done.stderr.decode() == f'no text was given: using "{BUILT_IN}"\nWrote r.npz\n'
    assert tokens_of()[0][:3] == ["The", "animal", "didn't"]


def test_a_closed_standard_input_is_no_crash() -> None:
    done = subprocess.run(
        f"{sys.executable} -m attnviz run --file - -o r.npz <&-",
        shell=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == b"attnviz: standard input is closed; give TEXT or --file\n"


def test_cross_attention_has_both_texts() -> None:
    assert (
        call(["run", "a small cat", "--keys", "一只小猫", *SMALL, "--causal", "-o", "r.npz"]) == 0
    )
    with np.load("r.npz") as archive:
        metadata = json.loads(str(archive["metadata"]))
        assert archive["attention"].shape == (1, 1, 3, 3, 4)
        assert archive["key_lengths"].tolist() == [4]
    assert metadata["query_tokens"] == [["a", "small", "cat"]]
    assert metadata["key_tokens"] == [["一", "只", "小", "猫"]]


def test_one_key_text_serves_every_query_text(empty_folder: Path) -> None:
    (empty_folder / "keys.txt").write_text("x y z\n")
    assert call(["run", "a", "b c", "--key-file", "keys.txt", *SMALL, "-o", "r.npz"]) == 0
    with np.load("r.npz") as archive:
        assert archive["attention"].shape == (1, 2, 3, 2, 3)


# ── masks ────────────────────────────────────────────────────────────────────────────────────


def allowed(path: str = "r.npz") -> np.ndarray:
    with np.load(path) as archive:
        return np.asarray(archive["allowed"][0])


def test_the_padding_mask_is_on_where_lengths_differ_and_can_be_taken_off() -> None:
    call(["run", "a b c", "d", *SMALL, "-o", "r.npz"])
    assert allowed()[1, 0].tolist() == [[True, False, False]] * 3
    call(["run", "a b c", "d", *SMALL, "--no-padding-mask", "-o", "r.npz", "--force"])
    assert allowed().all()
    call(["run", "a b", *SMALL, "--pad-to", "3", "--pad-side", "left", "-o", "r.npz", "--force"])
    assert allowed()[0, 0].tolist() == [[False, True, True]] * 3


def test_a_prefix_and_causal_combine_like_all_masks(capsys: pytest.CaptureFixture[str]) -> None:
    call(["run", "a b c d", *SMALL, "--prefix", "2", "-o", "r.npz"])
    assert allowed()[0, 0].astype(int).tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 1],
    ]
    call(["run", "a b c d", *SMALL, "--prefix", "2", "--causal", "-o", "r.npz", "--force"])
    assert np.array_equal(allowed()[0, 0], np.tril(np.ones((4, 4), dtype=bool)))
    assert (
        "--causal cancels --prefix 2; --prefix alone is causal after its prefix"
        in capsys.readouterr().err
    )


def test_a_mask_file_says_what_1_means(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    (empty_folder / "m.csv").write_text("1,0\n1,1\n")
    call(["run", "a b", *SMALL, "--mask", "m.csv", "-o", "r.npz"])
    assert allowed()[0, 0].tolist() == [[True, False], [True, True]]
    assert capsys.readouterr().err.splitlines()[0] == (
        "mask file m.csv (1 = keep): 1 means may look; --mask-means drop for the opposite"
    )
    call(
        ["run", "a b", *SMALL, "--mask", "m.csv", "--mask-means", "drop", "-o", "r.npz", "--force"]
    )
    assert allowed()[0, 0].tolist() == [[False, True], [False, False]]
    said = capsys.readouterr()
    assert "1 means may not look; --mask-means keep for the opposite" in said.err
    assert "1 row with nothing to see" in said.out


def test_segments_without_a_separator_are_remarked(capsys: pytest.CaptureFixture[str]) -> None:
    call(["run", "a b", *SMALL, "--segments", "-o", "r.npz"])
    assert "--segments: no [SEP] in the text, so all is one segment" in capsys.readouterr().err
    call(["run", "a [SEP] b", *SMALL, "--segments", "-o", "r.npz", "--force"])
    assert allowed()[0, 0].astype(int).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


# ── what is printed ──────────────────────────────────────────────────────────────────────────


def test_the_report_has_facts_trace_and_heads(capsys: pytest.CaptureFixture[str]) -> None:
    call(["run", "the cat the dog", "猫", *SMALL, "--causal", "-o", "r.npz"])
    out = capsys.readouterr().out
    assert out.startswith(
        "layer       3 heads, d_model 24, d_k 8, d_v 8, float32, positions sinusoidal\n"
        "            untrained (random numbers, seed 0): it shows the mechanism, not what a model "
        "has learned\n"
        "masks       padding, causal: 6 of 17 cells forbidden; 3 padded keys\n"
        "sequence 0  4 tokens: the/4 cat/5 the/4 dog/6\n"
        "sequence 1  1 token and 3 padding on the right: 猫/7\n"
    )
    for step in ("embedded", "scores", "weights", "context", "output", "entropy"):
        assert step in out


def test_no_trace_and_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    call(["run", "the cat", *SMALL, "--no-trace", "-o", "r.npz"])
    assert "embedded" not in capsys.readouterr().out
    call(["run", "the cat", *SMALL, "--quiet", "-o", "r.npz", "--force"])
    assert capsys.readouterr() == ("", "")


def test_a_long_sequence_is_listed_in_part(capsys: pytest.CaptureFixture[str]) -> None:
    call(["run", " ".join(f"t{i}" for i in range(70)), *SMALL, "--heads", "0", "-o", "r.npz"])
    assert "t63/67 and 6 more\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "environment",
    [
        {"COLUMNS": "20"},
        {"TERM": "dumb"},
        {"NO_COLOR": "1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "cp1252"},
    ],
    ids=str,
)
def test_the_terminal_picture_works_anywhere(environment: dict[str, str]) -> None:
    done = shell("run", "The 猫 sat $$ [/red]", *SMALL, "--show", "-o", "r.npz", env=environment)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
    assert b"Traceback" not in done.stderr
    assert b"head 2" in done.stdout


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{sys.executable} -m attnviz run 'a b' -o r.npz | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert done.stdout.startswith(b"layer")
    assert b"Traceback" not in done.stderr
    assert Path("r.npz").exists()


def test_versions() -> None:
    done = shell("--version")
    python = ".".join(map(str, sys.version_info[:3]))
    assert done.stdout.decode().startswith(f"attnviz {attnviz.__version__}, torch 2.")
    assert done.stdout.decode().endswith(f", Python {python}\n")


def test_completion_is_offered() -> None:
    done = shell(
        env={"_ATTNVIZ_COMPLETE": "complete_bash", "COMP_WORDS": "attnviz s", "COMP_CWORD": "1"}
    )
    assert done.stdout.split() == [b"shapes", b"stats"]


# ── when it ends early ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_leaves_nothing_half_written(way: signal.Signals, empty_folder: Path) -> None:
    text = " ".join(f"t{i}" for i in range(200))
    process = subprocess.Popen(
        [sys.executable, "-m", "attnviz", "run", text, "--n-heads", "512", "-o", "new/heads"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while process.poll() is None and not names(empty_folder):
        time.sleep(0.02)
    process.send_signal(way)
    out, err = process.communicate()
    assert (process.returncode, out) == (128 + way, b"")
    assert err == b"attnviz: stopped; no file was left half written\n"
    assert list(empty_folder.iterdir()) == []


def test_a_full_disk_is_the_machines_fault(empty_folder: Path) -> None:
    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    done = shell("run", "a b", "-o", "new/r.npz", preexec_fn=small_files_only)
    assert done.returncode == 1
    assert done.stderr.endswith(b"r.npz cannot be written: file too large\n")
    assert done.stderr.count(b"\n") == 1
    assert list(empty_folder.iterdir()) == []


def test_marks_of_subword_tokens_can_be_decoded(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    (empty_folder / "t.json").write_text('["Ġhi", "Ġyou", "ng"]', encoding="utf-8")
    flags = ["run", "--file", "t.json", *SMALL, "--no-trace", "--show"]
    call([*flags, "-o", "a.svg", "-o", "a.npz"])
    assert "\n Ġhi " in capsys.readouterr().out
    call([*flags, "--decode", "-o", "b.svg", "-o", "b.npz", "-o", "b.html"])
    assert "\n hi " in capsys.readouterr().out
    assert "Ġhi" in Path("a.svg").read_text("utf-8")
    assert "Ġhi" not in Path("b.svg").read_text("utf-8")
    assert Path("a.npz").read_bytes() == Path("b.npz").read_bytes()  # a saved run keeps them


def test_pictures_of_an_earlier_run_are_remarked(capsys: pytest.CaptureFixture[str]) -> None:
    call(["run", "a b", *SMALL, "-o", "o", "-q"])
    call(["run", "c d", *SMALL, "-o", "o", "--force", "--heads", "0"])
    assert "o/ still holds 2 pictures of an earlier run" in capsys.readouterr().err


def test_what_can_be_kept_is_what_a_saved_run_documents() -> None:
    from attnviz.cli.run import KEEPABLE
    from attnviz.result import KEEPABLE as DOCUMENTED

    assert KEEPABLE == DOCUMENTED  # named twice, so that a wrong flag needs no NumPy to be seen


def test_a_padded_batch_gives_the_maps_of_single_texts(empty_folder: Path) -> None:
    flags = ["--d-model", "15", "--n-heads", "3", "--dtype", "float64", "--causal", "-q"]
    call(["run", "a b", *flags, "-o", "one.npz"])
    call(["run", "a b", "c d e a f", *flags, "--pad-side", "left", "-o", "two.npz"])
    with np.load("one.npz") as one, np.load("two.npz") as two:
        np.testing.assert_allclose(
            two["attention"][:, :1, :, 3:, 3:], one["attention"], rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "nonsense"])
def test_no_backend_of_matplotlib_matters(backend: str) -> None:
    done = shell("run", "a 猫", *SMALL, "-o", "x.svg", "-o", "x.png", env={"MPLBACKEND": backend})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_failure(closed: str) -> None:
    command = f"{sys.executable} -m attnviz run 'a b' --n-heads 2 -o r.npz --force {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert tokens_of() == [["a", "b"]]
