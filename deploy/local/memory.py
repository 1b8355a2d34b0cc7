"""Memory of a process and its children, read from Linux's /proc."""

from pathlib import Path

__all__ = ["children", "resident_bytes"]

_PROC = Path("/proc")


def children(pid: int) -> list[int]:
    """Ids of the direct children of all threads of a process; empty when it is gone."""
    found: list[int] = []
    for file in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            found += [int(word) for word in file.read_text().split()]
        except OSError:
            continue
    return found


def resident_bytes(pid: int) -> int:
    """Resident bytes of a process and all its descendants; shared pages are counted in proportion (PSS)."""
    return _proportional_bytes(pid) + sum(resident_bytes(child) for child in children(pid))


def _proportional_bytes(pid: int) -> int:
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
