"""Subword tokens as people read them: their marks and byte fragments decoded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from attnviz.batch import Tokens
from attnviz.sources.encoding import Encoded

CONTINUES = "##"
"""What WordPiece (BERT) writes before a piece that goes on with a word."""

SPACE = "▁"
"""What SentencePiece (T5, Llama 2, Gemma) writes for a space."""

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte that SentencePiece has no piece for."""


def readable(tokenizer: Any, encoded: Encoded) -> list[Tokens]:
    """The tokens of each text, decoded: `Ġworld` and `▁world` are `world`, `##ing` is `ing`.

    Where tokens are pieces of one character, each is that character with its part: 🤗[1/3].
    Special tokens stay as they are. A space before a word is left out; a token that is nothing
    but white space stays white space.
    """
    byte_level = _has(tokenizer, "Ġ")
    return [
        tuple(_decoded(raw, special, byte_level))
        for raw, special in zip(encoded.raw, encoded.special, strict=True)
    ]


def _has(tokenizer: Any, token: str) -> bool:
    """Whether `token` is in the vocabulary."""
    number = tokenizer.convert_tokens_to_ids(token)
    return number is not None and number != tokenizer.unk_token_id


def _decoded(raw: Sequence[str], special: Sequence[bool], byte_level: bool) -> list[str]:
    """Bytes of all tokens in a row, decoded as one text, and handed out to the tokens again."""
    pieces = [
        b"" if is_special else _bytes(token, byte_level)
        for token, is_special in zip(raw, special, strict=True)
    ]
    owners = [i for i, piece in enumerate(pieces) for _ in piece]
    texts = [""] * len(raw)
    at = 0
    for character in b"".join(pieces).decode("utf-8", "surrogateescape"):
        size = len(character.encode("utf-8", "surrogateescape"))
        holders = list(dict.fromkeys(owners[at : at + size]))
        broken = "\ud800" <= character <= "\udfff"
        shown = f"<0x{ord(character) - 0xDC00:02X}>" if broken else character
        for part, owner in enumerate(holders, 1):
            texts[owner] += shown if len(holders) == 1 else f"{shown}[{part}/{len(holders)}]"
        at += size
    return [
        token if is_special else _without_space(text) or token
        for token, text, is_special in zip(raw, texts, special, strict=True)
    ]


def _without_space(text: str) -> str:
    return text[1:] if text.startswith(" ") and text.strip() else text


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
