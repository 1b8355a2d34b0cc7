"""The completeness certificate."""

from __future__ import annotations

from cloud_jobs.billing import Certificate, Completeness, CoverageRow, SeqRanges, certify
from telemetry import IntervalSet


def coverage(received: str, *, declared: str = "", head: int = 10, epoch: int = 1, device: str = "d") -> CoverageRow:
    return CoverageRow(device=device, epoch=epoch, received=ranges(received), declared_lost=ranges(declared), head=head)


def ranges(text: str) -> IntervalSet:
    pairs = (part.split("-") for part in text.split())
    return IntervalSet((int(pair[0]), int(pair[-1])) for pair in pairs)


def certified(*rows: CoverageRow) -> Certificate:
    return certify("d", rows)


def test_a_device_is_complete_when_everything_up_to_its_head_was_received() -> None:
    assert certified(coverage("1-10")) == Certificate(device="d", state=Completeness.COMPLETE, received=10)


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
    assert certified(coverage("1-10"), coverage("1-4", head=5, epoch=2)).state is Completeness.OPEN
    assert certified(coverage("1-10"), coverage("1-5", head=5, epoch=2)).state is Completeness.COMPLETE


def test_rows_of_one_epoch_are_united_and_rows_of_other_devices_passed_over() -> None:
    found = certified(coverage("1-5", head=5), coverage("6-10"), coverage("1", head=9, device="other"))
    assert found.state is Completeness.COMPLETE


def test_a_device_that_nothing_was_heard_of_is_open() -> None:
    assert certified().state is Completeness.OPEN
