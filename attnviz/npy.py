"""NumPy's file forms, read without pickle, and without trust in what a header claims.

`np.load` makes room for whatever a header asks for; here nothing is made before the size of the
file has been found to agree with it.
"""

from __future__ import annotations

import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.errors import InputError, printable
from attnviz.machine import require_memory

Array = npt.NDArray[Any]

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npy(path: Path) -> Array:
    """The array of a `.npy` file. Raises `InputError` for anything else, `OSError` as it comes."""
    with path.open("rb") as stream:
        return _read_array(stream, path.stat().st_size)


def read_npz(path: Path, at_most: int) -> dict[str, Array]:
    """The arrays of an `.npz` archive by name, no more than `at_most`.

    Raises `InputError` for anything else, `OSError` as it comes.
    """
    arrays: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if len(members) > at_most:
                raise InputError(f"holds {len(members)} arrays; {at_most} at most are expected")
            if len({member.filename for member in members}) < len(members):
                raise InputError("holds two arrays of one name")
            for member in members:
                with archive.open(member.filename) as stream:
                    array = _read_array(stream, member.file_size)
                arrays[member.filename.removesuffix(".npy")] = array
    except (InputError, OSError):
        raise
    except zipfile.BadZipFile as error:
        raise InputError(f"is no .npz archive, or a damaged one: {printable(error)}") from None
    except Exception as error:  # a password, an unknown or broken compression: many kinds
        raise InputError(f"is an archive that cannot be read: {printable(error)}") from None
    return arrays


def _read_array(stream: Any, size: int) -> Array:
    """The array in `stream`, which holds `size` bytes, header and all."""
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
    what = f"holds an array of shape {printable(list(shape))}, which"
    require_memory(claimed, what, "give a smaller one")
    data = bytearray(claimed)
    if stream.readinto(data) != claimed:
        raise InputError("is damaged: it ends too early")
    try:
        return np.ndarray(shape, dtype, buffer=data, order="F" if by_columns else "C")
    except (ValueError, TypeError) as error:  # more axes than NumPy has; sizes past its integers
        raise InputError(f"has a shape that NumPy cannot hold: {printable(error)}") from None
