"""The usage of a quarter of an hour is what its probes drove: no more, no less, and unknown parts count either way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.canary.hops import ProbeItem
from deploy.canary.quarter_usage import Covered, QuarterUsage, covered, usage_fault

INSIDE_MM = 100_000
ITEMS = [ProbeItem("position", at) for at in range(5)]


@given(st.integers(0, 60))
def test_what_whole_probes_drove_is_right_and_one_entry_more_or_less_is_not(count: int) -> None:
    probes = [Covered.WHOLE] * count
    right = QuarterUsage(count, count * INSIDE_MM)
    assert usage_fault(right, probes, INSIDE_MM, before=Covered.WHOLE) == ""
    for entries in (count - 1, count + 1):
        assert usage_fault(right._replace(entries=entries), probes, INSIDE_MM, before=Covered.WHOLE)
    for distance_mm in (count * (INSIDE_MM - 3) - 1, count * (INSIDE_MM + 3) + 1):
        assert usage_fault(right._replace(distance_mm=distance_mm), probes, INSIDE_MM, before=Covered.WHOLE)


@given(st.lists(st.sampled_from(Covered), max_size=12), st.data())
def test_whatever_the_parts_that_are_covered_may_have_driven_is_right(
    probes: list[Covered], data: st.DataObject
) -> None:
    whole = probes.count(Covered.WHOLE)
    perhaps = data.draw(st.integers(0, probes.count(Covered.PART)))
    usage = QuarterUsage(whole + perhaps, (whole + perhaps) * INSIDE_MM)
    assert usage_fault(usage, probes, INSIDE_MM, before=Covered.WHOLE) == ""
    assert usage_fault(QuarterUsage(len(probes) + 2, 0), probes, INSIDE_MM, before=Covered.WHOLE)


@given(st.lists(st.integers(1, 20), min_size=5, max_size=5), st.integers(0, 21))
def test_a_probe_is_covered_by_what_its_records_are(numbers: list[int], covers: int) -> None:
    there = sum(number <= covers for number in numbers)
    wanted = Covered.WHOLE if there == 5 else Covered.PART if there else Covered.NOTHING
    assert covered(ITEMS, dict(zip(ITEMS, numbers, strict=True)), covers) is wanted


def test_a_record_that_is_not_in_the_table_covers_nothing() -> None:
    assert covered(ITEMS, {}, 10**9) is Covered.NOTHING
