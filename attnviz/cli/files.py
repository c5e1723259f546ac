"""Output files: planned before anything is computed, written beside their place, moved in whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from attnviz.errors import AttnvizError, OutputError, printable
from attnviz.render.picture_formats import PICTURE_FORMATS

PICTURES = PICTURE_FORMATS
PAGES = (".html",)
RUNS = (".json", ".npz", ".safetensors")
DEFAULT_FOLDER = "attnviz-out"

MACHINE_FAULTS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ENOMEM,
    errno.EMFILE,
)


def kind_of(given: str) -> str:
    """`folder`, or the suffix of a known form. Raises `OutputError` for any other suffix."""
    path = Path(given)
    suffix = path.suffix.lower()
    formats = (*PICTURES, *PAGES, *RUNS)
    if given in ("", "-") or path.name in formats:
        raise OutputError(f"-o '{printable(given)}': a path is expected, out or out.png, say")
    if not suffix or given.endswith("/") or (path.is_dir() and suffix not in formats):
        if path.exists() and not path.is_dir():
            raise OutputError(f"-o {printable(path)} is a file; a folder is expected there")
        return "folder"
    if suffix not in formats:
        known = " ".join(formats)
        raise OutputError(
            f"-o {printable(path)}: unknown suffix {printable(suffix)}; known are {known}, "
            "or a folder (no suffix)"
        )
    return suffix


@dataclass
class Staging:
    """Files that are written under temporary names and moved into place together.

    Used as a context: on any failure, Ctrl-C included, the temporary files and the folders that
    were made for them are removed, and what was there before is untouched.
    """

    force: bool
    places: dict[Path, Path] = field(default_factory=dict)
    _made: list[Path] = field(default_factory=list)

    def plan(self, path: Path) -> Path:
        """Claim `path` and return the temporary one to write to; nothing is touched yet."""
        try:
            return self._plan(path)
        except OSError as error:  # a name too long, a loop of links
            raise OutputError(
                f"{printable(path)}: {(error.strerror or str(error)).lower()}"
            ) from None

    def _plan(self, path: Path) -> Path:
        shown = printable(path)
        final = Path(os.path.realpath(path))  # a link stays a link: what it points to is replaced
        if final in self.places:
            raise OutputError(f"{shown} would be written twice; give each output a path of its own")
        if final.is_dir():
            raise OutputError(f"{shown} is a folder; a file is expected there")
        if final.is_symlink() or (final.exists() and not final.is_file()):
            raise OutputError(f"{shown} is no file that can be replaced; give another path")
        if final.exists() and not self.force:
            raise OutputError(f"{shown} exists; --force replaces it, or give another path with -o")
        if final.exists() and not os.access(final, os.W_OK):
            raise OutputError(f"{shown} is read-only; give another path")
        parent = next(p for p in final.parents if p.exists())
        if not parent.is_dir():
            raise OutputError(f"{shown}: {printable(parent)} is a file; a folder is expected there")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise OutputError(f"{shown}: no permission to write in {printable(parent)}")
        self.places[final] = final.with_name(f".{os.getpid()}.{len(self.places)}{final.suffix}")
        return self.places[final]

    def __enter__(self) -> Staging:
        return self

    def write(self, writers: Iterable[Callable[[], object]]) -> None:
        """Make the folders, call each writer, move everything into place."""
        try:
            for final in self.places:
                self._make_folder(final.parent)
            for writer in writers:
                writer()
            for final, temporary in self.places.items():
                if final.exists():  # what was private stays private
                    temporary.chmod(final.stat().st_mode & 0o7777)
                temporary.replace(final)
            self._made.clear()
        except OSError as error:
            places = {str(temporary): final for final, temporary in self.places.items()}
            begun = [final for final, temporary in self.places.items() if temporary.exists()]
            place = places.get(str(error.filename), error.filename or [*self.places, *begun][-1])
            reason = printable((error.strerror or str(error)).lower())
            kind = AttnvizError if error.errno in MACHINE_FAULTS else OutputError
            raise kind(f"{printable(place)} cannot be written: {reason}") from error

    def __exit__(self, *_: object) -> None:
        for temporary in self.places.values():
            with suppress(OSError):
                temporary.unlink()
        for folder in reversed(self._made):
            with suppress(OSError):  # somebody else put a file there meanwhile
                folder.rmdir()

    def _make_folder(self, folder: Path) -> None:
        for path in reversed([p for p in (folder, *folder.parents) if not p.exists()]):
            path.mkdir()
            self._made.append(path)
