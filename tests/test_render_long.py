"""Pictures of long texts: the scale, the axes, and what is said."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from attnviz.sources.long import gather, real_rows

from attnviz import masks
from attnviz.render.cells import FORBIDDEN, WEIGHT
from attnviz.render.long import (
    LogScale,
    LongSubject,
    PositionAxis,
    draw_heads,
    draw_overview,
)
from attnviz.render.look import Look
from attnviz.render.sheet import COLOURS
from attnviz.result import Attention
from attnviz.streaming import Scores, pool
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
    scale = LogScale(weights)
    assert (scale.top, scale.low) == (1.0, pytest.approx(1e-5))
    shares = scale.shares(weights)
    assert shares.tolist() == pytest.approx([0, 0, 0.4, 0.6, 0.8, 1, 0, 0])
    assert list(scale.ticks()) == [
        (0.0, "≤ 1e-05"),
        *[
            (pytest.approx(n / 5), name)
            for n, name in enumerate(("0.0001", "0.001", "0.01", "0.1"), 1)
        ],
        (1.0, "1"),
    ]


def test_a_scale_that_is_cut_says_so() -> None:
    scale = LogScale(np.array([0.5, 0.01, 0.001], np.float32), vmax=0.1)
    assert [name for _, name in scale.ticks()][-1] == "≥ 0.1"
    assert scale.shares(np.array([0.5], np.float32)).tolist() == [1.0]
    empty = LogScale(np.zeros(3, np.float32))
    assert empty.top == 1.0
    assert not empty.shares(np.zeros(3, np.float32)).any()


def test_pixels_are_painted_by_their_mean() -> None:
    run = long_run()
    subject = LongSubject(run, 0, Look(), [(0, 1)])
    head = subject.heads.head(0, 1)
    painted = subject.brush(1, 1, 1).paint(head)
    shares = subject.log_scale.shares(run.mean[0, 0, 1])
    weight = head.verdicts.kinds == WEIGHT
    assert np.array_equal(weight, run.allowed[0, 0, 0] > 0)
    expect = (shares * (COLOURS - 1)).round()
    assert np.array_equal(painted[weight], expect[weight])
    assert (painted[head.verdicts.kinds == FORBIDDEN] >= COLOURS).all()


def test_measures_are_of_every_row_and_the_caption_says_what_a_pixel_is() -> None:
    run = long_run()
    subject = LongSubject(run, 1, Look(), [(0, 0), (0, 2)])
    means = run.row_means(1)
    measured = subject.measured(0, 2)
    assert measured["diagonal"] == means["self"][0, 2]
    assert measured["entropy"] == means["entropy"][0, 2]
    assert subject.tokens == "430 tokens"
    assert subject.caption.endswith(
        "mean of 10 × 10 weights a pixel, those that are allowed; the scale is logarithmic"
    )
    at = run.rows.statistics["largest"][0, 1, 2].argmax()
    key = run.rows.statistics["largest_key"][0, 1, 2, at]
    largest = run.rows.statistics["largest"][0, 1, 2, at]
    assert subject.strongest(subject.heads.head(0, 2)) == (
        f"the largest weight is {largest:.2f}, from query {at:,} “t{at}” to key {key:,} “t{key}”"
    )


@pytest.mark.parametrize("upright", [True, False])
def test_positions_are_round_and_count_from_the_first_token(upright: bool) -> None:
    subject = LongSubject(long_run(side="left"), 1, Look(), [(0, 0)])
    sheet = subject.sheet("", "")
    axis = PositionAxis(sheet, (180, 610), 0.5, 8.0, upright)
    texts = axis.columns(100, 20) if upright else axis.rows(100, 20)
    numbers = [int(text.text.replace(",", "")) for text in texts]
    assert numbers[0] == 0
    step = numbers[1]
    assert step in (20, 50, 100)
    assert numbers == list(range(0, 430, step))
    places = [text.x if upright else text.y - 0.36 * 8 for text in texts]
    assert places == pytest.approx([20 + (180 + n + 0.5) * 0.5 for n in numbers])
    lines = axis.column_lines(100, 20) if upright else axis.row_lines(100, 20)
    assert [line.x if upright else line.y for line in lines] == pytest.approx(places)
    assert axis.notice("tokens") == ""


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_every_form(tmp_path: Path, suffix: str) -> None:
    run = long_run()
    pairs = [(0, 0), (0, 1), (0, 2)]
    draw_overview(run, 0, tmp_path / f"all{suffix}", Look(), pairs)
    done: list[Path] = []
    targets = [(0, head, tmp_path / f"{head}{suffix}") for head in (0, 2)]
    draw_heads(run, 0, targets, Look(), done.append)
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
    seen: list[tuple[int, int]] = []
    from attnviz.render import long

    whole = long.overview_sheet

    def watched(subject: LongSubject) -> object:
        seen.append(subject.pooled.cells)
        return whole(subject)

    monkeypatch.setattr(long, "overview_sheet", watched)
    notices = draw_overview(
        long_run(610), 0, tmp_path / "all.png", Look(), [(0, h) for h in range(3)]
    )
    assert seen == [(2, 2)]
    assert not any("largest of" in notice for notice in notices)
