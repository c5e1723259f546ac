"""Tokens as they are shown: visible, on one line, of a known width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.render.visible import (
    CARRIER,
    JOINERS,
    LONGEST_STACK,
    cells,
    characters,
    fit,
    notation,
    shorten,
    start,
    visible,
)

ENGLAND = "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"
FAMILY = "👨\u200d👩\u200d👧"

HOSTILE = st.lists(
    st.one_of(
        st.characters(),
        st.sampled_from(
            [*" \t\n\r\x1b\u202e\u2066\u200b\u200c\u200d\u0301\ufe0f\u3164\ue000", "👩"]
        ),
        st.sampled_from([ENGLAND, FAMILY, "e\u0301", "\x1b[31m", "<U+202E>", "[/red]", "क्षि"]),
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("cat", "cat"),
        ("", ""),
        (" ", "␣"),
        ("a b", "a␣b"),
        ("\t\n\r", "⇥↵␍"),
        ("\x1b[31mred\x07\x00\x7f", "␛[31mred␇␀␡"),
        ("\x85", "<U+0085>"),
        ("\u202eabc", "<U+202E>abc"),
        ("\u2066a\u2069", "<U+2066>a<U+2069>"),
        ("\u200b", "<U+200B>"),
        ("\ufeff", "<U+FEFF>"),
        ("\u00ad", "<U+00AD>"),
        ("\u00a0\u3000", "<U+00A0><U+3000>"),
        ("\u2028\u2029", "<U+2028><U+2029>"),
        ("\ud83d", "<U+D83D>"),
        ("\ue000\U0010ffff", "<U+E000><U+10FFFF>"),
        ("\u3164\u2800\u034f", "<U+3164><U+2800><U+034F>"),
        ("[/red] $x$ \\n <script>", "[/red]␣$x$␣\\n␣<script>"),
        ("Ġthe ▁cat", "Ġthe␣▁cat"),
        ("<0xE7>", "<0xE7>"),
        ("猫", "猫"),
        ("e\u0301", "e\u0301"),
        ("\u0301", f"{CARRIER}\u0301"),
        ("\ufe0f", f"{CARRIER}\ufe0f"),
        (" \u0301", f"␣{CARRIER}\u0301"),
        ("ि", f"{CARRIER}ि"),
        ("नमस्ते", "नमस्ते"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\u0601١٢", "\u0601١٢"),
        (FAMILY, FAMILY),
        ("❤\ufe0f", "❤\ufe0f"),
        ("👍🏽", "👍🏽"),
        (ENGLAND, ENGLAND),
        (ENGLAND[:-1], "\U0001f3f4" + "".join(f"<U+{ord(c):04X}>" for c in ENGLAND[1:-1])),
        ("\u200d", "<U+200D>"),
        ("a\u200d", "a<U+200D>"),
        ("a\u200d\u200db", "a<U+200D><U+200D>b"),
        ("\u200ca", "<U+200C>a"),
    ],
)
def test_each_kind_of_character(token: str, shown: str) -> None:
    assert visible(token) == shown


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("cat", "cat"),
        (" \t\n\r\x1b", "<SP><TAB><LF><CR><U+001B>"),
        ("猫é", "<U+732B><U+00E9>"),
        ("\x7f\U0001f600\ud800", "<U+007F><U+1F600><U+D800>"),
    ],
)
def test_ascii(token: str, shown: str) -> None:
    assert visible(token, ascii_only=True) == shown


def test_a_heap_of_marks_and_a_chain_of_joiners_end() -> None:
    marks = visible("a" + "\u0301" * (LONGEST_STACK + 3))
    assert marks == "a" + "\u0301" * LONGEST_STACK + "<U+0301>" * 3
    chain = visible("\u200d".join("👩" * (LONGEST_STACK + 2)))
    assert chain.count("\u200d") == LONGEST_STACK
    assert "<U+200D>" in chain


@given(HOSTILE)
def test_what_is_shown_is_safe_and_seen(token: str) -> None:
    shown = visible(token)
    joined = set(JOINERS) | set(ENGLAND) | set("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f")
    assert all(c.isprintable() or c in joined for c in shown)
    assert " " not in shown
    assert bool(shown) == bool(token)
    assert not token or cells(shown) > 0
    assert len(shown) <= 8 * len(token) + 2
    assert visible(shown) == shown


@given(HOSTILE)
def test_ascii_is_ascii(token: str) -> None:
    shown = visible(token, ascii_only=True)
    assert all("!" <= c <= "~" for c in shown)
    assert bool(shown) == bool(token)


@given(HOSTILE, st.integers(0, 30), st.booleans())
def test_shortening_keeps_whole_characters_of_both_ends(
    token: str, limit: int, ascii_only: bool
) -> None:
    shown = visible(token, ascii_only)
    short = shorten(shown, limit, ascii_only)
    assert cells(short) <= limit
    if cells(shown) <= limit:
        assert short == shown
        return
    ellipsis = ".." if ascii_only else "…"
    whole = characters(shown)
    heads = ["".join(whole[:i]) for i in range(len(whole) + 1)]
    tails = ["".join(whole[i:]) for i in range(len(whole))]
    both = any(short == head + ellipsis + tail for head in heads for tail in tails)
    assert short in heads or both
    assert not ascii_only or short.isascii()


@pytest.mark.parametrize(
    ("text", "limit", "short"),
    [
        ("incomprehensible", 16, "incomprehensible"),
        ("incomprehensible", 9, "inco…ible"),
        ("incomprehensible", 8, "inco…ble"),
        ("incomprehensible", 3, "i…e"),
        ("incomprehensible", 2, "in"),
        ("incomprehensible", 0, ""),
        ("猫坐在垫子上", 7, "猫…子上"),
        ("猫坐在垫子上", 5, "猫…上"),
        ("猫坐在垫子上", 3, "猫"),
        ("猫", 1, ""),
    ],
)
def test_shortening(text: str, limit: int, short: str) -> None:
    assert shorten(text, limit) == short


def test_shortening_in_ascii_and_of_a_huge_token() -> None:
    assert shorten("incomprehensible", 8, ascii_only=True) == "inc..ble"
    assert shorten("é" * 10**6, 9) == "éééé…éééé"


@given(HOSTILE, st.integers(0, 20), st.booleans())
def test_fitting_is_exact(token: str, width: int, right: bool) -> None:
    assert cells(fit(visible(token), width, right)) == width


def test_fitting_aligns() -> None:
    assert fit("ab", 4) == "ab  "
    assert fit("ab", 4, right=True) == "  ab"
    assert fit("猫坐在", 5) == "猫…在"
    assert fit("猫坐在", 3, right=True) == " 猫"
    assert fit("猫坐在", 3) == "猫 "


def test_width_counts_wide_and_zero_width_characters() -> None:
    assert [cells(t) for t in ("cat", "猫", "e\u0301", FAMILY, "␣", "")] == [3, 2, 1, 2, 1, 0]


def test_the_start_of_a_text() -> None:
    assert start("abc", 2) == "ab"
    assert start("猫b", 2) == "猫"
    assert start("e\u0301x", 1) == "e\u0301"


@pytest.mark.parametrize(
    ("words", "spelled"),
    [
        ("divided by √d_k", "divided by sqrt(d_k)"),
        ("q · kᵀ", "q * k^T"),
        ("2×8 → H·d_k ≤ T²", "2x8 -> H*d_k <= T^2"),
        ("α √", "<U+03B1> sqrt"),
        ("plain", "plain"),
    ],
)
def test_notation(words: str, spelled: str) -> None:
    assert notation(words, ascii_only=True) == spelled
    assert notation(words, ascii_only=False) == words
