"""Tokens for the axes of an array that came without: as batches, whose padding is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnviz.errors import InputError, printable
from attnviz.machine import require_memory
from attnviz.tokens import PAD_SPELLINGS, Batch, Tokens, make_batch, read_tokens
from attnviz.wording import plural

Given = Path | Sequence[Sequence[str]]
"""A file of tokens, or the tokens of each sequence."""


@dataclass(frozen=True)
class AxisTokens:
    """What is known of the queries, or of the keys: their number, tokens and real lengths."""

    what: str
    width: int
    tokens: Given | None = None
    lengths: Sequence[int] | None = None


def token_batches(
    batch: int, queries: AxisTokens, keys: AxisTokens, pad_side: str | None = None
) -> tuple[Batch, Batch]:
    """Batches of `batch` sequences, of the queries and of the keys; one and the same where nothing
    tells them apart.

    What has no tokens is named by its position. A single token list serves all sequences. Padding
    is what `lengths` leave over, what lists shorter than the axis leave over, and `[PAD]` or
    `<pad>` at one end; it stands on `pad_side` where tokens do not tell. Raises `InputError` where
    these do not fit each other.
    """
    # a token is a string, and a reference in each of three tuples
    needed = 200 * batch * (queries.width + keys.width)
    require_memory(needed, f"naming {batch} × {queries.width + keys.width} tokens", "give fewer")
    alike = keys.tokens is None and keys.lengths is None and keys.width == queries.width
    sides = [queries] if alike else [queries, keys]
    given = [_rows(side, batch, keys.width) for side in sides]
    seen = {end for rows in given for row in rows or () for end in _padded_ends(row)}
    if pad_side is not None:
        seen.add(pad_side)
    if len(seen) > 1:
        raise InputError("there is padding on the left and on the right; one side is expected")
    end = seen.pop() if seen else "right"
    made = [
        make_batch(_real(side, rows, batch, end), None, side.width, end)
        for side, rows in zip(sides, given, strict=True)
    ]
    return made[0], made[-1]


def _rows(side: AxisTokens, batch: int, n_keys: int) -> list[Tokens] | None:
    """A token list for each sequence, as given."""
    if side.tokens is None:
        return None
    if isinstance(side.tokens, Path):
        name, rows = printable(side.tokens), read_tokens(side.tokens)
    else:
        name, rows = f"the {side.what}", [tuple(row) for row in side.tokens]
    if len(rows) not in (1, batch):
        raise InputError(
            f"{name}: tokens of {plural(len(rows), 'sequence')}, "
            f"and the array has {plural(batch, 'sequence')}"
        )
    longest = max(map(len, rows))
    if longest > side.width or (longest < side.width and side.lengths is None):
        hint = (
            "; --key-tokens names its keys" if side.what == "queries" and longest == n_keys else ""
        )
        raise InputError(
            f"{name}: {plural(longest, 'token')}, and the array has {side.width} {side.what}{hint}"
        )
    return rows if len(rows) == batch else rows * batch


def _padded_ends(row: Tokens) -> set[str]:
    """Where a list has tokens of padding; a list of nothing else does not tell."""
    if all(token in PAD_SPELLINGS for token in row):
        return set()
    ends = {"left": row[0], "right": row[-1]}
    return {end for end, token in ends.items() if token in PAD_SPELLINGS}


def _real(side: AxisTokens, rows: list[Tokens] | None, batch: int, end: str) -> list[Tokens]:
    """Each sequence's tokens without padding, which stands at `end`."""
    lengths = None if side.lengths is None else _checked(side, batch)
    if rows is None:
        return [tuple(map(str, range(n))) for n in lengths or [side.width] * batch]
    if lengths is None:
        return [_without_padding(row, end) for row in rows]
    real = []
    for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        if len(row) not in (n, side.width):
            raise InputError(
                f"sequence {i} has {plural(len(row), 'token')}, and a length of {n} is given"
            )
        real.append(row[:n] if end == "right" else row[len(row) - n :])
    return real


def _checked(side: AxisTokens, batch: int) -> Sequence[int]:
    assert side.lengths is not None
    if len(side.lengths) != batch:
        raise InputError(
            f"{plural(len(side.lengths), 'length')} given, "
            f"and the array has {plural(batch, 'sequence')}"
        )
    wrong = next((n for n in side.lengths if not 0 <= n <= side.width), None)
    if wrong is not None:
        raise InputError(f"a length of {wrong}, and the array has {side.width} {side.what}")
    return side.lengths


def _without_padding(row: Tokens, end: str) -> Tokens:
    real = [i for i, token in enumerate(row) if token not in PAD_SPELLINGS]
    if not real:
        return ()
    return row[: real[-1] + 1] if end == "right" else row[real[0] :]
