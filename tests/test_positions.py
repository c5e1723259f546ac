"""Rotary positions, ALiBi and T5's buckets: by hand, and as transformers has them."""

from __future__ import annotations

from math import cos, sin

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnviz.config import Rotary
from attnviz.positions import (
    alibi,
    alibi_slopes,
    distance_buckets,
    distances,
    rotary_rates,
    rotated,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# ── rotary positions ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("dim", [0, 4])
def test_pairs_are_turned_by_hand(neighbours: bool, dim: int) -> None:
    x, places = random(2, 3, 5, 6), torch.tensor([[0, 1, 2, 3, 9], [-2, -1, 0, 1, 2]])
    got = rotated(x, places, Rotary(base=100.0, dim=dim, neighbours=neighbours)).numpy()
    expected = x.numpy().copy()
    width = dim or 6
    for b in range(2):
        for t in range(5):
            for i in range(width // 2):
                one, two = (2 * i, 2 * i + 1) if neighbours else (i, i + width // 2)
                angle = places[b, t].item() * 100.0 ** (-2 * i / width)
                p, q = x[b, :, t, one].numpy(), x[b, :, t, two].numpy()
                expected[b, :, t, one] = p * cos(angle) - q * sin(angle)
                expected[b, :, t, two] = q * cos(angle) + p * sin(angle)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


def test_halves_are_turned_as_in_transformers_llama() -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=24, num_attention_heads=3, rope_theta=500.0)
    q, k, places = random(2, 3, 7, 8), random(2, 3, 7, 8, seed=1), torch.arange(7)[None]
    angles = LlamaRotaryEmbedding(config)(q, places)
    theirs = apply_rotary_pos_emb(q, k, *angles)
    rotary = Rotary(base=config.rope_parameters["rope_theta"])
    for mine, other in zip((rotated(q, places, rotary), rotated(k, places, rotary)), theirs):  # noqa: B905
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_neighbours_are_turned_as_in_transformers_gptj() -> None:
    from transformers.models.gptj.modeling_gptj import (
        apply_rotary_pos_emb,
        create_sinusoidal_positions,
    )

    x, places = random(2, 3, 7, 6), torch.arange(7)[None]
    table = create_sinusoidal_positions(7, 6)[None].double()
    sine, cosine = table.chunk(2, -1)
    theirs = apply_rotary_pos_emb(x.transpose(1, 2), sine, cosine).transpose(1, 2)
    mine = rotated(x, places, Rotary(neighbours=True))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["default", "linear", "llama3"])
def test_rates_are_those_of_transformers(kind: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters: dict[str, object] = {"rope_type": kind, "rope_theta": 10000.0}
    rotary = {"base": 10000.0}
    if kind != "default":
        parameters["factor"], rotary["factor"] = 8.0, 8.0
    if kind == "llama3":
        parameters |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
        parameters["original_max_position_embeddings"] = 512
        rotary |= {"slow": 1.0, "fast": 4.0, "original_length": 512}
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=parameters)
    theirs = LlamaRotaryEmbedding(config).inv_freq.double()
    mine = rotary_rates(Rotary(**rotary), 64)  # type: ignore[arg-type]
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=0)


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-50, 50), st.booleans())
def test_products_depend_on_the_distance_alone(a: int, b: int, shift: int, pairs: bool) -> None:
    q, k, rotary = random(1, 1, 1, 8), random(1, 1, 1, 8, seed=1), Rotary(neighbours=pairs)

    def product(at: int, other: int) -> float:
        turned = (
            rotated(q, torch.tensor([[at]]), rotary),
            rotated(k, torch.tensor([[other]]), rotary),
        )
        return float((turned[0] * turned[1]).sum())

    assert product(a, b) == pytest.approx(product(a + shift, b + shift), abs=1e-9)
    assert product(a, a) == pytest.approx(float((q * k).sum()), abs=1e-9)


# ── ALiBi ────────────────────────────────────────────────────────────────────────────────────


def test_the_slopes_of_the_paper() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(16)[:3].tolist() == [2**-0.5, 2**-1, 2**-1.5]
    assert alibi_slopes(1).tolist() == [2.0**-8]


@pytest.mark.parametrize("heads", [1, 2, 3, 7, 8, 12, 20])
def test_causal_softmax_is_that_of_transformers_bloom(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    n, batch = 7, 2
    theirs = build_alibi_tensor(torch.ones(batch, n), heads, torch.float64)
    theirs = theirs.view(batch, heads, 1, n).expand(-1, -1, n, -1)
    place = torch.arange(n)[None]
    mine = alibi(distances(place, place), heads)
    assert mine.shape == (1, heads, n, n)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    scores = random(batch, heads, n, n)
    for_each = [(scores + b).masked_fill(future, -torch.inf).softmax(-1) for b in (mine, theirs)]
    torch.testing.assert_close(*for_each, rtol=0, atol=1e-6)


def test_a_key_after_the_query_is_as_far_away_as_one_before() -> None:
    bias = alibi(distances(torch.arange(5)[None], torch.arange(5)[None]), 3)
    assert torch.equal(bias, bias.transpose(-2, -1))
    assert bias.diagonal(dim1=-2, dim2=-1).count_nonzero() == 0
    assert bias[0, 0, 0].tolist() == pytest.approx([-j * 2.0**-4 for j in range(5)])


def test_distances_are_one_table_where_all_are_the_same() -> None:
    padded = torch.tensor([[0, 1, 2], [-1, 0, 1]])
    assert distances(padded, padded).tolist() == [[[0, 1, 2], [-1, 0, 1], [-2, -1, 0]]]
    apart = distances(padded, torch.tensor([[0, 1]]))
    assert apart.tolist() == [[[0, 1], [-1, 0], [-2, -1]], [[1, 2], [0, 1], [-1, 0]]]


# ── T5's table ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (32, 20), (8, 64), (16, 1000)])
def test_buckets_are_those_of_transformers(both_ways: bool, buckets: int, furthest: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    apart = torch.arange(-1200, 1201)
    theirs = T5Attention._relative_position_bucket(apart, both_ways, buckets, furthest)
    assert torch.equal(distance_buckets(apart, buckets, furthest, both_ways), theirs)
