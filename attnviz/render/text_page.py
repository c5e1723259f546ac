"""A page of headings, sentences and tables that fits a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from attnviz.render.console import ascii_only, flow
from attnviz.render.visible import cells, fit, notation, shorten, visible

WIDEST = 100
"""Columns; lines that are longer are hard to read."""

NARROWEST = 12
"""Columns; a terminal that says it has fewer is written to as if it had these."""


@dataclass(frozen=True)
class PageRow:
    """A line of a table. The first two cells name it; `bar` is a share of the longest bar."""

    cells: Sequence[str]
    style: str = ""
    bar: float | None = None
    is_sum: bool = False


class TextPage:
    """Lines that fit the console's width, in the characters that it has."""

    def __init__(self, console: Console) -> None:
        self.ascii = ascii_only(console)
        self.width = max(min(console.width, WIDEST), NARROWEST)
        self.lines: list[Text] = []

    def spell(self, text: str) -> str:
        return notation(text, self.ascii)

    def label(self, token: str) -> str:
        """A token in a table."""
        limit = 16 if self.width >= 60 else 10
        return shorten(visible(token, self.ascii), limit, self.ascii)

    def quoted(self, token: str) -> str:
        """A token in a sentence."""
        return f'"{shorten(visible(token, self.ascii), 24, self.ascii)}"'

    def name(self, mask: str) -> str:
        """The name of a mask, which may be that of a stranger's file."""
        return visible(mask, self.ascii).replace(visible(" ", self.ascii), " ")

    def heading(self, text: str) -> None:
        self.lines.append(Text())
        before = len(self.lines)
        self.say(text, style="bold")
        width = widest_text(line.plain for line in self.lines[before:])
        self.lines.append(Text(self._rule(width), "dim"))

    def say(self, *pieces: str, style: str = "", indent: str = "") -> None:
        """Sentences; a line ends between two pieces where it can."""
        texts = [Text(self.spell(piece), style) for piece in pieces]
        for line in flow(texts, self.width - len(indent), gap=" "):
            self.lines.append(Text(indent).append_text(line))

    def table(
        self,
        heads: Sequence[str],
        rows: Sequence[PageRow],
        bars: bool = False,
        words: bool = False,
    ) -> None:
        """A grid where it fits, else a block of lines for each row.

        Numbers stand to the right, names to the left; so does the last column where it is `words`.
        """
        heads = [self.spell(head) for head in heads]
        texts = [[self.spell(cell) for cell in row.cells] for row in rows]
        widths = [max(map(cells, column)) for column in zip(heads, *texts, strict=True)]
        left = {1, len(heads) - 1} if words else {1}
        used = 2 + sum(width + 2 for width in widths) - 2
        room = min(self.width - used - 2, 40) if bars else 0
        if used > self.width or (bars and room < 8):
            self._blocks(heads, rows, texts, bars)
            return

        def line(cells_of: Sequence[str]) -> str:
            columns = enumerate(zip(cells_of, widths, strict=True))
            padded = [fit(text, width, right=i not in left) for i, (text, width) in columns]
            return "  " + "  ".join(padded)

        self.lines.append(Text(line(heads), "dim"))
        for row, text in zip(rows, texts, strict=True):
            if row.is_sum:
                self.lines.append(Text("  " + self._rule(used - 2), "dim"))
            grid = Text(line(text), row.style)
            if row.bar is not None:
                grid.append("  ").append(self._bar(row.bar, room), "not bold cyan")
            self.lines.append(grid)

    def _blocks(
        self, heads: Sequence[str], rows: Sequence[PageRow], texts: list[list[str]], bars: bool
    ) -> None:
        for row, text in zip(rows, texts, strict=True):
            name = " ".join(part for part in text[:2] if part)
            self.say(name, style=row.style or "underline")
            pairs = zip(heads[2:], text[2:], strict=True)
            named = (
                cell if cell == head else f"{head} {cell.strip()}" for head, cell in pairs if cell
            )
            pieces = [Text(piece, row.style) for piece in named]
            for line in flow(pieces, self.width - 2):
                self.lines.append(Text("  ").append_text(line))
            if bars and row.bar:
                self.lines.append(Text("  ").append(self._bar(row.bar, self.width - 2), "cyan"))

    def _rule(self, width: int) -> str:
        return ("-" if self.ascii else "─") * width

    def _bar(self, share: float, width: int) -> str:
        """`share` of `width` columns, to an eighth of one; something where there is something."""
        if not share > 0:
            return ""
        if self.ascii:
            return "#" * max(1, round(share * width))
        whole, eighths = divmod(max(1, round(share * width * 8)), 8)
        return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()


def widest_text(texts: Iterable[str]) -> int:
    """Columns of the widest of `texts`."""
    return max(cells(text) for text in texts)
