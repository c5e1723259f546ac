"""`--model`: a pretrained model from the shell, tiny ones in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from one_pass import from_pretrained
from tiny_models import BERT, LLAMA, T5, tiny

import attnviz
from attnviz.cli.main import call

LONG, SHORT = "the cat sat on the mat because it was tired .", "the dog ran"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny models bert, llama and t5."""
    folder = tmp_path_factory.mktemp("models")
    for name, kind, sizes in (
        ("bert", "BertModel", BERT | {"num_hidden_layers": 3}),
        ("llama", "LlamaForCausalLM", LLAMA | {"eos_token_id": None}),
        ("t5", "T5ForConditionalGeneration", T5 | {"eos_token_id": None}),
    ):
        model = tiny(kind, specials=name == "bert", **sizes)
        model.network.save_pretrained(folder / name)
        model.tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ── run ──────────────────────────────────────────────────────────────────────────────────────


def test_a_saved_run_holds_what_python_gives(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(models / "bert")
    assert call(["run", LONG, SHORT, "--model", model, "-o", "run.npz", "--keep", "q,scores"]) == 0
    out, err = capsys.readouterr()
    saved = attnviz.load("run.npz")
    expected = from_pretrained(model, [LONG, SHORT], pad_side="right", keep=["q", "scores"]).result
    assert np.array_equal(saved.attention, expected.attention)
    assert np.array_equal(saved.kept["scores"], expected.kept["scores"])
    assert saved.query_tokens == expected.query_tokens
    assert (saved.source, saved.trained, saved.masks) == ("bert, encoder", True, ("padding",))
    lines = out.splitlines()
    assert lines[0] == "model       bert (bert), its encoder: 3 layers of 3 heads"
    assert lines[1].strip() == "d_k 8, d_v 8, float32, trained"
    assert lines[2].strip() == "the trace is of layer 0, as its code handed it over"
    assert "W_O: mixes the heads and returns to d_model" in out
    assert err == "Wrote run.npz\n"


def test_only_the_layers_that_are_drawn_are_kept(
    models: Path, capsys: pytest.CaptureFixture[str], empty_folder: Path
) -> None:
    model = str(models / "bert")
    assert call(["run", SHORT, "--model", model, "--layers", "2", "-o", "a.npz", "-o", "out"]) == 0
    out, _ = capsys.readouterr()
    assert "kept: layer 2" in out
    assert "L2 H1" in out
    saved = attnviz.load("a.npz")
    assert (saved.attention.shape[0], saved.layers) == (1, (2,))
    names = sorted(path.name for path in Path("out").iterdir())
    assert names == [f"seq0-layer2-head{h}.png" for h in range(3)] + ["seq0-overview.png"]


def test_a_pipe_a_file_and_chinese_text(models: Path) -> None:
    command = [sys.executable, "-m", "attnviz", "run", "--model", str(models / "bert")]
    environment = os.environ | {"NO_COLOR": "1", "LC_ALL": "C", "COLUMNS": "20"}
    done = subprocess.run(
        [*command, "-o", "a.json", "--no-trace"],
        input=f"{LONG}\n猫 the cat\n".encode(),
        capture_output=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"Wrote a.json\n")
    tokens = json.loads(Path("a.json").read_text())["query_tokens"]
    assert tokens[1][:5] == ["[CLS]", "[UNK]", "the", "cat", "[SEP]"]


def test_cross_attention(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(models / "t5")
    assert call(["run", SHORT, "--keys", LONG, "--model", model, "-o", "a.npz", "--no-trace"]) == 0
    saved = attnviz.load("a.npz")
    assert saved.attention.shape == (2, 1, 3, 4, 11)
    assert saved.is_cross
    assert "its cross: 2 layers of 3 heads" in capsys.readouterr().out


def test_a_model_that_writes(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(models / "llama")
    flags = ["--model", model, "--generate", "5", "-o", "a.npz", "--no-trace"]
    assert call(["run", SHORT, *flags]) == 0
    out, _ = capsys.readouterr()
    saved = attnviz.load("a.npz")
    assert saved.attention.shape == (2, 1, 6, 8, 8)
    assert saved.masks == ("causal",)
    assert "answer 0    after 3 tokens: " in out
    drawn = [*flags, "--temperature", "2.5", "--force"]
    seen = set()
    for seed in ("1", "1", "2"):
        assert call(["run", SHORT, *drawn, "--seed", seed]) == 0
        seen.add(attnviz.load("a.npz").query_tokens)
    assert len(seen) == 2


# ── explain ──────────────────────────────────────────────────────────────────────────────────


def test_explain_with_real_numbers(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(models / "llama")
    flags = ["--model", model, "--layer", "1", "--head", "4", "--query", "dog", "--json"]
    assert call(["explain", SHORT, *flags]) == 0
    document = json.loads(capsys.readouterr().out)
    keep = ("q", "k", "v", "scores", "context")
    result = from_pretrained(model, [SHORT], keep=keep).result
    assert (document["layer"], document["head"], document["query"]["token"]) == (1, 4, "dog")
    np.testing.assert_allclose(document["query"]["q"], result.kept["q"][1, 0, 4, 1], rtol=1e-6)
    keys = document["keys"]
    assert [key["allowed"] for key in keys] == [True, True, False]
    weights = [key["weight"] for key in keys]
    np.testing.assert_allclose(weights, result.attention[1, 0, 4, 1], rtol=1e-6)
    np.testing.assert_allclose([key["k"] for key in keys], result.kept["k"][1, 0, 1], rtol=1e-6)
    np.testing.assert_allclose(document["context"], result.kept["context"][1, 0, 4, 1], rtol=1e-6)


def test_a_model_that_hides_its_queries_is_not_explained(
    models: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = tiny("MPNetModel", **BERT)
    model.network.save_pretrained("mpnet")
    model.tokenizer.save_pretrained("mpnet")
    capsys.readouterr()
    assert call(["explain", SHORT, "--model", "mpnet"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: encoder.layer.0.attention.attn computes attention in its own code, and shows no "
        "q\n"
    )


# ── refusals ─────────────────────────────────────────────────────────────────────────────────

WITH_MODEL = {
    "--d-model 8": "--model and --d-model both give the layer; give one of them",
    "--d-model 512": "--model and --d-model both give the layer; give one of them",
    "--weights w.safetensors": (
        "--model and --weights both say where attention comes from; give one"
    ),
    "--norm-first": "--norm-first goes with --weights FILE, not with --model",
    "--causal": "--model and --causal: a model masks by itself; leave --causal out",
    "--tokenizer chars": "--model and --tokenizer: a model cuts text by its own tokenizer",
    "--pad-to 9": "--model and --pad-to: texts are padded to the longest of them",
    "--dtype int8": ("--dtype is 'int8'; it must be one of float32, float64, bfloat16, float16"),
    "--device tpu": "--device is 'tpu'; it must be one of auto, cpu, cuda, mps",
    "--attention cross": "--attention cross: bert has encoder",
    "--layers 3": "--layers 3: there are 3 layers, 0 to 2",
    "--heads 3": "--heads 3: there are 3 heads, 0 to 2",
    "--keys cat": "--keys: the encoder of bert looks at its own text alone",
    "--revision main": "--revision main: bert is a local model, not one on the hub",
    "--save-layer a.safetensors": (
        "--save-layer writes a layer of attnviz's own; --model has none"
    ),
    "--max-len 0": "--max-len is 0; it must be at least 1",
    "--generate 0": "--generate is 0; it must be at least 1",
    "--generate 3": "--generate: bert (bert) does not generate text",
    "--temperature 1": "--temperature goes with --generate",
    "--generate 3 --temperature nan": "--temperature is nan; 0 (greedy) to 100 will do",
}


@pytest.mark.parametrize("flags", WITH_MODEL)
def test_flags_that_do_not_go_with_a_model(
    flags: str, models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(models)
    before = sorted(models.rglob("*"))
    assert call(["run", "x", "--model", "bert", *flags.split()]) == 2
    assert capsys.readouterr() == ("", f"attnviz: {WITH_MODEL[flags]}\n")
    assert sorted(models.rglob("*")) == before


@pytest.mark.parametrize(
    "flags", ["--revision main", "--trust-remote-code", "--max-len 3", "--generate 3"]
)
def test_flags_that_need_a_model(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "x", *flags.split()]) == 2
    assert capsys.readouterr().err == f"attnviz: {flags.split()[0]} goes with --model\n"


def test_code_that_comes_with_a_model_does_not_run(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad").mkdir()
    mapped = {"AutoConfig": "own.Config", "AutoModel": "own.Model", "AutoTokenizer": "own.Cutter"}
    Path("bad/config.json").write_text(json.dumps({"model_type": "own", "auto_map": mapped}))
    Path("bad/own.py").write_text("open('harm', 'w').close()\nclass Config: pass\n")
    assert call(["run", "x", "--model", "bad"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: --model bad: it needs code that comes with it; --trust-remote-code runs that "
        "code, if you trust it\n"
    )
    assert not Path("harm").exists()
    # a tokenizer's own code beside a model that transformers knows
    config = json.loads((models / "bert/config.json").read_text())
    Path("odd").mkdir()
    Path("odd/config.json").write_text(json.dumps(config))
    Path("odd/model.safetensors").write_bytes((models / "bert/model.safetensors").read_bytes())
    Path("odd/own.py").write_text("open('harm', 'w').close()\n")
    own = {"auto_map": {"AutoTokenizer": ["own.Cutter", None]}, "tokenizer_class": "Cutter"}
    Path("odd/tokenizer_config.json").write_text(json.dumps(own))
    assert call(["run", "x", "--model", "odd"]) == 2
    assert capsys.readouterr().err == "attnviz: odd has no tokenizer that could be read\n"
    assert not Path("harm").exists()


def test_weights_in_a_pickle_that_does_harm_do_none(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    class Harm:
        def __reduce__(self) -> tuple[object, tuple[str, str]]:
            return open, ("harm", "w")

    Path("bad").mkdir()
    Path("bad/config.json").write_bytes((models / "bert/config.json").read_bytes())
    torch.save({"embeddings": Harm()}, "bad/pytorch_model.bin")
    assert call(["run", "x", "--model", "bad"]) == 2
    assert capsys.readouterr().err.startswith("attnviz: --model bad: ")
    assert not Path("harm").exists()
