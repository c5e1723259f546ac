"""Pictures of heads: the palette indices behind them first, then files, words and marks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from attnviz.errors import ConfigError
from attnviz.render.cells import FORBIDDEN, NOT_A_NUMBER, PADDING, WEIGHT, Brush, Heads, pooled
from attnviz.render.furniture import Axis, Subject, contrasting, draw_legend, ticks
from attnviz.render.head_page import HeadPages
from attnviz.render.heatmap import draw_heads, draw_overview
from attnviz.render.look import Look
from attnviz.render.overview import grid, overview_sheet
from attnviz.render.sheet import ALARM, COLOURS, TONES, palette, tone_index
from attnviz.result import Attention

WORDS = ("The", "cat", "sat", "on", "mats")


def run(
    queries: tuple[str, ...] = WORDS,
    keys: tuple[str, ...] | None = None,
    layers: int = 1,
    heads: int = 3,
    batch: int = 1,
    allowed: Any = None,
    length: int | None = None,
    **facts: Any,
) -> Attention:
    keys = queries if keys is None else keys
    shape = (layers, batch, heads, len(queries), len(keys))
    weights = np.random.default_rng(0).dirichlet(np.ones(len(keys)), shape[:4]).astype(np.float32)
    may = np.ones((layers, batch, 1, *shape[3:]), dtype=bool)
    if allowed is not None:
        may &= np.asarray(allowed, dtype=bool)
    weights = np.where(may, weights, 0)
    n_q, n_k = (length, length) if length else (len(queries), len(keys))
    return Attention(
        weights,
        may,
        query_tokens=(queries,) * batch,
        key_tokens=(keys,) * batch,
        lengths=np.full(batch, n_q),
        key_lengths=np.full(batch, n_k),
        **facts,
    )


def subject(result: Attention, look: Look | None = None) -> Subject:
    pairs = [(la, h) for la in range(result.n_layers) for h in range(result.n_heads)]
    return Subject(result, 0, look or Look(), pairs, longest_label=14)


def written(texts: Any) -> str:
    return "\n".join(text.text for text in texts)


# ── cells ───────────────────────────────────────────────────────────────────────────────────


def test_weights_become_steps_of_the_colour_map() -> None:
    result = run()
    head = Heads(result, 0).head(0, 1)
    cells = Brush(3, 2, 1, 150, top=0.5).paint(head)
    expected = np.clip(result.attention[0, 0, 1] / 0.5 * COLOURS, 0, COLOURS - 1).astype(np.uint8)
    assert cells.shape == (15, 10)
    assert np.array_equal(cells[::3, ::2], expected)
    assert np.array_equal(cells[2::3, 1::2], expected)


def test_forbidden_cells_wear_tones_that_no_weight_has() -> None:
    head = Heads(run(allowed=np.tril(np.ones((5, 5)))), 0).head(0, 0)
    cells = Brush(12, 12, 1, 150, 1.0).paint(head)
    forbidden = np.kron(~np.tril(np.ones((5, 5), dtype=bool)), np.ones((12, 12), dtype=bool))
    assert ((cells[forbidden] >= COLOURS) & (cells[forbidden] < ALARM)).all()
    assert (cells[~forbidden] < COLOURS).all()
    assert len(np.unique(cells[forbidden])) > 1  # a pattern, not a flat tone


def test_padding_is_padding_whatever_the_array_holds() -> None:
    result = run(length=3, allowed=np.arange(5) < 3)
    assert result.attention[0, 0, 0, 4].sum() > 0  # a padded query has weights
    head = Heads(result, 0).head(0, 0)
    assert (head.verdicts.kinds[3:] == PADDING).all()
    assert (head.verdicts.kinds[:, 3:] == PADDING).all()
    assert (head.verdicts.kinds[:3, :3] == WEIGHT).all()
    assert not head.weights[3:].any()
    assert not head.verdicts.blind.any()


def test_padding_on_the_left() -> None:
    result = run(length=3, pad_side="left")
    kinds = Heads(result, 0).head(0, 0).verdicts.kinds
    assert (kinds[:2] == PADDING).all()
    assert (kinds[2:, 2:] == WEIGHT).all()


def test_weight_on_unmasked_padding_is_told() -> None:
    result = run(length=3)
    notices = subject(result).notices
    lost = result.attention[0, 0, :, :3, 3:].sum(-1).max()
    assert notices == [
        f"padding is not masked: queries give it up to {lost:.2g} of their weight, "
        "which is not drawn"
    ]
    assert not subject(run(length=3, allowed=np.arange(5) < 3)).notices


def test_a_row_that_sees_nothing_is_struck_through() -> None:
    may = np.ones((5, 5))
    may[2] = 0
    head = Heads(run(allowed=may), 0).head(0, 0)
    assert head.verdicts.blind.tolist() == [False, False, True, False, False]
    cells = Brush(9, 9, 1, 150, 1.0).paint(head)
    struck = (cells == tone_index(0.8)).all(axis=1)
    assert struck[18:27].sum() == 2
    assert struck.sum() == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e300])
def test_what_is_not_a_number_is_marked(odd: float) -> None:
    """A float64 beyond float32, in which pictures are drawn, is one too."""
    result = run()
    result = replace(result, attention=result.attention.astype(np.float64))
    result.attention[0, 0, 1, 2, 3] = odd
    heads = Heads(result, 0)
    head = heads.head(0, 1)
    assert np.argwhere(head.verdicts.kinds == NOT_A_NUMBER).tolist() == [[2, 3]]
    for size in (12, 3):
        cells = Brush(size, size, 1, 150, 1.0).paint(head)
        marked = np.argwhere(cells == ALARM) // size
        assert len(marked)
        assert np.unique(marked, axis=0).tolist() == [[2, 3]]
    assert heads.largest([(0, 0), (0, 1)]) <= 1
    page = HeadPages(subject(result)).sheet(0, 1)
    assert "not a number" in written(page.texts)
    assert "not a number" not in written(HeadPages(subject(result)).sheet(0, 0).texts)


def test_pooling_keeps_the_largest() -> None:
    cells = np.arange(35).reshape(5, 7)
    assert pooled(cells, 3).tolist() == [[16, 19, 20], [30, 33, 34]]
    assert pooled(cells, 1) is cells


def test_one_scale_for_all_heads() -> None:
    result = run()
    assert subject(result).top == result.attention.max()
    assert subject(result, Look(vmax=0.25)).top == 0.25
    nothing = run(allowed=np.zeros((5, 5)))
    assert subject(nothing).top == 1.0


def test_the_palette_has_the_map_the_tones_and_alarm() -> None:
    from matplotlib import colormaps

    light, dark = palette(Look(cmap="magma")), palette(Look(cmap="magma", theme="dark"))
    last = np.round(np.array(colormaps["magma"](1.0)[:3]) * 255)
    assert light[COLOURS - 1].tolist() == last.tolist()
    assert light[tone_index(0)].tolist() == [255, 255, 255]
    assert dark[tone_index(0)].sum() < 100 < light[tone_index(0)].sum()
    assert tone_index(1) == COLOURS + TONES - 1


def test_numbers_have_the_ink_that_contrasts() -> None:
    ink = contrasting(np.array([[0, 0, 0], [255, 255, 255], [68, 1, 84], [253, 231, 37]], np.uint8))
    assert ink.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("highest", "clipped", "expected"),
    [
        (1.0, False, ["0", "0.25", "0.5", "0.75", "1"]),
        (0.705, False, ["0", "0.2", "0.4", "0.6", "0.705"]),
        (0.42, True, ["0", "0.2", "≥ 0.42"]),
        (3e-7, False, ["0", "1e-07", "2e-07", "3e-07"]),
    ],
)
def test_ticks_of_the_colour_bar(highest: float, clipped: bool, expected: list[str]) -> None:
    found = ticks(highest, clipped, apart=0.1)
    assert [text for _, text in found] == expected
    assert found[-1][0] == highest


# ── the overview ────────────────────────────────────────────────────────────────────────────


def test_the_overview_names_what_it_shows() -> None:
    result = run(
        masks=("causal", "file $m$.npy (1 = keep)"), source="a layer, seed 0", trained=False
    )
    sheet = overview_sheet(subject(result))
    text = written(sheet.texts)
    for part in (
        "Attention: 3 heads, 5 tokens",
        "a layer, seed 0, untrained · masks: causal, file $m$.npy (1 = keep)",
        "query: looks",
        "key: is looked at",
        "head 2",
        "bits",
    ):
        assert part in text
    assert "forbidden" not in text
    assert len(sheet.pictures) == 3 + 1  # and the colour bar


def test_labels_stand_on_outer_edges_only() -> None:
    sheet = overview_sheet(subject(run(heads=8)))
    names = [text for text in sheet.texts if text.text == "mats"]
    rows = {round(p.top) for p in sheet.pictures[:8]}
    columns = {round(p.left) for p in sheet.pictures[:8]}
    assert sum(text.anchor == "end" and not text.turn for text in names) == len(rows)
    assert len(names) == len(rows) + len(columns)


def test_the_legend_names_what_occurs() -> None:
    may = np.tril(np.ones((5, 5)))
    may[1] = 0
    sheet = overview_sheet(subject(run(allowed=may, length=4)))
    text = written(sheet.texts)
    assert "forbidden by a mask" in text
    assert "sees nothing" in text
    assert "padding" in text
    assert "not a number" not in text


def test_several_layers_make_a_matrix() -> None:
    few = subject(run(layers=2, heads=3))
    assert grid(few.pairs, few) == ([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], 2, 3)
    assert grid([(0, 2), (3, 0)], few) == ([(0, 1), (1, 0)], 2, 2)
    assert "layer 1 · head 2" in written(overview_sheet(few).texts)


@pytest.mark.parametrize(
    ("layers", "heads", "rows", "columns"),
    [
        (2, 1, 1, 2),  # one head of several layers is no column
        (6, 1, 2, 3),
        (30, 1, 5, 6),
        (5, 2, 3, 4),  # two layers a row
        (30, 2, 6, 10),
        (24, 4, 8, 12),
        (4, 2, 4, 2),  # a matrix
        (6, 12, 6, 12),
        (30, 9, 30, 9),
    ],
)
def test_a_tower_of_layers_is_wrapped(layers: int, heads: int, rows: int, columns: int) -> None:
    some = subject(run(queries=("a", "b", "c"), layers=layers, heads=heads))
    places, n_rows, n_columns = grid(some.pairs, some)
    assert (n_rows, n_columns) == (rows, columns)
    assert places == sorted(set(places))  # in reading order, each in a place of its own
    beside = {(layer, row) for (layer, _), (row, _) in zip(some.pairs, places, strict=True)}
    assert len(beside) == layers  # a layer's heads stay in one row


def test_one_head_of_several_layers_names_its_layers() -> None:
    one_head = [(layer, 2) for layer in range(6)]
    some = Subject(run(layers=6, heads=3), 0, Look(), one_head, longest_label=14)
    assert grid(one_head, some)[1:] == (2, 3)
    texts = [text.text for text in overview_sheet(some).texts]
    assert [name for name in texts if name.startswith("layer")] == [
        f"layer {layer} · head 2" for layer in range(6)
    ]


def test_one_layer_wraps() -> None:
    eight = subject(run(heads=8))
    assert grid(eight.pairs, eight)[1:] == (2, 4)


def test_narrow_maps_have_short_names() -> None:
    sheet = overview_sheet(subject(run(queries=("a", "b"), layers=12, heads=12)))
    assert len(sheet.pictures) == 145
    assert "layer 11 · head 10" in written(sheet.texts)
    wide = subject(run(tuple(f"t{i}" for i in range(64)), layers=2, heads=40))
    sheet = overview_sheet(wide)
    assert "L1 H39" in written(sheet.texts)
    assert len(wide.notices) == 1
    assert re.fullmatch(
        r"overview: labels thinned: every \dth of the tokens is named", wide.notices[0]
    )


def test_labels_are_left_out_where_few_would_stay() -> None:
    page = subject(run())
    sheet = page.sheet("", "")
    axis = Axis(sheet, page.keys, np.ones(5, dtype=bool), pitch=2.0, size=5.5, upright=True)
    assert axis.columns(0, 0) == axis.rows(0, 0) == []
    assert axis.extent == 0
    page.note_labels(axis, axis, "overview")
    assert page.notices == ["overview: labels left out: tokens are too many for their names"]


def test_a_long_legend_takes_two_lines() -> None:
    page = subject(run())
    sheet = page.sheet("", "")
    kinds = {PADDING, FORBIDDEN, WEIGHT, NOT_A_NUMBER}
    one = draw_legend(sheet, 0, 0, 1000, kinds, blind=True)
    two = draw_legend(sheet, 0, 0, 250, kinds, blind=True)
    assert two == 2 * one


def test_queries_and_keys_may_be_named_unlike() -> None:
    texts = subject(
        run(tuple(f"q{i}" for i in range(4)), tuple(f"k{i}" for i in range(300)), heads=9)
    )
    sheet = overview_sheet(texts)
    assert re.fullmatch(
        r"overview: labels thinned: every \d+th of the keys is named", texts.notices[0]
    )
    assert len(texts.notices) == 1
    assert "q3" in written(sheet.texts)


@pytest.mark.parametrize(("n", "nth"), [(30, "2nd"), (45, "3rd")])
def test_every_second_or_third_label(n: int, nth: str) -> None:
    some = subject(run(tuple(f"t{i}" for i in range(n)), heads=24))
    overview_sheet(some)
    assert some.notices == [f"overview: labels thinned: every {nth} of the tokens is named"]


def test_measures_give_way_where_there_is_no_room() -> None:
    narrow = subject(run(("a", "b"), layers=2, heads=2, allowed=np.zeros((2, 2))))
    assert written(overview_sheet(narrow).texts).count("sees nothing") == 4 + 1  # and the legend
    thin = subject(run(tuple("ab" * 500), ("k",), layers=2, heads=300), Look(dpi=50))
    text = written(overview_sheet(thin).texts)
    assert "entropy in bits" in text
    assert "first" not in text


def test_long_sequences_are_pooled_and_said_so(tmp_path: Path) -> None:
    n = 700
    result = run(tuple(f"t{i}" for i in range(n)), heads=1)
    notices = draw_overview(result, 0, tmp_path / "a.png", Look(dpi=50))
    assert any("the largest of 2 × 2 weights" in notice for notice in notices)
    long = run(("q",), tuple(f"k{i}" for i in range(2100)), heads=1)
    notices = draw_heads(long, 0, [(0, 0, tmp_path / "b.png")], Look(dpi=50))
    assert "heads: each cell shows the largest of 2 × 2 weights" in notices


# ── pages of heads ──────────────────────────────────────────────────────────────────────────


def test_a_page_has_every_label_and_all_measures() -> None:
    result = run(tuple(f"token{i}" for i in range(64)), heads=1, batch=3)
    pages = HeadPages(subject(result))
    sheet = pages.sheet(0, 0)
    text = written(sheet.texts)
    assert pages.subject.notices == []
    assert all(text.count(f"token{i}\n") >= 2 for i in range(64))
    assert "Head 0" in text
    assert "sequence 0 of 3" in text
    for name in ("entropy", "bits", "largest weight", "diagonal", "first token", "distance"):
        assert name in text


def test_the_shared_page_gives_the_pixels_of_the_whole_one(tmp_path: Path) -> None:
    from attnviz.render.raster import rasterize

    may = np.tril(np.ones((5, 5)))
    result = run(allowed=may, masks=("causal",))
    pages = HeadPages(subject(result))
    pages.write_png(0, 2, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image), rasterize(pages.sheet(0, 2)))


def test_numbers_in_cells(tmp_path: Path) -> None:
    result = run(allowed=np.tril(np.ones((5, 5))))
    look = Look(annotate=True)
    numbers = HeadPages(subject(result, look)).sheet(0, 0).numbers
    kept = result.attention[0, 0, 0][np.tril_indices(5)]
    assert sorted(n.text for n in numbers) == sorted(f"{w:.2f}" for w in kept)
    assert len(overview_sheet(subject(result, look)).numbers) == 3 * 15
    draw_heads(result, 0, [(0, 0, tmp_path / "a.png")], look)
    draw_heads(result, 0, [(0, 0, tmp_path / "b.png")], Look())
    with Image.open(tmp_path / "a.png") as image, Image.open(tmp_path / "b.png") as bare:
        assert image.mode == "RGB"
        changed = (np.asarray(image) != np.asarray(bare.convert("RGB"))).any(-1)
    number = next(n for n in numbers if n.text == f"{result.attention[0, 0, 0, 0, 0]:.2f}")
    x, y = round(number.x * 150 / 72), round(number.y * 150 / 72)
    assert changed[y - 15 : y + 15, x - 20 : x + 20].any()


def test_numbers_that_could_not_be_read_are_left_out() -> None:
    result = run(tuple(f"t{i}" for i in range(130)), heads=4)
    page = subject(result, Look(annotate=True))
    assert not HeadPages(page).sheet(0, 0).numbers
    assert not overview_sheet(page).numbers
    assert "heads: the cells are too small for numbers" in page.notices
    assert "overview: the cells are too small for numbers" in page.notices


def test_cross_attention_has_two_texts() -> None:
    result = run(("das", "Tier", "schlief"), ("the", "animal", "slept"), heads=1)
    text = written(overview_sheet(subject(result)).texts)
    assert "1 head, 3 queries × 3 keys" in text
    assert "schlief" in text
    assert "animal" in text


def test_a_head_that_sees_nothing_says_so() -> None:
    page = HeadPages(subject(run(allowed=np.zeros((5, 5))))).sheet(0, 0)
    assert "no measures: sees nothing" in written(page.texts)
    assert "no query sees a key" in page.description


def test_thin_maps_are_not_threads() -> None:
    page = HeadPages(subject(run(("q",), tuple(f"k{i}" for i in range(64)), heads=1))).sheet(0, 0)
    assert page.pictures[0].cells.shape[0] >= 100


# ── files ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_input_gives_the_same_bytes(tmp_path: Path, suffix: str, theme: str) -> None:
    result = run(allowed=np.tril(np.ones((5, 5))), queries=("$$", "\\frac", "<b>", "&", "مرحبا"))
    look = Look(theme=theme, annotate=suffix != ".svg")
    bodies = []
    for name in ("a", "b"):
        one, all_ = tmp_path / f"{name}1{suffix}", tmp_path / f"{name}2{suffix}"
        draw_overview(result, 0, all_, look)
        draw_heads(result, 0, [(0, 1, one)], look)
        bodies.append((one.read_bytes(), all_.read_bytes()))
    assert bodies[0] == bodies[1]


def test_done_is_told_after_each_file(tmp_path: Path) -> None:
    places = [tmp_path / f"{h}.png" for h in range(3)]
    done: list[Path] = []

    def check(path: Path) -> None:
        assert path.is_file()
        done.append(path)

    targets = [(0, h, place) for h, place in enumerate(places)]
    draw_heads(run(), 0, targets, Look(), check)
    assert done == places


def test_pictures_are_described_for_those_who_cannot_see_them(tmp_path: Path) -> None:
    import zlib

    result = run(masks=("causal",), heads=10)
    for suffix in (".png", ".svg", ".pdf"):
        draw_overview(result, 0, tmp_path / f"a{suffix}", Look())
    with Image.open(tmp_path / "a.png") as image:
        assert image.info["Title"] == "Attention: 10 heads, 5 tokens"
        assert "masks: causal" in image.info["Description"]
        assert "And 2 more heads" in image.info["Description"]
        assert "Software" not in image.info
    tree = ET.parse(tmp_path / "a.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    assert tree.attrib["role"] == "img"
    assert tree.findtext(f"{space}title") == "Attention: 10 heads, 5 tokens"
    assert "the largest weight is" in (tree.findtext(f"{space}desc") or "")
    data = (tmp_path / "a.pdf").read_bytes()
    assert b"/Subject" in data
    assert b"CreationDate" not in data
    streams = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.S)
    assert any(b"BT" in zlib.decompressobj().decompress(s) for s in streams if s[:1] == b"x")


def test_svg_keeps_text_as_text_and_stays_small(tmp_path: Path) -> None:
    tokens = ("<script>", "$x^2$", "猫", "שלום", "]]>")
    draw_overview(run(tokens), 0, tmp_path / "a.svg", Look())
    tree = ET.parse(tmp_path / "a.svg").getroot()
    texts = [e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert all(texts.count(token) >= 2 for token in tokens)
    assert not list(tree.iter("{http://www.w3.org/2000/svg}script"))
    draw_overview(run(tuple(f"t{i}" for i in range(64)), heads=12), 0, tmp_path / "b.svg", Look())
    assert (tmp_path / "b.svg").stat().st_size < 600_000


def test_a_result_with_untrained_weights_says_so() -> None:
    assert subject(run(trained=False)).caption == "untrained · no mask"
    assert subject(run(source="bert")).caption == "bert · no mask"


# ── the look ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"theme": "blue"}, "--theme is 'blue'; it must be one of light, dark"),
        ({"vmax": 0.0}, "--vmax is 0; a weight above 0 is expected, 0.5 or 1, say"),
        ({"vmax": float("nan")}, "--vmax is nan; a weight above 0 is expected, 0.5 or 1, say"),
        ({"dpi": 9}, "--dpi is 9; it must be between 50 and 600"),
        ({"dpi": 601}, "--dpi is 601; it must be between 50 and 600"),
    ],
)
def test_looks_that_cannot_work(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        replace(Look(), **wrong)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "near"), [("virids", "viridis"), ("\x1b[31m", "viridis, cividis, magma")]
)
def test_an_unknown_colour_map_names_near_ones(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=r"^--cmap .* is no colour map of matplotlib; near") as c:
        Look(cmap=name).require_cmap()
    assert near in str(c.value)
    assert "\x1b" not in str(c.value)


def test_a_colour_scale_that_weights_exceed_says_so() -> None:
    sheet = overview_sheet(subject(run(), Look(vmax=0.1)))
    assert "≥ 0.1" in written(sheet.texts)


def test_forbidden_in_every_theme_and_map() -> None:
    assert FORBIDDEN != WEIGHT
    for theme in ("light", "dark"):
        colours = palette(Look(cmap="Greys", theme=theme)).astype(int)
        hatch = {tone_index(t) for t in (0.07, 0.2, 0.42)}
        assert len({tuple(colours[i]) for i in hatch}) == 3
