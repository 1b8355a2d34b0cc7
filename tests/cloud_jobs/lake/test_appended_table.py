"""A table that one writer keeps open: its commits are those of Delta, upon whatever others commit meanwhile."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cloud_jobs.errors import Fenced
from cloud_jobs.lake.appending import AppendedTable
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import RECORDS
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import commit_files, newest_number, next_number
from tests.cloud_jobs.lake.test_data_files import row, written
from tests.new_lakes import new_lake


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


def test_of_two_writers_of_one_name_the_older_is_fenced(lake: Lake, table: AppendedTable) -> None:
    commit(lake, AppendedTable(lake, "records", INGEST), 1)
    with pytest.raises(Fenced):
        commit(lake, table, 2)
    assert seqs(lake) == [1]


def cut_log(lake: Lake, before: int) -> None:
    lake.open("records").create_checkpoint()
    for version in range(before):
        (commits_in(lake) / f"{version:020}.json").unlink()


def test_who_stood_still_while_the_log_was_cut_lets_nothing_in(lake: Lake) -> None:
    first, second = AppendedTable(lake, "records", INGEST), AppendedTable(lake, "records", INGEST)
    for seq in range(1, 4):
        commit(lake, second, seq)
    cut_log(lake, before=3)
    with pytest.raises(Fenced, match="another ingest wrote"):
        commit(lake, first, 4)
    assert seqs(lake) == [1, 2, 3]


@pytest.fixture
def lake_of_transactions(tmp_path: Path) -> Lake:
    return new_lake(tmp_path)


class Writer:
    """One that commits as the ingest, from what it knew when it opened the table."""

    def __init__(self, lake: Lake) -> None:
        self.opened = lake.open("records")
        self.known = newest_number(self.opened, "ingest")
        self.lake = lake

    def commit(self, *seqs: int) -> int:
        files = written(self.lake.files("records"), *(row(seq) for seq in seqs)) if seqs else []
        number = next_number(self.known)
        self.add(files, number)
        return number

    def add(self, files: list[DataFile], number: int) -> None:
        commit_files(self.opened, "records", files, writer="ingest", previous=self.known, number=number)
        self.known = number


@pytest.mark.parametrize("written_by_stale", [(9,), ()], ids=["records", "nothing"])
def test_a_writer_that_another_overtook_is_fenced_off_also_if_it_writes_no_file(
    lake_of_transactions: Lake, written_by_stale: tuple[int, ...]
) -> None:
    stale, other = Writer(lake_of_transactions), Writer(lake_of_transactions)
    other.commit(1)
    with pytest.raises(Fenced, match="ingest number 1, this one knows 0"):
        stale.commit(*written_by_stale)
    assert seqs(lake_of_transactions) == [1]


def test_a_compaction_between_two_opens_fences_nobody_and_lets_nobody_through(lake_of_transactions: Lake) -> None:
    first = Writer(lake_of_transactions)
    first.commit(1)
    first.commit(2)
    lake_of_transactions.open("records").optimize.compact()
    other = Writer(lake_of_transactions)
    first.commit(3)
    with pytest.raises(Fenced):
        other.commit(9)
    assert seqs(lake_of_transactions) == [1, 2, 3]


def test_one_that_comes_between_a_commit_and_its_check_takes_nothing_for_its_own(
    lake_of_transactions: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Writer(lake_of_transactions)

    def and_another_comes() -> None:
        Writer(lake_of_transactions).commit(2)

    after_commit(monkeypatch, and_another_comes)
    first.commit(1)
    with pytest.raises(Fenced):
        first.commit(2)
    assert seqs(lake_of_transactions) == [1, 2]


def test_a_commit_whose_response_was_lost_is_known_by_its_number(
    lake_of_transactions: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def response_lost() -> None:
        raise OSError("connection reset")

    writer = Writer(lake_of_transactions)
    after_commit(monkeypatch, response_lost)
    writer.commit(1)
    writer.commit(2)
    assert seqs(lake_of_transactions) == [1, 2]


def after_commit(monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]) -> None:
    """The next commit is followed by a step before whoever made it sees it."""
    real = DeltaTable.create_write_transaction
    steps = [step]

    def commit(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        if steps:
            steps.pop()()

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
