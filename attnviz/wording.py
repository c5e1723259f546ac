"""Counted nouns, for every message, report and title."""

from __future__ import annotations


def plural(n: int, noun: str, many: str = "") -> str:
    """`1 head`, `3 queries`, `2,000 documents`; `many` is for what grammar does not tell."""
    return f"{n:,} {noun_for(n, noun, many)}"


def noun_for(n: int, noun: str, many: str = "") -> str:
    """`noun` as it stands after the number `n`: `layer`, `layers`."""
    if n == 1:
        return noun
    if noun.endswith("y") and noun[-2:-1] not in "aeiou":
        return many or f"{noun[:-1]}ies"
    return many or f"{noun}{'es' if noun.endswith('x') else 's'}"
