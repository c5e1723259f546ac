"""Pictures of long texts: the scale, the axes, and what is said."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.text import Text

from attnviz import masks
from attnviz.collectors.pooled_maps import gather
from attnviz.render.attention_pictures import draw_heads, draw_overview
from attnviz.render.axes import PositionAxis
from attnviz.render.axis_labels import labels_of
from attnviz.render.drawing import CellSize, Drawing
from attnviz.render.figure_options import FigureOptions
from attnviz.render.fonts import Fonts
from attnviz.render.head_panels import head_panels
from attnviz.render.palette import COLOURS
from attnviz.render.panel import FORBIDDEN, WEIGHT, PanelSet
from attnviz.render.raster import PanelPainter
from attnviz.render.scales import LogScale
from attnviz.render.terminal_maps import print_maps
from attnviz.result import Attention
from attnviz.scores import Scores
from attnviz.sources.layer_pass import real_rows
from attnviz.streaming import pool
from attnviz.tokens import make_batch


def long_run(pixels: int = 61, side: str = "right") -> Attention:
    batch = make_batch([tuple(f"t{i}" for i in range(n)) for n in (610, 430)], pad_side=side)
    starts = batch.starts.tolist()
    generator = torch.Generator().manual_seed(0)
    attention = Scores(
        torch.randn(2, 3, 610, 8, generator=generator),
        torch.randn(2, 3, 610, 8, generator=generator),
        (masks.rule("padding", batch, batch), masks.rule("causal", batch, batch), real_rows(batch)),
        query_starts=starts,
        key_starts=starts,
    )
    made = [pool(attention, pixels, top=2)]
    return gather(made, [], batch, batch, masks=("padding", "causal"), source="by hand")


def test_equal_steps_of_the_scale_are_equal_ratios() -> None:
    weights = np.array([1e-9, 1e-9, 1e-3, 1e-2, 1e-1, 1.0, 0.0, np.nan], np.float32)
    scale = LogScale.of(weights)
    assert (scale.top, scale.low) == (1.0, pytest.approx(1e-5))
    shares = scale.shares(weights)
    assert shares.tolist() == pytest.approx([0, 0, 0.4, 0.6, 0.8, 1, 0, 0])
    assert list(scale.ticks(100)) == [
        (0.0, "≤ 1e-05"),
        *[
            (pytest.approx(n / 5), name)
            for n, name in enumerate(("0.0001", "0.001", "0.01", "0.1"), 1)
        ],
        (1.0, "1"),
    ]


def test_a_scale_that_is_cut_says_so() -> None:
    scale = LogScale.of(np.array([0.5, 0.01, 0.001], np.float32), vmax=0.1)
    assert [name for _, name in scale.ticks(100)][-1] == "≥ 0.1"
    assert scale.shares(np.array([0.5], np.float32)).tolist() == [1.0]
    empty = LogScale.of(np.zeros(3, np.float32))
    assert empty.top == 1.0
    assert not empty.shares(np.zeros(3, np.float32)).any()


def test_pixels_are_painted_by_their_mean() -> None:
    run = long_run()
    panel = head_panels(run, 0, [(0, 1)], FigureOptions()).panel((0, 1))
    painted = PanelPainter(CellSize(1, 1), 150).paint(panel)
    scale = panel.scale
    assert isinstance(scale, LogScale)
    shares = scale.shares(run.mean[0, 0, 1])
    weight = panel.kinds.cells == WEIGHT
    assert np.array_equal(weight, run.allowed[0, 0, 0] > 0)
    expect = (shares * (COLOURS - 1)).round()
    assert np.array_equal(painted[weight], expect[weight])
    assert (painted[panel.kinds.cells == FORBIDDEN] >= COLOURS).all()


def test_measures_are_of_every_row_and_the_caption_says_what_a_pixel_is() -> None:
    run = long_run()
    panels = head_panels(run, 1, [(0, 0), (0, 2)], FigureOptions())
    means = run.row_means(1)
    panel = panels.panel((0, 2))
    assert f"diagonal {means['self'][0, 2]:.2f}" in panel.summary
    assert panel.measures[0] == f"{means['entropy'][0, 2]:.2f} bits"
    assert panels.size == "430 tokens"
    assert panels.caption.endswith(
        "mean of 10 × 10 weights a pixel, those that are allowed; the scale is logarithmic"
    )
    at = run.rows.statistics["largest"][0, 1, 2].argmax()
    key = run.rows.statistics["largest_key"][0, 1, 2, at]
    largest = run.rows.statistics["largest"][0, 1, 2, at]
    assert panel.in_words == (
        f"the largest weight is {largest:.2f}, from query {at:,} “t{at}” to key {key:,} “t{key}”"
    )


@pytest.mark.parametrize("upright", [True, False])
def test_positions_are_round_and_count_from_the_first_token(upright: bool) -> None:
    places = long_run(side="left").places(1, 0)
    axis = PositionAxis("", 61, 10, *places)
    labels = labels_of(axis, Drawing(FigureOptions(), Fonts([])), 5.0, 9.5, 5.5, upright, 14)
    placed = labels.below_columns(100, 20) if upright else labels.beside_rows(100, 20)
    texts, lines = placed
    numbers = [int(text.text.replace(",", "")) for text in texts]
    assert numbers[0] == 0
    step = numbers[1]
    assert step in (20, 50, 100)
    assert numbers == list(range(0, 430, step))
    places = [text.x if upright else text.y - 0.36 * 8 for text in texts]
    assert places == pytest.approx([20 + (180 + n + 0.5) * 0.5 for n in numbers])
    assert [line.x if upright else line.y for line in lines] == pytest.approx(places)
    assert labels.note("tokens") == ""


def test_a_narrow_axis_names_its_ends() -> None:
    axis = PositionAxis("", 61, 10, 180, 610)
    blank = Drawing(FigureOptions(width="3.3in"), Fonts([]))
    labels = labels_of(axis, blank, 0.7, 7.0, 6.0, True, 14).labels
    assert [label.text for label in labels] == ["0", "429"]
    assert labels_of(axis, blank, 0.3, 7.0, 6.0, True, 14).labels[1:] == []


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_every_form(tmp_path: Path, suffix: str) -> None:
    run = long_run()
    pairs = [(0, 0), (0, 1), (0, 2)]
    draw_overview(run, 0, tmp_path / f"all{suffix}", FigureOptions(), pairs)
    done: list[Path] = []
    targets = [(0, head, tmp_path / f"{head}{suffix}") for head in (0, 2)]
    draw_heads(run, 0, targets, FigureOptions(), done.append)
    assert [path.name for path in done] == [f"0{suffix}", f"2{suffix}"]
    if suffix == ".svg":
        texts = re.findall(r"<text[^>]*>([^<]*)", (tmp_path / "all.svg").read_text())
        assert (
            "mean weight" in " ".join(texts) or "mean weight" in (tmp_path / "all.svg").read_text()
        )


def test_an_overview_never_takes_the_largest_of_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the tiles have less room than pixels, these are pooled again, exactly."""
    drawn: list[PanelSet] = []
    from attnviz.render import attention_pictures

    whole = attention_pictures.overview

    def watched(panels: PanelSet, options: FigureOptions) -> object:
        drawn.append(panels)
        return whole(panels, options)

    monkeypatch.setattr(attention_pictures, "overview", watched)
    pairs = [(0, head) for head in range(3)]
    notes = draw_overview(long_run(610), 0, tmp_path / "all.png", FigureOptions(), pairs)
    assert [panels.rows.cells for panels in drawn] == [2]
    assert not any("largest of" in note for note in notes)


@pytest.mark.parametrize(("color", "half"), [(None, False), ("truecolor", True)])
def test_a_long_text_in_the_terminal(color: Any, half: bool) -> None:
    run = long_run(side="left")
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = Console(file=file, width=60, color_system=color, force_terminal=half, _environ={})
    print_maps(run, 1, console, [(0, 0), (0, 2)])
    file.flush()
    lines = file.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]
    text = " ".join(Text.from_ansi(line).plain for line in lines)
    means = run.row_means(1)["entropy"]
    assert text.startswith("sequence 1 ")
    for head in (0, 2):
        assert f"head {head}  {means[0, head]:.2f} bits" in text
    assert "each cell is the mean of 20 × 20 weights, those that are allowed; 610 × 610" in text
    assert "logarithmic" in text
    assert "forbidden by causal" in text
    assert "numbers: positions" in text
    rows = [Text.from_ansi(line).plain.split()[:1] for line in lines]
    assert ["20"] in rows
    assert (["40"] in rows) == (not half)  # half-blocks have two rows in a line
