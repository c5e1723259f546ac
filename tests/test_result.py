"""One result, whether its cells are weights or pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pooled_runs import Made, made
from runs_by_hand import HOSTILE, run, uniform

from attnviz.errors import InputError
from attnviz.full_resolution import part_at_full_resolution
from attnviz.result import Attention, batches_of, only_layers, part_of
from attnviz.streaming import window
from attnviz.tokens import SEP

ALL = "[L=1 B=2 H=3 Tq=2 Tk=4]"


def test_positions_and_what_is_valid() -> None:
    right, left = uniform(), uniform(pad_side="left")
    assert right.query_positions.tolist() == [[0, 1], [0, 1]]
    assert left.query_positions.tolist() == [[0, 1], [-1, 0]]
    assert right.query_valid.tolist() == [[True, True], [True, False]]
    assert left.query_valid.tolist() == [[True, True], [False, True]]
    assert left.key_valid.tolist() == [[True] * 4, [False, True, True, True]]
    assert right.key_positions.tolist() == [[0, 1, 2, 3]] * 2
    assert (right.n_layers, right.batch_size, right.n_heads) == (1, 2, 3)
    assert right.is_cross
    assert not run().is_cross


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention": np.ones((3, 2, 4))},
            "attention has shape [3, 2, 4]; [L B H Tq Tk] is expected, none of them 0",
        ),
        (
            {"attention": np.ones((1, 2, 0, 2, 4))},
            "attention has shape [1, 2, 0, 2, 4]; [L B H Tq Tk] is expected, none of them 0",
        ),
        (
            {"attention": np.ones((1, 2, 3, 2, 4), dtype=int)},
            "attention is int64; known are float16, float32, float64",
        ),
        ({"pad_side": "\x1b"}, "pad_side is '\\x1b'; right or left is expected"),
        (
            {"allowed": np.ones((1, 2, 2, 2, 4), dtype=bool)},
            f"allowed does not fit attention {ALL}",
        ),
        ({"allowed": np.ones((1, 2, 1, 2, 4))}, f"allowed does not fit attention {ALL}"),
        ({"query_tokens": (("a", "b"),)}, f"query_tokens does not fit attention {ALL}"),
        ({"key_tokens": (("a",),) * 2}, f"key_tokens does not fit attention {ALL}"),
        ({"lengths": np.array([2, 3])}, f"lengths does not fit attention {ALL}"),
        ({"lengths": np.array([2.0, 1.0])}, f"lengths does not fit attention {ALL}"),
        ({"key_lengths": np.array([-1, 0])}, f"key_lengths does not fit attention {ALL}"),
        ({"key_lengths": np.array([[4, 4]])}, f"key_lengths does not fit attention {ALL}"),
        ({"kept": {"q": np.ones((1, 2, 3, 4, 5))}}, f"q does not fit attention {ALL}"),
        ({"kept": {"scores": np.ones((1, 2, 3, 2))}}, f"scores does not fit attention {ALL}"),
        ({"kept": {"ids": np.ones((2, 2))}}, f"ids does not fit attention {ALL}"),
    ],
)
def test_parts_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        uniform(**changes)
    assert str(caught.value) == message


def test_some_layers_keep_their_numbers() -> None:
    layers = np.random.default_rng(0).random((5, 2, 3, 2, 4))
    q = np.arange(5 * 2 * 3 * 2 * 7.0).reshape(5, 2, 3, 2, 7)
    allowed = np.broadcast_to(np.arange(5)[:, None, None, None, None] > 1, (5, 2, 1, 2, 4))
    every = uniform(attention=layers, allowed=allowed, kept={"q": q})
    assert (every.layer_numbers, every.names_layers) == ((0, 1, 2, 3, 4), True)
    for places in ([3], [1, 2, 3], [4, 0], [0, 2]):
        some = only_layers(every, places)
        assert some.layer_numbers == tuple(places)
        assert some.names_layers
        np.testing.assert_array_equal(some.attention, layers[places])
        np.testing.assert_array_equal(some.allowed, allowed[places])
        np.testing.assert_array_equal(some.kept["q"], q[places])
    assert only_layers(only_layers(every, [1, 2, 3]), [2, 0]).layers == (3, 1)
    assert only_layers(every, [1, 2]).attention.base is layers
    assert not uniform().names_layers


def test_batches_are_those_that_made_the_run() -> None:
    for cross in (False, True):
        result = run(cross=cross)
        queries, keys = batches_of(result)
        assert (keys is queries) is not cross
        assert queries.tokens == (HOSTILE[:5], HOSTILE[2:4])
        assert keys.tokens == ((HOSTILE, ("x",)) if cross else queries.tokens)
        assert queries.padded_tokens == result.query_tokens
        assert keys.padded_tokens == result.key_tokens
        assert (queries.pad_side, keys.pad_side) == ("left", "left")


# ── pixels ───────────────────────────────────────────────────────────────────────────────────


def streamed(pixels: int = 11, keep: bool = True, side: str = "left", **more: Any) -> Made:
    """Two texts of 53 and 41 tokens, padded, causal within segments; two layers of 3 heads."""
    texts = [tuple(SEP if i % 17 == 16 else f"t{i}" for i in range(n)) for n in (53, 41)]
    return made(
        texts,
        layers=2,
        heads=3,
        pixels=pixels,
        rules=("causal", "segments"),
        top=3,
        pad_side=side,
        keep=keep,
        more=more,
        source="two layers by hand",
    )


def pooled(*args: Any, **more: Any) -> Attention:
    return replace(streamed(*args, **more).run, layers=(4, 9))


def test_pixels_of_pixels_are_exact() -> None:
    fine, coarse = pooled(53), pooled(11)
    assert (fine.cells, coarse.cells) == ((1, 1), (5, 5))
    weights = replace(fine, pixels=None, rows=None)
    assert not weights.is_pooled
    assert fine.is_pooled
    for again in (fine.coarser(5), fine.within(11), weights.coarser(5)):
        assert again.cells == (5, 5)
        assert np.array_equal(again.counts, coarse.counts)
        assert np.array_equal(again.allowed, coarse.allowed)
        np.testing.assert_allclose(again.mean, coarse.mean, rtol=2e-6, atol=1e-9)
        np.testing.assert_allclose(again.largest, coarse.largest, rtol=1e-6)
    assert coarse.within(11) is coarse


def test_weights_that_are_pooled_leave_out_what_is_forbidden_and_padding() -> None:
    """Pixels of 2 × 3 weights, by hand."""
    weights = np.random.default_rng(0).random((1, 2, 3, 2, 4))
    allowed = np.ones((1, 2, 1, 2, 4), dtype=bool)
    allowed[0, 0, 0, 0, 1:] = False
    found = uniform(attention=weights, allowed=allowed).coarser(3)
    assert found.attention.shape == (1, 2, 3, 1, 2)
    assert found.counts.tolist() == [[[[[4, 1]]], [[[3, 1]]]]]  # one row of sequence 1 is padding
    first = [weights[0, 0, :, 0, 0], *weights[0, 0, :, 1, :3].T]
    np.testing.assert_allclose(found.mean[0, 0, :, 0, 0], np.mean(first, 0), rtol=1e-6)
    np.testing.assert_allclose(found.largest[0, 0, :, 0, 0], np.max(first, 0), rtol=1e-6)
    np.testing.assert_allclose(found.mean[0, 1, :, 0, 0], weights[0, 1, :, 0, :3].mean(-1))


def test_means_of_rows_count_real_rows_that_see() -> None:
    run = pooled()
    assert run.rows is not None
    for sequence, length in enumerate((53, 41)):
        start, end = run.places(sequence, 0)
        assert (start, end) == (53 - length, 53)
        assert run.query_valid[sequence].sum() == length
        for name, means in run.row_means(sequence).items():
            rows = run.rows.statistics[name][:, sequence, :, start:]
            np.testing.assert_allclose(means, rows.mean(-1, dtype=np.float64), rtol=1e-6)
    assert uniform().row_means(0) == {}


@pytest.mark.parametrize("side", ["left", "right"])
def test_pixels_as_a_map_know_their_padding(side: str) -> None:
    run = pooled(side=side)
    drawn = run.as_map()
    assert drawn.attention.shape == (2, 2, 3, 11, 11)
    assert not drawn.is_pooled
    assert drawn.query_tokens[0][:3] == ("0", "5", "10")
    assert drawn.lengths.tolist() == [11, 9]  # 41 tokens at 12 … 52, or at 0 … 40
    assert drawn.layer_numbers == run.layer_numbers == (4, 9)
    assert run.names_layers
    real = drawn.query_valid[1]
    assert not run.allowed[:, 1, 0][:, ~real].any()
    assert run.allowed[:, 1, 0][:, real].any(-1).all()
    whole = uniform()
    assert whole.as_map() is whole


def test_some_layers_of_pixels() -> None:
    run = pooled()
    some = only_layers(run, [1])
    assert (some.layers, some.cells) == ((9,), (5, 5))
    assert some.rows is not None
    assert run.rows is not None
    assert np.array_equal(some.counts, run.counts[1:])
    assert np.array_equal(some.rows.top_keys, run.rows.top_keys[1:])
    assert np.array_equal(some.rows.statistics["near"], run.rows.statistics["near"][1:])


# ── parts ────────────────────────────────────────────────────────────────────────────────────


def test_windows_are_computed_again_from_what_was_kept() -> None:
    more = {"slopes": torch.tensor([0.1, 0.2, 0.3]), "sinks": torch.tensor([0.0, 1.0, 2.0])}
    run = pooled(**more, softcap=5.0)
    part = part_at_full_resolution(run, range(20, 31), range(13, 29), 1, [(1, 2), (1, 0)])
    layer = streamed(**more, softcap=5.0).layers[1]
    for head in (0, 2):
        expect = window(layer, range(20, 31), range(13, 29), 1, head)
        assert np.array_equal(part.attention[0, 0, head], expect)
        assert np.array_equal(part.allowed[0, 0, head], expect > 0)
    assert not part.attention[0, 0, 1].any()
    assert part.layers == (9,)
    assert part.query_tokens[0] == run.query_tokens[1][20:31]
    assert part.is_part
    assert part.source == "two layers by hand, queries 20:31, keys 13:29"


def test_no_window_without_what_it_is_computed_from() -> None:
    with pytest.raises(InputError) as caught:
        part_at_full_resolution(pooled(keep=False), range(3), range(3), 0, [(0, 0)])
    assert str(caught.value) == (
        "this long run was saved without its queries and keys; attnviz run … --keep q,k keeps what "
        "its weights can be computed from"
    )


def test_a_part_of_a_whole_map() -> None:
    weights = np.random.default_rng(0).random((2, 3, 5, 7, 11), dtype=np.float32)
    whole = Attention(
        weights,
        weights[:, :, :1] > 0.3,
        query_tokens=(tuple("abcdefg"),) * 3,
        key_tokens=(tuple("hijklmnopqr"),) * 3,
        lengths=np.array([7, 7, 7]),
        key_lengths=np.array([11, 11, 11]),
        source="by hand",
    )
    part = part_of(whole, range(2, 5), range(1, 8), 2)
    assert np.array_equal(part.attention[:, 0], weights[:, 2, :, 2:5, 1:8])
    assert np.array_equal(part.allowed[:, 0], whole.allowed[:, 2, :, 2:5, 1:8])
    assert (part.query_tokens, part.key_tokens) == ((tuple("cde"),), (tuple("ijklmno"),))
    assert part.config == {"part": [[2, 5], [1, 8]]}


PIXELS = "[L=2 B=2 H=3 Pq=11 Pk=11]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"largest": np.zeros((2, 2, 3, 11, 12), np.float32)}, "largest"),
        ({"counts": np.zeros((2, 2, 2, 11, 11), np.int64)}, "counts"),
        ({"cells": (4, 5)}, "query_tokens"),
        ({"cells": (5, 6)}, "key_tokens"),
        ({"cells": (0, 5)}, "cells"),
        ({"lengths": np.array([53, 54])}, "lengths"),
        ({"layers": (1,)}, "layers"),
        ({"kept": {"q": np.zeros((2, 2, 3, 52, 7))}}, "q"),
        ({"kept.scale": np.zeros(1)}, "scale"),
        ({"kept.k": np.zeros((2, 2, 2, 53, 11))}, "k"),
        ({"kept.k": np.zeros((2, 2, 3, 53, 7))}, "k"),
        ({"kept.sinks": np.zeros((2, 3), int)}, "sinks"),
        ({"top_keys": np.full((2, 2, 3, 53, 3), 53)}, "top_keys"),
        ({"top_keys": np.full((2, 2, 3, 53, 2), 1)}, "top_weights"),
        ({"statistics": {"entropy": np.zeros((2, 2, 3, 52))}}, "row.entropy"),
    ],
)
def test_pixels_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    run = pooled()
    (name, value), *_ = change.items()
    if name.startswith("kept."):
        change = {"kept": {**run.kept, name.removeprefix("kept."): value}}
    elif name in ("largest", "counts", "cells"):
        change = {"pixels": replace(run.pixels, **change)}
    elif name in ("top_keys", "statistics"):
        change = {"rows": replace(run.rows, **change)}
    with pytest.raises(InputError) as caught:
        replace(run, **change)
    assert str(caught.value) == f"{message} does not fit attention {PIXELS}"
