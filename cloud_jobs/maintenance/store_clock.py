"""The time of day as the lake's own store has it: by it its files got their ages.

A machine whose clock is wrong would take young files for old ones, and today's positions for those of long ago.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

from cloud_jobs.errors import ClockError
from cloud_jobs.lake.tables import Lake

MAX_SKEW: Final = timedelta(minutes=5)
"""So far the clock of a machine may be from that of the store, either way."""


def store_time(lake: Lake) -> datetime:
    """The time that a file gets which is written now. Raises OSError, StoreUnavailable."""
    files, path = lake.location.files(), f"clock-{uuid4().hex}"
    with lake.location.errors_named():
        with files.open_output_stream(path) as file:
            file.write(b"what time it is")
        try:
            written: datetime = files.get_file_info(path).mtime
        finally:
            files.delete_file(path)
    return written.astimezone(UTC)


def check_clock(now: datetime, stored: datetime) -> None:
    """Raises ClockError if a machine's clock is not that of the store."""
    if abs(now - stored) > MAX_SKEW:
        raise ClockError(
            f"this machine's clock says {now.isoformat(timespec='seconds')}, that of the lake's store"
            f" {stored.isoformat(timespec='seconds')}: nothing is erased, merged or deleted by a wrong clock"
        )
