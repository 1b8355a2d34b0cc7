"""Which files are merged: enough of a size on a day that grows, all that overlap on a day that is past."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.maintenance.compaction import MERGED_FILES, FileLimits, growing_merges, overlap, settled_merges
from cloud_jobs.maintenance.sweeping import TableFile
from tests.examples import examples

MILLION = 1_000_000
ORDER = ("tenant", "device")
LIMITS = FileLimits(40_000_000, 1 << 28)
"""A million rows of `file`."""


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


def _settled(files: list[TableFile], limits: FileLimits, order: tuple[str, ...]) -> tuple[TableFile, ...]:
    """The merge of a day that one merge can take."""
    return next(iter(settled_merges(files, limits, order)), ())


def test_files_of_about_one_size_are_merged_and_full_ones_never() -> None:
    small = [file(at, 10) for at in range(MERGED_FILES)]
    full = [file(at, 900_000) for at in range(100, 120)]
    assert growing_merges(small + full, LIMITS) == [tuple(small)]


@settings(max_examples=examples(20))
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
        due = _settled(files, LIMITS, ORDER)
        files = merged(files, due) if due else files
    assert due == ()
    assert len(files) <= 2 + 2 * sum(sizes) / MILLION


def test_what_came_late_is_merged_alone_until_it_is_much() -> None:
    day = [file(at, 800_000, f"{at}", f"{at + 1}") for at in range(5)]
    late = [file("x", 10, "0"), file("y", 10, "0")]
    assert _settled([*day, late[0]], LIMITS, ORDER) == ()
    assert _settled([*day, *late], LIMITS, ORDER) == tuple(late)
    much = file("z", 600_000, "0")
    assert _settled([*day, much], LIMITS, ORDER) == (*day, much)


def spread(name: str, keys: tuple[int, int], size: int) -> TableFile:
    low, high = ({"tenant": "t", "device": f"{key:09}"} for key in keys)
    return TableFile(name, size, size, None, low, high, {})


def sorted_anew(taken: tuple[TableFile, ...], size: int, name: str) -> list[TableFile]:
    """What a merge makes of files whose rows are evenly spread over their keys."""
    points = sorted(
        int(one.low["device"]) + (int(one.high["device"]) - int(one.low["device"])) * at // 99
        for one in taken
        for at in range(100)
    )
    total = sum(one.size for one in taken)
    parts = max(1, round(total / size))
    cuts = [points[(len(points) - 1) * at // parts] for at in range(parts + 1)]
    return [spread(f"{name}/{at}", ends, total // parts) for at, ends in enumerate(pairwise(cuts))]


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8), st.integers(1, 60)), min_size=1, max_size=400),
    st.integers(0, 900),
)
def test_a_day_of_any_size_is_sorted_by_merges_that_are_each_bounded(
    some: list[tuple[int, int, int]], whole: int
) -> None:
    limits = FileLimits(50, 1 << 28)
    files = [spread(f"{at}", (min(low, high), max(low, high)), size) for at, (low, high, size) in enumerate(some)]
    files += [spread(f"whole {at}", (0, 10**8), 40) for at in range(whole)]
    for number in range(40):
        due = settled_merges(files, limits, ORDER)
        taken = [one.path for merge in due for one in merge]
        assert len(taken) == len(set(taken)), "no file is in two merges"
        for at, merge in enumerate(due):
            assert sum(one.size for one in merge) <= 32 * 50 + 60
            files = [one for one in files if one not in merge] + sorted_anew(merge, 50, f"{number}/{at}")
        if not due:
            break
    assert not due
    assert not overlap([one for one in files if limits.is_full(one)], ORDER)
