"""Which query of a sequence a person means by a number or by a token's text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import numpy as np

from attnviz.errors import InputError, printable
from attnviz.result import Attention
from attnviz.wording import plural

LISTED = 8
"""Tokens that an error message lists."""


def find_query(result: Attention, sequence: int, text: str) -> int:
    """The place in the padded batch of the query that a person means by `text`.

    An integer is an index into the sequence's own tokens, from the end where negative. Anything
    else is a token's text, the first one that equals it; `cat#2` is the second `cat`, and `3#1`
    the first token with the text `3`. Raises `InputError` that lists candidates.
    """
    tokens = result.query_tokens[sequence]
    length = int(result.lengths[sequence])
    start = int(np.argmax(result.query_valid[sequence])) if length else 0
    if re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        index = int(text)
        if -length <= index < length:
            return start + index % length
        if text not in tokens:
            has = plural(length, "token")
            places = f", 0 to {length - 1} or -{length} to -1" if length else ""
            raise InputError(f"query {text}: sequence {sequence} has {has}{places}")
    if text in tokens:
        return tokens.index(text)
    numbered = re.fullmatch(r"(.+)#([0-9]{1,9})", text, re.DOTALL)
    if numbered and numbered[1] in tokens:
        places_of = [i for i, token in enumerate(tokens) if token == numbered[1]]
        nth = int(numbered[2])
        if 1 <= nth <= len(places_of):
            return places_of[nth - 1]
        times = "once" if len(places_of) == 1 else f"{len(places_of)} times"
        known = ", ".join(f"#{n}" for n in range(1, min(len(places_of), LISTED) + 1))
        raise InputError(
            f"query {printable(text)}: {printable(numbered[1])} stands {times} in sequence "
            f"{sequence}: {known}"
        )
    near = _near(text, tokens[start : start + length])
    raise InputError(f"query {printable(text)} is not a token of sequence {sequence}; {near}")


def _near(text: str, tokens: Sequence[str]) -> str:
    """The tokens most like `text` with their indices, or the first ones where none is like it."""
    if not tokens:
        return "it has none"
    folded: dict[str, list[int]] = {}
    for i, token in enumerate(tokens):
        folded.setdefault(token.casefold(), []).append(i)
    near = difflib.get_close_matches(text.casefold(), list(folded), n=LISTED, cutoff=0.5)
    places = [i for form in near for i in folded[form]] or list(range(len(tokens)))
    listed = ", ".join(f"{printable(tokens[i], 20)} ({i})" for i in places[:LISTED])
    more = f" and {len(places) - LISTED} more" if len(places) > LISTED else ""
    return f"{'near it' if near else 'its tokens'}: {listed}{more}"
