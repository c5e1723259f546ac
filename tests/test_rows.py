"""Layers that run by rows: pooled maps and windows against the same layers with whole maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_pass import OpenedWeights, Ran, from_config, from_weights, of_batches

from attnviz import masks
from attnviz.attention import MultiHeadAttention, untrained
from attnviz.collectors.map_windows import MapWindows
from attnviz.collectors.pooled_maps import PooledMaps, Pooling
from attnviz.config import AttentionConfig, Variant
from attnviz.errors import InputError
from attnviz.full_resolution import part_at_full_resolution
from attnviz.masks import Rule, from_array
from attnviz.result import Attention
from attnviz.sources.from_weights import Asked, open_weights
from attnviz.sources.layer_pass import Inputs
from attnviz.sources.own_layers import LayerSource, ReadingOptions
from attnviz.sources.saved_layers import save_layers
from attnviz.sources.weight_files import open_weight_file
from attnviz.tokens import Batch, make_batch

SIZES: dict[str, Any] = {"d_model": 24, "n_heads": 6, "n_kv_heads": 2, "d_k": 8, "d_v": 5}


def texts(*lengths: int, side: str = "right") -> Batch:
    words = [tuple(f"w{i % 13}" for i in range(n)) for n in lengths]
    return make_batch(words, pad_side=side)


def rules_of(batch: Batch) -> list[Rule]:
    return [masks.rule("padding", batch, batch), masks.rule("causal", batch, batch)]


def pooled_by_hand(result: Attention, cells: int) -> np.ndarray:
    """Means of the allowed weights of real queries, in float64."""
    weights = result.attention.astype(np.float64) * result.query_valid[:, None, :, None]
    allowed = result.allowed & result.query_valid[:, None, :, None]

    def added(x: np.ndarray) -> np.ndarray:
        rows = np.add.reduceat(x, range(0, x.shape[-2], cells), axis=-2)
        return np.asarray(np.add.reduceat(rows, range(0, x.shape[-1], cells), axis=-1))

    return added(weights) / np.maximum(added(allowed.astype(np.int64)), 1)


def by_rows(
    config: AttentionConfig, batch: Batch, keys: Batch | None, rules: list[Rule], collector: Any
) -> Ran:
    source = LayerSource(config, ReadingOptions())
    return of_batches(source, batch, keys, rules, collector=collector)


def run(config: AttentionConfig, batch: Batch, keys: Batch | None = None) -> Attention:
    rules = rules_of(batch) if keys is None else [masks.rule("padding", keys, keys)]
    return by_rows(config, batch, keys, rules, PooledMaps(Pooling(13, top=3), 1)).result


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rope", "alibi"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_layer_from_flags(positions: str, side: str) -> None:
    config = AttentionConfig.from_sizes(**SIZES, positions=positions)
    batch = texts(61, 47, side=side)
    whole = from_config(config, batch, rules=rules_of(batch)).result
    pooled = run(config, batch)
    assert pooled.cells == (5, 5)
    np.testing.assert_allclose(pooled.mean, pooled_by_hand(whole, 5), rtol=0, atol=2e-6)
    assert (pooled.masks, pooled.source) == (whole.masks, whole.source)
    assert (pooled.config, pooled.trained) == (whole.config, whole.trained)
    real = whole.query_valid[:, None, :] & np.ones((1, 2, 6, 61), bool)
    largest = whole.attention.max(-1)
    np.testing.assert_allclose(
        pooled.rows.statistics["largest"][real], largest[real], rtol=0, atol=2e-6
    )


def test_cross_attention() -> None:
    config = AttentionConfig.from_sizes(**SIZES)
    vocabulary = ("[PAD]", "[SEP]", *(f"w{i}" for i in range(13)))
    queries = make_batch([tuple(f"w{i % 13}" for i in range(n)) for n in (61, 30)], vocabulary)
    keys = make_batch([tuple(f"w{i % 7}" for i in range(n)) for n in (40, 43)], vocabulary)
    whole = from_config(config, queries, keys, [masks.rule("padding", keys, keys)]).result
    pooled = run(config, queries, keys)
    assert pooled.is_cross
    assert pooled.cells == (5, 4)
    rows = np.add.reduceat(
        whole.attention.astype(np.float64) * whole.query_valid[:, None, :, None],
        range(0, 61, 5),
        axis=-2,
    )
    sums = np.add.reduceat(rows, range(0, 43, 4), axis=-1)
    np.testing.assert_allclose(pooled.mean * np.maximum(pooled.counts, 1), sums, rtol=0, atol=1e-5)


def saved_stack(path: Path) -> Path:
    layers = [
        MultiHeadAttention(AttentionConfig.from_sizes(**SIZES, seed=seed)) for seed in (0, 1, 2)
    ]
    save_layers(path, layers)
    return path


def test_a_stack_of_layers_each_given_what_the_one_before_made(tmp_path: Path) -> None:
    weights = open_weights(open_weight_file(saved_stack(tmp_path / "stack.safetensors")))
    batch = texts(61, 47)
    generator = torch.Generator().manual_seed(3)
    inputs = Inputs(torch.randn(2, 61, 24, generator=generator))
    whole = from_weights(weights, batch, rules=rules_of(batch), inputs=inputs)
    seen: list[tuple[int, int]] = []
    pooler = PooledMaps(Pooling(13), 2, lambda *at: seen.append(at))
    source = OpenedWeights(weights, inputs)
    done = of_batches(source, batch, None, rules_of(batch), collector=pooler, layers=[0, 2])
    pooled = done.result
    assert pooled.layers == (0, 2)
    by_hand = pooled_by_hand(whole.result, 5)[[0, 2]]
    np.testing.assert_allclose(pooled.mean, by_hand, rtol=0, atol=2e-6)
    assert seen[-1][0] == seen[-1][1]
    names = [step.name for step in done.steps]
    assert [name for name in names if "weights" in name or "scores" in name] == []
    assert names[-1] == "output"
    assert pooled.source == whole.result.source


def test_a_window_of_each_layer(tmp_path: Path) -> None:
    config = AttentionConfig.from_sizes(**SIZES)
    batch = texts(61, 47, side="left")
    whole = from_config(config, batch, rules=rules_of(batch)).result
    windows = MapWindows(lambda q, k: (range(5, q - 20), range(3, k - 1)), 1, [(0, 1), (0, 4)])
    part = by_rows(config, batch, None, rules_of(batch), windows).result
    rows, columns = slice(14 + 5, 61 - 20), slice(14 + 3, 60)
    for head in (1, 4):
        np.testing.assert_allclose(
            part.attention[0, 0, head], whole.attention[0, 1, head, rows, columns], atol=2e-6
        )
        assert np.array_equal(part.allowed[0, 0, head], whole.allowed[0, 1, 0, rows, columns])
    assert part.config["part"] == [[19, 41], [17, 60]]
    assert part.query_tokens == (whole.query_tokens[1][rows],)


def test_what_was_kept_makes_the_window_again() -> None:
    config = AttentionConfig.from_sizes(**SIZES, positions="alibi")
    batch = texts(61)
    pooled = by_rows(
        config, batch, None, rules_of(batch), PooledMaps(Pooling(13, keep=True), 1)
    ).result
    whole = from_config(config, batch, rules=rules_of(batch)).result
    part = part_at_full_resolution(pooled, range(30, 50), range(61), 0, [(0, 5)])
    np.testing.assert_allclose(
        part.attention[0, 0, 5], whole.attention[0, 0, 5, 30:50], rtol=0, atol=2e-6
    )


def test_q_and_k_are_lent_to_a_page_where_they_tell_the_weights() -> None:
    config = AttentionConfig.from_sizes(**SIZES)
    batch = texts(31)
    dense = from_array(np.tri(31, dtype=bool), "tri", 1, 6, 31, 31)
    for rules, kept in (([masks.rule("causal", batch, batch)], True), ([dense], False)):
        pooled = by_rows(config, batch, None, rules, PooledMaps(Pooling(13, lend=True), 1)).result
        assert bool(pooled.kept) == kept


def test_a_mask_that_is_known_cell_by_cell_cannot_be_kept() -> None:
    config = AttentionConfig.from_sizes(**SIZES)
    batch = texts(31)
    dense = from_array(np.tri(31, dtype=bool), "tri", 1, 6, 31, 31)
    with pytest.raises(InputError) as caught:
        by_rows(config, batch, None, [dense], PooledMaps(Pooling(13, keep=True), 1))
    assert str(caught.value) == (
        "--keep q,k: the mask tri would have to be kept as well, whole; draw the part that matters "
        "now: --rows A:B --cols C:D"
    )


TABLE = torch.randn(32, 6, generator=torch.Generator().manual_seed(5))
EXTRA = {
    "bias_k": torch.randn(16, generator=torch.Generator().manual_seed(6)),
    "bias_v": torch.randn(10, generator=torch.Generator().manual_seed(7)),
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("both_ways", [False, True])
def test_a_table_of_distances_by_rows(side: str, both_ways: bool) -> None:
    """T5's table, with distances beyond its last row."""
    variant = Variant(scaled=False, buckets_both_ways=both_ways, furthest=20)
    config = AttentionConfig.from_sizes(**SIZES, positions="none", variant=variant)
    batch = texts(61, 47, side=side)
    weights = {**untrained(config), "distances.weight": TABLE}
    whole, pooled = whole_and_pooled(config, weights, batch)
    np.testing.assert_allclose(pooled.mean, pooled_by_hand(whole, 5), rtol=0, atol=2e-6)


@pytest.mark.parametrize("positions", ["none", "alibi"])
@pytest.mark.parametrize("zero_key", [False, True])
def test_keys_that_are_no_token_s_by_rows(positions: str, zero_key: bool) -> None:
    """They stand at the end, at no distance, and no mask forbids them."""
    config = AttentionConfig.from_sizes(
        **SIZES, positions=positions, variant=Variant(zero_key=zero_key)
    )
    batch = texts(61, 47, side="left")
    whole, pooled = whole_and_pooled(config, {**untrained(config), **EXTRA}, batch)
    names = ("[bias_k]", "[zero]")[: 1 + zero_key]
    assert pooled.key_tokens[0][61:] == whole.key_tokens[0][61:] == names
    np.testing.assert_allclose(pooled.mean, pooled_by_hand(whole, 5), rtol=0, atol=2e-6)
    assert (pooled.attention[:, :, :, :3, -1] > 0).any()


def whole_and_pooled(
    config: AttentionConfig, weights: dict[str, torch.Tensor], batch: Batch
) -> tuple[Attention, Attention]:
    """A layer with these weights, with whole maps and by rows."""
    source = LayerSource(config, ReadingOptions())
    layer = MultiHeadAttention(config, weights)
    source._modules, source.extra_keys = [layer], layer.extra_keys
    rules = rules_of(batch)
    maps = of_batches(source, batch, None, rules).result
    return maps, of_batches(source, batch, None, rules, collector=PooledMaps(Pooling(13), 1)).result


def test_a_table_of_distances_cannot_be_kept() -> None:
    config = AttentionConfig.from_sizes(**SIZES, positions="none")
    source = LayerSource(config, ReadingOptions())
    source._modules = [MultiHeadAttention(config, {**untrained(config), "distances.weight": TABLE})]
    with pytest.raises(InputError) as caught:
        of_batches(source, texts(31), None, [], collector=PooledMaps(Pooling(13, keep=True), 1))
    assert str(caught.value) == (
        "--keep q,k: a table of distances would have to be kept as well; draw the part that "
        "matters now: --rows A:B --cols C:D"
    )


def test_memory_is_asked_for_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 2**20)
    with pytest.raises(InputError) as caught:
        by_rows(AttentionConfig.from_sizes(), texts(9), None, [], PooledMaps(Pooling(64), 1))
    assert str(caught.value).startswith("a long run of 1 × 8 heads × 9 queries × 9 keys needs")
    windows = MapWindows(lambda q, k: (range(q), range(k)), 0, [(0, 0)])
    monkeypatch.setattr(LayerSource, "_require_memory", lambda *_: None)
    with pytest.raises(InputError) as caught:
        by_rows(AttentionConfig.from_sizes(**SIZES), texts(400), None, [], windows)
    assert str(caught.value) == (
        "a window of 400 × 400 weights of each head needs 11.9 MiB of memory and 1 MiB are free; "
        "give fewer rows or columns, or pool the whole: --pool 1024"
    )


def test_the_bytes_asked_for_hold_what_is_made() -> None:
    assert Pooling(100, top=2).bytes_of_maps(3, 1000) == 8 * 10**4 * 4 + 3000 * (32 + 24)
    assert Asked().n_heads is None
