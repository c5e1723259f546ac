"""The first lines of a report: what ran, under which masks, on which tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnviz.config import AttentionConfig
from attnviz.render.tokens import shorten, visible

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attnviz.batch import Batch

MOST_TOKENS = 64
"""Tokens of a sequence that are listed with their ids; the others are counted."""

LONGEST_TOKEN = 32
"""Columns that a token may take in that list; the middle of a longer one gives way."""


def layer_facts(config: AttentionConfig) -> list[str]:
    """The sizes of the layer."""
    return [
        f"layer       {_count(config.n_heads, 'head')}, d_model {config.d_model}, "
        f"d_k {config.d_k}, d_v {config.d_v}, {config.dtype}, positions {config.positions}"
    ]


def untrained_facts(config: AttentionConfig) -> list[str]:
    """That the layer's numbers are random."""
    return [
        f"            untrained (random numbers, seed {config.seed}): it shows the mechanism, "
        "not what a model has learned",
    ]


def mask_facts(
    names: Sequence[str], allowed: npt.NDArray[np.bool_] | None, queries: Batch, keys: Batch
) -> list[str]:
    """The masks by name, with counts over the cells and rows of real tokens.

    `allowed` is bool `[B 1|H Tq Tk]`. Cells of padding are not counted: no other mask decides them.
    """
    if allowed is None:
        return ["masks       none: every query may look at every key"]
    real = queries.valid[:, :, None] & keys.valid[:, None, :]  # B Tq Tk
    cells = int(real.sum()) * allowed.shape[1]
    forbidden = int((~allowed & real[:, None]).sum())
    parts = [f"{forbidden:,} of {_count(cells, 'cell')} forbidden"]
    if padded := int((~keys.valid).sum()):
        parts.append(_count(padded, "padded key"))
    if blind := int((~allowed.any(-1) & queries.valid[:, None]).sum()):
        parts.append(f"{_count(blind, 'row')} with nothing to see")
    return [f"masks       {', '.join(names)}: {'; '.join(parts)}"]


def token_facts(queries: Batch, keys: Batch | None, ascii_only: bool) -> list[str]:
    """Each sequence's tokens with their ids, as they stand in the vocabulary."""
    if keys is None:
        return _sequences("sequence", queries, ascii_only)
    return _sequences("queries", queries, ascii_only) + _sequences("keys", keys, ascii_only)


def _sequences(word: str, batch: Batch, ascii_only: bool) -> list[str]:
    number = {token: i for i, token in enumerate(batch.vocabulary)}
    lines = []
    for i, tokens in enumerate(batch.tokens):
        count = _count(len(tokens), "token")
        if pads := batch.width - len(tokens):
            count += f" and {pads:,} padding on the {batch.pad_side}"
        shown = [
            f"{shorten(visible(token, ascii_only), LONGEST_TOKEN, ascii_only)}/{number[token]}"
            for token in tokens[:MOST_TOKENS]
        ]
        if len(tokens) > MOST_TOKENS:
            shown.append(f"and {len(tokens) - MOST_TOKENS:,} more")
        heading = f"{word} {i}".ljust(11)
        lines.append(f"{heading} {count}{': ' if shown else ''}{' '.join(shown)}")
    return lines


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"
