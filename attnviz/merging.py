"""A result seen otherwise: words for their pieces, special tokens hidden, raw or decoded tokens.

Each function takes a result and gives another, of any source, fresh or saved. What is known of the
tokens stands in the result's `config`, under `query_pieces` and `key_pieces`; where nothing stands
there, the marks in the tokens themselves are read (`attnviz.pieces`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError
from attnviz.pieces import Pieces, marked_pieces
from attnviz.result import HIDDEN, Attention
from attnviz.tokens import Tokens, padded

MERGED = "pieces merged into words"

NAMES = ("query_pieces", "key_pieces")
"""Where in `config` the pieces of each side stand, a list with an entry for each sequence."""

Array = npt.NDArray[Any]
Groups = Sequence[Sequence[Sequence[int]]]
"""For each sequence, for each new token: the old tokens that it stands for, neighbours in order,
counted from the sequence's first. An old token in no group is left out."""


def merge_words(result: Attention) -> Attention:
    """Attention between words: columns of a word's pieces are added up, its rows averaged.

    So Clark et al. 2019 (What Does BERT Look At?, section 4.1) have it: attention *to* a word is
    the sum over its pieces, attention *from* a word their mean, so that rows sum to what they did.
    Pieces that may look at nothing are left out of the mean. A word may look at another where one
    of its pieces may look at one of the other's. Words are those of `attnviz.tokens.words`, and end
    where an answer begins. Special tokens stay by themselves, and so do words that occur twice.
    Kept tensors, which belong to pieces, are dropped. Where nothing is to be merged, `result`
    itself comes back.
    """
    sides = _sides(result)
    made = [_side(map(_as_words, side.pieces)) for side in sides]
    groups = [[_runs(pieces) for pieces in side.pieces] for side in sides]
    if all(len(group) == 1 for side in groups for row in side for group in row):
        return result
    merged = _regrouped(result, groups[0], groups[1], made)
    return replace(merged, notes=(*result.notes, MERGED))


def hide_special(result: Attention) -> Attention:
    """`result` without the rows and columns of tokens that stand for no text, `[CLS]` and the like.

    Nothing is renormalised: rows sum to less, and a note says by how much of the weight of the rows
    that stay. Kept tensors are dropped. Where there are none, `result` itself comes back. Raises
    `InputError` when no other token is there.
    """
    sides = _sides(result)
    groups = [[_others(pieces) for pieces in side.pieces] for side in sides]
    if not all(any(side) for side in groups):
        raise InputError("--hide-special leaves no token: all of them are special")
    made = [_side(map(_without_special, side.tokens, side.pieces)) for side in sides]
    n_before = sum(len(row) for side in sides for row in side.tokens)
    if n_before == sum(len(row) for side in made for row in side.tokens):
        return result
    hidden = _regrouped(result, groups[0], groups[1], made)
    stay = result.query_valid.copy()  # B Tq
    for row, pieces in zip(stay, sides[0].pieces, strict=True):
        row[row] = [not special for special in pieces.special]
    share = 1 - _weight(hidden, hidden.query_valid) / (_weight(result, stay) or 1)
    share = max(share, 0.0)  # no -0.00 of rounding
    note = f"{HIDDEN}: {share:.2f} of the weight"
    return replace(hidden, notes=(*result.notes, note))


def raw_tokens(result: Attention) -> Attention:
    """`result` with tokens named as the tokenizer writes them: `Ġworld`, `##ing`."""
    sides = _sides(result)
    return _renamed(result, [[pieces.raw for pieces in side.pieces] for side in sides])


def decoded_tokens(result: Attention) -> Attention:
    """`result` with tokens as people read them: `world`, `ing`, by the marks that they have."""
    sides = _sides(result)
    marked = marked_pieces([pieces.raw for side in sides for pieces in side.pieces])
    rows = [
        read if tokens == pieces.raw else tokens
        for (read, _), tokens, pieces in zip(
            marked,
            [tokens for side in sides for tokens in side.tokens],
            [pieces for side in sides for pieces in side.pieces],
            strict=True,
        )
    ]
    return _renamed(result, [rows[: result.batch_size], rows[result.batch_size :]])


# ── what is known of the tokens ──────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _AxisPieces:
    """The tokens of all queries, or of all keys, as people read them; padding left out."""

    tokens: Sequence[Tokens]
    pieces: Sequence[Pieces]


def _side(found: Iterable[tuple[Tokens, Pieces]]) -> _AxisPieces:
    pairs = list(found)
    return _AxisPieces([tokens for tokens, _ in pairs], [pieces for _, pieces in pairs])


def with_pieces(
    config: Mapping[str, Any], queries: Sequence[Pieces], keys: Sequence[Pieces]
) -> dict[str, Any]:
    """A result's `config` that tells the pieces of its tokens."""
    return {
        **config,
        **{
            name: [pieces.as_json() for pieces in side]
            for name, side in zip(NAMES, (queries, keys), strict=True)
        },
    }


def _sides(result: Attention) -> list[_AxisPieces]:
    """The queries and the keys."""
    rows = [[result.real_tokens(b, side) for b in range(result.batch_size)] for side in (0, 1)]
    queries, keys = (
        _known(result.config.get(name), side) for name, side in zip(NAMES, rows, strict=True)
    )
    if queries is not None and keys is not None:
        return [_AxisPieces(rows[0], queries), _AxisPieces(rows[1], keys)]
    n_prompt: list[int | None] = [*(result.n_prompt or [None] * result.batch_size)]
    of_keys = [None] * result.batch_size if result.is_cross else n_prompt
    found = marked_pieces([*rows[0], *rows[1]], [*n_prompt, *of_keys])
    return [_side(found[: result.batch_size]), _side(found[result.batch_size :])]


def _known(found: Any, rows: Sequence[Tokens]) -> list[Pieces] | None:
    """The pieces that a `config` tells; None where it tells none, or not those of these tokens."""
    try:
        pieces = [Pieces.from_json(each) for each in found]
    except (ValueError, KeyError, TypeError):
        return None
    fits = [len(each.raw) for each in pieces] == [len(row) for row in rows]
    return pieces if fits else None


def _runs(pieces: Pieces) -> list[list[int]]:
    """Each word's tokens."""
    groups, at = [], 0
    for _, count in pieces.words:
        groups.append(list(range(at, at + count)))
        at += count
    return groups


def _as_words(pieces: Pieces) -> tuple[Tokens, Pieces]:
    """Each word as one token."""
    names = tuple(word for word, _ in pieces.words)
    special = tuple(all(pieces.special[i] for i in group) for group in _runs(pieces))
    return names, Pieces(names, special, tuple((name, 1) for name in names))


def _others(pieces: Pieces) -> list[list[int]]:
    """The tokens that are not special, each by itself."""
    return [[i] for i, special in enumerate(pieces.special) if not special]


def _without_special(tokens: Tokens, pieces: Pieces) -> tuple[Tokens, Pieces]:
    stay = [i for (i,) in _others(pieces)]
    words = [
        (name, sum(not pieces.special[i] for i in group))
        for (name, _), group in zip(pieces.words, _runs(pieces), strict=True)
    ]
    left = Pieces(
        tuple(pieces.raw[i] for i in stay),
        (False,) * len(stay),
        tuple((name, count) for name, count in words if count),
    )
    return tuple(tokens[i] for i in stay), left


# ── the arithmetic ───────────────────────────────────────────────────────────────────────────


def _regrouped(
    result: Attention, queries: Groups, keys: Groups, made: Sequence[_AxisPieces]
) -> Attention:
    """Columns added up and rows averaged by groups, whose tokens are those that were `made`."""
    lengths = np.array([len(groups) for groups in queries], dtype=np.int64)
    key_lengths = np.array([len(groups) for groups in keys], dtype=np.int64)
    layers, batch, heads = result.attention.shape[:3]
    width, key_width = int(lengths.max()), int(key_lengths.max())
    attention = np.zeros((layers, batch, heads, width, key_width), result.attention.dtype)
    allowed = np.zeros((layers, batch, result.allowed.shape[2], width, key_width), dtype=bool)
    for b in range(batch):
        if not queries[b] or not keys[b]:
            continue
        at_q, first_q = _order(queries[b], result.query_valid[b])
        at_k, first_k = _order(keys[b], result.key_valid[b])
        sees = np.any(result.allowed[:, b][..., at_q, :], axis=-1)  # L 1|H Tq
        count = np.add.reduceat(sees, first_q, -1, dtype=np.float64)  # L 1|H groups
        cells = result.attention[:, b][..., at_q[:, None], at_k]  # L H Tq Tk
        cells = np.add.reduceat(cells, first_k, -1, dtype=np.float64)
        cells = np.add.reduceat(np.where(sees[..., None], cells, 0), first_q, -2)
        open_ = result.allowed[:, b][..., at_q[:, None], at_k]
        open_ = np.logical_or.reduceat(np.logical_or.reduceat(open_, first_k, -1), first_q, -2)
        q = _places(len(first_q), width, result.pad_side)
        k = _places(len(first_k), key_width, result.pad_side)
        attention[:, b, :, q, k] = cells / np.maximum(count, 1)[..., None]
        allowed[:, b, :, q, k] = open_
    n_prompt = tuple(
        sum(group[0] < n for group in groups)
        for groups, n in zip(queries, result.n_prompt or [0] * batch, strict=True)
    )
    return replace(
        result,
        attention=attention,
        allowed=allowed,
        query_tokens=padded(made[0].tokens, width, result.pad_side),
        key_tokens=padded(made[1].tokens, key_width, result.pad_side),
        lengths=lengths,
        key_lengths=key_lengths,
        config=with_pieces(result.config, made[0].pieces, made[1].pieces),
        kept={},
        n_prompt=n_prompt if result.n_prompt else (),
    )


def _order(groups: Sequence[Sequence[int]], valid: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Places in the padded row of the tokens of all groups, and where in that list each begins."""
    start = int(np.argmax(valid))
    at = np.array([start + place for group in groups for place in group])
    first = np.cumsum([0, *(len(group) for group in groups[:-1])])
    return at, first


def _weight(result: Attention, rows: npt.NDArray[np.bool_]) -> float:
    """The weight of some rows `[B Tq]` on real keys, in all layers and heads."""
    on_real = np.where(result.key_valid[None, :, None, None], result.attention, 0)
    return float(np.where(rows[:, None], on_real.sum(-1, dtype=np.float64), 0).sum())


# ── the padded rows ──────────────────────────────────────────────────────────────────────────


def _places(length: int, width: int, pad_side: str) -> slice:
    return slice(0, length) if pad_side == "right" else slice(width - length, width)


def _renamed(result: Attention, sides: Sequence[Sequence[Tokens]]) -> Attention:
    """`result` with other names for the same tokens."""
    widths = result.n_queries, result.n_keys
    queries, keys = (
        padded(rows, width, result.pad_side) for rows, width in zip(sides, widths, strict=True)
    )
    return replace(result, query_tokens=queries, key_tokens=keys)
