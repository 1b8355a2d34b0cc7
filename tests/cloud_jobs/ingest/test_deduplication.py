"""Each name is let in once, whatever comes how often, in which order and cut into which micro-batches."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.ingest.parts import StreamPart, deduplicate
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from tests.strategies import interval_sets
from waybill.record import Header, IntervalSet, Tombstone


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """A header of one of two buffers, with names and tombstones apart."""
    ranges = draw(interval_sets)
    lost = draw(interval_sets) - ranges
    tombstones = tuple(Tombstone(*bounds, draw(st.sampled_from(["quota", "age"]))) for bounds in lost.ranges)
    highest = max(ranges.last or 1, lost.last or 1)
    return Header(draw(st.sampled_from(["a", "b"])), 7, highest + draw(st.integers(0, 3)), ranges, tombstones)


histories = st.lists(headers(), max_size=12)


def parts(history: list[Header]) -> list[StreamPart]:
    """Each header as a part of its own."""
    return [
        StreamPart(
            at,
            DeviceStream("acme", header.device, header.epoch),
            Coverage(header.record_seqs, header.tombstones, header.head),
            header.record_seqs.count,
        )
        for at, header in enumerate(history)
    ]


def run(history: list[Header], cuts: list[int]) -> tuple[dict[DeviceStream, Coverage], int, int]:
    """The coverage after a history that is cut into micro-batches, and how many records were let in and came again."""
    known: dict[DeviceStream, Coverage] = {}
    accepted = duplicates = 0
    bounds = [0, *sorted(cuts), len(history)]
    for start, end in itertools.pairwise(bounds):
        decision = deduplicate(known, parts(history[start:end]))
        accepted += decision.accepted_count
        duplicates += decision.duplicate_count
        known |= decision.coverage
    return known, accepted, duplicates


@given(histories, st.data())
def test_the_outcome_does_not_depend_on_how_the_history_is_cut(history: list[Header], data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(history)), max_size=4))
    assert run(history, cuts) == run(history, [])


@given(histories)
def test_the_union_of_all_names_is_let_in_and_the_rest_are_duplicates(history: list[Header]) -> None:
    known, accepted, duplicates = run(history, [])
    names = {(header.device, seq) for header in history for seq in header.record_seqs}
    assert accepted == len(names)
    assert duplicates == sum(header.record_seqs.count for header in history) - len(names)
    assert {(buffer.device, seq) for buffer, coverage in known.items() for seq in coverage.received} == names


@given(histories, histories)
def test_what_is_kept_of_the_parts_with_duplicates_and_all_of_the_others_is_what_is_let_in(
    before: list[Header], history: list[Header]
) -> None:
    known = run(before, [])[0]
    decision = deduplicate(known, parts(history))
    kept = [
        (header.device, seq)
        for at, header in enumerate(history)
        for seq in decision.kept.get(at, {}).get(DeviceStream("acme", header.device, 7), header.record_seqs)
    ]
    names = {(header.device, seq) for header in history for seq in header.record_seqs}
    there = {(stream.device, seq) for stream, coverage in known.items() for seq in coverage.received}
    assert len(kept) == decision.accepted_count
    assert set(kept) == names - there


@given(histories, histories)
def test_what_was_known_and_what_became_known_is_what_is_known(before: list[Header], history: list[Header]) -> None:
    known = run(before, [])[0]
    decision = deduplicate(known, parts(history))
    for stream, coverage in decision.coverage.items():
        assert known.get(stream, Coverage()) | decision.delta.get(stream, Coverage()) == coverage


@given(histories)
def test_every_name_up_to_the_head_is_received_lost_or_missing(history: list[Header]) -> None:
    for coverage in run(history, [])[0].values():
        assert (coverage.received | coverage.declared_lost | coverage.missing).gaps(1, coverage.head) == IntervalSet()
        assert not coverage.received & coverage.declared_lost
        assert not coverage.missing & (coverage.received | coverage.declared_lost)


def test_a_record_that_comes_after_its_tombstone_is_let_in_and_no_longer_lost() -> None:
    buried = Header("a", 7, 5, IntervalSet([(1, 3)]), (Tombstone(4, 5, "quota"),))
    late = Header("a", 7, 5, IntervalSet([(4, 4)]))
    known, _, _ = run([buried], [])
    assert known[DeviceStream("acme", "a", 7)].declared_lost == IntervalSet([(4, 5)])
    known, accepted, _ = run([buried, late], [])
    coverage = known[DeviceStream("acme", "a", 7)]
    assert (accepted, coverage.declared_lost, coverage.missing) == (4, IntervalSet([(5, 5)]), IntervalSet())
