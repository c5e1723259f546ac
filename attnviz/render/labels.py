"""Tokens as labels: what cannot be seen gets a visible sign, what is long loses its middle."""

from __future__ import annotations

import unicodedata

SIGNS = {" ": "␣", "\t": "⇥", "\n": "↵"}

JOINERS = "\u200c\u200d"  # they shape letters and emoji: kept where they have a neighbour


def label(token: str, longest: int) -> str:
    """`token` as it is, in at most `longest` columns (a wide character takes two).

    Spaces, tabs and newlines get a sign; other characters that leave no mark (controls of any
    kind, rare spaces, lone surrogates) become `‹U+202E›`; a combining mark without a letter gets a
    dotted circle.
    """
    shown = visible(token)
    if _columns(shown) <= longest:
        return shown
    import regex

    clusters = regex.findall(r"\X", shown)
    head: list[str] = []
    tail: list[str] = []
    left, right, room = 0, len(clusters), longest - 1
    while left < right:
        side = head if _columns("".join(head)) <= _columns("".join(tail)) else tail
        cluster = clusters[left] if side is head else clusters[right - 1]
        if _columns("".join([*head, cluster, *tail])) > room:
            break
        side.append(cluster)
        left, right = (left + 1, right) if side is head else (left, right - 1)
    return "".join([*head, "…", *reversed(tail)])


def visible(text: str) -> str:
    """`text` with a sign for every character that leaves no mark of its own."""
    if text.isascii() and text.isprintable() and " " not in text:
        return text or "‹empty›"
    shown = [_sign(c, text) for c in text]
    if shown and unicodedata.category(text[0]) in ("Mn", "Me", "Mc"):
        shown.insert(0, "\u25cc")
    return "".join(shown) or "‹empty›"


def _sign(c: str, text: str) -> str:
    if c in SIGNS:
        return SIGNS[c]
    kind = unicodedata.category(c)
    if kind in ("Zs", "Zl", "Zp", "Cc", "Cs") or c == "\u034f":
        return f"‹U+{ord(c):04X}›"
    if kind == "Cf" and not (c in JOINERS and len(text) > 1) and not 0xE0000 <= ord(c) < 0xE0080:
        return f"‹U+{ord(c):04X}›"
    return c


def is_upright(text: str) -> bool:
    """Whether `text` is one wide character, which reads upright in a turned line as well."""
    if unicodedata.east_asian_width(text[0]) not in "WF":
        return False
    import regex

    return regex.fullmatch(r"\X", text) is not None


def prose(text: str, longest: int) -> str:
    """A name that somebody else chose, made fit for a sentence: its spaces stay spaces."""
    return " ".join(label(word, longest) for word in text.split(" ") if word)


def _columns(text: str) -> int:
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.combining(c) else 1
        for c in text
    )
