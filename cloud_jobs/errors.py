"""Errors of the centre's jobs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

_MAX_SHOWN = 100


class CloudError(Exception):
    """Base of all expected errors of the jobs. `exit_status`: that of a command."""

    exit_status: ClassVar[int] = 1


class ExecutorsNotReady(CloudError):
    def __init__(self, faults: Sequence[str]) -> None:
        rest = [f"and {len(faults) - _MAX_SHOWN} more"] if len(faults) > _MAX_SHOWN else []
        super().__init__("\n".join(["the executors cannot run the jobs:", *faults[:_MAX_SHOWN], *rest]))


class LakeError(CloudError):
    """A table of the lake is missing, unreadable, or of another version."""


class OtherRecords(LakeError):
    def __init__(self, table: str, *, covered_number: int, found_number: int) -> None:
        super().__init__(
            f"table {table} covers ingest number {covered_number}, but the records end at {found_number}: one of the "
            f"two was restored. Restore both from the same backup, or remove the folder of {table} and run its job, "
            "which computes it again"
        )


class OtherLake(CloudError):
    def __init__(self, checkpoints: str, lake: str, reason: str) -> None:
        super().__init__(
            f"the checkpoints in {checkpoints} are not those of the lake {lake}: {reason}. Check `lake` and "
            "`checkpoints`. For a new lake, use another checkpoints folder. For a restored lake, restore the "
            "checkpoints of the same backup; or reset the subscription to a time before the backup and remove the "
            "folder, so that records are read again as duplicates and events are published again"
        )


class ClockError(CloudError):
    """The clocks of this machine and of the lake's store differ too much to judge the age of files."""

    exit_status = os.EX_TEMPFAIL


class LocationError(CloudError):
    """The location of the lake is invalid in the settings, the environment or the credentials file."""

    exit_status = os.EX_CONFIG


class StoreUnavailable(CloudError):
    exit_status = os.EX_TEMPFAIL

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(f"the object store at {store} does not answer: {reason}; nothing is half done, start again")


class Fenced(CloudError):
    """Another writer changed the records; this one stops, and a new start continues from the table.

    `expected_number`, `found_number`: the newest ingest number, as this writer knows it and as it is.
    """

    def __init__(self, *, expected_number: int, found_number: int) -> None:
        stops = "this one stops, so that no record is counted twice"
        super().__init__(
            f"another ingest wrote to the records (ingest number {found_number}, this one knows {expected_number}); "
            f"{stops}. Let one of the two run."
            if found_number >= expected_number
            else f"a table was restored from a backup, or created again, while this ingest ran (it is at ingest number "
            f"{found_number}, this one knows {expected_number}); {stops}."
        )


class CommitFailed(CloudError):
    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"a commit to {table} failed: {reason}")


class CommitNotDurable(CloudError):
    """A commit is in the table, but a power cut can undo it."""

    exit_status = os.EX_IOERR

    def __init__(self, table: str, version: int, reason: str) -> None:
        super().__init__(
            f"{table} was written (version {version}), but the disk did not confirm it: {reason}; a power cut can undo "
            "it. Send no document of this command. Repair the disk, mount it again and repeat the command"
        )


class CommitConflict(CloudError):
    def __init__(self, table: str) -> None:
        super().__init__(f"another run wrote to {table} at the same time; this one wrote nothing. Let one of them run.")


class NotPublished(CloudError):
    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"{topic}: not published ({reason}); the rows are in the lake, and the next run publishes them"
        )


class ReferenceFileError(CloudError):
    def __init__(self, faults: Sequence[str]) -> None:
        rest = [f"and {len(faults) - _MAX_SHOWN} more faults"] if len(faults) > _MAX_SHOWN else []
        super().__init__("\n".join(["nothing was published:", *faults[:_MAX_SHOWN], *rest]))
        self.faults = tuple(faults)


class ReferenceNotPublished(CloudError):
    def __init__(
        self, reasons: Sequence[str], way_out: str = "publish again, what arrived already changes nothing"
    ) -> None:
        super().__init__(f"not published ({'; '.join(reasons)}); {way_out}")


class NobodyTrusted(CloudError):
    """The settings do not say whose reference data is accepted."""

    exit_status = os.EX_CONFIG
