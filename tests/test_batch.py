"""Text of any script and any file becomes tokens, ids and padding; bad input gives one line."""

from __future__ import annotations

import io
import json
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnviz import tokens as batch
from attnviz.errors import InputError
from attnviz.tokens import (
    SPECIAL_TOKENS,
    Texts,
    byte_values,
    chars,
    cut,
    make_batch,
    make_vocabulary,
    read_path,
    read_stream,
    texts_of_arguments,
    words,
)

FAMILY = "👩\u200d👩\u200d👧\u200d👦"


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    message = str(error.value)
    assert message.isprintable()
    return message


# ── tokenizers ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("The cat sat.", "The|cat|sat|."),
        ("didn't, l’homme; rock 'n' roll", "didn't|,|l’homme|;|rock|'|n|'|roll"),
        ("3.14 1,000.5 v2 x² ½ 5% -7 1.", "3.14|1,000.5|v2|x²|½|5|%|-|7|1|."),
        ("a.b a,b snake_case foo-bar", "a|.|b|a|,|b|snake_case|foo|-|bar"),
        ("$$ ($5 and $6)", "$|$|(|$|5|and|$|6|)"),
        ("col·lecció naïve Straße", "col·lecció|naïve|Straße"),
        ("猫 日本語。", "猫|日|本|語|。"),
        ("ひらがな カード 々", "ひ|ら|が|な|カ|ー|ド|々"),
        ("か\u3099 ｶﾞ 葛\U000e0100", "か\u3099|ｶﾞ|葛\U000e0100"),
        ("한국 Seoul시", "한|국|Seoul|시"),
        ("مرحبا بالعالم ٣٫١٤", "مرحبا|بالعالم|٣٫١٤"),
        ('צה"ל ג׳ירפה שָׁלוֹם "שלום"', 'צה"ל|ג׳ירפה|שָׁלוֹם|"|שלום|"'),
        ("नमस्ते दुनिया।", "नमस्ते|दुनिया|।"),
        ("ภาษาไทย\u200bดี", "ภาษาไทย|ดี"),
        (f"{FAMILY}ok👍🏽 🇩🇪🇫🇷 1️⃣", f"{FAMILY}|ok|👍🏽|🇩🇪|🇫🇷|1️⃣"),
        (unicodedata.normalize("NFD", "Việt ở é"), unicodedata.normalize("NFD", "Việt|ở|é")),
        ("co\u00adop می\u200cروم", "co\u00adop|می\u200cروم"),
        ("a\tb\u00a0c\u3000d\r\ne", "a|b|c|d|e"),
        ("[CLS] hi [SEP]there[MASK] <pad>", "[CLS]|hi|[SEP]|there|[MASK]|<pad>"),
        ("[cls] [SEP", "[|cls|]|[|SEP"),
        ("\x1b[31m", "\x1b|[|31m"),
        ("</script>", "<|/|script|>"),
        ("C:\\temp\\x.txt", "C|:|\\|temp|\\|x|.|txt"),
        ("", ""),
        (" \u200b\ufeff ", ""),
    ],
)
def test_words(text: str, tokens: str) -> None:
    assert words(text) == [token for token in tokens.split("|") if token]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("ab c", ["a", "b", " ", "c"]),
        (f"e\u0301{FAMILY}", ["e\u0301", FAMILY]),
        ("क्षि한\r\n🇩🇪", ["क्षि", "한", "\r\n", "🇩🇪"]),
        ("[SEP]x", ["[SEP]", "x"]),
    ],
)
def test_chars(text: str, tokens: list[str]) -> None:
    assert chars(text) == tokens


def test_bytes() -> None:
    assert byte_values("a ~é[SEP]\x7f") == [
        "a",
        "<0x20>",
        "~",
        "<0xC3>",
        "<0xA9>",
        "[SEP]",
        "<0x7F>",
    ]


TEXTS = st.text(st.characters(exclude_categories=["Cs"])).filter(
    lambda text: not any(special in text for special in (*SPECIAL_TOKENS, "<pad>"))
)


@given(TEXTS)
def test_bytes_go_back_to_the_text(text: str) -> None:
    values = [ord(t) if len(t) == 1 else int(t[3:-1], 16) for t in byte_values(text)]
    assert bytes(values).decode() == text


@given(TEXTS)
def test_chars_join_to_the_text_and_words_to_what_is_seen_of_it(text: str) -> None:
    assert "".join(chars(text)) == text
    spaces = {"\u200b", "\ufeff"}
    seen = [c for c in text if c not in spaces and not c.isspace()]
    joined = [c for c in "".join(words(text)) if c not in spaces and not c.isspace()]
    assert joined == seen
    assert all(words(text))
    assert words(text) == words(text)


# ── reading ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Reading:
    """The tokens of what was read, and notes."""

    sequences: tuple[tuple[str, ...], ...]
    notices: tuple[str, ...] = ()


def reading_of(texts: Texts, tokenizer: str = "words") -> Reading:
    sequences, notes = cut(texts.queries, tokenizer)
    return Reading(sequences, (*texts.notes, *notes))


def from_texts(texts: list[str], tokenizer: str = "words") -> Reading:
    return reading_of(texts_of_arguments(texts), tokenizer)


def read(name: str | None, data: bytes | str, **flags: str) -> Reading:
    data = data.encode() if isinstance(data, str) else data
    tokenizer = flags.pop("tokenizer", "words")
    path = None if name is None else Path(name)
    return reading_of(read_stream(path, io.BytesIO(data), **flags), tokenizer)


def test_texts_stay_apart_and_an_empty_one_stays() -> None:
    assert from_texts(["the cat", "", "猫"]) == Reading((("the", "cat"), (), ("猫",)))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_lines_with_any_end_and_a_byte_order_mark(end: str, mark: bytes) -> None:
    text = end.join(["a b", "", "  \t", "c", ""])
    reading = read("t.txt", mark + text.encode())
    assert reading.sequences == (("a", "b"), ("c",))
    assert reading.notices == ("t.txt: 2 empty lines skipped",)


def test_one_empty_line_from_standard_input() -> None:
    assert read(None, "a\n\nb").notices == ("standard input: 1 empty line skipped",)
    assert read(None, "a\nb\n") == Reading((("a",), ("b",)))
    assert read(None, "") == Reading(())


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("utf-16", "utf-16"),
        ("UTF-16LE", "utf-16-le"),
        ("utf-8-sig", "utf-8-sig"),
        ("UTF8", "utf-8-sig"),
        ("gb18030", "gb18030"),
        ("shift_jis", "shift_jis"),
    ],
)
def test_other_encodings(encoding: str, written: str) -> None:
    reading = read("t.txt", "猫 is\r\n日本".encode(written), encoding=encoding)
    assert reading == Reading((("猫", "is"), ("日", "本")))


def test_json_forms() -> None:
    assert read("t.json", '["a b", "c"]').sequences == (("a b", "c"),)
    assert read("t.json", '[["a"], ["b", "c"], []]').sequences == (("a",), ("b", "c"), ())
    assert read("t.json", '{"tokens": ["a"]}').sequences == (("a",),)
    assert read("t.json", '"a b"').sequences == (("a", "b"),)
    assert read("t.JSON", '[{"text": "a b"}, "c d"]'.replace('"c d"', '["c d"]')).sequences == (
        ("a", "b"),
        ("c d",),
    )
    assert read("t.json", '\ufeff["\\u732b", "</script>", "a\\nb"]').sequences == (
        ("猫", "</script>", "a\nb"),
    )
    assert read("t.json", "[]").sequences == ((),)


def test_jsonl_forms() -> None:
    reading = read("t.jsonl", '["a", "b"]\r\n\r\n{"text": "c d", "id": 1e999}\n"e f"\n')
    assert reading.sequences == (("a", "b"), ("c", "d"), ("e", "f"))
    assert reading.notices == ("t.jsonl: 1 empty line skipped",)


def test_padding_written_by_hand_is_taken_off_the_ends() -> None:
    reading = from_texts(["<pad> <pad> the cat", "a [PAD] b [PAD]", "[PAD]"])
    assert reading.sequences == (("the", "cat"), ("a", "[PAD]", "b"), ())
    assert reading.notices == (
        "4 padding tokens at the ends of sequences taken off; --pad-to and --pad-side pad a batch",
    )
    assert read("t.json", '["<pad>", "x"]').notices == (
        "1 padding token at the ends of sequences taken off; --pad-to and --pad-side pad a batch",
    )


WRONG = [
    ("t.txt", b"ab\xe9", "t.txt is not utf-8: byte 2 is 0xE9; name its encoding with --encoding"),
    (
        "t.txt",
        b"\xef\xbb\xbfab\xe9",
        "t.txt is not utf-8: byte 5 is 0xE9; name its encoding with --encoding",
    ),
    (
        "t.txt",
        "hi".encode("utf-16"),
        "t.txt is not utf-8: byte 0 is 0xFF; it begins as UTF-16 does: --encoding utf-16",
    ),
    ("t.txt", b"\x7fELF\0", "t.txt is a binary file, not text: character 4 is NUL"),
    (
        None,
        b"\xff",
        "standard input is not utf-8: byte 0 is 0xFF; name its encoding with --encoding",
    ),
    ("t.json", b"[1, 2", "t.json is not JSON: Expecting ',' delimiter at line 1, column 6"),
    ("t.json", b"", "t.json is not JSON: Expecting value at line 1, column 1"),
    ("t.json", b"3", "t.json is 3; a list of tokens or a text is expected"),
    ("t.json", b"null", "t.json is null; a list of tokens or a text is expected"),
    ("t.json", b"[1e999]", "t.json, token 0 is Infinity; a non-empty string is expected"),
    ("t.json", b'["a", ""]', 't.json, token 1 is ""; a non-empty string is expected'),
    ("t.json", b'["a", true]', "t.json, token 1 is true; a non-empty string is expected"),
    (
        "t.json",
        b'[["a", ["b"]]]',
        "t.json, item 0, token 1 is a list; a non-empty string is expected",
    ),
    (
        "t.json",
        b'[["a", {}]]',
        "t.json, item 0, token 1 is an object; a non-empty string is expected",
    ),
    ("t.json", b'{"words": ["a"]}', 't.json has neither "tokens" nor "text"'),
    ("t.json", b'{"text": {}}', "t.json is an object; a list of tokens or a text is expected"),
    (
        "t.json",
        b'{"tokens": ["a"], "x\\n": 1, "x\\n": 2}',
        't.json is not JSON that can be read: the key "x\\n" stands twice in one object',
    ),
    (
        "t.json",
        b'["\\ud83d"]',
        "t.json, token 0 is not valid Unicode: character 0 is the lone surrogate U+D83D",
    ),
    (
        "t.json",
        b'{"text": "ab\\udfff"}',
        "t.json is not valid Unicode: character 2 is the lone surrogate U+DFFF",
    ),
    (
        "t.json",
        b"[" * 100_000,
        "t.json is JSON that nests too deep to be read",
    ),
    ("t.jsonl", b'["a"]\n\n[1]', "t.jsonl, line 3, token 0 is 1; a non-empty string is expected"),
    (
        "t.jsonl",
        b'["a"]\n["b"',
        "t.jsonl, line 2 is not JSON: Expecting ',' delimiter at line 1, column 5",
    ),
    (
        "\x1b]0;x.txt",
        b"\xff",
        "\\x1b]0;x.txt is not utf-8: byte 0 is 0xFF; name its encoding with --encoding",
    ),
]


@pytest.mark.parametrize(("name", "data", "message"), WRONG)
def test_files_that_cannot_be_read(name: str | None, data: bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(name, data)
    assert one_line(caught) == message


def test_a_number_of_thousands_of_digits() -> None:
    with pytest.raises(InputError) as caught:
        read("t.json", "[" + "9" * 5000 + "]")
    start = "t.json is not JSON that can be read: Exceeds the limit (4300 digits"  # as Python says
    assert one_line(caught).startswith(start)


@pytest.mark.parametrize(
    ("data", "encoding", "message"),
    [
        (b"a", "klingon", "--encoding klingon is unknown; utf-8, utf-16, cp1252 or gb18030, say"),
        (b"a", "hex", "--encoding hex is unknown; utf-8, utf-16, cp1252 or gb18030, say"),
        (b"a", "a\0", "t.txt is not a\\x00: embedded null character"),
        (
            b"ab\x81",
            "cp1252",
            "t.txt is not cp1252: byte 2 is 0x81; name its encoding with --encoding",
        ),
        (
            b"\xef\xbb\xbfab\x81",
            "utf-8-sig",
            "t.txt is not utf-8-sig: byte 5 is 0x81; name its encoding with --encoding",
        ),
        (
            b"\xff\xfea\0b",
            "utf-16",
            "t.txt is not utf-16: byte 4 is 0x62; it begins as UTF-16 does: --encoding utf-16",
        ),
    ],
)
def test_encodings_that_do_not_fit(data: bytes, encoding: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read("t.txt", data, encoding=encoding)
    assert one_line(caught) == message


def test_lone_surrogates_of_an_argument() -> None:
    with pytest.raises(InputError) as caught:
        from_texts(["ok", "caf\udce9"])
    assert one_line(caught) == (
        "the text is not valid Unicode: character 3 is the lone surrogate U+DCE9"
    )


def test_too_large_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "LARGEST_INPUT", 2**20)
    with pytest.raises(InputError) as caught:
        read("t.txt", b"a" * (2**20 + 5))
    assert one_line(caught) == "t.txt has over 1 MiB; give a part of it"
    assert read("t.txt", b"a " * 2**19).sequences == (("a",) * 2**19,)


def test_paths(here: Path) -> None:
    file = here / "日本 $x.txt"
    file.write_text("a b\n", encoding="utf-8")
    assert reading_of(read_path(file), "chars").sequences == (("a", " ", "b"),)
    expected = "a text, .json or .jsonl file is expected"
    for path, reason in [(here, "is a folder"), (here / "no", "no such file or directory")]:
        with pytest.raises(InputError) as caught:
            read_path(path)
        assert str(caught.value) == f"{path}: {reason}; {expected}"


# ── the batch ────────────────────────────────────────────────────────────────────────────────


def test_vocabulary_is_the_special_tokens_then_order_of_appearance() -> None:
    sequences = (("the", "cat", "[SEP]"), ("the", "dog", "[PAD]"))
    vocabulary = make_vocabulary(sequences)
    assert vocabulary == ("[PAD]", "[SEP]", "[CLS]", "[MASK]", "the", "cat", "dog")
    made = make_batch(sequences)
    assert made.vocabulary == vocabulary
    assert made.ids.tolist() == [[4, 5, 1], [4, 6, 0]]
    assert made.ids.dtype == made.lengths.dtype == np.int64


@pytest.mark.parametrize(
    ("side", "ids", "positions", "starts", "tokens"),
    [
        (
            "right",
            [[4, 5, 0, 0], [0, 0, 0, 0], [5, 0, 0, 0]],
            [[0, 1, 2, 3]] * 3,
            [0, 0, 0],
            (("a", "b", "[PAD]", "[PAD]"), ("[PAD]",) * 4, ("b", "[PAD]", "[PAD]", "[PAD]")),
        ),
        (
            "left",
            [[0, 0, 4, 5], [0, 0, 0, 0], [0, 0, 0, 5]],
            [[-2, -1, 0, 1], [-4, -3, -2, -1], [-3, -2, -1, 0]],
            [2, 4, 3],
            (("[PAD]", "[PAD]", "a", "b"), ("[PAD]",) * 4, ("[PAD]", "[PAD]", "[PAD]", "b")),
        ),
    ],
)
def test_padding(side: str, ids: object, positions: object, starts: object, tokens: object) -> None:
    made = make_batch([("a", "b"), (), ("b",)], pad_to=4, pad_side=side)
    assert made.ids.tolist() == ids
    assert made.positions.tolist() == positions
    assert made.starts.tolist() == starts
    assert made.padded_tokens == tokens
    assert made.lengths.tolist() == [2, 0, 1]
    assert made.valid.tolist() == [[i != 0 for i in row] for row in made.ids]
    assert (made.size, made.width) == (3, 4)


@given(
    st.lists(
        st.lists(st.sampled_from("abc"), max_size=5).map(tuple), min_size=1, max_size=4
    ).filter(any),
    st.integers(0, 3),
    st.sampled_from(["right", "left"]),
)
def test_a_batch_gives_its_tokens_back(
    sequences: list[tuple[str, ...]], more: int, side: str
) -> None:
    made = make_batch(sequences, pad_to=max(map(len, sequences)) + more, pad_side=side)
    for b, tokens in enumerate(sequences):
        assert tuple(made.vocabulary[i] for i in made.ids[b][made.valid[b]]) == tokens
        assert made.positions[b][made.valid[b]].tolist() == list(range(len(tokens)))
        assert (made.ids[b][~made.valid[b]] == 0).all()
        assert made.padded_tokens[b] == tuple(made.vocabulary[i] for i in made.ids[b])


@pytest.mark.parametrize(
    ("sequences", "flags", "message"),
    [
        ([], {}, "there are no tokens: every sequence is empty or all padding; give a text"),
        ([(), ()], {}, "there are no tokens: every sequence is empty or all padding; give a text"),
        (
            [("a", "b", "c")],
            {"pad_to": 2},
            "--pad-to 2 is shorter than the longest sequence, 3 tokens",
        ),
        ([("a",)], {"pad_side": "top"}, "--pad-side is 'top'; it must be right or left"),
        (
            [("\x1b",)],
            {"vocabulary": ("[PAD]", "a")},
            "the token '\\x1b' is not in the vocabulary, which has 2 tokens, the first of them: "
            "[PAD] a",
        ),
    ],
)
def test_batches_that_cannot_be_made(
    sequences: list[tuple[str, ...]], flags: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        make_batch(sequences, **flags)
    assert one_line(caught) == message


def test_all_padding_in_a_file_is_one_clear_message() -> None:
    with pytest.raises(InputError, match=r"^there are no tokens: "):
        make_batch(read("t.json", json.dumps([["[PAD]"] * 3])).sequences)
