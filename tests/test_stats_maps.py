"""Measures of heads whose answers are known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.measures import MEASURES, HeadMeasures, measure, measure_all
from attnviz.result import Attention


def result_of(
    weights: np.ndarray,
    allowed: np.ndarray | None = None,
    lengths: tuple[int, ...] | None = None,
    key_lengths: tuple[int, ...] | None = None,
    pad_side: str = "right",
) -> Attention:
    """A result of weights `[L B H Tq Tk]`."""
    layers, batch, _, queries, keys = weights.shape
    return Attention(
        attention=weights,
        allowed=np.ones((layers, batch, 1, queries, keys), dtype=bool)
        if allowed is None
        else allowed,
        query_tokens=(("x",) * queries,) * batch,
        key_tokens=(("y",) * keys,) * batch,
        lengths=np.array(lengths or [queries] * batch),
        key_lengths=np.array(key_lengths or [keys] * batch),
        pad_side=pad_side,
    )


def of_head(weights: np.ndarray, **facts: Any) -> dict[str, float]:
    """The measures of one head, `[Tq Tk]`, of one sequence."""
    measures = measure(result_of(weights[None, None, None], **facts), 0).result()
    assert list(measures) == list(MEASURES)
    return {name: values.item() for name, values in measures.items()}


N = 5

CLOSED = {
    "uniform": (
        np.full((N, N), 1 / N),
        # Σ|i - j| over all pairs is n (n² - 1) / 3
        {"entropy": np.log2(N), "largest": 1 / N, "diagonal": 1 / N, "first": 1 / N,
         "distance": (N * N - 1) / (3 * N)},
    ),
    "identity": (
        np.eye(N),
        {"entropy": 0, "largest": 1, "diagonal": 1, "first": 1 / N, "distance": 0},
    ),
    "previous token": (
        np.eye(N, k=-1) + np.diag([1.0] + [0.0] * (N - 1)),
        {"entropy": 0, "largest": 1, "diagonal": 1 / N, "first": 2 / N, "distance": (N - 1) / N},
    ),
    "first token": (
        np.eye(1, N).repeat(N, axis=0),
        {"entropy": 0, "largest": 1, "diagonal": 1 / N, "first": 1, "distance": (N - 1) / 2},
    ),
    "causal and uniform": (
        np.tril(np.ones((N, N))) / np.arange(1, N + 1)[:, None],
        {
            "entropy": np.log2([1, 2, 3, 4, 5]).mean(),
            "largest": (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5,
            "diagonal": (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5,
            "first": (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5) / 5,
            "distance": (0 + 1 / 2 + 1 + 3 / 2 + 2) / 5,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("head", CLOSED)
def test_closed_forms(head: str) -> None:
    weights, expected = CLOSED[head]
    measured = of_head(weights)
    assert measured == pytest.approx(expected, abs=1e-14)
    assert not np.signbit(list(measured.values())).any()  # no -0.0


def test_cross_attention_of_another_length() -> None:
    assert of_head(np.full((3, 7), 1 / 7)) == pytest.approx(
        {
            "entropy": np.log2(7),
            "largest": 1 / 7,
            "diagonal": 1 / 7,
            "first": 1 / 7,
            "distance": (21 + 16 + 13) / 21,
        }
    )
    assert of_head(np.full((7, 3), 1 / 3))["diagonal"] == pytest.approx(3 / 7 / 3)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_does_not_count(side: str) -> None:
    weights, expected = CLOSED["causal and uniform"]
    padded = np.full((N + 2, N + 3), np.nan)  # whatever stands in a padded row
    own_q, own_k = (
        (slice(0, N), slice(0, N)) if side == "right" else (slice(2, None), slice(3, None))
    )
    padded[own_q] = 0
    padded[own_q, own_k] = weights
    measured = of_head(padded, lengths=(N,), key_lengths=(N,), pad_side=side)
    assert measured == pytest.approx(expected, abs=1e-14)


def test_rows_that_see_nothing_do_not_count() -> None:
    allowed = np.ones((1, 1, 1, N, N), dtype=bool)
    allowed[..., 1, :] = False
    weights = np.eye(N)
    weights[1] = 0
    measured = of_head(weights, allowed=allowed)
    assert measured == pytest.approx(
        {"entropy": 0, "largest": 1, "diagonal": 1, "first": 1 / 4, "distance": 0}
    )
    none = of_head(weights * 0, allowed=allowed & False)
    assert np.isnan(list(none.values())).all()


def test_a_head_whose_own_mask_is_blind_is_nan_alone() -> None:
    allowed = np.ones((1, 1, 2, N, N), dtype=bool)
    allowed[0, 0, 1] = False
    weights = np.stack([np.eye(N), np.zeros((N, N))])[None, None]
    measures = measure(result_of(weights, allowed), 0)
    assert measures.rows.tolist() == [[N, 0]]
    for values in measures.result().values():
        assert np.isfinite(values[0, 0])
        assert np.isnan(values[0, 1])


@pytest.mark.parametrize("harm", [np.nan, np.inf])
def test_a_weight_that_is_no_number_spoils_its_head_alone(harm: float) -> None:
    weights = np.full((2, 1, 3, N, N), 1 / N)
    clean = measure(result_of(weights), 0).result()
    weights[1, 0, 2, 3, 3] = harm
    for name, values in measure(result_of(weights), 0).result().items():
        assert not np.isfinite(values[1, 2]) or name == "first"
        spared = np.ones((2, 3), dtype=bool)
        spared[1, 2] = False
        np.testing.assert_array_equal(values[spared], clean[name][spared])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_measures_are_taken_in_float64(dtype: str) -> None:
    weights = np.full((64, 64), 1 / 64).astype(dtype)  # exact in each of them
    assert of_head(weights)["entropy"] == 6.0


def measures(seed: int) -> HeadMeasures:
    """Whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(seed)
    return HeadMeasures(rng.integers(0, 99, (2, 3, 5)).astype(float), rng.integers(0, 9, (2, 3)))


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_merge_is_associative_and_commutative(a: int, b: int, c: int) -> None:
    one, two, three = measures(a), measures(b), measures(c)
    for left, right in [
        (one.merge(two), two.merge(one)),
        (one.merge(two).merge(three), one.merge(two.merge(three))),
    ]:
        np.testing.assert_array_equal(left.sums, right.sums)
        np.testing.assert_array_equal(left.rows, right.rows)


def test_all_sequences_together_are_weighted_by_their_rows() -> None:
    weights = np.zeros((1, 2, 1, N, N))
    weights[0, 0, 0] = np.eye(N)
    weights[0, 1, 0] = np.full((N, N), 1 / N)
    result = result_of(weights, lengths=(5, 2))
    together = measure_all(result).result()
    assert measure_all(result).rows.item() == 7
    assert together["diagonal"].item() == pytest.approx((5 * 1 + 2 / N) / 7)
    assert together["entropy"].item() == pytest.approx(2 * np.log2(N) / 7)
    parts = measure(result, 0).merge(measure(result, 1)).result()
    assert parts == together
