"""Architectures read from config.json, against counts that transformers made once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from attnviz.architectures import (
    KINDS,
    LARGEST_FILE,
    Architecture,
    CacheRow,
    LayerKind,
    from_dict,
    read_architecture,
)
from attnviz.errors import ConfigError, InputError
from attnviz.sources.from_architecture import (
    SHADOW_SIZES,
    ArchitectureLayer,
    architecture_steps,
)
from attnviz.trace import STEP_KINDS, Step

DATA = Path(__file__).parent / "data" / "shapes" / "architectures.json"
CASES = {case["name"]: case for case in json.loads(DATA.read_text(encoding="utf-8"))["cases"]}


def architecture(name: str) -> Architecture:
    return from_dict(CASES[name]["config"], name)


def axes_of(steps: tuple[Step, ...]) -> dict[str, str]:
    return {step.name: " ".join(step.axes) for step in steps}


def norm_parameters(found: Architecture) -> int:
    """Numbers of the norms before or after an attention, or of both."""
    each = found.d_model * (2 if found.norm == "LayerNorm" else 1)
    return each * (2 if found.norm_at == "both" else 1)


# ── against transformers ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CASES)
def test_layers_and_parameters_are_those_that_transformers_counts(name: str) -> None:
    found, truth = architecture(name), CASES[name]["truth"]
    counted = {
        kind.name: {
            "count": kind.count,
            "window": kind.window,
            "parameters": found.attention_parameters,
            "norm_parameters": norm_parameters(found),
        }
        for kind in found.kinds
    }
    assert counted == truth["kinds"]
    assert found.all_attention_parameters == truth["all_parameters"]


@pytest.mark.parametrize("name", [name for name in CASES if "cache_bytes" in CASES[name]["truth"]])
def test_cache_is_what_the_library_keeps(name: str) -> None:
    found, truth = architecture(name), CASES[name]["truth"]
    rows = found.cache(2, "float32", batch=2, source_length=5)
    if found.model_type == "t5":
        assert [row.nbytes for row in rows] == truth["cache_bytes"]
    else:
        assert [sum(row.nbytes for row in rows)] == truth["cache_bytes"]


def test_every_known_kind_is_compared_with_transformers() -> None:
    assert {architecture(name).model_type for name in CASES} == set(KINDS)


# Made once with transformers 5.24: its own attention of each family, tiny, with random weights
# (Gemma's norms stored as 1 + w), on x (and y for T5's cross attention) under a causal mask.
LAYERS = np.load(DATA.with_name("architecture_layers.npz"))


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "gpt2", "bert", "t5"]
)
def test_the_layer_computes_what_transformers_computes(name: str) -> None:
    found = from_dict(json.loads(str(LAYERS[f"{name}/config"])))
    kind = found.kinds[-1]  # T5's cross attention: its table of biases is not followed here
    sizes = {
        "H": found.n_heads,
        "Hkv": found.n_kv_heads,
        "d_k": found.head_dim,
        "d_v": found.head_dim,
        "d_model": found.d_model,
    }
    layer = ArchitectureLayer(found, kind, sizes)
    state = {key: torch.from_numpy(LAYERS[f"{name}/{key}"]) for key in layer.state_dict()}
    layer.load_state_dict(state)
    x, y = torch.from_numpy(LAYERS["x"]), torch.from_numpy(LAYERS["y"])
    if kind.role == "self":
        y, allowed = x, torch.ones(5, 5, dtype=torch.bool).tril()
    else:
        allowed = torch.ones(5, 7, dtype=torch.bool)
    with torch.no_grad():
        output = layer(x, y, allowed[None, None])
    assert np.abs(output.numpy() - LAYERS[f"{name}/output"]).max() < 1e-5


# ── steps ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CASES)
def test_steps_hold_the_parameters_that_the_architecture_counts(name: str) -> None:
    found = architecture(name)
    for kind in found.kinds:
        steps = architecture_steps(found, 2, 5, kind=kind.name)
        table = found.buckets * found.n_heads if kind.role == "self" else 0
        assert sum(step.n_parameters for step in steps) == (
            found.attention_parameters + norm_parameters(found) + table
        )
        for step in steps:
            assert step.name in STEP_KINDS


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("tiny")])
def test_shapes_are_those_of_a_real_run_at_the_real_size(name: str) -> None:
    found = architecture(name)
    for kind in found.kinds:
        sizes = {
            "H": found.n_heads,
            "Hkv": found.n_kv_heads,
            "d_k": found.head_dim,
            "d_v": found.head_dim,
            "d_model": found.d_model,
            "R": found.buckets,
        }
        seen: dict[str, tuple[int, ...]] = {}

        def tap(name: str, axes: str, tensor: torch.Tensor, **rest: object) -> None:
            seen[name] = tuple(tensor.shape)  # noqa: B023 (the layer runs within this turn)

        layer = ArchitectureLayer(found, kind, sizes)
        x, y = torch.zeros(2, 3, found.d_model), torch.zeros(2, 7, found.d_model)
        layer(x, y, torch.ones(2, 1, 3, 7, dtype=torch.bool), tap)
        steps = architecture_steps(found, 2, 3, keys=7, kind=kind.name)
        assert {step.name: step.shape for step in steps} == seen


def test_grouped_heads_show_their_own_axis() -> None:
    steps = architecture_steps(architecture("llama-3.1-8b"), 1, 6)
    axes = axes_of(steps)
    assert axes["q"] == "B H Tq d_k"
    assert axes["k"] == "B Hkv Tk d_k"
    assert axes["v"] == "B Hkv Tk d_v"
    assert axes["k_repeated"] == "B H Tk d_k"
    shapes = {step.name: step.shape for step in steps}
    assert shapes["k"] == (1, 8, 6, 128)
    assert shapes["k_repeated"] == (1, 32, 6, 128)
    assert shapes["k_projected"] == (1, 6, 1024)


def test_ungrouped_heads_have_no_second_name() -> None:
    axes = axes_of(architecture_steps(architecture("llama-2-7b"), 1, 6))
    assert axes["k"] == "B H Tk d_k"
    assert "k_repeated" not in axes


@pytest.mark.parametrize(
    ("name", "kind", "present", "absent"),
    [
        ("qwen3-8b", "global", ["q_normed", "k_normed", "q_rotated"], ["qkv", "projected_normed"]),
        ("gemma-3-4b", "sliding", ["q_normed", "projected_normed"], ["capped"]),
        ("gemma-2-9b", "global", ["capped", "scores", "projected_normed"], ["q_normed", "biased"]),
        ("gpt2", "global", ["qkv", "normed"], ["q_rotated", "output", "k_repeated"]),
        ("phi-4-mini", "sliding", ["qkv", "k_repeated", "q_rotated"], ["q_normed"]),
        ("bert-base", "encoder", ["output"], ["normed", "q_rotated", "qkv"]),
        ("t5-small", "encoder", ["position_bias", "biased"], ["scores", "q_rotated"]),
        ("t5-small", "cross", ["masked_scores"], ["position_bias", "biased", "scores"]),
    ],
)
def test_steps_follow_the_architecture(
    name: str, kind: str, present: list[str], absent: list[str]
) -> None:
    names = {step.name for step in architecture_steps(architecture(name), 2, 6, kind=kind)}
    assert names >= set(present)
    assert not names & set(absent)


def test_a_fused_projection_is_one_matrix_and_three_views() -> None:
    steps = {s.name: s for s in architecture_steps(architecture("gpt2"), 2, 6)}
    assert steps["qkv"].shape == (2, 6, 3 * 768)
    assert steps["qkv"].parameters == (
        ("weight", ("d_qkv", "d_model"), (3 * 768, 768)),
        ("bias", ("d_qkv",), (3 * 768,)),
    )
    for name in ("q_projected", "k_projected", "v_projected"):
        assert steps[name].is_view
        assert not steps[name].is_contiguous
        assert steps[name].n_parameters == 0


def test_flops_of_the_products() -> None:
    steps = {s.name: s for s in architecture_steps(architecture("llama-3.1-8b"), 3, 10)}
    assert steps["q_projected"].matmul_flops == 2 * 3 * 10 * 4096 * 4096
    assert steps["k_projected"].matmul_flops == 2 * 3 * 10 * 4096 * 1024
    assert steps["products"].matmul_flops == 2 * 3 * 32 * 10 * 10 * 128


def test_steps_reach_sizes_that_no_machine_holds() -> None:
    steps = {s.name: s for s in architecture_steps(architecture("llama-3.1-70b"), 8, 10**6)}
    assert steps["weights"].shape == (8, 64, 10**6, 10**6)


def test_steps_refuse_empty_sizes() -> None:
    with pytest.raises(ConfigError, match=r"^queries is 0; it must be at least 1$"):
        architecture_steps(architecture("gpt2"), 1, 0)
    with pytest.raises(ConfigError, match=r"^layer kind is 'x'; it must be one of sliding, global"):
        architecture_steps(architecture("gemma-3-4b"), 1, 5, kind="x")


def test_shadow_sizes_tell_every_axis_apart() -> None:
    assert len(set(SHADOW_SIZES.values())) == len(SHADOW_SIZES)


# ── the cache ────────────────────────────────────────────────────────────────────────────────


def test_cache_of_a_global_model_grows_with_every_token() -> None:
    found = architecture("llama-3.1-8b")
    assert found.cache_bytes_per_token("bfloat16") == 2 * 8 * 128 * 2
    (row,) = found.cache(131072, "bfloat16")
    assert row == CacheRow("global", 32, 131072, 4096, 16 * 2**30)  # the well-known 16 GiB


def test_a_sliding_layer_holds_at_most_its_window() -> None:
    found = architecture("gemma-3-4b")
    sliding, full = found.cache(32768, "bfloat16")
    assert (sliding.kind, sliding.count, sliding.tokens) == ("sliding", 29, 1024)
    assert (full.kind, full.count, full.tokens) == ("global", 5, 32768)
    assert sliding.nbytes == 29 * 1024 * 2 * 4 * 256 * 2
    assert full.nbytes == 5 * 32768 * 2 * 4 * 256 * 2
    short, _ = found.cache(100, "bfloat16")
    assert short.tokens == 100


def test_encoders_keep_nothing_and_cross_layers_keep_the_source() -> None:
    assert architecture("bert-base").cache(512, "float32") == ()
    decoder, cross = architecture("t5-small").cache(20, "float16", batch=3, source_length=500)
    assert (decoder.tokens, cross.tokens) == (20, 500)
    assert cross.nbytes == 3 * 6 * 500 * 2 * 8 * 64 * 2
    assert [row.tokens for row in architecture("t5-small").cache(20, "float16")] == [20, 20]


# ── reading files ────────────────────────────────────────────────────────────────────────────


def test_a_file_or_its_folder(tmp_path: Path) -> None:
    config = CASES["qwen3-8b"]["config"]
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps(config), encoding="utf-8")
    found = read_architecture(tmp_path)
    assert found == read_architecture(tmp_path / "config.json")
    assert (found.model_type, found.longest, found.dtype) == ("qwen3", 40960, "bfloat16")
    assert found.n_layers == 36
    assert found.grouped


def test_a_nested_language_model_is_found() -> None:
    found = architecture("gemma-3-4b")
    assert found.model_type == "gemma3_text"
    assert (found.d_model, found.head_dim, found.dtype) == (2560, 256, "bfloat16")
    bare = {"model_type": "gemma3", "text_config": {"hidden_size": 2560}}
    assert from_dict(bare).model_type == "gemma3_text"
    other = {"model_type": "llava", "text_config": {"model_type": "llama"}}
    assert from_dict(other).model_type == "llama"


def test_unknown_dtypes_are_left_out() -> None:
    assert from_dict({"model_type": "gpt2", "dtype": "int3"}).dtype is None
    assert from_dict({"model_type": "gpt2", "dtype": 3}).dtype is None


KNOWN = ", ".join(KINDS)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "config holds a list of 0; a JSON object is expected"),
        ("x", "config holds a string; a JSON object is expected"),
        (None, "config holds null; a JSON object is expected"),
        (1.5, "config holds a number; a JSON object is expected"),
        (True, "config holds a boolean; a JSON object is expected"),
        ({}, f'config has no "model_type"; known are {KNOWN}'),
        (
            {"model_type": "mamba"},
            f"config: unknown model_type 'mamba'; known are {KNOWN}",
        ),
        (
            {"model_type": ["llama"]},
            f"config: unknown model_type ['llama']; known are {KNOWN}",
        ),
        (
            {"model_type": "a\x1b[31m\n"},
            f"config: unknown model_type 'a\\x1b[31m\\n'; known are {KNOWN}",
        ),
        (
            {"model_type": "llama", "hidden_size": "4096"},
            'config: hidden_size is "4096"; a whole number is expected',
        ),
        (
            {"model_type": "llama", "hidden_size": 4096.0},
            "config: hidden_size is 4096.0; a whole number is expected",
        ),
        (
            {"model_type": "llama", "num_attention_heads": True},
            "config: num_attention_heads is true; a whole number is expected",
        ),
        (
            {"model_type": "llama", "num_attention_heads": 0},
            "config: num_attention_heads is 0; it must be between 1 and 1000000000000",
        ),
        (
            {"model_type": "llama", "hidden_size": 10**15},
            "config: hidden_size is 1000000000000000; it must be between 1 and 1000000000000",
        ),
        (
            {"model_type": "llama", "num_hidden_layers": 10**9},
            "config: num_hidden_layers is 1000000000; at most 100000 are expected",
        ),
        (
            {"model_type": "gpt2", "n_embd": 512, "n_head": 10},
            "config: hidden size 512 is not divisible by 10 heads (512 = 10·51 + 2) "
            "and head_dim is missing",
        ),
        (
            {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 3},
            "config: num_key_value_heads is 3, which does not divide 8 heads; 1, 2, 4, 8 do",
        ),
        (
            {"model_type": "llama", "head_dim": 7},
            "config: rotary positions turn pairs of numbers, and 7 of each head's 7 are to be "
            "turned; an even number is expected",
        ),
        (
            {"model_type": "phi3", "partial_rotary_factor": 0.001},
            "config: rotary positions turn pairs of numbers, and 0 of each head's 96 are to be "
            "turned; an even number is expected",
        ),
        (
            {"model_type": "phi3", "partial_rotary_factor": "half"},
            'config: partial_rotary_factor is "half"; a number above 0, at most 1, is expected',
        ),
        (
            {"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": 2}},
            "config: partial_rotary_factor is 2; a number above 0, at most 1, is expected",
        ),
        (
            {"model_type": "llama", "attention_bias": "yes"},
            'config: attention_bias is "yes"; true or false is expected',
        ),
        (
            {"model_type": "qwen3", "num_hidden_layers": 2, "layer_types": "sliding"},
            "config: layer_types is a string; a list of 2 (one a layer) is expected",
        ),
        (
            {"model_type": "qwen3", "num_hidden_layers": 2, "layer_types": {}},
            "config: layer_types is an object; a list of 2 (one a layer) is expected",
        ),
        (
            {"model_type": "qwen3", "num_hidden_layers": 2, "layer_types": ["full_attention"]},
            "config: layer_types is a list of 1; a list of 2 (one a layer) is expected",
        ),
        (
            {"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["linear_attention"]},
            'config: layer_types[0] is "linear_attention"; '
            "known are sliding_attention, full_attention",
        ),
        (
            {"model_type": "qwen3", "num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
            "config: layer_types names sliding layers, but sliding_window is missing",
        ),
        (
            {"model_type": "bert", "position_embedding_type": "relative_key"},
            'config: position_embedding_type is "relative_key"; only "absolute" is known',
        ),
    ],
)
def test_hostile_configurations_give_one_line(config: object, message: str) -> None:
    with pytest.raises(InputError) as caught:
        from_dict(config)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("content", "ending"),
    [
        (b"", " is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"\xff\xfe", " is not UTF-8 at byte 0; JSON is expected"),
        (b"[" * 10**5, " is not JSON: maximum recursion depth exceeded"),
        (b'{"model_type": ' + b"9" * 5000 + b"}", " is not JSON: Exceeds the limit"),
        (b"[1, 2]", " holds a list of 2; a JSON object is expected"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, ending: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_architecture(path)
    assert ending in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_large_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: no such file or directory$"):
        read_architecture(tmp_path)
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(InputError, match="is larger than 16777216 bytes"):
        read_architecture(path)
    with pytest.raises(InputError, match=r"m.gguf has no config.json in it; run --model reads"):
        read_architecture(tmp_path / "m.gguf")


def test_qwen_and_gemma_rules_without_a_list() -> None:
    kinds = from_dict({"model_type": "qwen2", "use_sliding_window": True}).kinds
    assert kinds == (LayerKind("sliding", 4, window=4096), LayerKind("global", 28))
    assert from_dict({"model_type": "gemma2", "attn_logit_softcapping": None}).cap is False
