"""Hypothesis strategies that several rooms share."""

from dataclasses import replace

from hypothesis import strategies as st

from waybill.record import Batch, Canary, Event, IntervalSet, Position, Raw, Record, Signal, Tombstone
from waybill.record.record import MAX_DEVICE_TIME_US, MAX_UNCERTAINTY_MS, MIN_DEVICE_TIME_US

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
ranges = st.tuples(st.integers(1, 400), st.integers(0, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))
interval_sets = st.lists(ranges, max_size=12).map(IntervalSet)


def exactly(factor: int, low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers that the wire's fixed-point unit, 1/factor, holds exactly."""
    return st.integers(round(low * factor), round(high * factor)).map(lambda whole: whole / factor)


positions = st.builds(
    Position,
    latitude=exactly(10_000_000, -90, 90),
    longitude=exactly(10_000_000, -180, 180),
    altitude_m=st.none() | exactly(1000, -100, 9000),
    speed_mps=st.none() | exactly(1000, 0, 90),
    heading_deg=st.none() | exactly(100, 0, 360),
    accuracy_m=st.none() | exactly(1000, 0, 1000),
)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6).map(lambda whole: whole / 100)
signals = st.builds(
    Signal,
    path=st.sampled_from(["Vehicle.Speed", "Vehicle.TraveledDistance"]) | names,
    value=st.booleans() | numbers | st.text(max_size=10),
)
bodies = st.one_of(
    positions,
    signals,
    st.builds(Event, name=names, attributes=st.sampled_from(["{}", '{"driver":"7"}'])),
    st.builds(Canary, id=names),
    st.builds(Raw, topic=names, payload=st.binary(max_size=50), reason=st.sampled_from(["", "no-json", "other"])),
)
records = st.builds(
    Record,
    seq=st.just(0),
    device_time_us=st.integers(MIN_DEVICE_TIME_US, MAX_DEVICE_TIME_US),
    body=bodies,
    monotonic_us=st.integers(0, (1 << 63) - 1),
    boot=st.sampled_from(["", "boot-a", "boot-b"]),
    uncertainty_ms=st.sampled_from([0, 0, 0, 250, MAX_UNCERTAINTY_MS]),
    mapping=st.sampled_from(["", "", "buses@0a1b2c3d", "torn@89abcdef+held"]),
)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Valid batches: ascending seqs, tombstones apart from them, a head that is not exceeded; some are heartbeats."""
    taken = draw(interval_sets)
    seqs = list(taken)[:60]
    made = draw(st.lists(records, min_size=len(seqs), max_size=len(seqs)))
    numbered = tuple(replace(one, seq=seq) for seq, one in zip(seqs, made, strict=True))
    lost = draw(interval_sets) - IntervalSet.of(seqs)
    reasons = st.sampled_from(["quota", "age", "store-damaged"])
    tombstones = tuple(Tombstone(first, last, draw(reasons)) for first, last in lost.ranges)
    highest = max(seqs[-1] if seqs else 0, lost.last or 0)
    epoch, head = draw(st.integers(0, (1 << 63) - 1)), highest + draw(st.integers(0, 9))
    # what accounts for nothing has to state something
    stated_us = draw(st.integers(0 if numbered or tombstones else 1, MAX_DEVICE_TIME_US))
    return Batch("eu-0001", epoch, head, numbered, tombstones, stated_us)
