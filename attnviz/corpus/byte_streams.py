"""Files of documents as streams of bytes: unpacked, in an encoding whose lines end with 0x0A."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

from attnviz.errors import ConfigError, printable

PACKED = (".gz", ".zst")

CHUNK = 2**16
"""Bytes that are unpacked or decoded at a time."""


class SpoiledStreamError(Exception):
    """From here on a file cannot be read; says why."""


UNREADABLE = (OSError, EOFError, zlib.error, SpoiledStreamError)
"""What reading an unpacked stream raises."""


def unpacked(raw: BinaryIO, path: Path, shown: str) -> IO[bytes]:
    """The bytes of `raw`, whose `path` tells by its suffix how they are packed."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))
    if suffix == ".zst":
        try:
            import zstandard
        except ModuleNotFoundError:
            raise ConfigError(
                f"{shown} is packed with zstd, which pip install 'attnviz[corpus]' reads"
            ) from None
        return io.BufferedReader(_Changed(raw, _Zstd(zstandard)))
    return raw


def has_byte_lines(encoding: str) -> bool:
    """Whether a line end is the byte 0x0A in an encoding, and that byte nothing else."""
    return "\n".encode(encoding) == b"\n"


def as_utf8(stream: IO[bytes], encoding: str) -> IO[bytes]:
    """A stream of another encoding, UTF-16 say, as UTF-8."""
    return io.BufferedReader(_Changed(stream, _Recoder(encoding)))


class _Changed(io.RawIOBase):
    """A stream, chunk by chunk through `change`, which takes an empty chunk at the end."""

    def __init__(self, stream: IO[bytes], change: Callable[[bytes], bytes]) -> None:
        self._stream, self._change = stream, change
        self._left, self._ended = memoryview(b""), False

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._left and not self._ended:
            chunk = self._stream.read(CHUNK)
            self._ended = not chunk
            self._left = memoryview(self._change(chunk))
        n = min(len(target), len(self._left))
        target[:n] = self._left[:n]
        self._left = self._left[n:]
        return n


class _Zstd:
    """Frames one after the other. zstandard's own reader takes a file that is cut off for whole."""

    def __init__(self, zstandard: Any) -> None:
        self._zstandard = zstandard
        self._frame: Any = None
        self._spoiled = ""

    def __call__(self, chunk: bytes) -> bytes:
        if not chunk and self._frame is not None:
            self._spoiled = self._spoiled or "the file ends within a frame"
        if self._spoiled:
            raise SpoiledStreamError(self._spoiled)
        found = []
        try:
            while chunk:
                if self._frame is None:
                    self._frame = self._zstandard.ZstdDecompressor().decompressobj()
                found.append(self._frame.decompress(chunk))
                chunk = self._frame.unused_data if self._frame.eof else b""
                if self._frame.eof:
                    self._frame = None
        except self._zstandard.ZstdError as error:
            self._spoiled = printable(error)
            if not any(found):  # else what was sound comes first
                raise SpoiledStreamError(self._spoiled) from None
        return b"".join(found)


class _Recoder:
    """From an encoding to UTF-8. A lone surrogate passes, to be named with its line."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def __call__(self, chunk: bytes) -> bytes:
        try:
            text = self._decoder.decode(chunk, final=not chunk)
        except ValueError as error:
            raise SpoiledStreamError(f"it is not {printable(self._encoding)}: {error}") from None
        return text.encode("utf-8", "surrogatepass")
