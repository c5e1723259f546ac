"""The Jensen-Shannon divergence: against SciPy's, by hand, and what must hold for all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from attnviz.divergence import entropy, jensen_shannon

SHARES = st.one_of(st.just(0.0), st.floats(1e-12, 1.0))
PAIRS = st.integers(1, 7).flatmap(
    lambda n: st.tuples(*[st.lists(SHARES, min_size=n, max_size=n).filter(any)] * 2)
)


def test_by_hand():
    # m = (3/4, 1/4): ½·log₂(4/3) + ½·(½·log₂(2/3) + ½·log₂ 2)
    want = 0.5 * np.log2(4 / 3) + 0.5 * (0.5 * np.log2(2 / 3) + 0.5)
    assert jensen_shannon(np.array([1.0, 0.0]), np.array([0.5, 0.5])) == pytest.approx(want)


def test_nothing_in_common_is_one_bit():
    assert jensen_shannon(np.array([1.0, 0, 0]), np.array([0, 0.25, 0.75])) == 1


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_each_axis_against_scipy(axis):
    p, q = np.random.default_rng(0).dirichlet(np.full(7, 0.3), (2, 3, 5))
    assert jensen_shannon(p, q, axis) == pytest.approx(jensenshannon(p, q, 2, axis=axis) ** 2)


def test_rows_broadcast():
    p = np.random.default_rng(1).dirichlet(np.ones(5), (3, 2))
    between = jensen_shannon(p[:, None], p[None, :])
    assert between.shape == (3, 3, 2)
    assert (between.diagonal() == 0).all()
    assert between[0, 2] == pytest.approx(jensenshannon(p[0], p[2], 2, axis=-1) ** 2)


@given(PAIRS)
def test_against_scipy(pair):
    p, q = map(np.array, pair)
    assert jensen_shannon(p, q) == pytest.approx(jensenshannon(p, q, 2) ** 2, abs=1e-12)


@given(PAIRS)
def test_symmetric_and_between_0_and_1(pair):
    p, q = map(np.array, pair)
    bits = jensen_shannon(p, q)
    assert bits == jensen_shannon(q, p)
    assert 0 <= bits <= 1 + 1e-12
    assert jensen_shannon(p, p) == 0


@given(st.floats(-14, -2))
def test_a_small_difference_is_not_lost(power):
    """The second order term, (Δ²/p + Δ²/q) / (8 ln 2), where SciPy's sum is rounding noise."""
    small = 10**power
    p, q = np.array([0.3, 0.7]), np.array([0.3 + small, 0.7 - small])
    small = q[0] - p[0]  # as it came out
    want = small**2 * (1 / 0.3 + 1 / 0.7) / (8 * np.log(2))
    assert jensen_shannon(p, q) == pytest.approx(want, rel=0.05)


def test_the_series_meets_the_formula():
    d = np.array([0.00999, 0.01, 0.01001])
    bits = jensen_shannon(np.stack([1 + d, 1 - d]), np.stack([1 - d, 1 + d]), 0)
    assert bits == pytest.approx(d**2 * (1 + d**2 / 6) / (2 * np.log(2)), rel=1e-9)


@pytest.mark.parametrize("wrong", [[0, 0], [-0.5, 1.5], [np.nan, 1], [np.inf, 1]])
def test_no_distribution_is_no_number(wrong):
    right = np.array([0.5, 0.5])
    assert np.isnan(jensen_shannon(np.array(wrong, dtype=float), right))
    assert np.isnan(jensen_shannon(right, np.array(wrong, dtype=float)))


def test_half_precision_is_computed_in_full():
    p, q = np.random.default_rng(2).dirichlet(np.ones(5), 2).astype(np.float16)
    assert jensen_shannon(p, q).dtype == np.float64
    assert jensen_shannon(p, q) == pytest.approx(
        jensenshannon(p.astype(float), q.astype(float), 2) ** 2
    )


def test_entropy_of_known_rows() -> None:
    assert entropy(np.array([0.0, 1.0, 0.0])) == 0.0
    assert entropy(np.full(8, 0.125)) == 3.0
