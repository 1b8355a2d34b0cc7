"""The coverage of all device streams, kept in memory by the one ingest that runs, and as a table for everybody else.

The records table is the truth and coverage is a view of it: the coverage table's commit notes the version of the
records up to which it was made. Whoever opens the store adds the seqs in files that came after that version. So a
crash between the two tables, and a restart with other batch boundaries, on another cluster or after the checkpoint
was lost, finds every record id that is in the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cloud_jobs.errors import Fenced
from cloud_jobs.lake.coverage import Coverage, DeviceStream, to_row
from cloud_jobs.lake.tables import Lake
from telemetry import IntervalSet

WRITER = "ingest"
"""The name under which commits to the records are counted: the fence between two ingests."""


class CoverageStore:
    """All coverage, as of `records_version` of the records table."""

    def __init__(self, lake: Lake, known: dict[DeviceStream, Coverage], records_version: int) -> None:
        self._lake = lake
        self.streams = known
        self.records_version = records_version

    @classmethod
    def open(cls, lake: Lake) -> CoverageStore:
        """Reads the coverage table and catches up with the records."""
        # only the newest commit counts: one that says nothing may have taken rows away, and then all records are read
        seen = lake.covered_version("coverage", commits=1)
        known = lake.coverage()
        store = cls(lake, known, seen)
        records = lake.open("records")
        if records.version() > seen:
            for stream, seqs in _seqs_since(records, lake, seen):
                known[stream] = known.get(stream, Coverage()).with_received(seqs)
            store.records_version = records.version()
            store.save()
        return store

    @property
    def next_version(self) -> int:
        """The number under which the next commit to the records is to be made: compare-and-swap on their version."""
        return self.records_version + 1

    def after_commit(self, *, made: bool) -> None:
        """Takes over the records' version after a commit under `next_version`. Raises Fenced if it was not made."""
        version = self._lake.open("records").version()
        if not made:
            raise Fenced(expected_version=self.next_version, found_version=version)
        self.records_version = version

    def update(self, coverage: dict[DeviceStream, Coverage]) -> None:
        """Takes over the new state of the streams that a micro-batch touched."""
        self.streams.update(coverage)

    def save(self) -> None:
        """Writes the coverage table, as of the records' version that it reflects."""
        rows = [to_row(stream, coverage) for stream, coverage in sorted(self.streams.items())]
        self._lake.replace("coverage", rows, covers=self.records_version)


def _seqs_since(records: DeltaTable, lake: Lake, version: int) -> Iterator[tuple[DeviceStream, IntervalSet]]:
    """The seqs in data files that a version of the records did not have."""
    for path in sorted(set(records.file_uris()) - _files_at(lake, version)):
        # a path of Delta's is a URI without its scheme
        yield from _seqs_in(unquote(path))


def _files_at(lake: Lake, version: int) -> set[str]:
    """The data files of a version of the records; none where the version is no longer kept: then all are read."""
    try:
        return set(lake.open("records", version).file_uris()) if version >= 0 else set()
    except DeltaError:
        return set()


def _seqs_in(path: str) -> Iterator[tuple[DeviceStream, IntervalSet]]:
    seqs = pq.read_table(path, columns=["device", "epoch", "seq"])
    grouped = seqs.group_by(["device", "epoch"]).aggregate([("seq", "list")])
    for row in grouped.to_batches():
        for device, epoch, seqs in zip(row["device"], row["epoch"], row["seq_list"], strict=True):
            yield DeviceStream(device.as_py(), epoch.as_py()), IntervalSet.of(pc.unique(seqs.values).to_pylist())
