"""Pictures, tables and maps of a comparison: their numbers first, then words and marks."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image
from rich.console import Console

from attnviz.comparison import compare
from attnviz.errors import InputError
from attnviz.render import comparison_report
from attnviz.render.attention_pictures import overview
from attnviz.render.comparison_pictures import (
    bits_in_cell,
    distances_drawing,
    draw_differences,
    draw_distances,
    draw_three_panels,
    three_panel_drawing,
)
from attnviz.render.comparison_report import (
    comparison_as_json,
    comparison_facts,
    comparison_verdict,
    print_comparison,
)
from attnviz.render.difference_panels import (
    DifferenceCells,
    common_scales,
    cropped,
    difference_panels,
)
from attnviz.render.drawing import CellSize, Drawing
from attnviz.render.figure_options import FigureOptions
from attnviz.render.palette import (
    ALARM,
    COLOURS,
    DIFFERENCE_COLOURS,
    WEIGHT_COLOURS,
    diverging,
    palette,
    tone_index,
)
from attnviz.render.panel import (
    BLIND,
    FORBIDDEN,
    NOT_A_NUMBER,
    ONLY_A,
    ONLY_B,
    PADDING,
    WEIGHT,
    CellKinds,
    Panel,
)
from attnviz.render.raster import PanelPainter
from attnviz.render.scales import SignedScale, signed_digits
from attnviz.render.terminal_maps import print_difference_map
from attnviz.render.visible import signed
from attnviz.result import Attention

WORDS = ("The", "cat", "sat", "on", "mats")
MIDDLE = DIFFERENCE_COLOURS[len(DIFFERENCE_COLOURS) // 2]
"""The palette entry of no difference."""

INK = tone_index(1.0)


def made(
    seed: int,
    layers: int = 1,
    heads: int = 3,
    queries: tuple[str, ...] = WORDS,
    keys: tuple[str, ...] | None = None,
    allowed: Any = None,
    batch: int = 1,
    numbers: tuple[int, ...] = (),
    **facts: Any,
) -> Attention:
    keys = queries if keys is None else keys
    shape = (layers, batch, heads, len(queries), len(keys))
    may = np.ones((layers, batch, 1, *shape[3:]), dtype=bool)
    if allowed is not None:
        may &= np.asarray(allowed, dtype=bool)
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(keys)), shape[:4]) * may
    total = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros(shape), where=total > 0)
    given = {
        "query_tokens": (queries,) * batch,
        "key_tokens": (keys,) * batch,
        "lengths": np.full(batch, len(queries)),
        "key_lengths": np.full(batch, len(keys)),
        "layers": numbers,
    }
    return Attention(weights.astype(np.float32), may, **{**given, **facts})


def square(*rows: list[float], allowed: Any = None, **facts: Any) -> Attention:
    """One head with these weights."""
    words = WORDS[: len(rows)]
    result = made(0, heads=1, queries=words, keys=WORDS[: len(rows[0])], allowed=allowed, **facts)
    return replace(result, attention=np.array(rows, dtype=np.float32)[None, None, None])


def cells_of(a: Attention, b: Attention, **how: Any) -> DifferenceCells:
    return DifferenceCells(cropped(a, 0), cropped(b, 0), compare(a, b, **how).heads)


def overview_of(found: Any, sequence: int = 0, names: Any = ("", ""), **chosen: Any) -> Drawing:
    options = FigureOptions(**chosen)
    return overview(difference_panels(found, sequence, options, names), options)[0]


def three_of(found: Any, head: Any, names: Any = ("", ""), **chosen: Any) -> Drawing:
    options = FigureOptions(**chosen)
    scales = common_scales(found, 0, [head], options)
    return three_panel_drawing(found, 0, head, options, names, scales)[0]


# ── cells ────────────────────────────────────────────────────────────────────────────────────


def test_a_cell_is_b_minus_a():
    a, b = made(0, layers=2), made(1, layers=2)
    values, kinds = cells_of(a, b).cells((1, 2))
    want = b.attention[1, 0, 2].astype(np.float64) - a.attention[1, 0, 2]
    assert values == pytest.approx(want, abs=1e-7)
    assert (kinds.cells == WEIGHT).all()
    only = cells_of(a, b, layers=[1], heads=[2])
    assert only.largest() == pytest.approx(np.abs(want).max())
    assert cells_of(a, a).largest() == 1


def test_matched_heads_are_taken_from_each_other():
    a = made(0)
    b = replace(a, attention=a.attention[:, :, [2, 0, 1]])
    cells = cells_of(a, b, match=True)
    assert not any(cells.cells((0, i))[0].any() for i in range(3))


def test_each_kind_of_cell():
    a = square([0.5, 0.5, 0], [1, 0, 0], [0, 0, 0], allowed=[[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    b = square([0.2, 0, 0.8], [np.nan, 0, 0.3], [0, 0, 0], allowed=[[1, 0, 1], [1, 0, 0], [0] * 3])
    kinds = cells_of(a, b).cells((0, 0))[1]
    assert kinds.cells.tolist() == [
        [WEIGHT, ONLY_A, ONLY_B],
        [NOT_A_NUMBER, FORBIDDEN, WEIGHT],  # a leak in B is a difference, whatever the masks say
        [BLIND] * 3,
    ]
    assert kinds.blind.tolist() == [False, False, True]


def test_an_array_of_unknown_mask_has_that_of_the_other():
    def kinds(a: Attention, b: Attention) -> Any:
        return cells_of(a, b).cells((0, 0))[1].cells.tolist()

    a = square([1, 0], [0.5, 0.5], allowed=[[1, 0], [1, 1]])
    b = replace(square([0.9, 0.1], [0.5, 0.5]), masks=("unknown",))
    assert kinds(a, b) == [[WEIGHT, ONLY_B], [WEIGHT] * 2]
    assert kinds(b, a) == [[WEIGHT, ONLY_A], [WEIGHT] * 2]
    b = replace(a, masks=("unknown",), allowed=np.ones_like(a.allowed))
    assert kinds(a, b) == [[WEIGHT, FORBIDDEN], [WEIGHT] * 2]


def test_padding_is_cut_off_as_a_view():
    pads = (*WORDS[:3], "[PAD]", "[PAD]")
    a = made(0, queries=pads, lengths=np.array([3]), key_lengths=np.array([3]))
    one = cropped(a, 0)
    assert np.shares_memory(one.attention, a.attention)
    assert one.attention.shape == (1, 1, 3, 3, 3)
    assert one.query_tokens == (WORDS[:3],)
    left = replace(a, pad_side="left")
    assert cropped(left, 0).key_tokens == (("sat", "[PAD]", "[PAD]"),)
    assert cropped(left, 0).key_valid.all()


def test_heads_with_the_same_mask_share_their_kinds():
    lower = np.tril(np.ones((5, 5)))
    cells = cells_of(made(0, allowed=lower), made(1, allowed=lower))
    assert cells.cells((0, 0))[1] is cells.cells((0, 1))[1]


# ── colours ──────────────────────────────────────────────────────────────────────────────────


def test_light_is_rdbu():
    want = colormaps["RdBu_r"](np.linspace(0, 1, len(DIFFERENCE_COLOURS)))[:, :3]
    assert np.abs(diverging("light", len(DIFFERENCE_COLOURS)) - want).max() < 0.01


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_palette_holds_both_maps(theme):
    colours = palette(FigureOptions(cmap="magma", theme=theme), two_maps=True)
    magma = colormaps["magma"](np.linspace(0, 1, len(WEIGHT_COLOURS)))[:, :3] * 255
    assert np.abs(colours[: len(WEIGHT_COLOURS)] - magma).max() <= 0.5
    assert len(DIFFERENCE_COLOURS) % 2 == 1
    middle, paper = colours[MIDDLE].astype(int), colours[tone_index(0.0)].astype(int)
    assert np.abs(middle - paper).max() < 40  # no difference is near the paper
    less, more = colours[MIDDLE - 25].astype(int), colours[MIDDLE + 25].astype(int)
    assert less[2] > less[0] + 60  # blue
    assert more[0] > more[2] + 60  # red


def test_the_scale_is_symmetric_and_0_is_in_its_middle():
    values = np.array([[-0.5, -0.25, -0.004, 0, 0.004, 0.25, 0.5, 9.0]], dtype="f4")
    steps = (SignedScale(0.5).shades(values).astype(int) - MIDDLE).tolist()
    assert steps == [[-50, -25, 0, 0, 0, 25, 50, 50]]


def test_a_pooled_cell_shows_the_difference_that_is_furthest_from_0():
    values = np.array([[0.1, -0.6, 0.3], [0, 0.5, -0.2]], dtype="f4")
    shades = SignedScale(1.0).shades(values, pool=2)
    assert (shades.astype(int) - MIDDLE).tolist() == [[-30, 15]]


def test_what_one_mask_allows_shows_through_lines_of_its_own():
    def painted(kind: int) -> Any:
        kinds = CellKinds(np.full((1, 1), kind, dtype=np.uint8))
        panel = Panel(np.full((1, 1), 0.5, dtype=np.float32), kinds, SignedScale(1.0))
        return PanelPainter(CellSize(40, 40), 72).paint(panel)

    a, b = painted(ONLY_A), painted(ONLY_B)
    for cells in (a, b):
        assert set(np.unique(cells)) == {MIDDLE + 25, INK}
        assert 0.1 < (cells == INK).mean() < 0.5
    assert (a != b).any()
    assert (b == b[:1]).all()  # upright lines
    assert (painted(WEIGHT) == MIDDLE + 25).all()
    assert ALARM in painted(NOT_A_NUMBER)
    for kind in (FORBIDDEN, BLIND, PADDING):
        assert MIDDLE + 25 not in painted(kind)


@pytest.mark.parametrize(
    ("value", "text"), [(0.126, "+0.13"), (-0.126, "−0.13"), (0.0, "0"), (-0.001, "0")]
)
def test_numbers_in_cells_have_a_sign(value, text):
    assert signed_digits(value) == text


# ── pages ────────────────────────────────────────────────────────────────────────────────────


def texts_of(sheet: Any) -> list[str]:
    return [text.text for text in sheet.texts]


def test_the_overview_says_what_each_head_has():
    a, b = made(0, masks=("causal",), source="one"), made(1, source="two")
    b.attention[0, 0, 1] = a.attention[0, 0, 1]
    found = compare(a, b)
    sheet = overview_of(found, names=("a.npz", "b.npz"))
    texts = texts_of(sheet)
    assert sheet.title == "Difference B − A: 3 heads, 5 tokens"
    assert "A: a.npz, one, masks: causal · B: b.npz, two, no mask" in texts
    by_number = {head.head: head for head in found.heads}
    largest = signed(by_number[2].largest.difference, 2)
    assert f"{by_number[2].bits:.2g} bits · {largest}" in texts
    assert texts.count("the same") == 1
    top = max(head.difference for head in found.heads)
    assert {f"+{top:.3g}", f"−{top:.3g}", "0", "B − A"} <= set(texts)
    assert f"Colours run from {-top:.3g} to {top:.3g}." in sheet.description
    assert f"head {found.heads[0].head}: {found.heads[0].bits:.3g} bits" in sheet.description


def test_matched_heads_are_named_twice():
    a = made(0)
    found = compare(a, replace(a, attention=a.attention[:, :, [2, 0, 1]]), match=True)
    sheet = overview_of(found)
    assert {"head 0 ~ 1", "head 1 ~ 2", "head 2 ~ 0"} <= set(texts_of(sheet))
    assert three_of(found, found.heads[0]).title == "Head 0 of A, head 1 of B"
    a, b = made(0, layers=2), made(1, layers=2)
    found = compare(a, b, layers=[1], heads=[2])
    head = found.heads[0]
    page = three_of(found, head)
    assert page.title == "Layer 1 · head 2"
    values = [float(r.attention[1, 0, 2].max(-1).mean()) for r in (a, b)]
    shown = [text for text in texts_of(page) if text.startswith("entropy")]
    assert [text.partition("largest ")[2] for text in shown] == [f"{v:.2f}" for v in values]


def test_distances_are_those_of_the_sequence():
    a, b = made(0, batch=2), made(1, batch=2)
    b.attention[:, 0] = a.attention[:, 0]
    found = compare(a, b)
    sheets = [overview_of(found, s) for s in (0, 1)]
    assert texts_of(sheets[0]).count("the same") == 3
    first = next(head for head in found.heads if head.head == 0)
    assert first.by_sequence == (0, pytest.approx(2 * first.bits))
    assert any(text.startswith(f"{first.by_sequence[1]:.2g} bits") for text in texts_of(sheets[1]))
    assert any("sequence 1 of 2" in text for text in texts_of(sheets[1]))


def test_several_layers_are_a_matrix():
    found = compare(made(0, layers=2), made(1, layers=2))
    sheet = overview_of(found)
    assert len({placed.left for placed in sheet.panels}) == 3
    assert len({placed.top for placed in sheet.panels}) == 2


def test_what_cannot_be_compared_says_why():
    a, b = made(0), made(1)
    b.attention[0, 0, 1] = np.nan
    allowed = np.zeros((1, 1, 3, 5, 5), dtype=bool)
    allowed[:, :, 1:] = True
    sheet = overview_of(compare(a, b))
    assert {"not a number"} < set(texts_of(sheet))
    blind = replace(a, allowed=allowed, attention=np.where(allowed, a.attention, 0))
    found = compare(blind, blind)
    sheet = overview_of(found)
    assert "sees nothing" in texts_of(sheet)
    head = next(head for head in found.heads if head.head == 0)
    page = three_of(found, head)
    assert "no distance · no difference" in texts_of(page)


def test_a_triptych_has_a_b_and_their_difference():
    a, b = made(0, allowed=np.tril(np.ones((5, 5)))), made(1)
    found = compare(a, b)
    head = found.heads[0]
    scales = common_scales(found, 0, [head], FigureOptions())
    sheet = three_of(found, head, ("a", "b"), annotate=True)
    assert scales.difference.top == pytest.approx(head.difference)
    assert scales.weight.top == pytest.approx(
        max(float(r.attention[0, 0, head.head].max()) for r in (a, b))
    )
    first, second, third = sheet.panels
    assert first.top == second.top == third.top
    weights, differences = sheet.bars
    assert first.left < second.left < weights.left < third.left < differences.left
    painter = PanelPainter(first.cell, 150)
    assert set(np.unique(painter.paint(second.panel))) <= set(WEIGHT_COLOURS)
    assert set(np.unique(painter.paint(third.panel))) <= {*DIFFERENCE_COLOURS, INK}
    place = head.largest
    line = next(text for text in texts_of(sheet) if "bits apart" in text)
    assert line == (
        f"{head.bits:.3g} bits apart · largest difference "
        f"{signed(place.difference, 3)}, from query {place.query} {place.query_token} "
        f"to key {place.key} {place.key_token}: {place.a:.3g} in A, {place.b:.3g} in B"
    )
    assert line in sheet.description
    texts = texts_of(sheet)
    assert {f"A head {head.head}", f"B head {head.head}", "B − A", "weight"} <= set(texts)
    assert {"forbidden by a mask", "allowed in B only"} <= set(texts)
    assert {number.text for number in sheet.numbers} >= {f"{place.a:.2f}"}


def test_scales_are_common_and_can_be_given():
    found = compare(made(0), made(1))
    largest = max(found.heads, key=lambda head: head.difference)
    scales = common_scales(found, 0, found.heads, FigureOptions())
    assert scales.difference.top == pytest.approx(largest.difference)
    assert not scales.difference.clipped
    scales = common_scales(found, 0, found.heads, FigureOptions(vmax=0.01))
    for scale in (scales.weight, scales.difference):
        assert (scale.top, scale.clipped) == (0.01, True)
    sheet = overview_of(found, vmax=0.01)
    assert {"≥ +0.01", "≤ −0.01"} <= set(texts_of(sheet))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_files_of_every_form(tmp_path: Path, theme: str):
    found = compare(made(0), made(1))
    options = FigureOptions(theme=theme, dpi=60)
    for suffix in ("png", "svg", "pdf"):
        place = tmp_path / f"d.{suffix}"
        assert draw_differences(found, 0, place, options) == []
        first = place.read_bytes()
        draw_differences(found, 0, place, options)
        assert place.read_bytes() == first
    with Image.open(tmp_path / "d.png") as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3)
        assert image.info["Title"] == "Difference B − A: 3 heads, 5 tokens"
    colours = {tuple(colour) for colour in pixels.tolist()}
    colour_map = palette(options, two_maps=True).tolist()
    assert tuple(colour_map[COLOURS - 1]) in colours  # the strongest, in the bar
    assert tuple(colour_map[DIFFERENCE_COLOURS[0]]) in colours
    assert ET.parse(tmp_path / "d.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "d.pdf").read_bytes()[:5] == b"%PDF-"


def test_a_file_for_each_target(tmp_path: Path):
    found = compare(made(0), made(1))
    calls: list[int] = []
    targets = [(head, tmp_path / f"{i}.png") for i, head in enumerate(found.heads[:2])]
    draw_three_panels(found, 0, targets, FigureOptions(dpi=60), on_done=lambda: calls.append(1))
    assert len(calls) == 2
    for head, place in targets:
        with Image.open(place) as image:
            assert image.info["Title"] == f"Head {head.head}"


def test_a_long_text_is_pooled_and_said(tmp_path: Path):
    words = tuple(map(str, range(200)))
    a, b = made(0, heads=8, queries=words), made(1, heads=8, queries=words)
    found = compare(a, b)
    options = FigureOptions(dpi=50, annotate=True)
    said = draw_differences(found, 0, tmp_path / "d.png", FigureOptions(dpi=50))
    assert said[0] == (
        "overview: each cell shows the largest of 2 × 2 differences; the heads' own pictures show "
        "more"
    )
    words = tuple(map(str, range(1100)))
    found = compare(made(0, heads=1, queries=words), made(1, heads=1, queries=words))
    said = draw_three_panels(found, 0, [(found.heads[0], tmp_path / "t.png")], options)
    assert said[0] == "heads: each cell shows the largest of 2 × 2 weights"
    assert said[-1] == "heads: the cells are too small for numbers"


def test_memory_is_asked_for_first(monkeypatch):
    found = compare(made(0), made(1))
    monkeypatch.setattr("attnviz.machine.free_memory", lambda: 100)
    with pytest.raises(InputError) as caught:
        difference_panels(found, 0, FigureOptions())
    assert str(caught.value) == (
        "a picture of 3 differences of 5 × 5 needs 450 B of memory and 100 B are free; choose "
        "fewer with --layers and --heads"
    )


def test_no_tokens_is_a_picture_of_padding(tmp_path: Path):
    a = made(0, lengths=np.array([0]), key_lengths=np.array([0]))
    found = compare(a, a)
    assert (cells_of(a, a).cells((0, 0))[1].cells == PADDING).all()
    draw_differences(found, 0, tmp_path / "d.png", FigureOptions(dpi=60))
    draw_three_panels(found, 0, [(found.heads[0], tmp_path / "t.png")], FigureOptions(dpi=60))


def test_the_matrix_of_distances(tmp_path: Path):
    a, b = made(0, layers=4, batch=2), made(1, layers=4, batch=2)
    b.attention[2, :, 1] = np.nan
    b.attention[3, :, 2] = a.attention[3, :, 2]
    found = compare(a, b, layers=[1, 2, 3], heads=[0, 1, 2])
    sheet = distances_drawing(found, FigureOptions(), "a caption")[0]
    placed = sheet.panels[0]
    cells = PanelPainter(placed.cell, 150).paint(placed.panel)
    n_rows, n_columns = 3, 3
    high, wide = cells.shape[0] // n_rows, cells.shape[1] // n_columns
    top = max(head.bits for head in found.heads if head.bits == head.bits)
    for head in found.heads:
        row, column = head.layer - 1, head.head
        cell = cells[row * high : (row + 1) * high, column * wide : (column + 1) * wide]
        if head.broken:
            assert ALARM in cell
        else:
            step = min(int(head.bits / top * COLOURS), COLOURS - 1)
            assert np.unique(cell).tolist() == [pytest.approx(step, abs=1)]
    written = {number.text for number in sheet.numbers}
    assert "0" in written
    assert f"{top:.3f}"[1:] in written
    assert len(sheet.numbers) == 8
    texts = texts_of(sheet)
    assert [text for text in texts if text in "123"][:3] == ["1", "2", "3"]
    assert "not a number" in texts
    place = tmp_path / "m.png"
    assert draw_distances(found, place, FigureOptions(dpi=60), ("a.npz", "b.npz")) == []
    with Image.open(place) as image:
        assert "a.npz" in image.info["Description"]
        assert "2 sequences" in image.info["Description"]


@pytest.mark.parametrize(
    ("bits", "text"), [(0, "0"), (0.0093, ".009"), (1.0, "1.000"), (7.2e-14, "7e-14")]
)
def test_bits_in_cells(bits, text):
    assert bits_in_cell(bits) == text


# ── words ────────────────────────────────────────────────────────────────────────────────────


def printed(found: Any, top: int = 10, width: int = 200, **how: Any) -> str:
    console = Console(
        file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False, **how
    )
    print_comparison(found, console, top)
    return console.file.getvalue()


def test_the_table_has_the_numbers():
    a, b = made(0, layers=2), made(1, layers=2)
    found = compare(a, b)
    out = printed(found, top=2)
    title, header, rule, *rows, units = out.splitlines()
    assert title == "heads that changed, the most first: 2 of 6"
    assert header.split() == ["#", "head", "bits", "B", "−", "A", "A", "B", "query", "→", "key"]
    assert set(rule) == {"─"}
    assert len(rows) == 2
    for rank, (row, head) in enumerate(zip(rows, found.heads, strict=False), 1):
        place = head.largest
        want = [str(rank), f"L{head.layer}", f"H{head.head}", f"{head.bits:.3g}"]
        assert row.split()[:4] == want
        assert row.split()[5:] == [
            signed(place.difference, 3),
            f"{place.a:.3f}",
            f"{place.b:.3f}",
            str(place.query), place.query_token, "→", str(place.key), place.key_token,
        ]  # fmt: skip
    assert rows[0].count("━") == 10
    assert units.startswith("bits: mean Jensen–Shannon divergence of a row, 0 to 1")


def test_small_differences_can_be_read_from_both_values():
    a, b = square([0.5, 0.5], [0.25, 0.75]), square([0.5, 0.5], [0.250004, 0.749996])
    place = compare(a, b).largest
    row = printed(compare(a, b)).splitlines()[3]
    assert f"{place.a:.8f}" in row
    assert f"{place.b:.8f}" in row
    assert "+3.99e-06" in row


def test_heads_without_a_difference_are_counted():
    a = made(0)
    b = replace(a, attention=a.attention.copy())
    assert printed(compare(a, b)) == "3 heads in which no weight differs\n"
    b.attention[0, 0, 1, 2] = [0.2] * 5
    out = printed(compare(a, b)).splitlines()
    assert out[0] == "2 heads in which no weight differs"
    assert out[4].split()[:2] == ["1", "1"]
    assert len(out) == 6


def test_what_is_no_number_is_named():
    a = made(0)
    b = replace(a, attention=a.attention.copy())
    b.attention[0, 0, 1, 2, 4] = np.inf
    assert "B is no number at 2 sat → 4 mats" in printed(compare(a, b))
    assert "A is no number at 2 sat → 4 mats" in printed(compare(b, a))
    blind = replace(a, lengths=np.array([0]))
    assert "no rows to compare" in printed(compare(blind, blind))


def test_a_narrow_terminal_gets_lines_that_fit():
    found = compare(made(0), made(1))
    b = made(1)
    b.attention[0, 0, 2, 1, 1] = np.nan
    for comparison in (found, compare(made(0), b)):
        out = printed(comparison, width=24, force_terminal=True, color_system=None)
        assert max(map(len, out.splitlines())) <= 24
        assert out.count("bits") >= 3


def test_ascii_and_hostile_tokens():
    words = ("[red]", "\x1b[31m", "猫", "$(x)", "on")
    found = compare(made(0, queries=words), made(1, queries=words))
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=stream, width=200, markup=False, emoji=False, highlight=False)
    print_comparison(found, console, 9)
    stream.flush()
    out = stream.buffer.getvalue().decode("ascii")
    assert "\x1b" not in out
    assert "->" in out
    assert "##########" in out


def test_the_facts():
    a = made(0, layers=2, heads=3, masks=("causal",))
    b = replace(a, attention=a.attention[:, :, [2, 0, 1]].astype(np.float64), masks=())
    assert comparison_facts(compare(a, b, match=True), ("a\n.npz", "b")) == [
        ("A", "a\\n.npz: 2 layers, 3 heads, float32, masks: causal"),
        ("B", "b: 2 layers, 3 heads, float64, no mask"),
        ("compared", "6 heads by likeness, means over 5 query rows"),
        ("matched", "layer 0: 0~1 1~2 2~0"),
        ("matched", "layer 1: 0~1 1~2 2~0"),
    ]
    assert comparison_facts(compare(made(0), made(0), match=True), ("", ""))[-1] == (
        "matched",
        "each head with its own number",
    )
    two = made(0, batch=2)
    assert comparison_facts(compare(two, two, sequences=[1]), ("", ""))[2] == (
        "compared",
        "3 heads by index, 1 sequence, means over 5 query rows",
    )


@pytest.mark.parametrize(
    ("b", "tolerance", "said"),
    [
        ([0.5, 0.5], None, "the same: no weight differs"),
        ([0.5, 0.5], 0, "tolerance 0: the same: no weight differs"),
        ([0.25, 0.75], None, "weights differ by up to 0.25"),
        ([0.25, 0.75], 0.25, "tolerance 0.25: the same: weights differ by up to 0.25"),
        ([0.25, 0.75], 1e-5, "tolerance 1e-05: not the same: weights differ by up to 0.25"),
        (
            [np.nan, 0.5],
            1e9,
            "tolerance 1e+09: not the same: there are weights that are no numbers",
        ),
    ],
)
def test_the_verdict(b, tolerance, said):
    assert comparison_verdict(compare(square([0.5, 0.5]), square(b)), tolerance) == said


def test_the_verdict_on_nothing():
    a = made(0, lengths=np.array([0]))
    assert comparison_verdict(compare(a, a), 0.1) == "tolerance 0.1: there is nothing to compare"


def schema() -> Any:
    return json.loads(Path(comparison_report.__file__).with_name("compare.schema.json").read_text())


@pytest.mark.parametrize("tolerance", [None, 0.5])
def test_json_follows_its_schema_and_holds_every_digit(tolerance):
    jsonschema.Draft202012Validator.check_schema(schema())
    a, b = made(0, layers=2), made(1, layers=2)
    b.attention[1, 0, 2, 3, 4] = np.nan
    found = compare(a, b)
    document = json.loads(
        json.dumps(comparison_as_json(found, ("a", "b"), tolerance), allow_nan=False)
    )
    jsonschema.validate(document, schema())
    assert [(head["layer"], head["head"]) for head in document["heads"]] == [
        (head.layer, head.head) for head in found.heads
    ]
    assert document["heads"][1]["bits"] == found.heads[1].bits
    assert document["broken"]["b"] is None
    assert document["broken"]["a"] == float(a.attention[1, 0, 2, 3, 4])
    assert document["within"] == (None if tolerance is None else False)
    document["heads"][0]["bits"] = 2
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())


# ── the terminal ─────────────────────────────────────────────────────────────────────────────


def mapped(found: Any, width: int = 80, color: str | None = None, **how: Any) -> list[str]:
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        color_system=color,
        markup=False,
        emoji=False,
        highlight=False,
    )
    print_difference_map(found, found.heads[0], 0, console, **how)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_cell_is_a_sign_and_a_digit():
    a, b = square([0.9, 0.1], [0.5, 0.5]), square([0.0, 1.0], [0.6, 0.4])
    lines = mapped(compare(a, b))
    assert lines[0] == "head 0: B − A"
    assert [line for line in lines if line.startswith(("The", "cat"))] == [
        "The -9+9",
        "cat +1-1",
    ]
    legend = lines[-1]
    assert legend.startswith("−0.9 [-9-8-7-6-5-4-3-2-1  +1+2+3+4+5+6+7+8+9] +0.9")
    assert "rows: queries" in legend


def test_marks_for_what_is_no_difference():
    a = square([1, 0, 0], [0, 0, 0], [0.5, 0.5, 0], allowed=[[1, 0, 0], [0, 0, 0], [1, 1, 0]])
    b = square([1, 0, 0], [0, 0, 0], [np.nan, 0, 1], allowed=[[1, 0, 0], [0, 0, 0], [1, 0, 1]])
    lines = mapped(compare(a, b), vmax=0.25)
    assert [line for line in lines if line.startswith(("The", "cat", "sat"))] == [
        "The   ╱╱╱╱",
        "cat ──────",
        "sat ××-9+9",
    ]
    legend = " ".join(lines[5:])
    for words in (
        "╱╱ forbidden",
        "── a row that sees nothing",
        "×× not a number",
        "1 cell allowed in A only",
        "1 cell allowed in B only",
        "differences over 0.25 look like it",
    ):
        assert words in legend


def test_a_long_text_is_reduced_and_said():
    words = tuple(f"w{i}" for i in range(150))
    a, b = made(0, heads=1, queries=words), made(1, heads=1, queries=words)
    text = " ".join(mapped(compare(a, b), width=60))
    assert "each cell is the mean of 3 × 3 differences, 150 × 150 in all" in text
    assert "3 queries a line: the label is the first one's" in text
    assert re.search(r"[=#+-]", text)


@pytest.mark.parametrize(
    ("system", "more", "less"),
    [
        ("truecolor", "48;2;255;219;207", "48;2;207;230;255"),
        ("256", "48;5;224", "48;5;189"),
    ],
)
def test_colours_from_less_to_more(system, more, less):
    a, b = square([0.9, 0.1], [0.5, 0.5]), square([0.0, 1.0], [0.5, 0.5])
    row = next(line for line in mapped(compare(a, b), color=system) if line.startswith("The"))
    assert row.index(less) < row.index(more)


def test_no_tokens_no_map():
    a = made(0, lengths=np.array([0]), key_lengths=np.array([0]), batch=1)
    assert mapped(compare(a, a))[-1] == "no tokens: there is nothing to draw"


def test_the_sequence_and_the_layer_are_named():
    found = compare(made(0, layers=2, batch=2), made(1, layers=2, batch=2))
    head = found.heads[0]
    assert mapped(found)[0] == f"sequence 0: L{head.layer} H{head.head}: B − A"


def test_layers_have_their_models_numbers():
    a, b = made(0, layers=2, numbers=(3, 8)), made(1, layers=2, numbers=(3, 8))
    found = compare(a, b)
    head = next(head for head in found.heads if head.layer == 1)
    assert found.notes == ()
    assert f"L8 H{head.head}" in printed(found)
    document = comparison_as_json(found)
    assert document["a"]["layers"] == [3, 8]
    assert {head["layer"] for head in document["heads"]} == {3, 8}
    assert document["largest"]["layer"] == (3, 8)[found.largest.layer]
    page = three_of(found, head)
    assert page.title == f"Layer 8 · head {head.head}"
    sheet = overview_of(found)
    assert "layer 8 · head 0" in texts_of(sheet)
    matrix = distances_drawing(found, FigureOptions(), "")[0]
    assert {"3", "8"} <= set(texts_of(matrix))
    assert compare(a, made(1, layers=2)).notes == (
        "A's layers are 3, 8 of their model and B's 0, 1: they are compared in order",
    )
