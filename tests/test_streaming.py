"""Long maps in blocks: against the whole map, in float64, by NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnviz import masks
from attnviz.errors import ConfigError, InputError
from attnviz.masks import Rule
from attnviz.result import ROW_STATISTICS
from attnviz.scores import Scores
from attnviz.streaming import (
    Pooled,
    context,
    pool,
    weight_blocks,
    window,
)
from attnviz.streaming.head import Head, Rows, cuts, tiles
from attnviz.streaming.workers import in_order
from attnviz.tokens import SEP, Batch, make_batch

Floats = npt.NDArray[np.float64]


@dataclass
class Whole:
    """The whole map, the way a textbook has it: weights and allowed `[B H Tq Tk]`."""

    weights: Floats
    allowed: npt.NDArray[np.bool_]
    distance: npt.NDArray[np.int64]
    """`[B Tq Tk]`: key position less query position."""
    key_positions: npt.NDArray[np.int64]


def whole(a: Scores) -> Whole:
    batch, heads, queries, keys = a.batch_size, a.n_heads, a.queries, a.keys
    q = a.q.detach().double().numpy()
    k = np.repeat(a.k.detach().double().numpy(), heads // a.k.shape[1], axis=1)
    scale = 1 / np.sqrt(q.shape[3]) if a.scale is None else a.scale
    scores = np.einsum("bhqd,bhkd->bhqk", q, k, optimize=True) * scale
    if a.softcap is not None:
        scores = a.softcap * np.tanh(scores / a.softcap)
    starts = [np.zeros(batch, int) if s is None else s for s in (a.query_starts, a.key_starts)]
    at_q, at_k = (
        np.arange(n) - np.asarray(s)[:, None] for n, s in zip((queries, keys), starts, strict=True)
    )
    distance = at_k[:, None, :] - at_q[:, :, None]
    if a.slopes is not None:
        slopes = a.slopes.double().numpy()
        scores = scores - slopes[None, :, None, None] * np.abs(distance)[:, None]
    built = masks.build(a.rules, batch, heads, queries, keys)
    allowed = np.ones((1, 1, 1, 1), bool) if built is None else built
    allowed = np.broadcast_to(allowed, scores.shape)
    sinks = np.full(heads, -np.inf) if a.sinks is None else a.sinks.double().numpy()
    sinks = sinks[None, :, None]
    scores = np.where(allowed, scores, -np.inf)
    top = np.maximum(scores.max(-1), sinks)
    top = np.where(np.isneginf(top), 0, top)[..., None]
    powers = np.exp(scores - top)
    z = powers.sum(-1, keepdims=True) + np.exp(sinks[..., None] - top)
    weights = np.divide(powers, z, out=np.zeros_like(powers), where=z > 0)
    return Whole(weights, allowed, distance, at_k)


def pooled_by_hand(x: npt.NDArray[Any], cells: tuple[int, int], how: np.ufunc) -> npt.NDArray[Any]:
    along_rows = how.reduceat(x, range(0, x.shape[-2], cells[0]), axis=-2)
    return how.reduceat(along_rows, range(0, x.shape[-1], cells[1]), axis=-1)


def agree(pooled: Pooled, a: Scores, tolerance: float, bits: float) -> None:
    """Every number of `pooled` is that of the whole map; `bits` is allowed to the entropy."""
    expect = whole(a)
    w, allowed = expect.weights, expect.allowed
    count = pooled_by_hand(allowed.astype(np.int64), pooled.cells, np.add)
    assert pooled.allowed.shape[1] in (1, a.n_heads)
    assert np.array_equal(np.broadcast_to(pooled.allowed, count.shape), count)
    mean = pooled_by_hand(w, pooled.cells, np.add) / np.maximum(count, 1)
    np.testing.assert_allclose(pooled.mean, mean, rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        pooled.largest, pooled_by_hand(w, pooled.cells, np.maximum), rtol=0, atol=tolerance
    )

    logs = np.log2(w, out=np.zeros_like(w), where=w > 0)
    apart = np.abs(expect.distance)[:, None]
    first = (expect.key_positions == 0)[:, None, None]
    by_hand = {
        "entropy": -(w * logs).sum(-1),
        "largest": w.max(-1),
        "distance": (w * apart).sum(-1),
        "first": (w * first).sum(-1),
        "previous": (w * ((expect.distance == -1) & (expect.key_positions >= 0)[:, None])[:, None]),
        "self": (w * ((expect.distance == 0) & (expect.key_positions >= 0)[:, None])[:, None]),
        "near": (w * (apart < pooled.near)).sum(-1),
    }
    by_hand["previous"], by_hand["self"] = by_hand["previous"].sum(-1), by_hand["self"].sum(-1)
    slack = {"entropy": bits, "distance": tolerance * a.keys}
    for name, values in by_hand.items():
        np.testing.assert_allclose(
            pooled.statistics[name],
            values,
            rtol=4e-7,
            atol=slack.get(name, tolerance),
            err_msg=name,
        )
    blind = ~allowed.any(-1)
    key = pooled.statistics["largest_key"]
    assert (key == -1)[blind].all()
    assert (key >= 0)[w.max(-1) > 1e-30].all()
    at_key = np.take_along_axis(w, key[..., None].clip(0), -1)[..., 0]
    np.testing.assert_allclose(at_key, w.max(-1) * ~blind, rtol=0, atol=tolerance)

    n = min(pooled.top_keys.shape[-1], a.keys)
    best = -np.sort(-w, axis=-1)[..., :n]
    np.testing.assert_allclose(pooled.top_weights[..., :n], best, rtol=0, atol=tolerance)
    enough = pooled.top_keys >= 0
    assert enough[..., :n][best > 1e-30].all()
    assert (allowed.sum(-1, keepdims=True) > np.arange(pooled.top_keys.shape[-1]))[enough].all()
    at_top = np.take_along_axis(w, pooled.top_keys.clip(0), -1)
    np.testing.assert_allclose(at_top * enough, pooled.top_weights, rtol=0, atol=tolerance)
    if pooled.column_sums is not None:
        np.testing.assert_allclose(
            pooled.column_sums, w.sum(-2), rtol=1e-6, atol=tolerance * np.sqrt(a.queries)
        )


# ── against the whole map ────────────────────────────────────────────────────────────────────


def batches(draw: st.DrawFn, most: int) -> tuple[Batch, Batch]:
    """Queries and keys: texts of some letters and [SEP], padded on one side."""
    size = draw(st.integers(1, 2))
    side = draw(st.sampled_from(["right", "left"]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))

    def one() -> Batch:
        lengths = draw(st.lists(st.integers(0, most), min_size=size, max_size=size).filter(any))
        letters = np.array(["a", "b", "c", "d", SEP])
        texts = [tuple(map(str, rng.choice(letters, n))) for n in lengths]
        return make_batch(texts, pad_side=side)

    queries = one()
    if draw(st.booleans()):
        return queries, queries
    keys = one()
    return queries, keys


@st.composite
def attentions(draw: st.DrawFn) -> Scores:
    queries, keys = batches(draw, 23)
    groups, per_group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    heads, d_k = groups * per_group, draw(st.sampled_from([1, 2, 5, 11]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    n = draw(st.integers(1, 9))
    dense = normal(queries.size, heads, queries.width, keys.width).numpy() > -0.5
    known = [
        masks.rule("padding", keys, keys),
        masks.rule("causal", queries, keys),
        masks.rule("window", queries, keys, n),
        masks.rule("prefix", queries, keys, n),
        masks.rule("segments", queries, keys),
        masks.from_array(dense, "dense", *dense.shape),
        masks.from_array(dense[0, 0], "dense", *dense.shape),
    ]
    strength = draw(st.sampled_from([0.1, 1.0, 30.0, 3000.0]))
    return Scores(
        normal(queries.size, heads, queries.width, d_k) * strength,
        normal(queries.size, groups, keys.width, d_k),
        rules=tuple(draw(st.lists(st.sampled_from(known), max_size=3))),
        scale=draw(st.sampled_from([None, 0.3])),
        softcap=draw(st.sampled_from([None, None, 5.0])),
        slopes=draw(st.sampled_from([None, None, normal(heads).abs()])),
        sinks=draw(st.sampled_from([None, None, normal(heads) * 3])),
        query_starts=list(map(int, queries.starts)),
        key_starts=list(map(int, keys.starts)),
    )


@given(
    attentions(),
    st.integers(1, 30),
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.integers(0, 30),
    st.integers(1, 9),
)
@settings(max_examples=150)
def test_any_sizes_masks_blocks_and_pixels(
    a: Scores, pixels: int, block: tuple[int, int], top: int, near: int
) -> None:
    pooled = pool(a, pixels, top=top, near=near, column_sums=True, block=block)
    agree(pooled, a, tolerance=2e-7, bits=1e-6)  # float64 inside, float32 in what is given back


def text(n: int, *more: int, side: str = "right") -> Batch:
    return make_batch([("a",) * length for length in (n, *more)], pad_side=side)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def big_cases() -> dict[str, Scores]:
    """Thousands of tokens, of odd lengths, a head or two each."""
    one, two = text(4093), text(2111, 1999, side="left")
    pieces = make_batch([tuple(SEP if i % 389 == 388 else "a" for i in range(4093))])
    holes = (random(1999, 2111, seed=5) > 0).numpy()
    starts = list(map(int, two.starts))
    q, k = random(1, 2, 4093, 64), random(1, 1, 4093, 64, seed=1)
    return {
        "causal": Scores(q, k, (masks.rule("causal", one, one),)),
        "window": Scores(q[:, :1], k, (masks.rule("window", one, one, 389),)),
        "segments": Scores(q[:, :1], k, (masks.rule("segments", pieces, pieces),)),
        "prefix": Scores(q[:, :1], k, (masks.rule("prefix", one, one, 1777),)),
        "left padding": Scores(
            random(2, 1, 2111, 32),
            random(2, 1, 2111, 32, seed=1),
            (masks.rule("padding", two, two), masks.rule("causal", two, two)),
            query_starts=starts,
            key_starts=starts,
        ),
        "cross, any mask": Scores(
            random(1, 1, 1999, 64),
            random(1, 1, 2111, 64, seed=1),
            (masks.from_array(holes, "holes", 1, 1, 1999, 2111),),
        ),
        "bfloat16, ALiBi": Scores(
            random(1, 1, 2111, 32, dtype=torch.bfloat16),
            random(1, 1, 2111, 32, seed=1, dtype=torch.bfloat16),
            slopes=torch.tensor([0.03]),
        ),
    }


@pytest.mark.parametrize("name", big_cases())
def test_thousands_of_tokens(name: str) -> None:
    a = big_cases()[name]
    pooled = pool(a, 256, top=3, column_sums=True)
    assert pooled.mean.shape[2:] == (
        -(-a.queries // pooled.cells[0]),
        -(-a.keys // pooled.cells[1]),
    )
    agree(pooled, a, tolerance=1e-6, bits=5e-6)


def test_a_thousand_pixels_of_4096_tokens() -> None:
    tokens = text(4096)
    a = Scores(
        random(1, 1, 4096, 64),
        random(1, 1, 4096, 64, seed=1),
        (masks.rule("causal", tokens, tokens),),
    )
    pooled = pool(a)
    assert (pooled.cells, pooled.mean.shape, pooled.near) == ((4, 4), (1, 1, 1024, 1024), 64)
    agree(pooled, a, tolerance=1e-6, bits=5e-6)


def test_what_is_not_asked_for_is_not_there() -> None:
    pooled = pool(Scores(random(1, 2, 7, 3), random(1, 2, 5, 3)), statistics=False)
    assert pooled.statistics == {}
    assert pooled.top_keys.shape == pooled.top_weights.shape == (1, 2, 7, 0)
    assert pooled.column_sums is None
    assert set(pool(Scores(random(1, 2, 7, 3), random(1, 2, 5, 3))).statistics) == set(
        ROW_STATISTICS
    )


# ── scores beyond a float's range ────────────────────────────────────────────────────────────


def test_rows_whose_scores_lie_far_apart() -> None:
    """Each row is shifted by hundreds of bits, and a key that no sample has is far above."""
    q = torch.ones(1, 1, 600, 2)
    q[0, 0, :, 0] = torch.linspace(-900, 900, 600)
    k = random(1, 1, 700, 2) * 0.1
    k[0, 0, :, 0] = 1.0
    k[0, 0, 333] = torch.tensor([1.0, 400.0])
    a = Scores(q, k, scale=1.0)
    agree(pool(a, 50, top=2, column_sums=True), a, tolerance=2e-5, bits=1e-3)
    full = window(a, range(600), range(700))
    np.testing.assert_allclose(full[:, 333], 1.0, rtol=1e-6)


def test_scores_that_only_underflow() -> None:
    a = Scores(torch.full((1, 1, 5, 1), -1e5), torch.ones(1, 1, 3, 1))
    np.testing.assert_allclose(window(a, range(5), range(3)), 1 / 3, rtol=1e-6)


def test_nan_reaches_the_rows_that_may_see_it_and_no_others() -> None:
    tokens = text(600)
    k = random(1, 1, 600, 8, seed=1)
    k[0, 0, 401, 3] = torch.nan
    a = Scores(random(1, 1, 600, 8), k, (masks.rule("causal", tokens, tokens),))
    weights = window(a, range(600), range(600))
    assert weights[:401].isfinite().all()
    np.testing.assert_allclose(weights[:401].sum(1), 1.0, rtol=1e-6)
    assert weights[401:].isnan().all(1).all()
    entropy = pool(a, 100).statistics["entropy"][0, 0]
    assert np.isfinite(entropy[:401]).all()
    assert np.isnan(entropy[401:]).all()


# ── weights at full resolution ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("threads", [1, 2])
def test_a_window_has_the_bits_of_the_whole(threads: int) -> None:
    tokens = text(1201)
    a = Scores(
        random(1, 2, 1201, 16),
        random(1, 1, 1201, 16, seed=1),
        (masks.rule("causal", tokens, tokens),),
        sinks=torch.tensor([0.5, 2.0]),
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        full = window(a, range(1201), range(1201), h=1)
        np.testing.assert_allclose(full, whole(a).weights[0, 1], rtol=0, atol=1e-6)
        for rows, columns in (
            (range(1), range(1)),
            (range(300, 701), range(99, 1100)),
            (range(1200, 1201), range(1201)),
            (range(256, 512), range(1030, 1031)),
        ):
            part = window(a, rows, columns, h=1)
            assert torch.equal(part, full[rows.start : rows.stop, columns.start : columns.stop])
        for step in (256, 100, 5000):
            blocks = list(weight_blocks(a, h=1, rows=step))
            assert [len(rows) for rows, _ in blocks][:-1] == [step] * (len(blocks) - 1)
            assert torch.equal(torch.cat([weights for _, weights in blocks]), full)
    finally:
        torch.set_num_threads(before)


@given(attentions(), st.data())
def test_windows_of_anything(a: Scores, data: st.DataObject) -> None:
    b, h = data.draw(st.integers(0, a.batch_size - 1)), data.draw(st.integers(0, a.n_heads - 1))
    ranges = []
    for length in (a.queries, a.keys):
        start = data.draw(st.integers(0, length - 1))
        ranges.append(range(start, data.draw(st.integers(start + 1, length))))
    part = window(a, *ranges, b, h)
    expect = whole(a).weights[b, h][
        ranges[0].start : ranges[0].stop, ranges[1].start : ranges[1].stop
    ]
    np.testing.assert_allclose(part, expect, rtol=0, atol=1e-10)
    full = window(a, range(a.queries), range(a.keys), b, h)
    assert torch.equal(full[np.ix_(*ranges)], part)


def test_16384_tokens_every_row_sums_to_1_and_cells_are_exact() -> None:
    length = 16384
    tokens = text(length)
    q, k = random(1, 1, length, 64), random(1, 1, length, 64, seed=1)
    a = Scores(q, k, (masks.rule("causal", tokens, tokens),))
    rng = np.random.default_rng(0)
    rows = np.sort(rng.integers(0, length, 1000))
    columns = rng.integers(0, rows + 1)
    found = np.zeros(1000)
    for block, weights in weight_blocks(a, rows=1024):
        np.testing.assert_allclose(weights.double().sum(1), 1.0, rtol=0, atol=1e-5)
        here = (rows >= block.start) & (rows < block.stop)
        found[here] = weights[rows[here] - block.start, columns[here]]
    scores = q[0, 0, rows].double() @ k[0, 0].double().T / 8
    scores = scores.masked_fill(torch.arange(length) > torch.from_numpy(rows)[:, None], -torch.inf)
    exact = scores.softmax(-1)[np.arange(1000), columns]
    np.testing.assert_allclose(found, exact, rtol=5e-6)


# ── what the weights make of values ──────────────────────────────────────────────────────────


@given(attentions(), st.integers(1, 5))
def test_context_is_weights_times_values(a: Scores, d_v: int) -> None:
    v = torch.randn(a.batch_size, a.k.shape[1], a.keys, d_v, dtype=torch.float64)
    found = context(a, v)
    repeated = v.repeat_interleave(a.n_heads // a.k.shape[1], dim=1).numpy()
    np.testing.assert_allclose(found, whole(a).weights @ repeated, rtol=0, atol=1e-9)


def test_context_of_scores_beyond_a_float_s_range() -> None:
    q = torch.full((1, 1, 300, 1), -1e5)
    v = random(1, 1, 2000, 3)
    found = context(Scores(q, torch.ones(1, 1, 2000, 1)), v)
    np.testing.assert_allclose(found[0, 0, 0], v[0, 0].mean(0), rtol=0, atol=1e-6)


# ── what is not computed ─────────────────────────────────────────────────────────────────────


def test_blocks_that_are_forbidden_whole_are_never_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[int, int, int]] = []
    scores = Head.scores

    def watched(self: Head, rows: Rows, start: int, stop: int, *more: Any) -> torch.Tensor:
        made.append((rows.start, start, stop))
        return scores(self, rows, start, stop, *more)

    monkeypatch.setattr(Head, "scores", watched)
    tokens = text(4096)
    q = random(1, 1, 4096, 8)
    pool(Scores(q, q, (masks.rule("window", tokens, tokens, 64),)), 64, statistics=False)
    assert sorted({row for row, _, _ in made}) == list(range(0, 4096, 256))
    assert all(row - 64 <= start < stop <= row + 256 for row, start, stop in made)
    assert sum(stop - start for _, start, stop in made) <= 4096 + 16 * 64


def test_progress_counts_what_is_computed() -> None:
    tokens = text(1000, 700)
    a = Scores(
        random(2, 3, 1000, 8),
        random(2, 3, 1000, 8),
        (masks.rule("padding", tokens, tokens), masks.rule("causal", tokens, tokens)),
    )
    seen: list[tuple[int, int]] = []
    pool(a, 100, statistics=False, progress=lambda done, total: seen.append((done, total)))
    done, totals = zip(*seen, strict=True)
    assert set(totals) == {done[-1]}
    assert list(done) == sorted(done)
    assert 3 * (1000**2 + 700**2) / 2 < done[-1] < 3 * (1000**2 + 1000 * 700)


def test_rows_that_see_nothing_are_zeros() -> None:
    nobody = Rule("nobody", lambda b, h, q, k: (q > 2) & (k > 99))
    a = Scores(random(1, 1, 5, 3), random(1, 1, 7, 3), (nobody,))
    pooled = pool(a, top=2)
    assert not pooled.mean.any()
    assert not pooled.allowed.any()
    assert (pooled.top_keys == -1).all()
    for name, values in pooled.statistics.items():
        assert (values == (-1 if name == "largest_key" else 0)).all(), name
    assert not window(a, range(5), range(7)).any()


# ── cutting ──────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 99))
def test_cuts_keep_to_pixels(length: int, cells: int, most: int) -> None:
    edges = cuts(length, cells, most)
    assert edges[0] == 0
    assert edges[-1] == length
    for start, stop in pairwise(edges):
        assert 0 < stop - start <= most
        inside = range(start + 1, stop)
        assert start % cells == 0 or not any(edge % cells == 0 for edge in inside)


@given(st.data())
def test_tiles_cover_what_is_seen(data: st.DataObject) -> None:
    length, most = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 20))
    granule = data.draw(st.integers(1, most))
    low = data.draw(st.integers(0, length))
    high = data.draw(st.integers(0, length))
    found = list(tiles((low, high), cuts(length, granule, most), granule))
    covered = [place for start, stop in found for place in range(start, stop)]
    assert covered == sorted(set(covered))
    assert set(range(low, high)) <= set(covered) <= set(range(length))
    assert all(start % granule == 0 for start, _ in found)


# ── workers ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def two_threads() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_jobs_come_back_in_order_and_torch_gets_its_threads_back() -> None:
    inside: set[int] = set()

    def work(n: int) -> int:
        inside.add(torch.get_num_threads())
        return n * n

    assert list(in_order(work, range(50), torch.device("cpu"))) == [n * n for n in range(50)]
    assert inside == {1}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_job_that_fails_ends_the_rest() -> None:
    started: list[int] = []

    def work(n: int) -> int:
        started.append(n)
        return 1 // (3 - n)

    with pytest.raises(ZeroDivisionError):
        list(in_order(work, range(1000), torch.device("cpu")))
    assert len(started) < 20
    assert torch.get_num_threads() == 2


# ── errors ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Scores(torch.ones(1, 3, 5, 7), torch.ones(1, 2, 5, 7)),
            "q is [1, 3, 5, 7] and k is [1, 2, 5, 7]; [B H Tq d_k] and [B Hkv Tk d_k] are "
            "expected, none of them 0, H a multiple of Hkv",
        ),
        (
            lambda: Scores(torch.ones(3, 5, 7), torch.ones(3, 5, 7)),
            "q is [3, 5, 7] and k is [3, 5, 7]; [B H Tq d_k] and [B Hkv Tk d_k] are expected, "
            "none of them 0, H a multiple of Hkv",
        ),
        (lambda: small(slopes=torch.ones(2)), "slopes is [2]; one for each of 3 heads"),
        (lambda: small(sinks=torch.ones(3, 1)), "sinks is [3, 1]; one for each of 3 heads"),
        (lambda: small(key_starts=[0, 1]), "key_starts has 2 numbers; one for each of 1"),
        (lambda: small(softcap=0.0), "softcap is 0; it must be more than 0"),
        (lambda: pool(small(), top=-1), "top is -1; it must be 0 or more"),
        (lambda: window(small(), range(4, 6), range(7)), "rows 4:6 are not in 0:5"),
        (lambda: window(small(), range(5), range(3, 3)), "columns 3:3 are not in 0:7"),
        (lambda: next(weight_blocks(small(), rows=0)), "rows is 0; it must be at least 1"),
    ],
)
def test_what_does_not_fit(make: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(("name", "value"), [("pixels", 0), ("near", -2)])
def test_sizes_that_cannot_be(name: str, value: int) -> None:
    with pytest.raises(ConfigError) as caught:
        pool(small(), **{name: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"{name} is {value}; it must be at least 1"


def small(**more: Any) -> Scores:
    return Scores(torch.ones(1, 3, 5, 2), torch.ones(1, 3, 7, 2), **more)
