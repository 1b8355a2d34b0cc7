"""The coverage of all buffers, kept in memory by the one ingest that runs, and as a table for everybody else.

The records table is the truth and coverage is a view of it: the coverage table's commit notes the version of the
records up to which it was made. Whoever opens the ledger adds the names in files that came after that version. So a
crash between the two tables, and a restart with other batch boundaries, on another cluster or after the checkpoint
was lost, finds every name that is in the records.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cloud_jobs.errors import Fenced
from cloud_jobs.ingest.coverage import Coverage, DeviceStream, from_row, to_row
from cloud_jobs.lake import Lake
from telemetry import IntervalSet

WRITER = "ingest"
"""The name under which commits to the records are counted: the fence between two ingests."""
_RECORDS_VERSION = "records_version"
_RECENT_COMMITS = 10


class CoverageStore:
    """All coverage, as of `records_version` of the records table."""

    def __init__(self, lake: Lake, known: dict[DeviceStream, Coverage], records_version: int) -> None:
        self._lake = lake
        self.streams = known
        self.records_version = records_version

    @classmethod
    def open(cls, lake: Lake) -> CoverageStore:
        """Reads the coverage table and catches up with the records."""
        seen = int(lake.commit_metadata("coverage").get(_RECORDS_VERSION, -1))
        known = dict(from_row(row) for row in lake.rows("coverage").to_pylist())
        ledger = cls(lake, known, seen)
        records = lake.open("records")
        if records.version() > seen:
            for stream, seqs in _seqs_since(records, lake, seen):
                known[stream] = known.get(stream, Coverage()).with_received(seqs)
            ledger.records_version = records.version()
            ledger.save()
        return ledger

    @property
    def next_version(self) -> int:
        """The number under which the next commit to the records is to be made: compare-and-swap on their version."""
        return self.records_version + 1

    def confirm_commit(self, token: str) -> None:
        """Checks that the commit that carries `token` is in the records. Raises Fenced.

        Delta drops, without an error, a commit whose number another writer has used.
        """
        records = self._lake.open("records")
        if all(commit.get("userMetadata") != token for commit in records.history(_RECENT_COMMITS)):
            raise Fenced(expected_version=self.next_version, found_version=records.version())
        self.records_version = records.version()

    def update(self, coverage: dict[DeviceStream, Coverage]) -> None:
        """Takes over the new state of the buffers that a micro-batch touched."""
        self.streams.update(coverage)

    def save(self) -> None:
        """Writes the coverage table, as of the records' version that it reflects."""
        rows = [to_row(stream, coverage) for stream, coverage in sorted(self.streams.items())]
        self._lake.replace("coverage", rows, {_RECORDS_VERSION: str(self.records_version)})


def _seqs_since(records: DeltaTable, lake: Lake, version: int) -> Iterator[tuple[DeviceStream, IntervalSet]]:
    """The names in data files that a version of the records did not have."""
    for path in sorted(set(records.file_uris()) - _files_at(lake, version)):
        yield from _seqs_in(path)


def _files_at(lake: Lake, version: int) -> set[str]:
    """The data files of a version of the records; none where the version is no longer kept: then all are read."""
    try:
        return set(DeltaTable(lake.path("records"), version=version).file_uris()) if version >= 0 else set()
    except DeltaError:
        return set()


def _seqs_in(path: str) -> Iterator[tuple[DeviceStream, IntervalSet]]:
    seqs = pq.read_table(path, columns=["device", "epoch", "seq"])
    grouped = seqs.group_by(["device", "epoch"]).aggregate([("seq", "list")])
    for row in grouped.to_batches():
        for device, epoch, seqs in zip(row["device"], row["epoch"], row["seq_list"], strict=True):
            yield DeviceStream(device.as_py(), epoch.as_py()), IntervalSet.of(pc.unique(seqs.values).to_pylist())
