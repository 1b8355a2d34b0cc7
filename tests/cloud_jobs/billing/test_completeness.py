"""The completeness certificate."""

from __future__ import annotations

from cloud_jobs.billing import Certificate, Completeness, SeqRanges, certify
from cloud_jobs.lake.coverage import Coverage, TenantDevice
from telemetry import IntervalSet, Tombstone


def coverage(received: str, *, declared: str = "", head: int = 10) -> Coverage:
    tombstones = tuple(Tombstone(first, last, "quota") for first, last in ranges(declared).ranges)
    return Coverage(ranges(received), tombstones, head)


def ranges(text: str) -> IntervalSet:
    pairs = (part.split("-") for part in text.split())
    return IntervalSet((int(pair[0]), int(pair[-1])) for pair in pairs)


def certified(*epochs: Coverage) -> Certificate:
    return certify(TenantDevice("t", "d"), dict(enumerate(epochs, 1)))


def test_a_device_is_complete_when_everything_up_to_its_head_was_received() -> None:
    assert certified(coverage("1-10")) == Certificate(tenant="t", device="d", state=Completeness.COMPLETE, received=10)


def test_a_declared_loss_completes_a_device_and_is_named() -> None:
    found = certified(coverage("1-4 8-10", declared="5-7"))
    assert found.state is Completeness.DECLARED_LOSS
    assert found.declared_lost == SeqRanges.of({1: IntervalSet([(5, 7)])})


def test_what_was_declared_lost_and_came_after_all_is_no_loss() -> None:
    assert certified(coverage("1-10", declared="5-7")).state is Completeness.COMPLETE


def test_a_hole_leaves_a_device_open_and_is_named() -> None:
    found = certified(coverage("1-4", declared="8"))
    assert found.state is Completeness.OPEN
    assert found.missing == SeqRanges.of({1: IntervalSet([(5, 7), (9, 10)])})


def test_each_epoch_counts_for_itself() -> None:
    assert certified(coverage("1-10"), coverage("1-4", head=5)).state is Completeness.OPEN
    assert certified(coverage("1-10"), coverage("1-5", head=5)).state is Completeness.COMPLETE


def test_a_device_that_nothing_was_heard_of_is_open() -> None:
    assert certified().state is Completeness.OPEN
