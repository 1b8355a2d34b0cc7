"""What can stop a job of the centre.

CloudError
├── SparkNotReady       Spark, Java or its master are not there
├── ExecutorsNotReady   executors cannot run the jobs: another Python, a missing package, a folder they do not see
├── LakeError           a table is missing, damaged, or not what this version writes
│   ├── UnknownSnapshot  no snapshot of that id was taken
│   └── OtherRecords    a derived table was computed from other records than those that are there
├── OtherLake           the checkpoints are not those of this lake as it is
├── LocationError       where the lake is cannot be used: its text, its address, its credentials
├── ClockError          this machine's clock is not that of the store: nothing is deleted, erased or dated by it
├── StoreUnavailable    the object store does not answer; what was committed is there, and what was not is not
├── Fenced              another writer has written to the records: this one must stop
├── CommitFailed        a commit was not made, or nobody knows; what it was for is done again
├── CommitConflict      another run of the same job has written its table: this one must stop
├── NotPublished        no cluster took the messages; they are published by the next run
├── ReferenceFileError  files of fences, tariffs or accounts have faults; none was published
├── ReferenceNotPublished  no cluster took them
├── NobodyTrusted       the settings do not say whose reference data is taken
├── SigningRefused      what is to be published cannot be signed, or would be refused where it arrives
└── BillingError        no bill can be made: see `billing.errors`
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

_MAX_SHOWN = 100


class CloudError(Exception):
    """Base of everything the jobs raise on purpose. `exit_status`: how a command ends that it stops."""

    exit_status: ClassVar[int] = 1


class SparkNotReady(CloudError):
    """Spark cannot be started as the settings want it; the message says what is missing or wrong."""


class ExecutorsNotReady(CloudError):
    """The executors of a cluster cannot run the jobs; `faults` has a sentence for each reason."""

    def __init__(self, faults: Sequence[str]) -> None:
        rest = [f"and {len(faults) - _MAX_SHOWN} more"] if len(faults) > _MAX_SHOWN else []
        super().__init__("\n".join(["the executors cannot run the jobs:", *faults[:_MAX_SHOWN], *rest]))
        self.faults = tuple(faults)


class LakeError(CloudError):
    """A table of the lake is missing, cannot be read, or has another schema than this version writes."""


class UnknownSnapshot(LakeError):
    """No snapshot of that id was taken in this lake."""

    def __init__(self, snapshot_id: str, newest: Sequence[str]) -> None:
        super().__init__(f"no snapshot {snapshot_id!r} was taken; the newest are: {', '.join(newest) or 'none'}")
        self.snapshot_id = snapshot_id


class OtherRecords(LakeError):
    """A derived table covers commits of the ingest that the records do not have: both are not of one lake's history."""

    def __init__(self, table: str, *, covered_number: int, found_number: int) -> None:
        super().__init__(
            f"table {table} was computed from other records than those that are there: it covers ingest number "
            f"{covered_number}, and the records are at {found_number}. One of the two was restored: "
            f"restore both from the same backup, or remove the folder of {table}, which is then computed again"
        )
        self.table = table


class OtherLake(CloudError):
    """A folder of checkpoints is used with another lake than it was made with, or with an earlier state of that."""

    def __init__(self, checkpoints: str, lake: str, reason: str) -> None:
        super().__init__(
            f"the checkpoints in {checkpoints} are not those of the lake {lake}: {reason}. Check `lake` and "
            "`checkpoints`. For a new lake, use another checkpoints folder. For a restored lake, restore the "
            "checkpoints of the same backup; or reset the subscription to a time before the backup and remove the "
            "folder, so that records are read again as duplicates and events are published again"
        )
        self.checkpoints, self.lake = checkpoints, lake


class ClockError(CloudError):
    """The clock of this machine and that of the lake's store differ too much for ages of files to be believed."""

    exit_status = os.EX_TEMPFAIL


class LocationError(CloudError):
    """Where the lake is cannot be used as it is said: in the settings, the environment or a file of credentials."""

    exit_status = os.EX_CONFIG


class StoreUnavailable(CloudError):
    """The object store does not answer, after a bounded number of tries. Nothing is half done: start again."""

    exit_status = os.EX_TEMPFAIL

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(f"the object store at {store} does not answer: {reason}; nothing is half done, start again")
        self.store = store


class Fenced(CloudError):
    """The records changed under this writer. Its command ends; a new start goes on from what the table holds.

    `expected_number`, `found_number`: the ingest number of the newest commit, as this writer knows it and as it is.
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
        self.expected_number = expected_number
        self.found_number = found_number


class CommitFailed(CloudError):
    """A commit to a table was not made, or whether it was made could not be seen. What it was for is done again."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"a commit to {table} failed: {reason}")
        self.table = table


class CommitConflict(CloudError):
    """A table changed between a run's reading and its writing. Nothing was written; the next run sees what is there."""

    def __init__(self, table: str) -> None:
        super().__init__(f"another run wrote to {table} at the same time; this one wrote nothing. Let one of them run.")
        self.table = table


class NotPublished(CloudError):
    """No cluster took the messages of a topic. They stay due, and the next run publishes them."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"{topic}: not published ({reason}); the rows are in the lake, and the next run publishes them"
        )
        self.topic = topic


class ReferenceFileError(CloudError):
    """Files of fences, tariffs or accounts cannot be published; `faults` has each one behind its file and place."""

    def __init__(self, faults: Sequence[str]) -> None:
        rest = [f"and {len(faults) - _MAX_SHOWN} more faults"] if len(faults) > _MAX_SHOWN else []
        super().__init__("\n".join(["nothing was published:", *faults[:_MAX_SHOWN], *rest]))
        self.faults = tuple(faults)


class ReferenceNotPublished(CloudError):
    """No cluster took all versions; `way_out` says what helps. Publishing them again is harmless."""

    def __init__(
        self, reasons: Sequence[str], way_out: str = "publish again, what arrived already changes nothing"
    ) -> None:
        super().__init__(f"not published ({'; '.join(reasons)}); {way_out}")
        self.reasons = tuple(reasons)


class NobodyTrusted(CloudError):
    """The settings do not say whose reference data is taken, or not in a way that can be used."""

    exit_status = os.EX_CONFIG


class SigningRefused(CloudError):
    """What is to be published cannot be signed as it is said, or would be refused where it arrives."""
