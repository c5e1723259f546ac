"""Text becomes a padded batch of token ids: reading, tokenizing, a vocabulary, padding."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from attnviz.errors import ConfigError, InputError, printable, why_unreadable
from attnviz.wording import plural

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PAD = "[PAD]"
SEP = "[SEP]"
SPECIAL_TOKENS = (PAD, SEP, "[CLS]", "[MASK]")
"""Written like this in a text, each is one token. Their ids come first: 0, 1, 2, 3."""

PAD_SPELLINGS = (PAD, "<pad>")
UNKNOWN_SPELLINGS = ("[UNK]", "<unk>")
PAD_SIDES = ("right", "left")

LARGEST_INPUT = 2**26
"""Bytes read from one file or pipe. A larger text cannot be meant for one attention map."""

MOST_COMPARED = 5000
"""Tokens of a vocabulary among which those like an unknown one are looked for."""

Tokens = tuple[str, ...]

NO_TOKENS = "there are no tokens: every sequence is empty or all padding; give a text"

Text = str | Tokens
"""A text that a tokenizer cuts, or a text that is cut already."""


# ── tokenizers: str → list of tokens ─────────────────────────────────────────────────────────


def words(text: str) -> list[str]:
    """Words and punctuation apart; each Han, Kana or Hangul character by itself; no spaces.

    Apostrophes, separators between digits, soft hyphens and joiners stay inside a word ("didn't",
    "3.14", "col·lecció"). Anything else that can be seen is one token per user-perceived
    character. Scripts that put no space between words (Thai, Khmer) are split at punctuation and
    at zero-width spaces.
    """
    import regex

    east_asian = r"[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Hang}]"
    letter = rf"[[[\p{{L}}\p{{N}}]--{east_asian}]\p{{M}}\p{{Pc}}\u200c\u200d\u00ad\u2060]"
    inside = r"(?:['’·׳״]|(?<=\p{Hebrew})\"(?=\p{Hebrew})|(?<=\p{Nd})[.,\u066b\u066c](?=\p{Nd}))"
    word = rf"{letter}+(?:{inside}{letter}+)*"
    return _split(text, regex.compile(rf"(?V1){word}|(?=[^\s\u200b\ufeff])\X").findall)


def chars(text: str) -> list[str]:
    """User-perceived characters (extended grapheme clusters, UAX #29), spaces among them."""
    import regex

    return _split(text, regex.compile(r"\X").findall)


def byte_values(text: str) -> list[str]:
    """The bytes of the UTF-8 form: printable ASCII as itself, others as `<0xE7>`."""
    return _split(
        text, lambda part: [chr(b) if 32 < b < 127 else f"<0x{b:02X}>" for b in part.encode()]
    )


TOKENIZERS: dict[str, Callable[[str], list[str]]] = {
    "words": words,
    "chars": chars,
    "bytes": byte_values,
}


def tokenizer_named(name: str) -> Callable[[str], list[str]]:
    """One of `TOKENIZERS`, or that of a `tokenizer.json`, with the special tokens that it adds."""
    if name in TOKENIZERS:
        return TOKENIZERS[name]
    encode = read_tokenizer(name).encode
    return lambda text: list(encode(text).tokens)


def read_tokenizer(name: str) -> Any:
    """The `tokenizers.Tokenizer` of a `tokenizer.json`, which neither pads nor cuts off.

    Raises `InputError`, one line, for any other file.
    """
    try:
        with Path(name).open("rb") as stream:
            data = stream.read(LARGEST_INPUT + 1)
    except OSError as error:
        raise InputError(f"{printable(name)}: {why_unreadable(Path(name), error)}") from None
    return _tokenizer_of(data, printable(name))


@lru_cache(2)
def _tokenizer_of(data: bytes, shown: str) -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ConfigError(
            f"--tokenizer {shown} needs the library tokenizers: pip install 'attnviz[models]'"
        ) from None
    if len(data) > LARGEST_INPUT:
        raise InputError(f"{shown} has over {LARGEST_INPUT >> 20} MiB; a tokenizer.json is smaller")
    try:
        found = tokenizers.Tokenizer.from_str(data.decode("utf-8-sig"))
    except BaseException as error:  # a panic of the library is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise InputError(f"{shown} is no tokenizer.json: {printable(error)}") from None
    found.no_padding()
    found.no_truncation()
    return found


def vocabulary_of(tokenizer: Any) -> Tokens:
    """The tokens of a `tokenizers.Tokenizer` by their ids; an id without one is shown as `<7>`."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    vocabulary = [f"<{i}>" for i in range(max(ids.values(), default=-1) + 1)]
    for token, i in ids.items():
        vocabulary[i] = token
    return tuple(vocabulary)


def _split(text: str, tokenize: Callable[[str], list[str]]) -> list[str]:
    """Tokenize what stands between special tokens; each special token stays whole."""
    import regex

    known = dict.fromkeys((*SPECIAL_TOKENS, *PAD_SPELLINGS))
    special = regex.compile("(" + "|".join(map(regex.escape, known)) + ")")
    tokens: list[str] = []
    for i, part in enumerate(special.split(text)):
        tokens.extend([part] if i % 2 else tokenize(part))
    return tokens


# ── reading ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Texts:
    """What is to be read, not cut into tokens yet: each a text, or a list of tokens.

    `keys` are those that the queries look at in cross attention, None where they look at
    themselves. `notes` report what was skipped on the way.
    """

    queries: tuple[Text, ...]
    keys: tuple[Text, ...] | None = None
    notes: tuple[str, ...] = ()


def texts_of_arguments(texts: Iterable[str]) -> Texts:
    """Each argument is a text; an empty one stays, and has no tokens."""
    return Texts(tuple(_sound(text, "the text") for text in texts))


def read_stream(path: Path | None, stream: BinaryIO, encoding: str = "utf-8") -> Texts:
    """Read `stream`: one text per line; JSON or JSONL token lists where `path` has that suffix.

    `path` None stands for standard input. Raises `InputError` that names the byte where decoding
    fails, and the line or item where a token list is not one.
    """
    name = "standard input" if path is None else printable(path)
    text = _decode(stream.read(LARGEST_INPUT + 1), name, encoding)
    suffix = "" if path is None else path.suffix.lower()
    if suffix == ".json":
        return Texts(tuple(_json_sequences(_parse(text, name), name)))
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    kept = [(f"{name}, line {at}", line) for at, line in enumerate(lines, 1) if line.strip()]
    blank = len(lines) - len(kept) - (lines[-1] == "")
    notes = (f"{name}: {plural(blank, 'empty line')} skipped",) if blank else ()
    if suffix == ".jsonl":
        return Texts(tuple(_one_sequence(_parse(line, at), at) for at, line in kept), notes=notes)
    return Texts(tuple(line for _, line in kept), notes=notes)


def read_path(path: Path, encoding: str = "utf-8") -> Texts:
    """Open and read a file; see `read_stream`."""
    try:
        with path.open("rb") as stream:
            return read_stream(path, stream, encoding)
    except OSError as error:
        raise InputError(
            f"{printable(path)}: {why_unreadable(path, error)}; "
            "a text, .json or .jsonl file is expected"
        ) from None


def cut(texts: Sequence[Text], tokenizer: str = "words") -> tuple[tuple[Tokens, ...], list[str]]:
    """The tokens of each text, and notes. Lists of tokens stay as they are.

    Padding written by hand is taken off both ends: the batch is padded by attnviz, which knows
    where.
    """
    tokenize = tokenizer_named(tokenizer) if any(isinstance(t, str) for t in texts) else list
    sequences: list[Tokens] = []
    dropped = 0
    for text in texts:
        tokens = tokenize(text) if isinstance(text, str) else list(text)
        start, end = 0, len(tokens)
        while start < end and tokens[start] in PAD_SPELLINGS:
            start += 1
        while end > start and tokens[end - 1] in PAD_SPELLINGS:
            end -= 1
        dropped += len(tokens) - (end - start)
        sequences.append(tuple(tokens[start:end]))
    note = (
        f"{plural(dropped, 'padding token')} at the ends of sequences taken off; "
        "--pad-to and --pad-side pad a batch"
    )
    return tuple(sequences), [note] if dropped else []


def read_tokens(path: Path) -> list[Tokens]:
    """Tokens as somebody else's tokenizer made them, those of padding among them.

    `.json` and `.jsonl` as in `read_stream`; any other file has a token a line, as it stands, and
    empty lines between sequences. Raises `InputError` where there is no token.
    """
    name = printable(path)
    try:
        with path.open("rb") as stream:
            text = _decode(stream.read(LARGEST_INPUT + 1), name)
    except OSError as error:
        raise InputError(f"{name}: {why_unreadable(path, error)}") from None
    suffix = path.suffix.lower()
    lines = text.replace("\r\n", "\n").split("\n")
    found: Sequence[Text]
    if suffix == ".json":
        found = _json_sequences(_parse(text, name), name)
    elif suffix == ".jsonl":
        places = [(f"{name}, line {i}", line) for i, line in enumerate(lines, 1) if line.strip()]
        found = [_one_sequence(_parse(line, place), place) for place, line in places]
    else:
        found = [tuple(run) for has_text, run in groupby(lines, key=bool) if has_text]
    if not any(found):
        raise InputError(f"{name} holds no tokens")
    return [tuple(words(each)) if isinstance(each, str) else each for each in found]


def _decode(data: bytes, name: str, given: str | None = None) -> str:
    """The text of a file in the encoding `given` by a flag; None: UTF-8, and there is no flag."""
    encoding = given or "utf-8"
    if len(data) > LARGEST_INPUT:
        raise InputError(f"{name} has over {LARGEST_INPUT >> 20} MiB; give a part of it")
    try:
        text = data.decode(encoding)
    except LookupError:
        raise InputError(
            f"--encoding {printable(encoding)} is unknown; utf-8, utf-16, cp1252 or gb18030, say"
        ) from None
    except UnicodeDecodeError as error:
        at = error.start + len(data) - len(error.object)  # some codecs cut off a mark first
        hint = "save it as UTF-8" if given is None else "name its encoding with --encoding"
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            flag = "save it as UTF-8" if given is None else "--encoding utf-16"
            hint = f"it begins as UTF-16 does: {flag}"
        raise InputError(
            f"{name} is not {printable(encoding)}: byte {at} is 0x{data[at]:02X}; {hint}"
        ) from None
    except ValueError as error:
        raise InputError(f"{name} is not {printable(encoding)}: {printable(error)}") from None
    if "\0" in text:
        at = text.index("\0")
        raise InputError(f"{name} is a binary file, not text: character {at} is NUL")
    return _sound(text.removeprefix("\ufeff"), name)


def _sound(text: str, name: str) -> str:
    """Refuse lone surrogates: no file and no terminal can hold them."""
    found = re.search("[\ud800-\udfff]", text)
    if found:
        raise InputError(
            f"{name} is not valid Unicode: character {found.start()} is the lone surrogate "
            f"U+{ord(found[0]):04X}"
        )
    return text


def _parse(text: str, name: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{name} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise InputError(f"{name} is JSON that nests too deep to be read") from None
    except ValueError as error:  # a key that stands twice, a number of thousands of digits
        raise InputError(f"{name} is not JSON that can be read: {printable(error)}") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object whose keys differ; JSON's own rule, that the last one wins, hides mistakes."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(k for k, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise ValueError(f"the key {json.dumps(twice)} stands twice in one object")
    return found


def _json_sequences(value: object, name: str) -> list[Text]:
    """A token list, or a list of them; a list that holds lists is a batch."""
    if isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value):
        return [_one_sequence(item, f"{name}, item {i}") for i, item in enumerate(value)]
    return [_one_sequence(value, name)]


def _one_sequence(value: object, name: str) -> Text:
    """`["a", "b"]`, `{"tokens": ["a", "b"]}`, or a text: `"a b"`, `{"text": "a b"}`."""
    if isinstance(value, dict):
        key = next((k for k in ("tokens", "text") if k in value), None)
        if key is None:
            raise InputError(f'{name} has neither "tokens" nor "text"')
        value = value[key]
    if isinstance(value, str):
        return _sound(value, name)
    if not isinstance(value, list):
        raise InputError(f"{name} is {_json_kind(value)}; a list of tokens or a text is expected")
    for i, token in enumerate(value):
        if not isinstance(token, str) or not token:
            raise InputError(
                f"{name}, token {i} is {_json_kind(token)}; a non-empty string is expected"
            )
        _sound(token, f"{name}, token {i}")
    return tuple(value)


def _json_kind(value: object) -> str:
    """What JSON calls `value`; a short one is shown as it is."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    return printable(json.dumps(value), 40)


# ── where tokens stand in a padded row ───────────────────────────────────────────────────────


def positions_of(
    lengths: npt.NDArray[np.int64], width: int, pad_side: str
) -> npt.NDArray[np.int64]:
    """`[B width]`: each place's index in its own sequence, 0 at its first real token."""
    import numpy as np

    return np.arange(width)[None, :] - _starts(lengths, width, pad_side)[:, None]


def real_places(
    positions: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """`[B T]`: True where `positions` are those of real tokens, False on padding."""
    real: npt.NDArray[np.bool_] = (positions >= 0) & (positions < lengths[:, None])
    return real


def _starts(lengths: npt.NDArray[np.int64], width: int, pad_side: str) -> npt.NDArray[np.int64]:
    return lengths * 0 if pad_side == "right" else width - lengths


# ── the batch ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Batch:
    """Token sequences of different lengths as one rectangle of ids.

    `tokens` are the sequences as given, without padding. `ids` is int64 `[B T]`, `lengths` int64
    `[B]`; `vocabulary[ids[b, t]]` is the token at that place, `[PAD]` where there is none.
    `before`, int64 `[B]`, counts earlier tokens that are not here: their keys are in a cache.
    """

    tokens: tuple[Tokens, ...]
    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    pad_side: str
    vocabulary: Tokens
    before: npt.NDArray[np.int64] | None = None

    @property
    def size(self) -> int:
        """B, the number of sequences."""
        return int(self.ids.shape[0])

    @property
    def width(self) -> int:
        """T, the length that all are padded to."""
        return int(self.ids.shape[1])

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """`[B]`: where each sequence's first real token stands."""
        return _starts(self.lengths, self.width, self.pad_side)

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """`[B T]`: True on real tokens, False on padding."""
        return real_places(positions_of(self.lengths, self.width, self.pad_side), self.lengths)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """`[B T]`: each place's index in its own sequence, 0 at its first real token."""
        places = positions_of(self.lengths, self.width, self.pad_side)
        return places if self.before is None else places + self.before[:, None]

    @property
    def padded_tokens(self) -> tuple[Tokens, ...]:
        """`[B][T]`: the tokens with `[PAD]` where the batch is padded."""
        return padded(self.tokens, self.width, self.pad_side)


def padded(rows: Sequence[Tokens], width: int, pad_side: str) -> tuple[Tokens, ...]:
    """Each of `rows` with `[PAD]` up to `width` tokens, on one side."""
    fills = [(PAD,) * (width - len(row)) for row in rows]
    pairs = zip(rows, fills, strict=True)
    return tuple((*row, *fill) if pad_side == "right" else (*fill, *row) for row, fill in pairs)


def make_vocabulary(sequences: Iterable[Tokens]) -> Tokens:
    """The special tokens, then the others in order of first appearance: id = index."""
    return tuple(dict.fromkeys([*SPECIAL_TOKENS, *(t for tokens in sequences for t in tokens)]))


def require_tokens(sequences: Sequence[Tokens]) -> None:
    """Raise `InputError` when there is no token in any sequence."""
    if not any(sequences):
        raise InputError(NO_TOKENS)


def make_batch(
    sequences: Sequence[Tokens],
    vocabulary: Tokens | None = None,
    pad_to: int | None = None,
    pad_side: str = "right",
    numbers: Mapping[str, int] | None = None,
) -> Batch:
    """Pad `sequences` to one width and look up their ids.

    Padding is `[PAD]` or `<pad>` of the `vocabulary` that was given, id 0 where it has neither; a
    token that is not in it is its `[UNK]` or `<unk>`. Raises `InputError` when there is no token at
    all, when `pad_to` is shorter than a sequence, or when a token has no id. `numbers` are the ids
    of the tokens, for a large vocabulary that serves many batches.
    """
    if pad_side not in PAD_SIDES:
        raise InputError(f"--pad-side is '{printable(pad_side)}'; it must be right or left")
    import numpy as np

    require_tokens(sequences)
    longest = max(map(len, sequences))
    if pad_to is not None and pad_to < longest:
        raise InputError(
            f"--pad-to {pad_to} is shorter than the longest sequence, {longest} tokens"
        )
    width = longest if pad_to is None else pad_to
    vocabulary = make_vocabulary(sequences) if vocabulary is None else vocabulary
    number = numbers or {token: i for i, token in enumerate(vocabulary)}
    pad = next((number[token] for token in PAD_SPELLINGS if token in number), 0)
    unknown = next((number[token] for token in UNKNOWN_SPELLINGS if token in number), None)
    ids = np.full((len(sequences), width), pad, dtype=np.int64)
    for row, tokens in zip(ids, sequences, strict=True):
        start = 0 if pad_side == "right" else width - len(tokens)
        try:
            row[start : start + len(tokens)] = [
                number[token] if unknown is None else number.get(token, unknown) for token in tokens
            ]
        except KeyError as absent:
            raise InputError(_not_known(absent.args[0], vocabulary)) from None
    lengths = np.array([len(tokens) for tokens in sequences], dtype=np.int64)
    return Batch(tuple(sequences), ids, lengths, pad_side, vocabulary)


def after_cache(queries: Batch, keys: Batch) -> Batch:
    """`queries` at the end of their sequence, where they are fewer than its `keys`.

    So they stand when a model generates: keys of earlier tokens are in a cache, and the last query
    is the last key's own.
    """
    import numpy as np

    if queries.width >= keys.width:
        return queries
    return replace(queries, before=np.maximum(keys.lengths - queries.lengths, 0))


def _not_known(token: str, vocabulary: Tokens) -> str:
    """That a token has no id, and which ones come near it."""
    folded = {known.casefold(): known for known in vocabulary[:MOST_COMPARED]}
    near = difflib.get_close_matches(token.casefold(), list(folded), n=5, cutoff=0.6)
    names = [folded[name] for name in near] or list(vocabulary[:5])
    word = "near it" if near else f"{len(vocabulary)} tokens, the first of them"
    return (
        f"the token '{printable(token)}' is not in the vocabulary, which has {word}: "
        f"{' '.join(printable(name, 20) for name in names)}"
    )
