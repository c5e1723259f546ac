"""Agreement of heads, gold annotations, rollout and flow, and the classes of heads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stats_blocks import blocks_of, random_maps, random_tokens

from attnviz.divergence import jensen_shannon
from attnviz.errors import InputError
from attnviz.measures.agreement import SMOOTHING, clustered
from attnviz.measures.block import Annotation, Block, texts_of_tokens
from attnviz.measures.flow import flow, rollout, with_residual
from attnviz.measures.gold import Gold
from attnviz.measures.head_classes import FORM_THRESHOLDS, THRESHOLDS, classify, form_of
from attnviz.measures.measures import Measures, Options

# ── agreement ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("causal", [False, True])
def test_divergences_are_those_of_each_pair_of_rows(causal: bool) -> None:
    rng = np.random.default_rng(2)
    documents = [random_tokens(rng, n) for n in (7, 5, 3)]
    maps = [random_maps(rng, n, causal=causal) for n in (7, 5, 3)]
    total = Measures(2, 3, Options(("agreement",), agreement_documents=2))
    for block in blocks_of(documents, maps, causal=causal, pad=np.nan):
        total.update(block)
    sums, rows = np.zeros((6, 6)), 0
    for own in maps[:2]:
        heads = own.reshape(6, *own.shape[2:])
        n = heads.shape[-1]
        for i in range(n):
            seen = i + 1 if causal else n
            smoothed = heads[:, i, :seen] * (1 - SMOOTHING) + SMOOTHING / seen
            sums += jensen_shannon(smoothed[:, None], smoothed[None])
            rows += 1
    found = total.parts["agreement"].divergences()
    np.testing.assert_allclose(found, sums / rows, atol=1e-12)


def test_heads_that_do_the_same_stand_side_by_side() -> None:
    rng = np.random.default_rng(3)
    own = random_maps(rng, 11)
    own[1, 2], own[1, 0] = own[0, 1], own[0, 0]
    total = Measures(2, 3, Options(("agreement",)))
    for block in blocks_of([random_tokens(rng, 11)], [own]):
        total.update(block)
    divergences = total.parts["agreement"].divergences()
    assert divergences[1, 5] == pytest.approx(0, abs=1e-12)
    order, tree = clustered(divergences)
    assert sorted(order) == list(range(6))
    assert abs(order.index(1) - order.index(5)) == 1
    assert abs(order.index(0) - order.index(3)) == 1
    assert tree.shape == (5, 4)


@pytest.mark.parametrize("harm", [np.nan, np.inf])
def test_a_head_with_a_weight_that_is_no_number_is_compared_with_none(harm: float) -> None:
    rng = np.random.default_rng(3)
    own, tokens = random_maps(rng, 7), random_tokens(rng, 7)

    def compared() -> np.ndarray:
        total = Measures(2, 3, Options(("agreement",)))
        for block in blocks_of([tokens], [own]):
            total.update(block)
        return total.parts["agreement"].divergences()

    clean = compared()
    own[0, 1, 3, 2] = harm  # head 1 of 6
    found = compared()
    assert np.isnan(found[1]).all()
    assert np.isnan(found[:, 1]).all()
    rest = np.ix_([0, 2, 3, 4, 5], [0, 2, 3, 4, 5])
    np.testing.assert_array_equal(found[rest], clean[rest])
    order, tree = clustered(found)
    assert order[-1] == 1
    assert len(tree) == 4


def test_a_pair_that_no_row_counts_for_leaves_one_head_out() -> None:
    divergences = 0.5 * (1 - np.eye(4))
    divergences[1, 2] = divergences[2, 1] = np.nan
    order, tree = clustered(divergences)
    assert order[-1] == 1
    assert len(tree) == 2


def test_heads_without_a_figure_stand_at_the_end() -> None:
    divergences = np.full((4, 4), np.nan)
    sound = np.ix_([1, 2, 3], [1, 2, 3])
    divergences[sound] = 0.5 * (1 - np.eye(3))
    order, tree = clustered(divergences)
    assert order[-1] == 0
    assert len(tree) == 2
    order, tree = clustered(np.full((2, 2), np.nan))
    assert (order, tree.shape) == ([0, 1], (0, 4))


# ── gold ─────────────────────────────────────────────────────────────────────────────────────


def test_gold_pairs_of_words_of_several_tokens() -> None:
    # [CLS] the out-side cat [SEP]: words 0, 1 (two tokens), 2
    tokens, words = ["[CLS]", "the", "out", "##side", "cat", "[SEP]"], (-1, 0, 1, 1, 2, -1)
    weights = np.zeros((1, 2, 6, 6))
    weights[0, 0] = np.full((6, 6), 0.1)
    weights[0, 0, :, 0] = 0.5  # [CLS] is no word
    weights[0, 0, 1, 2:4] = 0.2  # 0.4 on the second word, by its parts
    weights[0, 0, 1, 4] = 0.3
    weights[0, 0, 2] = [0, 0.9, 0, 0, 0.1, 0]  # the mean of both: 0.45 on "the", 0.55 on "cat"
    weights[0, 0, 3] = [0, 0, 0, 0, 1, 0]
    weights[0, 0, 4, 4] = 0.9  # itself: does not count
    weights[0, 0, 4, 1] = 0.2
    weights[0, 1] = np.eye(6)
    annotation = Annotation(((0, 1, "det"), (1, 2, ""), (2, 0, "det"), (2, 1, "")), words)
    texts = texts_of_tokens([4], [tokens], np.array([6]), annotations={4: annotation})
    total = Measures(1, 2, Options(("gold",)))
    total.update(Block(0, weights, texts))
    other = texts_of_tokens([5], [tokens], np.array([6]), annotations={4: annotation})
    total.update(Block(0, weights, other))  # has no annotation
    figures = total.result()
    assert figures["gold"][0].tolist() == [3 / 4, 0]  # the second looks at no other word
    assert figures["gold det"][0, 0] == 1
    assert list(figures) == ["gold", "gold det"]
    assert total.merge(total).result()["gold"][0].tolist() == [3 / 4, 0]


def accuracy(weights: np.ndarray, words: tuple[int, ...], *pairs: tuple[int, int]) -> float:
    """Of one head."""
    tokens = [str(i) for i in range(len(words))]
    annotation = Annotation(tuple((*pair, "") for pair in pairs), words)
    texts = texts_of_tokens([0], [tokens], np.array([len(words)]), annotations={0: annotation})
    total = Measures(1, 1, Options(("gold",)))
    total.update(Block(0, weights[None, None], texts))
    return float(total.result()["gold"].item())


def test_a_word_that_looks_at_no_other_finds_none() -> None:
    assert accuracy(np.eye(3), (0, 1, 2), (0, 1), (1, 0), (2, 0), (1, 2)) == 0
    first = np.eye(1, 3).repeat(3, axis=0)
    assert accuracy(first, (0, 1, 2), (0, 1), (1, 0), (2, 0), (1, 2)) == 0.5


def test_words_without_a_token_are_never_found() -> None:
    even = np.full((3, 3), 1 / 3)
    assert accuracy(even, (-1, 0, 2), (1, 0), (0, 1), (0, 2), (2, 0)) == 0.5
    assert accuracy(even, (-1, 0, 1), (2, 0), (0, 2), (0, 1)) == pytest.approx(1 / 3)
    assert accuracy(even, (-1, -1, -1), (0, 1), (1, 0)) == 0


def test_a_weight_that_is_no_number_finds_nothing_and_misses_nothing() -> None:
    weights = np.full((3, 3), 1 / 3)
    weights[1, 2] = np.nan
    assert np.isnan(accuracy(weights, (0, 1, 2), (1, 2)))
    assert np.isnan(accuracy(weights, (0, 1, 2), (1, 0)))


def test_best_offsets() -> None:
    """Counted in each document once, whatever the layers; parts merge."""
    one = Annotation(((0, 1, "a"), (1, 2, "a"), (5, 3, "b")), tuple(range(8)))
    two = Annotation(((5, 4, "b"), (7, 5, "b")), tuple(range(8)))
    parts = []
    for number, annotation in enumerate((one, two)):
        tokens, gold = [list("abcdefgh")], Gold(2, 3)
        texts = texts_of_tokens([number], tokens, np.array([8]), annotations={number: annotation})
        for layer in range(2):
            gold.update(Block(layer, np.full((1, 3, 8, 8), 1 / 8), texts))
        parts.append(gold)
    expected = {"": (-2, 2 / 5), "a": (1, 1.0), "b": (-2, 2 / 3)}
    assert parts[0].merge(parts[1]).best_offsets() == expected
    assert parts[1].merge(parts[0]).best_offsets() == expected
    assert Gold(2, 3).best_offsets() == {}


# ── rollout and flow ─────────────────────────────────────────────────────────────────────────


def test_rollout_is_the_product_of_the_layers() -> None:
    maps = random_maps(np.random.default_rng(4), 5, layers=3, heads=2).mean(1)
    rolled = rollout(maps)
    mixed = [0.5 * layer + 0.5 * np.eye(5) for layer in maps]
    np.testing.assert_allclose(rolled[2], mixed[2] @ mixed[1] @ mixed[0])
    np.testing.assert_allclose(rolled.sum(-1), 1)
    np.testing.assert_array_equal(rolled[0], mixed[0])


def test_a_row_that_sees_nothing_keeps_to_itself() -> None:
    maps = np.zeros((1, 3, 3))
    maps[0, 1] = [1, 0, 0]
    np.testing.assert_array_equal(with_residual(maps)[0], [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 1]])


@given(st.integers(0, 99), st.integers(1, 5), st.integers(1, 3))
def test_flow_is_the_most_that_a_linear_program_finds(seed: int, n: int, layers: int) -> None:
    from scipy.optimize import linprog

    maps = random_maps(np.random.default_rng(seed), n, layers=layers, heads=1, causal=True)[:, 0]
    flows = flow(maps)
    mixed = with_residual(maps)
    i, j = n - 1, seed % n
    # edges (layer, from, to); what enters a node leaves it, but at the source and the sink
    edges = [(la, a, b) for la in range(layers) for a in range(n) for b in range(n)]
    balance, gain = np.zeros((n * (layers + 1), len(edges))), np.zeros(len(edges))
    for e, (la, a, b) in enumerate(edges):
        balance[(la + 1) * n + a, e] -= 1
        balance[la * n + b, e] += 1
        gain[e] = -(la == layers - 1 and a == i)
    inner = np.delete(balance, [j, layers * n + i], axis=0)
    bounds = [(0, mixed[edge]) for edge in edges]
    program = linprog(gain, A_eq=inner, b_eq=np.zeros(len(inner)), bounds=bounds)
    assert flows[i, j] == pytest.approx(-program.fun, abs=1e-7)


def test_flow_through_one_layer_is_the_layer() -> None:
    maps = random_maps(np.random.default_rng(4), 4, layers=1, heads=2).mean(1)
    np.testing.assert_allclose(flow(maps), with_residual(maps)[0], atol=1e-9)


def test_flow_of_a_long_text_is_refused() -> None:
    with pytest.raises(InputError) as error:
        flow(np.zeros((2, 65, 65)))
    assert str(error.value) == (
        "attention flow of 65 tokens is 4,225 maximum flows; at most 64 tokens are taken: cut the "
        "text with --max-len 64"
    )


# ── classes ──────────────────────────────────────────────────────────────────────────────────

PLAIN = {"fixed": 0.1, "band": 0.1, "segment": 0.5, "segment_evenly": 0.5, "largest": 0.3,
         "entropy": 2.0, "keys": 4.0, "sink": 0.1, "separator": 0.1, "same_token": 0.1,
         "at_offset": 0.2, "offset": 3.0}  # fmt: skip


def figures_of(**changed: float) -> dict[str, np.ndarray]:
    return {name: np.full((2, 3), value) for name, value in {**PLAIN, **changed}.items()}


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"prefix_matching": 0.5, "at_offset": 0.95}, "induction"),
        ({"prefix_matching": 0.49, "at_offset": 0.9, "offset": -1}, "previous"),
        ({"at_offset": 0.9, "offset": 1}, "next"),
        ({"at_offset": 1.0, "offset": 0}, "self"),
        ({"at_offset": 0.9, "offset": -3}, "offset"),
        ({"at_offset": 0.89, "offset": -1}, "mixed"),
        ({"separator": 0.5, "sink": 0.9}, "separator"),
        ({"sink": 0.31}, "sink"),
        ({"sink": 0.3}, "mixed"),
        ({"same_token": 0.5}, "same token"),
        ({"segment": 0.8}, "block"),
        ({"segment": 0.79, "segment_evenly": 0.2}, "mixed"),
        ({"segment": 0.9, "segment_evenly": 0.75}, "block"),
        ({"segment": 0.8, "segment_evenly": 0.65}, "mixed"),  # a neighbour's neighbour
        ({"segment": np.nan, "segment_evenly": np.nan}, "mixed"),
        ({"largest": 0.1}, "broad"),
        ({}, "mixed"),
    ],
)
def test_classes(changed: dict[str, float], name: str) -> None:
    found = classify(figures_of(**changed), 1, 2)
    assert found.name == name
    assert found.name in THRESHOLDS
    assert found.value == figures_of(**changed)[found.figure][1, 2]
    assert (found.offset is not None) == (name in ("previous", "next", "self", "offset"))


def test_what_was_not_measured_does_not_fit() -> None:
    assert classify({}, 0, 0).name == "mixed"


@pytest.mark.parametrize(
    ("changed", "form"),
    [
        ({"fixed": 0.6}, "vertical"),
        ({"band": 0.6}, "diagonal"),
        ({"fixed": 0.35, "band": 0.3}, "vertical + diagonal"),
        ({"fixed": 0.3, "band": 0.2}, "mixed"),
        ({"fixed": 0.7, "band": 0.2}, "vertical + diagonal"),
        ({"fixed": 0.7, "band": 0.2, "fixed_band": 0.05}, "vertical"),
        ({"fixed": 0.3, "band": 0.8, "fixed_band": 0.15}, "diagonal"),
        ({"fixed": 0.4, "band": 0.4, "fixed_band": 0.15}, "vertical + diagonal"),
        ({"fixed": 0.4, "band": 0.4, "fixed_band": 0.3}, "mixed"),
        ({"segment": 0.9}, "block"),
        ({}, "mixed"),
    ],
)
def test_forms(changed: dict[str, float], form: str) -> None:
    assert form_of(figures_of(**changed), 0, 1) == form
    assert form in FORM_THRESHOLDS
