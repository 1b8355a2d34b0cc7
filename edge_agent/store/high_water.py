"""The head behind the last commit, in a small file that is not synced: shows a log that was cut.

SQLite takes a log that was cut, or of which a frame is damaged, for one that ends there. The commits behind the cut are
gone without a trace, and the lineage file knows only what the head never was beyond. This file is written behind each
commit. What it says can be too old (after a power cut) and never too new: a head that it knows was committed. It is
believed within the bound of the lineage, so a damaged one declares no more than a lost log does.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from struct import Struct

HIGH_WATER = "head"
_MARK = Struct(">QQ")


def read_high_water(folder: Path, epoch: int) -> int:
    """The highest head that is known of an epoch; 0 if none is."""
    with suppress(OSError):
        data = (folder / HIGH_WATER).read_bytes()
        if len(data) == _MARK.size and _MARK.unpack(data)[0] == epoch:
            return int(_MARK.unpack(data)[1])
    return 0


def write_high_water(folder: Path, epoch: int, head: int) -> None:
    """Notes the head of an epoch, in place, as far as the file system lets it."""
    with suppress(OSError):
        descriptor = os.open(folder / HIGH_WATER, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, _MARK.pack(epoch, head), 0)
        finally:
            os.close(descriptor)
