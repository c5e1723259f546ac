"""Subword tokens as text: marks and byte fragments decoded, and which pieces make a word.

Tokenizers mark where a word begins or goes on, each in its own way: WordPiece (BERT) `##ing`,
SentencePiece (T5, Llama 2) `▁world`, byte-level BPE (GPT-2, Llama 3) `Ġworld` with each byte as one
sign, CLIP `world</w>`. Here all of them become text, and words are those of `attnviz.tokens.words`,
the same for every tokenizer: punctuation apart, "didn't" whole, each Han character by itself.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from attnviz import tokens as batch
from attnviz.tokens import Tokens

CONTINUES = "##"
"""What WordPiece (BERT) writes before a piece that goes on with a word."""

SPACE = "▁"
"""What SentencePiece (T5, Llama 2, Gemma) writes for a space."""

ENDS = "</w>"
"""What CLIP and GPT-1 write after a piece that ends a word."""

BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""A byte that SentencePiece has no piece for."""

SPECIAL = re.compile(
    r"\[(CLS|SEP|BOS|EOS|DISTILL|REG\d+)\]|</?s>|<(bos|eos|cls|sep)>|<(start|end)_of_turn>"
    r"|<\|[^|<>]{1,40}\|>"
)
"""How tokens that stand for no text are usually spelled."""

Spans = tuple[tuple[int, int], ...]
"""For each token, the characters (start, end) of its text that it stands for; (0, 0) for none."""


@dataclass(frozen=True)
class Spelling:
    """How a tokenizer writes tokens: by which mark it tells words apart (`##`, `▁`, `</w>` or
    none), and whether each sign stands for a byte, a space among them."""

    mark: str = ""
    by_bytes: bool = False


@dataclass(frozen=True)
class Pieces:
    """What is known of the tokens of one sequence, in their order, without padding.

    `raw` are the tokens as the tokenizer writes them, `special` whether each stands for no text
    (`[CLS]`, `</s>`), `words` the words that they make: each with how many tokens it has.
    """

    raw: Tokens
    special: tuple[bool, ...]
    words: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        counts = [count for _, count in self.words]
        if not len(self.raw) == len(self.special) == sum(counts) or any(n < 1 for n in counts):
            raise ValueError("words and special tokens do not fit the tokens")

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads back."""
        return {
            "raw": list(self.raw),
            "special": [i for i, special in enumerate(self.special) if special],
            "words": [list(word) for word in self.words],
        }

    @classmethod
    def from_json(cls, found: Any) -> Pieces:
        """Raises ValueError, KeyError or TypeError for anything else than `as_json` gives."""
        raw = tuple(found["raw"])
        special = set(found["special"])
        words = tuple((word, count) for word, count in found["words"])
        texts = (*raw, *(word for word, _ in words))
        numbers = (*special, *(count for _, count in words))
        if not all(type(t) is str for t in texts) or not all(type(n) is int for n in numbers):
            raise TypeError("pieces are texts and numbers")
        if any("\ud800" <= c <= "\udfff" for text in texts for c in text):
            raise ValueError("a lone surrogate is no text")
        return cls(raw, tuple(i in special for i in range(len(raw))), words)


def make_pieces(
    tokens: Sequence[str],
    raw: Sequence[str],
    special: Sequence[bool],
    text: str,
    spans: Spans,
    n_prompt: int | None = None,
) -> Pieces:
    """Pieces of a sequence whose tokens are shown as `tokens` and stand at `spans` in `text`.

    A word ends where an answer begins, after `n_prompt` tokens.
    """
    spans = tuple(
        (0, 0) if stands_for_none else span
        for span, stands_for_none in zip(spans, special, strict=True)
    )
    groups = word_groups(text, spans, n_prompt)
    names = group_labels(groups, tokens, text, spans)
    words = tuple(zip(names, map(len, groups), strict=True))
    return Pieces(tuple(raw), tuple(special), words)


def marked_pieces(
    rows: Sequence[Sequence[str]], n_prompt: Sequence[int | None] = ()
) -> list[tuple[Tokens, Pieces]]:
    """Sequences of which nothing is known but their tokens: these decoded, and their pieces.

    Where no token has a mark of a subword tokenizer, each is taken for a word.
    """
    spelling = spelling_of_texts(rows)
    found = []
    for raw, given in zip(rows, n_prompt or [None] * len(rows), strict=True):
        special = [is_special(token) for token in raw]
        if spelling == Spelling():
            words = tuple((token, 1) for token in raw)
            found.append((tuple(raw), Pieces(tuple(raw), tuple(special), words)))
            continue
        tokens = decoded(raw, special, spelling)
        text, spans = spelled(raw, special, spelling)
        found.append((tokens, make_pieces(tokens, raw, special, text, spans, given)))
    return found


def is_special(token: str) -> bool:
    """Whether a token of which no more is known is spelled like one that stands for no text."""
    return SPECIAL.fullmatch(token) is not None


# ── which marks ──────────────────────────────────────────────────────────────────────────────


def spelling_of_texts(rows: Iterable[Sequence[str]]) -> Spelling:
    """The spelling of tokens that stand in texts."""
    tokens = [token for row in rows for token in row if not is_special(token)]
    mark = _mark(tokens)
    by_bytes = mark in ("", ENDS) and _are_bytes([token.removesuffix(ENDS) for token in tokens])
    return Spelling(mark, by_bytes)


def spelling_of_vocabulary(tokens: Collection[str]) -> Spelling:
    """The spelling of a vocabulary, which has every sign of a byte if it has one."""
    mark = _mark(tokens)
    return Spelling(mark, mark in ("", ENDS) and "Ġ" in tokens)


def _mark(tokens: Iterable[str]) -> str:
    """The mark that most tokens have; what looks like one may be a token's own text."""
    found: Counter[str] = Counter()
    for token in tokens:
        if token.startswith(CONTINUES) and token.strip("#"):
            found[CONTINUES] += 1
        elif SPACE in token or BYTE.fullmatch(token):
            found[SPACE] += 1
        elif token.endswith(ENDS) and token != ENDS:
            found[ENDS] += 1
        elif token.startswith("Ġ"):
            found[""] += 1
    return max(found, key=lambda mark: found[mark], default="")


def _are_bytes(tokens: Sequence[str]) -> bool:
    """Whether tokens are spelled in signs of bytes: only these, not ASCII alone, sound as UTF-8,
    of which the end may be cut off."""
    signs = _byte_of()
    text = "".join(tokens)
    if text.isascii() or not all(c in signs for c in text):
        return False
    try:
        getincrementaldecoder("utf-8")().decode(b"".join(signs[c] for c in text))
    except UnicodeDecodeError:
        return False
    return True


# ── tokens to text ───────────────────────────────────────────────────────────────────────────


def decoded(raw: Sequence[str], special: Sequence[bool], spelling: Spelling) -> Tokens:
    """Tokens as people read them: `Ġworld` and `▁world` are `world`, `##ing` is `ing`.

    Where tokens are pieces of one character, each is that character with its part: 🤗[1/3].
    Special tokens stay as they are. A space before a word is left out; a token that is nothing
    but white space stays white space.
    """
    return tuple(_decoded(raw, special, spelling))


def spelled(raw: Sequence[str], special: Sequence[bool], spelling: Spelling) -> tuple[str, Spans]:
    """The text that tokens stand for, and where in it each stands: (start, end) in characters."""
    pieces = _bytes_of(raw, special, spelling)
    if spelling.mark == CONTINUES:  # WordPiece leaves the spaces out
        pieces = [
            piece if token.startswith(CONTINUES) or not piece else b" " + piece
            for token, piece in zip(raw, pieces, strict=True)
        ]
    text: list[str] = []
    length = 0
    places: list[list[int]] = [[] for _ in raw]
    for character, holders in _characters(pieces):
        for holder in holders:
            places[holder] += [length, length + len(character)]
        text.append(character)
        length += len(character)
    return "".join(text), tuple((min(at), max(at)) if at else (0, 0) for at in places)


def _decoded(raw: Sequence[str], special: Sequence[bool], spelling: Spelling) -> Iterator[str]:
    texts = [""] * len(raw)
    for character, holders in _characters(_bytes_of(raw, special, spelling)):
        for part, holder in enumerate(holders, 1):
            texts[holder] += (
                character if len(holders) == 1 else f"{character}[{part}/{len(holders)}]"
            )
    for token, text, stands_for_none in zip(raw, texts, special, strict=True):
        if stands_for_none or not text:
            yield token
        elif not text.strip():
            yield text
        else:
            text = text.removesuffix(" ") if spelling.mark == ENDS else text
            yield text.removeprefix(" ")


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


def _bytes_of(raw: Sequence[str], special: Sequence[bool], spelling: Spelling) -> list[bytes]:
    return [
        b"" if is_none else _bytes(token, spelling)
        for token, is_none in zip(raw, special, strict=True)
    ]


def _bytes(token: str, spelling: Spelling) -> bytes:
    if spelling.mark == ENDS and token.endswith(ENDS) and token != ENDS:
        return _bytes(token.removesuffix(ENDS), spelling) + b" "
    if spelling.by_bytes:
        known = _byte_of()
        return b"".join(known.get(c, c.encode("utf-8", "replace")) for c in token)
    fallback = BYTE.fullmatch(token) if spelling.mark == SPACE else None
    if fallback:
        return bytes([int(fallback[1], 16)])
    if spelling.mark == CONTINUES and len(token) > len(CONTINUES):
        token = token.removeprefix(CONTINUES)
    if spelling.mark == SPACE:
        token = token.replace(SPACE, " ")
    return token.encode("utf-8", "replace")


@cache
def _byte_of() -> Mapping[str, bytes]:
    """Byte-level BPE's sign of each byte (Radford et al. 2019): printable ones are themselves, the
    others the characters from U+0100 on, in their order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(0x100) if b not in own]
    signs = {chr(b): bytes([b]) for b in own}
    return signs | {chr(0x100 + i): bytes([b]) for i, b in enumerate(others)}


# ── tokens to words ──────────────────────────────────────────────────────────────────────────


def word_groups(text: str, spans: Spans, n_prompt: int | None = None) -> list[list[int]]:
    """Which tokens make a word: groups of neighbours, in order.

    A token that reaches over two words makes one group of both. Tokens of no word (special ones,
    white space) stand alone. No group has tokens both before and after the first `n_prompt`.
    """
    starts, ends = _word_edges(text)
    groups: list[list[int]] = []
    last = -1  # the last word of the group before
    for i, (start, end) in enumerate(spans):
        first_word, end_word = bisect_right(ends, start), bisect_left(starts, end)
        if start < end and first_word < end_word:
            if first_word == last and i != n_prompt:
                groups[-1].append(i)
            else:
                groups.append([i])
            last = end_word - 1
        else:
            groups.append([i])
            last = -1
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


def _word_edges(text: str) -> tuple[list[int], list[int]]:
    """Where the words of a text start, and where they end."""
    starts, ends = [], []
    at = 0
    for word in batch.words(text):
        at = text.index(word, at)
        starts.append(at)
        at += len(word)
        ends.append(at)
    return starts, ends
