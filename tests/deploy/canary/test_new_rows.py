"""What a canary reads of a table: each commit once, and of its files only those that can hold something new."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import read_stored
from cloud_jobs.maintenance.compaction import FileLimits, Rewriter
from cloud_jobs.maintenance.sweeping import table_files
from deploy.canary.lake_observers import DeviceRecords
from tests.cloud_jobs.ingest.centre import NOON_US, batch, new_ingest, new_lake, take_in


class ReadTable:
    """The records of a centre, as a canary of device `c` reads them; `opened`: files that it has opened."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lake = new_lake(folder / "lake")
        self._ingest = new_ingest(self.lake)
        self.records = DeviceRecords(
            self.lake, TenantDevice("acme", "c"), datetime.fromtimestamp(NOON_US // 1_000_000, UTC)
        )
        self.opened: list[str] = []
        read = read_stored

        def counted(files: Any, table: str, path: str, *more: Any) -> Any:
            self.opened.append(path)
            return read(files, table, path, *more)

        monkeypatch.setattr("deploy.canary.new_rows.read_stored", counted)

    def ingest(self, device: str, *seqs: int) -> None:
        take_in(self.lake, self._ingest, [("acme", batch(*seqs, device=device))])

    def new(self) -> list[tuple[int, int]]:
        return sorted((one.record.seq, one.ingest_number) for one in self.records.read_new())

    def merge(self) -> None:
        files = table_files(self.lake.open("records"), "records")
        Rewriter(self.lake, FileLimits(1 << 27, 1 << 20)).rewrite("records", files)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadTable:
    return ReadTable(tmp_path, monkeypatch)


def test_each_commit_is_read_once_whatever_files_it_is_in_by_then(table: ReadTable) -> None:
    assert table.new() == []
    table.ingest("c", 1, 2)
    table.ingest("other", 1)
    assert table.new() == [(1, 1), (2, 1)]
    assert table.new() == []
    table.ingest("c", 3)
    table.merge()
    assert table.new() == [(3, 3)]
    table.merge()
    assert table.new() == []


def test_of_an_old_table_only_the_files_of_new_commits_are_opened(table: ReadTable) -> None:
    for seq in range(1, 30):
        table.ingest("c", seq)
    assert len(table.new()) == 29
    table.opened.clear()
    assert table.new() == []
    assert not table.opened
    table.ingest("c", 30)
    assert table.new() == [(30, 30)]
    assert len(table.opened) == 1


def test_a_table_whose_log_was_cut_short_is_opened_anew(table: ReadTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.ingest("c", 1)
    assert table.new() == [(1, 1)]
    table.ingest("c", 2)

    def gone(_: DeltaTable) -> None:
        raise DeltaError("a commit is not there")

    monkeypatch.setattr(DeltaTable, "update_incremental", gone)
    assert table.new() == [(2, 2)]
