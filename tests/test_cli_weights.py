"""`--weights` on the command line: texts, vectors, tokenizers, and what is said of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attnviz.attention import MultiHeadAttention
from attnviz.cli.main import call
from attnviz.config import AttentionConfig, Variant
from attnviz.saved_runs import load
from attnviz.sources.saved_layers import save_layers

WORDS = ("[PAD]", "the", "cat", "sat", "down", "猫")
CONFIG = AttentionConfig(12, 3, 4, 4, positions="rope")
QUIET = ["-q", "-o", "run.npz", "--force"]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own layers with and without a table, torch's own, nanoGPT's names, and vectors."""
    monkeypatch.chdir(tmp_path)
    layers = [MultiHeadAttention(replace(CONFIG, seed=i)) for i in range(2)]
    save_layers(Path("own.safetensors"), layers, random(6, 12), WORDS)
    save_layers(Path("alone.safetensors"), layers[:1])
    torch.save(nn.MultiheadAttention(12, 3, add_bias_kv=True).state_dict(), "torch.pt")
    torch.save(nn.MultiheadAttention(12, 3, kdim=5, vdim=7).state_dict(), "wide.pt")
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(12, 3, 5, batch_first=True), 2, enable_nested_tensor=False
    )
    Path("stack").mkdir()
    state = {"embedding.weight": random(6, 12), **encoder.state_dict()}
    save_file(state, "stack/model.safetensors")
    Path("stack/config.json").write_text('{"num_attention_heads": 3}')
    gpt = {"c_attn.weight": random(36, 12), "c_proj.weight": random(12, 12)}
    save_file(gpt, "gpt.safetensors")
    np.save("x.npy", random(3, 12).numpy())
    np.save("pair.npy", random(2, 3, 12).numpy())
    np.save("keys.npy", random(4, 5).numpy())
    np.save("values.npy", random(4, 7).numpy())


def run(*arguments: str) -> object:
    assert call(["run", *arguments, *QUIET]) == 0
    return load("run.npz")


# ── text ─────────────────────────────────────────────────────────────────────────────────────


def test_a_text_through_ones_own_layers(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["the cat sat", "猫 sat", "--weights", "own.safetensors", "--causal"]
    assert call(["run", *flags, "-o", "run.npz", "--no-show"]) == 0
    out, err = capsys.readouterr()
    facts = [
        "layer       3 heads, d_model 12, d_k 4, d_v 4, float32, positions rope",
        "            weights of own.safetensors in the layout of attnviz",
        "            2 layers one after the other; the trace is of layer 0, all are alike",
        "masks       padding, causal: 4 of 13 cells forbidden; 1 padded key",
        "sequence 0  3 tokens: the/1 cat/2 sat/3",
        "sequence 1  2 tokens and 1 padding on the right: 猫/5 sat/3",
    ]
    assert out.splitlines()[:6] == facts
    assert "L0 H0" in out
    assert "L1 H2" in out
    assert out.count("softmax along the keys") == 1
    assert err == "Wrote run.npz\n"
    result = load("run.npz")
    assert result.attention.shape == (2, 2, 3, 3, 3)
    assert result.trained
    assert result.source == "weights of own.safetensors, layout attnviz"


def test_layers_and_heads_are_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["the cat", "--weights", "own.safetensors", "--no-show", "-o", "out"]
    assert call(["run", *flags, "--layers", "1", "--heads", "0,2"]) == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "seq0-layer1-head0.png",
        "seq0-layer1-head2.png",
        "seq0-overview.png",
    ]
    capsys.readouterr()
    assert call(["run", *flags, "--layers", "2"]) == 2
    assert capsys.readouterr().err == "attnviz: --layers 2: there are 2 layers, 0 to 1\n"


def test_what_was_saved_runs_again(capsys: pytest.CaptureFixture[str]) -> None:
    first = run("the cat", "--weights", "own.safetensors", "--save-layer", "again.safetensors")
    np.save("table.npy", random(6, 12).numpy()[[1, 2]])
    second = run("--weights", "again.safetensors", "--embeddings", "table.npy")
    assert np.array_equal(first.attention, second.attention)
    assert second.query_tokens == (("0", "1"),)
    assert capsys.readouterr().err == ""


def test_cross_attention(capsys: pytest.CaptureFixture[str]) -> None:
    result = run("the cat", "--keys", "sat down 猫", "--weights", "own.safetensors")
    assert result.attention.shape == (2, 1, 3, 2, 3)
    assert result.is_cross


def test_a_tokenizer_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    ids = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "the": 3, "cat": 5}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.enable_padding(length=99)
    tokenizer.save("tokenizer.json")
    flags = ["--tokenizer", "tokenizer.json"]
    weights = ["--weights", "stack", "--weights-prefix", "layers.1", "--no-show", *flags]
    assert call(["run", "the cat ran", *weights, "-o", "run.npz"]) == 0
    out, err = capsys.readouterr()
    assert "5 tokens: [CLS]/1 the/3 cat/5 [UNK]/0 [SEP]/2\n" in out
    assert err == (
        "the norm is assumed to follow the residual; --norm-first puts it before\n"
        "layer 1 is given the embedded tokens: the 1 layer before it did not run "
        "(--model runs them all)\nWrote run.npz\n"
    )
    assert call(["shapes", "the cat", *flags]) == 0  # a layer from flags has a vocabulary made anew
    assert "4 queries" in capsys.readouterr().out
    tokenizer.add_tokens(["more", "and more"])
    tokenizer.save("tokenizer.json")
    assert call(["run", "the", *weights]) == 2
    assert capsys.readouterr().err == (
        "attnviz: tokenizer.json has 7 tokens, the embedding of stack/model.safetensors 6 rows: "
        "it is another model's\n"
    )


def test_without_the_library_a_tokenizer_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    Path("tokenizer.json").write_text("{}")
    assert call(["shapes", "x", "--tokenizer", "tokenizer.json"]) == 2
    assert capsys.readouterr().err == (
        "attnviz: --tokenizer tokenizer.json needs the library tokenizers: "
        "pip install 'attnviz[models]'\n"
    )


def test_a_causal_model_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["run", "--weights", "gpt.safetensors", "--n-heads", "3", "--embeddings", "x.npy"]
    said = "the model of these weights (nanoGPT) is causal: --causal forbids what it never sees\n"
    for more, expected in (((), True), (("--causal",), False), (("--window", "2"), False)):
        assert call([*flags, "--no-show", "-o", "run.npz", "--force", *more]) == 0
        assert (said in capsys.readouterr().err) is expected


# ── vectors ──────────────────────────────────────────────────────────────────────────────────


def test_vectors_have_names_or_places() -> None:
    flags = ["--weights", "torch.pt", "--n-heads", "3"]
    assert run(*flags, "--embeddings", "x.npy").key_tokens == (("0", "1", "2", "[bias_k]"),)
    named = run("the cat sat", *flags, "--embeddings", "x.npy")
    assert named.query_tokens == (("the", "cat", "sat"),)
    padded = run("a b c", "d", *flags, "--embeddings", "pair.npy", "--pad-side", "left")
    assert padded.query_tokens == (("a", "b", "c"), ("[PAD]", "[PAD]", "d"))
    assert padded.lengths.tolist() == [3, 1]


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_every_form_of_vectors_is_the_same(form: str) -> None:
    x = np.load("x.npy")
    np.savez("x.npz", anything=x)
    save_file({"x": torch.from_numpy(x)}, "x.safetensors")
    flags = ["--weights", "alone.safetensors", "--embeddings"]
    assert np.array_equal(run(*flags, "x.npy").attention, run(*flags, f"x.{form}").attention)


def test_keys_and_values_of_other_widths(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--weights", "wide.pt", "--n-heads", "3", "--embeddings", "x.npy"]
    keys = ["--key-embeddings", "keys.npy"]
    values = ["--value-embeddings", "values.npy"]
    assert run(*flags, *keys, *values).attention.shape == (1, 1, 3, 3, 4)
    for more, message in (
        ([], "wide.pt makes keys of 5 numbers and values of 7: give --key-embeddings and --value-embeddings"),
        (["--key-embeddings", "x.npy", *values], "--key-embeddings has vectors of 12 numbers; 5 are expected by wide.pt"),
        ([*keys, "--value-embeddings", "x.npy"], "--value-embeddings has vectors of 12 numbers; 7 are expected by wide.pt"),
        (["--keys", "a b", *values], "--keys with --embeddings needs the keys' vectors: --key-embeddings"),
        (["--key-embeddings", "pair.npy"], "--key-embeddings has 2 sequences, --embeddings 1"),
    ):  # fmt: skip
        assert call(["run", *flags, *more]) == 2
        assert capsys.readouterr().err == f"attnviz: {message}\n"


# ── explain and shapes ───────────────────────────────────────────────────────────────────────


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict, str]:
    assert call(["explain", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert call(["explain", *arguments]) == 0
    return document, capsys.readouterr().out


def adds_up(document: dict) -> None:
    """Each key's numbers follow from each other, as the page says they do."""
    q = np.array(document["query"]["q"])
    keys = [key for key in document["keys"] if key["allowed"]]
    for key in keys:
        assert float(q @ np.array(key["k"])) == pytest.approx(key["product"], abs=1e-5)
        assert key["product"] / document["scale"] == pytest.approx(key["scaled"], abs=1e-5)
        assert key["scaled"] + (key["bias"] or 0) == pytest.approx(key["score"], abs=1e-5)
    exps = np.exp([key["score"] for key in keys])
    assert [key["weight"] for key in keys] == pytest.approx(list(exps / exps.sum()), abs=1e-6)


def test_explain_shows_vectors_after_their_turn(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["the cat sat", "--weights", "own.safetensors", "--layer", "1", "--head", "2"]
    document, page = explained(capsys, *flags, "--causal")
    adds_up(document)
    assert (document["layer"], document["done_to_q"]) == (1, ["q_rotated"])
    assert "Then pairs of its numbers are rotated" in page
    assert "layer 1 of 2" in page
    turned = {step["name"] for step in document["steps"]}
    assert {"q", "q_rotated", "k", "k_rotated"} <= turned


def test_explain_shows_a_table_of_distances_and_no_scale(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = replace(CONFIG, positions="relative", variant=Variant(scaled=False))
    weights = {**MultiHeadAttention(CONFIG).state_dict(), "distances.weight": random(32, 3)}
    save_layers(Path("relative.safetensors"), [MultiHeadAttention(config, weights)])
    document, page = explained(capsys, "--weights", "relative.safetensors", "--embeddings", "x.npy")
    adds_up(document)
    assert document["scale"] == 1
    assert all(key["bias"] is not None for key in document["keys"])
    assert "3. No scale, but a position bias" in page
    assert "√d_k" not in page


@pytest.mark.parametrize("norms", [False, True])
def test_explain_shows_alibi_and_norms(norms: bool, capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(CONFIG, positions="alibi", n_kv_heads=1)
    weights = MultiHeadAttention(config).state_dict()
    if norms:
        weights |= {"norm_q.weight": random(4), "norm_k.weight": random(4)}
    save_layers(Path("alibi.safetensors"), [MultiHeadAttention(config, weights)])
    flags = ["--weights", "alibi.safetensors", "--embeddings", "x.npy", "--head", "1"]
    document, page = explained(capsys, *flags)
    adds_up(document)
    # three heads: the two slopes of a power of 2, then one in between
    assert [key["bias"] for key in document["keys"]] == pytest.approx([-2 / 256, -1 / 256, 0])
    assert "ALiBi then subtracts the distance" in page
    assert ("RMSNorm along d_k" in page) is norms


def test_explain_shows_a_key_that_is_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--weights", "torch.pt", "--n-heads", "3", "--embeddings", "x.npy", "--causal"]
    document, page = explained(capsys, *flags, "--query", "0")
    adds_up(document)
    assert [key["token"] for key in document["keys"]] == ["0", "1", "2", "[bias_k]"]
    assert [key["allowed"] for key in document["keys"]] == [True, False, False, True]
    assert "of the other text" not in page


def test_shapes_of_ones_own_layer(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["shapes", "--weights", "own.safetensors", "--len", "1000000", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    steps = {step["name"]: step for step in document["steps"]}
    assert steps["weights"]["shape"] == [1, 3, 10**6, 10**6]
    assert steps["embedded"]["shape"] == [1, 10**6, 12]
    assert "allowed" not in steps
    text = ["the cat", "--keys", "sat down 猫", "--weights", "own.safetensors", "--segments"]
    assert call(["shapes", *text, "--json"]) == 0
    steps = {s["name"]: s for s in json.loads(capsys.readouterr().out)["steps"]}
    assert steps["weights"]["shape"] == [1, 3, 2, 3]
    assert steps["allowed"]["shape"] == [1, 1, 2, 3]
    wide = ["--weights", "wide.pt", "--n-heads", "3", "--len", "5", "--key-len", "7", "--causal"]
    assert call(["shapes", *wide, "--batch", "2"]) == 0
    out = capsys.readouterr().out
    assert "weights of wide.pt in the layout of nn.MultiheadAttention\n" in out
    assert "d_key 5 numbers a key is made of  d_value 7 numbers a value is made of" in out
    assert "2×3×5×7" in out


# ── flags that cannot go together ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run x --weights-prefix a", "--weights-prefix goes with --weights FILE"),
        ("run x --embeddings x.npy", "--embeddings goes with --weights FILE"),
        ("explain x --norm-first", "--norm-first goes with --weights FILE"),
        ("shapes x --add-zero-attn", "--add-zero-attn goes with --weights FILE"),
        ("run x --weights own.safetensors --seed 0", "--weights and --seed both give the layer; give one of them"),
        ("run x --weights own.safetensors --d-model 12", "--weights and --d-model both give the layer; give one of them"),
        ("run x --weights own.safetensors --n-heads 8", "own.safetensors: its metadata says 3 heads, --n-heads says 8"),
        ("run x --weights own.safetensors --positions rotary", "--positions is 'rotary'; it must be one of sinusoidal, none, rope, alibi"),
        ("run x --weights own.safetensors --positions sinusoidal", "--positions sinusoidal, but the layers of own.safetensors have rope; leave it out"),
        ("run x --weights own.safetensors --key-embeddings x.npy", "--key-embeddings and --value-embeddings go with --embeddings"),
        ("run --weights own.safetensors --embeddings x.npy --pad-to 9", "--embeddings and --pad-to both give the length; give one of them"),
        ("run dog --weights own.safetensors", "the token 'dog' is not in the vocabulary, which has 6 tokens, the first of them: [PAD] the cat sat down"),
        ("run Cats --weights own.safetensors", "the token 'Cats' is not in the vocabulary, which has near it: cat"),
        ("run x --weights alone.safetensors", "alone.safetensors has no embedding that turns tokens into vectors: give --embeddings FILE of [T d_model] or [B T d_model], d_model 12"),
        ("run x --weights stack --weights-prefix layers.0", "stack/model.safetensors does not say which token is which of the 6 rows of its embedding: --tokenizer tokenizer.json does, or give --embeddings"),
        ("run x --weights stack", "stack/model.safetensors holds 2 layers; --weights-prefix picks one of layers.0.self_attn, layers.1.self_attn"),
        ("run a b --weights alone.safetensors --embeddings x.npy", "--embeddings has 1 sequence of 3 vectors, the text 2 of 1 tokens at most; one token a vector is expected"),
        ("run --weights alone.safetensors --embeddings none.npy", "--embeddings none.npy: no such file or directory"),
        ("run --weights alone.safetensors --embeddings torch.pt", "--embeddings torch.pt has the suffix '.pt'; .npy, .npz or .safetensors"),
        ("run --weights alone.safetensors --embeddings own.safetensors", "--embeddings own.safetensors holds 21 arrays; one is expected"),
        ("shapes x --weights own.safetensors --vs --causal", "--vs compares layers from flags and models; it has no --weights"),
        ("shapes --weights own.safetensors --model config.json", "--weights and --model both give the layer; give one of them"),
        ("run x --tokenizer none.json", "none.json: no such file or directory"),
        ("run x --tokenizer stack/config.json", None),
    ],
)  # fmt: skip
def test_one_line(line: str, message: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    if message is None:
        assert err.startswith("attnviz: stack/config.json is no tokenizer.json: ")
        assert err.count("\n") == 1
    else:
        assert err == f"attnviz: {message}\n"


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((3, 12), int), "holds int64; floats are expected"),
        (np.ones(12), "has shape [12]; [T d_model] or [B T d_model] is expected"),
        (np.ones((0, 12)), "has shape [0, 12]; [T d_model] or [B T d_model] is expected"),
        (np.full((3, 12), np.nan), "has nan at [0, 0]; finite numbers only"),
        (np.array([{}]), "holds pickled Python objects, which are never loaded; save numbers"),
    ],
)
def test_vectors_that_are_none(
    array: np.ndarray, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save("bad.npy", array, allow_pickle=True)
    assert call(["run", "--weights", "alone.safetensors", "--embeddings", "bad.npy"]) == 2
    assert capsys.readouterr().err == f"attnviz: --embeddings bad.npy {message}\n"


def test_a_step_that_the_layer_has_not_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    config = replace(CONFIG, variant=Variant(norm="before"))
    save_layers(Path("before.safetensors"), [MultiHeadAttention(config)])
    flags = ["--weights", "before.safetensors", "--embeddings", "x.npy", "--keep", "q,output"]
    assert call(["run", *flags, "-o", "run.npz", "--no-show"]) == 0
    assert "--keep output: this layer has no such step\n" in capsys.readouterr().err
    assert list(load("run.npz").kept) == ["q"]
