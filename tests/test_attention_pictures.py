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

from attnviz.render.attention_pictures import HeadPictures, draw_heads, draw_overview, overview
from attnviz.render.axes import TokenAxis
from attnviz.render.axis_labels import labels_of
from attnviz.render.drawing import CellSize, Drawing
from attnviz.render.figure_options import FigureOptions
from attnviz.render.fonts import Fonts
from attnviz.render.head_panels import head_panels
from attnviz.render.layout import PanelLayout
from attnviz.render.legend import LEGEND, add_legend
from attnviz.render.palette import ALARM, COLOURS, TONES, palette, prefers_white, tone_index
from attnviz.render.panel import (
    BLIND,
    NOT_A_NUMBER,
    PADDING,
    WEIGHT,
    CellKinds,
    HeadCells,
    Panel,
    PanelSet,
)
from attnviz.render.panel_grid import grid
from attnviz.render.picture_formats import PICTURE_FORMATS
from attnviz.render.raster import PanelPainter
from attnviz.render.scales import LinearScale, pooled
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


def panels_of(result: Attention, options: FigureOptions | None = None) -> PanelSet:
    pairs = [(la, h) for la in range(result.n_layers) for h in range(result.n_heads)]
    return head_panels(result, 0, pairs, options or FigureOptions())


def overview_of(result: Attention, options: FigureOptions | None = None) -> Drawing:
    return overview(panels_of(result, options), options or FigureOptions())[0]


def overview_notes(result: Attention, options: FigureOptions | None = None) -> list[str]:
    return overview(panels_of(result, options), options or FigureOptions())[1]


def picture_of(result: Attention, layer: int = 0, head: int = 0, **chosen: Any) -> Drawing:
    options = FigureOptions(**chosen)
    return HeadPictures(panels_of(result, options), options).drawing((layer, head))


def panel_of(result: Attention, head: int = 0, top: float = 1.0) -> Panel:
    return Panel(*HeadCells(result, 0).cells(0, head), LinearScale(top))


def painted(panel: Panel, width: int, height: int) -> Any:
    return PanelPainter(CellSize(width, height), 150).paint(panel)


def written(texts: Any) -> str:
    return "\n".join(text.text for text in texts)


# ── cells ───────────────────────────────────────────────────────────────────────────────────


def test_weights_become_steps_of_the_colour_map() -> None:
    result = run()
    cells = painted(panel_of(result, 1, top=0.5), 2, 3)
    expected = np.clip(result.attention[0, 0, 1] / 0.5 * COLOURS, 0, COLOURS - 1).astype(np.uint8)
    assert cells.shape == (15, 10)
    assert np.array_equal(cells[::3, ::2], expected)
    assert np.array_equal(cells[2::3, 1::2], expected)


def test_forbidden_cells_have_tones_that_no_weight_has() -> None:
    cells = painted(panel_of(run(allowed=np.tril(np.ones((5, 5))))), 12, 12)
    forbidden = np.kron(~np.tril(np.ones((5, 5), dtype=bool)), np.ones((12, 12), dtype=bool))
    assert ((cells[forbidden] >= COLOURS) & (cells[forbidden] < ALARM)).all()
    assert (cells[~forbidden] < COLOURS).all()
    assert len(np.unique(cells[forbidden])) > 1  # a pattern, not a flat tone
    for theme in ("light", "dark"):
        colours = palette(FigureOptions(cmap="Greys", theme=theme)).astype(int)
        assert len({tuple(colours[tone_index(t)]) for t in (0.07, 0.2, 0.42)}) == 3


def test_padding_is_padding_whatever_the_array_holds() -> None:
    result = run(length=3, allowed=np.arange(5) < 3)
    assert result.attention[0, 0, 0, 4].sum() > 0  # a padded query has weights
    panel = panel_of(result)
    assert (panel.kinds.cells[3:] == PADDING).all()
    assert (panel.kinds.cells[:, 3:] == PADDING).all()
    assert (panel.kinds.cells[:3, :3] == WEIGHT).all()
    assert not panel.values[3:].any()
    left = panel_of(run(length=3, pad_side="left")).kinds.cells
    assert (left[:2] == PADDING).all()
    assert (left[2:, 2:] == WEIGHT).all()
    blind = np.ones((5, 5))
    blind[1] = 0  # padded keys of a blind row are padding too
    kinds = panel_of(run(length=3, allowed=blind)).kinds.cells
    assert kinds[1].tolist() == [BLIND] * 3 + [PADDING] * 2


def test_weight_on_unmasked_padding_is_reported() -> None:
    result = run(length=3)
    lost = result.attention[0, 0, :, :3, 3:].sum(-1).max()
    assert panels_of(result).notes == [
        f"padding is not masked: queries give it up to {lost:.2g} of their weight, "
        "which is not drawn"
    ]
    assert not panels_of(run(length=3, allowed=np.arange(5) < 3)).notes


def test_a_row_that_sees_nothing_is_struck_through() -> None:
    may = np.ones((5, 5))
    may[2] = 0
    panel = panel_of(run(allowed=may))
    assert panel.kinds.blind.tolist() == [False, False, True, False, False]
    struck = (painted(panel, 9, 9) == tone_index(0.8)).all(axis=1)
    assert struck[18:27].sum() == 2
    assert struck.sum() == 2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("odd", [np.nan, np.inf, 1e300])
def test_what_is_not_a_number_is_marked(odd: float) -> None:
    """A float64 beyond float32, in which pictures are drawn, is one too."""
    result = run()
    result = replace(result, attention=result.attention.astype(np.float64))
    result.attention[0, 0, 1, 2, 3] = odd
    panel = panel_of(result, 1)
    assert np.argwhere(panel.kinds.cells == NOT_A_NUMBER).tolist() == [[2, 3]]
    for size in (12, 3):
        marked = np.argwhere(painted(panel, size, size) == ALARM) // size
        assert np.unique(marked, axis=0).tolist() == [[2, 3]]
    assert HeadCells(result, 0).largest([(0, 0), (0, 1)]) <= 1
    assert "not a number" in written(picture_of(result, 0, 1).texts)
    assert "not a number" not in written(picture_of(result).texts)


def test_pooling_keeps_the_largest() -> None:
    cells = np.arange(35).reshape(5, 7)
    assert pooled(cells, 3).tolist() == [[16, 19, 20], [30, 33, 34]]
    assert pooled(cells, 1) is cells


def test_one_scale_for_all_heads() -> None:
    result = run()
    for options, top in (
        (FigureOptions(), result.attention.max()),
        (FigureOptions(vmax=0.25), 0.25),
    ):
        panels = panels_of(result, options)
        assert {panels.panel(pair).scale.top for pair in panels.pairs} == {top}
    assert panels_of(run(allowed=np.zeros((5, 5)))).panel((0, 0)).scale.top == 1.0
    assert "≥ 0.1" in written(overview_of(result, FigureOptions(vmax=0.1)).texts)


def test_the_palette_has_the_map_the_tones_and_alarm() -> None:
    from matplotlib import colormaps

    light, dark = (palette(FigureOptions(cmap="magma", theme=theme)) for theme in ("light", "dark"))
    last = np.round(np.array(colormaps["magma"](1.0)[:3]) * 255)
    assert light[COLOURS - 1].tolist() == last.tolist()
    assert light[tone_index(0)].tolist() == [255, 255, 255]
    assert dark[tone_index(0)].sum() < 100 < light[tone_index(0)].sum()
    assert tone_index(1) == COLOURS + TONES - 1


def test_numbers_have_the_colour_that_contrasts() -> None:
    colours = np.array([[0, 0, 0], [255, 255, 255], [68, 1, 84], [253, 231, 37]], np.uint8)
    assert prefers_white(colours).tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("low", "highest", "clipped", "expected"),
    [
        (0.0, 1.0, False, ["0", "0.25", "0.5", "0.75", "1"]),
        (0.0, 0.705, False, ["0", "0.2", "0.4", "0.6", "0.705"]),
        (0.0, 0.42, True, ["0", "0.2", "≥ 0.42"]),
        (0.0, 3e-7, False, ["0", "1e-07", "2e-07", "3e-07"]),
        (-0.4, 1.0, False, ["0", "0.5", "1"]),
    ],
)
def test_ticks_of_the_colour_bar(
    low: float, highest: float, clipped: bool, expected: list[str]
) -> None:
    scale = LinearScale(highest, clipped, low=low)
    found = scale.ticks(100)
    assert [text for _, text in found] == expected
    assert found[-1][0] == 1
    assert found[0][0] == pytest.approx(-low / (highest - low))


# ── the overview ────────────────────────────────────────────────────────────────────────────


def test_the_overview_names_what_it_shows() -> None:
    result = run(
        masks=("causal", "file $m$.npy (1 = keep)"), source="a layer, seed 0", trained=False
    )
    drawing = overview_of(result)
    text = written(drawing.texts)
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
    assert (len(drawing.panels), len(drawing.bars)) == (3, 1)


def test_labels_stand_on_outer_edges_only() -> None:
    drawing = overview_of(run(heads=8))
    names = [text for text in drawing.texts if text.text == "mats"]
    rows = {placed.top for placed in drawing.panels}
    columns = {placed.left for placed in drawing.panels}
    assert sum(text.anchor == "end" and not text.turn for text in names) == len(rows)
    assert len(names) == len(rows) + len(columns)


def test_the_legend_names_what_occurs() -> None:
    may = np.tril(np.ones((5, 5)))
    may[1] = 0
    text = written(overview_of(run(allowed=may, length=4)).texts)
    assert "forbidden by a mask" in text
    assert "sees nothing" in text
    assert "padding" in text
    assert "not a number" not in text


def test_several_layers_make_a_matrix() -> None:
    few = panels_of(run(layers=2, heads=3))
    assert grid(few.pairs, 1) == ([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], 2, 3)
    assert grid([(0, 2), (3, 0)], 1) == ([(0, 0), (0, 1)], 1, 2)  # chosen one by one
    assert grid([(0, 2), (3, 0), (3, 2)], 1) == ([(0, 1), (1, 0), (1, 1)], 2, 2)
    assert grid([(0, head) for head in range(8)], 1)[1:] == (2, 4)  # one layer wraps
    assert "layer 1 · head 2" in written(overview_of(run(layers=2, heads=3)).texts)


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
    pairs = [(layer, head) for layer in range(layers) for head in range(heads)]
    places, n_rows, n_columns = grid(pairs, 1)
    assert (n_rows, n_columns) == (rows, columns)
    assert places == sorted(set(places))  # in reading order, each in a place of its own
    beside = {(layer, row) for (layer, _), (row, _) in zip(pairs, places, strict=True)}
    assert len(beside) == layers  # a layer's heads stay in one row


def test_one_head_of_several_layers_names_its_layers() -> None:
    one_head = [(layer, 2) for layer in range(6)]
    options = FigureOptions()
    panels = head_panels(run(layers=6, heads=3), 0, one_head, options)
    texts = [text.text for text in overview(panels, options)[0].texts]
    assert [name for name in texts if name.startswith("layer")] == [
        f"layer {layer} · head 2" for layer in range(6)
    ]


def test_narrow_panels_have_short_names() -> None:
    drawing = overview_of(run(queries=("a", "b"), layers=12, heads=12))
    assert len(drawing.panels) == 144
    assert "layer 11 · head 10" in written(drawing.texts)
    wide = run(tuple(f"t{i}" for i in range(64)), layers=2, heads=40)
    assert "L1 H39" in written(overview_of(wide).texts)
    (note,) = overview_notes(wide)
    assert re.fullmatch(r"overview: labels thinned: every \dth of the tokens is named", note)


def test_labels_are_left_out_where_few_would_stay() -> None:
    axis = TokenAxis.of_numbers("", WORDS)
    blank = Drawing(FigureOptions(), Fonts([]))
    labels = labels_of(axis, blank, 2.0, 9.0, 5.5, True, 14)
    assert labels.below_columns(0, 0) == labels.beside_rows(0, 0) == ([], [])
    assert labels.extent == 0
    unnamed = labels_of(TokenAxis.unnamed(5), blank, 20.0, 9.0, 5.5, True, 14)
    assert (unnamed.labels, unnamed.extent, unnamed.note("tokens")) == ([], 0, "")
    layout = PanelLayout(blank, (axis, axis), (5, 5), CellSize(4, 4))
    assert layout.label_notes("overview") == [
        "overview: labels left out: tokens are too many for their names"
    ]


def test_a_long_legend_takes_two_lines() -> None:
    kinds = CellKinds(np.array([[*LEGEND, WEIGHT]], dtype=np.uint8))
    panel = Panel(np.zeros((1, 7), np.float32), kinds, LinearScale(1.0))
    one, two = (
        add_legend(Drawing(FigureOptions(), Fonts([])), 0, 0, width, [panel])
        for width in (2000, 350)
    )
    assert two == 2 * one


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "note"),
    [
        (4, 300, 9, r"overview: labels thinned: every \d+th of the keys is named"),
        (30, None, 24, "overview: labels thinned: every 2nd of the tokens is named"),
        (45, None, 24, "overview: labels thinned: every 3rd of the tokens is named"),
    ],
)
def test_thinned_labels_are_reported(queries: int, keys: int | None, heads: int, note: str) -> None:
    others = tuple(f"k{i}" for i in range(keys)) if keys else None
    result = run(tuple(f"q{i}" for i in range(queries)), others, heads=heads)
    (found,) = overview_notes(result)
    assert re.fullmatch(note, found)
    assert "q3" in written(overview_of(result).texts) or not keys


def test_measures_give_way_where_there_is_no_room() -> None:
    narrow = run(("a", "b"), layers=2, heads=2, allowed=np.zeros((2, 2)))
    assert written(overview_of(narrow).texts).count("sees nothing") == 4 + 1  # and the legend
    thin = run(tuple("ab" * 500), ("k",), layers=2, heads=300)
    text = written(overview_of(thin, FigureOptions(dpi=50)).texts)
    assert "entropy in bits" in text
    assert "first" not in text


def test_long_sequences_are_pooled_and_reported(tmp_path: Path) -> None:
    result = run(tuple(f"t{i}" for i in range(700)), heads=1)
    notes = draw_overview(result, 0, tmp_path / "a.png", FigureOptions(dpi=50))
    assert any("the largest of 2 × 2 weights" in note for note in notes)
    long = run(("q",), tuple(f"k{i}" for i in range(2100)), heads=1)
    notes = draw_heads(long, 0, [(0, 0, tmp_path / "b.png")], FigureOptions(dpi=50))
    assert "heads: each cell shows the largest of 2 × 2 weights" in notes


# ── pictures of heads ───────────────────────────────────────────────────────────────────────


def test_a_picture_has_every_label_and_all_measures() -> None:
    result = run(tuple(f"token{i}" for i in range(64)), heads=1, batch=3)
    pictures = HeadPictures(panels_of(result), FigureOptions())
    text = written(pictures.drawing((0, 0)).texts)
    assert pictures.notes == []
    assert all(text.count(f"token{i}\n") >= 2 for i in range(64))
    assert "Head 0" in text
    assert "sequence 0 of 3" in text
    for name in ("entropy", "bits", "largest weight", "diagonal", "first token", "distance"):
        assert name in text


@pytest.mark.parametrize("annotate", [False, True])
def test_the_shared_page_gives_the_bytes_of_the_whole_one(annotate: bool) -> None:
    result = run(allowed=np.tril(np.ones((5, 5))), masks=("causal",))
    options = FigureOptions(annotate=annotate)
    pictures = HeadPictures(panels_of(result, options), options)
    pictures.png((0, 1))
    assert pictures.png((0, 2)) == PICTURE_FORMATS[".png"](pictures.drawing((0, 2)))


def test_numbers_in_cells(tmp_path: Path) -> None:
    result = run(allowed=np.tril(np.ones((5, 5))))
    options = FigureOptions(annotate=True)
    numbers = picture_of(result, annotate=True).numbers
    kept = result.attention[0, 0, 0][np.tril_indices(5)]
    assert sorted(n.text for n in numbers) == sorted(f"{w:.2f}" for w in kept)
    assert len(overview_of(result, options).numbers) == 3 * 15
    draw_heads(result, 0, [(0, 0, tmp_path / "a.png")], options)
    draw_heads(result, 0, [(0, 0, tmp_path / "b.png")], FigureOptions())
    with Image.open(tmp_path / "a.png") as image, Image.open(tmp_path / "b.png") as bare:
        assert (image.mode, bare.mode) == ("RGB", "P")
        changed = (np.asarray(image) != np.asarray(bare.convert("RGB"))).any(-1)
    number = next(n for n in numbers if n.text == f"{result.attention[0, 0, 0, 0, 0]:.2f}")
    x, y = round(number.x * 150 / 72), round(number.y * 150 / 72)
    assert changed[y - 15 : y + 15, x - 20 : x + 20].any()


def test_numbers_that_could_not_be_read_are_left_out() -> None:
    result = run(tuple(f"t{i}" for i in range(130)), heads=4)
    options = FigureOptions(annotate=True)
    pictures = HeadPictures(panels_of(result, options), options)
    assert not pictures.drawing((0, 0)).numbers
    assert "heads: the cells are too small for numbers" in pictures.notes
    assert not overview_of(result, options).numbers
    assert "overview: the cells are too small for numbers" in overview_notes(result, options)


def test_cross_attention_has_two_texts() -> None:
    result = run(("das", "Tier", "schlief"), ("the", "animal", "slept"), heads=1)
    text = written(overview_of(result).texts)
    assert "1 head, 3 queries × 3 keys" in text
    assert "schlief" in text
    assert "animal" in text


def test_a_head_that_sees_nothing_says_so() -> None:
    picture = picture_of(run(allowed=np.zeros((5, 5))))
    assert "no measures: sees nothing" in written(picture.texts)
    assert "no query sees a key" in picture.description


def test_thin_panels_are_not_threads() -> None:
    picture = picture_of(run(("q",), tuple(f"k{i}" for i in range(64)), heads=1))
    assert picture.panels[0].shape[0] >= 100


# ── formats ─────────────────────────────────────────────────────────────────────────────────


def test_a_format_is_one_function_and_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds of picture, and the command line, take a format that was registered."""
    from attnviz.cli.files import kind_of

    monkeypatch.setitem(
        PICTURE_FORMATS, ".toy", lambda drawing: f"{drawing.title} {len(drawing.panels)}".encode()
    )
    draw_overview(run(), 0, tmp_path / "a.toy", FigureOptions())
    draw_heads(run(), 0, [(0, 1, tmp_path / "b.toy")], FigureOptions())
    assert (tmp_path / "a.toy").read_text() == "Attention: 3 heads, 5 tokens 3"
    assert (tmp_path / "b.toy").read_text() == "Head 1 1"
    assert kind_of("x.toy") == ".toy"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_input_gives_the_same_bytes(tmp_path: Path, suffix: str, theme: str) -> None:
    result = run(allowed=np.tril(np.ones((5, 5))), queries=("$$", "\\frac", "<b>", "&", "مرحبا"))
    options = FigureOptions(theme=theme, annotate=suffix != ".svg")
    bodies = []
    for name in ("a", "b"):
        one, all_ = tmp_path / f"{name}1{suffix}", tmp_path / f"{name}2{suffix}"
        draw_overview(result, 0, all_, options)
        draw_heads(result, 0, [(0, 1, one)], options)
        bodies.append((one.read_bytes(), all_.read_bytes()))
    assert bodies[0] == bodies[1]


def test_done_is_told_after_each_file(tmp_path: Path) -> None:
    places = [tmp_path / f"{h}.png" for h in range(3)]
    done: list[Path] = []

    def check(path: Path) -> None:
        assert path.is_file()
        done.append(path)

    targets = [(0, h, place) for h, place in enumerate(places)]
    draw_heads(run(), 0, targets, FigureOptions(), check)
    assert done == places


def test_pictures_are_described_for_those_who_cannot_see_them(tmp_path: Path) -> None:
    import zlib

    result = run(masks=("causal",), heads=10)
    for suffix in (".png", ".svg", ".pdf"):
        draw_overview(result, 0, tmp_path / f"a{suffix}", FigureOptions())
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
    draw_overview(run(tokens), 0, tmp_path / "a.svg", FigureOptions())
    tree = ET.parse(tmp_path / "a.svg").getroot()
    texts = [e.text for e in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert all(texts.count(token) >= 2 for token in tokens)
    assert not list(tree.iter("{http://www.w3.org/2000/svg}script"))
    for heads, most in ((8, 2_500_000), (12, 700_000)):  # cells one by one, then images
        result = run(tuple(f"t{i}" for i in range(64)), heads=heads)
        draw_overview(result, 0, tmp_path / "b.svg", FigureOptions())
        assert (tmp_path / "b.svg").stat().st_size < most


def test_a_result_with_untrained_weights_says_so() -> None:
    assert panels_of(run(trained=False)).caption == "untrained · no mask"
    assert panels_of(run(source="bert")).caption == "bert · no mask"
