"""NumPy's file forms, read without pickle, and without trust in what a header claims.

`np.load` makes room for whatever a header asks for; here nothing is made before the size of the
file has been found to agree with it. What is mapped stays on disk until it is looked at.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
from collections.abc import Container
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable
from attnviz.machine import require_memory

Array = npt.NDArray[Any]

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

MAPPED_FROM = 2**26
"""Bytes from which on an array in an archive is mapped. A smaller one is read whole, and its
checksum tells whether it is damaged."""

LOCAL_HEADER = struct.Struct("<4s22xHH")
"""What stands before a member of a zip archive: a mark, and the lengths of its name and extras."""


def read_npy(path: Path) -> Array:
    """The array of a `.npy` file. Raises `InputError` for anything else, `OSError` as it comes."""
    with path.open("rb") as stream:
        return _read_array(stream, path.stat().st_size)


def map_npy(path: Path) -> Array:
    """The array of a `.npy` file, read-only, its numbers left on disk. Raises as `read_npy`."""
    with path.open("rb") as stream:
        header = _header(stream, path.stat().st_size)
        return mapped(stream, stream.tell(), *header)


def read_npz(path: Path, at_most: int, wanted: Container[str] | None = None) -> dict[str, Array]:
    """The arrays of an `.npz` archive by name, no more than `at_most`; `wanted` alone if given.

    Large ones that are not compressed are mapped, read-only. Raises `InputError` for anything
    else, `OSError` as it comes.
    """
    arrays: dict[str, Array] = {}
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            for name, member in _members(archive, at_most).items():
                if wanted is not None and name not in wanted:
                    continue
                with archive.open(member.filename) as stream:
                    if member.compress_type or member.file_size < MAPPED_FROM:
                        arrays[name] = _read_array(stream, member.file_size)
                        continue
                    header = _header(stream, member.file_size)
                    place = _start(file, member) + stream.tell()
                arrays[name] = mapped(file, place, *header)
    except (InputError, OSError):
        raise
    except zipfile.BadZipFile as error:
        raise InputError(f"is no .npz archive, or a damaged one: {printable(error)}") from None
    except Exception as error:  # a password, an unknown or broken compression: many kinds
        raise InputError(f"is an archive that cannot be read: {printable(error)}") from None
    return arrays


def names_in_npz(path: Path, at_most: int) -> list[str]:
    """The names of the arrays in an `.npz` archive. Raises as `read_npz`."""
    try:
        with zipfile.ZipFile(path) as archive:
            return list(_members(archive, at_most))
    except zipfile.BadZipFile as error:
        raise InputError(f"is no .npz archive, or a damaged one: {printable(error)}") from None


def mapped(
    file: BinaryIO, offset: int, shape: tuple[int, ...], by_columns: bool, dtype: np.dtype[Any]
) -> Array:
    """The array that stands at `offset` of `file`, read-only, its numbers left on disk."""
    if prod(shape) == 0:
        return _shaped(shape, by_columns, dtype, b"", 0)
    numbers = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if offset + prod(shape) * dtype.itemsize > len(numbers):
        raise InputError("is damaged: it ends too early")
    return _shaped(shape, by_columns, dtype, numbers, offset)


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
