"""Tokens of a model as people read them, and what is known of them: raw, special, which word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attnviz.pieces import Pieces, decoded, make_pieces, spelled, spelling_of_vocabulary
from attnviz.sources.encoding import Encoded, special_ids
from attnviz.tokens import Tokens


def readable(tokenizer: Any, encoded: Encoded) -> list[Tokens]:
    """The tokens of each text, decoded: `Ġworld` and `▁world` are `world`, `##ing` is `ing`."""
    spelling = spelling_of_vocabulary(tokenizer.get_vocab())
    return [
        decoded(raw, special, spelling)
        for raw, special in zip(encoded.raw, encoded.special, strict=True)
    ]


def pieces_of(tokenizer: Any, encoded: Encoded, n_prompt: Sequence[int] = ()) -> list[Pieces]:
    """What is known of the tokens of each text; where they stand is told by the tokenizer, or, if
    it tells nothing (those written in Python alone), by what they spell."""
    given: Sequence[int | None] = n_prompt or [None] * len(encoded.texts)
    spelling = spelling_of_vocabulary(tokenizer.get_vocab())
    found = []
    for i, tokens in enumerate(readable(tokenizer, encoded)):
        raw, special = encoded.raw[i], encoded.special[i]
        text, spans = encoded.texts[i], encoded.spans[i]
        if not any(start < end for start, end in spans):
            text, spans = spelled(raw, special, spelling)
        found.append(make_pieces(tokens, raw, special, text, spans, given[i]))
    return found


def respelled(tokenizer: Any, rows: Sequence[Sequence[int]], pad_side: str) -> Encoded:
    """Ids that no text was cut into, those that a model writes, with the text that they spell."""
    known, spelling = special_ids(tokenizer), spelling_of_vocabulary(tokenizer.get_vocab())
    raw = [tuple(map(str, tokenizer.convert_ids_to_tokens(list(ids)))) for ids in rows]
    special = [tuple(number in known for number in ids) for ids in rows]
    texts = [spelled(tokens, flags, spelling) for tokens, flags in zip(raw, special, strict=True)]
    return Encoded(
        texts=tuple(text for text, _ in texts),
        ids=tuple(tuple(ids) for ids in rows),
        raw=tuple(raw),
        spans=tuple(spans for _, spans in texts),
        special=tuple(special),
        types=tuple((0,) * len(ids) for ids in rows),
        pad_id=tokenizer.pad_token_id or 0,
        pad_side=pad_side,
    )
