"""Subword tokens as text: marks, bytes, words; by hand and against real spellings."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz.pieces import (
    Pieces,
    Spelling,
    _byte_of,
    decoded,
    is_special,
    make_pieces,
    marked_pieces,
    spelled,
    spelling_of_vocabulary,
    word_groups,
)
from attnviz.tokens import words

SIGN_OF = {byte[0]: sign for sign, byte in _byte_of().items()}
"""The sign that byte-level BPE writes for each byte."""


def signs(text: str) -> str:
    """`text` as byte-level BPE spells it."""
    return "".join(SIGN_OF[byte] for byte in text.encode())


def test_the_alphabet_of_bytes_is_that_of_gpt2() -> None:
    """Radford et al. 2019, encoder.py: ! is itself, the space is Ġ, a line end is Ċ."""
    assert len(SIGN_OF) == 256
    assert len(set(SIGN_OF.values())) == 256
    assert signs(" a\n\té猫") == "ĠaĊĉÃ©çĮ«"


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (["[CLS]", "un", "##believ", "##able", "##", "[SEP]"], "[CLS] un believ able ## [SEP]"),
        (["▁the", "▁cat", "s", "</s>"], "the cat s </s>"),
        (["<s>", "▁", "<0xE7>", "<0x8C>", "<0xAB>", "!"], "<s>   猫[1/3] 猫[2/3] 猫[3/3] !"),
        (["photo", "graph</w>", "of</w>", "<|endoftext|>"], "photo graph of <|endoftext|>"),
        (["ĠðŁ", "¤", "Ĺ", "Ġhi", "Ċ"], "🤗[1/3] 🤗[2/3] 🤗[3/3] hi \n"),
        (["çĮ«", "åĿ", "Ĳ"], "猫 坐[1/2] 坐[2/2]"),
        (["Ġa", "Ã"], "a <0xC3>"),
        (["▁a", "###", "##b"], "a ### ##b"),  # the text's own signs, in SentencePiece
        (["a", "###", "##b"], "a # b"),
        (["çĮ«</w>", "hi</w>"], "猫 hi"),
        (["plain", "words", "Ġ"], "plain words  "),
        (["Ġesù", "Ġ"], "Ġesù Ġ"),  # Maltese: these bytes would make no UTF-8
        (["Żółw", "ma", "ĠŻ"], "Żółw ma ĠŻ"),  # signs of no byte
    ],
)
def test_tokens_are_read_by_their_marks(raw: list[str], read: str) -> None:
    [(tokens, pieces)] = marked_pieces([raw])
    assert " ".join(tokens) == read
    assert pieces.raw == tuple(raw)


def test_the_spelling_of_a_vocabulary() -> None:
    assert spelling_of_vocabulary({"the": 0, "##s": 1, "##t": 2, "Ġ": 3}) == Spelling("##")
    assert spelling_of_vocabulary({"▁the": 0, "s": 1, "##t": 2, "▁": 3}) == Spelling("▁")
    assert spelling_of_vocabulary({"Ġthe": 0, "Ġ": 1, "##t": 2, "Ġa": 3}) == Spelling("", True)
    assert spelling_of_vocabulary({"the</w>": 0, "Ġ": 1, "a</w>": 2}) == Spelling("</w>", True)
    assert spelling_of_vocabulary({"the": 0, "cat": 1}) == Spelling()


def test_a_row_without_marks_among_others_is_spelled_like_these() -> None:
    found = marked_pieces([["the", "the"], ["cat", "##s"]])
    assert [pieces.words for _, pieces in found] == [(("the", 1), ("the", 1)), (("cats", 2),)]


def test_without_marks_each_token_is_a_word() -> None:
    [(tokens, pieces)] = marked_pieces([["The", "cat", "[SEP]", "猫"]])
    assert tokens == pieces.raw == ("The", "cat", "[SEP]", "猫")
    assert pieces.words == (("The", 1), ("cat", 1), ("[SEP]", 1), ("猫", 1))
    assert pieces.special == (False, False, True, False)


@pytest.mark.parametrize(
    ("token", "special"),
    [
        *(
            (token, True)
            for token in ["[CLS]", "[SEP]", "<s>", "</s>", "<eos>", "<|im_start|>", "[REG3]"]
        ),
        ("<start_of_turn>", True),
        *(
            (token, False)
            for token in ["[UNK]", "[MASK]", "[PAD]", "<unk>", "<b>", "<script>", "CLS", "<||>"]
        ),
    ],
)
def test_what_is_spelled_like_a_special_token(token: str, special: bool) -> None:
    assert is_special(token) == special


def test_words_of_pieces() -> None:
    raw = ["[CLS]", "un", "##believ", "##able", "didn", "'", "t", "work", "##s", ".", "[SEP]"]
    text = "Unbelievable didn't works."
    spans = ((0, 0), (0, 2), (2, 8), (8, 12), (13, 17), (17, 18), (18, 19), (20, 24), (24, 25))
    spans = (*spans, (25, 26), (0, 0))
    special = [token.startswith("[") for token in raw]
    found = make_pieces([token.removeprefix("##") for token in raw], raw, special, text, spans)
    assert found.words == (
        ("[CLS]", 1),
        ("Unbelievable", 3),
        ("didn't", 3),
        ("works", 2),
        (".", 1),
        ("[SEP]", 1),
    )
    # by their marks alone it is not known that no space stands around the apostrophe
    [(_, marked)] = marked_pieces([raw])
    assert [word for word, _ in marked.words] == (
        ["[CLS]", "unbelievable", "didn", "'", "t", "works", ".", "[SEP]"]
    )


def test_han_characters_are_words_and_their_bytes_are_joined() -> None:
    raw = [signs("猫坐")[:4], signs("猫坐")[4:], signs("在"), signs(" cats")]
    [(tokens, pieces)] = marked_pieces([raw])
    assert tokens == ("猫坐[1/2]", "坐[2/2]", "在", "cats")
    assert pieces.words == (("猫坐", 2), ("在", 1), ("cats", 1))  # 坐 joins what it is in


def test_a_word_ends_where_an_answer_begins() -> None:
    raw = ["▁un", "believ", "able", "▁cat", "s"]
    [(_, whole)] = marked_pieces([raw])
    [(_, cut)] = marked_pieces([raw], [2])
    assert whole.words == (("unbelievable", 3), ("cats", 2))
    assert cut.words == (("unbeliev", 2), ("able", 1), ("cats", 2))


def test_special_tokens_in_a_text_are_no_part_of_its_words() -> None:
    raw, special = ["a", "<|sep|>", "b"], [False, True, False]
    found = make_pieces(raw, raw, special, "a<|sep|>b", ((0, 1), (1, 8), (8, 9)))
    assert found.words == (("a", 1), ("<|sep|>", 1), ("b", 1))


@given(st.data())
def test_bytes_cut_anywhere_spell_the_text_again(data: st.DataObject) -> None:
    text = data.draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
    whole = signs(text)
    cuts = data.draw(st.sets(st.integers(1, max(1, len(whole) - 1)), max_size=8))
    edges = [0, *sorted(cut for cut in cuts if cut < len(whole)), len(whole)]
    raw = [whole[start:end] for start, end in itertools.pairwise(edges)]
    special = [False] * len(raw)
    again, spans = spelled(raw, special, Spelling("", True))
    assert again == text
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(a <= c and b <= d for (a, b), (c, d) in itertools.pairwise(spans))
    assert len(decoded(raw, special, Spelling("", True))) == len(raw)


@given(st.data())
def test_words_of_pieces_are_those_of_the_text(data: st.DataObject) -> None:
    """Cut inside words alone, pieces join to the words of `batch.words`, in order."""
    text = " ".join(data.draw(st.lists(st.text("ab猫é'.", min_size=1, max_size=6), max_size=6)))
    spans, names = [], []
    at = 0
    for word in words(text):
        at = text.index(word, at)
        cut = data.draw(st.integers(1, len(word)))
        spans += [(at, at + cut)] + [(at + cut, at + len(word))] * (cut < len(word))
        names.append(word)
        at += len(word)
    groups = word_groups(text, tuple(spans))
    assert [i for group in groups for i in group] == list(range(len(spans)))
    assert [text[spans[g[0]][0] : spans[g[-1]][1]] for g in groups] == names


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=9))
def test_groups_are_a_partition_in_order_whatever_the_spans(raw: list[tuple[int, int]]) -> None:
    spans = tuple((start, start + length) for start, length in raw)
    groups = word_groups("ab c'd 猫坐. e", spans)
    assert [i for group in groups for i in group] == list(range(len(spans)))
    assert all(groups)


PIECES = Pieces(("un", "##do", "[SEP]"), (False, False, True), (("undo", 2), ("[SEP]", 1)))


def test_saved_and_read_back() -> None:
    assert PIECES.as_json() == {
        "raw": ["un", "##do", "[SEP]"],
        "special": [2],
        "words": [["undo", 2], ["[SEP]", 1]],
    }
    assert Pieces.from_json(PIECES.as_json()) == PIECES


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {},
        PIECES.as_json() | {"raw": ["un", 3, "x"]},
        PIECES.as_json() | {"words": [["undo", 3], ["[SEP]", 0]]},
        PIECES.as_json() | {"words": [["undo", 2]]},
        PIECES.as_json() | {"words": [["undo", 2, 1], ["[SEP]", 1]]},
        PIECES.as_json() | {"words": [["undo", True], ["x", 1], ["[SEP]", 1]]},
        PIECES.as_json() | {"special": [[]]},
        PIECES.as_json() | {"raw": ["un", "\ud800", "[SEP]"]},
        PIECES.as_json() | {"special": ["2"]},
    ],
)
def test_what_is_not_pieces_is_refused(found: object) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Pieces.from_json(found)
