"""`attnviz stats` on the command line."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from real_models import minilm

import attnviz
from attnviz.cli.main import call
from attnviz.corpus import documents as documents_module
from attnviz.corpus import measure_corpus as measure_module
from attnviz.corpus.batches import Shard
from attnviz.saved_runs import load

SMALL = ["--d-model", "14", "--n-heads", "2", "--dtype", "float64"]
SAMPLES = Path(__file__).parent.parent / "samples"
TEXTS = ["The cat sat on the mat.", "A dog came in, and the cat ran away.", "It sat."]


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    assert call(["stats", *arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def figures(document: dict) -> dict[str, np.ndarray]:
    heads = document["heads"]
    return {
        name: np.array([np.nan if head[name] is None else head[name] for head in heads])
        for name in document["figures"]
    }


def corpus(path: Path, n: int = 700) -> list[str]:
    """A file of `n` short documents over three shards."""
    rng = np.random.default_rng(2)
    lines = [" ".join(f"w{i}" for i in rng.integers(0, 30, rng.integers(1, 9))) for _ in range(n)]
    path.write_text("\n".join(lines) + "\n")
    return lines


# ── figures ──────────────────────────────────────────────────────────────────────────────────


def test_texts_files_and_saved_runs_give_the_same(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    flags = [*SMALL, "--causal"]
    (here / "a.txt").write_text("\n".join(TEXTS) + "\n")
    (here / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    given = document(capsys, *TEXTS, *flags)
    assert (given["documents"], given["tokens"], given["n_bad"]) == (3, 21, 0)
    assert given["source"] == "a layer from flags, untrained, seed 0"
    filed = document(capsys, "--file", "a.txt", *flags)
    jsoned = document(capsys, "--file", "a.jsonl", "--field", "body", *flags)
    trained = ["--weights", str(SAMPLES / "trained/induction.safetensors"), "--causal"]
    known = ["the old fox met a young owl .", "cat dog sun cat", "the owl sat"]
    assert call(["run", *known, *trained, "-q", "-o", "run.npz"]) == 0
    saved, measured = document(capsys, "--saved", "run.npz"), document(capsys, *known, *trained)
    for one, other in ((given, filed), (given, jsoned), (measured, saved)):
        for name, values in figures(one).items():
            np.testing.assert_allclose(figures(other)[name], values, atol=1e-10, err_msg=name)
    assert saved["source"] == load(here / "run.npz").source


def test_a_pipe_is_read(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "attnviz", "stats", *SMALL, "--json"],
        input="\n".join(TEXTS).encode() + b"\n\xff\n",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 3
    assert json.loads(done.stdout)["documents"] == 3
    assert done.stderr.decode() == (
        "skipped: standard input, line 4 is not utf-8: byte 0 is 0xFF\n"
    )


def test_a_model_over_a_corpus(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "gold.jsonl").write_text(
        '{"words": ["the", "cat", "sat"], "pairs": [[0, 1, "det"], [1, 2, "nsubj"]]}\n'
    )
    flags = ["--model", str(minilm()), "--max-len", "8", "--gold", "gold.jsonl"]
    found = document(capsys, *TEXTS, *flags, "--agreement", "2", "--probe", "induction")
    assert found["layers"] == list(range(6))
    assert (found["documents"], found["cut"], found["n_heads"]) == (4, 2, 12)
    head = found["heads"][2]  # looks at the token before, in every text
    assert (head["class"], head["layer"], head["head"]) == ("previous", 0, 2)
    assert head["sentence"].startswith("layer 0 head 2: looks at the previous token, 0.")
    assert found["gold_offsets"][""] == {"offset": 1, "accuracy": 1.0}
    assert set(found["agreement"]) == {"documents", "bits", "order", "linkage"}
    assert sorted(found["agreement"]["order"]) == list(range(72))
    assert found["probe"]["first_copy"] is None
    assert 0 <= head["prefix_matching"] <= 1
    assert np.shape(found["alpha"]) == (6, 12, 16)
    assert np.shape(found["offsets"]["shares"]) == (6, 12, len(found["offsets"]["offsets"]))


def test_samples_and_limits(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    lines = corpus(here / "a.txt", 50)
    first = document(capsys, "--file", "a.txt", "--limit", "5", *SMALL)
    assert first["tokens"] == sum(len(line.split()) for line in lines[:5])
    drawn = [
        document(capsys, "--file", "a.txt", "--sample", "9", "--seed", seed, *SMALL)
        for seed in ("1", "1", "2")
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0]["tokens"] != drawn[2]["tokens"]
    assert drawn[0]["documents"] == 9


# ── what is written ──────────────────────────────────────────────────────────────────────────


def test_files(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    names = ["h.json", "h.csv", "h.parquet", "h.png", "h.svg", "h.pdf", "h.html"]
    outputs = [word for name in names for word in ("-o", name)]
    more = ["--agreement-out", "a.png", "--rollout", "r.npz", "--flow", "f.html"]
    assert call(["stats", *TEXTS, *SMALL, *outputs, *more]) == 0
    said = capsys.readouterr()
    assert said.err == "".join(f"Wrote {name}\n" for name in [*names, "a.png", "r.npz", "f.html"])
    written = json.loads((here / "h.json").read_text())
    with (here / "h.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    table = parquet.read_table(here / "h.parquet").to_pylist()
    for head, row, cells in zip(written["heads"], rows, table, strict=True):
        assert head["class"] == row["class"] == cells["class"]
        for name in written["figures"]:
            assert head[name] == cells[name]
            assert row[name] == ("" if head[name] is None else repr(head[name]))
    assert (here / "h.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert b"<svg" in (here / "h.svg").read_bytes()
    assert (here / "h.pdf").read_bytes()[:5] == b"%PDF-"
    assert "</html>" in (here / "h.html").read_text()
    rolled = load(here / "r.npz")
    assert rolled.query_tokens == (("The", "cat", "sat", "on", "the", "mat", "."),)
    np.testing.assert_allclose(rolled.attention.sum(-1), 1)
    before = {name: (here / name).read_bytes() for name in ("h.png", "h.svg", "h.pdf", "h.json")}
    assert call(["stats", *TEXTS, *SMALL, *outputs, *more, "--force", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    for name, data in before.items():
        assert (here / name).read_bytes() == data, name


def test_pictures_show_what_was_measured(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert call(["stats", *TEXTS, *SMALL, "--measures", "sinks", "-o", "h.png", "--show"]) == 0
    out = capsys.readouterr().out
    assert "sink: α₀" in out
    assert "entropy" not in out
    assert "mixed" in out or "sink" in out


def test_the_table_is_sorted_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--d-model", "16", "--n-heads", "8", "--sort", "keys", "--top", "3"]
    assert call(["stats", *TEXTS, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "heads of a layer from flags, untrained, seed 0: means over 21 query rows of 3 documents"
    )
    column = lines[1].split().index("keys")
    values = [float(line.split()[column]) for line in lines[3:6]]
    assert values == sorted(values, reverse=True)
    assert lines[6] == "5 more heads; --top 0 shows all"


def test_hostile_documents_are_text(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    evil = ["<script>alert(1)</script>", "$(reboot) `x` [/red] [bold]", "\x1b[31mred\x07"]
    assert (
        call(["stats", *evil, *SMALL, "-o", "h.html", "-o", "h.json", "--rollout", "r.html"]) == 0
    )
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "<script>alert" not in (here / "h.html").read_text()
    name = here / "<script>[red].txt"
    name.write_bytes(b"ok\n\xff\n")
    assert call(["stats", "--file", str(name), *SMALL, "-o", "i.html"]) == 3
    assert "skipped: <script>[red].txt, line 2 is not utf-8" in capsys.readouterr().err
    assert "<script>[red]" not in (here / "i.html").read_text()


# ── how the work goes ────────────────────────────────────────────────────────────────────────


def test_bad_documents(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "a.jsonl").write_text('"fine"\n' + "{\n" * 9)
    assert call(["stats", "--file", "a.jsonl", *SMALL]) == 3
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 6
    assert err[0].startswith("skipped: a.jsonl, line 2 is no JSON: ")
    assert err[5] == "skipped: 4 more documents"
    found = document(capsys, "--file", "a.jsonl", *SMALL, code=3)
    assert (found["documents"], found["n_bad"], len(found["bad"])) == (1, 9, 9)
    assert found["bad"][0]["document"] == "a.jsonl, line 2"
    assert call(["stats", "--file", "a.jsonl", *SMALL, "--strict", "-o", "x.csv"]) == 2
    assert capsys.readouterr().err.startswith("attnviz: a.jsonl, line 2 is no JSON: ")
    assert not (here / "x.csv").exists()


def test_a_stopped_run_goes_on(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    """Ctrl-C in the middle, then --resume: the figures are those of a run that was not stopped."""
    corpus(here / "a.txt", 20_000)
    command = ["--file", "a.txt", *SMALL]
    whole = document(capsys, *command)
    resumable = [*command, "--checkpoint", "c.npz"]
    script = (
        "import sys, attnviz.corpus.measure_corpus as d, attnviz.cli.main as m\n"
        "plain = d.Keeper.add\n"
        "def add(self, *rest):\n"
        "    plain(self, *rest)\n"
        "    open('begun', 'w').close()\n"
        "d.Keeper.add = add\n"
        f"m.main({['stats', *resumable, '--json']!r})\n"
    )
    running = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    while not (here / "begun").exists() and running.poll() is None:
        time.sleep(0.01)
    running.send_signal(2)
    _, err = running.communicate()
    assert running.returncode == 130
    assert err.decode() == (
        "what has been measured is in c.npz; --resume continues from it\n"
        "attnviz: stopped; no file was left half written\n"
    )
    assert call(["stats", *resumable]) == 2
    assert capsys.readouterr().err == (
        "attnviz: c.npz exists; --resume resumes from it, --force starts again\n"
    )
    assert document(capsys, *resumable, "--resume") == whole
    assert document(capsys, *resumable, "--resume") == whole  # nothing is left to do
    assert call(["stats", *resumable, "--resume", "--causal"]) == 2
    assert "c.npz is of other documents, another model or other" in capsys.readouterr().err
    os.utime(here / "a.txt", (0, 0))
    assert call(["stats", *resumable, "--resume"]) == 2
    capsys.readouterr()
    assert document(capsys, *resumable, "--force") == whole


def test_resume_without_a_checkpoint_starts_from_the_beginning(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    """A job's script has one command line, for its first start and for all later ones."""
    command = ["stats", "a cat sat", *SMALL, "--checkpoint", "c.npz", "--resume"]
    assert call(command) == 0
    first = capsys.readouterr()
    assert first.err == (
        "--resume: there is no checkpoint c.npz yet; starting from the beginning\nWrote c.npz\n"
    )
    assert call(command) == 0
    assert capsys.readouterr() == (first.out, "Wrote c.npz\n")


@pytest.mark.filterwarnings("ignore")
def test_ray_from_the_command_line(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    corpus(here / "a.txt", 600)
    one = document(capsys, "--file", "a.txt", *SMALL)
    path = str((here / "a.txt").resolve())
    two = document(capsys, "--file", path, *SMALL, "--engine", "ray", "--workers", "2")
    for name, values in figures(one).items():
        np.testing.assert_allclose(figures(two)[name], values, atol=1e-10, err_msg=name)


MESSAGES = [
    ([], "there is nothing to measure: give --file FILE, TEXT, --saved FILE or a pipe"),
    (["--file", "gone*"], "--file gone*: no file has such a name"),
    (["--file", "empty.txt"], "there are no documents: every text is empty"),
    (["--file", "bad.jsonl"],
     "the only document cannot be measured: bad.jsonl, line 1 is no JSON: Expecting property name "
     "enclosed in double quotes: line 1 column 2 (char 1)"),
    (["a", "--limit", "0"], "--limit is 0; it must be at least 1"),
    (["a", "--limit", "3", "--sample", "2"],
     "--limit and --sample both say how many documents; give one of them"),
    (["a", "--saved", "r.npz"], "--saved and TEXT both say what is measured; give one of them"),
    (["a", "--field", "b"], "--field is one of --file; TEXT has none"),
    (["a", "--measures", "where,why"],
     "--measures why: known are where, sharpness, offsets, sinks, evenness, rank"),
    (["a", "--measures", " ,"],
     "--measures names none; known are where, sharpness, offsets, sinks, evenness, rank"),
    (["", " "], "there are no documents: every text is empty"),
    (["--file", "worse.jsonl"],
     "none of 2 documents can be measured: worse.jsonl, line 1 holds null, no text or tokens"),
    (["a", "--sample", "1", "--seed", "-1"], "--seed is -1; --sample draws with one of 0 or more"),
    (["--file", "empty.txt", "--field", "text"],
     "--field text: fields are those of .jsonl and .parquet files, and all of these are text"),
    (["a", "--axes", "L H Q K"], "--axes are those of the arrays of --saved"),
    (["a", "--sort", "gold det", "--gold", "gold.jsonl"],
     "--sort gold det: no pair of --gold has that label; labels are nsubj"),
    (["a", "--sort", "gold det"],
     "--sort gold det is no measure of heads; near ones are gold"),
    (["a", "--checkpoint", "folder"], "folder is a folder; a file is expected there"),
    (["a", "--checkpoint", "folder", "--force"], "folder is a folder; a file is expected there"),
    (["a", "--checkpoint", "x.csv", "-o", "x.csv"],
     "x.csv is both a checkpoint and an output; give each its own path"),
    (["a", "--checkpoint", "empty.txt", "--resume"],
     "empty.txt is no .npz archive, or a damaged one: File is not a zip file"),
    (["--saved", "r.npz", "--tokenizer", "chars"],
     "--saved and --tokenizer both say what is measured; give one of them"),
    (["--saved", "folder"],
     "--saved folder: is a folder; a pattern takes its files, 'folder/*.npz', say"),
    (["a", "--probe", "deduction"], "--probe is 'deduction'; it must be one of induction"),
    (["a", "--sort", "entropi"],
     "--sort entropi is no measure of heads; near ones are entropy, entropy_first"),
    (["a", "--measure", "prefix_matching"],
     "--measure prefix_matching is not measured: it needs --probe induction"),
    (["a", "--sort", "gold"], "--sort gold is not measured: it needs --gold"),
    (["a", "--measures", "where", "--sort", "keys"],
     "--sort keys is not measured: it needs another group in --measures"),
    (["a", "-o", "x.txt"],
     "-o x.txt: unknown suffix .txt; known are .json .csv .parquet .html .png .svg .pdf"),
    (["a", "--agreement-out", "x"],
     "--agreement-out x: unknown suffix (none); known are .png .svg .pdf"),
    (["a", "--top", "-1"], "--top is -1; it must be 0 or more"),
    (["a", "--json", "-q"], "--json prints measures, and --quiet nothing; give one of them"),
    (["a", "--engine", "dask"], "--engine is 'dask'; it must be one of local, ray"),
    (["a", "--workers", "2"], "--workers goes with --engine ray"),
    (["a", "--address", "x:1"], "--address goes with --engine ray"),
    (["a", "--resume"], "--resume needs a checkpoint: name it with --checkpoint FILE"),
    (["a", "--checkpoint", "no/c.npz"], "--checkpoint no/c.npz: its folder is not there"),
    (["a", "--mask", "m.csv"], "--mask FILE fits one batch of texts, and a corpus has many"),
    (["a", "--no-padding-mask"], "--padding-mask: padding is never looked at in a corpus"),
    (["a", "--attention", "cross"], "--attention goes with --model"),
    (["a", "--weights-prefix", "x"], "--weights-prefix goes with --weights FILE"),
    (["a", "--weights", "w.safetensors", "--embeddings", "e.npy"],
     "--embeddings are the vectors of one text; a corpus has many"),
    (["--saved", "r.npz", "--causal"],
     "--saved has its attention, and a mask makes it; give one of them"),
    (["--saved", "r.npz", "--model", "m"],
     "--saved has its attention, and --model makes it; give one of them"),
    (["--saved", "r.npz", "--d-k", "3"],
     "--saved has its attention, and --d-k makes it; give one of them"),
    (["--saved", "gone.npz"], "--saved gone.npz: no such file"),
    (["--file", "-", "--file", "-"], "standard input, -, can be read once"),
    (["a", "--encoding", "utf-9"], "--encoding utf-9 is unknown; utf-8, utf-16 or gb18030, say"),
    (["a b", "--flow", "f.png", "--max-len", "0"], "--max-len is 0; it must be at least 1"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), MESSAGES)
def test_messages(
    capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str], message: str
) -> None:
    (here / "empty.txt").write_text("\n \n")
    (here / "bad.jsonl").write_text("{\n")
    (here / "worse.jsonl").write_text("null\n" * 2)
    (here / "folder").mkdir()
    (here / "gold.jsonl").write_text('{"words": ["a", "cat"], "pairs": [[1, 0, "nsubj"]]}\n')
    assert call(["stats", *arguments, *([] if "--saved" in arguments else SMALL)]) == 2
    assert capsys.readouterr() == ("", f"attnviz: {message}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [("a " * 70, "--max-len 64"), ("a b", "f.png exists; --force replaces it")],
)
def test_a_flow_that_cannot_be_is_refused_before_the_long_work(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    here: Path,
    text: str,
    message: str,
) -> None:
    def measure(*_: object, **__: object) -> None:
        raise AssertionError("the corpus is measured")

    monkeypatch.setattr("attnviz.cli.stats_run.measure_corpus", measure)
    if "exists" in message:
        (here / "f.png").touch()
    assert call(["stats", text, *SMALL, "--flow", "f.png", "-o", "h.csv"]) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in here.iterdir()} <= {"f.png"}


def test_texts_that_are_names_of_files(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "a.txt").write_text("not this\n")
    said = "a.txt is taken as a text; --file reads the file of that name\n"
    assert call(["stats", "a.txt", "b.txt", "/", "x" * 5000, *SMALL]) == 0
    assert capsys.readouterr().err == said
    assert call(["stats", "a.txt", *SMALL, "-q"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a b c"], "1 of 1 document was cut by --max-len\n"),
        (["a b c", "d"], "1 of 2 documents was cut by --max-len\n"),
        (["a b c", "d e f"], "2 of 2 documents were cut by --max-len\n"),
    ],
)
def test_documents_that_are_cut(
    capsys: pytest.CaptureFixture[str], texts: list[str], said: str
) -> None:
    assert call(["stats", *texts, *SMALL, "--max-len", "2"]) == 0
    assert capsys.readouterr().err == said


def test_the_figure_of_a_label(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    (here / "gold.jsonl").write_text(
        '{"words": ["a", "cat"], "pairs": [[1, 0, "det"]]}\n'
        '{"words": ["a", "cat", "sat"], "pairs": [[1, 0, "nsubj"]]}\n'
    )
    flags = ["--gold", "gold.jsonl", *SMALL]
    assert call(["stats", *flags, "--sort", "gold det", "--measure", "gold det", "--show"]) == 0
    out = capsys.readouterr().out
    assert "gold det: share of the pairs labelled det that the head finds" in out
    # its one document is skipped
    cut = [*flags, "--max-len", "2", "--sort", "gold nsubj", "--measure", "gold nsubj"]
    assert call(["stats", *cut]) == 3
    assert "--sort gold nsubj: no such pair was measured\n" in capsys.readouterr().err


def test_annotated_documents_are_read_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    passes: list[Path] = []
    read_lines = documents_module._lines

    def counted(raw: object, path: Path, *rest: object) -> object:
        passes.append(path)
        return read_lines(raw, path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(documents_module, "_lines", counted)
    weights = str(SAMPLES / "trained" / "induction.safetensors")
    flags = ["--gold", "gold.jsonl", "--weights", weights, "--measure", "gold nsubj", "--sort"]
    (here / "gold.jsonl").write_text(
        '{"words": ["a", "cat", "sat"], "pairs": [[1, 0, "det"], [2, 1, "nsubj"]]}\n'
        '{"words": ["the", "old", "fox", "met"], "pairs": [[3, 0, "nsubj"], [2, 1, "nsubj"]]}\n'
    )
    made = document(capsys, *flags, "gold det")
    assert passes == [Path("gold.jsonl")]
    assert made["gold_offsets"] == {
        "": {"offset": -1, "accuracy": 0.75},
        "det": {"offset": -1, "accuracy": 1.0},
        "nsubj": {"offset": -1, "accuracy": 2 / 3},
    }


def test_a_json_file_is_read_as_run_reads_it(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    """One list of tokens, or a list of lists and objects, on any number of lines."""
    (here / "batch.json").write_text(
        '[\n ["a", "b c"],\n {"tokens": ["d"]},\n {"text": "e f"}\n]\n'
    )
    (here / "one.json").write_text('[\n "a",\n "b c"\n]\n')
    (here / "lines.json").write_text('["a", "b c"]\n["d"]\n"e f"\n')
    batch = document(capsys, "--file", "batch.json", *SMALL)
    assert (batch["documents"], batch["tokens"]) == (3, 5)
    assert document(capsys, "--file", "lines.json", *SMALL) == batch
    one = document(capsys, "--file", "one.json", *SMALL)
    assert (one["documents"], one["tokens"]) == (1, 2)
    assert call(["run", "--file", "batch.json", *SMALL, "--no-trace", "-o", "x.npz"]) == 0
    capsys.readouterr()
    assert attnviz.load("x.npz").lengths.tolist() == [2, 1, 2]
    (here / "bad.json").write_text('[["a"], [3], {"body": "b"}]')
    made = document(capsys, "--file", "bad.json", *SMALL, code=3)
    assert [bad["document"] for bad in made["bad"]] == ["bad.json, item 1", "bad.json, item 2"]
    fields = document(capsys, "--file", "bad.json", "--field", "body", *SMALL, code=3)
    assert (fields["documents"], fields["n_bad"]) == (1, 2)


def test_heads_are_only_drawn_as_alike_where_some_were_compared(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "a.txt").write_text("a b\n" + "c " * 257 + "\nd e f\n" + "g\n" * 9)
    made = document(capsys, "--file", "a.txt", *SMALL, "--agreement-out", "a.svg")
    assert (made["documents"], made["agreement"]["documents"]) == (12, 9)
    assert "seed 0; 9 documents" in re.sub(r"<[^>]*>", "", (here / "a.svg").read_text())
    (here / "long.txt").write_text("c " * 257 + "\n" + "d " * 300 + "\na b\n")
    command = ["stats", "--file", "long.txt", *SMALL, "--agreement-out", "b.png"]
    assert call([*command, "--agreement", "2", "-o", "x.csv"]) == 2
    assert capsys.readouterr() == (
        "",
        "attnviz: --agreement-out: none of the first 2 documents has at most 256 tokens, and heads "
        "are compared on such documents only; --max-len 256 cuts documents, --agreement N compares "
        "more of them\n",
    )
    assert call([*command, "--agreement", "1"]) == 2
    assert "--agreement-out: the first document has not at most 256" in capsys.readouterr().err
    assert {path.name for path in here.iterdir()} == {"a.txt", "a.svg", "long.txt"}
    assert call([*command, "--agreement", "2", "--max-len", "256"]) == 0


def test_an_agreement_that_cannot_be_had_ends_the_work_after_its_first_shards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "a.txt").write_text(("c " * 257 + "\n") * 2 + "a\n" * 600)
    measured: list[int] = []
    measure_shard = measure_module.measure_shard

    def counted(source: object, shard: Shard, *rest: object) -> object:
        measured.append(shard.number)
        return measure_shard(source, shard, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(measure_module, "measure_shard", counted)
    command = ["stats", "--file", "a.txt", *SMALL, "--agreement-out", "b.png", "--agreement", "2"]
    assert call(command) == 2
    assert measured == [0]
    assert "none of the first 2 documents" in capsys.readouterr().err


def test_saved_runs_whose_weights_are_wrong_are_reported(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    weights = np.full((2, 3, 3), 1 / 3)
    np.save(here / "right.npy", weights)
    np.save(here / "short.npy", weights * 0.9)
    weights[1, 2, 0] = np.nan
    np.save(here / "nan.npy", weights)
    files = [flag for name in ("right", "short", "nan") for flag in ("--saved", f"{name}.npy")]
    assert call(["stats", *files]) == 0
    err = capsys.readouterr().err
    assert "short.npy: rows sum to 0.9, not to 1; attnviz check names every place\n" in err
    assert (
        "nan.npy: 1 of the weights are NaN or infinite: they are marked as such; attnviz "
        "check names every place\n"
    ) in err
    assert err.count("right.npy: ") == 1  # how its axes were read


def test_a_thousand_notes_are_cut(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    for i in range(13):
        np.save(here / f"{i:02}.npy", np.full((1, 2, 2), 0.4))
    assert call(["stats", "--saved", "*.npy"]) == 0
    err = capsys.readouterr().err
    assert "more notes\n" in err
    assert err.count("rows sum to 0.8") <= 10


def test_offsets_in_json_are_those_that_a_text_has(capsys: pytest.CaptureFixture[str]) -> None:
    made = document(capsys, "a b c d e", "f g", *SMALL)["offsets"]
    assert made["offsets"] == list(range(-4, 5))
    assert None not in np.array(made["shares"]).ravel().tolist()


def test_streams_with_fields_and_named_pipes(here: Path) -> None:
    os.mkfifo(here / "pipe")
    command = f"{sys.executable} -m attnviz stats {' '.join(SMALL)} --json"
    lines = '{"body": "a b"}\n{"body": "c"}\n'
    (here / "lines").write_text(lines)

    def shell(script: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["sh", "-c", script], input=lines.encode(), capture_output=True, check=False
        )

    for script in (
        f"{command} --field body",
        f"{command} --field body --file -",
        f"cat lines > pipe & {command} --field body --file pipe",
    ):
        done = shell(script)
        assert json.loads(done.stdout)["tokens"] == 3, done.stderr
    done = shell(f"{command} --file - <&-")
    assert (done.returncode, done.stderr.decode()) == (
        2,
        "attnviz: standard input is closed; give TEXT or --file\n",
    )


def test_arrays_whose_axes_are_told(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    maps = np.random.default_rng(3).random((2, 3, 4, 4))
    np.save(here / "a.npy", maps / maps.sum(-1, keepdims=True))
    found = document(capsys, "--saved", "a.npy", "--axes", "L H Q K")
    assert (found["layers"], found["n_heads"], found["documents"]) == ([0, 1], 3, 1)
    found = document(capsys, "--saved", "a.npy")
    assert (found["layers"], found["n_heads"], found["documents"]) == ([0], 3, 2)


def test_saved_runs_that_are_damaged(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    assert call(["run", *TEXTS, *SMALL, "-q", "-o", "b.npz"]) == 0
    (here / "a.npz").write_bytes((here / "b.npz").read_bytes()[:500])
    found = document(capsys, "--saved", "*.npz", code=3)
    assert (found["documents"], found["n_bad"]) == (3, 1)
    assert found["bad"][0]["document"] == "a.npz"
    assert found["bad"][0]["why"].startswith("is no .npz archive, or a damaged one")
    assert call(["stats", "--saved", "a.npz"]) == 2
    assert capsys.readouterr().err.startswith("attnviz: a.npz is no .npz archive")


@pytest.mark.usefixtures("here")
def test_unusual_weights_of_saved_runs(capsys: pytest.CaptureFixture[str]) -> None:
    weights = np.full((3, 5, 5), 0.2, dtype=np.float32)
    np.save("short.npy", weights * 0.9)
    weights[1, 2, 3] = np.nan
    np.save("nan.npy", weights)
    np.save("scores.npy", weights[:1] - 1)
    tail = "; attnviz check names every place"
    for name, warning in (
        ("short.npy", "rows sum to 0.9, not to 1"),
        ("nan.npy", "1 of the weights are NaN or infinite: they are marked as such"),
        (
            "scores.npy",
            "there are weights below 0, down to -0.8: scores become weights by attnviz render "
            "--softmax -o FILE.npz",
        ),
    ):
        assert call(["stats", "--saved", name]) == 0
        assert f"{name}: {warning}{tail}" in capsys.readouterr().err.splitlines()
    assert call(["run", "a b c d e", "-o", "run.npz", "-q"]) == 0
    assert call(["stats", "--saved", "run.npz"]) == 0
    assert capsys.readouterr().err == ""


def test_help_names_flags_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["stats", "--help"]) == 0
    out = capsys.readouterr().out
    defined = re.findall(r"^│ +\*? *(--[a-z-]+)", out, re.MULTILINE)
    others = {"--no-show", "--no-padding-mask", "--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", out)) <= {*defined, *others}


def test_help_is_light() -> None:
    script = (
        "import sys, attnviz.cli.main as m\n"
        "assert m.call(['stats', '--help']) == 0\n"
        "assert m.call(['stats', 'a', '--top', '-1']) == 2\n"
        "heavy = {'torch', 'scipy', 'ray', 'pyarrow', 'transformers', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_saved_runs_are_measured_without_torch(here: Path) -> None:
    assert call(["run", "a b c", "d e", *SMALL, "-q", "-o", "run.npz"]) == 0
    script = (
        "import sys, attnviz.cli.main as m\n"
        "assert m.call(['stats', '--saved', 'run.npz', '-o', 'x.csv']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_the_trained_induction_heads_of_the_samples(
    capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    weights = Path(__file__).parents[1] / "samples" / "trained" / "induction.safetensors"
    flags = ["--weights", str(weights), "--causal", "--probe", "induction"]
    found = document(capsys, "cat dog sun cat dog sun", *flags)
    assert [head["class"] for head in found["heads"]] == [
        "mixed", "previous", "induction", "induction"
    ]  # fmt: skip
    scores = figures(found)
    assert scores["prefix_matching"][2:] == pytest.approx(0.987, abs=0.01)
    assert scores["previous_token"][1] == pytest.approx(0.95, abs=0.03)
    assert found["source"] == "weights of induction.safetensors"


def test_json_is_as_its_schema_says(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    import jsonschema

    import attnviz.render

    (here / "gold.jsonl").write_text('{"words": ["a", "cat"], "pairs": [[1, 0, "det"]]}\n')
    text = " ".join(f"w{i}" for i in range(30))
    flags = [*SMALL, "--gold", "gold.jsonl", "--probe", "induction", "--agreement", "2"]
    folder = Path(attnviz.render.__file__).parent
    schema = json.loads((folder / "stats.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    for found in (
        document(capsys, text, *flags),
        document(capsys, text, *SMALL, "--measures", "rank"),
    ):
        jsonschema.validate(found, schema)
    assert set(schema["properties"]) == set(document(capsys, text, *flags))


@pytest.mark.parametrize("flag", ["--agreement-out", "--flow"])
def test_without_scipy_its_pictures_are_refused_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path, flag: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert call(["stats", "a b", *SMALL, flag, "x.png"]) == 2
    assert capsys.readouterr().err == (
        f"attnviz: {flag} needs scipy, which is not installed: pip install 'attnviz[corpus]'\n"
    )
    assert list(here.iterdir()) == []
