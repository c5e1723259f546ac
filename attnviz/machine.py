"""What the machine can bear: free memory, asked before anything large is made."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from attnviz.errors import ConfigError, InputError

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")

LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a control group, version 2 and 1: the limit, what is used, and the entry of
`memory.stat` for the part of it that is only cache."""


def n_threads() -> int:
    """How many threads work is shared among: as many as torch has, where it is loaded.

    Where it is not, what torch would take: `OMP_NUM_THREADS`, or the processors that this process
    may use.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isascii() and asked.isdigit() and int(asked):
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory(cgroups: Path = CGROUPS, own: Path = OWN_CGROUPS) -> int:
    """Bytes that this process can still take: the machine's, or its container's where less.

    Containers and cluster jobs are limited by control groups (Linux); where there are none, the
    machine alone counts.
    """
    import psutil

    free = [int(psutil.virtual_memory().available)]
    for folder in _control_groups(cgroups, own):
        for limit, used, cache in LIMITS:
            try:
                taken = int((folder / used).read_text()) - _cached(folder, cache)
                free.append(int((folder / limit).read_text()) - taken)
            except (OSError, ValueError):  # not of this version, or "max": no limit
                continue
    return max(0, min(free))


def _control_groups(cgroups: Path, own: Path) -> Iterator[Path]:
    """The folders of this process's memory control groups, with all that contain them.

    A line of `own` is `number:controllers:path`; version 2 names no controllers, version 1 has a
    tree for each.
    """
    yield cgroups
    yield cgroups / "memory"
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        parts = [part for part in path.split("/") if part]
        if ".." not in parts:  # otherwise it lies outside of what this container is shown
            yield from (root.joinpath(*parts[:n]) for n in range(1, len(parts) + 1))


def _cached(folder: Path, entry: str) -> int:
    """Bytes that the kernel would give back when asked: file contents not used of late."""
    for line in (folder / "memory.stat").read_text().splitlines():
        name, _, number = line.partition(" ")
        if name == entry:
            return int(number)
    return 0


def require_memory(needed: int, what: str, instead: str) -> None:
    """Raise `InputError` when `needed` bytes are not free: what needs them, and what to do."""
    free = free_memory()
    if needed > free:
        raise InputError(
            f"{what} needs {human_bytes(needed)} of memory and {human_bytes(free)} are free; "
            f"{instead}"
        )


def human_bytes(n: int) -> str:
    """`n` bytes to three digits, in steps of 1024: 999 B, 1.5 KiB, 64 GiB."""
    size = float(n)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if size < 999.5 or unit == "PiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}" if size < 999.5 else f"{size:.0f} {unit}"


def require_package(package: str, what: str, extra: str) -> None:
    """Raise `ConfigError` where a package that `what` needs is not installed; nothing is imported.

    `extra` is the one of attnviz that brings it.
    """
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise ConfigError(
            f"{what} needs {package}, which is not installed: pip install 'attnviz[{extra}]'"
        )


def human_count(n: int) -> str:
    """`n` to three digits, in steps of 1000: 999, 1.05M, 12.7G; numbers under 10,000 are exact."""
    if n < 10_000:
        return str(n)
    size = float(n)
    for unit in ("", "k", "M", "G", "T", "P"):
        if size < 999.5:
            return f"{size:.3g}{unit}"
        size /= 1000
    return f"{size:.3g}E" if size < 999.5 else f"{size:.2e}E"
