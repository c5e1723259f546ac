"""The page's file: its numbers against the maps in float64, what is in it, and its size."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from pooled_runs import Made, Read, made, numbered, read

from attnviz.full_resolution import windows_kept
from attnviz.measures import MEASURES, measure
from attnviz.render import one_file
from attnviz.render import page as writer
from attnviz.render.figure_options import FigureOptions
from attnviz.render.page import PagePlan, write_page
from attnviz.render.page_look import PageLook
from attnviz.render.page_maps import Maps, largest_keys, spans_of
from attnviz.render.page_numbers import DecimalCodes, LogCodes, list_codes
from attnviz.render.palette import sequential
from attnviz.result import Attention
from attnviz.tokens import SEP
from attnviz.trace import Step

L, B, H, TQ, TK = 2, 3, 3, 5, 7  # primes, so that a swapped axis cannot pass by luck


def make_result(seed: int = 0, allowed: np.ndarray | None = None, **rest: Any) -> Attention:
    """A padded batch of cross attention: lengths 5, 4, 0 and 7, 6, 1."""
    rng = np.random.default_rng(seed)
    if allowed is None:
        allowed = np.ones((L, B, 1, TQ, TK), dtype=bool)
        allowed[:, 1, :, :, 6:] = False
        allowed[:, 2, :, :, 1:] = False
    scores = np.where(allowed, rng.normal(size=(L, B, H, TQ, TK)) * 2, -np.inf)
    attention = np.exp(scores - scores.max(-1, keepdims=True, initial=-1e9))
    attention /= np.maximum(attention.sum(-1, keepdims=True), 1e-300)
    queries = tuple(tuple(f"q{b}{t}" for t in range(TQ)) for b in range(B))
    keys = tuple(tuple(f"k{b}{t}" for t in range(TK)) for b in range(B))
    facts: dict[str, Any] = {"masks": ("padding",), "source": "made up", "trained": True, **rest}
    return Attention(
        attention.astype(np.float32),
        allowed,
        query_tokens=queries,
        key_tokens=keys,
        lengths=np.array([5, 4, 0]),
        key_lengths=np.array([7, 6, 1]),
        **facts,
    )


STEP = Step(
    name="q_projected",
    axes=("B", "Tq", "H·d_k"),
    shape=(2, 3, 4),
    dtype="float32",
    item_bytes=4,
    is_view=False,
    is_contiguous=True,
    parameters=(("weight", ("H·d_k", "d_model"), (4, 8)),),
    sums_over="d_model",
    summed=8,
    flops_each=1,
    source="attention.py:1",
)


def written(run: Made | Attention, tmp_path: Path, **options: Any) -> Read:
    result = run.run if isinstance(run, Made) else run
    options = {"window": windows_kept(result), **options}
    write_page(result, tmp_path / "page.html", **options)
    return read(tmp_path / "page.html")


def pooled_by_hand(
    weights: np.ndarray, allowed: np.ndarray, cells: tuple[int, int], kind: str
) -> np.ndarray:
    """Each pixel from its own cells, one by one; NaN where none is allowed."""
    rows, columns = (-(-n // c) for n, c in zip(weights.shape, cells, strict=True))
    found = np.full((rows, columns), np.nan)
    for i in range(rows):
        for j in range(columns):
            where = np.s_[i * cells[0] : (i + 1) * cells[0], j * cells[1] : (j + 1) * cells[1]]
            some = weights[where][allowed[where]]
            if len(some):
                found[i, j] = some.mean() if kind == "mean" else some.max()
    return found


@pytest.fixture(scope="module")
def padded() -> Made:
    """Two texts of 467 and 311 tokens, padded on the left; 2 layers of 3 heads, causal."""
    return made([numbered(467), numbered(311, "s")], layers=2, heads=3, pixels=197, pad_side="left")


@pytest.fixture(scope="module")
def page(padded: Made, tmp_path_factory: pytest.TempPathFactory) -> Read:
    return written(padded, tmp_path_factory.mktemp("page"))


# ── codes ────────────────────────────────────────────────────────────────────────────────────

weights_ = npst.arrays(np.float64, (3, 5), elements=st.floats(1e-9, 9e4))
signs = npst.arrays(np.int64, (3, 5), elements=st.sampled_from([1, 0]))


def decoded(codec: LogCodes | DecimalCodes, codes: np.ndarray) -> np.ndarray:
    return Read("", {}, {}).values(codes, codec.described())


@given(weights_, signs, st.booleans())
def test_two_bytes_have_four_correct_digits(size: np.ndarray, sign: np.ndarray, both: bool) -> None:
    weights = size * sign * (np.array([1, -1, 1, 1, -1]) if both else 1)
    codec = DecimalCodes.of(weights)
    codes = codec.codes(weights, np.ones((3, 5), bool))
    found = decoded(codec, codes)
    assert ((codes == 1) == (weights == 0)).all()
    top = np.abs(weights).max()
    large = np.abs(weights) > top * 1e-6
    digits = 3 if codec.signed else 4
    rounded = [float(f"{x:.{digits}g}") for x in weights[large]]
    np.testing.assert_allclose(found[large], rounded, rtol=10.0**-digits * 1.001)
    assert (np.abs(found[large] / weights[large] - 1) <= 10.0 ** (1 - digits) / 2 * 1.0001).all()
    small = ~large & (weights != 0)
    assert (np.abs(found[small] / weights[small] - 1) <= 0.0501).all()


@given(weights_, signs, st.sampled_from([0.025, 0.05, 0.1]), st.booleans())
def test_shades_are_as_exact_as_they_say(
    size: np.ndarray, sign: np.ndarray, error: float, both: bool
) -> None:
    weights = (size * sign * (np.array([1, -1, 1, 1, -1]) if both else 1)).astype(np.float32)
    shades = LogCodes.of(weights, error)
    codes = shades.codes(weights, np.ones((3, 5), bool))
    told = codes >= 3
    found = decoded(shades, codes)[told]
    assert np.abs(np.log(found / weights[told])).max(initial=0) <= np.log(shades.ratio) / 2 + 1e-4
    assert shades.signed or shades.error <= error * 1.0001
    assert ((codes == 1) == (weights == 0)).all()
    assert (np.abs(weights[codes == 2]) < shades.low).all()
    top = np.abs(weights).max()
    assert (np.abs(weights[codes == 2]) < top * 2.0**-16).all()  # all above it are told


@pytest.mark.parametrize("codec", [DecimalCodes, LogCodes])
def test_codes_of_what_is_no_weight(codec: Any) -> None:
    weights = np.array([[0.5, np.nan, 0], [np.inf, -np.inf, 1]], dtype=np.float32)
    allowed = np.array([[1, 1, 1], [1, 0, 1]], dtype=bool)
    made = codec.of(weights)
    codes = made.codes(weights, allowed)
    broken = 255 if codec is LogCodes else 65535
    assert (codes == broken).tolist() == [[False, True, False], [True, False, False]]
    assert (codes == 0).tolist() == [[False] * 3, [False, True, False]]
    assert decoded(made, codes)[1, 2] == pytest.approx(1, rel=0.03)
    assert codes[0, 2] == 1
    nothing = np.zeros((2, 2))
    assert (codec.of(nothing).codes(nothing, nothing == 0) == 1).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_weights_too_small_for_codes_are_not_called_zero(dtype: type) -> None:
    weights = np.array([[0, np.finfo(dtype).smallest_subnormal, 1]], dtype=dtype)
    for codec in (DecimalCodes.of(weights), LogCodes.of(weights)):
        codes = codec.codes(weights, weights >= 0)
        assert codes[0, 0] == 1
        assert codes[0, 1] >= 2


@given(
    npst.arrays(np.float64, (13,), elements=st.floats(0, 1).filter(lambda x: x == 0 or x > 1e-60))
)
def test_weights_in_lists_are_rounded_to_three_digits(weights: np.ndarray) -> None:
    codes, lowest = list_codes(weights)
    power, mantissa = np.divmod(codes - 1, 900)
    for code, p, m, weight in zip(codes, power, mantissa, weights, strict=True):
        found = float(f"{100 + m}e{p + lowest - 2}") if code else 0.0
        assert found == pytest.approx(float(f"{weight:.3g}"), rel=1.1e-3 if weight else 0)
        assert abs(found - weight) <= 0.00501 * weight
    order = np.argsort(weights, kind="stable")
    assert (np.diff(codes[order]) >= 0).all()


def test_the_first_of_equal_keys_are_listed() -> None:
    weights = np.array([[0.1] * 10, [0.0] * 9 + [1.0], [0.2, 0.05, 0.2, 0.2, 0.05] * 2])
    keys, found = largest_keys(weights, 4)
    assert keys.tolist() == [[0, 1, 2, 3], [9, -1, -1, -1], [0, 2, 3, 5]]
    assert found.tolist() == [[0.1] * 4, [1.0, 0, 0, 0], [0.2] * 4]


# ── whole maps ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fine", [True, False])
def test_a_page_holds_every_weight_within_the_error_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fine: bool
) -> None:
    if not fine:
        monkeypatch.setattr(writer, "FINE_CELLS", 0)
        monkeypatch.setattr(writer, "LIMIT", 0)
    result = make_result()
    found = written(result, tmp_path)
    assert found.facts["fine"] == fine
    assert found.facts["error"] <= (0.0005 if fine else 0.025)
    assert found.facts["heads"] == [[layer, head] for layer in range(L) for head in range(H)]
    for s in range(B):
        for i, (layer, head) in enumerate(found.facts["heads"]):
            exact = result.attention[layer, s, head].astype(np.float64)
            real = exact > 0
            error = np.abs(found.weights(s, i)[real] / exact[real] - 1)
            assert error.max(initial=0) <= found.facts["error"] + 1e-6
            assert ((found.pixels(s, i, "mean", 0) == 1) == (exact == 0)).all()
            if not fine:
                keys, weights = found.top(s, i)
                shown = np.where(result.allowed[layer, s, 0], exact, 0)[: result.lengths[s]]
                expected = -np.sort(-shown, axis=1)
                np.testing.assert_allclose(weights.T[: len(shown)], expected, rtol=5.001e-3)
                assert (keys.T[: len(shown), 0] == shown.argmax(1)).all()


def noise(n: int, heads: int) -> Attention:
    rng = np.random.default_rng(0)
    scores = np.exp(rng.normal(size=(1, 1, heads, n, n)))
    tokens = (tuple("x" * n),)
    return Attention(
        (scores / scores.sum(-1, keepdims=True)).astype(np.float32),
        np.ones((1, 1, 1, n, n), dtype=bool),
        query_tokens=tokens,
        key_tokens=tokens,
        lengths=np.array([n]),
        key_lengths=np.array([n]),
    )


def test_a_page_too_large_gets_coarser_and_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FINE_CELLS", 0)
    result = noise(288, 3)
    path = tmp_path / "page.html"
    plans = []
    for budget in (10**7, 420_000, 330_000, 240_000, 180_000, 60_000):
        warnings = write_page(result, path, budget_bytes=budget)
        found = read(path)
        plans.append((found.facts["fine"], found.facts["cells"][0], found.facts["error"]))
        exact = result.attention[0, 0, 1].astype(np.float64)
        if found.facts["cells"] == [1, 1]:
            error = np.abs(found.weights(0, 1) / exact - 1).max()
            assert error <= found.facts["error"] * 1.001
        if budget == 10**7:
            assert warnings == []
        if found.facts["top"]:
            keys, weights = largest_keys(exact) if found.facts["fine"] else (None, None)
            listed = found.top(0, 1) if not found.facts["fine"] else (keys.T, weights.T)
            assert (listed[0][0] == exact.argmax(1)).all()
            np.testing.assert_allclose(listed[1][0], exact.max(1), rtol=5.001e-3)
    assert plans[0] == (True, 1, 0.0005)
    assert plans[1][:2] == (False, 1)
    assert plans[1][2] <= 0.025
    assert 0.025 < plans[2][2] <= 0.1
    assert [plan[1] for plan in plans] == sorted(plan[1] for plan in plans)
    assert plans[-1][1] > 1
    assert warnings[0].startswith(
        "to keep the page at 0 MB its pixels are 2 × 2 cells instead of 1"
    )


def test_a_pooled_page_of_a_whole_map_has_parts_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FINE_CELLS", 0)
    monkeypatch.setattr(writer, "PIXEL_SHARE", 0.3)
    monkeypatch.setattr(writer, "CELL_SHARE", 0.3)
    result = noise(288, 1)
    found = written(result, tmp_path, window=None, budget_bytes=170_000)
    assert found.facts["cells"] == [2, 2]
    [[row, column, block], *_] = found.head(0, 0)["details"]
    where = np.s_[row * 256 : (row + 1) * 256, column * 256 : (column + 1) * 256]
    exact = result.attention[0, 0, 0][where]
    codes = np.frombuffer(found.blocks[block], np.uint8).reshape(exact.shape)
    values = found.values(codes, found.head(0, 0)["cell"])
    assert np.abs(values[codes > 2] / exact[codes > 2] - 1).max() < 0.026


def test_rows_of_a_whole_map_have_statistics(tmp_path: Path) -> None:
    result = make_result()
    found = written(result, tmp_path)
    exact = result.attention[1, 1, 2].astype(np.float64)[:4]
    logs = np.log2(exact, out=np.zeros_like(exact), where=exact > 0)
    apart = np.abs(np.arange(4)[:, None] - np.arange(7))
    expected = {
        "entropy": -(exact * logs).sum(1),
        "largest": exact.max(1),
        "distance": (exact * apart).sum(1),
        "first": exact[:, 0],
        "previous": np.append(0, np.diag(exact, -1)),
        "self": np.diag(exact),
        "near": exact.sum(1),
    }
    for name, values in expected.items():
        own = found.statistic(1, 5, name)
        np.testing.assert_allclose(own[:4], values, rtol=2e-3, err_msg=name)
        assert own[4] == 0  # a row of padding
    assert found.facts["rowError"] < 0.002


def test_a_huge_page_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LARGE_PAGE", 1000)
    assert write_page(make_result(), tmp_path / "page.html") == [
        "the page has 0 MB and opens slowly; --heads and --sequences make it smaller"
    ]


# ── masks, measures, facts ───────────────────────────────────────────────────────────────────


def test_masks_are_stored_cell_by_cell_and_each_once(tmp_path: Path) -> None:
    result = make_result()
    found = written(result, tmp_path)
    assert found.facts["reasons"] == ["padding: it is padding"]
    blocks = [[head["mask"] for head in one["heads"]] for one in found.facts["sequences"]]
    assert blocks[0] == [None] * 6
    assert len({*blocks[1]}) == len({*blocks[2]}) == 1
    for s in range(B):
        assert ((found.mask(s, 0) == 0) == result.allowed[0, s, 0]).all()


def test_masks_of_single_heads(tmp_path: Path) -> None:
    allowed = np.random.default_rng(1).random((L, B, H, TQ, TK)) < 0.6
    found = written(make_result(allowed=allowed), tmp_path)
    for s in range(B):
        for i, (layer, head) in enumerate(found.facts["heads"]):
            assert ((found.mask(s, i) == 0) == allowed[layer, s, head]).all()


def test_the_scale_leaves_out_what_is_not_shown(tmp_path: Path) -> None:
    result = make_result()
    result.attention[0, 1, 0] = 0.125
    result.attention[0, 1, 0, 4, 0] = 0.75  # a padded query
    result.attention[0, 1, 0, 0, 6] = 0.5  # a padded, forbidden key
    result.attention[0, 1, 1, 0, 0] = np.inf
    result.attention[0, 1, 1, 1:] = 0.25
    result.attention[0, 1, 1, 0, 1:] = 0.25
    one = written(result, tmp_path).facts["sequences"][1]
    assert [head["mean"]["top"] for head in one["heads"][:2]] == [0.125, 0.25]
    assert one["queryReal"] == [0, 4]
    assert one["keyReal"] == [0, 6]


def test_measures_are_those_of_stats(tmp_path: Path) -> None:
    result = make_result()
    found = written(result, tmp_path)
    assert found.facts["measures"] == MEASURES
    for s, one in enumerate(found.facts["sequences"]):
        expected = measure(result, s).result()
        for name in MEASURES:
            values = [expected[name][layer, head] for layer, head in found.facts["heads"]]
            assert one["measures"][name] == [None if np.isnan(v) else v for v in values]
    assert found.facts["sequences"][2]["measures"]["entropy"] == [None] * 6


def test_padding_on_the_left_is_found(tmp_path: Path) -> None:
    one = written(make_result(pad_side="left"), tmp_path).facts["sequences"]
    assert [s["queryReal"] for s in one] == [[0, 5], [1, 5], [5, 5]]
    assert [s["keyReal"] for s in one] == [[0, 7], [1, 7], [6, 7]]


def test_prompt_and_answer_are_told_apart(tmp_path: Path) -> None:
    plain, right = make_result(), make_result(n_prompt=(3, 2, 0), notes=("made so",))
    left = make_result(n_prompt=(3, 2, 0), pad_side="left")
    answers = [
        [s["answer"] for s in written(result, tmp_path).facts["sequences"]]
        for result in (plain, right, left)
    ]
    assert answers == [[None] * 3, [3, 2, 0], [3, 3, 5]]
    written_by_model = "the model wrote what stands after the line, in bold in the text"
    assert written(right, tmp_path).facts["notes"] == ["made so", written_by_model]
    assert written(plain, tmp_path).facts["notes"] == []


def test_what_is_known_of_pieces_is_no_line_of_the_page(tmp_path: Path) -> None:
    config = {"model": "m", "query_pieces": [{}] * 3, "key_pieces": [{}] * 3}
    assert written(make_result(config=config), tmp_path).facts["config"] == [["model", "m"]]


def test_the_facts_of_the_run(tmp_path: Path) -> None:
    config = {"d_model": 64, "positions": "none", "broken": float("nan")}
    result = make_result(config=config, trained=False)
    found = written(result, tmp_path, steps=[STEP], command="attnviz run '<b>' & more")
    assert found.facts["command"] == "attnviz run '<b>' & more"
    assert found.facts["trained"] is False
    assert found.facts["cross"] is True
    assert found.facts["masks"] == ["padding"]
    assert found.facts["config"] == [["d_model", "64"], ["positions", "none"], ["broken", "NaN"]]
    assert [name for name, _ in found.facts["versions"]] == [
        "attnviz",
        "Python",
        "NumPy",
        "PyTorch",
        "zlib",
        "system",
    ]
    assert found.facts["steps"] == [
        {
            "name": "q_projected",
            "stage": "project",
            "words": STEP.words,
            "axes": ["B", "Tq", "H·d_k"],
            "shape": [2, 3, 4],
            "dtype": "float32",
            "isView": False,
            "isContiguous": True,
            "nbytes": 96,
            "parameters": [["weight", ["H·d_k", "d_model"], [4, 8]]],
            "matmulFlops": 384,
            "elementwiseFlops": 24,
            "source": "attention.py:1",
        }
    ]


def test_chosen_heads_and_sequences_alone(tmp_path: Path) -> None:
    result = make_result()
    found = written(result, tmp_path, heads=[(1, 2), (0, 1)], sequences=[1])
    assert found.facts["heads"] == [[1, 2], [0, 1]]
    assert [one["index"] for one in found.facts["sequences"]] == [1]
    assert np.allclose(found.weights(0, 0), result.attention[1, 1, 2], rtol=5.1e-4)
    assert np.allclose(found.weights(0, 1), result.attention[0, 1, 1], rtol=5.1e-4)
    assert ((found.mask(0, 0) == 0) == result.allowed[1, 1, 0]).all()


def test_self_attention_stores_its_tokens_once(tmp_path: Path) -> None:
    found = written(made([numbered(7)]), tmp_path)
    queries, keys = found.facts["sequences"][0]["tokens"]
    assert queries == keys
    assert found.tokens(0, 0) == list(numbered(7))


def test_no_local_path_is_on_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "w.npz").touch()
    home = "/home/somebody/secret"
    result = make_result(
        source=f"weights of {home}/w.safetensors, layer 3",
        config={"file": f"{home}/a.txt", "model": "org/name"},
        notes=(f"read from {home}/b.txt",),
    )
    command = (
        f"attnviz run 'and/or 1/2' --file={home}/x.txt -o ../out/page.html --weights folder/w.npz "
        "--model org/name --context ~/c.npy"
    )
    found = written(result, tmp_path, command=command)
    assert found.facts["source"] == "weights of w.safetensors, layer 3"
    assert found.facts["config"] == [["file", "a.txt"], ["model", "org/name"]]
    assert found.facts["notes"] == ["read from b.txt"]
    assert found.facts["command"] == (
        "attnviz run 'and/or 1/2' --file=x.txt -o page.html --weights w.npz --model org/name "
        "--context c.npy"
    )
    assert "somebody" not in found.text


# ── the look ─────────────────────────────────────────────────────────────────────────────────


def test_the_page_has_the_colours_of_the_pictures(tmp_path: Path) -> None:
    for cmap in ("viridis", "magma_r"):
        look = PageLook(FigureOptions(cmap, 0.5, True), "dark")
        facts = written(make_result(), tmp_path, look=look).facts
        ramp = [int(facts["ramp"][i : i + 2], 16) for i in range(0, 6 * 256, 2)]
        assert np.array_equal(ramp, (sequential(cmap, 256) * 255).round().ravel())
        assert (facts["theme"], facts["vmax"], facts["annotate"]) == ("dark", 0.5, True)
    facts = written(make_result(), tmp_path).facts
    assert (facts["theme"], facts["vmax"], facts["annotate"]) == ("", None, False)


# ── pooled maps ──────────────────────────────────────────────────────────────────────────────


def test_every_level_is_pooled_exactly_within_the_error_that_is_said(
    padded: Made, page: Read
) -> None:
    assert page.facts["cells"] == [3, 3]
    assert page.facts["levels"] == [[156, 156]]
    wide = made([numbered(467), numbered(311, "s")], heads=1, pixels=467, pad_side="left")
    assert [list(x.mean.shape) for x in Maps(wide.run).level(0, (0, 0)).pyramid()] == [
        [467, 467],
        [234, 234],
        [117, 117],
    ]
    for s in range(2):
        for n, (layer, head) in enumerate(page.facts["heads"]):
            weights, allowed = padded.whole(layer, s, head)
            for kind in ("mean", "largest"):
                expect = pooled_by_hand(weights, allowed, (3, 3), kind)
                own = page.head(s, n)[kind]
                codes = page.pixels(s, n, kind, 0)
                assert (codes == 0).tolist() == np.isnan(expect).tolist()
                values = page.values(codes, own)
                told = codes >= 3
                error = np.abs(values[told] / expect[told] - 1)
                assert error.max() <= own["error"] * 1.001 + 1e-5
                assert own["error"] <= page.facts["error"] < 0.03
                assert (expect[codes == 2] < own["low"] * 1.03).all()


def test_coarser_levels_are_those_of_the_whole_map() -> None:
    run = made([numbered(467)], heads=1, pixels=467)
    weights, allowed = run.whole(0, 0, 0)
    levels = list(Maps(run.run).level(0, (0, 0)).pyramid())
    for level, factor in zip(levels, (1, 2, 4), strict=True):
        for kind in ("mean", "largest"):
            expect = pooled_by_hand(weights, allowed, (factor, factor), kind)
            found = np.where(level.allowed > 0, getattr(level, kind), np.nan)
            np.testing.assert_allclose(found, expect, rtol=1e-4, atol=1e-9)


def test_allowed_cells_are_counted(padded: Made, page: Read) -> None:
    for s in range(2):
        allowed = padded.whole(0, s, 0)[1]
        own = page.head(s, 0)
        counts = page.numbers(own["counts"], own["countBytes"]).reshape(156, 156)
        for i, j in ((0, 0), (155, 155), (80, 80), (80, 3), (3, 80), (155, 70)):
            assert counts[i, j] == allowed[3 * i : 3 * i + 3, 3 * j : 3 * j + 3].sum()


def test_the_largest_keys_of_each_row_are_exact(padded: Made, page: Read) -> None:
    for s in range(2):
        for n, (layer, head) in enumerate(page.facts["heads"]):
            weights = padded.whole(layer, s, head)[0]
            keys, found = page.top(s, n)
            order = np.argsort(-weights, axis=1, kind="stable")[:, :5]
            expect = np.take_along_axis(weights, order, 1)
            real = expect > 0
            assert np.array_equal(np.where(real, order, -1), keys.T)
            np.testing.assert_allclose(found.T[real], expect[real], rtol=5.001e-3)
            assert not found.T[~real].any()


def test_every_list_of_a_long_text_is_that_of_the_run(tmp_path: Path) -> None:
    run = made([numbered(5003)], heads=2, pixels=251, top=8).run
    page = written(run, tmp_path)
    assert run.rows is not None
    for head in range(2):
        keys, weights = page.top(0, head)
        assert np.array_equal(keys.T, run.rows.top_keys[0, 0, head])
        expected = [float(f"{w:.3g}") for w in run.rows.top_weights[0, 0, head].ravel()]
        assert weights.T.ravel().tolist() == expected


def test_statistics_of_each_row(padded: Made, page: Read) -> None:
    for s in range(2):
        for n, (layer, head) in enumerate(page.facts["heads"]):
            weights = padded.whole(layer, s, head)[0]
            logs = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
            places = np.arange(467)
            expect = {
                "entropy": -(weights * logs).sum(1),
                "largest": weights.max(1),
                "distance": (weights * np.abs(places[:, None] - places)).sum(1),
                "self": np.diag(weights),
                "previous": np.append(0, np.diag(weights, -1)),
            }
            for name, values in expect.items():
                found = page.statistic(s, n, name)
                np.testing.assert_allclose(found, values, rtol=2e-3, atol=2e-6, err_msg=name)
    means = page.facts["sequences"][1]["measures"]["entropy"]
    assert means == pytest.approx(padded.run.row_means(1)["entropy"].ravel().tolist())


def test_statistics_too_small_to_be_told_are_known_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made([numbered(29)], heads=1, pixels=29).run
    first = run.rows.statistics["first"].copy()
    first[0, 0, 0, 3:7] = 1e-11, 3e-9, 0, 2e-5
    rows = replace(run.rows, statistics={**run.rows.statistics, "first": first})
    small = replace(run, rows=rows)
    for width, tiny in ((1, True), (2, False)):
        plan = PagePlan(top=5, width=width)
        monkeypatch.setattr(writer._Page, "_plan", lambda *_, plan=plan: plan)
        page = written(small, tmp_path)
        own = page.head(0, 0)["statistics"]
        assert (own["first"]["width"], own["first"]["tiny"]) == (width, tiny)
        assert not own["largest"]["tiny"]
        found = page.statistic(0, 0, "first")
        assert found[5] == 0
        assert found[6] == pytest.approx(2e-5, rel=0.03)
        assert (found[3:5] == own["first"]["low"]).all() == tiny


TEXT = tuple(SEP if i % 11 == 10 else f"t{i}" for i in range(53))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "rules", [(), ("causal",), ("causal", "window"), ("prefix",), ("causal", "segments")]
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_spans_are_those_of_the_masks(
    rules: tuple[str, ...], side: str, keep: bool, tmp_path: Path
) -> None:
    run = made([TEXT, TEXT[:31]], rules=rules, pad_side=side, keep=keep)
    page = written(run, tmp_path)
    for s in range(2):
        allowed = run.whole(0, s, 0)[1]
        first, end = page.spans(s, 0)
        places = np.arange(53)
        found = (places >= first[:, None]) & (places < end[:, None])
        assert np.array_equal(found, allowed)


def test_spans_are_not_made_up(tmp_path: Path) -> None:
    run = made([TEXT], rules=("causal", "segments"))
    assert run.run.masks == ("causal", "segments")
    assert spans_of(run.run, 0, 0) is not None
    # a model whose layers differ, and a mask whose name does not say what it forbids
    for masks in (("causal",), ("causal", "file m.npy (1 = keep)")):
        liar = replace(run, run=replace(run.run, masks=masks))
        assert spans_of(liar.run, 0, 0) is None
        assert written(liar, tmp_path).head(0, 0)["spans"] is None


def test_parts_at_full_resolution_are_cells_of_the_whole_map(tmp_path: Path) -> None:
    run = made([numbered(811)], heads=2, pixels=103, keep=True)
    page = written(run, tmp_path)
    kept = [(n, row, column) for n in range(2) for row, column, _ in page.head(0, n)["details"]]
    assert sorted(kept) == [(n, i, j) for n in range(2) for i in range(4) for j in range(i + 1)]
    for n in range(2):
        weights, allowed = run.whole(0, 0, n)
        own = page.head(0, n)["cell"]
        for row, column, block in page.head(0, n)["details"]:
            where = np.s_[row * 256 : (row + 1) * 256, column * 256 : (column + 1) * 256]
            codes = np.frombuffer(page.blocks[block], np.uint8).reshape(weights[where].shape)
            assert np.array_equal(codes == 0, ~allowed[where])
            told = codes >= 3
            found, expect = page.values(codes, own)[told], weights[where][told]
            assert np.abs(found / expect - 1).max() < 0.03
            assert (weights[where][codes == 2] < own["low"]).all()
            assert told.mean() > 0.49 * (allowed[where].mean())
    assert page.facts["stored"].endswith(
        "every cell of 20 of 20 parts of 256 × 256 cells (100%) is here at full resolution: those "
        "with the largest weights first"
    )


def test_the_largest_weights_come_first_and_the_budget_holds(tmp_path: Path) -> None:
    run = made([numbered(811)], heads=2, pixels=103, keep=True)
    asked = []

    def window(rows: range, columns: range, s: int, head: tuple[int, int]) -> Any:
        asked.append((rows, columns, s, head))
        weights, allowed = run.whole(head[0], s, head[1])
        where = np.s_[rows.start : rows.stop, columns.start : columns.stop]
        return weights[where], allowed[where]

    whole = len(written(run, tmp_path, window=window).text)
    assert asked
    budget = whole - 300_000
    page = written(run, tmp_path, window=window, budget_bytes=budget)
    assert len(page.text) <= budget + 250_000  # the page's own files
    kept = {(n, r, c) for n in range(2) for r, c, _ in page.head(0, n)["details"]}
    assert 0 < len(kept) < 20
    peaks = {}
    for n in range(2):
        largest = run.run.largest[0, 0, n]
        pixel = np.minimum(np.arange(811) // run.run.cells[0], 103)
        for r in range(4):
            for c in range(r + 1):
                rows, columns = pixel[r * 256 : (r + 1) * 256], pixel[c * 256 : (c + 1) * 256]
                peaks[n, r, c] = largest[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].max()
    least = min(peaks[part] for part in kept)
    assert all(part in kept for part, peak in peaks.items() if peak > least)


def test_no_parts_where_every_pixel_is_a_cell_or_nothing_was_kept(tmp_path: Path) -> None:
    assert not written(made([TEXT], pixels=53, keep=True), tmp_path).head(0, 0)["details"]
    assert not written(made([TEXT], pixels=13), tmp_path).head(0, 0)["details"]


def test_few_parts_where_they_would_take_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "DETAIL_CELLS", 2 * 256 * 811)
    page = written(made([numbered(811)], heads=1, pixels=103, keep=True), tmp_path)
    assert len({row for row, _, _ in page.head(0, 0)["details"]}) == 2


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    run = made([numbered(3001)], heads=3, pixels=601, top=8, rules=()).run
    path = tmp_path / "page.html"
    assert write_page(run, path) == []
    own = len(read(path).text) - sum(map(len, re.findall(r'id="d\d+">([^<]*)<', read(path).text)))
    sizes, plans = [], []
    for budget in (6_000_000, 1_500_000, 800_000, 300_000, 60_000):
        notices = write_page(run, path, budget_bytes=budget)
        page = read(path)
        sizes.append(len(page.text) - own)
        plans.append((page.facts["cells"][0], page.facts["top"], page.facts["rowsEach"]))
        if budget > 100_000:
            assert sizes[-1] <= budget * 1.05
        assert len(notices) == (plans[-1] != (5, 8, 1))
    assert sizes == sorted(sizes, reverse=True)
    assert [plan[0] for plan in plans] == sorted(plan[0] for plan in plans)
    assert plans[0] == (5, 8, 1)
    assert plans[-1][1] == 0
    cells, _, rows = plans[-1]
    assert notices == [
        f"to keep the page at 0 MB its pixels are {cells} × {cells} cells instead of 5 × 5, it "
        f"names no keys of each row instead of 8, its statistics are means of {rows} rows; "
        "--heads and --sequences choose fewer, with more of each"
    ]
    assert page.facts["stored"] == (
        f"a pixel is {cells} × {cells} cells, pooled from all weights (the run has 5 × 5); "
        f"statistics are means of {rows} rows"
    )
    assert "top" not in page.head(0, 0)
    found = page.statistic(0, 0, "entropy")
    expect = run.rows.statistics["entropy"][0, 0, 0]
    means = [expect[i : i + rows].mean() for i in range(0, 3001, rows)]
    np.testing.assert_allclose(found, means, rtol=page.facts["rowError"] + 1e-6)


def test_sizes_of_long_texts_are_judged_by_some_of_their_rows(tmp_path: Path) -> None:
    run = made([numbered(9001)], heads=1, pixels=61, top=8).run
    notices = write_page(run, tmp_path / "page.html", budget_bytes=330_000)
    page = read(tmp_path / "page.html")
    data = sum(map(len, re.findall(r'id="d\d+">([^<]*)<', page.text)))
    assert 0 < page.facts["top"] < 8
    assert 180_000 < data < 330_000
    assert "largest key" in notices[0]


def test_one_scale_for_all_heads_holds_each_of_them(page: Read) -> None:
    for s, one in enumerate(page.facts["sequences"]):
        for kind in ("mean", "largest"):
            low, top = one["scale"][kind]
            own = [page.head(s, n)[kind] for n in range(6)]
            assert (low, top) == (min(x["from"] for x in own), max(x["top"] for x in own))


def test_two_texts_and_their_tokens(tmp_path: Path) -> None:
    run = made([numbered(29)], [tuple("我爱这只小猫" * 20)], rules=())
    page = written(run, tmp_path)
    assert page.facts["cross"]
    assert page.tokens(0, 0) == list(numbered(29))
    assert page.tokens(0, 1) == list("我爱这只小猫" * 20)
    assert page.facts["cells"] == [3, 10]
    assert page.head(0, 0)["spans"] is not None


def test_a_sequence_without_tokens(tmp_path: Path) -> None:
    page = written(made([TEXT, ()]), tmp_path)
    assert page.facts["sequences"][1]["opening"] == []
    assert page.facts["sequences"][1]["measures"]["entropy"] == [None, None]
    assert not page.pixels(1, 0, "mean", 0).any()


# ── one file, and nothing from outside ───────────────────────────────────────────────────────


@pytest.mark.parametrize("what", ["short", "long"])
def test_same_input_same_bytes(tmp_path: Path, what: str) -> None:
    result = make_result() if what == "short" else made([TEXT], keep=True).run
    pages = []
    for name in ("one.html", "two.html"):
        write_page(result, tmp_path / name, steps=[STEP], command="c", window=windows_kept(result))
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


class Elements(HTMLParser):
    """The elements of a page as a browser's parser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inline.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.inline and self.lasttag in ("script", "style") and not data.isspace():
            tag, attributes, text = self.inline[-1]
            self.inline[-1] = (tag, attributes, text + data)


HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "\u202eevil\u2066",
    "\ud800",
    "{{script}}",
    "&lt;\n\r\0",
)


@pytest.mark.parametrize("what", ["short", "long"])
@pytest.mark.parametrize("token", HOSTILE)
def test_a_token_never_becomes_markup(tmp_path: Path, token: str, what: str) -> None:
    own: dict[str, Any] = {"source": token, "config": {token: token}}
    if what == "short":
        rows = tuple((token,) * TQ for _ in range(B))
        plain, result = make_result(), replace(make_result(**own), query_tokens=rows)
    else:
        plain, result = made([TEXT]).run, made([(token,) * 53], **own).run
    expected = Elements(written(plain, tmp_path).text).tags
    found = written(result, tmp_path, command=token)
    tags = Elements(found.text).tags
    assert [x for x in tags if x[0] != "script"] == [x for x in expected if x[0] != "script"]
    assert sum(tag == "script" for tag, _ in tags) == 2 + len(found.blocks)
    assert found.tokens(0, 0)[:3] == [token] * 3
    assert found.facts["sequences"][0]["opening"][0] == token


def test_the_policy_names_exactly_what_is_inline(tmp_path: Path) -> None:
    found = written(make_result(), tmp_path)
    metas = [a for tag, a in Elements(found.text).tags if tag == "meta" and "http-equiv" in a]
    assert metas[0]["http-equiv"] == "Content-Security-Policy"
    policy = dict(part.strip().split(" ", 1) for part in (metas[0]["content"] or "").split(";"))
    inline = re.findall(r"<(style|script)( type=\"module\")?>(.*?)</\1>", found.text, re.S)
    raw = {tag: body for tag, _, body in inline}
    hashes = {
        tag: f"'sha256-{b64encode(sha256(body.encode()).digest()).decode()}'"
        for tag, body in raw.items()
    }
    assert policy == {
        "default-src": "'none'",
        "script-src": hashes["script"],
        "style-src": hashes["style"],
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    found = written(make_result(), tmp_path)
    for tag, attributes in Elements(found.text).tags:
        assert "src" not in attributes
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert attributes.get("href", "#").startswith("#")
    links = set(re.findall(r"https?://[^\s\"'`]+", found.text))
    assert links == {"http://www.w3.org/2000/svg"}  # a name of XML, not a place that is visited


# ── the page's own files ─────────────────────────────────────────────────────────────────────


def test_joined_modules_keep_their_names_apart() -> None:
    joined = one_file.join_modules(
        [
            (
                "one",
                "const inner = 1;\nexport const shown = inner;\nexport async function wait() {}\n",
            ),
            (
                "two",
                'import * as one from "./one.js";\n\nconst inner = one.x;\nexport const f = 2;\n',
            ),
        ]
    )
    assert joined == (
        "// ── one.js ──\nconst one = (() => {\nconst inner = 1;\nconst shown = inner;\n"
        "async function wait() {}\nreturn { shown, wait };\n})();\n\n"
        "// ── two.js ──\nconst two = (() => {\n\nconst inner = one.x;\nconst f = 2;\n"
        "return { f };\n})();\n"
    )


@pytest.mark.parametrize("name", one_file.MODULES)
def test_a_module_follows_the_rule_that_joins_it(name: str) -> None:
    source = one_file.page_file(f"{name}.js")
    imported = re.findall(r'^import \* as (\w+) from "\./\1\.js";$', source, flags=re.M)
    assert len(imported) == len(re.findall(r"^import|\bimport\(", source, flags=re.M))
    assert all(one_file.MODULES.index(x) < one_file.MODULES.index(name) for x in imported)
    exports = re.findall(r"^export .*$", source, flags=re.M)
    assert all(re.match(r"export (async )?(function|const) \w+", line) for line in exports)
    assert len(source.splitlines()) < 360


FILES = {"page.html", "page.css", *(f"{name}.js" for name in one_file.MODULES)}


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_page_file_makes_no_markup_of_data(name: str) -> None:
    source = one_file.page_file(name)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "</scr"):
        assert way not in source or (name == "page.html" and way == "</scr")
    assert "\r" not in source


def test_every_page_file_is_in_use() -> None:
    folder = Path(writer.__file__).parent / "page_files"
    others = {"heads.html", "heads.js", "viridis.txt"}  # the first two are of heads_page
    assert {path.name for path in folder.iterdir()} == FILES | others
