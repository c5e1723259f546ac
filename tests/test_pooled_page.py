"""The long page as a file: its numbers against the whole map in float64; its size; its words."""

from __future__ import annotations

import re
from dataclasses import replace
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
from attnviz.render import pooled_page
from attnviz.render.pooled_page import RowPlan, Shades, pyramid, spans_of, write_pooled_page
from attnviz.result import Attention
from attnviz.tokens import SEP


def written(run: Made | Attention, tmp_path: Path, **options: Any) -> Read:
    pooled = run.run if isinstance(run, Made) else run
    options = {"window": windows_kept(pooled), **options}
    write_pooled_page(pooled, tmp_path / "page.html", **options)
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


# ── numbers ──────────────────────────────────────────────────────────────────────────────────


def test_every_level_is_pooled_exactly_within_the_error_that_is_said(
    padded: Made, page: Read
) -> None:
    assert page.facts["cells"] == [3, 3]
    assert page.facts["levels"] == [[156, 156]]
    wide = made([numbered(467), numbered(311, "s")], heads=1, pixels=467, pad_side="left")
    assert [list(x.mean.shape[3:]) for x in pyramid(wide.run)] == [
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


def test_coarser_levels_are_those_of_the_whole_map(tmp_path: Path) -> None:
    run = made([numbered(467)], heads=1, pixels=467)
    page = written(run, tmp_path)
    weights, allowed = run.whole(0, 0, 0)
    for level, factor in enumerate((1, 2, 4)):
        for kind in ("mean", "largest"):
            expect = pooled_by_hand(weights, allowed, (factor, factor), kind)
            codes = page.pixels(0, 0, kind, level)
            assert codes.shape == expect.shape
            values = page.values(codes, page.head(0, 0)[kind])
            told = codes >= 3
            assert np.abs(values[told] / expect[told] - 1).max() < 0.03
            assert (codes == 0).tolist() == np.isnan(expect).tolist()


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
            np.testing.assert_allclose(found.T[real], expect[real], rtol=2e-4)
            assert not found.T[~real].any()


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


@given(npst.arrays(np.float32, (3, 5), elements=st.floats(0, 1, width=32)), st.integers(2, 252))
def test_shades_are_as_exact_as_they_say(weights: np.ndarray, steps: int) -> None:
    shades = Shades.of(weights, steps)
    codes = shades.bytes_of(weights, np.ones((3, 5), bool)).astype(int)
    told = codes >= 3
    values = shades.low * shades.ratio ** (codes[told] - 3.0)
    assert np.abs(np.log(values / weights[told])).max(initial=0) <= np.log(shades.ratio) / 2 + 1e-9
    assert ((codes == 1) == (weights == 0)).all()
    assert (weights[codes == 2] < shades.low).all()
    assert codes.max(initial=0) <= steps + 2


def test_what_is_no_number_is_kept_apart(tmp_path: Path) -> None:
    run = made([numbered(29)], heads=1, pixels=29).run
    mean = run.mean.copy()
    mean[0, 0, 0, 7, 3], mean[0, 0, 0, 7, 4], mean[0, 0, 0, 7, 5] = np.nan, np.inf, -1
    entropy = run.rows.statistics["entropy"].copy()
    entropy[0, 0, 0, 7] = np.nan
    weights = run.rows.top_weights.copy()
    weights[0, 0, 0, 7] = np.nan
    rows = replace(
        run.rows, top_weights=weights, statistics={**run.rows.statistics, "entropy": entropy}
    )
    changed = replace(run, attention=mean, rows=rows)
    page = written(changed, tmp_path)
    assert page.pixels(0, 0, "mean", 0)[7, 3:6].tolist() == [255] * 3
    assert (page.pixels(0, 0, "mean", 0) == 255).sum() == 3
    assert np.isnan(page.statistic(0, 0, "entropy")).nonzero()[0].tolist() == [7]
    assert page.top(0, 0)[0][:, 7].tolist() == [-1] * 5


def test_statistics_too_small_to_be_told_are_known_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made([numbered(29)], heads=1, pixels=29).run
    first = run.rows.statistics["first"].copy()
    first[0, 0, 0, 3:7] = 1e-11, 3e-9, 0, 2e-5
    rows = replace(run.rows, statistics={**run.rows.statistics, "first": first})
    small = replace(run, rows=rows)
    for width, tiny in ((1, True), (2, False)):
        monkeypatch.setattr(pooled_page, "_row_plans", lambda _, w=width: [RowPlan(8, w, 1)] * 2)
        page = written(small, tmp_path)
        own = page.head(0, 0)["statistics"]
        assert (own["first"]["width"], own["first"]["tiny"]) == (width, tiny)
        assert not own["largest"]["tiny"]
        found = page.statistic(0, 0, "first")
        assert found[5] == 0
        assert found[6] == pytest.approx(2e-5, rel=0.03)
        assert (found[3:5] == own["first"]["low"]).all() == tiny


def test_all_zero_is_all_zero(tmp_path: Path) -> None:
    run = made([numbered(29)], heads=1, pixels=7).run
    nothing = replace(
        run,
        attention=run.mean * 0,
        pixels=replace(run.pixels, largest=run.largest * 0),
        rows=replace(
            run.rows,
            top_keys=run.rows.top_keys * 0 - 1,
            top_weights=run.rows.top_weights * 0,
            statistics={name: x * 0 for name, x in run.rows.statistics.items()},
        ),
    )
    page = written(nothing, tmp_path)
    assert set(page.pixels(0, 0, "mean", 0).ravel().tolist()) == {0, 1}
    assert (page.top(0, 0)[0] == -1).all()
    assert not page.statistic(0, 0, "distance").any()


# ── who may look at whom ─────────────────────────────────────────────────────────────────────

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


# ── parts at full resolution ─────────────────────────────────────────────────────────────────


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
    monkeypatch.setattr(pooled_page, "DETAIL_CELLS", 2 * 256 * 811)
    page = written(made([numbered(811)], heads=1, pixels=103, keep=True), tmp_path)
    assert len({row for row, _, _ in page.head(0, 0)["details"]}) == 2


# ── size ─────────────────────────────────────────────────────────────────────────────────────


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    run = made([numbered(3001)], heads=3, pixels=601, top=8, rules=()).run
    path = tmp_path / "page.html"
    assert write_pooled_page(run, path) == []
    own = len(read(path).text) - sum(map(len, re.findall(r'id="d\d+">([^<]*)<', read(path).text)))
    sizes, plans = [], []
    for budget in (6_000_000, 1_500_000, 800_000, 300_000, 60_000):
        notices = write_pooled_page(run, path, budget_bytes=budget)
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
    notices = write_pooled_page(run, tmp_path / "page.html", budget_bytes=400_000)
    page = read(tmp_path / "page.html")
    data = sum(map(len, re.findall(r'id="d\d+">([^<]*)<', page.text)))
    assert 0 < page.facts["top"] < 8
    assert 250_000 < data < 400_000
    assert "largest key" in notices[0]


def test_a_large_page_is_said_to_be_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled_page, "LARGE_PAGE", 1000)
    assert write_pooled_page(made([TEXT]).run, tmp_path / "page.html") == [
        "the page has 0 MB and opens slowly; --heads and --sequences make it smaller"
    ]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = made([TEXT], keep=True)
    pages = []
    for name in ("a.html", "b.html"):
        write_pooled_page(run.run, tmp_path / name, command="c", window=windows_kept(run.run))
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


# ── what is chosen, and words ────────────────────────────────────────────────────────────────


def test_chosen_heads_and_sequences(padded: Made, tmp_path: Path) -> None:
    page = written(
        replace(padded.run, layers=(4, 9)), tmp_path, heads=[(1, 2), (0, 1)], sequences=[1]
    )
    assert page.facts["heads"] == [[9, 2], [4, 1]]
    assert page.facts["namesLayers"]
    assert [one["index"] for one in page.facts["sequences"]] == [1]
    weights = padded.whole(1, 1, 2)[0]
    assert page.top(0, 0)[0][0].tolist()[200:] == weights.argmax(1).tolist()[200:]
    assert page.facts["sequences"][0]["queryReal"] == [156, 467]


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


HOSTILE = ("</script><script>alert(1)</script>", "$x", "{{run}}", "a\nb", "\u202egnp", "\ud800")


def test_no_token_becomes_markup(tmp_path: Path) -> None:
    run = made([HOSTILE], source="</script><b>", config={"<i>": "</style>"})
    page = written(run, tmp_path, command="attnviz run '</script><img src=x>'")
    assert page.tokens(0, 0) == list(HOSTILE)
    assert page.facts["sequences"][0]["opening"] == list(HOSTILE)
    assert page.facts["source"] == "</script><b>"

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[tuple[str, dict[str, str | None]]] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found.append((tag, dict(attrs)))

    tags = Tags()
    tags.feed(page.text)
    assert not {tag for tag, _ in tags.found} & {"b", "i", "img", "link", "iframe"}
    for tag, attributes in tags.found:
        assert "src" not in attributes
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
    assert sum(tag == "script" for tag, _ in tags.found) == 2 + len(page.blocks)
    links = set(re.findall(r"https?://[^\s\"'`]+", page.text))
    assert links == {"http://www.w3.org/2000/svg"}


def test_a_sequence_without_tokens(tmp_path: Path) -> None:
    page = written(made([TEXT, ()]), tmp_path)
    assert page.facts["sequences"][1]["opening"] == []
    assert page.facts["sequences"][1]["measures"]["entropy"] == [None, None]
    assert not page.pixels(1, 0, "mean", 0).any()
