"""A commit is made once, upon the commit that its writer knows, whatever happens beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cloud_jobs.errors import Fenced
from cloud_jobs.lake.data_files import DataFile
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import commit_files, newest_number, next_number
from tests.cloud_jobs.lake.test_data_files import row, written


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.create()
    return made


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


def seqs(lake: Lake) -> list[int]:
    return sorted(lake.rows("records", ["seq"])["seq"].to_pylist())


@pytest.mark.parametrize("written_by_stale", [(9,), ()], ids=["records", "nothing"])
def test_a_writer_that_another_overtook_is_fenced_off_also_if_it_writes_no_file(
    lake: Lake, written_by_stale: tuple[int, ...]
) -> None:
    stale, other = Writer(lake), Writer(lake)
    other.commit(1)
    with pytest.raises(Fenced, match="ingest number 1, this one knows 0"):
        stale.commit(*written_by_stale)
    assert seqs(lake) == [1]


def test_a_compaction_between_two_opens_fences_nobody_and_lets_nobody_through(lake: Lake) -> None:
    first = Writer(lake)
    first.commit(1)
    first.commit(2)
    lake.open("records").optimize.compact()
    other = Writer(lake)
    first.commit(3)
    with pytest.raises(Fenced):
        other.commit(9)
    assert seqs(lake) == [1, 2, 3]


def test_one_that_comes_between_a_commit_and_its_check_takes_nothing_for_its_own(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Writer(lake)

    def and_another_comes() -> None:
        Writer(lake).commit(2)

    after_commit(monkeypatch, and_another_comes)
    first.commit(1)
    with pytest.raises(Fenced):
        first.commit(2)
    assert seqs(lake) == [1, 2]


def test_a_commit_whose_response_was_lost_is_known_by_its_number(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def response_lost() -> None:
        raise OSError("connection reset")

    writer = Writer(lake)
    after_commit(monkeypatch, response_lost)
    writer.commit(1)
    writer.commit(2)
    assert seqs(lake) == [1, 2]


def after_commit(monkeypatch: pytest.MonkeyPatch, step: Callable[[], None]) -> None:
    """The next commit is followed by a step before whoever made it sees it."""
    real = DeltaTable.create_write_transaction
    steps = [step]

    def commit(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        if steps:
            steps.pop()()

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
