"""What came into the central table, and when: read from the table's own log, not asked of the ingest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.parquet as pq

from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.tables import Lake
from deploy.drill.findings import BatchCounts, Commit
from deploy.drill.record_ids import RecordIds, union
from waybill.record import IntervalSet

_RECORD_ID = ["tenant", "device", "epoch", "seq"]


class CentralTable:
    """The records table and the ingest's account, for the names of some epochs.

    `commits` reads only what is new since the last call: it may be asked several times a second. The table is only
    ever appended to while a drill runs.
    """

    def __init__(self, lake: Lake, epoch: int) -> None:
        self._lake = lake
        self._epoch = epoch
        self._files = lake.files("records")
        self._version = 0
        self._commits: list[Commit] = []
        self._known: dict[DeviceStream, IntervalSet] = {}

    def commits(self) -> list[Commit]:
        """Every commit so far that brought names of this epoch, in order."""
        while (actions := self._actions(self._version)) is not None:
            seqs = self._record_ids(actions)
            if seqs:
                self._commits.append(Commit(_committed_s(actions), seqs))
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

    def _actions(self, version: int) -> list[dict[str, Any]] | None:
        """What a commit did, as Delta's log has it; None for one that was not made yet."""
        try:
            with self._files.open_input_file(f"_delta_log/{version:020}.json") as file:
                return [json.loads(line) for line in file.read().splitlines()]
        except FileNotFoundError:
            return None

    def _record_ids(self, actions: list[dict[str, Any]]) -> dict[DeviceStream, IntervalSet]:
        seqs_of: dict[DeviceStream, list[int]] = {}
        # Delta's log has the paths of files percent-encoded.
        for path in (unquote(action["add"]["path"]) for action in actions if "add" in action):
            for stream, seqs in self._record_ids_in(path):
                seqs_of.setdefault(stream, []).extend(seqs)
        return {stream: IntervalSet.of(seqs) for stream, seqs in seqs_of.items()}

    def _record_ids_in(self, path: str) -> Iterator[tuple[DeviceStream, list[int]]]:
        of_epoch = pc.field("epoch") == self._epoch
        seqs = pq.read_table(path, filesystem=self._files, columns=_RECORD_ID, partitioning=None, filters=of_epoch)
        for row in seqs.group_by(["tenant", "device"]).aggregate([("seq", "list")]).to_pylist():
            yield DeviceStream(row["tenant"], row["device"], self._epoch), row["seq_list"]


def _committed_s(actions: list[dict[str, Any]]) -> float:
    """When a commit was made, in seconds since 1970."""
    return max(float(action["commitInfo"]["timestamp"]) for action in actions if "commitInfo" in action) / 1000
