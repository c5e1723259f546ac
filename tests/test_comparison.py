"""Comparing two results: by hand in NumPy, against SciPy, and what must hold for all."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

import attnviz.comparison
from attnviz.comparison import compare
from attnviz.errors import ConfigError, InputError
from attnviz.result import Attention

L, B, H, TQ, TK = 2, 3, 5, 7, 11
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "it", "was", "not", "big"]


def softmax(scores: np.ndarray) -> np.ndarray:
    grown = np.exp(scores - scores.max(-1, keepdims=True))
    return grown / grown.sum(-1, keepdims=True)


def weights_of(seed: int, shape: tuple[int, ...] = (L, B, H, TQ, TK)) -> np.ndarray:
    return softmax(2 * np.random.default_rng(seed).standard_normal(shape))


def result_of(weights: np.ndarray, allowed: np.ndarray | None = None, **facts: Any):
    """A result of weights `[L B H Tq Tk]` over the same words in every sequence."""
    layers, batch, _, queries, keys = weights.shape
    if allowed is None:
        allowed = np.ones((layers, batch, 1, queries, keys), dtype=bool)
    given = {
        "query_tokens": (tuple(WORDS[:queries]),) * batch,
        "key_tokens": (tuple(WORDS[:keys]),) * batch,
        "lengths": np.full(batch, queries),
        "key_lengths": np.full(batch, keys),
    }
    return Attention(weights, allowed, **{**given, **facts})


def square(*rows: list[float], dtype: str = "float64", **facts: Any) -> Attention:
    """A result of one head."""
    return result_of(np.array(rows, dtype=dtype)[None, None, None], **facts)


def by_number(comparison: attnviz.comparison.Comparison) -> dict[tuple[int, int], Any]:
    return {(head.layer, head.head): head for head in comparison.heads}


# ── distances ────────────────────────────────────────────────────────────────────────────────


def test_each_head_against_scipy_and_numpy():
    a, b = weights_of(0), weights_of(1)
    found = by_number(compare(result_of(a), result_of(b)))
    assert sorted(found) == [(i, j) for i in range(L) for j in range(H)]
    for (layer, number), head in found.items():
        one, other = a[layer, :, number], b[layer, :, number]
        assert head.bits == pytest.approx((jensenshannon(one, other, 2, axis=-1) ** 2).mean())
        assert head.rows == B * TQ
        s, q, k = np.unravel_index(np.abs(one - other).argmax(), one.shape)
        place = head.largest
        assert (place.sequence, place.query, place.key) == (s, q, k)
        assert (place.query_token, place.key_token) == (WORDS[q], WORDS[k])
        assert (place.a, place.b) == (one[s, q, k], other[s, q, k])
        assert head.difference == np.abs(one - other).max()
        assert (head.other, head.broken, head.only_a, head.only_b) == (number, None, 0, 0)


def test_the_head_that_changed_most_is_first():
    a = weights_of(0)
    b = a.copy()
    b[1, :, 3] = weights_of(1)[1, :, 3]
    b[0, 0, 2, 4] = a[0, 0, 2, 4][::-1]
    done = compare(result_of(a), result_of(b))
    assert [(head.layer, head.head) for head in done.heads[:3]] == [(1, 3), (0, 2), (0, 0)]
    assert [head.bits for head in done.heads[2:]] == [0] * (L * H - 2)
    assert done.largest == max(
        (head.largest for head in done.heads), key=lambda place: abs(place.difference)
    )
    assert done.largest.difference == done.largest.b - done.largest.a


def test_what_is_chosen_is_compared():
    a, b = weights_of(0), weights_of(1)
    done = compare(result_of(a), result_of(b), layers=[1], heads=[4, 2], sequences=[2])
    assert sorted((head.layer, head.head) for head in done.heads) == [(1, 2), (1, 4)]
    want = jensenshannon(a[1, 2, 4], b[1, 2, 4], 2, axis=-1) ** 2
    assert by_number(done)[1, 4].bits == pytest.approx(want.mean())
    assert {head.largest.sequence for head in done.heads} == {2}


def test_blocks_change_nothing(monkeypatch):
    a, b = result_of(weights_of(0)), result_of(weights_of(1))
    whole = compare(a, b, match=True)
    monkeypatch.setattr(attnviz.comparison, "BLOCK", 3 * TK)  # 3 rows; with all heads, 1
    parts = compare(a, b, match=True)
    assert [head.largest for head in parts.heads] == [head.largest for head in whole.heads]
    assert [head.bits for head in parts.heads] == pytest.approx([h.bits for h in whole.heads])


def test_half_precision_differs_by_its_rounding_alone():
    a = weights_of(0)
    done = compare(result_of(a), result_of(a.astype(np.float16)))
    assert 0 < done.heads[0].bits < 1e-6
    assert 0 < abs(done.largest.difference) <= 2**-12
    assert done.notes == ()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.sampled_from(["float16", "float32", "f8"]))
def test_symmetric_and_at_most_one_bit(seed, share, dtype):
    a = weights_of(seed, (1, 2, 3, 5, 7))
    b = ((1 - share) * a + share * weights_of(seed + 1, a.shape)).astype(dtype)
    there, back = compare(result_of(a), result_of(b)), compare(result_of(b), result_of(a))
    for one, other in zip(there.heads, back.heads, strict=True):
        assert one.bits == other.bits
        assert 0 <= one.bits <= 1
        assert one.largest.difference == -other.largest.difference
        if one.difference == 0:
            assert one.bits == 0
        if one.bits == 0:  # rows are divided by their sums, which can hide a last binary digit
            assert one.difference < 1e-15


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.permutations(range(5)), st.permutations(range(5)))
def test_a_permutation_of_heads_is_found(seed, first, second):
    a = weights_of(seed)
    b = np.stack([a[0][:, first], a[1][:, second]])
    done = compare(result_of(a), result_of(b), match=True)
    # B's head j is A's head first[j]
    assert done.moved == {
        0: [(head, first.index(head)) for head in range(5)],
        1: [(head, second.index(head)) for head in range(5)],
    }
    assert done.matched
    assert [head.bits for head in done.heads] == [0] * 10
    assert done.within(0)


def test_by_index_the_same_heads_are_far_apart():
    a = weights_of(0)
    done = compare(result_of(a), result_of(a[:, :, ::-1]))
    assert not done.matched
    assert done.moved[1] == [(i, i) for i in range(H)]
    assert by_number(done)[0, 2].bits == 0  # the one in the middle
    assert by_number(done)[0, 0].bits > 0.1


def test_more_heads_on_one_side_are_matched():
    a = weights_of(0)
    pruned = a[:, :, [4, 0, 2]]
    done = compare(result_of(pruned), result_of(a), match=True)
    assert done.moved[0] == [(0, 4), (1, 0), (2, 2)]
    assert done.notes == ()
    done = compare(result_of(a), result_of(pruned), match=True)
    assert done.moved[1] == [(0, 1), (2, 2), (4, 0)]
    assert done.notes == (
        "layer 0: A's heads 1, 3 have no partner in B",
        "layer 1: A's heads 1, 3 have no partner in B",
    )
    done = compare(result_of(a), result_of(a[:, :, [4, 0, 2, 1]]), match=True)
    assert done.notes[0] == "layer 0: A's head 3 has no partner in B"


def test_on_done_is_called_for_each_head_and_each_matching():
    a, calls = result_of(weights_of(0)), []
    compare(a, a, on_done=lambda: calls.append(1))
    assert len(calls) == L * H
    compare(a, a, match=True, on_done=lambda: calls.append(1))
    assert len(calls) == L * H + L * (H + 1)


def test_match_without_scipy_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    a = result_of(weights_of(0))
    with pytest.raises(ConfigError) as caught:
        compare(a, a, match=True)
    assert str(caught.value) == (
        "--match needs SciPy, which is not installed: pip install 'attnviz[corpus]'; without "
        "--match, heads are compared by index"
    )


# ── padding and masks ────────────────────────────────────────────────────────────────────────


def padded(weights: np.ndarray, side: str, width: int, junk: float) -> Attention:
    """One sequence of 5 × 5 in a square of `width`, with junk in the rows of padding."""
    shape = (*weights.shape[:3], width, width)
    full = np.full(shape, float(junk))
    place = slice(0, 5) if side == "right" else slice(width - 5, width)
    full[..., place, :] = 0
    full[..., place, place] = weights
    pads = ("[PAD]",) * (width - 5)
    words = tuple(WORDS[:5])
    tokens = (words + pads if side == "right" else pads + words,)
    allowed = np.zeros(shape, dtype=bool)
    allowed[..., place] = True
    length = np.array([5])
    return Attention(
        full,
        allowed,
        query_tokens=tokens,
        key_tokens=tokens,
        lengths=length,
        key_lengths=length,
        pad_side=side,
    )


@settings(max_examples=20, deadline=None)
@given(
    st.tuples(st.sampled_from(["left", "right"]), st.integers(5, 9)),
    st.tuples(st.sampled_from(["left", "right"]), st.integers(5, 9)),
)
def test_padding_may_stand_anywhere_and_counts_for_nothing(one, other):
    a, b = weights_of(0, (1, 1, 2, 5, 5)), weights_of(1, (1, 1, 2, 5, 5))
    want = compare(padded(a, "right", 5, 0), padded(b, "right", 5, 0))
    found = compare(padded(a, *one, np.nan), padded(b, *other, 7.0))
    assert found.heads == want.heads
    assert found.notes == ()


def test_weight_on_padding_is_what_the_real_keys_lack():
    a = square([0.5, 0.5, 0], [0.5, 0.5, 0], key_lengths=np.array([2]))
    b = square([0.25, 0.25, 0.5], [0.5, 0.5, 0], key_lengths=np.array([2]))
    done = compare(a, b)
    want = jensenshannon([0.5, 0.5, 0], [0.25, 0.25, 0.5], 2) ** 2 / 2
    assert done.heads[0].bits == pytest.approx(want)
    assert done.heads[0].difference == 0.25
    assert done.notes == (
        "B: queries give up to 0.5 of their weight to padding",
        "B: 1 row with a sum below 1, down to 0.5: what they lack counts as one more key",
    )


def test_rows_that_see_nothing_in_both_do_not_count():
    allowed = np.array([[False, False], [True, True]])[None, None, None]
    a, b = square([0, 0], [1, 0], allowed=allowed), square([0, 0], [0.5, 0.5], allowed=allowed)
    head = compare(a, b).heads[0]
    assert head.rows == 1
    assert head.bits == pytest.approx(jensenshannon([1, 0], [0.5, 0.5], 2) ** 2)
    assert compare(a, b).notes == ()


def test_a_row_that_sees_nothing_in_one_alone_is_one_bit_away():
    allowed = np.array([[False, False], [True, True]])[None, None, None]
    a = square([0, 0], [1, 0], allowed=allowed, masks=("file m.npy",))
    done = compare(a, square([0.5, 0.5], [1, 0]))
    assert (done.heads[0].rows, done.heads[0].bits) == (2, 0.5)
    assert (done.heads[0].only_a, done.heads[0].only_b) == (0, 2)
    assert done.notes == (
        "the masks differ: 0 cells allowed in A only, 2 in B only (masks of A: file m.npy; of B: "
        "none)",
    )


def test_masks_of_each_head_are_counted():
    a, b = weights_of(0), weights_of(0)
    allowed = np.ones(a.shape, dtype=bool)
    allowed[1, 2, 3, 4, 5:7] = False
    found = by_number(compare(result_of(a, allowed), result_of(b)))
    assert {at for at, head in found.items() if head.only_b} == {(1, 3)}
    assert found[1, 3].only_b == 2
    done = compare(result_of(a), result_of(b, allowed))
    assert done.notes[0].startswith("the masks differ: 2 cells allowed in A only, 0 in B only")


def test_masks_of_another_name_that_allow_the_same():
    a = square([1, 0], [0.5, 0.5], masks=("causal",))
    assert compare(a, replace(a, masks=("file m.npy",))).notes == (
        "the masks have other names (A: causal; B: file m.npy) and allow the same",
    )


# ── rows that are no distributions ───────────────────────────────────────────────────────────


def test_what_a_sink_takes_is_one_more_outcome():
    a, b = square([0.6, 0.4], [0.5, 0.5]), square([0.3, 0.2], [0.5, 0.5])
    done = compare(a, b)
    want = jensenshannon([0.6, 0.4, 0], [0.3, 0.2, 0.5], 2) ** 2 / 2
    assert done.heads[0].bits == pytest.approx(want)
    assert done.notes == (
        "B: 1 row with a sum below 1, down to 0.5: what they lack counts as one more key",
    )


def test_a_sink_in_both_is_the_same_outcome():
    a, b = square([0.3, 0.1], [0.0, 0.2]), square([0.1, 0.3], [0.0, 0.2])
    want = jensenshannon([0.3, 0.1, 0.6], [0.1, 0.3, 0.6], 2) ** 2 / 2
    assert compare(a, b).heads[0].bits == pytest.approx(want)
    assert compare(a, a).heads[0].bits == 0


def test_rows_above_one_are_compared_by_their_shares():
    a, b = square([1.5, 0.5], [0.5, 0.5]), square([0.75, 0.25], [0.5, 0.5])
    done = compare(a, b)
    assert done.heads[0].bits == 0
    assert done.heads[0].difference == 0.75
    assert not done.within(0.7)
    assert done.notes == (
        "A: 1 row with a sum above 1, up to 2: their distance is that of their shares",
    )


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_named_and_within_no_tolerance(odd):
    a, b = square([0.5, 0.5], [0.5, 0.5]), square([0.5, 0.5], [odd, 0.25])
    for done, name in ((compare(a, b), "B"), (compare(b, a), "A")):
        head = done.heads[0]
        assert (head.rows, head.bits, head.difference) == (1, 0, 0.25)
        assert (head.broken.query, head.broken.key) == (1, 0)
        assert done.broken is head.broken
        assert not done.within(1e9)
        assert done.notes == (f"{name}: 1 row with NaN or infinity: no distance for them",)
    assert np.array_equal([compare(a, b).broken.b, compare(a, b).broken.a], [odd, 0.5], True)
    assert not compare(b, b).within(1)


def test_a_head_without_one_number_comes_first_and_has_no_distance():
    a, b = weights_of(0), weights_of(1)
    b[1, :, 4] = np.nan
    done = compare(result_of(a), result_of(b))
    head = done.heads[0]
    assert (head.layer, head.head, head.rows, head.largest) == (1, 4, 0, None)
    assert np.isnan(head.bits)
    assert np.isnan(head.difference)
    assert (done.broken.layer, done.broken.head, done.broken.sequence) == (1, 4, 0)
    assert done.largest is not None


def test_scores_before_softmax_are_recognised():
    a, b = square([1.0, -2.0], [0.5, 0.5]), square([0.5, 0.5], [0.5, 0.5])
    done = compare(a, b)
    assert (done.heads[0].rows, done.heads[0].bits) == (1, 0)
    assert done.heads[0].largest.difference == 2.5
    assert done.notes == (
        "A: 1 row with negative weights: no distance for them (scores before softmax?)",
    )


def test_no_rows_no_distance():
    a = square([1, 0], [0, 1], lengths=np.array([0]))
    done = compare(a, a)
    assert done.heads[0].rows == 0
    assert np.isnan(done.heads[0].bits)
    assert done.largest is None
    assert done.broken is None
    assert done.within(0)


# ── tokens and sizes ─────────────────────────────────────────────────────────────────────────


def renamed(side: str, *tokens: str) -> Attention:
    a = square([0.5, 0.5, 0], [0, 0.5, 0.5])
    length = "lengths" if side == "query" else "key_lengths"
    width = 2 if side == "query" else 3
    filled = tokens + ("[PAD]",) * (width - len(tokens))
    return replace(a, **{f"{side}_tokens": (filled,), length: np.array([len(tokens)])})


@pytest.mark.parametrize(
    ("b", "message"),
    [
        (renamed("query", "the", "dog"), "query token 1 is 'cat' in A and 'dog' in B"),
        (renamed("key", "the", "cat", "s\nt"), "key token 2 is 'sat' in A and 's\\nt' in B"),
        (
            renamed("query", "the"),
            "A has 2 query tokens and B has 1: A goes on with 'cat'",
        ),
    ],
)
def test_other_tokens(b, message):
    a = square([0.5, 0.5, 0], [0, 0.5, 0.5])
    with pytest.raises(InputError) as caught:
        compare(a, b)
    assert str(caught.value) == f"{message}; both must be over the same tokens"


def test_more_tokens_in_b():
    a, b = square([0.5, 0.5], [0, 1]), square([0.5, 0.5], [0, 1], [0, 1])
    with pytest.raises(InputError) as caught:
        compare(a, b)
    assert str(caught.value) == (
        "A has 2 query tokens and B has 3: B goes on with 'sat'; both must be over the same tokens"
    )


def test_the_sequence_is_named_and_others_do_not_matter():
    a = result_of(weights_of(0))
    tokens = list(a.query_tokens)
    tokens[2] = ("dog", *tokens[2][1:])
    b = replace(a, query_tokens=tuple(tokens))
    with pytest.raises(InputError) as caught:
        compare(a, b)
    assert str(caught.value) == (
        "sequence 2: query token 0 is 'the' in A and 'dog' in B; both must be over the same tokens"
    )
    assert compare(a, b, sequences=[0, 1]).largest.difference == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, B, H, TQ, TK), "A has 2 layers and B has 1"),
        ((L, 2, H, TQ, TK), "A has 3 sequences and B has 2"),
        ((L, B, 4, TQ, TK), "A has 5 heads and B has 4; --match pairs those that are alike"),
    ],
)
def test_other_sizes(shape, message):
    with pytest.raises(InputError) as caught:
        compare(result_of(weights_of(0)), result_of(weights_of(1, shape)))
    assert str(caught.value) == message


def test_a_dump_on_disk_is_read_a_block_at_a_time(tmp_path, monkeypatch):
    """Memory-mapped arrays are never turned into one array in memory."""
    np.save(tmp_path / "a.npy", weights_of(0))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    sizes = []
    read = attnviz.comparison._rows

    def recorded(*args: Any):
        rows = read(*args)
        sizes.append(rows.weights.size)
        return rows

    monkeypatch.setattr(attnviz.comparison, "_rows", recorded)
    monkeypatch.setattr(attnviz.comparison, "BLOCK", 2 * TK)
    done = compare(result_of(mapped), result_of(weights_of(1)))
    assert max(sizes) == 2 * TK
    assert done.heads == compare(result_of(weights_of(0)), result_of(weights_of(1))).heads


# ── arrays ───────────────────────────────────────────────────────────────────────────────────


def test_arrays_without_their_first_axes():
    a, b = weights_of(0, (H, TQ, TK)), weights_of(1, (H, TQ, TK))
    done = attnviz.compare(a, b)
    assert by_number(done)[0, 3].bits == pytest.approx(
        (jensenshannon(a[3], b[3], 2, axis=-1) ** 2).mean()
    )
    place = done.largest
    assert (place.query_token, place.key_token) == (str(place.query), str(place.key))


def test_an_array_has_the_tokens_and_masks_of_the_other():
    allowed = np.array([[True, False], [True, True]])[None, None, None]
    a = square([1, 0], [0.5, 0.5], allowed=allowed, masks=("causal",))
    done = attnviz.compare(a, np.array([[1, 0], [0.25, 0.75]]))
    assert done.largest.key_token == "the"
    assert (done.largest.a, done.largest.b) == (0.5, 0.25)
    assert done.notes == ()
    back = attnviz.compare(np.array([[1, 0], [0.25, 0.75]]), a)
    assert (back.largest.a, back.largest.b) == (0.25, 0.5)


def test_tensors_and_lists_of_layers():
    a, b = weights_of(0), weights_of(1)
    want = compare(a, b)
    layers = [torch.from_numpy(layer).requires_grad_() for layer in b]
    assert compare(a, layers).heads == want.heads
    assert compare(a, tuple(b)).heads == want.heads
    halved = torch.from_numpy(b).bfloat16()
    assert compare(halved, halved.float()).largest.difference == 0


def test_names_of_masks_are_shown_as_they_are():
    a = square([1, 0], [0.5, 0.5], masks=("\x1b[31m",))
    assert compare(a, replace(a, masks=())).notes == (
        "the masks have other names (A: \\x1b[31m; B: none) and allow the same",
    )


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            np.zeros((3, 2)),
            "B has sequences × queries × keys 1 × 3 × 2, and the other 1 × 2 × 2; both must be "
            "over the same tokens",
        ),
        (
            np.zeros(4),
            "an array has 1 axes, shape [4]; [Tq Tk] to [L B H Tq Tk] are expected",
        ),
    ],
)
def test_arrays_that_do_not_fit(array, message):
    with pytest.raises(InputError) as caught:
        compare(square([1, 0], [0.5, 0.5]), array)
    assert str(caught.value) == message
