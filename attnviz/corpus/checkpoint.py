"""What has been measured so far, in a file that is whole at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnviz.corpus.measured_shards import MeasuredShards
from attnviz.errors import InputError, printable, why_unreadable
from attnviz.measures.measures import Options
from attnviz.npy import read_npz

FORMAT, VERSION = "attnviz.stats.checkpoint", 4


@dataclass(frozen=True)
class Checkpoint:
    """A file that holds the sums of some shards of a corpus.

    `what` describes the corpus, the source and the options: only the same ones go on from it.
    """

    path: Path
    what: str

    def save(self, shards: Collection[int], part: MeasuredShards | None) -> None:
        """Write beside the file, then put it in its place: a crash leaves the old or the new."""
        facts = {
            "format": FORMAT,
            "version": VERSION,
            "what": self.what,
            "shards": _ranges(shards),
            "part": part and part.header(),
        }
        sums = {} if part is None else part.measures.state()
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with beside.open("wb") as stream:
                arrays = {"facts": np.array(json.dumps(facts)), **sums}
                np.savez(stream, allow_pickle=False, **arrays)
                stream.flush()
                os.fsync(stream.fileno())
            beside.replace(self.path)
        except OSError as error:  # a full disk names no file
            raise OSError(error.errno, error.strerror, os.fspath(self.path)) from None
        finally:
            beside.unlink(missing_ok=True)

    def load(self, options: Options) -> tuple[set[int], MeasuredShards | None]:
        """(numbers of the shards that are done, their measures if there are any).

        Nothing is done where there is no file yet: a job has one command line for its first start
        and for every later one. Raises `InputError` for another's file.
        """
        if not self.path.exists():
            return set(), None
        shown = printable(self.path)
        try:
            arrays = self._read()
            facts = json.loads(str(arrays.pop("facts")))
            if facts["format"] != FORMAT:
                raise ValueError("it has another format")
            if facts["version"] != VERSION:
                raise InputError(
                    f"{shown} has version {printable(facts['version'])}; this attnviz reads "
                    f"{VERSION}"
                )
            if facts["what"] == self.what:
                if facts["part"] is None:
                    return set(), None
                done = {i for start, stop in facts["shards"] for i in range(start, stop)}
                return done, MeasuredShards.of_state(facts["part"], arrays, options)
        except InputError:
            raise
        except Exception as error:  # of a file that somebody else wrote, anything can be wrong
            raise InputError(f"{shown} is no checkpoint: {printable(error)}") from None
        raise InputError(
            f"{shown} is of other documents, another model or other measures, and can only be "
            "resumed with the same; --force starts again"
        )

    def _read(self) -> dict[str, npt.NDArray[Any]]:
        shown = printable(self.path)
        try:
            return read_npz(self.path, at_most=10_000)
        except OSError as error:
            raise InputError(f"{shown}: {why_unreadable(self.path, error)}") from None
        except InputError as error:
            raise InputError(f"{shown} {error}") from None


def _ranges(numbers: Collection[int]) -> list[tuple[int, int]]:
    """0, 1, 2, 7 → (0, 3), (7, 8): what is done is nearly all of the beginning."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1] = (ranges[-1][0], number + 1)
        else:
            ranges.append((number, number + 1))
    return ranges
