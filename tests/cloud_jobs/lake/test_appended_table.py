"""A table that one writer keeps open: its commits are those of Delta, upon whatever others commit meanwhile."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cloud_jobs.errors import CommitFailed, Fenced
from cloud_jobs.lake.appended_table import AppendedTable
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import RECORDS
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import COMMITTED, next_number, stated
from cloud_jobs.maintenance.config import MaintenanceSettings
from cloud_jobs.maintenance.job import Maintenance
from tests.cloud_jobs.ingest.centre import new_lake
from tests.cloud_jobs.lake.test_data_files import row
from waybill.daemon.durable_file import create_durably

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return new_lake(tmp_path)


@pytest.fixture(params=["by itself", "by the library"])
def table(request: pytest.FixtureRequest, lake: Lake) -> AppendedTable:
    """The records, committed to as in a folder, and as in an object store."""
    return by_library(lake) if request.param == "by the library" else AppendedTable(lake, "records", INGEST)


def by_library(lake: Lake) -> AppendedTable:
    made = AppendedTable(lake, "records", INGEST)
    made._commits = None
    return made


def file_of(lake: Lake, seq: int) -> list[DataFile]:
    rows = pa.Table.from_pylist([row(seq)], schema=RECORDS)
    return write_data_files(lake.files("records"), rows, datetime.now(UTC))


def commit(lake: Lake, table: AppendedTable, seq: int) -> int:
    number = next_number(table.number)
    table.commit(file_of(lake, seq), number)
    return number


def seqs(lake: Lake) -> list[int]:
    return sorted(lake.rows("records", ["seq"])["seq"].to_pylist())


def commits_in(lake: Lake) -> Path:
    return Path(lake.path("records")) / "_delta_log"


def test_delta_reads_its_commits_with_their_numbers_and_statistics(lake: Lake, table: AppendedTable) -> None:
    numbers = [commit(lake, table, seq) for seq in range(1, 4)]
    opened = lake.open("records")
    assert (opened.version(), table.version, table.number) == (3, 3, numbers[-1])
    assert lake.ingest_commit() == numbers[-1]
    assert seqs(lake) == [1, 2, 3]
    assert sorted(opened.get_add_actions(flatten=True)["num_records"].to_pylist()) == [1, 1, 1]
    assert len(opened.file_uris(file_pruning_predicate="seq BETWEEN 2 AND 2")) == 1
    assert opened.history(1)[0].get("isBlindAppend") is not False


def test_moments_of_commits_never_go_back(lake: Lake, table: AppendedTable) -> None:
    moments: list[int] = []
    for at, hour in enumerate((12, 11, 13), start=1):
        table.commit(file_of(lake, at), next_number(table.number), now=NOW.replace(hour=hour))
        moments.append(stated(lake.open("records"), COMMITTED) or 0)
    assert moments == sorted(set(moments))


def test_a_commit_lists_no_log_and_a_checkpoint_is_made_now_and_then(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = AppendedTable(lake, "records", INGEST)
    with monkeypatch.context() as watched:
        watched.setattr("cloud_jobs.lake.appended_table.commit_upon", None)
        watched.setattr("cloud_jobs.lake.appended_table.reload", None)
        for seq in range(1, 50):
            commit(lake, table, seq)
    commit(lake, table, 50)
    assert [path.name for path in commits_in(lake).glob("*.checkpoint.parquet")] == [f"{50:020}.checkpoint.parquet"]
    assert seqs(lake) == [*range(1, 51)]


def test_it_goes_on_upon_what_a_maintenance_has_committed(lake: Lake, table: AppendedTable) -> None:
    for seq in range(1, 20):
        commit(lake, table, seq)
    before = table.version
    Maintenance(lake, MaintenanceSettings()).run()
    commit(lake, table, 20)
    assert table.version > before + 1
    assert seqs(lake) == [*range(1, 21)]


def test_of_two_writers_of_one_name_the_older_is_fenced(lake: Lake, table: AppendedTable) -> None:
    commit(lake, AppendedTable(lake, "records", INGEST), 1)
    with pytest.raises(Fenced):
        commit(lake, table, 2)
    assert seqs(lake) == [1]


def test_a_writer_that_comes_between_a_commit_and_the_look_after_it_is_noticed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, real = by_library(lake), DeltaTable.create_write_transaction

    def another_comes(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", real)
        real(self, *arguments, **named)
        commit(lake, AppendedTable(lake, "records", INGEST), 2)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", another_comes)
    with pytest.raises(Fenced):
        commit(lake, first, 1)
    assert seqs(lake) == [1, 2]


def test_what_the_writer_knows_is_not_looked_up_in_the_log_at_each_commit(
    lake: Lake, table: AppendedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as watched:
        watched.setattr(DeltaTable, "transaction_version", None)
        for seq in range(1, 4):
            commit(lake, table, seq)
    assert seqs(lake) == [1, 2, 3]


def cut_log(lake: Lake, before: int) -> None:
    lake.open("records").create_checkpoint()
    for version in range(before):
        (commits_in(lake) / f"{version:020}.json").unlink()


def bring_back(lake: Lake, copied: Path) -> None:
    shutil.rmtree(str(lake.location))
    shutil.copytree(copied, str(lake.location))


def test_who_stood_still_while_the_log_was_cut_lets_nothing_in(lake: Lake) -> None:
    first, second = AppendedTable(lake, "records", INGEST), AppendedTable(lake, "records", INGEST)
    for seq in range(1, 4):
        commit(lake, second, seq)
    cut_log(lake, before=3)
    with pytest.raises(Fenced, match="another ingest wrote"):
        commit(lake, first, 4)
    assert seqs(lake) == [1, 2, 3]


def test_who_stood_still_while_merges_were_cut_off_the_log_goes_on(lake: Lake, table: AppendedTable) -> None:
    commit(lake, table, 1)
    for hours in range(2, 5):
        lake.open("records").alter.set_table_properties(
            {"delta.deletedFileRetentionDuration": f"interval {hours} hours"}
        )
    cut_log(lake, before=4)
    commit(lake, table, 2)
    assert seqs(lake) == [1, 2]


def test_a_table_that_is_brought_back_from_a_copy_stays_whole_under_an_ingest_that_lives_on(
    lake: Lake, table: AppendedTable, tmp_path_factory: pytest.TempPathFactory
) -> None:
    commit(lake, table, 1)
    copied = tmp_path_factory.mktemp("copy") / "lake"
    shutil.copytree(str(lake.location), copied)
    for seq in range(2, 5):
        commit(lake, table, seq)
    bring_back(lake, copied)
    with pytest.raises((Fenced, CommitFailed)):
        commit(lake, table, 5)
    assert seqs(lake) == [1]
    another = AppendedTable(lake, "records", INGEST)
    for seq in range(2, 6):
        commit(lake, another, seq)
    # as many commits as there were, and others
    with pytest.raises(Fenced):
        commit(lake, table, 7)
    assert seqs(lake) == [*range(1, 6)]


@pytest.mark.parametrize("what", ["cut", "brought back"])
def test_a_commit_whose_log_is_gone_when_it_lands_is_taken_back(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory, what: str
) -> None:
    first, copied = AppendedTable(lake, "records", INGEST), tmp_path_factory.mktemp("copy") / "lake"
    commit(lake, first, 1)
    shutil.copytree(str(lake.location), copied)
    commit(lake, first, 2)
    last = 2 if what == "cut" else 1

    def later(path: Path, content: bytes) -> bool:
        nonlocal last
        monkeypatch.setattr("cloud_jobs.lake.appended_table.create_durably", create_durably)
        if what == "brought back":
            bring_back(lake, copied)
        else:
            second = AppendedTable(lake, "records", INGEST)
            for last in range(3, 6):
                commit(lake, second, last)
            cut_log(lake, before=5)
        return create_durably(path, content)

    monkeypatch.setattr("cloud_jobs.lake.appended_table.create_durably", later)
    with pytest.raises(Fenced, match="another ingest wrote" if what == "cut" else "brought back from a copy"):
        commit(lake, first, 9)
    assert seqs(lake) == [*range(1, last + 1)]
    commit(lake, AppendedTable(lake, "records", INGEST), 9)
    assert seqs(lake) == [*range(1, last + 1), 9]


def test_a_commit_whose_answer_was_lost_is_known_as_ones_own(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table, link = AppendedTable(lake, "records", INGEST), os.link

    def lost(one: Path, other: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        link(one, other)
        raise FileExistsError

    monkeypatch.setattr(os, "link", lost)
    commit(lake, table, 1)
    commit(lake, table, 2)
    assert seqs(lake) == [1, 2]


def test_an_idle_table_whose_log_is_cut_up_to_its_newest_commit_is_committed_to(lake: Lake) -> None:
    table = AppendedTable(lake, "records", INGEST)
    for seq in range(1, 4):
        commit(lake, table, seq)
    cut_log(lake, before=3)
    commit(lake, table, 4)
    commit(lake, table, 5)
    assert seqs(lake) == [1, 2, 3, 4, 5]
