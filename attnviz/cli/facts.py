"""The first lines of a report: what ran, under which masks, on which tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnviz.errors import printable
from attnviz.pipeline import Line
from attnviz.render.visible import shorten, visible
from attnviz.wording import plural

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rich.console import Console

    from attnviz.result import Attention
    from attnviz.tokens import Batch

MOST_TOKENS = 64
"""Tokens of a sequence that are listed with their ids; the others are counted."""

LONGEST_TOKEN = 32
"""Columns that a token may take in that list; the middle of a longer one gives way."""

INDENT = 12
"""Columns of the label before a fact."""


def print_facts(console: Console, facts: Sequence[Line]) -> None:
    """Each fact on a line, or on as many as a terminal needs; a pipe gets one line each."""
    from rich.text import Text

    from attnviz.render.console import flow, write

    width = console.width if console.is_terminal else 10**6
    for label, text in facts:
        pieces = [Text(word) for word in text.split(" ")]
        if width < 3 * INDENT:  # too narrow for a column of labels
            write(console, *flow([Text(label), *pieces], width, "  ", gap=" "))
            continue
        lines = flow(pieces, width - INDENT, gap=" ")
        for i, line in enumerate(lines):
            write(console, Text((label if i == 0 else "").ljust(INDENT)) + line)


NO_MASK = "none: every query may look at every key"


def mask_names(names: Sequence[str]) -> Line:
    """The masks by name, where their cells are not counted."""
    return ("masks", ", ".join(map(printable, names)) or NO_MASK)


def mask_facts(
    names: Sequence[str], allowed: npt.NDArray[np.bool_] | None, queries: Batch, keys: Batch
) -> list[Line]:
    """The masks by name, with counts over the cells and rows of real tokens.

    `allowed` is bool `[B 1|H Tq Tk]`. Cells of padding are not counted: no other mask decides them.
    """
    if allowed is None:
        return [("masks", NO_MASK)]
    real = queries.valid[:, :, None] & keys.valid[:, None, :]  # B Tq Tk
    cells = int(real.sum()) * allowed.shape[1]
    forbidden = int((~allowed & real[:, None]).sum())
    parts = [f"{forbidden:,} of {plural(cells, 'cell')} forbidden"]
    if padded := int((~keys.valid).sum()):
        parts.append(plural(padded, "padded key"))
    blind = ~allowed.any(-1)  # B 1|H Tq
    for rows, what in ((queries.valid, "row"), (~queries.valid, "padded row")):
        if n := int((blind & rows[:, None]).sum()):
            parts.append(f"{plural(n, what)} with nothing to see")
    return [("masks", f"{', '.join(names)}: {'; '.join(parts)}")]


def part_facts(drawn: Attention) -> list[Line]:
    """Which part of the map it is; its weights are those of the whole."""
    (first, end), (key, last) = drawn.config["part"]
    return [
        ("part", f"queries {first:,} to {end - 1:,}, keys {key:,} to {last - 1:,}, exactly"),
        ("", "a weight is its share of all keys, not of those shown"),
    ]


def pooled_facts(pooled: Attention, why: str) -> list[Line]:
    """Why a run was pooled, what a pixel is, and what is exact."""
    rows, keys = pooled.cells
    pixels = f"{pooled.mean.shape[3]} × {pooled.mean.shape[4]} pixels"
    size = f"{pooled.n_queries:,} × {pooled.n_keys:,} weights"
    exact = "means, largest weights and each row's numbers are of every weight; none is left out"
    return [
        mask_names(pooled.masks),
        ("pooled", why or "a saved long run"),
        ("", f"{size} a head as {pixels} of {rows} × {keys}; {exact}"),
    ]


def token_facts(
    queries: Batch,
    keys: Batch | None,
    ascii_only: bool,
    *,
    with_ids: bool = True,
    chosen: Sequence[int] | None = None,
) -> list[Line]:
    """The chosen sequences' tokens, with their ids as they stand in the vocabulary."""
    sides = [("sequence", queries)] if keys is None else [("queries", queries), ("keys", keys)]
    facts = []
    for word, batch in sides:
        for i in range(batch.size) if chosen is None else chosen:
            facts.append((f"{word} {i}", _listed(batch, i, with_ids, ascii_only)))
    return facts


def _listed(batch: Batch, i: int, with_ids: bool, ascii_only: bool) -> str:
    """`3 tokens and 1 padding on the right: The/4 cat/5 sat/6`."""
    tokens = batch.tokens[i]
    count = plural(len(tokens), "token")
    if pads := batch.width - len(tokens):
        count += f" and {pads:,} padding on the {batch.pad_side}"
    ids = batch.ids[i, batch.starts[i] :]
    shown = [
        shorten(visible(token, ascii_only), LONGEST_TOKEN, ascii_only)
        + (f"/{number}" if with_ids else "")
        for token, number in zip(tokens[:MOST_TOKENS], ids, strict=False)
    ]
    if len(tokens) > MOST_TOKENS:
        shown.append(f"and {len(tokens) - MOST_TOKENS:,} more")
    return f"{count}{': ' if shown else ''}{' '.join(shown)}"
