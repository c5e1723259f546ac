"""--words, --hide-special, --decode: in run, in render of a saved run, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_models import BERT, LLAMA, tiny

import attnviz
from attnviz.cli.main import call
from attnviz.merging import hide_special, merge_words

TEXTS = ["The cat sat unbelievable.", "it ran"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny models bert and llama."""
    folder = tmp_path_factory.mktemp("models")
    for name, kind, sizes in (
        ("bert", "BertModel", BERT),
        ("llama", "LlamaForCausalLM", LLAMA | {"eos_token_id": None}),
    ):
        model = tiny(kind, specials=name == "bert", **sizes)
        model.network.save_pretrained(folder / name)
        model.tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_words_without_special_tokens_in_every_output(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["run", *TEXTS, "--model", str(models / "bert"), "--no-trace"]
    shown = ["--words", "--hide-special", "-o", "w.npz", "-o", "w.svg", "-o", "w.html", "--show"]
    assert call([*flags, "-o", "all.npz", "-q"]) == 0
    assert call([*flags, *shown]) == 0
    out, _ = capsys.readouterr()
    whole, words = attnviz.load("all.npz"), attnviz.load("w.npz")
    expected = merge_words(hide_special(whole))
    assert words.query_tokens == expected.query_tokens
    assert words.query_tokens[0] == ("the", "cat", "sat", "unbelievable", ".")
    assert np.array_equal(words.attention, expected.attention)
    hidden, merged = expected.notes
    assert merged == "pieces merged into words"
    assert f"shown       {hidden}\nshown       {merged}\n" in out
    assert "sequence 0  9 tokens" in out  # what the model was given
    labels = [line.split(" ")[0] for line in out.splitlines() if line.startswith("unbelievable ")]
    assert labels == ["unbelievable"] * 2  # a line in each of two rows of maps
    assert "heads of sequence 0: means over 5 query rows" in out
    for file in ("w-seq0.svg", "w.html"):
        text = Path(file).read_text("utf-8")
        assert hidden in text
        assert "##" not in text.partition("<script")[0]


def test_render_does_the_same_to_a_saved_run(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["run", *TEXTS, "--model", str(models / "bert"), "-o", "run.json", "-q"]) == 0
    flags = ["--words", "--hide-special", "-o", "w.npz"]
    assert call(["render", "run.json", *flags]) == 0
    out, err = capsys.readouterr()
    assert err == "Wrote w.npz\n"  # rows that lack the weight of [CLS] are no news
    expected = merge_words(hide_special(attnviz.load("run.json")))
    again = attnviz.load("w.npz")
    assert (again.query_tokens, again.notes) == (expected.query_tokens, expected.notes)
    np.testing.assert_array_equal(again.attention, expected.attention)
    assert "sequence 0  5 tokens: the cat sat unbelievable ." in out
    assert f"shown       {expected.notes[0]}\n" in out
    assert call(["render", "w.npz", "-o", "again.npz"]) == 0
    assert capsys.readouterr().err == "Wrote again.npz\n"


def test_kept_tensors_do_not_go_with_words(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["run", *TEXTS, "--model", str(models / "bert"), "-o", "run.npz"]
    assert call([*flags, "--keep", "q", "--words"]) == 2
    said = "attnviz: --keep and --words: what is kept has a row for each token\n"
    assert capsys.readouterr().err == said
    assert call([*flags, "--keep", "q", "-q"]) == 0
    assert call(["render", "run.npz", "--words", "-o", "w.npz", "--no-show"]) == 0
    assert "kept tensors are of single tokens, and are left out\n" in capsys.readouterr().err
    assert attnviz.load("w.npz").kept == {}


def test_tokens_of_any_source(capsys: pytest.CaptureFixture[str]) -> None:
    """A layer from flags with tokens from a file: their marks tell words and special tokens."""
    Path("t.json").write_text(json.dumps(["<s>", "▁un", "believ", "able", "▁猫", "</s>"]))
    flags = ["run", "--file", "t.json", "--d-model", "8", "--n-heads", "2", "--no-trace"]
    assert call([*flags, "-o", "w.npz", "--words", "--hide-special"]) == 0
    assert attnviz.load("w.npz").query_tokens == (("unbelievable", "猫"),)
    assert call([*flags, "-o", "plain.svg", "-o", "plain.npz", "-q"]) == 0
    assert call([*flags, "-o", "read.svg", "-o", "read.npz", "--decode", "-q"]) == 0
    assert "▁un" in Path("plain.svg").read_text("utf-8")
    assert "▁" not in Path("read.svg").read_text("utf-8")
    assert Path("plain.npz").read_bytes() == Path("read.npz").read_bytes()
    capsys.readouterr()


def test_what_changes_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--words", "--hide-special", "-o", "a.npz", "--force"]
    said = "--hide-special: no token is special\n--words: no word is in pieces\n"
    assert call(["run", "a cat", "--d-model", "8", "--n-heads", "2", *flags, "--no-trace"]) == 0
    assert capsys.readouterr().err == f"{said}Wrote a.npz\n"
    assert call(["render", "a.npz", *flags[:-3], "-o", "b.npz", "--no-show"]) == 0
    assert capsys.readouterr().err == f"{said}Wrote b.npz\n"


def test_all_special(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    flags = ["--d-model", "8", "--n-heads", "2", "--hide-special"]
    assert call(["run", "[CLS] [SEP]", *flags]) == 2
    assert capsys.readouterr().err == (
        "attnviz: --hide-special leaves no token: all of them are special\n"
    )
    assert list(here.iterdir()) == []


def test_long_texts_have_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--d-model", "8", "--n-heads", "2", "--words", "--pool", "4"]
    assert call(["run", "a b c d e f g", *flags]) == 2
    assert capsys.readouterr().err.startswith("attnviz: --words goes with whole maps, and ")


def test_prompt_and_answer_are_apart(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["run", "the cat", "--model", str(models / "llama"), "--generate", "3", "--no-trace"]
    assert call([*flags, "-o", "g.npz", "-o", "g.svg", "--show"]) == 0
    out, _ = capsys.readouterr()
    assert "from query 2 on, in bold, the model wrote" in out
    run = attnviz.load("g.npz")
    assert run.n_prompt == (2,)
    assert run.lengths.tolist() == [5]
    answer = next(line for line in out.splitlines() if line.startswith("answer 0"))
    assert answer.startswith("answer 0    after 2 tokens: ")
    picture = Path("g.svg").read_text("utf-8")
    assert "the answer begins after 2 tokens, at the line" in picture
    assert call(["run", "the cat sat", *flags[2:4], "-o", "h.svg", "--no-trace", "-q"]) == 0
    assert "the answer begins" not in Path("h.svg").read_text("utf-8")
