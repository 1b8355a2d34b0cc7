"""What came into the central table, and when: read from the table's own log, not asked of the ingest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.parquet as pq

from cloud_jobs.ingest.coverage import Buffer
from cloud_jobs.lake import Lake
from deploy.drill.accounting import Commit, MicroBatch
from deploy.drill.names import Names, union
from telemetry import IntervalSet

_NAME = ["device", "epoch", "seq"]


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
        self._known: dict[Buffer, IntervalSet] = {}

    def commits(self) -> list[Commit]:
        """Every commit so far that brought names of this epoch, in order."""
        while (file := self._log / f"{self._version:020}.json").exists():
            names = self._names(file)
            if names:
                self._commits.append(Commit(file.stat().st_mtime, names))
                self._known = union(self._known, names)
            self._version += 1
        return list(self._commits)

    def names(self) -> Names:
        """Every name of this epoch that is in the table now."""
        self.commits()
        return self._known

    def batches(self, since_s: float) -> list[MicroBatch]:
        """The ingest's account of each micro-batch that was completed since a moment, in order."""
        rows = self._lake.rows("ingest_batches", ["committed_at", "records", "duplicates"]).to_pylist()
        found = [MicroBatch(row["committed_at"].timestamp(), row["records"], row["duplicates"]) for row in rows]
        return sorted(one for one in found if one.at_s >= since_s)

    def rows(self) -> int:
        """How many rows of the table carry this epoch, counted in the table itself."""
        dataset = self._lake.open("records").to_pyarrow_dataset()
        return int(dataset.count_rows(filter=pc.field("epoch") == self._epoch))

    def _names(self, file: Path) -> dict[Buffer, IntervalSet]:
        found: dict[Buffer, list[int]] = {}
        for path in _added(file):
            for device, seqs in self._names_in(self._log.parent / path):
                found.setdefault(Buffer(device, self._epoch), []).extend(seqs)
        return {buffer: IntervalSet.of(seqs) for buffer, seqs in found.items()}

    def _names_in(self, path: Path) -> Iterator[tuple[str, list[int]]]:
        names = pq.read_table(path, columns=_NAME, partitioning=None, filters=pc.field("epoch") == self._epoch)
        for row in names.group_by(["device"]).aggregate([("seq", "list")]).to_pylist():
            yield row["device"], row["seq_list"]


def _added(file: Path) -> Iterator[str]:
    for line in file.read_text(encoding="utf-8").splitlines():
        action: dict[str, Any] = json.loads(line)
        if "add" in action:
            yield unquote(action["add"]["path"])
