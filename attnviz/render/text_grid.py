"""A grid of text for a terminal or a pipe, and axis names in their colours.

A caller checks `widest` and folds a grid that is too wide: nothing is cut, and nothing becomes an
ellipsis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from attnviz.render.console import ascii_only
from attnviz.render.visible import cells, notation

AXIS_COLORS = {
    "B": "magenta",
    "L": "white",
    "H": "yellow",
    "Hkv": "bright_yellow",
    "Tq": "cyan",
    "Tk": "green",
    "Ts": "green",
    "d_model": "bright_blue",
    "d_k": "red",
    "d_v": "bright_magenta",
    "d_qkv": "bright_cyan",
    "d_key": "bright_blue",
    "d_value": "bright_blue",
    "V": "bright_green",
    "R": "bright_green",
}
"""Sixteen-colour names, so that they follow the terminal's own palette, light or dark."""


@dataclass(frozen=True)
class Paper:
    """What is written on: `width` columns, and whether in ASCII."""

    width: int
    ascii_only: bool

    @classmethod
    def of(cls, console: Console) -> Paper:
        """The console's; a pipe has all the width that is wanted."""
        return cls(console.width if console.is_terminal else 10**6, ascii_only(console))

    def text(self, text: str, style: str = "") -> Text:
        return Text(notation(text, self.ascii_only), style)

    def rule(self, width: int) -> Text:
        return Text(("-" if self.ascii_only else "─") * width, "dim")


def axis_text(axis: str, paper: Paper, shown: str = "") -> Text:
    """An axis name, or `shown` in its colour. An axis that holds two has the last one's, bold."""
    first, *rest = reversed(axis.split("·"))
    style = AXIS_COLORS.get({"T": "Tq"}.get(first, first), "")
    return paper.text(shown or axis, f"bold {style}" if rest else style)


def grid(
    heads: Sequence[str], table: Sequence[Sequence[Text]], right: set[int], gap: int = 2
) -> list[Text]:
    """The header and the rows, each column as wide as its widest cell."""
    lines = [[Text(head, "dim") for head in heads], *table]
    widths = [max(cells(line[i].plain) for line in lines) for i in range(len(heads))]
    return [_row(line, widths, right, gap) for line in lines]


def _row(line: Sequence[Text], widths: Sequence[int], right: set[int], gap: int) -> Text:
    made = Text()
    for i, (cell, width) in enumerate(zip(line, widths, strict=True)):
        space = " " * (width - cells(cell.plain))
        made.append(" " * gap if i else "")
        made.append(space if i in right else "").append_text(cell)
        made.append("" if i in right else space)
    made.rstrip()
    return made


def widest(lines: Iterable[Text]) -> int:
    """Columns of the widest line."""
    return max(cells(line.plain) for line in lines)
