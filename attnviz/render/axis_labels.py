"""Labels along the edges of a panel: how many of them, how large, and where each is placed."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import numpy as np
import numpy.typing as npt

from attnviz.render.axes import PositionAxis, TokenAxis
from attnviz.render.drawing import Drawing, Line, Text
from attnviz.render.labels import is_upright, label
from attnviz.render.visible import shorten

DIM = 0.42
"""Tone of the labels of padding."""

SMALLEST_LABEL, GAP = 5.5, 4.0
"""Points of a label's type at least, and between a label and its panel."""


def labels_of(
    axis: TokenAxis | PositionAxis,
    drawing: Drawing,
    pitch: float,
    largest: float,
    upright: bool,
    longest: int,
) -> TokenLabels | PositionLabels:
    """Labels for rows or (`upright`) columns of `pitch` points, in type of `largest` at most.

    Those of tokens have at most `longest` columns of a terminal.
    """
    if isinstance(axis, PositionAxis):
        places = axis.start, axis.end
        return PositionLabels(drawing, places, pitch / axis.cells, min(largest, 8.0), upright)
    size = max(SMALLEST_LABEL, min(largest, 0.78 * pitch))
    texts = [_fitted(drawing, label(token, longest), size, longest) for token in axis.tokens]
    start = None if axis.answer is None else int(axis.valid.argmax()) + axis.answer
    return TokenLabels(drawing, texts, axis.valid, pitch, size, upright, start)


class TokenLabels:
    """Token labels along one edge: how many of them, how large, which way they read."""

    def __init__(
        self,
        drawing: Drawing,
        tokens: list[str],
        real: npt.NDArray[np.bool_],
        pitch: float,
        size: float,
        upright: bool,
        answer: int | None = None,
    ) -> None:
        """`answer` is the index of the first token that a model wrote: a line precedes it."""
        self.pitch, self.size, self._real, self._answer = pitch, size, real, answer
        self.step = max(1, ceil(size * 1.08 / pitch))
        self.named = list(range(0, len(tokens), self.step))
        if self.step > 1 and len(self.named) < 4:
            self.named = []
        self._tokens = tokens
        widths = [drawing.text_width(tokens[i], size) for i in self.named]
        widest = max(widths, default=0.0)
        self.turn = 0 if not upright or widest <= self.step * pitch - 3 else 90
        self.extent = (size if upright and not self.turn else widest) + GAP
        if not widest:
            self.extent = 0.0

    def note(self, what: str) -> str:
        """Which labels are not there."""
        if not self.named:
            return f"labels left out: {what} are too many for their names"
        nth = {2: "2nd", 3: "3rd"}.get(self.step, f"{self.step}th")
        return f"labels thinned: every {nth} of the {what} is named" if self.step > 1 else ""

    def rows(self, edge: float, top: float) -> list[Text]:
        """Labels left of `edge`, one a row from `top` down."""
        drop = 0.36 * self.size
        return [
            Text(
                edge - GAP,
                top + (i + 0.5) * self.pitch + drop,
                self._tokens[i],
                self.size,
                self._tone(i),
                anchor="end",
            )
            for i in self.named
        ]

    def columns(self, edge: float, left: float) -> list[Text]:
        """Labels below `edge`, one a column from `left` on."""
        placed = []
        for i in self.named:
            middle = left + (i + 0.5) * self.pitch
            turn = 0 if is_upright(self._tokens[i] or " ") else self.turn
            if turn:
                x, y, anchor = middle + 0.36 * self.size, edge + GAP, "end"
            else:
                x, y, anchor = middle, edge + 3 + self.size, "middle"
            placed.append(
                Text(x, y, self._tokens[i], self.size, self._tone(i), anchor=anchor, turn=turn)
            )
        return placed

    def row_lines(self, edge: float, top: float) -> list[Line]:
        """The line between prompt and answer, left of `edge`."""
        if self._answer is None:
            return []
        y = top + self._answer * self.pitch
        return [Line(edge - max(self.extent, 8), y, edge, y, 0.8, 0.8)]

    def column_lines(self, edge: float, left: float) -> list[Line]:
        """The line between prompt and answer, below `edge`."""
        if self._answer is None:
            return []
        x = left + self._answer * self.pitch
        return [Line(x, edge, x, edge + max(self.extent, 8), 0.8, 0.8)]

    def _tone(self, i: int) -> float:
        return 0.92 if self._real[i] else DIM


class PositionLabels:
    """Round positions along one edge, in the text's own count: 0 is its first real token."""

    def __init__(
        self, drawing: Drawing, places: tuple[int, int], pitch: float, size: float, upright: bool
    ) -> None:
        """`places` are those of the first real token and of the end, `pitch` points a token."""
        self._start, end = places
        self.pitch, self.size = pitch, size
        length = end - self._start
        widest = drawing.text_width(f"{max(length, 1):,}", size)
        apart = widest + 8 if upright else 2.2 * size
        step = next(s for s in _round_steps() if s * pitch >= apart)
        self.named = list(range(0, max(length, 1), step))
        self.extent = (size if upright else widest) + GAP

    def note(self, what: str) -> str:  # noqa: ARG002 - an axis of numbers leaves none out
        return ""

    def rows(self, edge: float, top: float) -> list[Text]:
        """Numbers left of `edge`, each beside its row."""
        drop = 0.36 * self.size
        return [
            Text(edge - GAP, self._at(top, n) + drop, f"{n:,}", self.size, anchor="end")
            for n in self.named
        ]

    def columns(self, edge: float, left: float) -> list[Text]:
        """Numbers below `edge`, each under its column."""
        y = edge + 3 + self.size
        return [
            Text(self._at(left, n), y, f"{n:,}", self.size, anchor="middle") for n in self.named
        ]

    def row_lines(self, edge: float, top: float) -> list[Line]:
        """A short line from each number to its row."""
        places = [self._at(top, n) for n in self.named]
        return [Line(edge - 2.5, y, edge, y, 0.55, 0.6) for y in places]

    def column_lines(self, edge: float, left: float) -> list[Line]:
        """A short line from each number to its column."""
        places = [self._at(left, n) for n in self.named]
        return [Line(x, edge, x, edge + 2.5, 0.55, 0.6) for x in places]

    def _at(self, begin: float, n: int) -> float:
        return begin + (self._start + n + 0.5) * self.pitch


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
