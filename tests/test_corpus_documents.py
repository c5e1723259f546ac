"""Documents of a corpus: every form, every compression, and what cannot be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet

from attnviz.corpus import documents
from attnviz.corpus.batches import Shard, batches, shards
from attnviz.corpus.documents import Bad, Corpus, Document, find_files
from attnviz.corpus.reader import Ready
from attnviz.errors import InputError, printable
from attnviz.sources.own_layers import TokenizedBatch
from attnviz.tokens import make_batch


def read(*paths: Path, **how: object) -> list[Document | Bad]:
    return [found for found, _ in Corpus(tuple(paths), **how).documents()]  # type: ignore[arg-type]


def contents(found: list[Document | Bad]) -> list[object]:
    return [each.content if isinstance(each, Document) else each.why for each in found]


def test_a_document_a_line(here: Path) -> None:
    (here / "a.txt").write_bytes(b"\xef\xbb\xbfOne.\r\n\r\n  \nTwo, \xe7\x8c\xab\nThree")
    found = read(here / "a.txt")
    assert found == [
        Document(0, "a.txt, line 1", "One."),
        Document(1, "a.txt, line 4", "Two, 猫"),
        Document(2, "a.txt, line 5", "Three"),
    ]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("lines", [3, 3000])
def test_packed_files(here: Path, pack: object, lines: int) -> None:
    suffix = "gz" if pack is gzip.compress else "zst"
    text = "".join(f"document {i}\n" for i in range(lines))
    (here / f"a.txt.{suffix}").write_bytes(pack(text.encode()))  # type: ignore[operator]
    found = list(Corpus((here / f"a.txt.{suffix}",)).documents())
    assert contents([each for each, _ in found]) == text.splitlines()
    positions = [position for _, position in found]
    assert positions == sorted(positions)
    assert positions[-1] == (here / f"a.txt.{suffix}").stat().st_size


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_packed_file_that_breaks_off(here: Path, pack: object) -> None:
    suffix = "gz" if pack is gzip.compress else "zst"
    text = "".join(f"{i * 7919 % 10007} {i * 104729 % 99991}\n" for i in range(40_000))
    whole: bytes = pack(text.encode())  # type: ignore[operator]
    (here / f"a.{suffix}").write_bytes(whole[: len(whole) // 2] + b"\xff" * 40 + whole[-9:])
    (here / "b.txt").write_text("after\n")
    *_, bad, last = read(here / f"a.{suffix}", here / "b.txt")
    assert isinstance(bad, Bad)
    assert bad.why.startswith("cannot be unpacked: ")
    assert last == Document(last.number, "b.txt, line 1", "after")


def test_json_lines(here: Path) -> None:
    lines = [
        '{"text": "a b"}', '["a", "b c"]', '"plain"', '{"tokens": ["x"], "text": "y"}',
        '{"body": "no"}', "[1, 2]", "{", '{"text": null}', '"\\ud800"', '"a\\u0000b"', "[]",
    ]  # fmt: skip
    (here / "a.jsonl").write_text("\n".join(lines))
    assert contents(read(here / "a.jsonl")) == [
        "a b", ("a", "b c"), "plain", ("x",), "has neither tokens nor text",
        "holds [1, 2], no text or tokens",
        "is no JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "holds null, no text or tokens", "holds a lone surrogate",
        "is no text: character 1 is NUL",
    ]  # fmt: skip


def test_empty_texts_are_no_documents_wherever_they_lie(here: Path) -> None:
    texts = ["a", "", "  ", "\n", "b"]
    (here / "a.txt").write_text("\n".join(texts))
    (here / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (here / "c.jsonl").write_text('["a"]\n[]\n["b"]\n')
    parquet.write_table(pa.table({"text": texts}), here / "d.parquet")
    for name in ("a.txt", "b.jsonl", "d.parquet"):
        assert contents(read(here / name)) == ["a", "b"]
    assert contents(read(here / "c.jsonl")) == [("a",), ("b",)]
    assert read(here / "d.parquet")[1].name == "d.parquet, row 4"


def test_text_that_parquet_holds_as_bytes(here: Path) -> None:
    parquet.write_table(pa.table({"text": ["müde".encode(), b"\xff"]}), here / "a.parquet")
    assert contents(read(here / "a.parquet")) == ["müde", "is not utf-8: byte 0 is 0xFF"]


def test_a_field_of_ones_own(here: Path) -> None:
    (here / "a.jsonl").write_text('{"body": "yes"}\n{"text": "no"}\n"none"\n' + "[" * 100_000)
    found = contents(read(here / "a.jsonl", field="body"))
    assert found[:3] == ["yes", "has no field 'body'", "is no object with a field 'body'"]
    assert str(found[3]).startswith("is no JSON")


def test_bytes_that_are_no_text(here: Path) -> None:
    (here / "a.txt").write_bytes(b"good\nb\xffd\n\x00\n" + "müde\n".encode("latin-1"))
    assert contents(read(here / "a.txt")) == [
        "good",
        "is not utf-8: byte 1 is 0xFF",
        "is no text: character 0 is NUL",
        "is not utf-8: byte 1 is 0xFC",
    ]
    assert contents(read(here / "a.txt", encoding="latin-1"))[3] == "müde"


def test_a_line_without_an_end(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST_LINE", 8)
    (here / "a.txt").write_text("x" * 30 + "\nnext\n1234567\n")
    found = read(here / "a.txt")
    assert contents(found) == ["has over 0 MiB", "next", "1234567"]


@pytest.mark.parametrize("rows", [2, 700])
def test_parquet(here: Path, rows: int) -> None:
    table = pa.table({"id": range(rows), "text": [f"d {i}" for i in range(rows - 1)] + [None]})
    parquet.write_table(table, here / "a.parquet")
    found = read(here / "a.parquet")
    assert contents(found)[:-1] == [f"d {i}" for i in range(rows - 1)]
    assert found[-1] == Bad(rows - 1, f"a.parquet, row {rows - 1}", "holds null, no text or tokens")
    parquet.write_table(pa.table({"words": [["a", "b"], ["c"]]}), here / "b.parquet")
    assert contents(read(here / "b.parquet", field="words")) == [("a", "b"), ("c",)]


def test_parquet_that_is_none(here: Path) -> None:
    (here / "a.parquet").write_text("no")
    with pytest.raises(InputError, match=r"^a\.parquet is no Parquet file: "):
        read(here / "a.parquet")
    parquet.write_table(pa.table({"a": [1], "b": [2]}), here / "b.parquet")
    for field, said in (("x", " 'x'"), (None, "")):
        with pytest.raises(InputError) as error:
            read(here / "b.parquet", field=field)
        assert str(error.value) == (
            f"b.parquet has no column{said}; it has a, b; --field names one"
        )


def test_annotated_documents(here: Path) -> None:
    lines = [
        {"words": ["a", "cat"], "pairs": [[1, 0], [0, 1, "det"]]},
        {"words": [], "pairs": []},
        {"words": ["a", "cat"]},
        {"words": ["a", "cat"], "pairs": [[0, 2]]},
        {"words": ["a", "cat"], "pairs": [[0, 0]]},
        {"words": ["a", "cat"], "pairs": [[0, 1, 2]]},
        {"words": ["a", "cat"], "pairs": [[0, True]]},
        {"words": ["a", "cat"], "pairs": ["01"]},
        ["a", "cat"],
    ]
    (here / "gold.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (here / "a.txt").write_text("first\n")
    found = read(here / "a.txt", gold=(here / "gold.jsonl",))
    assert found[1] == Document(1, "gold.jsonl, line 1", ("a", "cat"), ((1, 0, ""), (0, 1, "det")))
    numbers = "two different numbers of words, 0 to 1, and a label if there is one, are expected"
    assert contents(found)[2:] == [
        'has no "words", a list of them',
        'has no "pairs", a list of [from, to] or [from, to, label]',
        *(
            f"has the pair {pair}; {numbers}"
            for pair in ("[0, 2]", "[0, 0]", "[0, 1, 2]", "[0, true]", '"01"')
        ),
        'has no "words", a list of them',
    ]


def test_limits_and_samples(here: Path) -> None:
    (here / "a.txt").write_text("".join(f"{i}\n" for i in range(50)))
    corpus = Corpus((here / "a.txt",))
    assert corpus.count() == 50
    assert contents(read(here / "a.txt", limit=3)) == ["0", "1", "2"]
    drawn = corpus.sampled(7, seed=1)
    found = [each for each, _ in drawn.documents()]
    assert len(found) == 7
    assert [each.number for each in found] == sorted(each.number for each in found)
    assert contents(found) == [str(each.number) for each in found]
    assert drawn == corpus.sampled(7, seed=1) != corpus.sampled(7, seed=2)
    assert len(list(corpus.sampled(99, seed=1).documents())) == 50


def test_names_of_files(here: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt", "[x].txt"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("x\n")
    assert find_files("--file", ["?.txt", "a.txt"]) == (Path("a.txt"), Path("b.txt"))
    assert find_files("--file", ["**/*.txt"])[-1] == Path("sub/c.txt")
    assert find_files("--file", ["[x].txt"]) == (Path("[x].txt"),)
    wrong = {
        "z*": "--file z*: no file has such a name",
        "z.txt": "--file z.txt: no such file",
        "sub": "--file sub: is a folder; a pattern takes its files, 'folder/*.txt', say",
    }
    for name, message in wrong.items():
        with pytest.raises(InputError) as error:
            find_files("--file", [name])
        assert str(error.value) == message


def test_a_file_that_goes_away(here: Path) -> None:
    with pytest.raises(InputError) as error:
        read(here / "gone.txt")
    assert str(error.value) == "gone.txt: no such file or directory"


# ── shards and batches ───────────────────────────────────────────────────────────────────────


def test_shards_hold_consecutive_documents() -> None:
    stream = [(Document(i, "", str(i)), 10 * i) for i in range(7)]
    made = list(shards(stream, size=3))
    assert [shard.number for shard in made] == [0, 1, 2]
    assert [[each.number for each in shard.found] for shard in made] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [shard.position for shard in made] == [20, 50, 60]
    assert list(shards([])) == []
    assert Shard(0, ()) == Shard(0, (), 0)


def ready(length: int, number: int = 0) -> Ready:
    return Ready(Document(number, "", ""), TokenizedBatch(make_batch([("w",) * length])))


def test_batches_have_like_lengths() -> None:
    lengths = [5, 90, 7, 6, 88, 91, 5, 300]
    made = list(
        batches([ready(n, i) for i, n in enumerate(lengths)], most_tokens=300, most_cells=10**6)
    )
    assert [[len(each) for each in batch] for batch in made] == [
        [300], [91, 90, 88], [7, 6, 5, 5]
    ]  # fmt: skip
    assert [each.document.number for each in made[-1]] == [2, 3, 0, 6]
    cells = list(batches([ready(10) for _ in range(5)], most_cells=200))
    assert [len(batch) for batch in cells] == [2, 2, 1]
    alone = list(batches([ready(9), ready(8), ready(3), ready(2)], longest=5))
    assert [[len(each) for each in batch] for batch in alone] == [[9], [8], [3, 2]]
    assert list(batches([])) == []


LINES = "".join(f"{i * 7919} 猫\n" for i in range(20_000))


def test_zstd_of_several_frames_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    packed = zstandard.compress(LINES.encode())
    path.write_bytes(packed + packed)
    assert contents(read(path)) == LINES.splitlines() * 2


def test_what_is_sound_of_a_zstd_file_comes_before_what_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(b"one\ntwo\n") + b"no frame at all")
    *documents, last = read(path)
    assert contents(documents) == ["one", "two"]
    assert last.name == f"{printable(path)}, after line 2"
    assert isinstance(last, Bad)
    assert last.why.startswith("cannot be unpacked: ")


def test_a_zstd_file_that_is_cut_off_is_not_taken_for_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    packed = zstandard.compress(LINES.encode())
    path.write_bytes(packed[: len(packed) * 2 // 3])
    *documents, last = read(path)
    known = LINES.splitlines()[: len(documents)]
    assert contents(documents) == known
    assert 0 < len(known) < 20_000
    name = f"{printable(path)}, after line {len(known)}"
    assert last == Bad(len(known), name, "cannot be unpacked: the file ends within a frame")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-7"])
def test_encodings_whose_line_end_is_another_byte(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    text = "上 mat\u010a end\n\n" + LINES  # U+010A has the byte 0x0A within
    path.write_bytes(text.encode(encoding))
    expected = [line for line in text.split("\n") if line]
    assert contents(read(path, encoding=encoding)) == expected


def test_a_file_that_is_not_of_its_encoding_ends_where_that_shows(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("one\ntwo\n".encode("utf-16")[:-1])
    *documents, last = read(path, encoding="utf-16")
    assert contents(documents) == ["one"]
    why = "cannot be read: it is not utf-16: "
    assert isinstance(last, Bad)
    assert last.name == f"{printable(path)}, after line 1"
    assert last.why.startswith(why)
