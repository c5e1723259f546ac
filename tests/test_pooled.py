"""Long runs as results: their saved form, coarser pixels, windows computed again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from attnviz import masks, pooled
from attnviz.errors import InputError
from attnviz.pooled import PooledResult, part_of
from attnviz.result import Attention
from attnviz.sources.long import gather, real_rows
from attnviz.streaming import LongAttention, pool, window
from attnviz.tokens import SEP, make_batch


def attention(seed: int = 0, side: str = "left", **more: Any) -> tuple[LongAttention, Any]:
    """Two texts of 53 and 41 tokens, padded, causal within segments; 3 heads."""
    tokens = [tuple(SEP if i % 17 == 16 else f"t{i}" for i in range(n)) for n in (53, 41)]
    batch = make_batch(tokens, pad_side=side)
    rules = (masks.padding(batch), masks.causal(batch, batch), masks.segments(batch, batch))
    generator = torch.Generator().manual_seed(seed)
    starts = batch.starts.tolist()
    made = LongAttention(
        torch.randn(2, 3, 53, 7, generator=generator),
        torch.randn(2, 1, 53, 7, generator=generator),
        (*rules, real_rows(batch)),
        query_starts=starts,
        key_starts=starts,
        **more,
    )
    return made, batch


def long_run(pixels: int = 11, keep: bool = True, layers: int = 2, **more: Any) -> PooledResult:
    made = [attention(seed, **more) for seed in range(layers)]
    return gather(
        [pool(one, pixels, top=3, column_sums=True) for one, _ in made],
        [one for one, _ in made] if keep else [],
        made[0][1],
        made[0][1],
        masks=("padding", "causal", "segments"),
        config={"d_model": 21},
        source="two layers by hand",
        trained=False,
        layers=(4, 9)[:layers],
    )


def same(a: PooledResult, b: PooledResult) -> None:
    for name, value in vars(a).items():
        other = getattr(b, name)
        if isinstance(value, np.ndarray):
            assert value.dtype == other.dtype, name
            assert np.array_equal(value, other), name
        elif name in ("statistics", "kept"):
            assert set(value) == set(other)
            assert all(np.array_equal(value[key], other[key]) for key in value), name
        elif name not in ("query_valid",):
            assert value == other, name


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("keep", [True, False])
def test_saved_and_read_again(tmp_path: Path, suffix: str, keep: bool) -> None:
    run = long_run(keep=keep, slopes=torch.rand(3).double(), softcap=5.0)
    path, again = tmp_path / f"run{suffix}", tmp_path / f"again{suffix}"
    pooled.save(run, path)
    pooled.save(run, again)
    assert path.read_bytes() == again.read_bytes()
    assert pooled.is_pooled(path)
    same(run, pooled.load(path))


def test_pixels_of_pixels_are_exact() -> None:
    fine, coarse = long_run(53), long_run(11)
    assert (fine.cells, coarse.cells) == ((1, 1), (5, 5))
    for made in (fine.coarser(5), fine.within(11)):
        assert made.cells == (5, 5)
        assert np.array_equal(made.allowed, coarse.allowed)
        np.testing.assert_allclose(made.mean, coarse.mean, rtol=2e-6, atol=1e-9)
        np.testing.assert_allclose(made.largest, coarse.largest, rtol=1e-6)
    assert coarse.within(11) is coarse


def test_means_of_rows_count_real_rows_that_see() -> None:
    run = long_run()
    for sequence, length in enumerate((53, 41)):
        start, end = run.places(sequence, 0)
        assert (start, end) == (53 - length, 53)
        assert run.query_valid[sequence].sum() == length
        for name, means in run.row_means(sequence).items():
            rows = run.statistics[name][:, sequence, :, start:]
            np.testing.assert_allclose(means, rows.mean(-1, dtype=np.float64), rtol=1e-6)


@pytest.mark.parametrize("side", ["left", "right"])
def test_pixels_as_a_map_know_their_padding(side: str) -> None:
    run = long_run(side=side)
    drawn = run.as_map()
    assert drawn.attention.shape == (2, 2, 3, 11, 11)
    assert drawn.query_tokens[0][:3] == ("0", "5", "10")
    assert drawn.lengths.tolist() == [11, 9]  # 41 tokens at 12 … 52, or at 0 … 40
    assert drawn.layer_numbers == run.layer_numbers == (4, 9)
    assert run.names_layers
    real = drawn.query_valid[1]
    assert not run.allowed[:, 1, 0][:, ~real].any()
    assert run.allowed[:, 1, 0][:, real].any(-1).all()


def test_windows_are_computed_again_from_what_was_kept() -> None:
    run = long_run(slopes=torch.tensor([0.1, 0.2, 0.3]), sinks=torch.tensor([0.0, 1.0, 2.0]))
    part = run.part(range(20, 31), range(13, 29), 1, [(1, 2), (1, 0)])
    made, _ = attention(
        1, slopes=torch.tensor([0.1, 0.2, 0.3]), sinks=torch.tensor([0.0, 1.0, 2.0])
    )
    for head in (0, 2):
        expect = window(made, range(20, 31), range(13, 29), 1, head)
        assert np.array_equal(part.attention[0, 0, head], expect)
        assert np.array_equal(part.allowed[0, 0, head], expect > 0)
    assert not part.attention[0, 0, 1].any()
    assert part.layers == (9,)
    assert part.query_tokens[0] == run.query_tokens[1][20:31]
    assert part.is_part
    assert part.source == "two layers by hand, queries 20:31, keys 13:29"


def test_no_window_without_what_it_is_computed_from() -> None:
    with pytest.raises(InputError) as caught:
        long_run(keep=False).part(range(3), range(3), 0, [(0, 0)])
    assert str(caught.value) == (
        "this long run was saved without its queries and keys; attnviz run … --keep q,k keeps what "
        "its weights can be computed from"
    )


def test_a_part_of_a_whole_map() -> None:
    weights = np.random.default_rng(0).random((2, 3, 5, 7, 11), dtype=np.float32)
    whole = Attention(
        weights,
        weights[:, :, :1] > 0.3,
        (tuple("abcdefg"),) * 3,
        (tuple("hijklmnopqr"),) * 3,
        np.array([7, 7, 7]),
        np.array([11, 11, 11]),
        source="by hand",
    )
    part = part_of(whole, range(2, 5), range(1, 8), 2)
    assert np.array_equal(part.attention[:, 0], weights[:, 2, :, 2:5, 1:8])
    assert np.array_equal(part.allowed[:, 0], whole.allowed[:, 2, :, 2:5, 1:8])
    assert (part.query_tokens, part.key_tokens) == ((tuple("cde"),), (tuple("ijklmno"),))
    assert part.config == {"part": [[2, 5], [1, 8]]}


# ── what does not fit ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"mean": np.zeros((2, 2, 3, 0, 11), np.float32)},
            "mean has shape [2, 2, 3, 0, 11]; [L B H Pq Pk] is expected, none of them 0",
        ),
        ({"largest": np.zeros((2, 2, 3, 11, 12), np.float32)}, "largest does not fit"),
        ({"cells": (4, 5)}, "query_tokens does not fit"),
        ({"cells": (5, 6)}, "key_tokens does not fit"),
        ({"lengths": np.array([53, 54])}, "lengths does not fit"),
        ({"pad_side": "up"}, "pad_side is 'up'; right or left is expected"),
        ({"layers": (1,)}, "layers does not fit"),
        ({"kept": {"q": np.zeros((2, 2, 3, 53, 7))}}, "kept.q does not fit"),
        ({"scale": (1.0,)}, "scale does not fit"),
    ],
)
def test_arrays_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(long_run(), **change)
    full = f"{message} mean [2, 2, 3, 11, 11]" if message.endswith("fit") else message
    assert str(caught.value) == full


def damaged(tmp_path: Path, **changes: Any) -> Path:
    """A saved run whose metadata or arrays are changed; None takes one away."""
    path = tmp_path / "run.safetensors"
    pooled.save(long_run(), path)
    arrays = load_file(path)
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        metadata = json.loads(file.metadata()["attnviz"])
    for name, value in changes.items():
        target = arrays if name in arrays or isinstance(value, np.ndarray) else metadata
        if value is None:
            del target[name]
        else:
            target[name] = value
    save_file(arrays, path, metadata={"attnviz": json.dumps(metadata)})
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "has version 2; this attnviz reads 1"),
        ({"mean": None}, "is not a saved long run: it has no array mean"),
        ({"row.entropy": None}, "is not a saved long run: it has no array row.entropy"),
        ({"extra": np.zeros(3)}, "has an array 'extra' that no saved long run has"),
        ({"near": "many"}, "is not a saved long run: its metadata has no proper near"),
        ({"cells": [1.5, 2]}, "is not a saved long run: its cells and layers are no whole numbers"),
        (
            {"query_tokens": [["\ud800"]]},
            "is not a saved long run: its tokens hold lone surrogates",
        ),
        (
            {"key_tokens": [[1]]},
            "is not a saved long run: its tokens or masks are not lists of strings",
        ),
        ({"format": "attnviz.run"}, "is not a saved long run: its format is not 'attnviz.pooled'"),
    ],
)
def test_files_that_are_not_right(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = damaged(tmp_path, **changes)
    with pytest.raises(InputError) as caught:
        pooled.load(path)
    assert str(caught.value).endswith(message)
    assert pooled.is_pooled(path) == ("format" not in changes)


def test_files_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"nothing")
    (tmp_path / "a.safetensors").write_bytes(b"")
    np.savez(tmp_path / "b.npz", metadata=np.array("[1]"))
    for name in ("a.npz", "a.safetensors", "b.npz", "a.npy", "none.npz"):
        assert not pooled.is_pooled(tmp_path / name)
        with pytest.raises(InputError):
            pooled.load(tmp_path / name)
