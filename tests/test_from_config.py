"""From tokens to a result: the embedding, the layer, what is kept and what is saved."""

from __future__ import annotations

import json
from math import cos, sin, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_pass import from_config
from safetensors import safe_open
from safetensors.torch import load_file

from attnviz import masks
from attnviz.attention import Embedding, MultiHeadAttention
from attnviz.config import DTYPES, AttentionConfig
from attnviz.errors import ConfigError, InputError
from attnviz.positions import sinusoidal
from attnviz.result import KEEPABLE
from attnviz.saved_runs import arrays_of
from attnviz.sources.layer_pass import require_device
from attnviz.sources.saved_layers import save_layers
from attnviz.tokens import make_batch

VOCABULARY = ("[PAD]", "[SEP]", *"abcdefg")
QUERIES = make_batch([tuple("abcde"), tuple("fg")], VOCABULARY)
KEYS = make_batch([tuple("gfedcba"), tuple("abc")], VOCABULARY)
CONFIG = AttentionConfig(17, 3, 11, 13, dtype="float64", seed=4)


# ── positions ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("d_model", [1, 2, 7, 16])
@pytest.mark.parametrize("position", [0, 1, 12, -3, 99_999, 10**9])
def test_sinusoids_are_the_closed_form(d_model: int, position: int) -> None:
    expected = [
        (sin if i % 2 == 0 else cos)(position / 10000 ** (2 * (i // 2) / d_model))
        for i in range(d_model)
    ]
    got = sinusoidal(torch.tensor([position]), d_model)
    assert got.shape == (1, d_model)
    assert got.dtype == torch.float64
    # an angle of 1e9 has an error of 1e9 · 1e-16 before its sine is taken
    assert got[0].tolist() == pytest.approx(expected, abs=1e-12 + abs(position) * 1e-15)


def test_position_zero_is_zeros_and_ones() -> None:
    assert (
        sinusoidal(torch.zeros(2, 3, dtype=torch.long), 4).tolist()
        == [[[0.0, 1.0, 0.0, 1.0]] * 3] * 2
    )


@given(st.integers(0, 500), st.integers(0, 500), st.integers(1, 8))
def test_the_product_of_two_sinusoids_depends_on_their_distance(a: int, b: int, half: int) -> None:
    left, right, apart, zero = sinusoidal(torch.tensor([a, b, abs(a - b), 0]), 2 * half)
    assert (left @ right).item() == pytest.approx((apart @ zero).item(), abs=1e-9)


# ── the embedding ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_embedding_is_a_row_and_its_position(positions: str) -> None:
    config = AttentionConfig(16, 2, 8, 8, positions=positions, dtype="float64")
    embedding = Embedding(config, 9)
    ids, places = torch.tensor([[3, 3, 0]]), torch.tensor([[0, 1, 2]])
    with torch.no_grad():
        x = embedding(ids, places)
    expected = embedding.weight[ids].detach()
    if positions == "sinusoidal":
        expected = expected + sinusoidal(places, 16)
    assert torch.equal(x, expected)
    assert torch.equal(x[0, 0], x[0, 1]) == (positions == "none")


def test_the_table_is_standard_normal_and_apart_from_the_layer() -> None:
    config = AttentionConfig(200, 1, 200, 200)
    table = Embedding(config, 300).weight
    assert table.mean().item() == pytest.approx(0, abs=0.02)
    assert table.std().item() == pytest.approx(1, abs=0.02)
    layer = MultiHeadAttention(config)
    together = torch.stack([table[:200].flatten(), layer.w_q.weight.flatten()])
    assert abs(torch.corrcoef(together)[0, 1].item()) < 0.02


# ── a run ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("cross", [False, True])
def test_kept_tensors_are_those_computed_by_hand(cross: bool) -> None:
    source = KEYS if cross else QUERIES
    rules = [masks.rule("padding", source, source), masks.rule("causal", QUERIES, source)]
    run = from_config(CONFIG, QUERIES, KEYS if cross else None, rules, KEEPABLE)
    w = {name: tensor.numpy() for name, tensor in run.layers[0].state_dict().items()}
    table = Embedding(CONFIG, len(VOCABULARY)).weight.detach().numpy()

    def embedded(ids: np.ndarray) -> np.ndarray:
        angles = np.arange(ids.shape[1])[:, None] / 10000 ** (np.arange(0, 17, 2) / 17)
        places = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(ids.shape[1], -1)
        return table[ids] + places[:, :17]

    x, y = embedded(QUERIES.ids), embedded(source.ids)

    def project(name: str, source: np.ndarray, width: int) -> np.ndarray:
        flat = source @ w[f"{name}.weight"].T + w[f"{name}.bias"]
        return flat.reshape(*flat.shape[:2], 3, width).transpose(0, 2, 1, 3)

    q, k, v = project("w_q", x, 11), project("w_k", y, 11), project("w_v", y, 13)
    scores = q @ k.transpose(0, 1, 3, 2) / sqrt(11)
    i, j = np.ogrid[: QUERIES.width, : source.width]
    allowed = (j <= i) & source.valid[:, None, None, :]
    exponentials = np.where(allowed, np.exp(scores), 0)
    weights = exponentials / exponentials.sum(-1, keepdims=True)
    context = weights @ v
    joined = context.transpose(0, 2, 1, 3).reshape(*x.shape[:2], 39)
    added = x + joined @ w["w_o.weight"].T + w["w_o.bias"]
    normed = (added - added.mean(-1, keepdims=True)) / np.sqrt(added.var(-1, keepdims=True) + 1e-5)

    expected = {
        "attention": weights,
        "q": q,
        "k": k,
        "v": v,
        "scores": scores,
        "context": context,
        "output": normed,
    }
    arrays = arrays_of(run.result)
    assert arrays.keys() == {*expected, "allowed", "lengths", "key_lengths"}
    for name, values in expected.items():
        assert arrays[name].shape == (1, *values.shape), name
        np.testing.assert_allclose(arrays[name][0], values, atol=1e-12, err_msg=name)
    assert np.array_equal(
        run.result.allowed, np.broadcast_to(allowed, (1, 2, 1, *allowed.shape[2:]))
    )


def test_the_facts_of_a_run() -> None:
    run = from_config(CONFIG, QUERIES, KEYS, [masks.rule("window", QUERIES, KEYS, 2)])
    result = run.result
    assert result.masks == ("window 2",)
    assert result.source == "a layer from flags, untrained, seed 4"
    assert not result.trained
    assert result.config == CONFIG.as_dict()
    assert result.query_tokens == QUERIES.padded_tokens
    assert result.key_tokens == KEYS.padded_tokens
    assert result.lengths.tolist() == [5, 2]
    assert result.key_lengths.tolist() == [7, 3]
    assert result.kept == {}
    without = from_config(CONFIG, QUERIES).result
    assert without.allowed.shape == (1, 2, 1, 5, 5)
    assert without.allowed.all()
    assert without.masks == ()


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_gives_the_same_maps_within_its_precision(dtype: str) -> None:
    def attention(name: str) -> np.ndarray:
        config = AttentionConfig.from_sizes(64, 4, dtype=name)
        rules = [masks.rule("padding", QUERIES, QUERIES)]
        return from_config(config, QUERIES, rules=rules).result.attention

    got = attention(dtype)
    assert got.dtype == {"bfloat16": "float32"}.get(dtype, dtype)
    tolerance = {"float64": 0, "float32": 1e-5, "float16": 1e-2, "bfloat16": 0.1}[dtype]
    np.testing.assert_allclose(got, attention("float64"), atol=tolerance)


def test_the_same_config_gives_the_same_bits_and_another_seed_others() -> None:
    first, again = (from_config(CONFIG, QUERIES, KEYS, (), KEEPABLE).result for _ in range(2))
    for name, array in arrays_of(first).items():
        assert array.tobytes() == arrays_of(again)[name].tobytes()
    other = AttentionConfig(17, 3, 11, 13, dtype="float64", seed=5)
    assert not np.allclose(from_config(other, QUERIES, KEYS).result.attention, first.attention)


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_untrained_heads_look_at_something_and_differ(positions: str) -> None:
    config = AttentionConfig.from_sizes(512, 8, positions=positions)
    text = make_batch([tuple(f"t{i}" for i in range(32))])
    result = from_config(config, text, keep=("scores",)).result
    spreads = result.kept["scores"][0, 0].std(axis=(1, 2))
    assert spreads.min() > 1.6
    assert spreads.mean() == pytest.approx(2, abs=0.2)
    heads = result.attention[0, 0]
    assert heads.max(-1).mean() > 6 / 32  # a uniform row has 1/32
    for a in range(8):
        for b in range(a):
            half_of_absolute_difference = np.abs(heads[a] - heads[b]).sum(-1).mean() / 2
            assert half_of_absolute_difference > 0.4  # 0 for equal rows, 1 for disjoint ones


def test_a_batch_with_an_empty_sequence() -> None:
    batch = make_batch([tuple("abcde"), tuple("abcd"), ("a",), ()], VOCABULARY)
    rules = [masks.rule("padding", batch, batch)]
    result = from_config(CONFIG, batch, rules=rules, keep=KEEPABLE).result
    for name, array in arrays_of(result).items():
        assert np.isfinite(array).all(), name
    assert (result.attention[0, 3] == 0).all()
    assert (result.kept["context"][0, 3] == 0).all()
    assert not result.allowed[0, 3].any()


@given(st.permutations(range(4)))
def test_the_order_of_sequences_does_not_matter(order: list[int]) -> None:
    tokens = [tuple("abcde"), tuple("gf"), tuple("c"), ()]

    def attention(sequences: list[tuple[str, ...]]) -> np.ndarray:
        batch = make_batch(sequences, VOCABULARY)
        rules = [masks.rule("padding", batch, batch)]
        return from_config(CONFIG, batch, rules=rules).result.attention[0]

    moved = attention([tokens[i] for i in order])
    np.testing.assert_allclose(moved, attention(tokens)[order], atol=1e-14)


# ── what cannot be ───────────────────────────────────────────────────────────────────────────


def test_a_device_that_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    require_device("cpu")
    for device in ("cuda", "mps"):
        with pytest.raises(ConfigError) as caught:
            from_config(AttentionConfig(8, 2, 4, 4, device=device), QUERIES)
        assert str(caught.value) == (
            f"--device {device} is not on this machine; torch {torch.__version__} finds cpu"
        )
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(ConfigError, match=r" finds cpu, mps$"):
        require_device("cuda")


def test_a_tap_that_no_step_has() -> None:
    with pytest.raises(ConfigError) as caught:
        from_config(CONFIG, QUERIES, keep=("q", "weigths\x1b"))
    assert str(caught.value) == "--keep weigths\\x1b: known are q, k, v, scores, context, output"


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        (make_batch([("a",)], VOCABULARY), "size"),
        (make_batch([("a",), ("b",)], VOCABULARY, pad_side="left"), "pad_side"),
        (make_batch([("a",), ("b",)]), "vocabulary"),
    ],
)
def test_batches_that_do_not_go_together(keys: object, what: str) -> None:
    with pytest.raises(InputError) as caught:
        from_config(CONFIG, QUERIES, keys)  # type: ignore[arg-type]
    assert str(caught.value) == f"the batches of queries and keys differ in {what}"


def test_too_large_a_run_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 1 << 20)
    monkeypatch.setattr("attnviz.attention.MultiHeadAttention", pytest.fail)
    with pytest.raises(InputError) as caught:
        from_config(AttentionConfig.from_sizes(1024, 8), QUERIES)
    assert str(caught.value) == (
        "attention for 2 × 8 heads × 5 queries × 5 keys, d_model 1024, in float32 needs 36 MiB of "
        "memory and 1 MiB are free; give a shorter text, fewer heads or smaller sizes (attnviz "
        "shapes answers for any size)"
    )


# ── the saved layer ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_saved_layer_gives_the_same_output(tmp_path: Path, dtype: str) -> None:
    config = AttentionConfig(17, 3, 11, 13, dtype=dtype, seed=9)
    layer = MultiHeadAttention(config)
    path = tmp_path / "layer.safetensors"
    save_layers(path, [layer])
    saved = load_file(path)
    assert sorted(saved) == sorted(
        f"{part}.{kind}"
        for part in ("w_q", "w_k", "w_v", "w_o", "norm")
        for kind in ("weight", "bias")
    )
    assert saved["w_v.weight"].shape == (39, 17)
    assert saved["w_o.weight"].shape == (17, 39)
    with safe_open(path, framework="pt") as archive:
        assert json.loads(archive.metadata()["attnviz.layer"]) == config.as_dict()
    other = MultiHeadAttention(AttentionConfig(17, 3, 11, 13, dtype=dtype, seed=1))
    x = torch.ones(1, 2, 17, dtype=getattr(torch, dtype))
    with torch.no_grad():
        assert not torch.equal(other(x)[0], layer(x)[0])
        other.load_state_dict(saved)
        assert torch.equal(other(x)[0], layer(x)[0])
    save_layers(tmp_path / "again.safetensors", [layer])
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
