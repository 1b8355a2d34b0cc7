"""The usage of a quarter of an hour is what its probes drove: no more, no less, and unknown parts count either way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.canary.config import ProbeItem
from deploy.canary.lake_observers import ProbeCover, QuarterUsage, covered, usage_fault

INSIDE_MM = 100_000
ITEMS = [ProbeItem("position", at) for at in range(5)]


@given(st.integers(0, 60))
def test_what_whole_probes_drove_is_right_and_one_entry_more_or_less_is_not(count: int) -> None:
    probes = [ProbeCover.WHOLE] * count
    right = QuarterUsage(count, count * INSIDE_MM)
    assert usage_fault(right, probes, INSIDE_MM, before=ProbeCover.WHOLE) == ""
    for entries in (count - 1, count + 1):
        assert usage_fault(right._replace(entries=entries), probes, INSIDE_MM, before=ProbeCover.WHOLE)
    for distance_mm in (count * (INSIDE_MM - 3) - 1, count * (INSIDE_MM + 3) + 1):
        assert usage_fault(right._replace(distance_mm=distance_mm), probes, INSIDE_MM, before=ProbeCover.WHOLE)


@given(st.lists(st.sampled_from(ProbeCover), max_size=12), st.data())
def test_whatever_the_parts_that_are_covered_may_have_driven_is_right(
    probes: list[ProbeCover], data: st.DataObject
) -> None:
    whole = probes.count(ProbeCover.WHOLE)
    perhaps = data.draw(st.integers(0, probes.count(ProbeCover.PART)))
    usage = QuarterUsage(whole + perhaps, (whole + perhaps) * INSIDE_MM)
    assert usage_fault(usage, probes, INSIDE_MM, before=ProbeCover.WHOLE) == ""
    assert usage_fault(QuarterUsage(len(probes) + 2, 0), probes, INSIDE_MM, before=ProbeCover.WHOLE)


@given(st.lists(st.integers(1, 20), min_size=5, max_size=5), st.integers(0, 21))
def test_a_probe_is_covered_by_what_its_records_are(numbers: list[int], covers: int) -> None:
    there = sum(number <= covers for number in numbers)
    wanted = ProbeCover.WHOLE if there == 5 else ProbeCover.PART if there else ProbeCover.NOTHING
    assert covered(ITEMS, dict(zip(ITEMS, numbers, strict=True)), covers) is wanted
