"""The measures of a corpus against sums written out cell by cell, and against closed forms."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stats_blocks import blocks_of, random_maps, random_tokens

import attnviz.measures.block as block_module
import attnviz.measures.sums as sums_module
from attnviz.errors import ConfigError
from attnviz.measures.block import Annotation, BatchTexts, Block, texts_of_tokens
from attnviz.measures.head_classes import classify, form_of
from attnviz.measures.induction import Induction, repeated
from attnviz.measures.measures import DEFAULT, GROUPS, Measures, Options, merge_all
from attnviz.measures.token_kinds import PUNCTUATION, SEPARATOR, SPECIAL, kind_of

ALL = Options(GROUPS, window=2, first=3)
LENGTHS = (13, 7, 11, 2, 1)
SEPARATORS, SPECIALS, MARKS = {"[SEP]"}, {"[SEP]", "[CLS]"}, {".", ",", "。"}


def measured(blocks: list[Block], options: Options = ALL) -> Measures:
    total = Measures(2, 3, options)
    for block in blocks:
        total.update(block)
    return total


def by_hand(
    documents: list[list[str]], maps: list[np.ndarray], causal: bool, farthest: int = 99
) -> dict:
    """Each figure of layer 0, head 0, from loops over rows and keys."""
    sums: dict[str, float] = defaultdict(float)
    offsets: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    alpha = defaultdict(lambda: [0.0, 0])
    loose_at = defaultdict(lambda: [0.0, 0, 0, 0])  # weight, its cells; all, of the own segment
    for tokens, own in zip(documents, maps, strict=True):
        a, n = own[0, 0], len(tokens)
        segment = [tokens[:i].count("[SEP]") for i in range(n)]
        words = {segment[i] for i in range(n) if tokens[i] != "[SEP]"}
        for i in range(n):
            sees = range(i + 1) if causal else range(n)
            sums["rows"] += 1
            row = {
                "self": a[i, i],
                "previous": a[i, i - 1] if i > 0 else 0,
                "next": a[i, i + 1] if i + 1 < n else 0,
                "first": a[i, 0],
                "to_identity": 1 - a[i, i],
                "entropy": -sum(x * math.log2(x) for x in a[i] if x > 0),
                "largest": max(a[i]),
                "confidence": max([a[i, j] for j in range(n) if tokens[j] != "[SEP]"] or [0]),
                "to_uniform": sum(abs(a[i, j] - 1 / len(sees)) for j in sees) / 2,
            }
            row["keys"] = 2 ** row["entropy"]
            even = 1e-4 / len(sees)
            mixed = [(1 - 1e-4) * a[i, j] + even for j in sees]
            row["entropy_smoothed"] = -sum(x * math.log2(x) for x in mixed)
            for name, value in row.items():
                sums[name] += value
            if i == 0:
                sums["entropy_first"] += row["entropy"]
            for j in range(n):
                fixed = j == 0 or tokens[j] in SPECIALS
                kinds = {
                    "first_tokens": j < 3,
                    "separator": tokens[j] in SEPARATORS,
                    "special": tokens[j] in SPECIALS,
                    "punctuation": tokens[j] in MARKS,
                    "same_token": tokens[j] == tokens[i] and i != j,
                    "near": abs(i - j) <= 2,
                    "band": abs(i - j) <= 1,
                    "fixed": fixed,
                    "fixed_band": fixed and abs(i - j) <= 1,
                }
                for name, holds in kinds.items():
                    sums[name] += a[i, j] * holds
                sums["distance"] += a[i, j] * abs(i - j)
                if tokens[j] == "[SEP]":
                    sums["sep from " + ("sep" if tokens[i] == "[SEP]" else "other")] += a[i, j]
                if not fixed and len(words) > 1:
                    own_segment = segment[i] == segment[j]
                    sums["loose"] += a[i, j]
                    sums["within"] += a[i, j] * own_segment
                    at = loose_at[max(-farthest, min(farthest, j - i))]
                    at[0] += a[i, j] * (i % 4 == 0)
                    at[1] += j in sees and i % 4 == 0
                    at[2] += j in sees
                    at[3] += j in sees and own_segment
                if j <= i:
                    alpha[j][0] += a[i, j]
                    alpha[j][1] += 1
            sums["sep rows"] += tokens[i] == "[SEP]"
            best = int(np.argmax(a[i]))
            for j in range(n):
                offsets[j - i][1] += 1
                offsets[j - i][0] += j == best
    rows = sums["rows"]
    plain = ("self previous next first first_tokens separator special punctuation same_token near"
             " band fixed fixed_band distance to_identity entropy entropy_smoothed largest"
             " confidence keys to_uniform")  # fmt: skip
    figures = {name: sums[name] / rows for name in plain.split()}
    figures["separator_from_separator"] = sums["sep from sep"] / sums["sep rows"]
    figures["separator_from_other"] = sums["sep from other"] / (rows - sums["sep rows"])
    figures["segment"] = sums["within"] / sums["loose"]
    known = [(w / cells, n, own) for w, cells, n, own in loose_at.values() if cells]
    evenly = sum(mean * own for mean, _, own in known)
    figures["segment_evenly"] = evenly / sum(mean * n for mean, n, _ in known)
    figures["entropy_first"] = sums["entropy_first"] / len(documents)
    figures["sink"] = alpha[0][0] / alpha[0][1]
    often = {k: s / n for k, (s, n) in alpha.items() if 2 * n >= rows and k < 16}
    figures["strongest_at"] = max(often, key=lambda k: often[k])
    figures["strongest"] = often[figures["strongest_at"]]
    often = {r: f / n for r, (f, n) in offsets.items() if 2 * n >= rows}
    figures["offset"] = max(sorted(often), key=lambda r: often[r])
    figures["at_offset"] = often[figures["offset"]]
    return figures


@pytest.mark.parametrize("pad_side", ["right", "left"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("most", [2**18, 100])
def test_every_measure_against_loops(
    causal: bool, pad_side: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_module, "MOST_WEIGHTS", most)  # 100: pieces of a row and less
    rng = np.random.default_rng(5)
    documents = [random_tokens(rng, n) for n in LENGTHS]
    maps = [random_maps(rng, n, causal=causal) for n in LENGTHS]
    blocks = blocks_of(documents, maps, causal=causal, pad_side=pad_side, pad=np.nan, extra=3)
    figures = measured(blocks).result()
    expected = by_hand(documents, maps, causal)
    found = {name: figures[name][0, 0] for name in expected}
    assert found == pytest.approx(expected, abs=1e-12)
    taken = set(expected) | {"rank", "prefix_matching", "duplicate_token", "previous_token", "gold"}
    assert set(figures) == taken  # no figure without a check


def test_far_offsets_of_segments_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums_module, "FARTHEST", 4)
    rng = np.random.default_rng(5)
    documents = [random_tokens(rng, n) for n in LENGTHS]
    maps = [random_maps(rng, n) for n in LENGTHS]
    figures = measured(blocks_of(documents, maps, pad=np.nan)).result()
    near, far = (by_hand(documents, maps, False, n)["segment_evenly"] for n in (5, 99))
    assert figures["segment_evenly"][0, 0] == pytest.approx(near, abs=1e-12) != far


def test_all_texts_are_seen_whole_where_nothing_is_forbidden() -> None:
    rng = np.random.default_rng(6)
    documents = [random_tokens(rng, n) for n in (5, 5)]
    blocks = blocks_of(documents, [random_maps(rng, 5), random_maps(rng, 5)])
    free = [Block(block.layer, block.weights, block.texts) for block in blocks]
    assert_same(measured(blocks), measured(free))


def test_cross_attention_has_positions_on_both_sides() -> None:
    weights = np.zeros((1, 1, 3, 5))
    weights[0, 0, [0, 1, 2], [0, 1, 4]] = 1
    texts = texts_of_tokens(
        [0], [["a", "b", "c"]], np.array([3]), "right", [["x", "a", "b", "c", "c"]], np.array([5])
    )
    total = Measures(1, 1, Options(DEFAULT))
    total.update(Block(0, weights, texts))
    figures = {name: values.item() for name, values in total.result().items()}
    assert figures["self"] == pytest.approx(2 / 3)
    assert figures["distance"] == pytest.approx(2 / 3)
    assert figures["same_token"] == pytest.approx(1 / 3)  # c, seen at place 4
    assert figures["rank"] == pytest.approx(3)
    assert figures["at_offset"] == pytest.approx(2 / 3)
    assert figures["offset"] == 0
    assert figures["first"] == figures["sink"] == pytest.approx(1 / 3)
    assert figures["to_uniform"] == pytest.approx(1 - 1 / 5)
    assert figures["near"] == 1


# ── closed forms ─────────────────────────────────────────────────────────────────────────────

N = 20
PREVIOUS = np.eye(N, k=-1) + np.diag([1.0] + [0.0] * (N - 1))
UNIFORM = np.full((N, N), 1 / N)
FIRST = np.eye(1, N).repeat(N, axis=0)


def block_of(head: np.ndarray, tokens: list[str] | None = None, causal: bool = False) -> Block:
    n = len(head)
    texts = texts_of_tokens([0], [tokens or [str(i) for i in range(n)]], np.array([n]))
    allowed = np.tril(np.ones((1, 1, n, n), dtype=bool)) if causal else None
    return Block(0, head[None, None], texts, allowed)


def of_head(
    head: np.ndarray,
    tokens: list[str] | None = None,
    groups: tuple = DEFAULT,
    causal: bool = False,
) -> dict:
    total = Measures(1, 1, Options(groups))
    total.update(block_of(head, tokens, causal))
    return {name: values.item() for name, values in total.result().items()}


def test_a_previous_token_head() -> None:
    figures = of_head(PREVIOUS)
    expected = {"previous": 19 / 20, "self": 1 / 20, "at_offset": 1, "offset": -1, "entropy": 0,
                "keys": 1, "largest": 1, "distance": 19 / 20, "near": 1, "sink": 2 / 20,
                "rank": np.exp(np.log(18 + math.sqrt(2)) - math.sqrt(2) * math.log(math.sqrt(2))
                               / (18 + math.sqrt(2))),
                "to_uniform": 19 / 20, "to_identity": 19 / 20}  # fmt: skip
    # two rows are alike: 18 singular values of 1 and one of √2
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_a_uniform_head() -> None:
    figures = of_head(UNIFORM)
    expected = {"entropy": math.log2(N), "entropy_smoothed": math.log2(N), "keys": N, "rank": 1,
                "largest": 1 / N, "to_uniform": 0, "sink": 1 / N, "self": 1 / N,
                "previous": 19 / 400, "distance": (N * N - 1) / (3 * N)}  # fmt: skip
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_an_even_causal_head_has_harmonic_sums() -> None:
    even = np.tril(np.ones((N, N))) / np.arange(1, N + 1)[:, None]
    harmonic = [sum(1 / n for n in range(1, m + 1)) for m in range(N + 1)]
    expected = {
        "self": harmonic[N] / N,
        "first": harmonic[N] / N,
        "sink": harmonic[N] / N,
        "largest": harmonic[N] / N,
        "previous": (harmonic[N] - 1) / N,
        "next": 0,
        "first_tokens": (4 + 4 * (harmonic[N] - harmonic[4])) / N,
        "distance": (N - 1) / 4,  # row i: the mean of 0 … i
        "entropy": math.log2(math.factorial(N)) / N,
        "entropy_smoothed": math.log2(math.factorial(N)) / N,  # even rows stay as they are
        "entropy_first": 0,
        "keys": (N + 1) / 2,
        "to_uniform": 0,
        "to_identity": 1 - harmonic[N] / N,
        "near": (6 + 6 * (harmonic[N] - harmonic[6])) / N,
        "band": (2 * harmonic[N] - 1) / N,
        "fixed_band": 1.5 / N,  # the first key, from the first two rows
    }
    figures = of_head(even, causal=True)
    found = {name: figures[name] for name in expected}
    assert found == pytest.approx(expected, abs=1e-12)
    total = Measures(1, 1, Options(("sinks",)))
    total.update(block_of(even, causal=True))
    alpha = total.parts["sinks"].alpha()[0, 0]
    closed = [(harmonic[N] - harmonic[k]) / (N - k) for k in range(16)]
    assert alpha.tolist() == pytest.approx(closed, abs=1e-14)


def test_an_even_head_over_all_keys() -> None:
    figures = of_head(UNIFORM)
    # Σ over rows of Σ|i - j| is n (n² - 1) / 3; 5 keys on each side, fewer at the ends
    expected = {"distance": (N * N - 1) / (3 * N), "near": (11 * N - 2 * 15) / N**2, "keys": N,
                "self": 1 / N, "previous": (N - 1) / N**2, "next": (N - 1) / N**2, "sink": 1 / N,
                "confidence": 1 / N, "rank": 1, "to_uniform": 0, "entropy": math.log2(N),
                "entropy_first": math.log2(N), "same_token": 0}  # fmt: skip
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-12)


def test_a_head_of_two_offsets() -> None:
    """Three rows of four look one back, the others two ahead: 0.7 and 0.3 of the weight there."""
    head = np.zeros((N, N))
    for i in range(N):
        mostly, else_ = (i + 2, i - 1) if i % 4 == 3 else (i - 1, i + 2)
        weights = {mostly: 0.7, else_: 0.3}
        for j, weight in weights.items():
            if 0 <= j < N:
                head[i, j] = weight
        head[i] /= head[i].sum()
    figures = of_head(head)
    # rows 0 (none before it) and 19 (none two ahead) have one place to look at, as has row 18
    back, ahead = [1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 16, 17, 18, 19], [0, 3, 7, 11, 15]
    assert len(back) + len(ahead) == N
    assert (figures["offset"], figures["at_offset"]) == (-1, pytest.approx(15 / 19))
    total = Measures(1, 1, Options(("offsets",)))
    total.update(block_of(head))
    shares, offsets = total.parts["offsets"].shares()
    assert shares[0, 0][offsets == 2].item() == pytest.approx(5 / 18)
    assert np.nansum(shares[0, 0][(offsets != -1) & (offsets != 2)]) == 0
    assert figures["previous"] == pytest.approx((13 * 0.7 + 2 + 4 * 0.3) / N)
    assert figures["distance"] == pytest.approx(
        (13 * (0.7 + 0.6) + 2 * 1 + 4 * (1.4 + 0.3) + 2) / N
    )


def test_a_head_that_stays_in_its_segment() -> None:
    """[CLS] a … a [SEP] b … b [SEP]: even over the ordinary tokens of the own segment."""
    m = 9
    tokens = ["[CLS]", *(f"a{i}" for i in range(m)), "[SEP]", *(f"b{i}" for i in range(m)), "[SEP]"]
    segment = np.repeat([0, 1], [m + 2, m + 1])
    ordinary = ~np.isin(tokens, ["[CLS]", "[SEP]"])
    head = (segment[:, None] == segment) & ordinary
    figures = of_head(head / head.sum(1, keepdims=True), tokens)
    assert figures["segment"] == pytest.approx(1)
    assert figures["rank"] == pytest.approx(np.exp(entropy_of(np.sqrt([m + 2, m + 1]))))
    assert figures["keys"] == pytest.approx(m)
    assert (figures["fixed"], figures["same_token"]) == (0, 0)
    classes = {name: np.full((1, 1), value) for name, value in figures.items()}
    assert classify(classes, 0, 0).name == form_of(classes, 0, 0) == "block"


@pytest.mark.parametrize("reach", [1, 2, 3])
def test_a_head_that_looks_at_its_neighbours_stays_in_its_segment_by_that_alone(
    reach: int,
) -> None:
    tokens = [f"a{i}" for i in range(40)]
    tokens[19] = tokens[39] = "[SEP]"
    apart = np.abs(np.subtract.outer(np.arange(40), np.arange(40)))
    ordinary = np.arange(40) % 20 != 19
    ordinary[0] = False
    head = ((apart <= reach) & ordinary).astype(float)
    figures = of_head(head / len(tokens), tokens)  # the same in each cell
    assert figures["segment"] > 0.8
    assert figures["segment_evenly"] == pytest.approx(figures["segment"])
    classes = {name: np.full((1, 1), value) for name, value in figures.items()}
    assert classify(classes, 0, 0).name != "block"
    assert form_of(classes, 0, 0) != "block"


@pytest.mark.parametrize("n", [3, 5, 8, 20])
def test_keys_that_are_first_and_near_are_not_counted_twice(n: int) -> None:
    tokens = [str(i) for i in range(n)]
    for head, form in ((np.eye(1, n).repeat(n, axis=0), "vertical"), (np.eye(n), "diagonal")):
        classes = {name: np.full((1, 1), v) for name, v in of_head(head, tokens).items()}
        assert form_of(classes, 0, 0) == form


def entropy_of(values: np.ndarray) -> float:
    shares = values / values.sum()
    return float(-(shares * np.log(shares)).sum())


def test_halves_are_exact_in_few_bits() -> None:
    """Rows of ½, ¼ … are the same in float16: so are all figures, but for what is smoothed."""
    rows = np.tril(0.5 ** np.arange(N)[:, None] * 2.0 ** np.arange(N)[None] / 2, -1)[:12, :12]
    rows[:, 0] += 1 - rows.sum(1)
    assert (rows.sum(1) == 1).all()
    wide, small = of_head(rows), of_head(rows.astype(np.float16))
    for name, value in wide.items():
        assert small[name] == pytest.approx(value, abs=1e-6, nan_ok=True), name


def test_a_sink_and_the_identity() -> None:
    sink, identity = of_head(FIRST), of_head(np.eye(N))
    assert sink["sink"] == sink["strongest"] == sink["first"] == sink["first_tokens"] == 1
    assert (sink["strongest_at"], sink["rank"]) == (0, pytest.approx(1))
    assert identity["rank"] == pytest.approx(N)
    assert (identity["self"], identity["to_identity"], identity["offset"]) == (1, 0, 0)
    assert identity["sink"] == pytest.approx(1 / N)


def test_an_induction_head_on_repeated_tokens() -> None:
    ids = repeated(np.arange(100), seed=3)
    assert len(ids) == 100
    assert len(set(ids[:25].tolist())) == 25
    assert (ids.reshape(4, 25) == ids[:25]).all()
    assert (repeated(np.arange(100), 3) == ids).all()
    assert (repeated(np.arange(100), 4) != ids).any()
    tokens = ["[CLS]", *(f"t{i}" for i in ids)]
    head, duplicate = np.zeros((101, 101)), np.zeros((101, 101))
    for i in range(101):
        head[i, i - 24 if i >= 26 else 0] = 1  # what followed this token one copy earlier
        duplicate[i, i - 25 if i >= 26 else 0] = 1
    figures = of_head(head, tokens, ("induction",))
    assert figures == {"prefix_matching": 1, "duplicate_token": 0, "previous_token": 0}
    figures = of_head(duplicate, tokens, ("induction",))
    assert figures == {"prefix_matching": 0, "duplicate_token": 1, "previous_token": 0}
    even = np.tril(np.ones((101, 101))) / np.arange(1, 102)[:, None]
    rows = range(26, 101)  # those of the second copy and later
    copies = [(i - 1) // 25 for i in rows]
    figures = of_head(even, tokens, ("induction",))
    assert figures == pytest.approx(
        {
            "prefix_matching": np.mean([c / (i + 1) for i, c in zip(rows, copies, strict=True)]),
            "duplicate_token": np.mean([c / (i + 1) for i, c in zip(rows, copies, strict=True)]),
            "previous_token": np.mean([1 / (i + 1) for i in rows]),
        }
    )


def test_induction_wants_a_token_that_stood_earlier() -> None:
    assert np.isnan(of_head(UNIFORM, groups=("induction",))["prefix_matching"])
    assert isinstance(Induction(1, 1).result()["prefix_matching"], np.ndarray)


# ── parts, merged ────────────────────────────────────────────────────────────────────────────


def assert_same(one: Measures, other: Measures, close: float = 1e-10) -> None:
    left, right = one.result(), other.result()
    assert left.keys() == right.keys()
    for name, values in left.items():
        np.testing.assert_allclose(values, right[name], rtol=close, atol=close, err_msg=name)
    pairs = [total.parts["agreement"].divergences() for total in (one, other)]
    np.testing.assert_allclose(*pairs, rtol=close, atol=close)
    alphas = [total.parts["sinks"].alpha() for total in (one, other)]
    np.testing.assert_allclose(*alphas, rtol=close, atol=close)


@given(
    seed=st.integers(0, 99),
    cuts=st.lists(st.integers(0, 6), max_size=4),
    order=st.permutations(range(7)),
    causal=st.booleans(),
    pad_side=st.sampled_from(["right", "left"]),
    dtype=st.sampled_from(["float32", "float64", "float16"]),
)
def test_any_split_of_the_corpus_gives_the_same_figures(
    seed: int, cuts: list[int], order: list[int], causal: bool, pad_side: str, dtype: str
) -> None:
    """Whatever stands beside a document in its batch, and whatever fills its rows of padding."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, 7)
    documents = [random_tokens(rng, n) for n in lengths]
    maps = [random_maps(rng, n, causal=causal) for n in lengths]
    annotations = {i: random_annotation(rng, n) for i, n in enumerate(lengths)}
    facts = {"causal": causal, "pad_side": pad_side, "pad": np.nan, "dtype": dtype}
    whole = measured(annotated(blocks_of(documents, maps, **facts), annotations))
    parts = []
    for start, stop in pairwise([0, *sorted(cuts), 7]):
        some = order[start:stop]
        part = Measures(2, 3, ALL)
        if some:
            chosen = [documents[i] for i in some], [maps[i] for i in some]
            for made in annotated(blocks_of(*chosen, numbers=some, **facts), annotations):
                part.update(made)
        parts.append(part)
    merged = merge_all(parts)
    assert_same(whole, merged)
    assert_same(merged, merge_all(parts[::-1]))
    kept = Measures(2, 3, ALL).load(merged.state())
    assert_same(kept, merged, close=0)


def random_annotation(rng: np.random.Generator, n: int) -> Annotation:
    """Words of one token, but for the first, which is none; pairs with two labels."""
    pairs = [(*map(int, rng.integers(0, n, 2)), "xy"[rng.integers(2)]) for _ in range(3)]
    return Annotation(tuple(pairs), (-1, *range(n - 1)))


def annotated(blocks: list[Block], annotations: dict[int, Annotation]) -> list[Block]:
    one = blocks[0].texts
    texts = BatchTexts(one.numbers, one.queries, one.keys, annotations)
    return [Block(block.layer, block.weights, texts, block.allowed) for block in blocks]


@given(st.lists(st.integers(0, 99), min_size=3, max_size=3), st.booleans())
def test_merging_is_associative_and_commutative_in_each_group(
    seeds: list[int], causal: bool
) -> None:
    """Texts of up to 40 tokens, so that sums by offset are of several widths."""
    parts = []
    for place, seed in enumerate(seeds):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(0, 41))
        blocks = []
        if n:
            made = blocks_of(
                [random_tokens(rng, n)], [random_maps(rng, n, causal=causal)],
                causal=causal, numbers=[place],
            )  # fmt: skip
            blocks = annotated(made, {place: random_annotation(rng, n)})
        parts.append(measured(blocks))
    one, two, three = parts
    for left, right in (
        (one.merge(two), two.merge(one)),
        (one.merge(two).merge(three), one.merge(two.merge(three))),
    ):
        mine, other = left.state(), right.state()
        assert mine.keys() == other.keys()
        for name, array in mine.items():
            np.testing.assert_allclose(array, other[name], rtol=1e-13, atol=1e-13, err_msg=name)
    groups = {name.split("/")[0] for part in parts for name in part.state()}
    assert groups <= set(GROUPS)


@given(st.integers(0, 99), st.integers(1, 9))
def test_any_split_of_a_text_into_blocks_of_rows_gives_the_same(seed: int, step: int) -> None:
    rng = np.random.default_rng(seed)
    options = Options(("where", "sharpness", "offsets", "sinks", "evenness", "induction"))
    (tokens, maps) = random_tokens(rng, 17), random_maps(rng, 17)
    whole = measured(blocks_of([tokens], [maps]), options).result()
    rows = Measures(2, 3, options)
    for block in blocks_of([tokens], [maps]):
        for at in range(0, 17, step):
            weights, allowed = block.weights[:, :, at : at + step], block.allowed
            assert allowed is not None
            some = allowed[:, :, at : at + step]
            for head in range(3):  # each by itself, as those of a long text come
                one = weights[:, head : head + 1]
                rows.update(Block(block.layer, one, block.texts, some, at, first_head=head))
    for name, values in rows.result().items():
        np.testing.assert_allclose(values, whole[name], rtol=1e-12, err_msg=name)


def test_ranks_want_whole_texts() -> None:
    rng = np.random.default_rng(1)
    (block, _) = blocks_of([random_tokens(rng, 17)], [random_maps(rng, 17)])
    total = Measures(2, 3, Options(("rank", "agreement", "gold")))
    total.update(Block(0, block.weights[:, :, :5], block.texts))
    assert total.state() == {}


def test_merging_changes_neither_part() -> None:
    rng = np.random.default_rng(8)
    one = measured(blocks_of([random_tokens(rng, 9)], [random_maps(rng, 9)]))
    two = measured(blocks_of([random_tokens(rng, 40)], [random_maps(rng, 40)]))
    before = {name: array.copy() for name, array in one.state().items()}
    both = one.merge(two)
    for state in (one.state(), one.merge(Measures(2, 3, ALL)).state()):
        assert state.keys() == before.keys()
        for name, array in state.items():
            np.testing.assert_array_equal(array, before[name])
    assert both.state()["where/rows"].tolist() == [[49.0] * 3] * 2


@pytest.mark.parametrize("harm", [np.nan, np.inf])
def test_a_weight_that_is_no_number_spoils_its_head_alone(harm: float) -> None:
    rng = np.random.default_rng(9)
    tokens, maps = random_tokens(rng, 9), random_maps(rng, 9)
    clean = measured(blocks_of([tokens], [maps])).result()
    maps[1, 2, 4, 4] = harm
    spared = np.ones((2, 3), dtype=bool)
    spared[1, 2] = False
    for name, values in measured(blocks_of([tokens], [maps])).result().items():
        np.testing.assert_array_equal(values[spared], clean[name][spared], err_msg=name)
        # what is picked out of the map, not multiplied with it, may miss the one cell
        picked = ("separator", "strongest", "prefix", "duplicate", "previous", "next", "same")
        picked += ("punctuation", "special", "first", "gold", "fixed_band")
        if name not in ("entropy_first", "sink"):
            assert not np.isfinite(values[1, 2]) or name.startswith(picked)
    assert np.isnan(measured(blocks_of([tokens], [maps])).result()["rank"][1, 2])


def test_nothing_measured_is_nan() -> None:
    for name, values in Measures(2, 3, ALL).result().items():
        assert np.isnan(values).all(), name
    assert np.isnan(Measures(2, 3, ALL).parts["agreement"].divergences()).all()


def test_a_text_without_tokens_counts_nothing() -> None:
    texts = texts_of_tokens([0], [["[PAD]", "[PAD]"]], np.array([0]))
    total = Measures(1, 1, Options(GROUPS))
    total.update(Block(0, np.full((1, 1, 2, 2), np.nan), texts))
    assert all(np.isnan(values).all() for values in total.result().values())


def test_ranks_are_of_a_sample_that_depends_on_the_number_alone() -> None:
    total = Measures(1, 1, Options(("rank",)))
    for number in (0, 7, 8, 127, 128, 129, 256):
        texts = texts_of_tokens([number], [["a", "b"]], np.array([2]))
        total.update(Block(0, np.eye(2)[None, None], texts))
    assert total.state()["rank/rows"].item() == 2 * 4  # of 0, 7, 128 and 256
    long = texts_of_tokens([0], [["a"] * 513], np.array([513]))
    total.update(Block(0, np.eye(513)[None, None], long))
    assert total.state()["rank/rows"].item() == 2 * 4


def test_offsets_beyond_the_farthest_are_counted_apart() -> None:
    tokens = [str(i) for i in range(2500)]
    texts = texts_of_tokens([0], [tokens], np.array([2500]))
    total = Measures(1, 1, Options(("offsets",)))
    rows = np.zeros((1, 1, 2, 2500))
    rows[0, 0, 0, 2499] = 1  # row 1 looks 2498 ahead
    rows[0, 0, 1, 4] = 1
    total.update(Block(0, rows, texts, start=1))
    total.update(Block(0, rows[:, :, ::-1, :10], texts, start=2490, first_key=0))
    shares, offsets = total.parts["offsets"].shares()
    assert (offsets[0], offsets[-1]) == (-2048, 2048)
    assert shares[0, 0][offsets == 2].item() == 1 / 4  # all four rows have such a key, one looks
    assert total.state()["offsets/found"][0, 0, [0, -1]].tolist() == [2.0, 1.0]


def test_kinds_of_tokens() -> None:
    assert kind_of("[SEP]") == kind_of("</s>") == SEPARATOR | SPECIAL
    assert kind_of("[CLS]") == kind_of("<s>") == SPECIAL
    assert {kind_of(token) for token in (".", ",", "。", "##.", "▁,", "Ġ.", "،")} == {PUNCTUATION}
    assert {kind_of(token) for token in ("", "a", "##", "▁", "!", "[X]", "<0x0A>", "...")} == {0}


def test_unknown_measures() -> None:
    with pytest.raises(ConfigError) as error:
        Options(("where", "\x1b[31mwhy"))
    assert str(error.value) == (
        "measures '\\x1b[31mwhy': known are where, sharpness, offsets, sinks, evenness, rank, "
        "agreement, gold, induction"
    )


def test_layers_with_masks_of_their_own_in_one_array() -> None:
    """Views of one array differ from layer to layer; what is kept for the next is not mixed up."""
    rng = np.random.default_rng(12)
    tokens, n = random_tokens(rng, 13), 13
    full = np.stack([random_maps(rng, n, 1)[0], random_maps(rng, n, 1, causal=True)[0]])
    masks = np.stack([np.ones((n, n), bool), np.tril(np.ones((n, n), bool))])[:, None, None]
    texts = texts_of_tokens([0], [tokens], np.array([n]))
    options = Options(("where", "sharpness", "evenness"))
    together = Measures(2, 3, options)
    for layer in (0, 1, 0, 1):
        together.update(Block(layer, full[layer][None], texts, masks[layer]))
    for layer in (0, 1):
        alone = Measures(1, 3, options)
        fresh = texts_of_tokens([0], [tokens], np.array([n]))
        alone.update(Block(0, full[layer][None], fresh, masks[layer].copy()))
        for name, values in alone.result().items():
            np.testing.assert_allclose(together.result()[name][layer], values[0], err_msg=name)
