"""Bad input: one clear line, exit code 2, and no file left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnviz.cli import main as program
from attnviz.cli.commands import COMMANDS
from attnviz.cli.main import call

KNOWN_SUFFIXES = ".png .svg .pdf .html .json .npz .safetensors"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


SIZES_AND_FLAGS = {
    "run x --d-model 0": "--d-model is 0; it must be at least 1",
    "run x --d-model -512": "--d-model is -512; it must be at least 1",
    "run x --d-model 512.5": "Invalid value for '--d-model': '512.5' is not a valid integer (see attnviz run --help)",
    "run x --d-model many": "Invalid value for '--d-model': 'many' is not a valid integer (see attnviz run --help)",
    "run x --n-heads 0": "--n-heads is 0; it must be at least 1",
    "run x --d-k 0": "--d-k is 0; it must be at least 1",
    "run x --d-v -1": "--d-v is -1; it must be at least 1",
    "run x --d-model 1000000000000000000000": (
        "--d-model is 1000000000000000000000; the largest size is 1000000000000"
    ),
    "run x --d-model 512 --n-heads 10": (
        "d_model 512 is not divisible by n_heads 10: 512 = 10·51 + 2; use 8 or 16 heads, or keep "
        "10 heads with --d-k 51 (they project to 10·51 = 510)"
    ),
    "run x --seed -1": "--seed is -1; it must be between 0 and 9223372036854775807",
    "run x --dtype float8": "--dtype is 'float8'; it must be one of float32, float64, bfloat16, float16",
    "run x --device tpu": "--device is 'tpu'; it must be one of cpu, cuda, mps",
    "run x --positions rotary": "--positions is 'rotary'; it must be one of sinusoidal, none, rope, alibi",
    "run x --tokenizer bpe": "--tokenizer is 'bpe'; it must be one of words, chars, bytes, a tokenizer.json",
    "run x --pad-side up": "--pad-side is 'up'; it must be one of right, left",
    "run x --pad-to 0": "--pad-to is 0; it must be at least 1",
    "run x y z --pad-to 1 --keys a --key-file b": (
        "--keys and --key-file both name the keys; give one of them"
    ),
    "run x --window 0": "--window is 0; it must be at least 1",
    "run x --prefix -3": "--prefix is -3; it must be at least 1",
    "run x --mask-means yes": "--mask-means is 'yes'; it must be one of keep, drop",
    "run x --heads 8": "--heads 8: there are 8 heads, 0 to 7",
    "run x --heads 3-1": "--heads 3-1: there are 8 heads, 0 to 7",
    "run x --heads a": "--heads a: 'a' is no number or range; 0,3-5, say",
    "run x --heads 0,,1": "--heads 0,,1: '' is no number or range; 0,3-5, say",
    "run x --heads ²": "--heads ²: '²' is no number or range; 0,3-5, say",
    "run x y --sequences 2": "--sequences 2: there are 2 sequences, 0 to 1",
    "run x --encoding klingon": "--encoding klingon is unknown; utf-8, utf-16 or gb18030, say",
    "run --file - --key-file -": "standard input, -, can be read once; give a file for the other",
    f"run --file {'y' * 300}.txt": (f"{'y' * 39}…{'y' * 35}.txt: File name too long"),
    "run x --keep q,z -o r.npz": "--keep z: known are q,k,v,scores,context,output",
    "run x --keep q": "--keep q needs a saved run: -o run.npz, say",
    "run x --save-layer l.pt": "--save-layer l.pt: the suffix must be .safetensors",
    "run x -o a.bmp": f"-o a.bmp: unknown suffix .bmp; known are {KNOWN_SUFFIXES}, or a folder (no suffix)",
    "run x -o a.png -o ./a.png": "a.png would be written twice; give each output a path of its own",
    "run a b c --keys x --keys y": "2 key sequences for 3 query sequences; give 3, or 1 for all",
    "run x --file missing.txt": (
        "missing.txt: no such file or directory; a text, .json or .jsonl file is expected"
    ),
    "run x --file .": ".: is a folder; a text, .json or .jsonl file is expected",
    "run x --mask missing.npy": "mask missing.npy: no such file or directory",
    "run --zzz": "No such option: --zzz (see attnviz run --help)",
    "walk": "No such command 'walk' (see attnviz --help)",
    "shapes x --len 5": "--len and TEXT both give the number of queries; give one of them",
    "shapes --len 0": "--len is 0; it must be at least 1",
    "shapes --key-len 5": "--key-len goes with --len; a text has sizes of its own",
    "shapes x --vocab 3": "--vocab goes with --len; a text has sizes of its own",
    "shapes --batch 3": "--batch goes with --len; a text has sizes of its own",
    "shapes --len 6 --pad-to 9": (
        "--len and --pad-to both give the number of queries; give one of them"
    ),
    "shapes --len 6 --keys a": "--len and --keys both give the keys; give one of them",
    "shapes --len 6 --key-len 3 --keys a": (
        "--key-len and --keys both give the keys; give one of them"
    ),
    "shapes --len 6 --mask missing.npy": "mask missing.npy: no such file or directory",
    "shapes x --json --format markdown": (
        "--json and --format markdown both give the format; give one"
    ),
}


@pytest.mark.parametrize("line", SIZES_AND_FLAGS)
def test_a_wrong_flag_is_one_line(
    line: str, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    code = call(line.split())
    said = capsys.readouterr()
    assert (code, said.out, said.err) == (2, "", f"attnviz: {SIZES_AND_FLAGS[line]}\n")
    assert files_below(empty_folder) == set()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "empty.txt",
            b"",
            "there are no tokens: every sequence is empty or all padding; give a text",
        ),
        (
            "blank.txt",
            b"\n \n\t\n",
            "there are no tokens: every sequence is empty or all padding; give a text",
        ),
        (
            "pads.txt",
            b"[PAD] [PAD]\n",
            "there are no tokens: every sequence is empty or all padding; give a text",
        ),
        (
            "latin1.txt",
            "déjà".encode("latin-1"),
            "latin1.txt is not utf-8: byte 1 is 0xE9; name its encoding with --encoding",
        ),
        ("binary.txt", b"\x7fELF\0\0", "binary.txt is a binary file, not text: character 4 is NUL"),
        ("bad.json", b"[1, 2", "bad.json is not JSON: Expecting ',' delimiter at line 1, column 6"),
        ("numbers.json", b"[1, 2]", "numbers.json, token 0 is 1; a non-empty string is expected"),
        ("half.jsonl", b'["a"]\n{"x": 1}\n', 'half.jsonl, line 2 has neither "tokens" nor "text"'),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(
    name: str, content: bytes, message: str, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    (empty_folder / name).write_bytes(content)
    code = call(["run", "--file", name])
    assert (code, capsys.readouterr().err) == (2, f"attnviz: {message}\n")
    assert {path.name for path in files_below(empty_folder)} == {name}


def test_a_mask_that_does_not_fit_names_both_shapes(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    np.save(empty_folder / "m.npy", np.ones((3, 4)))
    code = call(["run", "a b c d e", "--mask", "m.npy"])
    said = capsys.readouterr().err
    assert code == 2
    assert said == (
        "attnviz: mask file m.npy (1 = keep) is [Tq=3 Tk=4], expected [Tq=5 Tk=5]: "
        "Tq 3 ≠ 5, Tk 4 ≠ 5\n"
    )


def test_an_output_that_is_there_stops_the_run_before_it_starts(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    (empty_folder / "run.npz").write_text("precious")
    code = call(["run", "x", "-o", "run.npz"])
    assert code == 2
    assert capsys.readouterr().err == (
        "attnviz: run.npz exists; --force replaces it, or give another path with -o\n"
    )
    assert (empty_folder / "run.npz").read_text() == "precious"


def test_a_folder_where_a_file_stands(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    (empty_folder / "attnviz-out").write_text("mine")
    assert call(["run", "x"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: -o attnviz-out is a file; a folder is expected there\n"
    )


def test_a_run_that_would_not_fit_in_memory_is_refused_before_it_starts(
    capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    code = call(["run", "x", "--pad-to", "10000000", "-o", "x.npz"])
    said = capsys.readouterr().err
    assert code == 2
    assert said.startswith(
        "attnviz: a long run of 1 × 8 heads × 10000000 queries × 10000000 keys needs "
    )
    assert said.count("\n") == 1
    assert files_below(empty_folder) == set()


def test_a_name_with_control_characters_is_shown_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["run", "--file", "a\x1b[31m\nb.txt"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: a\\x1b[31m\\nb.txt: no such file or directory; a text, .json or .jsonl file is "
        "expected\n"
    )


@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (MemoryError(), 1, "out of memory; give a shorter text, fewer heads or smaller sizes"),
        (RuntimeError("first line\nsecond"), 1, "first line"),
        (RuntimeError(), 1, "RuntimeError"),
        (OSError(28, "No space left on device", "x.png"), 1, "x.png: No space left on device"),
        (
            KeyError("x"),
            1,
            "KeyError: 'x' (a bug in attnviz; ATTNVIZ_TRACEBACK=1 shows where)",
        ),
        (KeyboardInterrupt(), 130, "stopped; no file was left half written"),
    ],
)
def test_what_the_machine_does_is_one_line_too(
    failure: BaseException,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Command:
        def main(self, *_: object, **__: object) -> None:
            raise failure

    monkeypatch.setattr(program.typer.main, "get_command", lambda app: Command())
    assert call(["run"]) == code
    assert capsys.readouterr().err == f"attnviz: {message}\n"


HEAVY = (
    "torch",
    "matplotlib",
    "transformers",
    "numpy",
    "scipy",
    "pyarrow",
    "ray",
    "PIL",
    "pydantic",
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        *([name, "--help"] for name in COMMANDS),
        *([name, "--no-such-flag"] for name in COMMANDS),
        ["--version"],
        ["run", "--d-model", "abc"],
        ["run", "x", "--d-model", "10", "--n-heads", "3"],
        ["run", "x", "-o", "a.bmp"],
        ["run", "x", "--window", "0"],
        ["explain", "x", "--head", "9"],
        ["render", "a.npz", "-o", "a.bmp"],
        ["check", "a.npz", "--tolerance", "2"],
        ["compare", "a.npz", "b.npz", "--tolerance", "-1"],
        ["stats", "x", "--near", "0"],
        ["stats", "x", "--engine", "spark"],
        ["run", "x", "--cmap", "nosuchmap"],
        ["run", "x", "--theme", "sepia"],
        ["run", "x", "--dpi", "0"],
        ["run", "--file", "missing.txt"],
        ["nosuchcommand"],
    ],
)
def test_help_and_wrong_flags_load_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from attnviz.cli.main import call\n"
        f"call({arguments!r})\n"
        f"print('loaded:', [m for m in {HEAVY!r} if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_the_messages_survive_any_encoding() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attnviz", "run", "x", "--d-model", "10", "--n-heads", "3"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(
        b"attnviz: d_model 10 is not divisible by n_heads 3: 10 = 3*3 + 1"
    )


def test_json_that_is_one_text() -> None:
    Path("text.json").write_text(json.dumps("one two"))
    assert call(["shapes", "--file", "text.json"]) == 0


def test_a_bug_can_show_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Command:
        def main(self, *_: object, **__: object) -> None:
            raise KeyError("x")

    monkeypatch.setattr(program.typer.main, "get_command", lambda app: Command())
    monkeypatch.setenv("ATTNVIZ_TRACEBACK", "1")
    with pytest.raises(KeyError):
        call(["run"])


def test_a_signal_that_comes_while_an_object_is_deleted_comes_again() -> None:
    script = (
        "import signal, sys, time\n"
        "from attnviz.cli import main\n"
        "class Deleted:\n"
        "    def __del__(self):\n"
        "        signal.raise_signal(int(sys.argv[1]))\n"
        "        time.sleep(0.01)\n"
        "def work(_):\n"
        "    Deleted()\n"
        "    time.sleep(30)\n"
        "main.typer.main.get_command = lambda app: type('C', (), {'main': lambda *a, **k: work(0)})()\n"
        "main.main([])\n"
    )
    for number, code in ((2, 130), (15, 143)):
        done = subprocess.run(
            [sys.executable, "-c", script, str(number)], capture_output=True, text=True, timeout=25
        )
        assert (done.returncode, done.stderr) == (
            code, "attnviz: stopped; no file was left half written\n"
        )  # fmt: skip
