"""The archives of `torch.save`, looked at before torch opens them."""

from __future__ import annotations

import zipfile
from pathlib import Path

from attnviz.errors import InputError, printable


def is_archive(path: Path) -> bool:
    """Whether this is a zip as torch writes it; files of before 2020 are none.

    torch.save never compresses: an archive that does is no file of its, and may be a bomb. Raises
    `InputError` for such a one and for a damaged one, `OSError` as it comes.
    """
    try:
        if not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except OSError:
        raise
    except Exception as error:  # BadZipFile; names that are no text, a version of the future
        raise InputError(f"is a damaged file of torch.save: {printable(error)}") from None
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise InputError("is a compressed archive, which torch.save never writes")
    return True
