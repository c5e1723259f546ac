"""Tokens as they can be shown: one line, nothing invisible, nothing that a terminal would obey.

A token is whatever a stranger's text or tokenizer made: a space, half a character, an escape
sequence, a control that turns the reading direction. `visible` shows each as what it is.
"""

from __future__ import annotations

import re
import unicodedata

SIGNS = {" ": "␣", "\t": "⇥", "\n": "↵", "\r": "␍", "\x7f": "␡"}
"""White space and DEL as one visible sign each; other ASCII controls have a picture at U+2400."""

ASCII_SIGNS = {" ": "<SP>", "\t": "<TAB>", "\n": "<LF>", "\r": "<CR>"}

JOINERS = "\u200c\u200d"
"""Zero-width non-joiner and joiner: they shape Persian words and emoji, and are nothing alone."""

CARRIER = "◌"
"""What a combining mark stands on where the token gives it nothing to stand on."""

LONGEST_STACK = 16
"""Marks and joiners on one character; the rest of a taller heap is spelled out."""

# Letters and symbols that are drawn as nothing: Hangul and Khmer fillers, an empty Braille cell.
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u034f\u17b4\u17b5\u2800\U0001d159")
# Format characters that are drawn: signs before numbers in Arabic, Syriac and Kaithi.
_DRAWN_FORMATS = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2")
_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{2,6}\U000e007f")


def visible(token: str, ascii_only: bool = False) -> str:
    """`token` in one line of printable characters that has something to see.

    White space and ASCII controls become signs (`␣ ⇥ ↵ ␛`); other controls, bidirectional and
    other format characters, blanks, lone surrogates, private and unassigned characters become
    `<U+202E>`. A combining mark with nothing to stand on stands on `◌`. With `ascii_only`,
    everything outside ASCII is `<U+732B>`, and white space `<SP> <TAB> <LF> <CR>`. The empty
    token is the empty string. The result has no more than eight characters for each one given.
    """
    if ascii_only:
        return "".join(map(_ascii_sign, token))
    shown: list[str] = []
    flags = {i for m in _FLAG.finditer(token) for i in range(m.start() + 1, m.end())}
    stack = 0  # marks and joiners since the last character that stands by itself
    stands = False  # whether the character before can carry a mark
    for i, c in enumerate(token):
        kind = unicodedata.category(c)
        if c in JOINERS:
            after = token[i + 1 : i + 2]
            if stands and _stands(after) and stack < LONGEST_STACK:
                shown.append(c)
                stack += 1
            else:
                shown.append(_spelled(c))
                stands = False
        elif i in flags:
            shown.append(c)
        elif kind[0] == "M" and c not in _BLANK:
            if not stands:
                shown.append(CARRIER)
                stands, stack = True, 0
            stack += 1
            shown.append(c if stack <= LONGEST_STACK else _spelled(c))
        elif _stands(c):
            shown.append(c)
            if not (i and token[i - 1] in JOINERS):
                stack = 0
            stands = True
        else:
            shown.append(_sign(c))
            stands, stack = False, 0
    return "".join(shown)


def _stands(c: str) -> bool:
    """Whether `c` is drawn as itself and by itself."""
    if not c or c in _BLANK:
        return False
    return unicodedata.category(c)[0] in "LNPS" or c in _DRAWN_FORMATS


def _sign(c: str) -> str:
    if c in SIGNS:
        return SIGNS[c]
    return chr(0x2400 + ord(c)) if c < " " else _spelled(c)


def _ascii_sign(c: str) -> str:
    return c if "!" <= c <= "~" else ASCII_SIGNS.get(c) or _spelled(c)


def _spelled(c: str) -> str:
    return f"<U+{ord(c):04X}>"


# ── width ────────────────────────────────────────────────────────────────────────────────────


def cells(text: str) -> int:
    """Columns that `text` takes in a terminal: 2 for a wide character, 0 for a combining mark."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def shorten(text: str, limit: int, ascii_only: bool = False) -> str:
    """`text` in at most `limit` columns: the middle gives way to an ellipsis, `…` or `..`.

    No user-perceived character is cut. Where the ellipsis would leave nothing of an end, the start
    alone is kept.
    """
    if cells(text) <= limit:
        return text
    ellipsis = ".." if ascii_only else "…"
    room = limit - len(ellipsis)
    if room < 2:
        return start(text, limit)
    head = start(text, room - room // 2)
    tail = start(text, room - cells(head), backwards=True)
    return f"{head}{ellipsis}{tail}" if head and tail else start(text, limit)


def fit(text: str, width: int, right: bool = False, ascii_only: bool = False) -> str:
    """`text` in exactly `width` columns: shortened, then padded on the right or (`right`) left."""
    text = shorten(text, width, ascii_only)
    space = " " * (width - cells(text))
    return space + text if right else text + space


def start(text: str, limit: int, backwards: bool = False) -> str:
    """As many whole characters of the start (or the end) as `limit` columns hold."""
    near = (limit + 1) * (2 * LONGEST_STACK + 2)  # what is further away cannot be reached
    whole = characters(text[-near:] if backwards else text[:near])
    taken: list[str] = []
    used = 0
    for c in reversed(whole) if backwards else whole:
        used += cells(c)
        if used > limit:
            break
        taken.append(c)
    return "".join(reversed(taken) if backwards else taken)


def characters(text: str) -> list[str]:
    """User-perceived characters (extended grapheme clusters, UAX #29)."""
    if text.isascii():
        return list(text)
    import regex

    return list(regex.findall(r"\X", text))


# ── notation ─────────────────────────────────────────────────────────────────────────────────

_NOTATION = {
    "→": "->",
    "ᵀ": "^T",
    "²": "^2",
    "×": "x",
    "·": "*",
    "′": "'",
    "Σ": "sum",
    "−": "-",
    "–": "-",
    "—": "-",
    "…": "...",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "≈": "~",
    "∞": "inf",
    "’": "'",
    "±": "+-",
}


def signed(value: float, digits: int = 3) -> str:
    """`+0.12`, `−0.12` or `0`, with so many digits."""
    if not value:
        return "0"
    return f"{'−' if value < 0 else '+'}{abs(value):.{digits}g}"


def notation(text: str, ascii_only: bool) -> str:
    """Our own words and formulas, spelled in ASCII where the terminal has no more.

    `√d_k` becomes `sqrt(d_k)`, `kᵀ` `k^T`, `→` `->`, `×` `x`, `H·d_k` `H*d_k`; a character that has
    no spelling becomes `<U+03B1>`.
    """
    if not ascii_only or text.isascii():
        return text
    text = re.sub(r"√(\w+)", r"sqrt(\1)", text).replace("√", "sqrt")
    return "".join(_NOTATION.get(c) or (c if c.isascii() else _spelled(c)) for c in text)


def visible_text(text: str) -> str:
    """A text on one line, each of its words safe to print; its spaces stay spaces."""
    return " ".join(visible(word) for word in text.split(" "))
