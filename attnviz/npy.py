"""Arrays from `.npy`, `.npz` and `.safetensors`, without pickle, and without trust in what a header
claims.

`np.load` makes room for whatever a header asks for; here nothing is made before the size of the
file has been found to agree with it. Large files are mapped: numbers come into memory when they are
looked at. bfloat16, which NumPy lacks, stays as two bytes a number, dtype `BFLOAT16`.
"""

from __future__ import annotations

import errno
import json
import mmap
import struct
import zipfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable
from attnviz.machine import human_bytes, require_memory

Array = npt.NDArray[Any]

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

MAPPED_FROM = 2**26
"""Bytes from which on a file of several arrays is mapped. A smaller one is read whole: its arrays
can be written to, and outlive the file."""

BFLOAT16 = np.dtype("V2")
"""bfloat16 as bytes; `np.save` of an ml_dtypes array, as JAX has them, writes the same."""

SAFETENSORS: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""Types of numbers by the names that safetensors gives them."""

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""What stands before a member of a zip archive: a mark, and the lengths of its name and extras."""


def as_numpy(given: Any) -> Array:
    """What NumPy, torch (on any device), JAX or a list holds; torch's bfloat16 becomes float32,
    exactly."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        given = given.float() if str(given.dtype) == "torch.bfloat16" else given
    return np.asarray(given)


def read_npy(path: Path) -> Array:
    """The array of a `.npy` file. Raises `InputError` for anything else, `OSError` as it comes."""
    with path.open("rb") as stream:
        return _read_array(stream, path.stat().st_size)


def map_npy(path: Path) -> Array:
    """The array of a `.npy` file, read-only, its numbers left on disk. Raises as `read_npy`."""
    with path.open("rb") as stream:
        shape, by_columns, dtype = _header(stream, path.stat().st_size)
        return _shaped(shape, by_columns, dtype, _map(stream), stream.tell())


def read_npz(path: Path, at_most: int, wanted: Container[str] | None = None) -> dict[str, Array]:
    """The arrays of an `.npz` archive by name, no more than `at_most`; `wanted` alone if given.

    What is not compressed in a large file is mapped, read-only. Raises `InputError` for anything
    else, `OSError` as it comes.
    """
    arrays: dict[str, Array] = {}
    with _archive(path) as (file, archive):
        numbers = _map(file) if path.stat().st_size >= MAPPED_FROM else None
        for name, member in _members(archive, at_most).items():
            if wanted is not None and name not in wanted:
                continue
            with archive.open(member.filename) as stream:
                if numbers is None or member.compress_type != zipfile.ZIP_STORED:
                    arrays[name] = _read_array(stream, member.file_size)
                    continue
                shape, by_columns, dtype = _header(stream, member.file_size)
                start = _start(file, member) + stream.tell()
            arrays[name] = _shaped(shape, by_columns, dtype, numbers, start)
    return arrays


def names_in_npz(path: Path, at_most: int) -> list[str]:
    """The names of the arrays in an `.npz` archive. Raises as `read_npz`."""
    with _archive(path) as (_, archive):
        return list(_members(archive, at_most))


def names_in_safetensors(path: Path) -> tuple[list[str], dict[str, str]]:
    """The names of the tensors in a `.safetensors` file, and its metadata.

    Raises `InputError` for anything else, `OSError` as it comes.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as archive:  # finds whatever is wrong with it
            return list(archive.keys()), archive.metadata() or {}
    except SafetensorError as error:
        raise InputError(f"is not a .safetensors file, or is damaged: {printable(error)}") from None


def read_safetensors(path: Path, wanted: Container[str] | None = None) -> dict[str, Array]:
    """The tensors of a `.safetensors` file by name; `wanted` alone if given.

    Those of a large file are mapped, read-only. Raises as `names_in_safetensors`.
    """
    names, _ = names_in_safetensors(path)
    with path.open("rb") as file:
        size = path.stat().st_size
        numbers = _map(file) if size >= MAPPED_FROM else None
        if numbers is None:
            require_memory(size, f"is a file of {human_bytes(size)}, which", "give a smaller one")
        length = int.from_bytes(file.read(8), "little")
        entries = json.loads(file.read(length))
        data = bytearray(file.read()) if numbers is None else numbers
    begin = 0 if numbers is None else 8 + length
    arrays = {}
    for name in names:
        if wanted is not None and name not in wanted:
            continue
        entry = entries[name]
        if entry["dtype"] not in SAFETENSORS:
            raise InputError(
                f"holds {printable(name, 40)} as {printable(entry['dtype'])}, which NumPy lacks; "
                "save it as F32"
            )
        dtype, start = SAFETENSORS[entry["dtype"]], begin + entry["data_offsets"][0]
        arrays[name] = _shaped(tuple(entry["shape"]), False, dtype, data, start)
    return arrays


@contextmanager
def _archive(path: Path) -> Iterator[tuple[BinaryIO, zipfile.ZipFile]]:
    """A zip archive and its file; whatever is wrong with it becomes an `InputError`."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            yield file, archive
    except InputError:
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise InputError("is a damaged archive: it names a place before its own begin") from None
    except zipfile.BadZipFile as error:
        raise InputError(f"is no .npz archive, or a damaged one: {printable(error)}") from None
    except Exception as error:  # a password, an unknown or broken compression: many kinds
        raise InputError(f"is an archive that cannot be read: {printable(error)}") from None


def _map(file: BinaryIO) -> mmap.mmap:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _members(archive: zipfile.ZipFile, at_most: int) -> dict[str, zipfile.ZipInfo]:
    members = archive.infolist()
    if len(members) > at_most:
        raise InputError(f"holds {len(members)} arrays; {at_most} at most are expected")
    if len({member.filename for member in members}) < len(members):
        raise InputError("holds two arrays of one name")
    return {member.filename.removesuffix(".npy"): member for member in members}


def _start(file: BinaryIO, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin. The directory knows only where its own header does."""
    file.seek(member.header_offset)
    _, name, extras = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    return member.header_offset + LOCAL_HEADER.size + int(name) + int(extras)


def _header(stream: Any, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and dtype of the array in `stream`, which holds `size`
    bytes, header and all; the stream then stands at its numbers."""
    try:
        version = np.lib.format.read_magic(stream)
        shape, by_columns, dtype = HEADERS[version](stream)
    except (zipfile.BadZipFile, OSError):
        raise
    except Exception:  # not its mark, a version for field names, a header that does not parse
        raise InputError("is not in NumPy's .npy form") from None
    if dtype.hasobject:
        raise InputError("holds pickled Python objects, which are never loaded; save numbers")
    claimed, left = prod(shape) * dtype.itemsize, size - stream.tell()
    if claimed != left or min(shape, default=0) < 0:
        raise InputError(
            f"is damaged: shape {printable(list(shape))} of {printable(dtype)} takes {claimed} "
            f"bytes, and {left} are there"
        )
    return shape, by_columns, dtype


def _read_array(stream: Any, size: int) -> Array:
    """The array in `stream`, which holds `size` bytes, header and all."""
    shape, by_columns, dtype = _header(stream, size)
    claimed = prod(shape) * dtype.itemsize
    what = f"holds an array of shape {printable(list(shape))}, which"
    require_memory(claimed, what, "give a smaller one")
    data = bytearray(claimed)
    if stream.readinto(data) != claimed:
        raise InputError("is damaged: it ends too early")
    return _shaped(shape, by_columns, dtype, data, 0)


def _shaped(
    shape: tuple[int, ...], by_columns: bool, dtype: np.dtype[Any], data: Any, offset: int
) -> Array:
    try:
        return np.ndarray(shape, dtype, data, offset, order="F" if by_columns else "C")
    except (ValueError, TypeError) as error:  # more axes than NumPy has; sizes past its integers
        raise InputError(f"has a shape that NumPy cannot hold: {printable(error)}") from None
