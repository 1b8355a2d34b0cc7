"""Which files are merged: enough of a size on a day that grows, all that overlap on a day that is past."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.maintenance.merge_plan import MERGED_FILES, FileLimits, growing_merges, overlap, settled_merge
from cloud_jobs.maintenance.table_files import TableFile

MILLION = 1_000_000
ORDER = ("tenant", "device")
LIMITS = FileLimits(40_000_000, 300_000)
"""A million rows of `file`; fewer fit into memory."""


def file(name: Any, rows: int, low: str = "a", high: str = "z") -> TableFile:
    return TableFile(
        f"{name}", rows * 40, rows, None, {"tenant": "t", "device": low}, {"tenant": "t", "device": high}, {}
    )


def merged(files: list[TableFile], taken: tuple[TableFile, ...]) -> list[TableFile]:
    """What is there after a merge of a day that is past: as few files as need be, which part the keys."""
    rest, rows = [one for one in files if one not in taken], sum(one.rows for one in taken)
    parts = max(1, round(rows / MILLION))
    made = [file(f"new {at}", rows // parts, f"{at:03}", f"{at + 1:03}") for at in range(parts)]
    return rest + made


def test_few_files_of_a_day_that_grows_are_left() -> None:
    assert growing_merges([file(at, 10) for at in range(MERGED_FILES - 1)], LIMITS) == []


def test_files_of_about_one_size_are_merged_and_full_ones_never() -> None:
    small = [file(at, 10) for at in range(MERGED_FILES)]
    full = [file(at, 900_000) for at in range(100, 120)]
    assert growing_merges(small + full, LIMITS) == [tuple(small)]


@settings(max_examples=20)
@given(st.integers(1, 3000))
def test_however_many_files_come_few_stay(count: int) -> None:
    files = [file(at, 10) for at in range(count)]
    for _ in range(10):
        due = growing_merges(files, LIMITS)
        taken = {one.path for merge in due for one in merge}
        assert sum(len(merge) for merge in due) == len(taken), "no file is in two merges"
        files = [one for one in files if one.path not in taken]
        files += [file(f"by {merge[0].path}", sum(one.rows for one in merge)) for merge in due]
        if not due:
            break
    assert len(files) < 4 * MERGED_FILES


@given(st.lists(st.integers(1, 2_500_000), min_size=1, max_size=12))
def test_a_day_that_is_past_is_sorted_once(sizes: list[int]) -> None:
    files = [file(at, rows) for at, rows in enumerate(sizes)]
    for _ in range(3):
        due = settled_merge(files, LIMITS, ORDER)
        files = merged(files, due) if due else files
    assert due == ()
    assert len(files) <= 2 + 2 * sum(sizes) / MILLION


def test_what_came_late_is_merged_alone_until_it_is_much() -> None:
    day = [file(at, 800_000, f"{at}", f"{at + 1}") for at in range(5)]
    late = [file("x", 10, "0"), file("y", 10, "0")]
    assert settled_merge([*day, late[0]], LIMITS, ORDER) == ()
    assert settled_merge([*day, *late], LIMITS, ORDER) == tuple(late)
    much = file("z", 600_000, "0")
    assert settled_merge([*day, much], LIMITS, ORDER) == (*day, much)


def test_what_comes_late_to_a_small_day_does_not_write_the_day_again() -> None:
    day = [file("day", 10_000)]
    written = 0
    for at in range(500):
        day.append(file(f"late {at}", 1))
        if due := settled_merge(day, LIMITS, ORDER):
            rows = sum(one.rows for one in due)
            written += rows
            day = [one for one in day if one not in due] + [file(f"by {at}", rows)]
        assert len(day) <= 2
    # each late row again and again, but the day never
    assert written < 500 * 500
    day.append(file("much", 2_000))
    assert len(settled_merge(day, LIMITS, ORDER)) == len(day)


def test_files_that_share_no_more_than_a_device_at_their_ends_do_not_overlap() -> None:
    assert not overlap([file(1, 5, "a", "c"), file(2, 5, "c", "c"), file(3, 5, "c", "d")], ORDER)
    assert overlap([file(1, 5, "a", "d"), file(2, 5, "c", "e")], ORDER)
    assert overlap([file(1, 5)._replace(low={}), file(2, 5)], ORDER)


def test_the_devices_of_two_tenants_do_not_overlap_whatever_they_are_called() -> None:
    one, other = file(1, 5, "a", "z"), file(2, 5, "b", "c")
    both = other._replace(low={"tenant": "t"}, high={"tenant": "u"})
    assert not overlap([one, other._replace(low={"tenant": "u"}, high={"tenant": "u"})], ORDER)
    assert not overlap([one, both], ORDER)
    assert overlap([one, other, both], ORDER)
