"""Records that are there twice, because another program merged files, are kept once by `cloud-jobs maintain`."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pyarrow.compute as pc
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance import job as once_each
from cloud_jobs.maintenance.job import OnceEachResult, compact, keep_once_each
from cloud_jobs.maintenance.merge_plan import FileLimits
from cloud_jobs.maintenance.rewriting import MaintenancePoint, Rewriter
from cloud_jobs.maintenance.table_files import table_files
from tests.cloud_jobs.ingest.centre import batch, check, new_ingest, new_lake, seqs_in_table, take_in
from tests.cloud_jobs.maintenance.upkeep import positions, run
from tests.cloud_jobs.status.watched import note_maintenance, wrong

ROOMY = FileLimits(1 << 30, 1 << 26)
TWICE = "6 rows of records are more than were received: some are there twice"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two days of three records each, that stand in a file of `maintain` and in one of another program."""
    made = new_lake(tmp_path / "lake")
    run(made)
    writer = new_ingest(made)
    for seq in (1, 2, 3):
        take_in(made, writer, [batch(seq), batch(seq, day=-1, device="e")])
    stale = made.open("records")
    run(made)
    stale.optimize.compact()
    note_maintenance(made)
    assert wrong(made) == (TWICE,)
    return made


def add_again(lake: Lake, *seqs: int) -> None:
    """Another program adds rows that are there."""
    rows = lake.rows("records")
    write_deltalake(lake.open("records"), rows.filter([seq in seqs for seq in rows["seq"].to_pylist()]), mode="append")


def test_rows_that_are_there_twice_are_there_once_afterwards_and_the_ingest_goes_on(lake: Lake) -> None:
    assert run(lake).copies_removed is None
    assert wrong(lake) == (TWICE,)
    assert run(lake, once_each=True).copies_removed == 6
    assert wrong(lake) == ()
    assert (seqs_in_table(lake), seqs_in_table(lake, "e")) == ([1, 2, 3], [1, 2, 3])
    assert run(lake, once_each=True).copies_removed == 0
    take_in(lake, new_ingest(lake), [batch(3, 4)])
    assert seqs_in_table(lake) == [1, 2, 3, 4]


def test_a_dry_run_counts_them_and_changes_nothing(lake: Lake) -> None:
    run(lake)
    version = lake.open("records").version()
    assert run(lake, once_each=True, dry_run=True).copies_removed == 6
    assert lake.open("records").version() == version


def test_a_few_late_copies_beside_a_sorted_day_go_without_the_day_being_written_again(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    take_in(lake, new_ingest(lake), [batch(*range(1, 101)), positions(1, 2, device="f", day=0)])
    run(lake)
    (sorted_day,) = table_files(lake.open("records"), "records")
    add_again(lake, 2, 70)
    assert run(lake, once_each=True).copies_removed == 3
    assert table_files(lake.open("records"), "records") == [sorted_day]
    check(lake), check(lake, "f")


def test_copies_on_a_day_that_still_grows_stay_until_it_is_past_and_the_run_says_so(lake: Lake) -> None:
    made = run(lake, once_each=True, hot_days=400)
    assert (made.copies_removed, made.files_not_searched) == (0, 4)
    assert seqs_in_table(lake) == [1, 1, 2, 2, 3, 3]


def test_of_two_runs_at_once_none_takes_away_the_copy_that_the_other_one_left(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    take_in(lake, new_ingest(lake), [batch(*range(1, 101))])
    add_again(lake, 1, 2, 3)
    one, other = table_files(lake.open("records"), "records")
    second = Rewriter(lake, ROOMY)

    def overtaken(point: MaintenancePoint) -> None:
        if point is MaintenancePoint.FILES_WRITTEN:
            # a run that took the files in another order
            second.rewrite("records", [kept], lambda rows: pc.greater(rows["seq"], 3), beside=[dropped])

    dropped, kept = sorted([one, other], key=lambda file: file.rows)
    assert keep_once_each(Rewriter(lake, ROOMY, reached=overtaken), 2) == OnceEachResult(0, 1)
    check(lake)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=8), max_size=4),
    st.sampled_from([3_000, 20_000, 1 << 26]),
)
def test_whatever_is_there_however_often_is_there_once_whatever_fits_into_memory(
    copies: list[list[int]], memory: int
) -> None:
    with TemporaryDirectory() as folder:
        lake = new_lake(Path(folder))
        take_in(lake, new_ingest(lake), [batch(*range(1, 13)), batch(*range(1, 7), device="e")])
        for seqs in copies:
            add_again(lake, *seqs)
        found = Counter(seqs_in_table(lake)) + Counter(seqs_in_table(lake, "e"))
        rewriter = Rewriter(lake, FileLimits(3000, memory))
        compact(rewriter, "records", 2)
        made = keep_once_each(rewriter, 2)
        assert made == OnceEachResult(found.total() - 18, 0)
        check(lake), check(lake, "e")


class Killed(Exception):
    """The process of a run died."""


@settings(max_examples=8, deadline=None)
@given(comes=st.lists(st.sampled_from(["nobody", "dies", "once each", "merges", "adds"]), max_size=5))
def test_whoever_comes_between_and_wherever_a_run_dies_each_record_stays_at_least_once(comes: list[str]) -> None:
    # as if the day were sorted, so that many files share records
    with TemporaryDirectory() as folder, patch.object(once_each, "settled_merges", return_value=[]):
        lake = new_lake(Path(folder))
        waiting = [*comes]
        take_in(lake, new_ingest(lake), [batch(*range(1, 41))])
        add_again(lake, 1, 2, 30)
        add_again(lake, 2, 3, 30)

        def reached(_: MaintenancePoint) -> None:
            match waiting.pop() if waiting else "nobody":
                case "dies":
                    raise Killed
                case "once each":
                    keep_once_each(other, 2)
                case "merges":
                    other.rewrite("records", table_files(lake.open("records"), "records")[:2])
                case "adds":
                    add_again(lake, 7)

        other = Rewriter(lake, ROOMY, reached=reached)
        while waiting:
            with suppress(Killed):
                keep_once_each(other, 2)
                waiting[-1:] = []
            assert {*seqs_in_table(lake)} == {*range(1, 41)}
        assert keep_once_each(Rewriter(lake, ROOMY), 2).left == 0
        check(lake)
