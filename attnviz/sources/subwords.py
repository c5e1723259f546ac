"""Subword tokens as people read them: marks and byte fragments decoded, pieces grouped to words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from attnviz import batch
from attnviz.batch import Tokens
from attnviz.sources.encoding import Encoded, Spans, special_ids

CONTINUES = "##"
"""What WordPiece (BERT) writes before a piece that goes on with a word."""

SPACE = "▁"
"""What SentencePiece (T5, Llama 2, Gemma) writes for a space."""

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte that SentencePiece has no piece for."""


# ── tokens to text ───────────────────────────────────────────────────────────────────────────


def readable(tokenizer: Any, encoded: Encoded) -> list[Tokens]:
    """The tokens of each text, decoded: `Ġworld` and `▁world` are `world`, `##ing` is `ing`.

    Where tokens are pieces of one character, each is that character with its part: 🤗[1/3].
    Special tokens stay as they are. A space before a word is left out; a token that is nothing
    but white space stays white space.
    """
    return [
        tuple(_decoded(raw, special, _is_byte_level(tokenizer)))
        for raw, special in zip(encoded.raw, encoded.special, strict=True)
    ]


def respelled(tokenizer: Any, rows: Sequence[Sequence[int]], pad_side: str) -> Encoded:
    """Ids that no text was cut into, those that a model writes, with the text that they spell."""
    known = special_ids(tokenizer)
    raw = [tuple(map(str, tokenizer.convert_ids_to_tokens(list(ids)))) for ids in rows]
    special = [tuple(number in known for number in ids) for ids in rows]
    spelled = [
        _spelled(tokens, flags, _is_byte_level(tokenizer))
        for tokens, flags in zip(raw, special, strict=True)
    ]
    return Encoded(
        texts=tuple(text for text, _ in spelled),
        ids=tuple(tuple(ids) for ids in rows),
        raw=tuple(raw),
        spans=tuple(spans for _, spans in spelled),
        special=tuple(special),
        types=tuple((0,) * len(ids) for ids in rows),
        pad_id=tokenizer.pad_token_id or 0,
        pad_side=pad_side,
    )


def _spelled(raw: Sequence[str], special: Sequence[bool], byte_level: bool) -> tuple[str, Spans]:
    """The text that tokens stand for, and where in it each stands: (start, end) in characters."""
    pieces = _pieces(raw, special, byte_level)
    if any(token.startswith(CONTINUES) for token in raw):  # WordPiece leaves the spaces out
        pieces = [
            piece if token.startswith(CONTINUES) or not piece else b" " + piece
            for token, piece in zip(raw, pieces, strict=True)
        ]
    text = ""
    places: list[list[int]] = [[] for _ in raw]
    for character, holders in _characters(pieces):
        for holder in holders:
            places[holder] += [len(text), len(text) + len(character)]
        text += character
    return text, tuple((min(at), max(at)) if at else (0, 0) for at in places)


def _is_byte_level(tokenizer: Any) -> bool:
    """Whether the vocabulary is made of bytes, each spelled as one sign, `Ġ` for the space."""
    number = tokenizer.convert_tokens_to_ids("Ġ")
    return number is not None and number != tokenizer.unk_token_id


def _decoded(raw: Sequence[str], special: Sequence[bool], byte_level: bool) -> Iterator[str]:
    texts = [""] * len(raw)
    for character, holders in _characters(_pieces(raw, special, byte_level)):
        for part, holder in enumerate(holders, 1):
            texts[holder] += (
                character if len(holders) == 1 else f"{character}[{part}/{len(holders)}]"
            )
    for token, text, is_special in zip(raw, texts, special, strict=True):
        if is_special or not text:
            yield token
        else:
            yield text[1:] if text.startswith(" ") and text.strip() else text


def _characters(pieces: Sequence[bytes]) -> Iterator[tuple[str, list[int]]]:
    """The characters of all pieces in a row, each with the pieces that hold its bytes.

    A byte that makes no character is `<0xE4>`.
    """
    owners = [i for i, piece in enumerate(pieces) for _ in piece]
    at = 0
    for character in b"".join(pieces).decode("utf-8", "surrogateescape"):
        size = len(character.encode("utf-8", "surrogateescape"))
        broken = "\ud800" <= character <= "\udfff"
        shown = f"<0x{ord(character) - 0xDC00:02X}>" if broken else character
        yield shown, list(dict.fromkeys(owners[at : at + size]))
        at += size


def _pieces(raw: Sequence[str], special: Sequence[bool], byte_level: bool) -> list[bytes]:
    return [
        b"" if is_special else _bytes(token, byte_level)
        for token, is_special in zip(raw, special, strict=True)
    ]


def _bytes(token: str, byte_level: bool) -> bytes:
    if byte_level:
        known = _byte_of()
        return b"".join(known.get(c, c.encode("utf-8", "replace")) for c in token)
    fallback = BYTE.fullmatch(token)
    if fallback:
        return bytes([int(fallback[1], 16)])
    if token.startswith(CONTINUES) and len(token) > len(CONTINUES):
        token = token[len(CONTINUES) :]
    return token.replace(SPACE, " ").encode("utf-8", "replace")


@cache
def _byte_of() -> dict[str, bytes]:
    """Byte-level BPE's sign of each byte (Radford et al. 2019): printable ones are themselves, the
    others the characters from U+0100 on, in their order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(0x100) if b not in own]
    signs = {chr(b): bytes([b]) for b in own}
    return signs | {chr(0x100 + i): bytes([b]) for i, b in enumerate(others)}


# ── tokens to words ──────────────────────────────────────────────────────────────────────────


def word_groups(text: str, spans: Spans) -> list[list[int]]:
    """Which tokens make a word: groups of neighbours, in order.

    Words are those of `attnviz.batch.words`: punctuation apart, "didn't" whole. A token that
    reaches over two words makes one group of both. Tokens of no word (special ones, white space)
    stand alone.
    """
    words = _word_spans(text)
    groups: list[list[int]] = []
    before: set[int] = set()
    for i, (start, end) in enumerate(spans):
        here = {n for n, (first, last) in enumerate(words) if start < last and end > first}
        if here & before:
            groups[-1].append(i)
        else:
            groups.append([i])
        before = here
    return groups


def group_labels(
    groups: Sequence[Sequence[int]], tokens: Sequence[str], text: str, spans: Spans
) -> list[str]:
    """What each group is called: its token, or the text that its tokens stand for."""
    return [
        tokens[group[0]]
        if len(group) == 1
        else text[spans[group[0]][0] : spans[group[-1]][1]].strip()
        for group in groups
    ]


def _word_spans(text: str) -> list[tuple[int, int]]:
    spans = []
    at = 0
    for word in batch.words(text):
        at = text.index(word, at)
        spans.append((at, at + len(word)))
        at += len(word)
    return spans
