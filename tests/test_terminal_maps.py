"""Heatmaps in a terminal: each printed cell is read back and compared with the array."""

from __future__ import annotations

import io
import os
import pty
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.color import Color
from rich.console import Console
from rich.text import Text

from attnviz.errors import LACKING, ConfigError
from attnviz.render.console import ascii_only, has_color, make_console, write
from attnviz.render.drawing import CellSize
from attnviz.render.figure_options import FigureOptions
from attnviz.render.head_panels import head_panels
from attnviz.render.palette import COLOURS
from attnviz.render.panel import (
    BLIND,
    FORBIDDEN,
    NOT_A_NUMBER,
    ONLY_B,
    PADDING,
    WEIGHT,
    CellKinds,
    Panel,
)
from attnviz.render.raster import PanelPainter
from attnviz.render.scales import LinearScale
from attnviz.render.terminal_colours import (
    ASCII_MARKS,
    ASCII_RAMP,
    MARKS,
    RAMPS,
    color_table,
    glyphs_for,
    nearest_of_256,
)
from attnviz.render.terminal_maps import mean_pooled, print_maps
from attnviz.render.visible import cells
from attnviz.result import Attention

Cell = tuple[str, str | None, str | None]
"""A character, its colour and the colour behind it, as rich names them."""


def softmax_rows(shape: tuple[int, ...], allowed: Any, seed: int = 0) -> Any:
    """Weights as attention makes them: rows over the allowed cells sum to 1, or are 0."""
    scores = np.exp(np.random.default_rng(seed).normal(0, 2, shape)) * allowed
    total = scores.sum(-1, keepdims=True)
    return np.divide(scores, total, out=np.zeros(shape), where=total > 0).astype(np.float32)


def made(
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    heads: int = 2,
    lengths: tuple[int, int] | None = None,
    allowed: Any = None,
    **facts: Any,
) -> Attention:
    """One layer and one sequence; `lengths` are the real queries and keys, the rest is padding."""
    keys = queries if keys is None else keys
    lengths = (len(queries), len(keys)) if lengths is None else lengths
    if allowed is None:
        allowed = np.ones((len(queries), len(keys)), dtype=bool)
        allowed[:, lengths[1] :] = False
    allowed = np.broadcast_to(allowed, (1, len(queries), len(keys)) if allowed.ndim == 2 else None)
    shape = (1, 1, heads, len(queries), len(keys))
    return Attention(
        attention=softmax_rows(shape, allowed),
        allowed=allowed[None, None],
        query_tokens=(tuple(queries),),
        key_tokens=(tuple(keys),),
        lengths=np.array([lengths[0]]),
        key_lengths=np.array([lengths[1]]),
        **facts,
    )


def numbered(n: int) -> list[str]:
    return [f"t{i}" for i in range(n)]


def causal(n: int) -> Any:
    return np.tril(np.ones((n, n), dtype=bool))


def screen(width: int = 80, color: Any = None, ascii: bool = False, file: Any = None) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if ascii else "utf-8")
    return Console(
        file=file,
        width=width,
        color_system=color,
        force_terminal=color is not None,
        legacy_windows=False,
        _environ={},
    )


def shown(console: Console, result: Attention, sequence: int = 0, **options: Any) -> list[str]:
    print_maps(result, sequence, console, **options)
    stream: Any = console.file
    stream.flush()
    stream.seek(0)
    return str(stream.read()).split("\n")[:-1]


def columns(line: str) -> list[Cell]:
    """Each column of a printed line; the second one of a wide character is empty."""
    found: list[Cell] = []
    for segment in Text.from_ansi(line).render(Console()):
        style = segment.style
        color = style and style.color and style.color.name
        behind = style and style.bgcolor and style.bgcolor.name
        for c in segment.text.rstrip("\n"):
            found.append((c, color or None, behind or None))
            found += [("", None, None)] * (cells(c) - 1)
    return found


def plain(line: str) -> str:
    return Text.from_ansi(line).plain


def maps(
    lines: Sequence[str], n_lines: int, above: int
) -> list[tuple[list[str], list[list[Cell]]]]:
    """For each head, in order: the labels of its lines and their columns, up to the line's end.

    A head stands under its title; `above` lines with the keys' labels lie between them.
    """
    found = []
    for i, line in enumerate(lines):
        starts = [m.start() for m in re.finditer(r"head \d|L\d+ H\d", plain(line))]
        for at, start in enumerate(starts):
            body = [columns(text) for text in lines[i + 1 + above : i + 1 + above + n_lines]]
            end = starts[at + 1] - 2 if at + 1 < len(starts) else None
            labels = ["".join(c for c, _, _ in row[: starts[0]]).strip() for row in body]
            found.append((labels, [row[start:end] for row in body]))
    return found


def levels(weights: Any, top: float, n: int) -> Any:
    return np.minimum((weights.astype(float) / top * n).astype(int), n - 1)


def legend(lines: Sequence[str]) -> str:
    """What stands below the last map, on one line."""
    last = max(i for i, line in enumerate(lines) if not plain(line).strip())
    return " ".join(" ".join(plain(line) for line in lines[last + 1 :]).split())


def hexes(table: Any) -> list[str]:
    return [f"#{r:02x}{g:02x}{b:02x}" for r, g, b in np.asarray(table).astype(int)]


# ── colour ───────────────────────────────────────────────────────────────────────────────────


def test_the_colour_map_is_matplotlibs() -> None:
    from matplotlib import colormaps

    theirs = colormaps["viridis"](np.linspace(0, 1, 256))[:, :3] * 255
    assert np.abs(color_table("viridis") - theirs).max() < 2.5
    np.testing.assert_allclose(
        color_table("magma"), colormaps["magma"](np.linspace(0, 1, 256))[:, :3] * 255, atol=0.5
    )
    with pytest.raises(ConfigError, match="--cmap virdis"):
        color_table("virdis")


def test_true_colour_cells_are_the_weights() -> None:
    result = made(["the", "cat", "猫", "sat", "on"], heads=3, allowed=causal(5), masks=("causal",))
    lines = shown(screen(60, "truecolor"), result)
    assert [plain(line).rstrip() for line in lines[:4]] == [
        "    head 0      head 1      head 2",
        "    t c 猫s o   t c 猫s o   t c 猫s o",
        "    h a   a n   h a   a n   h a   a n",
        "    e t   t     e t   t     e t   t",
    ]
    table = hexes(color_table("viridis"))
    for head, (labels, rows) in enumerate(maps(lines, 5, 3)):
        assert labels == ["the", "cat", "猫", "sat", "on"]
        expected = levels(result.attention[0, 0, head], 1.0, 256)
        for i, row in enumerate(rows):
            for j in range(5):
                two = row[2 * j : 2 * j + 2]
                if j > i:
                    assert two == [("╱", "#707070", None)] * 2
                else:
                    assert two == [(" ", None, table[expected[i, j]])] * 2
    assert legend(lines) == "0 1 ╱╱ forbidden by causal rows: queries columns: keys"
    bar = columns(lines[next(i for i, line in enumerate(lines) if plain(line).startswith("0 "))])
    assert [behind for _, _, behind in bar[2:34:2]] == [table[round(i * 17)] for i in range(16)]


def test_fewer_colours() -> None:
    result = made(numbered(9), heads=1)
    lines = shown(screen(60, "256"), result)
    top = float(result.attention.max())
    names = [f"color({n})" for n in nearest_of_256(color_table("viridis"))]
    (_, rows), *_ = maps(lines, 9, 2)
    expected = levels(result.attention[0, 0, 0], top, len(names))
    for i, row in enumerate(rows):
        assert [behind for _, _, behind in row[::2]] == [names[n] for n in expected[i]]
    assert f" {top:.4g} rows" in legend(lines)


def test_sixteen_colours_are_too_few_for_a_map() -> None:
    result = made(numbered(9), heads=1)
    few = [plain(line) for line in shown(screen(60, "standard"), result)]
    assert [line.rstrip() for line in few] == shown(screen(60), result)


def test_a_weight_has_one_place_of_the_colour_map_in_pictures_and_terminals() -> None:
    """The largest weight has the last colour of the map in both, and marks mean the same."""
    lower = causal(5)
    result = made(numbered(5), heads=1, allowed=lower, masks=("causal",))
    panel = head_panels(result, 0, [(0, 0)], FigureOptions()).panel((0, 0))
    codes = glyphs_for(screen(80, "truecolor"), 2, panel.scale).codes(panel)
    shades = PanelPainter(CellSize(1, 1), 150).paint(panel)
    assert codes[0, 0] == 255
    assert shades[0, 0] == COLOURS - 1
    assert (np.abs(codes[lower] / 256 - shades[lower] / COLOURS) < 1 / COLOURS).all()
    assert (codes[~lower] == 256 + FORBIDDEN).all()
    assert (shades[~lower] >= COLOURS).all()


def test_one_console_after_another_has_its_own_colours() -> None:
    """rich's styles remember the escape codes of the first console that they are printed on."""
    result = made(numbered(64), heads=1, allowed=causal(64))
    true = shown(screen(80, "truecolor"), result)
    few = shown(screen(80, "256"), result)
    assert any("▀" in line for line in true)
    assert few != true
    assert shown(screen(80, "truecolor"), result) == true
    assert not any("48;2;" in line or "38;2;" in line for line in few)


def test_in_256_colours_the_scale_climbs_and_holds_no_grey() -> None:
    numbers = list(dict.fromkeys(nearest_of_256(color_table("viridis")).tolist()))
    tones = [Color.from_ansi(n).get_truecolor() for n in numbers]
    assert len(tones) >= 10
    assert all(max(tone) - min(tone) >= 80 for tone in tones)
    light = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in tones]
    assert all(b > a - 8 for a, b in pairwise(light))
    assert set(nearest_of_256(color_table("Greys"))) & {16, 59, 102, 145, 188, 231}


def test_marks_are_far_from_the_map_whatever_it_is() -> None:
    allowed = causal(4)
    allowed[0] = False
    result = made(numbered(4), heads=1, allowed=allowed)
    result.attention[0, 0, 0, 3, 0] = np.nan
    for cmap in ("viridis", "Greys", "hsv", "inferno"):
        (_, rows), *_ = maps(shown(screen(60, "truecolor"), result, cmap=cmap), 4, 2)
        tones = {rows[0][0][1], rows[1][-1][1], rows[3][0][1]}
        assert len(tones) == 3
        table = color_table(cmap)
        for tone in tones:
            rgb = np.array(list(bytes.fromhex(str(tone)[1:])))
            assert np.sqrt(((table - rgb) ** 2).sum(-1)).min() > 40


def test_half_blocks_hold_two_queries_a_line() -> None:
    n = 31
    allowed = np.ones((n, n), dtype=bool)
    allowed[:, 3] = False  # a column that nobody sees
    allowed[5, 7] = False  # one cell
    allowed[9] = False  # a row that sees nothing
    result = made(numbered(n), heads=1, allowed=allowed, masks=("file m.npy",))
    result.attention[0, 0, 0, 12, 4] = np.inf
    lines = shown(screen(60, "truecolor"), result)
    (labels, rows), *_ = maps(lines, 16, 1)
    assert labels == [f"t{i} {i:>2}" for i in range(0, n, 2)]
    weights = np.where(np.isfinite(result.attention[0, 0, 0]), result.attention[0, 0, 0], 0)
    table = np.array(hexes(color_table("viridis")))
    pixels = table[levels(weights, weights.max(), 256)].astype(object)
    pixels[~allowed] = "#707070"
    pixels[9] = "#964b28"
    pixels[12, 4] = "#ff005a"
    for i, row in enumerate(rows):
        for j in range(n):
            above = pixels[2 * i, j]
            below = pixels[2 * i + 1, j] if 2 * i + 1 < n else None
            if j == 3 and i != 4:
                assert row[j] == ("╱", "#707070", None)
            else:
                assert row[j] == ("▀", above, below)
    words = legend(lines)
    for part in ("─▄ a row that sees nothing", "╱▄ forbidden by file m.npy", "×▄ not a number"):
        assert part in words
    assert "2 queries a line: the label is the first one's" in words


def test_half_lines_of_padding_are_left_blank() -> None:
    """Padding in the middle of nothing: the plan cuts it, so the ink itself is asked."""
    glyphs = glyphs_for(screen(80, "truecolor"), 1, LinearScale(1.0))
    padding, weight = glyphs.levels + PADDING, 255
    assert glyphs.halves(padding, weight)[0] == "▄"
    assert glyphs.halves(weight, padding)[0] == "▀"
    assert glyphs.halves(padding, padding)[0] == "·"
    assert glyphs.halves(padding, glyphs.levels + FORBIDDEN)[0] == "▄"


# ── without colour ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("n", [7, 40])
def test_the_ramp_without_colour(n: int, ascii: bool) -> None:
    result = made(numbered(n), heads=2, allowed=causal(n), masks=("causal",))
    lines = shown(screen(60, ascii=ascii), result)
    columns_a_cell = 2 if n == 7 else 1
    ramp = [c * columns_a_cell for c in ASCII_RAMP]
    ramp = ramp if ascii else list(RAMPS[columns_a_cell])
    mark = ("/" if ascii else "╱") * columns_a_cell
    above = 2 if n == 7 else 1
    found = maps(lines, n, above)
    assert len(found) == 2
    for head, (labels, rows) in enumerate(found):
        assert labels == numbered(n)
        expected = levels(result.attention[0, 0, head], 1.0, len(ramp))
        for i, row in enumerate(rows):
            text = "".join(c for c, _, _ in row).ljust(n * columns_a_cell)
            wanted = [ramp[expected[i, j]] if j <= i else mark for j in range(n)]
            assert text == "".join(wanted)
    scale = next(line for line in lines if line.startswith("0 ["))
    assert scale.startswith(f"0 [{''.join(ramp)}] 1  {mark}")
    assert lines[-1] == lines[-1].rstrip()
    assert not any("\x1b" in line for line in lines)
    assert not ascii or "".join(lines).isascii()


@pytest.mark.parametrize(("width", "scale"), [(22, "0 [  ▒░▓▒██] 1"), (20, "0 [  ▒▒██] 1")])
def test_a_narrow_scale_has_fewer_steps(width: int, scale: str) -> None:
    result = made(["a", "b"], allowed=causal(2), masks=("causal",))
    line = next(line for line in shown(screen(width), result) if line.startswith("0 ["))
    assert line.startswith(scale)


def test_no_weight_can_pass_for_a_mark() -> None:
    for marks, ramps in (
        (MARKS, ["".join(ramp) for ramp in RAMPS.values()]),
        (ASCII_MARKS, [ASCII_RAMP]),
    ):
        kinds = (PADDING, BLIND, FORBIDDEN, NOT_A_NUMBER)
        drawn = [marks[kind] for kind in kinds]
        assert len(set(drawn)) == 4
        assert not any(mark in ramp for mark in drawn for ramp in ramps)


# ── padding, rows that see nothing, odd numbers ──────────────────────────────────────────────


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_never_shown_as_attention(side: str) -> None:
    tokens = ["a", "b", "c", "[PAD]", "[PAD]"]
    real = slice(0, 3)
    if side == "left":
        tokens, real = tokens[3:] + tokens[:3], slice(2, 5)
    allowed = np.zeros((5, 5), dtype=bool)
    allowed[:, real] = True
    result = made(tokens, heads=1, lengths=(3, 3), allowed=allowed, pad_side=side)
    assert (result.attention[0, 0, 0].sum(-1) > 0.99).all()  # padded queries have weights
    lines = shown(screen(60), result)
    (labels, rows), *_ = maps(lines, 5, 3)
    assert labels == tokens
    weights = result.attention[0, 0, 0]
    ramp = RAMPS[2]
    expected = levels(weights, float(weights[real].max()), len(ramp))
    for i, row in enumerate(rows):
        text = "".join(c for c, _, _ in row).ljust(10)
        for j in range(5):
            is_real = real.start <= i < real.stop and real.start <= j < real.stop
            assert text[2 * j : 2 * j + 2] == (ramp[expected[i, j]] if is_real else "··")
    assert "·· padding" in legend(lines)
    assert "forbidden" not in legend(lines)
    colored = shown(screen(60, "truecolor"), result)
    pad = colored[4 + tokens.index("[PAD]")]
    dim = Text.from_ansi(pad).get_style_at_offset(Console(), 0)
    assert dim.dim


def test_weight_on_padding_is_not_drawn_but_told() -> None:
    result = made(numbered(4), heads=2, lengths=(3, 3), allowed=np.ones((4, 4), dtype=bool))
    lines = shown(screen(100), result)
    share = float(result.attention[0, 0, :, :3, 3].max())
    assert f"up to {share:.3g} of a row lies on padding, where no weight is drawn" in legend(lines)
    assert "lies on padding" not in legend(shown(screen(100), made(numbered(4), lengths=(3, 3))))


def test_padding_gives_way_where_room_is_short() -> None:
    result = made(numbered(60), heads=1, lengths=(5, 5))
    lines = shown(screen(60, "truecolor"), result)
    assert "55 padded places left out" in legend(lines)
    (labels, _), *_ = maps(lines, 5, 2)
    assert labels == numbered(5)


def test_a_text_of_queries_without_keys_sees_nothing() -> None:
    result = made(numbered(40), ["k"], heads=1, lengths=(40, 0), allowed=np.zeros((40, 1), bool))
    lines = shown(screen(60, "truecolor"), result)
    assert "a row that sees nothing" in legend(lines)
    assert "forbidden" not in legend(lines)


def test_each_head_has_its_own_mask() -> None:
    allowed = np.ones((2, 3, 3), dtype=bool)
    allowed[1, 1] = False
    result = made(numbered(3), heads=2)
    result = replace(
        result, allowed=allowed[None, None], attention=result.attention * allowed[None, None]
    )
    (_, first), (_, second) = maps(shown(screen(60), result), 3, 2)
    assert "─" not in "".join(c for c, _, _ in first[1])
    assert [c for c, _, _ in second[1]] == ["─"] * 6


def test_numbers_that_are_none() -> None:
    result = made(numbered(3), heads=1)
    result.attention[0, 0, 0, 1] = [np.nan, np.inf, 0.25]
    lines = shown(screen(60), result)
    (_, rows), *_ = maps(lines, 3, 2)
    assert [c for c, _, _ in rows[1]][:4] == ["×"] * 4
    assert "×× not a number" in legend(lines)
    assert lines[0].strip() == "head 0"  # no entropy of such a head


def test_weights_off_the_scale_are_told() -> None:
    result = made(numbered(3), heads=1)
    result.attention[0, 0, 0, 0] = [-0.5, 0.75, 0.75]
    lines = shown(screen(90, "truecolor"), result, vmax=0.5)
    table = hexes(color_table("viridis"))
    (_, rows), *_ = maps(lines, 3, 2)
    assert [behind for _, _, behind in rows[0][::2]] == [table[0], table[255], table[255]]
    assert "weights over 0.5 look like it weights under 0 look like 0" in legend(lines)
    silent = legend(shown(screen(90, "truecolor"), made(numbered(3)), vmax=1.0))
    assert "look like" not in silent
    assert silent.startswith("0 1 rows")


def test_all_zero_weights_have_a_scale() -> None:
    result = made(numbered(3), heads=1)
    result.attention[:] = 0
    assert legend(shown(screen(90, "truecolor"), result)).startswith("0 1 rows")


# ── reduction ────────────────────────────────────────────────────────────────────────────────


def test_a_long_text_is_reduced_to_means_and_says_so() -> None:
    n, pool = (
        500,
        6,
    )  # 100 columns, 25 for labels: 74 cells at most, so 500 / 6 does not fit, 7 does
    result = made(numbered(n), heads=1, allowed=causal(n), masks=("causal",))
    lines = shown(screen(100, "truecolor"), result)
    assert f"each cell is the mean of {pool} × {pool} weights, 500 × 500 in all" in legend(lines)
    assert f"{2 * pool} queries a line" in legend(lines)
    side = -(-n // pool)
    (labels, rows), *_ = maps(lines, -(-side // 2), 1)
    assert labels[0] == "t0   0"
    assert labels[1] == f"t{2 * pool}  {2 * pool}"
    weights = result.attention[0, 0, 0].astype(float)
    means = np.full((side, side), np.nan)
    for i in range(side):
        for j in range(side):
            block = np.s_[i * pool : (i + 1) * pool, j * pool : (j + 1) * pool]
            if causal(n)[block].any():
                means[i, j] = weights[block][causal(n)[block]].mean()
    top = np.nanmax(means)
    assert f" {top:.4g} " in legend(lines)
    table = np.array(hexes(color_table("viridis")))
    for i in range(0, side - 1, 2):
        for j in range(side):
            c, above, below = rows[i // 2][j]
            if j > i + 1:
                assert (c, above, below) == ("╱", "#707070", None)
                continue
            seen = [(above, means[i, j]), (below, means[i + 1, j])]
            for color, mean in seen:
                if np.isnan(mean):
                    assert color == "#707070"
                else:  # sums in another order may fall on the other side of a step
                    near = {int(np.clip(mean / top * 256 + e, 0, 255)) for e in (-1e-9, 1e-9)}
                    assert color in table[list(near)]


def test_pooled_marks_give_way_to_weights_and_numbers_that_are_none_do_not() -> None:
    def panel(kinds: list[int], values: list[float]) -> Panel:
        cells = CellKinds(np.array([kinds], dtype=np.uint8))
        return Panel(np.array([values], dtype=np.float32), cells, LinearScale(1.0))

    pooled = mean_pooled(panel([FORBIDDEN, WEIGHT, PADDING], [0.0, 0.5, 0.0]), 1, 3)
    assert pooled.kinds.cells.tolist() == [[WEIGHT]]
    assert pooled.values.tolist() == [[0.5]]
    broken = mean_pooled(panel([NOT_A_NUMBER, WEIGHT], [1.0, 1.0]), 1, 2)
    assert broken.kinds.cells.tolist() == [[NOT_A_NUMBER]]
    one_mask = mean_pooled(panel([ONLY_B, WEIGHT], [0.5, 0.1]), 1, 2)
    assert one_mask.kinds.cells.tolist() == [[WEIGHT]]
    assert one_mask.values == pytest.approx(0.3)


def test_only_the_long_side_of_cross_attention_is_reduced() -> None:
    result = made(["a", "b", "c"], numbered(400), heads=1)
    lines = shown(screen(60), result)
    assert re.search(r"mean of 1 × \d+ weights, 3 × 400 in all", legend(lines))
    assert len(maps(lines, 3, 1)[0][1]) == 3


# ── layout ───────────────────────────────────────────────────────────────────────────────────


def test_cross_attention_and_titles_with_measures() -> None:
    result = made(["ein", "Satz", "hier"], numbered(9), heads=2)
    lines = shown(screen(60), result)
    from attnviz.measures import measure

    entropy = measure(result, 0).result()["entropy"][0]
    titles = [f"head {i}  {entropy[i]:.2f} bits" for i in range(2)]
    assert re.findall(r"head \d  [\d.]+ bits", lines[0]) == titles
    assert maps(lines, 3, 2)[0][0] == ["ein", "Satz", "hier"]


def test_chosen_heads_of_several_layers() -> None:
    result = made(numbered(3), heads=2)
    two = replace(
        result,
        attention=np.concatenate([result.attention, result.attention]),
        allowed=np.concatenate([result.allowed, result.allowed]),
    )
    lines = shown(screen(60), two, pairs=[(1, 1), (0, 0)])
    assert lines[0].split() == ["L1", "H1", "L0", "H0"]
    assert len(maps(shown(screen(60), two), 3, 2)) == 4


def test_one_token() -> None:
    lines = shown(screen(20), made(["hi"], heads=1))
    assert lines[:4] == ["   head 0", "   h", "   i", "hi ██"]


def test_several_sequences_are_named_and_an_empty_one_is_told() -> None:
    result = made(["a", "b"], heads=1)
    two = replace(
        result,
        attention=np.concatenate([result.attention] * 2, axis=1),
        allowed=np.concatenate([result.allowed] * 2, axis=1),
        query_tokens=(("a", "b"), ("[PAD]", "[PAD]")),
        key_tokens=(("a", "b"), ("[PAD]", "[PAD]")),
        lengths=np.array([2, 0]),
        key_lengths=np.array([2, 0]),
    )
    assert shown(screen(), two)[0] == "sequence 0"
    lines = shown(screen(), two, sequence=1)
    assert lines == ["sequence 1", "no tokens: there is nothing to draw"]


def test_as_many_heads_side_by_side_as_fit() -> None:
    result = made(numbered(5), heads=8)
    for width, across in [(20, 1), (24, 1), (25, 2), (36, 2), (37, 3), (100, 8)]:
        titles = [line for line in shown(screen(width), result) if "head" in line]
        assert len(titles[0].split("head")) - 1 == across
    assert cells(titles[0]) <= 100


HOSTILE = [
    "[/red]",
    "\x1b[31mred",
    "\u202edrow",
    " ",
    "\n",
    "猫坐在垫子上",
    "👨\u200d👩\u200d👧",
    "e\u0301",
    "x" * 200,
]


@pytest.mark.parametrize("ascii", [False, True])
def test_hostile_tokens_stay_in_their_column(ascii: bool) -> None:
    result = made(HOSTILE, heads=1)
    lines = shown(screen(60, ascii=ascii), result)
    assert not any(c in "".join(lines) for c in "\x1b\u202e\r")
    margin = lines[0].index("head")
    assert margin == 16  # a quarter of the width, and a space
    for line in lines[4:13]:
        row = columns(line)
        label = "".join(c for c, _, _ in row[:margin])
        assert cells(label.rstrip()) <= 15
        assert label.startswith(" ") or cells(label.rstrip()) == 15
    labels, _ = maps(lines, 9, 3)[0]
    assert labels[0] == "[/red]"
    assert labels[3:5] == (["<SP>", "<LF>"] if ascii else ["␣", "↵"])
    assert labels[8] == ("xxxxxxx..xxxxxx" if ascii else "xxxxxxx…xxxxxxx")
    assert [line[margin + 4 : margin + 6] for line in lines[1:3]] == ["20", "2E"]


def test_hostile_mask_names_are_text() -> None:
    result = made(numbered(3), allowed=causal(3), masks=("padding", "causal", "\x1b[2Jé"))
    assert "forbidden by causal, \\x1b[2Jé " in legend(shown(screen(), result))
    assert "\\x1b[2J<U+00E9> " in legend(shown(screen(ascii=True), result))


@settings(max_examples=40)
@given(
    queries=st.integers(1, 130),
    keys=st.integers(1, 130),
    width=st.integers(20, 130),
    color=st.sampled_from([None, "standard", "256", "truecolor"]),
    ascii=st.booleans(),
    real=st.integers(0, 130),
)
def test_every_size_fits_every_terminal(
    queries: int, keys: int, width: int, color: Any, ascii: bool, real: int
) -> None:
    result = made(numbered(queries), numbered(keys), lengths=(queries, min(keys, real)))
    lines = shown(screen(width, color, ascii), result)
    assert all(cells(plain(line).rstrip()) <= width for line in lines)
    assert len([line for line in lines if "head 0" in plain(line)]) == 1
    assert "rows: queries columns: keys" in legend(lines)
    assert len(lines) < 2 * 130 + 20
    assert not ascii or "".join(lines).isascii()


# ── consoles ─────────────────────────────────────────────────────────────────────────────────


def test_what_a_console_can_do() -> None:
    assert ascii_only(screen(ascii=True))
    assert not ascii_only(screen())
    assert not has_color(screen())
    assert has_color(screen(color="standard"))
    console = Console(file=io.StringIO(), force_terminal=True, color_system="256", no_color=True)
    assert not has_color(console)
    write(console, Text("bold [x]  ", "bold"))
    assert console.file.getvalue() == "bold [x]\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("environ", "encoding"),
    [
        ({}, "utf-8"),
        ({"LC_ALL": "C"}, "ascii"),
        ({"LC_ALL": "POSIX"}, "ascii"),
        ({"LC_ALL": "C.UTF-8"}, "utf-8"),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, "utf-8"),
        ({"LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}, "utf-8"),
    ],
)
def test_the_locale_decides_the_encoding(environ: dict[str, str], encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = make_console(stream, environ)
    assert stream.encoding == encoding
    assert ascii_only(console) == (encoding == "ascii")


def test_signs_that_an_encoding_lacks_are_written_plainly() -> None:
    for encoding, expect in (
        ("ascii", b"3 x 5 -> <= 1e-6 ... \\u732b \\udc80"),
        ("cp1252", b"3 \xd7 5 -> <= 1e-6 \x85 \\u732b \\udc80"),
        ("utf-8", "3 × 5 → ≤ 1e−6 … 猫 ".encode() + b"\\udc80"),
    ):
        stream = io.TextIOWrapper(raw := io.BytesIO(), encoding=encoding, errors=LACKING)
        stream.write("3 × 5 → ≤ 1e−6 … 猫 \udc80")
        stream.flush()
        assert raw.getvalue() == expect
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", LACKING)


def test_no_color_leaves_no_escape() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = make_console(stream, {"NO_COLOR": "1", "FORCE_COLOR": "1", "TERM": "xterm-256color"})
    assert "\x1b" not in "".join(shown(console, made(numbered(3))))
    colored = make_console(io.StringIO(), {"NO_COLOR": "", "FORCE_COLOR": "1", "TERM": "xterm"})
    assert has_color(colored)
    assert make_console().file is sys.stdout


SCRIPT = """
import numpy as np, sys
from attnviz.render.console import make_console
from attnviz.render.terminal_maps import mean_pooled, print_maps
from attnviz.result import Attention
a = np.tril(np.ones((1, 1, 2, 6, 6), dtype=np.float32))
tokens = (("猫", "\\x1b[31m", "\\u202e", " ", "it's", "."),)
n = np.array([6])
result = Attention(a, a[:, :, :1] > 0, query_tokens=tokens, key_tokens=tokens,
    lengths=n, key_lengths=n, masks=("causal",))
print_maps(result, 0, make_console())
sys.exit("matplotlib" in sys.modules)
"""


def in_terminal(width: int, **environ: str) -> str:
    """What a real process writes to a real (pseudo) terminal of this width."""
    import fcntl
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=theirs, stdout=theirs, env={**kept, **environ}
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert process.wait() == 0
    return written.decode().replace("\r\n", "\n")


def test_a_real_terminal_in_true_colour() -> None:
    text = in_terminal(80, TERM="xterm-256color", COLORTERM="truecolor", LANG="C.UTF-8")
    assert "\x1b[48;2;253;231;37m" in text
    assert "╱╱" in text


def test_a_real_terminal_of_twenty_columns_in_the_c_locale() -> None:
    text = in_terminal(20, TERM="xterm", LC_ALL="C")
    assert text.isascii()
    assert all(cells(plain(line).rstrip()) <= 20 for line in text.split("\n"))
    assert "@@" in text
    assert "\x1b[1mhead 0" in text


def test_a_real_dumb_terminal() -> None:
    text = in_terminal(40, TERM="dumb", LANG="C.UTF-8")
    assert "\x1b" not in text
    assert "██" in text


def test_a_real_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, check=True, text=True, encoding="utf-8"
    )
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    assert "head 0  head 1" in re.sub(" {3,}", "  ", done.stdout)
