"""What the machine can bear: free memory, asked before anything large is made."""

from __future__ import annotations

from pathlib import Path

from attnviz.errors import InputError

CGROUP = Path("/sys/fs/cgroup")


def free_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that this process can still take: the machine's, or its container's where less."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, int((cgroup / limit).read_text()) - int((cgroup / used).read_text()))
        except (OSError, ValueError):  # no such control group, or "max": no limit
            continue
    return max(free, 0)


def require_memory(needed: int, what: str, instead: str) -> None:
    """Raise `InputError` when `needed` bytes are not free; it says what needs them, and `instead`."""
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
        if size < 1000 or unit == "PiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"
