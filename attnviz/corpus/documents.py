"""Documents of a corpus, one after the other: text, JSON lines, Parquet; plain, gzip or zstd."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from attnviz.corpus.byte_streams import PACKED, UNREADABLE, as_utf8, has_byte_lines, unpacked
from attnviz.errors import ConfigError, InputError, printable, why_unreadable

LONGEST_LINE = 2**26
"""Bytes of a line. A file without line ends is no corpus, and would fill the memory."""

USUAL_FIELDS = ("tokens", "text")
JSON_LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True)
class Document:
    """A document, `number` in its corpus: a text to cut into tokens, or the tokens themselves.

    `pairs` (from word, to word, label) are a gold annotation; `content` is then the words.
    """

    number: int
    name: str
    content: str | tuple[str, ...]
    pairs: tuple[tuple[int, int, str], ...] | None = None


@dataclass(frozen=True)
class Bad:
    """A document that cannot be measured, and why; it has a number as well."""

    number: int
    name: str
    why: str


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus, and how to read them.

    `field` names the column or key that holds the documents. `gold` are files of annotated
    documents, which come after the others. `chosen` (numbers, in order) are the only documents
    that are taken, None for all; `limit` stops after so many. `names` are what some of the files
    are called.
    """

    paths: tuple[Path, ...]
    field: str | None = None
    encoding: str = "utf-8"
    gold: tuple[Path, ...] = ()
    chosen: tuple[int, ...] | None = None
    limit: int | None = None
    names: tuple[tuple[Path, str], ...] = ()

    @property
    def n_bytes(self) -> int:
        """Of all files, as they lie on the disk."""
        return sum(path.stat().st_size for path in (*self.paths, *self.gold))

    def documents(self) -> Iterator[tuple[Document | Bad, int]]:
        """Each document that is taken, and how many bytes have been read so far.

        Empty lines, texts and lists are no documents. A document keeps its number whatever else is
        taken.
        """
        taken, wanted = 0, None if self.chosen is None else set(self.chosen)
        for number, (found, position) in enumerate(self._all()):
            if self.limit is not None and taken >= self.limit:
                return
            if wanted is None or number in wanted:
                taken += 1
                yield _numbered(found, number), position
                if wanted is not None and taken == len(wanted):
                    return

    def count(self) -> int:
        """How many documents there are, none of them being taken apart."""
        return sum(1 for _ in self._all())

    def sampled(self, n: int, seed: int) -> Corpus:
        """`n` of the documents, all equally likely, the same for a seed; all if there are fewer."""
        import numpy as np

        drawn = np.random.default_rng(seed).permutation(self.count())[:n]
        return replace(self, chosen=tuple(sorted(drawn.tolist())))

    def _all(self) -> Iterator[tuple[Document | Bad, int]]:
        before, names = 0, dict(self.names)
        for i, path in enumerate((*self.paths, *self.gold)):
            is_gold = i >= len(self.paths)
            shown = names.get(path, printable(path))
            for found, position in _file(path, shown, self.field, self.encoding, is_gold):
                yield found, before + position
            before += path.stat().st_size


def _numbered(found: Document | Bad, number: int) -> Document | Bad:
    if isinstance(found, Bad):
        return Bad(number, found.name, found.why)
    return Document(number, found.name, found.content, found.pairs)


def find_files(flag: str, wanted: Sequence[str]) -> tuple[Path, ...]:
    """The files that paths and globs name, each once, those of a glob in the order of their names.

    Raises `InputError` for one that is not there, is a folder, or is of a form that is not read.
    """
    found: dict[Path, None] = {}
    for name in wanted:
        path = Path(name)
        if path.exists() or not glob.has_magic(name):
            matches = [path]
        else:
            names = glob.glob(name, recursive=True)  # noqa: PTH207 - of any root
            matches = [Path(match) for match in sorted(names)]
            matches = [match for match in matches if match.is_file()]
            if not matches:
                raise InputError(f"{flag} {printable(name)}: no file has such a name")
        for match in matches:
            if not match.is_file():
                suffix = ".npz" if flag == "--saved" else ".txt"
                why = f"is a folder; a pattern takes its files, 'folder/*{suffix}', say"
                why = why if match.is_dir() else "no such file"
                raise InputError(f"{flag} {printable(match)}: {why}")
            found[match] = None
    return tuple(found)


# ── one file ─────────────────────────────────────────────────────────────────────────────────


def _file(
    path: Path, shown: str, field: str | None, encoding: str, is_gold: bool
) -> Iterator[tuple[Document | Bad, int]]:
    """The documents of a file, unnumbered, and how many of its bytes have been read."""
    try:
        if path.suffix.lower() == ".parquet":
            yield from _parquet(path, shown, field)
            return
        with path.open("rb") as raw:
            values = None if is_gold else _whole_json(raw, path, shown, encoding)
            if values is not None:
                yield from _values(values, shown, field, path.stat().st_size)
                return
            yield from _lines(raw, path, shown, field, encoding, is_gold)
    except OSError as error:  # gone, or no permission
        raise InputError(f"{shown}: {why_unreadable(path, error)}") from None


def has_fields(path: Path) -> bool:
    """Whether documents of such a file lie in fields or columns."""
    return _form(path)[0] in (*JSON_LINES, ".parquet")


def _form(path: Path) -> tuple[str, str]:
    """(".jsonl", ".gz"): what a file is by its name, and how it is packed."""
    suffixes = ["", *(suffix.lower() for suffix in path.suffixes)]
    packed = suffixes.pop() if suffixes[-1] in PACKED else ""
    return suffixes[-1], packed


def _whole_json(raw: BinaryIO, path: Path, shown: str, encoding: str) -> list[Any] | None:
    """The documents of a `.json` file that is one JSON value, as `attnviz run` reads it.

    A list of lists or objects holds a document each; any other value is one document. None for JSON
    lines, and for a file that is too large to be read whole: these are read line by line.
    """
    if _form(path)[0] != ".json":
        return None
    try:
        data = unpacked(raw, path, shown).read(LONGEST_LINE + 1)
        value = json.loads(data.decode(encoding).removeprefix("\ufeff"))
    except (ValueError, RecursionError, *UNREADABLE):
        value = data = None
    raw.seek(0)
    if data is None or len(data) > LONGEST_LINE:
        return None
    is_batch = isinstance(value, list) and any(isinstance(item, list | dict) for item in value)
    return value if is_batch else [value]


def _values(
    values: list[Any], shown: str, field: str | None, size: int
) -> Iterator[tuple[Document | Bad, int]]:
    """The documents of a file that holds one JSON value."""
    for i, value in enumerate(values):
        name = f"{shown}, item {i}" if len(values) > 1 else shown
        try:
            content = _content(value, field)
            if _is_empty(content):
                continue
            found: Document | Bad = Document(0, name, content)
        except _NotADocumentError as error:
            found = Bad(0, name, str(error))
        yield found, size * (i + 1) // len(values)


def _lines(
    raw: BinaryIO, path: Path, shown: str, field: str | None, encoding: str, is_gold: bool
) -> Iterator[tuple[Document | Bad, int]]:
    bare, packed = _form(path)
    is_json = is_gold or bare in JSON_LINES
    stream = unpacked(raw, path, shown)
    if not has_byte_lines(encoding):
        stream, encoding = as_utf8(stream, encoding), "utf-8"
    number = 0
    while True:
        try:
            line = stream.readline(LONGEST_LINE)
        except UNREADABLE as error:
            name, what = f"{shown}, after line {number}", "unpacked" if packed else "read"
            yield Bad(0, name, f"cannot be {what}: {printable(error)}"), raw.tell()
            return
        if not line:
            return
        number += 1
        name = f"{shown}, line {number}"
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            yield Bad(0, name, f"has over {LONGEST_LINE >> 20} MiB"), raw.tell()
            while line and not line.endswith(b"\n"):
                line = stream.readline(LONGEST_LINE)
            continue
        if number == 1 and encoding == "utf-8":
            line = line.removeprefix(b"\xef\xbb\xbf")
        try:
            text = _decoded(line, encoding).strip("\r\n")
            if not text.strip():
                continue
            if is_gold:
                words, pairs = _annotated(json.loads(text))
                found: Document | Bad = Document(0, name, words, pairs)
            else:
                content = _content(json.loads(text), field) if is_json else text
                if _is_empty(content):
                    continue
                found = Document(0, name, content)
        except _NotADocumentError as error:
            found = Bad(0, name, str(error))
        except (ValueError, RecursionError) as error:
            found = Bad(0, name, f"is no JSON: {printable(error)}")
        yield found, raw.tell()


def _parquet(path: Path, shown: str, field: str | None) -> Iterator[tuple[Document | Bad, int]]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ConfigError(
            f"{shown} is Parquet, which pip install 'attnviz[corpus]' reads"
        ) from None
    try:
        table = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"{shown} is no Parquet file: {printable(error)}") from None
    columns = table.schema_arrow.names
    wanted = field or next((name for name in USUAL_FIELDS if name in columns), None)
    if wanted not in columns:
        asked = "" if field is None else f" '{printable(field)}'"
        known = ", ".join(printable(name, 40) for name in columns)
        raise InputError(f"{shown} has no column{asked}; it has {known}; --field names one")
    size, rows, row = path.stat().st_size, max(1, table.metadata.num_rows), 0
    try:
        for part in table.iter_batches(batch_size=256, columns=[wanted]):
            for value in part.column(0).to_pylist():
                name = f"{shown}, row {row}"
                row += 1
                try:
                    content = _as_content(value)
                    if _is_empty(content):
                        continue
                    found: Document | Bad = Document(0, name, content)
                except _NotADocumentError as error:
                    found = Bad(0, name, str(error))
                yield found, size * row // rows
    except (pyarrow.ArrowInvalid, OSError) as error:
        yield Bad(0, f"{shown}, after row {row}", f"cannot be read: {printable(error)}"), size


# ── one document ─────────────────────────────────────────────────────────────────────────────


class _NotADocumentError(Exception):
    """Why a line is none."""


def _decoded(line: bytes, encoding: str) -> str:
    try:
        text = line.decode(encoding)
    except UnicodeDecodeError as error:
        wrong = error.object[error.start]
        raise _NotADocumentError(
            f"is not {printable(encoding)}: byte {error.start} is 0x{wrong:02X}"
        ) from None
    except ValueError as error:
        raise _NotADocumentError(f"is not {printable(encoding)}: {printable(error)}") from None
    return _sound(text)


def _sound(text: str) -> str:
    if "\0" in text:
        raise _NotADocumentError(f"is no text: character {text.index(chr(0))} is NUL")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise _NotADocumentError("holds a lone surrogate")
    return text


def _content(value: Any, field: str | None) -> str | tuple[str, ...]:
    """The text or tokens of a JSON line: the field that was named, or what the usual ones hold."""
    if isinstance(value, dict):
        key = field or next((name for name in USUAL_FIELDS if name in value), None)
        if key not in value:
            asked = "tokens nor text" if field is None else f"'{printable(field)}'"
            raise _NotADocumentError(f"has {'neither ' if field is None else 'no field '}{asked}")
        value = value[key]
    elif field is not None:
        raise _NotADocumentError(f"is no object with a field '{printable(field)}'")
    return _as_content(value)


def _is_empty(content: str | tuple[str, ...]) -> bool:
    return not (content.strip() if isinstance(content, str) else content)


def _as_content(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, bytes):  # a column of Parquet that does not say that it is text
        return _decoded(value, "utf-8")
    if isinstance(value, str):
        return _sound(value)
    if isinstance(value, list) and all(isinstance(token, str) and token for token in value):
        return tuple(_sound(token) for token in value)
    raise _NotADocumentError(
        f"holds {printable(json.dumps(value, default=str), 40)}, no text or tokens"
    )


def _annotated(value: Any) -> tuple[tuple[str, ...], tuple[tuple[int, int, str], ...]]:
    """`{"words": ["The", "cat"], "pairs": [[0, 1], [1, 0, "label"]]}`."""
    words = value.get("words") if isinstance(value, dict) else None
    if not isinstance(words, list) or not words:
        raise _NotADocumentError('has no "words", a list of them')
    content = _as_content(words)
    pairs = value.get("pairs")
    if not isinstance(pairs, list):
        raise _NotADocumentError('has no "pairs", a list of [from, to] or [from, to, label]')
    found = []
    for pair in pairs:
        good = isinstance(pair, list) and len(pair) in (2, 3)
        good = good and all(type(i) is int and 0 <= i < len(words) for i in pair[:2])
        good = good and pair[0] != pair[1] and isinstance(pair[-1], str | int)
        if not good or (len(pair) == 3 and not isinstance(pair[2], str)):
            raise _NotADocumentError(
                f"has the pair {printable(json.dumps(pair), 40)}; two different numbers of words, "
                f"0 to {len(words) - 1}, and a label if there is one, are expected"
            )
        found.append((pair[0], pair[1], _sound(pair[2]) if len(pair) == 3 else ""))
    return tuple(content), tuple(found)
