"""Texts as a model's own tokenizer cuts them, padded into one rectangle of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable
from attnviz.tokens import PAD, Batch, Text, Tokens, positions_of, real_places

Spans = tuple[tuple[int, int], ...]
"""For each token, the characters (start, end) of its text that it stands for; (0, 0) for none."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """Token sequences of a model, not padded yet.

    For each text: `ids`, the tokens as the tokenizer writes them (`raw`: `Ġworld`, `##ing`), the
    `spans` of the text that they stand for, whether they are `special`, their segment (`types`).
    `words` is the word of each token, -1 for none, where the text came in words, else (). `n_cut`
    counts the texts that were cut.
    """

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    raw: tuple[Tokens, ...]
    spans: tuple[Spans, ...]
    special: tuple[tuple[bool, ...], ...]
    types: tuple[tuple[int, ...], ...]
    pad_id: int
    pad_side: str
    words: tuple[tuple[int, ...], ...] = ()
    n_cut: int = 0

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """`[B]`: tokens of each text."""
        return np.array([len(ids) for ids in self.ids], dtype=np.int64)

    @property
    def width(self) -> int:
        """T: the length that all are padded to."""
        return int(self.lengths.max())

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """`[B T]`: True on tokens, False on padding."""
        places = positions_of(self.lengths, self.width, self.pad_side)
        return real_places(places, self.lengths)

    def padded(self, rows: Sequence[Sequence[int]], fill: int) -> npt.NDArray[np.int64]:
        """`[B T]`: `rows` with `fill` where there is no token."""
        whole = np.full((len(rows), self.width), fill, dtype=np.int64)
        whole[self.valid] = [value for row in rows for value in row]
        return whole

    def batch(self, tokens: Sequence[Tokens]) -> Batch:
        """The ids with the tokens that are shown for them."""
        ids = self.padded(self.ids, self.pad_id)
        return Batch(tuple(tokens), ids, self.lengths, self.pad_side, (PAD,))


def encode(
    tokenizer: Any,
    texts: Sequence[Text],
    max_len: int | None = None,
    pad_side: str | None = None,
) -> tuple[Encoded, list[str]]:
    """Cut `texts` with a transformers tokenizer, its special tokens included; and notes.

    A list of tokens is taken as words, each of which the tokenizer may cut further. `max_len` cuts
    what is longer, as the tokenizer does it (its last special token stays). `pad_side` is the
    tokenizer's own when left out.
    """
    notes: list[str] = []
    cuts = [_encode(tokenizer, text, None) for text in texts]
    for i, cut in enumerate(cuts):
        had = len(cut["input_ids"])
        if max_len is not None and had > max_len:
            cuts[i] = _encode(tokenizer, texts[i], max_len)
            left = len(cuts[i]["input_ids"])
            notes.append(f"sequence {i} was cut from {had:,} to {left:,} tokens")
    if not any(cut["input_ids"] for cut in cuts):
        raise InputError("there are no tokens: every text is empty; give a text")
    ids = [tuple(cut["input_ids"]) for cut in cuts]
    known = special_ids(tokenizer)
    pad_id = tokenizer.pad_token_id
    made = Encoded(
        texts=tuple(text if isinstance(text, str) else " ".join(text) for text in texts),
        ids=tuple(ids),
        raw=tuple(tuple(map(str, tokenizer.convert_ids_to_tokens(list(row)))) for row in ids),
        spans=tuple(_spans(cut, text) for cut, text in zip(cuts, texts, strict=True)),
        special=tuple(tuple(number in known for number in row) for row in ids),
        types=tuple(
            tuple(cut.get("token_type_ids") or [0] * len(row))
            for cut, row in zip(cuts, ids, strict=True)
        ),
        pad_id=0 if pad_id is None else int(pad_id),
        pad_side=str(pad_side or tokenizer.padding_side),
        words=tuple(_words(cut, text) for cut, text in zip(cuts, texts, strict=True)),
        n_cut=len(notes),
    )
    return made, notes


def _encode(tokenizer: Any, text: Text, max_len: int | None) -> Any:
    whole = text if isinstance(text, str) else " ".join(text)
    if any("\ud800" <= character <= "\udfff" for character in whole):
        raise InputError(
            f"{printable(whole, 40)}: half a character stands there (bytes that are not UTF-8, "
            "say), and a model's tokenizer takes text alone"
        )
    options: dict[str, Any] = {"return_offsets_mapping": True} if tokenizer.is_fast else {}
    if max_len is not None:
        options |= {"truncation": True, "max_length": max_len}
    if not isinstance(text, str):
        options["is_split_into_words"] = True
    try:
        return tokenizer(text if isinstance(text, str) else list(text), verbose=False, **options)
    except Exception as error:  # tokenizers raise what they like
        raise InputError(f"the model's tokenizer fails: {printable(error)}") from None


def _words(cut: Any, text: Text) -> tuple[int, ...]:
    """The word of each token, -1 for none; () where the text came in one piece."""
    if isinstance(text, str) or not getattr(cut, "is_fast", False):
        return ()
    return tuple(-1 if word is None else word for word in cut.word_ids())


def _spans(cut: Any, text: Text) -> Spans:
    """The characters of the text that each token stands for. Those of words count in each word."""
    spans = tuple(map(tuple, cut.get("offset_mapping") or [(0, 0)] * len(cut["input_ids"])))
    words = _words(cut, text)
    if not words:
        return spans
    starts = list(accumulate((len(word) + 1 for word in text), initial=0))
    return tuple(
        (0, 0) if word < 0 else (starts[word] + start, starts[word] + end)
        for word, (start, end) in zip(words, spans, strict=True)
    )


def joined(parts: Sequence[Encoded], pad_side: str) -> Encoded:
    """The texts of several as one batch."""
    names = ("texts", "ids", "raw", "spans", "special", "types")
    rows: dict[str, Any] = {
        name: tuple(row for part in parts for row in getattr(part, name)) for name in names
    }
    return Encoded(**rows, pad_id=parts[0].pad_id, pad_side=pad_side)


def special_ids(tokenizer: Any) -> set[int]:
    """Ids of tokens that stand for no text: `[CLS]`, `</s>`; not those of words, unknown or masked.

    GPT-2 calls its `<|endoftext|>` its unknown word as well; it stays one that ends a text.
    """
    words = {tokenizer.unk_token_id, tokenizer.mask_token_id}
    edges = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id}
    edges |= {tokenizer.sep_token_id, tokenizer.pad_token_id}
    return set(tokenizer.all_special_ids) - (words - edges)


def shifted_right(encoded: Encoded, start: int, end: int | None, raw_start: str) -> Encoded:
    """What a decoder reads while it writes these texts: a start token first, no end token last."""

    def shift(rows: Sequence[Sequence[Any]], first: Any) -> tuple[Any, ...]:
        return tuple(
            (first, *(row[:-1] if ids and ids[-1] == end else row))
            for row, ids in zip(rows, encoded.ids, strict=True)
        )

    return replace(
        encoded,
        ids=shift(encoded.ids, start),
        raw=shift(encoded.raw, raw_start),
        spans=shift(encoded.spans, (0, 0)),
        special=shift(encoded.special, True),
        types=shift(encoded.types, 0),
        words=(),
    )
