"""The time of day as the lake's own store has it: by it its files got their ages.

A machine whose clock is wrong would take young files for old ones, today's positions for those of long ago, and date
invoices by years that have not come.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

from cloud_jobs.errors import ClockError, LakeError
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.tables import Lake

CLOCK: Final = "clock-"
"""How the names of the files begin that are written to learn the time."""
MAX_SKEW: Final = timedelta(minutes=5)
"""So far the clock of a machine may be from that of the store, either way."""


def store_time(lake: Lake) -> datetime:
    """The time that a file gets which is written now. Raises LakeError, also if there is no lake; StoreUnavailable."""
    lake.check("records")
    files, path = lake.location.files(), _path()
    try:
        with lake.location.errors_named():
            try:
                with files.open_output_stream(path) as file:
                    file.write(b"what time it is")
                written: datetime = files.get_file_info(path).mtime
            finally:
                with suppress(FileNotFoundError):
                    files.delete_file(path)
    except OSError as error:
        # a full disk, or no right to write
        raise LakeError(f"nothing can be written into the lake {lake.location}: {error_text(error)}") from error
    return written.astimezone(UTC)


def _path() -> str:
    return f"{CLOCK}{uuid4().hex}"


def check_clock(now: datetime, stored: datetime) -> None:
    """Raises ClockError if a machine's clock is not that of the store."""
    if abs(now - stored) > MAX_SKEW:
        raise ClockError(
            f"this machine's clock says {now.isoformat(timespec='seconds')}, that of the lake's store"
            f" {stored.isoformat(timespec='seconds')}: nothing is erased, merged, deleted or dated by a wrong clock"
        )


def checked_time(lake: Lake) -> datetime:
    """The time of this machine's clock, which is that of the store: what is dated by it stays so for ever.

    Raises ClockError, LakeError, StoreUnavailable.
    """
    now = datetime.now(UTC)
    check_clock(now, store_time(lake))
    return now
