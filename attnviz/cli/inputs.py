"""From flags to token batches, mask rules and remarks for the person."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnviz import tokens as batches
from attnviz.cli.options import InputFlags, MaskFlags
from attnviz.errors import InputError, printable
from attnviz.masks import Rule, notes_on, rules_from
from attnviz.wording import plural

if TYPE_CHECKING:
    from attnviz.config import AttentionConfig
    from attnviz.tokens import Batch, Reading

BUILT_IN = "The animal didn't cross the street because it was too tired."


@dataclass(frozen=True)
class TextInput:
    """Token sequences of queries and, for cross attention, of keys; not padded yet.

    `known` is the vocabulary of trained weights, if there is one.
    """

    queries: tuple[batches.Tokens, ...]
    keys: tuple[batches.Tokens, ...] | None
    notices: tuple[str, ...]
    known: batches.Tokens | None = None

    @property
    def vocabulary(self) -> batches.Tokens:
        """The one that is known; else of queries and keys together, queries' tokens first."""
        if self.known is not None:
            return self.known
        return batches.make_vocabulary((*self.queries, *(self.keys or ())))

    def lengths(self, flags: InputFlags) -> dict[str, int]:
        """The sizes that the padded batch will have, by axis name."""
        queries = max(flags.pad_to or 0, *map(len, self.queries))
        keys = queries if self.keys is None else max(map(len, self.keys))
        return {"B": len(self.queries), "Tq": queries, "Tk": keys, "V": len(self.vocabulary)}


def read_sequences(flags: InputFlags, tokenizer: str | None = None) -> TextInput:
    """Read what the flags name; with nothing named, a pipe; with no pipe, the built-in sentence.

    `tokenizer` is that of the flags when left out.
    """
    tokenizer = flags.tokenizer if tokenizer is None else tokenizer
    readings = []
    if flags.text:
        readings.append(_from_arguments(flags.text, tokenizer))
    readings += [_read(path, flags, tokenizer) for path in flags.file or ()]
    if not readings:
        if is_piped():
            readings.append(_read(Path("-"), flags, tokenizer))
        else:
            built_in = batches.from_texts([BUILT_IN], tokenizer)
            notice = f'no text was given: using "{BUILT_IN}"'
            readings.append(batches.Reading(built_in.sequences, (notice,)))
    keys = None
    if flags.keys:
        keys = _from_arguments(flags.keys, tokenizer)
    elif flags.key_file:
        keys = _read(flags.key_file, flags, tokenizer)
    queries = tuple(s for reading in readings for s in reading.sequences)
    notices = [notice for reading in readings for notice in reading.notices]
    if keys is not None:
        notices += keys.notices
    batches.require_tokens(queries)
    key_sequences = None if keys is None else _matched(keys.sequences, len(queries))
    return TextInput(queries, key_sequences, tuple(notices))


def make_batches(
    flags: InputFlags, text: TextInput, config: AttentionConfig
) -> tuple[Batch, Batch | None]:
    """Pad queries and keys; both use one vocabulary.

    Raises `InputError` first when the maps of such batches would not fit in memory.
    """
    from attnviz.sources.from_config import require_run_memory

    lengths = text.lengths(flags)
    require_run_memory(config, lengths["B"], lengths["Tq"], lengths["Tk"])
    return make_long_batches(flags, text)


def make_long_batches(flags: InputFlags, text: TextInput) -> tuple[Batch, Batch | None]:
    """The same of texts whose maps are not held whole."""
    known = text.vocabulary
    queries = batches.make_batch(text.queries, known, flags.pad_to, flags.pad_side)
    if text.keys is None:
        return queries, None
    return queries, batches.make_batch(text.keys, known, None, flags.pad_side)


def make_rules(
    flags: MaskFlags, queries: Batch, keys: Batch | None, n_heads: int
) -> tuple[list[Rule], list[str]]:
    """The rules that the flags ask for, and notes on them."""
    source, settings = queries if keys is None else keys, flags.settings()
    rules = rules_from(settings, queries, source, n_heads)
    return rules, notes_on(settings, queries, source)


def named_files(texts: Iterable[str]) -> list[str]:
    """A remark for each text that is the name of a file: it may be meant for --file."""
    return [
        f"{printable(text)} is taken as a text; --file reads the file of that name"
        for text in texts
        if os.path.isfile(text)  # noqa: PTH113 - a text may be no path at all
    ]


def _from_arguments(texts: Sequence[str], tokenizer: str) -> Reading:
    """Texts off the command line. In an ASCII locale Python keeps their bytes as surrogates."""
    found = []
    for text in texts:
        try:
            found.append(os.fsencode(text).decode())
        except UnicodeDecodeError as error:
            raise InputError(f"the text is not utf-8: byte {error.start} is wrong") from None
    reading = batches.from_texts(found, tokenizer)
    return batches.Reading(reading.sequences, (*named_files(texts), *reading.notices))


def _read(path: Path, flags: InputFlags, tokenizer: str) -> Reading:
    if path == Path("-"):
        if sys.stdin is None or sys.stdin.closed:
            raise InputError("standard input is closed; give TEXT or --file")
        return batches.from_file(None, sys.stdin.buffer, tokenizer, flags.encoding)
    return batches.read_path(path, tokenizer, flags.encoding)


def is_piped() -> bool:
    """Whether standard input is a pipe or a file; a terminal or /dev/null is not."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):  # closed, or not a real stream
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _matched(keys: tuple[batches.Tokens, ...], n: int) -> tuple[batches.Tokens, ...]:
    """As many key sequences as query sequences; a single one serves all."""
    if len(keys) == n:
        return keys
    if len(keys) == 1:
        return keys * n
    fit = "1" if n == 1 else f"{n}, or 1 for all"
    raise InputError(f"{len(keys)} key sequences for {plural(n, 'query sequence')}; give {fit}")
