"""Labels along the edges of a panel: how many of them, how large, and where each is placed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from attnviz.render.axes import PositionAxis, TokenAxis
from attnviz.render.drawing import Drawing, Line, Text
from attnviz.render.labels import is_upright, label
from attnviz.render.visible import shorten

REAL, PADDED = 0.92, 0.42
"""Tones of the labels of tokens, and of those of padding."""

GAP = 4.0
"""Points between a label and its panel."""


@dataclass(frozen=True)
class Label:
    """A label `at` points along an edge; `turn` 90 reads upwards."""

    at: float
    text: str
    tone: float = 1.0
    turn: int = 0


@dataclass(frozen=True)
class EdgeLabels:
    """Labels along one edge in one size of type, and the lines that lead to it.

    They take `extent` points beside the edge. `step` is 1 where every token is named, and 0 where
    none is; `lines` are (points along the edge, length, tone, width).
    """

    labels: Sequence[Label]
    size: float
    extent: float
    step: int = 1
    lines: Sequence[tuple[float, float, float, float]] = ()

    def note(self, what: str) -> str:
        """Which labels are not there."""
        if not self.step:
            return f"labels left out: {what} are too many for their names"
        nth = {2: "2nd", 3: "3rd"}.get(self.step, f"{self.step}th")
        return f"labels thinned: every {nth} of the {what} is named" if self.step > 1 else ""

    def beside_rows(self, edge: float, top: float) -> tuple[list[Text], list[Line]]:
        """Labels and lines left of `edge`, from `top` down."""
        texts = [
            Text(edge - GAP, top + one.at + 0.36 * self.size, one.text, self.size, one.tone,
                 anchor="end")
            for one in self.labels
        ]  # fmt: skip
        return texts, [
            Line(edge - length, top + at, edge, top + at, tone, width)
            for at, length, tone, width in self.lines
        ]

    def below_columns(self, edge: float, left: float) -> tuple[list[Text], list[Line]]:
        """Labels and lines below `edge`, from `left` on."""
        texts = []
        for one in self.labels:
            x, y, anchor = left + one.at, edge + 3 + self.size, "middle"
            if one.turn:
                x, y, anchor = x + 0.36 * self.size, edge + GAP, "end"
            texts.append(Text(x, y, one.text, self.size, one.tone, anchor=anchor, turn=one.turn))
        return texts, [
            Line(left + at, edge, left + at, edge + length, tone, width)
            for at, length, tone, width in self.lines
        ]


def labels_of(
    axis: TokenAxis | PositionAxis,
    drawing: Drawing,
    pitch: float,
    largest: float,
    smallest: float,
    upright: bool,
    longest: int,
) -> EdgeLabels:
    """Labels for rows or (`upright`) columns of `pitch` points, in type of `largest` at most.

    Where they would need type below `smallest`, some are left out.

    Those of tokens have at most `longest` columns of a terminal.
    """
    if isinstance(axis, PositionAxis):
        return _of_positions(axis, drawing, pitch / axis.cells, min(largest, 8.0), upright)
    return _of_tokens(axis, drawing, pitch, (largest, smallest), upright, longest)


def _of_tokens(
    axis: TokenAxis,
    drawing: Drawing,
    pitch: float,
    sizes: tuple[float, float],
    upright: bool,
    longest: int,
) -> EdgeLabels:
    """Every token, or every second one, and so on, as far as they have room."""
    size = max(sizes[1], min(sizes[0], 0.78 * pitch))
    step = max(1, ceil(size * 1.08 / pitch))
    named = range(0, len(axis.tokens), step)
    if step > 1 and len(named) < 4:
        return EdgeLabels((), size, 0.0, step=0)
    texts = [_fitted(drawing, label(axis.tokens[i], longest), size, longest) for i in named]
    widest = max((drawing.text_width(text, size) for text in texts), default=0.0)
    turn = 0 if not upright or widest <= step * pitch - 3 else 90
    extent = (size if upright and not turn else widest) + GAP if texts else 0.0
    labels = [
        Label(
            (i + 0.5) * pitch,
            text,
            REAL if axis.valid[i] else PADDED,
            0 if is_upright(text) else turn,
        )
        for i, text in zip(named, texts, strict=True)
    ]
    if axis.answer is None:
        return EdgeLabels(labels, size, extent, step)
    start = int(axis.valid.argmax()) + axis.answer  # a line precedes what a model wrote
    return EdgeLabels(labels, size, extent, step, [(start * pitch, max(extent, 8), 0.8, 0.8)])


def _of_positions(
    axis: PositionAxis, drawing: Drawing, pitch: float, size: float, upright: bool
) -> EdgeLabels:
    """Round positions in the text's own count: 0 is its first real token."""
    length = max(axis.length, 1)
    widest = drawing.text_width(f"{length:,}", size)
    apart = widest + 8 if upright else 2.2 * size
    if drawing.options.is_figure:
        apart = widest + 3 if upright else 1.6 * size
    step = next(s for s in _round_steps() if s * pitch >= apart)
    named = list(range(0, length, step))
    if len(named) == 1 and (length - 1) * pitch >= apart:
        named.append(length - 1)  # the ends, where no round step fits
    labels = [Label((axis.start + n + 0.5) * pitch, f"{n:,}") for n in named]
    ticks = [(one.at, 2.5, 0.55, 0.6) for one in labels]
    return EdgeLabels(labels, size, (size if upright else widest) + GAP, lines=ticks)


def _fitted(drawing: Drawing, text: str, size: float, longest: int) -> str:
    """A label whose letters are wider than most loses more of its middle."""
    room, widest = longest, 0.62 * longest * size
    while room > 2 and drawing.text_width(text, size) > widest:
        room -= 2
        text = shorten(text, room)
    return text


def _round_steps() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, …"""
    power = 1
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10
