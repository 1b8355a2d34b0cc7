"""What a run is to cover: from what its table covers to what the records are now."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud_jobs.incremental import Increment, next_increment
from cloud_jobs.lake.tables import Lake
from tests.system.lake_of_fixes import NOON, LakeFix, ingest, lake_of


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path / "lake")


def fix(seq: int) -> LakeFix:
    return LakeFix("d", seq, NOON, 50.0, 8.0)


def test_the_first_run_covers_everything_and_one_without_new_records_nothing(lake: Lake) -> None:
    ingest(lake, [fix(1)])
    first = next_increment(lake, "usage")
    assert first == Increment("usage", table_version=0, since=-1, until=1)
    lake.replace("usage", [], covers=first.until)
    rest = next_increment(lake, "usage")
    assert rest == Increment("usage", table_version=1, since=1, until=1)
    assert first
    assert not rest


def test_each_table_is_as_far_as_its_own_commits_say(lake: Lake) -> None:
    ingest(lake, [fix(1)])
    lake.replace("usage", [], covers=1)
    ingest(lake, [fix(2)])
    assert next_increment(lake, "usage").since == 1
    assert next_increment(lake, "encounters").since == -1


def test_a_commit_of_another_run_while_the_increment_is_made_leaves_it_on_the_older_version(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(lake, [fix(1)])
    real = Lake.covered_version

    def another_first(self: Lake, table: str) -> int:
        self.replace(table, [], covers=1)
        return real(self, table)

    monkeypatch.setattr(Lake, "covered_version", another_first)
    assert next_increment(lake, "usage") == Increment("usage", table_version=0, since=1, until=1)
