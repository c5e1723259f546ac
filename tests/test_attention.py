"""The arithmetic of the layer, against computations that do not share its code."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from attnviz.attention import (
    MultiHeadAttention,
    Projection,
    scaled_dot_product_attention,
    untrained,
)
from attnviz.config import DTYPES, AttentionConfig
from attnviz.errors import InputError

# Distinct primes: an axis that is taken for another cannot pass by luck.
B, H, TQ, TK, D_K, D_V, D_MODEL = 2, 3, 5, 7, 11, 13, 17

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
EXACT_DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)

MASKS = ("none", "causal", "padding", "both", "ragged")


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """Standard normal numbers; drawn in float64 so that each dtype gets the same ones."""
    generator = torch.Generator().manual_seed(seed + 1000 * len(shape) + sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def mask(kind: str, batch: int, heads: int, queries: int, keys: int) -> Tensor | None:
    """A mask where every query sees a key, but for "ragged", whose rows 1 and 3 see none."""
    causal = np.tril(np.ones((queries, keys), dtype=bool))
    padding = np.ones((batch, 1, queries, keys), dtype=bool)
    padding[-1, ..., -2:] = False
    ragged = np.ones((batch, heads, queries, keys), dtype=bool)
    ragged[..., 0, 2] = False
    ragged[0, :, 1] = False
    ragged[:, -1, 3] = False
    chosen = {
        "none": None,
        "causal": np.broadcast_to(causal, (batch, 1, queries, keys)),
        "padding": padding,
        "both": padding & causal,
        "ragged": ragged,
    }[kind]
    return None if chosen is None else torch.from_numpy(chosen.copy())


def numpy_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 1 of the paper, cell by cell, in float64, with loops and no matrix product."""
    batch, heads, queries, d_k = q.shape
    keys, d_v = v.shape[2:]
    weights = np.zeros((batch, heads, queries, keys))
    context = np.zeros((batch, heads, queries, d_v))
    for b, h, i in np.ndindex(batch, heads, queries):
        seen = [j for j in range(keys) if allowed is None or allowed[b, h, i, j]]
        scores = {
            j: sum(q[b, h, i, c] * k[b, h, j, c] for c in range(d_k)) / sqrt(d_k) for j in seen
        }
        exponentials = {j: np.exp(score - max(scores.values())) for j, score in scores.items()}
        for j in seen:
            weights[b, h, i, j] = exponentials[j] / sum(exponentials.values())
            context[b, h, i] += weights[b, h, i, j] * v[b, h, j]
    return context, weights


def numpy_layer(
    layer: MultiHeadAttention, x: np.ndarray, y: np.ndarray, allowed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(output, output before residual and LayerNorm, weights): section 3.2.2 head by head."""
    config = layer.config
    w = {name: tensor.double().numpy() for name, tensor in layer.state_dict().items()}

    def of_head(name: str, h: int, width: int, source: np.ndarray) -> np.ndarray:
        rows = slice(h * width, (h + 1) * width)
        return source @ w[f"{name}.weight"][rows].T + w[f"{name}.bias"][rows]

    heads = range(config.n_heads)
    q = np.stack([of_head("w_q", h, config.d_k, x) for h in heads], axis=1)
    k = np.stack([of_head("w_k", h, config.d_k, y) for h in heads], axis=1)
    v = np.stack([of_head("w_v", h, config.d_v, y) for h in heads], axis=1)
    context, weights = numpy_attention(q, k, v, allowed)
    concatenated = np.concatenate([context[:, h] for h in heads], axis=-1)
    projected = concatenated @ w["w_o.weight"].T + w["w_o.bias"]
    added = x + projected
    mean, variance = added.mean(-1, keepdims=True), added.var(-1, keepdims=True)
    normed = (added - mean) / np.sqrt(variance + 1e-5) * w["norm.weight"] + w["norm.bias"]
    return normed, projected, weights


def spread(allowed: Tensor | None) -> np.ndarray | None:
    """A mask in full, `[B H Tq Tk]`."""
    return None if allowed is None else allowed.expand(B, H, TQ, TK).numpy()


def make_layer(dtype: torch.dtype, **sizes: int) -> MultiHeadAttention:
    """A layer whose biases and LayerNorm are random too, so that none can be left out unseen."""
    config = AttentionConfig(
        **{"d_model": D_MODEL, "n_heads": H, "d_k": D_K, "d_v": D_V, **sizes},
        dtype=str(dtype).removeprefix("torch."),
    )
    layer = MultiHeadAttention(config)
    with torch.no_grad():
        for i, (name, parameter) in enumerate(layer.named_parameters()):
            if parameter.ndim == 1:
                parameter.copy_(random(*parameter.shape, seed=i) * 0.1 + (name == "norm.weight"))
    return layer


def assert_close(actual: Tensor, expected: np.ndarray | Tensor, tolerance: float) -> None:
    expected = torch.as_tensor(expected)
    assert actual.shape == expected.shape
    assert (actual.double() - expected.double()).abs().max().item() <= tolerance


# ── scaled dot-product attention ─────────────────────────────────────────────────────────────


@EXACT_DTYPES
@pytest.mark.parametrize("kind", MASKS)
def test_function_is_equation_1(kind: str, dtype: torch.dtype) -> None:
    q, k, v = random(B, H, TQ, D_K), random(B, H, TK, D_K), random(B, H, TK, D_V)
    allowed = mask(kind, B, H, TQ, TK)
    expected_context, expected_weights = numpy_attention(
        q.numpy(), k.numpy(), v.numpy(), spread(allowed)
    )
    context, weights = scaled_dot_product_attention(q.to(dtype), k.to(dtype), v.to(dtype), allowed)
    assert weights.dtype == context.dtype == dtype
    assert_close(weights, expected_weights, TOLERANCE[dtype])
    assert_close(context, expected_context, TOLERANCE[dtype])


@EXACT_DTYPES
@pytest.mark.parametrize("kind", MASKS)
def test_function_is_torchs_own(kind: str, dtype: torch.dtype) -> None:
    q, k, v = (random(B, H, n, d, dtype=dtype) for n, d in ((TQ, D_K), (TK, D_K), (TK, D_V)))
    allowed = mask(kind, B, H, TQ, TK)
    context, weights = scaled_dot_product_attention(q, k, v, allowed)
    expected = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    assert_close(context, expected, TOLERANCE[dtype])
    # values that are the identity make the context the weights themselves
    identity = torch.eye(TK, dtype=dtype).expand(B, H, TK, TK)
    as_context = nn.functional.scaled_dot_product_attention(q, k, identity, attn_mask=allowed)
    assert_close(weights, as_context, TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["none", "causal", "padding", "both"])
def test_function_agrees_with_the_formula_of_a_course_note(kind: str) -> None:
    """The note fills forbidden scores with -1e9: the same where every row has a key."""
    q, k, v = random(B, H, TQ, D_K), random(B, H, TK, D_K), random(B, H, TK, D_V)
    allowed = mask(kind, B, H, TQ, TK)
    hidden = torch.zeros(B, H, TQ, TK, dtype=torch.bool) if allowed is None else ~allowed
    scores = torch.einsum("bhqc,bhkc->bhqk", q, k) / np.sqrt(D_K)
    note_weights = torch.softmax(torch.where(hidden, -1e9, scores), dim=3)
    note_context = torch.einsum("bhqk,bhkc->bhqc", note_weights, v)
    context, weights = scaled_dot_product_attention(q, k, v, allowed)
    assert_close(weights, note_weights, 1e-12)
    assert_close(context, note_context, 1e-12)


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES], ids=str)
def test_rows_with_nothing_to_see_are_zeros(dtype: torch.dtype) -> None:
    q, k, v = (random(B, H, n, d, dtype=dtype) for n, d in ((TQ, D_K), (TK, D_K), (TK, D_V)))
    allowed = mask("ragged", B, H, TQ, TK)
    context, weights = scaled_dot_product_attention(q, k, v, allowed)
    blind = ~allowed.any(-1)
    assert blind[0, 0].tolist() == [False, True, False, False, False]
    assert blind[1, 2].tolist() == [False, False, False, True, False]
    assert weights.isfinite().all()
    assert context.isfinite().all()
    assert (weights[blind] == 0).all()
    assert (context[blind] == 0).all()
    assert (weights[~blind].sum(-1) - 1).abs().max() < 0.02
    torchs = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    assert (torchs[blind] == 0).all()


def test_everything_forbidden_is_all_zeros() -> None:
    q, k, v = random(B, H, TQ, D_K), random(B, H, TK, D_K), random(B, H, TK, D_V)
    context, weights = scaled_dot_product_attention(q, k, v, torch.zeros(TQ, TK, dtype=torch.bool))
    assert weights.count_nonzero() == 0
    assert context.count_nonzero() == 0


def test_a_nan_query_harms_its_own_row_and_no_forbidden_cell() -> None:
    q, k, v = random(B, H, TQ, D_K), random(B, H, TK, D_K), random(B, H, TK, D_V)
    allowed = mask("causal", B, H, TQ, TK)
    clean_context, clean_weights = scaled_dot_product_attention(q, k, v, allowed)
    broken = q.clone()
    broken[1, 2, 3] = torch.nan
    context, weights = scaled_dot_product_attention(broken, k, v, allowed)
    assert weights[1, 2, 3, :4].isnan().all()
    assert (weights[1, 2, 3, 4:] == 0).all()
    assert context[1, 2, 3].isnan().all()
    others = torch.ones(B, H, TQ, dtype=torch.bool)
    others[1, 2, 3] = False
    assert torch.equal(weights[others], clean_weights[others])
    assert torch.equal(context[others], clean_context[others])


def test_an_infinite_value_reaches_those_who_may_see_it_as_what_it_is() -> None:
    q, k = random(1, 1, 3, D_K), random(1, 1, 4, D_K)
    v = torch.ones(1, 1, 4, 2, dtype=torch.float64)
    v[0, 0, 1, 0] = torch.inf
    v[0, 0, 3, 0] = torch.nan  # nobody may see this one
    allowed = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)
    context, _ = scaled_dot_product_attention(q, k, v, allowed)
    assert context[0, 0, :, 0].tolist() == pytest.approx([1.0, np.inf, np.inf])
    assert context[0, 0, :, 1].tolist() == pytest.approx([1.0, 1.0, 1.0])
    without_mask, _ = scaled_dot_product_attention(q, k, v)
    assert without_mask[0, 0, :, 0].isnan().all()


def test_a_float16_product_out_of_range_spoils_its_row_alone() -> None:
    q = torch.full((1, 1, 2, 64), 100.0, dtype=torch.float16)
    q[0, 0, 1] = 0.01
    context, weights = scaled_dot_product_attention(q, torch.full_like(q, 100.0), q)
    assert weights[0, 0, 0].isnan().all()  # 64 · 100 · 100 is more than 65504
    assert weights[0, 0, 1].tolist() == [0.5, 0.5]
    assert context[0, 0, 1].isfinite().all()


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (
            torch.ones(TQ, TK),
            "the mask is float32; bool is expected, True where a query may look: mask == 1 where 1 "
            "means that, mask == 0 where the mask is one to add to the scores",
        ),
        (
            torch.ones(TQ, TK, dtype=torch.int64),
            "the mask is int64; bool is expected, True where a query may look: mask == 1 where 1 "
            "means that, mask == 0 where the mask is one to add to the scores",
        ),
        (
            torch.ones(B, TQ, TK, dtype=torch.bool),
            "the mask has shape [2, 5, 7]; [Tq Tk] or [B H Tq Tk] is expected: "
            "mask[:, None] adds the head axis to [B Tq Tk]",
        ),
        (
            torch.ones(TK, dtype=torch.bool),
            "the mask has shape [7]; [Tq Tk] or [B H Tq Tk] is expected",
        ),
        (
            torch.ones(3, 1, 1, 11, dtype=torch.bool),
            "the mask is [B=3 H=1 Tq=1 Tk=11], the scores are [B=2 H=3 Tq=5 Tk=7]: "
            "B 3 ≠ 2, Tk 11 ≠ 7",
        ),
        (
            torch.ones(TK, TQ, dtype=torch.bool),
            "the mask is [Tq=7 Tk=5], the scores are [Tq=5 Tk=7]: Tq 7 ≠ 5, Tk 5 ≠ 7",
        ),
    ],
)
def test_a_mask_that_does_not_fit_is_named_by_axis(allowed: Tensor, message: str) -> None:
    q, k, v = random(B, H, TQ, D_K), random(B, H, TK, D_K), random(B, H, TK, D_V)
    with pytest.raises(InputError) as caught:
        scaled_dot_product_attention(q, k, v, allowed)
    assert str(caught.value) == message


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v of any small shape, and any mask, in float32."""
    size = st.integers(1, 6)
    batch, heads, queries, keys, d_k, d_v = (draw(size) for _ in range(6))
    seed = draw(st.integers(0, 1000))
    q, k, v = (
        random(batch, heads, n, d, dtype=torch.float32, seed=seed + i)
        for i, (n, d) in enumerate(((queries, d_k), (keys, d_k), (keys, d_v)))
    )
    density = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    mask_heads = draw(st.sampled_from([1, heads]))
    rng = np.random.default_rng(seed)
    allowed = torch.from_numpy(rng.random((batch, mask_heads, queries, keys)) < density)
    return q * draw(st.sampled_from([0.1, 1.0, 30.0])), k, v, allowed


@given(cases())
def test_rows_sum_to_one_or_zero_and_forbidden_weights_are_zero(
    case: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    q, k, v, allowed = case
    context, weights = scaled_dot_product_attention(q, k, v, allowed)
    full = allowed.expand_as(weights)
    sums = weights.double().sum(-1)
    assert ((sums - full.any(-1).double()).abs() <= 1e-6).all()
    assert (weights[~full] == 0).all()
    assert (weights >= 0).all()
    assert context.isfinite().all()


@given(cases(), st.sampled_from([0.0, 1e30, np.nan, np.inf, -np.inf]), st.integers(0, 5))
def test_what_is_under_a_mask_changes_no_bit_of_rows_that_may_not_see_it(
    case: tuple[Tensor, Tensor, Tensor, Tensor], rubbish: float, place: int
) -> None:
    q, k, v, allowed = case
    key = place % k.shape[2]
    clean_context, clean_weights = scaled_dot_product_attention(q, k, v, allowed)
    k, v = k.clone(), v.clone()
    k[:, :, key] = rubbish
    v[:, :, key] = rubbish
    context, weights = scaled_dot_product_attention(q, k, v, allowed)
    unaware = ~allowed.expand_as(weights)[..., key]
    assert torch.equal(weights[unaware], clean_weights[unaware])
    assert torch.equal(context[unaware], clean_context[unaware])


# ── the layer ────────────────────────────────────────────────────────────────────────────────


@EXACT_DTYPES
@pytest.mark.parametrize("kind", MASKS)
def test_layer_is_section_3_2_2(kind: str, dtype: torch.dtype) -> None:
    layer = make_layer(dtype)
    assert layer.config.d_k * layer.config.n_heads != layer.config.d_model
    x, y = random(B, TQ, D_MODEL, dtype=dtype), random(B, TK, D_MODEL, dtype=dtype)
    allowed = mask(kind, B, H, TQ, TK)
    expected, _, expected_weights = numpy_layer(
        layer, x.double().numpy(), y.double().numpy(), spread(allowed)
    )
    with torch.no_grad():
        output, weights = layer(x, y, allowed=allowed)
    assert_close(weights, expected_weights, TOLERANCE[dtype])
    assert_close(output, expected, TOLERANCE[dtype] * 4)  # LayerNorm scales what stands before it


@EXACT_DTYPES
@pytest.mark.parametrize("kind", ["none", "causal", "padding", "both"])
@pytest.mark.parametrize("cross", [False, True])
def test_layer_is_torchs_multihead_attention(kind: str, cross: bool, dtype: torch.dtype) -> None:
    d_model, d_head = 33, 11
    layer = make_layer(dtype, d_model=d_model, d_k=d_head, d_v=d_head)
    torchs = nn.MultiheadAttention(d_model, H, batch_first=True, dtype=dtype).eval()
    with torch.no_grad():
        for parameter, names in ((torchs.in_proj_weight, "weight"), (torchs.in_proj_bias, "bias")):
            parts = [getattr(getattr(layer, part), names) for part in ("w_q", "w_k", "w_v")]
            parameter.copy_(torch.cat(parts))
        torchs.out_proj.weight.copy_(layer.w_o.weight)
        torchs.out_proj.bias.copy_(layer.w_o.bias)
    x = random(B, TQ, d_model, dtype=dtype)
    y = random(B, TK, d_model, dtype=dtype) if cross else x
    allowed = mask(kind, B, H, TQ, y.shape[1])
    # its masks say who may not look, and are split in two
    hidden = {
        "attn_mask": ~mask("causal", B, H, TQ, y.shape[1])[0, 0]
        if kind in ("causal", "both")
        else None,
        "key_padding_mask": ~mask("padding", B, H, TQ, y.shape[1])[:, 0, 0]
        if kind in ("padding", "both")
        else None,
    }
    kept: dict[str, Tensor] = {}

    def tap(name: str, axes: str, tensor: Tensor, **_: object) -> None:
        kept[name] = tensor

    with torch.no_grad():
        output, weights = layer(x, y, allowed=allowed, tap=tap)
        expected, expected_weights = torchs(x, y, y, average_attn_weights=False, **hidden)
        normed = nn.functional.layer_norm(
            expected + x, (d_model,), layer.norm.weight, layer.norm.bias
        )
    assert_close(weights, expected_weights, TOLERANCE[dtype])
    assert_close(kept["projected"], expected, TOLERANCE[dtype])
    assert_close(output, normed, TOLERANCE[dtype] * 4)


def test_self_attention_is_the_default_and_values_default_to_keys() -> None:
    layer = make_layer(torch.float64)
    x, y = random(B, TQ, D_MODEL), random(B, TK, D_MODEL)
    with torch.no_grad():
        assert torch.equal(layer(x)[0], layer(x, x, x)[0])
        assert torch.equal(layer(x, y)[0], layer(x, y, y)[0])
        assert not torch.equal(layer(x, y)[0], layer(x, y, y * 2)[0])


@pytest.mark.parametrize("dtype", [getattr(torch, name) for name in DTYPES], ids=str)
def test_layer_is_finite_in_every_dtype_with_a_blind_row(dtype: torch.dtype) -> None:
    layer = make_layer(dtype)
    x, y = random(B, TQ, D_MODEL, dtype=dtype), random(B, TK, D_MODEL, dtype=dtype)
    with torch.no_grad():
        output, weights = layer(x, y, allowed=mask("ragged", B, H, TQ, TK))
    assert output.dtype == weights.dtype == dtype
    assert output.isfinite().all()
    assert (weights[0, :, 1] == 0).all()


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 3, 2, 5), (7, 1, 1, 1), (5, 1, 5, 5)])
def test_sizes_of_one(sizes: tuple[int, int, int, int]) -> None:
    d_model, n_heads, d_k, d_v = sizes
    layer = make_layer(torch.float64, d_model=d_model, n_heads=n_heads, d_k=d_k, d_v=d_v)
    x = random(1, 1, d_model)
    with torch.no_grad():
        output, weights = layer(x)
    expected, _, _ = numpy_layer(layer, x.numpy(), x.numpy(), None)
    assert weights.tolist() == [[[[1.0]]] * n_heads]  # one key: all the weight
    assert_close(output, expected, 1e-12)


@given(st.permutations(range(4)), st.integers(0, 100))
def test_the_order_of_sequences_does_not_matter(order: list[int], seed: int) -> None:
    layer = make_layer(torch.float64)
    x = random(4, TQ, D_MODEL, seed=seed)
    allowed = torch.from_numpy(np.random.default_rng(seed).random((4, 1, TQ, TQ)) < 0.7)
    with torch.no_grad():
        output, weights = layer(x, allowed=allowed)
        moved_output, moved_weights = layer(x[order], allowed=allowed[order])
    assert_close(moved_weights, weights[order], 1e-14)
    assert_close(moved_output, output[order], 1e-13)


def test_the_layer_holds_no_attention() -> None:
    layer = make_layer(torch.float32)
    before = set(vars(layer))
    with torch.no_grad():
        layer(random(B, TQ, D_MODEL, dtype=torch.float32))
    assert set(vars(layer)) == before
    assert [name for name, _ in layer.named_parameters()] == [
        f"{part}.{kind}"
        for part in ("w_q", "w_k", "w_v", "w_o", "norm")
        for kind in ("weight", "bias")
    ]


# ── untrained numbers ────────────────────────────────────────────────────────────────────────


def test_the_same_seed_gives_the_same_numbers_in_every_dtype() -> None:
    layers = {
        name: MultiHeadAttention(AttentionConfig(D_MODEL, H, D_K, D_V, seed=5, dtype=name))
        for name in DTYPES
    }
    exact = layers["float64"].state_dict()
    for name, layer in layers.items():
        for key, tensor in layer.state_dict().items():
            assert tensor.dtype == getattr(torch, name)
            assert torch.equal(tensor, exact[key].to(tensor.dtype)), (name, key)


def test_another_seed_gives_other_numbers_and_torchs_own_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    one, two, again = (
        MultiHeadAttention(AttentionConfig(D_MODEL, H, D_K, D_V, seed=seed)) for seed in (1, 2, 1)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.w_q.weight, again.w_q.weight)
    assert not torch.equal(one.w_q.weight, two.w_q.weight)
    assert not torch.equal(one.w_q.weight, one.w_k.weight)
    MultiHeadAttention(AttentionConfig(2, 1, 2, 2, seed=2**63 - 1))  # the largest seed


def test_untrained_weights_have_the_spread_that_was_asked_for() -> None:
    drawn = untrained(AttentionConfig(300, 10, 20, 30, dtype="float64"))
    for name, rows, inputs, spread in (
        ("w_q", 200, 300, (2 / 1.5 / 300) ** 0.5),
        ("w_k", 200, 300, (2 / 1.5 / 300) ** 0.5),
        ("w_v", 300, 300, 300**-0.5),
        ("w_o", 300, 300, 300**-0.5),
    ):
        assert drawn[f"{name}.weight"].shape == (rows, inputs)
        assert drawn[f"{name}.weight"].std().item() == pytest.approx(spread, rel=0.02)
        assert drawn[f"{name}.bias"].count_nonzero() == 0


def test_a_projection_is_a_linear_map_with_or_without_a_bias() -> None:
    x, weight, bias = random(4, 7), random(5, 7), random(5)
    with torch.no_grad():
        assert_close(Projection(weight)(x), x @ weight.T, 1e-12)
        assert_close(Projection(weight, bias)(x), x @ weight.T + bias, 1e-12)


# ── grouped key/value heads ──────────────────────────────────────────────────────────────────


def test_grouped_heads_equal_full_heads_with_repeated_weights() -> None:
    config = AttentionConfig(17, 6, 11, 13, n_kv_heads=2, dtype="float64")
    grouped = MultiHeadAttention(config)
    assert sum(p.numel() for p in grouped.parameters()) == config.n_parameters
    full = MultiHeadAttention(AttentionConfig(17, 6, 11, 13, dtype="float64"))
    state = grouped.state_dict()
    for name, width in (("w_k", 11), ("w_v", 13)):
        for part in ("weight", "bias"):
            heads = state[f"{name}.{part}"].unflatten(0, (2, width))
            state[f"{name}.{part}"] = heads[[0, 0, 0, 1, 1, 1]].flatten(0, 1)
    full.load_state_dict(state)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 5, 17, generator=generator, dtype=torch.float64)
    y = torch.randn(2, 7, 17, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        for mine, theirs in zip(grouped(x, y), full(x, y), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
        q, k, v = torch.randn(3, 2, 6, 5, 11, generator=generator, dtype=torch.float64)
        k, v = k[:, :2], v[:, :2]
        repeated = [t.repeat_interleave(3, dim=1) for t in (k, v)]
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        torch.testing.assert_close(
            scaled_dot_product_attention(q, *repeated)[0], theirs, rtol=0, atol=1e-12
        )
