"""Whether the disk of a stack has room: looked at first, because bookies that find none only say so in a log."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from deploy.local.errors import DiskFull

__all__ = ["require_free_space"]

_FULL_SHARE = 0.99
"""From here on a bookie takes nothing any more: `diskUsageThreshold` in Pulsar's standalone.conf."""
_LEAST_BYTES = 100_000_000
"""Of a small disk: a stack that has just started took 30 MB, and its servers' logs grow."""
_MB = 1_000_000


class _Disk(NamedTuple):
    total: int
    used: int
    free: int


def require_free_space(folder: Path, usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage) -> None:
    """Raises DiskFull where Pulsar would take nothing. `usage`: bytes in all, used, and free for this user."""
    disk = _Disk(*usage(folder))
    needed = max(_LEAST_BYTES, disk.total - int(disk.total * _FULL_SHARE))
    if disk.free <= needed:
        raise DiskFull(folder, disk.free // _MB, -(-needed // _MB), disk.total // _MB)
