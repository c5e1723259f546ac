"""A person's own weights: each layout against the code it comes from, to the last digits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_pass import Ran, from_weights
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attnviz import masks
from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import AttentionConfig, Rotary, Variant
from attnviz.errors import ConfigError, InputError
from attnviz.sources.from_weights import Asked, Weights, open_weights, steps_of
from attnviz.sources.layer_pass import Inputs
from attnviz.sources.saved_layers import save_layers
from attnviz.sources.weight_files import open_weight_file
from attnviz.tokens import Batch, make_batch

BATCH, TQ, TK, D_MODEL, V = 2, 5, 7, 24, 31
IDS = torch.randint(3, V, (BATCH, 11), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name short paths, which are never cut."""
    monkeypatch.chdir(tmp_path)


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def stirred(module: nn.Module) -> nn.Module:
    """`module` with all parameters off their first values: no bias is 0, and no norm is 1."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return module.eval()


def opened(path: Path, **asked: Any) -> Weights:
    return open_weights(open_weight_file(path), Asked(**asked))


def batch_of(rows: Tensor | int, width: int = 0) -> Batch:
    if isinstance(rows, int):
        return make_batch([tuple(map(str, range(width)))] * rows, tuple(map(str, range(99))))
    return make_batch([tuple(map(str, row)) for row in rows.tolist()], tuple(map(str, range(V))))


def close(mine: np.ndarray, theirs: Tensor, tolerance: float) -> None:
    np.testing.assert_allclose(mine, theirs.numpy(), rtol=0, atol=tolerance)


# ── torch ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"kdim": 11, "vdim": 13},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True, "kdim": 11, "vdim": 13},
    ],
    ids=str,
)
def test_torch_multihead_attention(options: dict) -> None:
    module = nn.MultiheadAttention(D_MODEL, 3, batch_first=True, dtype=torch.float64, **options)
    torch.save(stirred(module).state_dict(), Path("a.pt"))
    x = random(BATCH, TQ, D_MODEL)
    k = random(BATCH, TK, options.get("kdim", D_MODEL), seed=1)
    v = random(BATCH, TK, options.get("vdim", D_MODEL), seed=2)
    forbidden = random(BATCH * 3, TQ, TK, seed=3) > 0.5
    with torch.no_grad():
        output, theirs = module(x, k, v, attn_mask=forbidden, average_attn_weights=False)
    weights = opened(Path("a.pt"), n_heads=3, zero_attn="add_zero_attn" in options)
    queries, keys = batch_of(BATCH, TQ), batch_of(BATCH, TK)
    allowed = (~forbidden).view(BATCH, 3, TQ, TK).numpy()
    rule = masks.from_array(allowed, "m", BATCH, 3, TQ, TK)
    run = from_weights(weights, queries, keys, [rule], ["projected", "k"], Inputs(x, k, v))
    close(run.result.attention[0], theirs, 1e-12)
    close(run.result.kept["projected"][0], output, 1e-12)
    extra = ["[bias_k]"] * ("add_bias_kv" in options) + ["[zero]"] * ("add_zero_attn" in options)
    assert list(run.result.key_tokens[0][TK:]) == extra
    assert run.result.allowed[..., TK:].all()
    assert run.result.kept["k"].shape == (1, BATCH, 3, TK + len(extra), 8)
    assert run.result.trained


@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_encoder_layer_in_a_checkpoint(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(
        D_MODEL, 3, 20, dropout=0, batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    state = {f"module.enc.{name}": value for name, value in stirred(layer).state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, Path("a.pt"))
    weights = opened(Path("a.pt"), n_heads=3, norm_first=norm_first)
    x = random(BATCH, TQ, D_MODEL)
    keep = ["residual", "output"]
    run = from_weights(weights, batch_of(BATCH, TQ), None, [], keep, Inputs(x))
    with torch.no_grad():
        y = layer.norm1(x) if norm_first else x
        output, theirs = layer.self_attn(y, y, y, average_attn_weights=False)
        output = x + output if norm_first else layer.norm1(x + output)
    close(run.result.attention[0], theirs, 1e-12)
    close(run.result.kept["residual" if norm_first else "output"][0], output, 1e-12)
    assert weights.found[0].place == "module.enc.self_attn"
    said = "the norm is assumed to follow the residual; --norm-first puts it before"
    assert weights.notices == (() if norm_first else (said,))


def test_the_cross_attention_of_a_torch_decoder() -> None:
    layer = nn.TransformerDecoderLayer(D_MODEL, 3, 20, batch_first=True, dtype=torch.float64)
    save_file(stirred(layer).state_dict(), Path("a.safetensors"))
    with pytest.raises(InputError) as caught:
        opened(Path("a.safetensors"), n_heads=3)
    assert str(caught.value) == (
        "a.safetensors holds 2 layers; --weights-prefix picks one of multihead_attn, self_attn"
    )
    weights = opened(Path("a.safetensors"), n_heads=3, prefix="multihead_attn")
    x, y = random(BATCH, TQ, D_MODEL), random(BATCH, TK, D_MODEL, seed=1)
    run = from_weights(
        weights, batch_of(BATCH, TQ), batch_of(BATCH, TK), [], ["output"], Inputs(x, y)
    )
    with torch.no_grad():
        output, theirs = layer.multihead_attn(x, y, y, average_attn_weights=False)
        output = layer.norm2(x + output)
    close(run.result.attention[0], theirs, 1e-12)
    close(run.result.kept["output"][0], output, 1e-12)


# ── transformers, which --model runs ─────────────────────────────────────────────────────────

SIZES = {"hidden_size": D_MODEL, "num_hidden_layers": 2, "intermediate_size": 20, "vocab_size": V}
HEADS = {"num_attention_heads": 3}
GPT = {"n_embd": D_MODEL, "n_layer": 2, "n_head": 3, "vocab_size": V, "n_positions": 19}
MODELS: dict[str, tuple[dict[str, Any], str]] = {
    "Bert": ({**SIZES, **HEADS}, "BERT"),
    "Roberta": ({**SIZES, **HEADS}, "BERT"),
    "DistilBert": ({"dim": D_MODEL, "n_layers": 2, "n_heads": 3, "hidden_dim": 20}, "DistilBERT"),
    "GPT2": (GPT, "GPT-2"),
    "GPTJ": ({**GPT, "rotary_dim": 4}, "GPT-J"),
    "GPTNeoX": ({**SIZES, **HEADS, "hidden_size": 48}, "GPT-NeoX"),
    "Bloom": ({"hidden_size": D_MODEL, "n_layer": 2, "n_head": 3}, "BLOOM"),
    "Llama": ({**SIZES, **HEADS}, "Llama"),
    "Mistral": ({**SIZES, **HEADS, "num_key_value_heads": 3}, "Llama"),
    "Qwen3": ({**SIZES, **HEADS, "num_key_value_heads": 3, "head_dim": 10}, "Llama"),
    "ViT": ({**SIZES, **HEADS}, "ViT"),
    "T5": ({"d_model": D_MODEL, "d_kv": 7, "num_layers": 2, "num_heads": 3, "d_ff": 20}, "T5"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_transformers_is_named(name: str) -> None:
    import transformers

    options, layout = MODELS[name]
    config = getattr(transformers, f"{name}Config")(**options)
    with torch.device("meta"):
        state = getattr(transformers, f"{name}Model")(config).state_dict()
    with pytest.raises(InputError) as caught:
        torch.save({k: torch.empty(t.shape) for k, t in state.items()}, Path("a.pt"))
        opened(Path("a.pt"), prefix="h.0" if name == "GPT2" else None, n_heads=3)
    assert str(caught.value) == (
        f"a.pt has the layout of {layout} in transformers, which --weights does not read; "
        "--model FOLDER runs it, with the config.json beside it"
    )


def test_the_config_of_ones_own_checkpoint() -> None:
    state = {f"{n}.weight": random(12, 12) for n in ("attn.c_attn", "attn.c_proj", "ln_1")}
    state |= {"attn.c_attn.weight": random(36, 12), "ln_1.weight": random(12)}
    torch.save(state, Path("a.pt"))
    Path("config.json").write_text('{"n_head": 3, "layer_norm_epsilon": 0.25}')
    config = opened(Path("a.pt")).config
    assert (config.n_heads, config.variant.eps) == (3, 0.25)
    for value in (float("inf"), float("nan"), 10**40, -1):
        Path("config.json").write_text(json.dumps({"n_head": 3, "layer_norm_epsilon": value}))
        with pytest.raises(InputError, match=r"config\.json has layer_norm_epsilon .*; a number"):
            opened(Path("a.pt"))


# ── the seed's layer ─────────────────────────────────────────────────────────────────────────


def seed_state(**more: Tensor) -> dict[str, Tensor]:
    shapes = {"W_Q": 24, "W_K": 24, "W_V": 33}
    return {
        **{f"{n}.weight": random(rows, 17, seed=i) for i, (n, rows) in enumerate(shapes.items())},
        **{f"{n}.bias": random(rows, seed=9 + i) for i, (n, rows) in enumerate(shapes.items())},
        **more,
    }


@pytest.mark.parametrize("whole", [False, True])
def test_the_layer_of_the_seed(whole: bool) -> None:
    """Its W_O and LayerNorm were made in `forward`, so that its state dict has neither."""
    more = {
        "linear.weight": random(17, 33, seed=5),
        "linear.bias": random(17, seed=6),
        "layer_norm.weight": random(17, seed=7),
        "layer_norm.bias": random(17, seed=8),
    }
    state = seed_state(**(more if whole else {}))
    torch.save(state, Path("a.pt"))
    weights = opened(Path("a.pt"), n_heads=3)
    x = random(BATCH, TQ, 17, seed=20)
    run = from_weights(weights, batch_of(BATCH, TQ), None, [], ["merged", "output"], Inputs(x))
    w, y = {name: value.numpy() for name, value in state.items()}, x.numpy()
    q, k, v = (
        (y @ w[f"{n}.weight"].T + w[f"{n}.bias"]).reshape(BATCH, TQ, 3, -1).transpose(0, 2, 1, 3)
        for n in ("W_Q", "W_K", "W_V")
    )
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(8)
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    merged = (expected @ v).transpose(0, 2, 1, 3).reshape(BATCH, TQ, 33)
    close(run.result.attention[0], torch.from_numpy(expected), 1e-12)
    close(run.result.kept["merged"][0], torch.from_numpy(merged), 1e-12)
    if whole:
        added = y + merged @ w["linear.weight"].T + w["linear.bias"]
        spread = np.sqrt(added.var(-1, keepdims=True) + 1e-5)
        normed = (added - added.mean(-1, keepdims=True)) / spread
        normed = normed * w["layer_norm.weight"] + w["layer_norm.bias"]
        close(run.result.kept["output"][0], torch.from_numpy(normed), 1e-12)
    else:
        assert run.steps[-1].name == "merged"
        assert "output" not in run.result.kept


# ── layers that people write themselves ──────────────────────────────────────────────────────

PLAIN_NAMES = {
    "fairseq": ("q_proj", "k_proj", "v_proj", "out_proj"),
    "minGPT": ("query", "key", "value", "proj"),
    "lucidrains": ("to_q", "to_k", "to_v", "to_out.0"),
    "short": ("wq", "wk", "wv", "wo"),
    "The Annotated Transformer": ("linears.0", "linears.1", "linears.2", "linears.3"),
}


def plain_attention(x: Tensor, matrices: list[tuple[Tensor, Tensor]], n_heads: int) -> Any:
    """(weights, W_O's output) of an attention with nothing around it, by hand."""
    q, k, v = (
        (x @ w.T + b).view(*x.shape[:2], n_heads, -1).transpose(1, 2) for w, b in matrices[:3]
    )
    weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
    w, b = matrices[3]
    return weights, (weights @ v).transpose(1, 2).flatten(2) @ w.T + b


@pytest.mark.parametrize("names", PLAIN_NAMES.values(), ids=PLAIN_NAMES)
@pytest.mark.parametrize("place", ["", "blocks.3.attn.", "self_attn."])
def test_names_that_people_give_the_four_matrices(names: tuple[str, ...], place: str) -> None:
    matrices = [
        (random(D_MODEL, D_MODEL, seed=i) / 5, random(D_MODEL, seed=9 + i)) for i in range(4)
    ]
    state = {"mlp.0.weight": random(7, 3)}
    for name, (weight, bias) in zip(names, matrices, strict=True):
        state |= {f"{place}{name}.weight": weight, f"{place}{name}.bias": bias}
    torch.save(state, Path("a.pt"))
    if not place:  # then everything is the attention's
        with pytest.raises(InputError, match=r"unexpected mlp\.0\.weight"):
            opened(Path("a.pt"), n_heads=3)
        del state["mlp.0.weight"]
        torch.save(state, Path("a.pt"))
    weights = opened(Path("a.pt"), n_heads=3)
    assert weights.notices == (
        f"the names {' '.join(names)} show nothing about norms, positions or masks: attnviz applies "
        "only those that flags give",
    )
    x = random(BATCH, TQ, D_MODEL, seed=20)
    run = from_weights(weights, batch_of(BATCH, TQ), None, [], ["projected"], Inputs(x))
    theirs, output = plain_attention(x, matrices, 3)
    close(run.result.attention[0], theirs, 1e-12)
    close(run.result.kept["projected"][0], output, 1e-12)


def test_plain_names_of_a_model_that_is_known_by_name() -> None:
    """BART and OPT call the matrices alike, and norm in other places."""
    state = {
        f"decoder.layers.0.self_attn.{name}.weight": random(D_MODEL, D_MODEL)
        for name in PLAIN_NAMES["fairseq"]
    }
    save_file(state, Path("model.safetensors"))
    Path("config.json").write_text('{"model_type": "opt", "num_attention_heads": 3}')
    with pytest.raises(InputError, match=r"says model_type opt, .*; --model FOLDER runs it"):
        opened(Path("model.safetensors"))


ATTENTION_AND_NORM = {
    "nanoGPT": ("transformer.h.0.", "attn.c_attn", "attn.c_proj", "ln_1", 1e-5),
    "nanoGPT, attention alone": ("", "c_attn", "c_proj", None, 1e-5),
    "timm ViT": ("blocks.3.", "attn.qkv", "attn.proj", "norm1", 1e-6),
    "qkv proj": ("blocks.3.attn.", "qkv", "proj", None, 1e-6),
}


@pytest.mark.parametrize("layout", ATTENTION_AND_NORM)
def test_q_k_and_v_from_one_matrix(layout: str) -> None:
    place, fused, out, norm, eps = ATTENTION_AND_NORM[layout]
    attention, projection = random(3 * D_MODEL, D_MODEL) / 5, random(D_MODEL, D_MODEL) / 5
    scale = random(D_MODEL, seed=1)
    state = {f"{place}{fused}.weight": attention, f"{place}{out}.weight": projection}
    if norm is not None:
        state[f"{place}{norm}.weight"] = scale
    torch.save({"model": state, "model_args": {"n_head": 3}}, Path("ckpt.pt"))
    weights = opened(Path("ckpt.pt"), n_heads=3)
    assert weights.layout == layout.partition(",")[0]
    assert weights.is_causal is layout.startswith("nanoGPT")
    x, none = random(BATCH, TQ, D_MODEL, seed=20), torch.zeros(D_MODEL, dtype=torch.float64)
    run = from_weights(weights, batch_of(BATCH, TQ), None, [], ["projected"], Inputs(x))
    normed = x if norm is None else nn.functional.layer_norm(x, (D_MODEL,), scale, eps=eps)
    matrices = [(part, none) for part in (*attention.chunk(3), projection)]
    theirs, output = plain_attention(normed, matrices, 3)
    close(run.result.attention[0], theirs, 1e-12)
    close(run.result.kept["projected"][0], output, 1e-12)
    steps, sizes = steps_of(weights, {"B": BATCH, "Tq": TQ}, 0, embeds=False)
    assert steps == run.steps
    assert sizes["Tk"] == TQ


def test_tokens_of_nanogpt_and_a_text_beyond_its_table_of_positions() -> None:
    wte, wpe, norm = random(V, D_MODEL), random(19, D_MODEL, seed=1), random(D_MODEL, seed=2)
    attention = random(3 * D_MODEL, D_MODEL, seed=3) / 5
    state = {
        "transformer.wte.weight": wte,
        "transformer.wpe.weight": wpe,
        "transformer.h.0.attn.c_attn.weight": attention,
        "transformer.h.0.attn.c_proj.weight": random(D_MODEL, D_MODEL),
        "transformer.h.0.attn.bias": torch.ones(1, 1, 9, 9),
        "transformer.h.0.ln_1.weight": norm,
    }
    torch.save(state, Path("ckpt.pt"))
    weights = opened(Path("ckpt.pt"), n_heads=3)
    run = from_weights(weights, batch_of(IDS))
    normed = nn.functional.layer_norm(wte[IDS] + wpe[: IDS.shape[1]], (D_MODEL,), norm)
    none = torch.zeros(D_MODEL, dtype=torch.float64)
    theirs, _ = plain_attention(
        normed, [(m, none) for m in (*attention.chunk(3), wte.T[:, :24])], 3
    )
    close(run.result.attention[0], theirs, 1e-12)
    with pytest.raises(InputError) as caught:
        from_weights(weights, batch_of(torch.arange(20)[None]))
    assert str(caught.value) == "ckpt.pt has a table of 19 positions; 20 tokens are more"


def test_llama_as_meta_saved_it() -> None:
    """Neighbouring numbers turn together, in complex numbers, as in Meta's own code."""
    n_heads, n_kv, d = 6, 2, 4
    rows = {"wq": n_heads * d, "wk": n_kv * d, "wv": n_kv * d, "wo": D_MODEL}
    state = {
        f"layers.1.attention.{name}.weight": random(n, D_MODEL, seed=n) / 5
        for name, n in rows.items()
    }
    norm = state["layers.1.attention_norm.weight"] = random(D_MODEL, seed=1)
    torch.save(state, Path("consolidated.00.pth"))
    weights = opened(Path("consolidated.00.pth"), n_heads=n_heads)
    assert (weights.layout, weights.is_causal, weights.config.n_kv_heads) == (
        "Meta's Llama",
        True,
        n_kv,
    )
    x = random(BATCH, TQ, D_MODEL, seed=20)
    normed = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm
    angles = torch.outer(torch.arange(TQ), 1e4 ** (-torch.arange(0, d, 2).double() / d))
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def turned(name: str, n: int) -> Tensor:
        heads = (normed @ state[f"layers.1.attention.{name}.weight"].T).view(BATCH, TQ, n, d)
        pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(3).transpose(1, 2)

    k = turned("wk", n_kv).repeat_interleave(n_heads // n_kv, 1)
    theirs = (turned("wq", n_heads) @ k.mT / d**0.5).softmax(-1)
    run = from_weights(weights, batch_of(BATCH, TQ), None, [], (), Inputs(x))
    close(run.result.attention[0], theirs, 1e-6)


# ── attnviz's own ────────────────────────────────────────────────────────────────────────────

OWN = AttentionConfig(16, 4, 6, 5, 2, positions="rope", dtype="float64", seed=3)
WORDS = ("[PAD]", *"abcdef")


def own_layers(n: int, config: AttentionConfig = OWN) -> list[MultiHeadAttention]:
    from dataclasses import replace

    return [MultiHeadAttention(replace(config, seed=i)) for i in range(n)]


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("n", [1, 3])
def test_own_layers_come_back_and_run_one_after_the_other(n: int, cross: bool) -> None:
    layers, table = own_layers(n), random(7, 16, seed=8)
    path = Path("a.safetensors")
    save_layers(path, layers, table, WORDS, unembedding=table, notes={"made": "by hand"})
    first = path.read_bytes()
    save_layers(path, layers, table, WORDS, unembedding=table, notes={"made": "by hand"})
    assert path.read_bytes() == first
    weights = opened(path)
    assert (len(weights.found), weights.vocabulary, weights.notices) == (n, WORDS, ())
    assert weights.config == OWN.__class__(**{**OWN.as_dict(), "seed": 0})
    queries = make_batch([tuple("abcab"), tuple("fe")], WORDS)
    keys = make_batch([tuple("fed"), tuple("abc")], WORDS) if cross else None
    source = queries if keys is None else keys
    rules = [masks.rule("padding", source, source)]
    run = from_weights(weights, queries, keys, rules, ["output"])
    x = table[torch.from_numpy(queries.ids)]
    y = None if keys is None else table[torch.from_numpy(keys.ids)]
    built = masks.build(rules, 2, 4, queries.width, source.width)
    allowed = None if built is None else torch.from_numpy(built)
    with torch.no_grad():
        for i, layer in enumerate(layers):
            x, expected = layer(x, y, allowed=allowed)
            close(run.result.attention[i], expected, 1e-12)
            close(run.result.kept["output"][i], x, 1e-12)
    assert run.result.n_layers == n
    assert [step.name for step in run.steps].count("weights") == 1


def test_one_of_own_layers_and_the_nearest_where_there_is_none() -> None:
    path = Path("a.safetensors")
    save_layers(path, own_layers(12))
    assert opened(path, prefix="layers.11").number == 11
    assert len(opened(path, prefix="layers").found) == 12
    with pytest.raises(InputError) as caught:
        opened(path, prefix="layer.11")
    assert str(caught.value) == (
        f"--weights-prefix layer.11: no layer of {path} is there; it has layers.11, layers.1, "
        "layers.10, layers.0, layers.2, layers.3 and 6 more"
    )


def test_every_field_of_a_configuration_comes_back() -> None:
    variant = Variant(
        norm="before",
        rms_norm=True,
        eps=1e-3,
        scaled=False,
        rotary=Rotary(500.0, 4, True, 8.0, 64, 0.5, 3.0),
        buckets_both_ways=False,
        furthest=64,
        zero_key=True,
    )
    config = AttentionConfig(16, 4, 6, 5, 2, "rope", 0, "float64", variant=variant)
    assert AttentionConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    weights = {k: v for k, v in own_layers(1)[0].state_dict().items() if k != "norm.bias"}
    weights |= {"norm_q.weight": random(6), "norm_k.weight": random(6)}
    weights |= {"bias_k": random(12), "bias_v": random(10), "distances.weight": random(8, 4)}
    layer = MultiHeadAttention(config, weights)
    save_layers(Path("a.safetensors"), [layer])
    back = opened(Path("a.safetensors"))
    assert back.config == config
    (loaded,) = back.load()
    assert loaded.state_dict().keys() == layer.state_dict().keys()
    x = random(BATCH, TQ, 16, seed=4)
    with torch.no_grad():
        for mine, theirs in zip(loaded(x), layer(x), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('{"d_model": 16}', "the layer's configuration has no n_heads, d_k, d_v"),
        ("[1]", "the layer's configuration is not a JSON object"),
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (
            {"n_heads": "4"},
            "the layer's configuration has n_heads = 4; int is expected",
        ),
        (
            {"evil": 1},
            "the layer's configuration has an unknown field 'evil'; a newer attnviz may know it",
        ),
        ({"variant": {"norm": "x"}}, "norm is 'x'; it must be one of after, before, queries, none"),
        ({"variant": {"eps": -1}}, "eps is -1; a number of at least 0 is expected"),
        ({"variant": {"furthest": 1}}, "furthest is 1; at least 2 is expected"),
        ({"variant": {"d_key": -3}}, "d_key is -3; it must be at least 1"),
        ({"variant": {"rotary": {"dim": 3}}}, "rotary dim is 3; it must be even, as pairs are turned"),
        ({"variant": {"rotary": {"base": 0}}}, "rotary base is 0; a number above 0 is expected"),
        (
            {"variant": {"rotary": {"original_length": 8, "fast": 0.5}}},
            "rotary fast is 0.5; it must be above slow, 1.0",
        ),
        ({"variant": {"rotary": {"dim": 8}}}, "rope turns 8 numbers of each head, which has d_k 6"),
    ],
)  # fmt: skip
def test_metadata_that_is_wrong(change: Any, message: str) -> None:
    path = Path("a.safetensors")
    save_layers(path, own_layers(1))
    text = change if isinstance(change, str) else json.dumps({**OWN.as_dict(), **change})
    save_file(load_file(path), path, metadata={"attnviz.layer": text})
    with pytest.raises(InputError) as caught:
        opened(path)
    assert str(caught.value) == f"{path}: its metadata attnviz.layer is wrong: {message}"


def test_an_odd_width_cannot_be_turned() -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(15, 3, 5, 5, positions="rope")
    assert str(caught.value) == (
        "d_k 5 is odd, and rope turns pairs of numbers; use --d-k 6, or other --positions"
    )


def test_vocabularies_that_do_not_fit() -> None:
    path, layers, table = Path("a.safetensors"), own_layers(1), random(7, 16)
    with pytest.raises(InputError) as caught:
        save_layers(path, layers, Embedding(OWN, 7), WORDS[:-1])
    assert str(caught.value) == "the embedding has 7 rows for 6 tokens; one each is expected"
    save_layers(path, layers, table, WORDS)
    tensors, config = load_file(path), json.dumps(OWN.as_dict())
    for text, message in (
        ('["a"]', "its vocabulary has 1 different tokens for 7 rows of the embedding"),
        ('["a","a","b","c","d","e","f"]', "its vocabulary has 6 different tokens for 7 rows of the embedding"),
        ("{}", "its metadata attnviz.vocabulary is no JSON list of tokens"),
        ("[1", "its metadata attnviz.vocabulary is no JSON list of tokens"),
    ):  # fmt: skip
        save_file(tensors, path, {"attnviz.layer": config, "attnviz.vocabulary": text})
        with pytest.raises(InputError) as caught:
            opened(path)
        assert str(caught.value) == f"{path}: {message}"


def test_layers_that_cannot_be_one_stack() -> None:
    path = Path("a.safetensors")
    save_layers(
        path, [*own_layers(1), *own_layers(1, AttentionConfig(16, 4, 6, 5, dtype="float64"))]
    )
    with pytest.raises(InputError) as caught:
        opened(path)
    assert str(caught.value) == (
        f"{path}: layers 0 and 1 differ in their sizes; --weights-prefix picks one"
    )
    tensors = load_file(path)
    save_file(tensors, path, {"attnviz.layers": json.dumps([OWN.as_dict()] * 3)})
    assert opened(path, prefix="layers.0").config.n_kv_heads == 2
    save_file(tensors, path, {"attnviz.layer": json.dumps(OWN.as_dict())})
    with pytest.raises(InputError) as caught:
        opened(path)
    assert str(caught.value) == f"{path}: its metadata has 1 configurations for 2 layers"


# ── what differs, and what is asked for ──────────────────────────────────────────────────────


def said(act: Callable[[], object], path: Path) -> str:
    with pytest.raises((InputError, ConfigError)) as caught:
        act()
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"W_V.weight": None, "W_V.bias": None}, "FILE has no known layout; the nearest is that of W_Q W_K W_V: missing W_V.weight"),
        ({"W_X.weight": random(3)}, "FILE has no known layout; the nearest is that of W_Q W_K W_V: unexpected W_X.weight"),
        ({"W_V.weight": None, "W_W.weight": random(33, 17)}, "FILE has no known layout; the nearest is that of W_Q W_K W_V: missing W_V.weight; unexpected W_W.weight"),
        ({"W_Q.weight": random(24)}, "FILE: W_Q.weight has shape [24]; a matrix is expected"),
        ({"W_Q.weight": random(25, 17)}, "FILE: W_Q gives 25 numbers, which 3 heads (--n-heads) do not divide: 25 = 3·8 + 1"),
        ({"W_K.weight": random(20, 17)}, "FILE: with 3 heads, d_k is 8, which does not divide the 20 numbers that W_K gives"),
        ({"W_V.weight": random(31, 17)}, "FILE: W_V gives 31 numbers, which 3 heads cannot share"),
        ({"W_Q.bias": random(7)}, "FILE: W_Q.bias has shape [7]; [24] is expected"),
        ({"fc.weight": random(17, 32)}, "FILE: fc.weight has shape [17, 32]; [17, 33] is expected"),
    ],
)  # fmt: skip
def test_names_and_shapes_that_do_not_fit(change: dict, message: str) -> None:
    path = Path("a.pt")
    state = {**seed_state(), **change}
    torch.save({name: value for name, value in state.items() if value is not None}, path)
    assert said(lambda: opened(path, n_heads=3).load(), path) == message


def test_a_saved_run_is_no_file_of_weights() -> None:
    save_file({"attention": random(1, 1, 1, 1, 1)}, Path("a.safetensors"), {"attnviz": "{}"})
    path = Path("a.safetensors")
    expected = "FILE is a saved run, not weights: attnviz render draws it"
    assert said(lambda: opened(path), path) == expected


def test_hostile_names_are_shown_escaped() -> None:
    path = Path("a.safetensors")
    state = seed_state()
    odd = "[/red]\x1b[31m\n<b>.layer"
    save_file({f"{odd}.{name}": value for name, value in state.items()}, path)
    weights = opened(path, n_heads=3)
    run = from_weights(weights, batch_of(1, 2), inputs=Inputs(random(1, 2, 17)))
    assert run.result.source.isprintable()
    assert "[/red]\\x1b[31m\\n<b>.layer" in run.result.source
    save_file({f"{i}{odd}.{n}": v + i for i in range(2) for n, v in state.items()}, path)
    assert said(lambda: opened(path), path) == (
        "FILE holds 2 layers; --weights-prefix picks one of 0[/red]\\x1b[31m\\n<b>.layer, "
        "1[/red]\\x1b[31m\\n<b>.layer"
    )


def test_names_of_no_layout() -> None:
    path = Path("a.safetensors")
    save_file({"query_proj.weight": random(3), "key_proj.weight": random(3)}, path)
    assert said(lambda: opened(path), path).startswith(
        "FILE has no known layout; the nearest is that of "
    )
    assert said(lambda: opened(path), path).endswith(
        "; the file has key_proj.weight, query_proj.weight"
    )
    save_file({}, path)
    assert said(lambda: opened(path), path) == ("FILE has no known layout; it holds no tensors")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "FILE does not say how many heads share the 24 numbers of a query: give --n-heads (2, 3, 4, 6, 8, 12 would do)"),
        ({"n_heads": 3, "d_k": 7}, "FILE: --n-heads says 3 heads and --d-k 7 numbers a head, 3·7 = 21, but W_Q gives 24"),
        ({"d_k": 7}, "FILE: W_Q gives 24 numbers, which 7 numbers a head (--d-k) do not divide: 24 = 7·3 + 3"),
        ({"n_heads": 0}, "--n-heads is 0; it must be at least 1"),
        ({"n_heads": 3, "n_kv_heads": 2}, "FILE: --n-kv-heads says 2 key/value heads; W_K has 3, 24 numbers of 8 each"),
        ({"n_heads": 3, "zero_attn": True}, "--add-zero-attn goes with torch's layers; this is W_Q W_K W_V's"),
        ({"n_heads": 3, "norm_first": True}, "--norm-first goes with nn.Transformer's layers, not W_Q W_K W_V"),
        ({"n_heads": 3, "device": "mps"}, None),
    ],
)  # fmt: skip
def test_what_is_asked_for_has_to_fit(asked: dict, message: str | None) -> None:
    path = Path("a.pt")
    torch.save(seed_state(), path)
    found = said(lambda: opened(path, **asked), path)
    if message is None:
        message = f"--device mps is not on this machine; torch {torch.__version__} finds cpu"
    assert found == message


def test_heads_by_their_width_and_positions_of_ones_own() -> None:
    path = Path("a.pt")
    torch.save({**seed_state(), "W_V.weight": random(30, 17), "W_V.bias": random(30)}, path)
    config = opened(path, d_k=4, positions="alibi", dtype="float32").config
    assert (config.n_heads, config.d_k, config.d_v) == (6, 4, 5)
    assert (config.positions, config.dtype) == ("alibi", "float32")


def test_own_names_without_metadata_need_the_number_of_heads() -> None:
    path = Path("a.safetensors")
    save_file(own_layers(1, AttentionConfig(16, 4, 6, 5, dtype="float64"))[0].state_dict(), path)
    config = opened(path, n_heads=4).config
    assert (config.n_heads, config.d_k, config.d_v, config.positions) == (4, 6, 5, "none")
    assert said(lambda: opened(path), path).startswith("FILE does not say how many heads share")


def test_layers_whose_tensors_are_incomplete() -> None:
    path, own = Path("a.safetensors"), own_layers(1)[0]
    metadata = {"attnviz.layer": json.dumps({**OWN.as_dict(), "positions": "relative"})}
    save_file(own.state_dict(), path, metadata)
    assert said(lambda: opened(path).load(), path) == (
        "FILE: relative positions need a table of distances, which is not in the file"
    )
    save_file({**own.state_dict(), "bias_k": random(12)}, path)
    assert said(lambda: opened(path, n_heads=4).load(), path) == (
        "FILE has one of bias_k and bias_v; both or none are expected"
    )
    save_file({"qkv.weight": random(16, 7), "proj.weight": random(7, 5)}, path)
    assert said(lambda: opened(path), path) == (
        "FILE: qkv.weight gives 16 numbers; a third each for q, k and v are expected"
    )


def test_own_metadata_and_flags_that_contradict_it() -> None:
    path = Path("a.safetensors")
    save_layers(path, own_layers(1))
    for asked, message in (
        ({"n_heads": 8}, "FILE: its metadata says 4 heads, --n-heads says 8"),
        ({"d_k": 8}, "FILE: its metadata says 6 numbers a head, --d-k says 8"),
        ({"positions": "none"}, "--positions none, but the layers of FILE have rope; leave it out"),
        (
            {"zero_attn": True},
            "--add-zero-attn goes with torch's layers; FILE describes its own",
        ),
    ):
        assert said(lambda asked=asked: opened(path, **asked), path) == message  # type: ignore[misc]


def test_halves_are_computed_in_full_unless_told() -> None:
    path = Path("a.safetensors")
    save_file({name: value.bfloat16() for name, value in seed_state().items()}, path)
    weights = opened(path, n_heads=3)
    assert weights.config.dtype == "float32"
    assert weights.notices == (
        "bfloat16 weights are computed in float32, which holds them exactly; "
        "--dtype bfloat16 computes in their own type",
    )
    assert opened(path, n_heads=3, dtype="bfloat16").notices == ()


def test_a_key_of_the_layers_own_wants_the_padding_first() -> None:
    module = nn.MultiheadAttention(D_MODEL, 3, add_zero_attn=True, dtype=torch.float64)
    torch.save(module.state_dict(), Path("a.pt"))
    weights = opened(Path("a.pt"), n_heads=3, zero_attn=True)

    def run(side: str) -> Ran:
        batch = make_batch([tuple("abc"), tuple("b")], pad_side=side)
        inputs = Inputs(random(2, 3, D_MODEL))
        return from_weights(weights, batch, None, [masks.rule("padding", batch, batch)], (), inputs)

    with pytest.raises(InputError) as caught:
        run("right")
    assert str(caught.value) == (
        "the layer has a key of its own after the last token, and padding would stand between "
        "them; --pad-side left puts the padding first"
    )
    result = run("left").result
    assert result.key_tokens == (("a", "b", "c", "[zero]"), ("[PAD]", "[PAD]", "b", "[zero]"))
    assert result.key_lengths.tolist() == [4, 2]
    assert result.allowed[0, 1, 0].tolist() == [[False, False, True, True]] * 3
