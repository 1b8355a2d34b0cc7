"""What came into the central table, and when: read from the table's own log, not asked of the ingest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.parquet as pq

from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.tables import Lake
from deploy.drill.findings import BatchCounts, Commit
from deploy.drill.record_ids import RecordIds, union
from telemetry import IntervalSet

_RECORD_ID = ["tenant", "device", "epoch", "seq"]


class CentralTable:
    """The records table and the ingest's account, for the names of some epochs.

    `commits` reads only what is new since the last call: it may be asked several times a second. The table is only
    ever appended to while a drill runs.
    """

    def __init__(self, lake: Lake, epoch: int) -> None:
        self._lake = lake
        self._epoch = epoch
        self._log = Path(lake.path("records")) / "_delta_log"
        self._version = 0
        self._commits: list[Commit] = []
        self._known: dict[DeviceStream, IntervalSet] = {}

    def commits(self) -> list[Commit]:
        """Every commit so far that brought names of this epoch, in order."""
        while (file := self._log / f"{self._version:020}.json").exists():
            seqs = self._record_ids(file)
            if seqs:
                self._commits.append(Commit(file.stat().st_mtime, seqs))
                self._known = union(self._known, seqs)
            self._version += 1
        return list(self._commits)

    def record_ids(self) -> RecordIds:
        """Every name of this epoch that is in the table now."""
        self.commits()
        return self._known

    def batches(self, since_s: float) -> list[BatchCounts]:
        """The ingest's account of each micro-batch that was completed since a moment, in order."""
        rows = self._lake.rows("ingest_batches", ["committed_at", "records", "duplicates"]).to_pylist()
        found = [BatchCounts(row["committed_at"].timestamp(), row["records"], row["duplicates"]) for row in rows]
        return sorted(one for one in found if one.at_s >= since_s)

    def rows(self) -> int:
        """How many rows of the table carry this epoch, counted in the table itself."""
        # A set of record ids cannot hold one twice: only rows show a duplicate.
        dataset = self._lake.dataset("records", self._lake.open("records"))
        return int(dataset.count_rows(filter=pc.field("epoch") == self._epoch))

    def _record_ids(self, file: Path) -> dict[DeviceStream, IntervalSet]:
        seqs_of: dict[DeviceStream, list[int]] = {}
        for path in _added(file):
            for stream, seqs in self._record_ids_in(self._log.parent / path):
                seqs_of.setdefault(stream, []).extend(seqs)
        return {stream: IntervalSet.of(seqs) for stream, seqs in seqs_of.items()}

    def _record_ids_in(self, path: Path) -> Iterator[tuple[DeviceStream, list[int]]]:
        seqs = pq.read_table(path, columns=_RECORD_ID, partitioning=None, filters=pc.field("epoch") == self._epoch)
        for row in seqs.group_by(["tenant", "device"]).aggregate([("seq", "list")]).to_pylist():
            yield DeviceStream(row["tenant"], row["device"], self._epoch), row["seq_list"]


def _added(file: Path) -> Iterator[str]:
    for line in file.read_text(encoding="utf-8").splitlines():
        action: dict[str, Any] = json.loads(line)
        if "add" in action:
            # Delta's log has the paths of files percent-encoded.
            yield unquote(action["add"]["path"])
