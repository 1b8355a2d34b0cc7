"""What was known at a moment is what was there then, or unknown: never what was there before a clock was ahead."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.errors import NotKept
from cloud_jobs.lake.as_of import load_as_of
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def hours(count: float) -> datetime:
    return BEGIN + timedelta(hours=count)


def committed(folder: Path, *clocks: float) -> Lake:
    """A lake with a commit of the ingest an hour, from the first on, by clocks that say these hours."""
    lake = Lake(folder)
    lake.create()
    for clock in clocks:
        opened = lake.open("records")
        known = newest_number(opened, INGEST)
        number = next_number(known)
        commit_files(opened, "records", [], writer=INGEST, previous=known, number=number, now=hours(clock))
    log = Path(lake.path("records")) / "_delta_log"
    for version, clock in enumerate([0, *clocks]):
        path, stamp = log / f"{version:020}.json", int(hours(clock).timestamp() * 1000)
        path.write_text(re.sub(r'"timestamp":\d+', f'"timestamp":{stamp}', path.read_text()))
    return lake


def known(lake: Lake, as_of: datetime, now: datetime) -> int:
    """How many commits are known as of a moment."""
    opened = lake.open("records")
    there = load_as_of(opened, lake.files("records"), as_of, now)
    return counter_of(newest_number(opened, INGEST)) if there else 0


def test_while_a_commit_claims_a_moment_ahead_now_is_the_newest_and_what_came_since_is_unknown(tmp_path: Path) -> None:
    lake, now = committed(tmp_path, 1, 2, 720, 4, 5), hours(5.5)
    assert known(lake, now, now) == known(lake, now, now + timedelta(minutes=1)) == 5
    assert [known(lake, hours(at), now) for at in (0.5, 1.5)] == [0, 1]
    for at in (2.5, 3.5, 5.2):
        with pytest.raises(NotKept, match="a clock that was ahead"):
            known(lake, hours(at), now)


def test_when_the_moment_that_was_claimed_has_come_what_was_hidden_stays_unknown(tmp_path: Path) -> None:
    lake, now = committed(tmp_path, 1, 2, 8, 4, 5, 6, 7, 8.5, 9, 10), hours(11)
    for at in (4.5, 7.5):
        with pytest.raises(NotKept, match="a clock that was ahead"):
            known(lake, hours(at), now)
    assert [known(lake, hours(at), now) for at in (1.5, 8.7, 9.5, 11)] == [1, 8, 9, 10]


def test_the_lake_itself_gives_the_newest_coverage_as_of_now_whatever_a_commit_claims(tmp_path: Path) -> None:
    ahead = (datetime.now(UTC) - BEGIN) / timedelta(hours=1) + 720
    lake = committed(tmp_path, 1, ahead, 2)
    assert counter_of(lake.ingest_commit(datetime.now(UTC))) == counter_of(lake.ingest_commit()) == 3
    with pytest.raises(NotKept):
        lake.ingest_commit(hours(30))


@given(count=st.integers(1, 12), jump=st.integers(1, 12), lead=st.integers(2, 9), asked=st.integers(0, 13))
@settings(max_examples=25, deadline=None)
def test_what_is_known_at_a_moment_is_what_was_there(
    tmp_path_factory: pytest.TempPathFactory, count: int, jump: int, lead: int, asked: int
) -> None:
    clocks = [at + (lead if at == jump else 0) for at in range(1, count + 1)]
    lake, now, as_of = committed(tmp_path_factory.mktemp("lake"), *clocks), hours(count + 0.5), hours(asked + 0.25)
    if as_of > now:
        return
    try:
        found = known(lake, as_of, now)
    except NotKept:
        assert jump <= asked + 1 <= jump + lead + 1
    else:
        # what the clock that was ahead has committed itself, until the next one commits
        assert found in {asked, asked - (asked == jump)}
