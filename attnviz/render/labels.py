"""Tokens as labels of a picture: short, and made of signs that fonts have."""

from __future__ import annotations

import unicodedata

from attnviz.render.visible import characters, shorten, visible

# Few fonts have Unicode's pictures of controls: those but ␣ ⇥ ↵ are spelled out, <U+001B>.
_SPELLED = {0x2400 + c: f"<U+{c:04X}>" for c in range(0x20)} | {0x2421: "<U+007F>"}


def label(token: str, longest: int) -> str:
    """`token` with signs for what cannot be seen, in at most `longest` columns of a terminal."""
    return shorten(visible(token).translate(_SPELLED) or "<empty>", longest)


def prose(text: str, longest: int) -> str:
    """A name that somebody else chose, made fit for a sentence: its spaces stay spaces."""
    return " ".join(label(word, longest) for word in text.split(" ") if word)


def is_upright(text: str) -> bool:
    """Whether `text` is one wide character, which stays upright where other labels are turned."""
    return unicodedata.east_asian_width(text[0]) in "WF" and len(characters(text)) == 1
