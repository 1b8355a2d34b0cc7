"""Up to when the records of a device are all there: whatever came how often, never later than it stated."""

import itertools
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.ingest.decoding import DecodedMessages, decode_messages
from cloud_jobs.ingest.parts import StreamPart, deduplicate, write_part
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from tests.cloud_jobs.ingest.centre import STREAM, coverage, new_ingest, take_in
from tests.cloud_jobs.ingest.test_decoding import RECEIVED, messages
from tests.new_lakes import new_lake
from tests.strategies import interval_sets
from waybill.record import Batch, Canary, Header, IntervalSet, Record, Tombstone, encode

RECEIVED_US = round(RECEIVED.timestamp() * 1_000_000)
SECOND = 1_000_000
DAY_US = 86_400 * SECOND


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1_000_000)


def batch(first: int, last: int, *, head: int, stated_us: int, lost: tuple[Tombstone, ...] = ()) -> bytes:
    """Records first to last; none if last is below first."""
    records = tuple(Record(seq, RECEIVED_US - DAY_US, Canary(id=str(seq))) for seq in range(first, last + 1))
    return encode(Batch("d", 7, head, records, lost, stated_us))


def heartbeat(head: int, stated_us: int) -> bytes:
    return batch(1, 0, head=head, stated_us=stated_us)


@st.composite
def lives(draw: st.DrawFn) -> list[Batch]:
    """What a truthful device sends: batches of records or tombstones, and heartbeats, its head and time never less."""
    sent: list[Batch] = []
    head, now_us, waiting = 0, 1, 1
    for _ in range(draw(st.integers(1, 10))):
        head += draw(st.integers(0, 4))
        now_us += draw(st.integers(0, 5))
        last = draw(st.integers(waiting - 1, head))
        covered = range(waiting, last + 1)
        waiting = last + 1
        states_us = now_us if not covered or draw(st.booleans()) else 0
        if covered and draw(st.integers(0, 3)) == 0:
            sent.append(Batch("d", 7, head, (), (Tombstone(covered[0], last, "age"),), states_us))
        else:
            records = tuple(Record(seq, RECEIVED_US, Canary(id="x")) for seq in covered)
            sent.append(Batch("d", 7, head, records, (), states_us))
    return sent


def parts(sent: list[Batch]) -> list[StreamPart]:
    """What one executor makes of batches, by the ingest's own decoding."""
    if not sent:
        return []
    (decoded,) = decode_messages([messages(*map(encode, sent))])
    return [
        StreamPart(0, stream, said, records, decoded.statements.get(stream, ()))
        for stream, (said, records) in decoded.streams.items()
    ]


def delivered(micro_batches: list[list[Batch]]) -> Coverage:
    known: dict[DeviceStream, Coverage] = {}
    for sent in micro_batches:
        known |= deduplicate(known.get, parts(sent)).coverage
    return known[STREAM]


def model(sent: list[Batch]) -> tuple[int, int]:
    """(the latest statement of all, the latest one whose head is covered), by looking at every seq."""
    covered = {seq for one in sent for seq in one.header.seqs}
    stated = [(one.stated_us, one.head) for one in sent if one.stated_us]
    fulfilled = [stated_us for stated_us, head in stated if all(seq in covered for seq in range(1, head + 1))]
    return max(stated, default=(0, 0))[0], max(fulfilled, default=0)


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Batch], list[list[Batch]]]:
    """Batches, some of them twice, in any order, and cut into micro-batches."""
    sent = draw(lives())
    some = draw(st.lists(st.sampled_from(sent), max_size=5))
    shuffled = draw(st.permutations(sent + some))
    cuts = sorted(draw(st.lists(st.integers(0, len(shuffled)), max_size=4)))
    return sent, [shuffled[start:end] for start, end in pairwise([0, *cuts, len(shuffled)])]


@given(deliveries())
def test_no_delivery_makes_a_device_more_complete_than_it_is(found: tuple[list[Batch], list[list[Batch]]]) -> None:
    sent, micro_batches = found
    found_now = delivered(micro_batches)
    latest_us, complete_us = model(sent)
    assert found_now.stated_us == latest_us
    assert found_now.complete_until_us <= complete_us
    # once nothing up to the head of the latest is missing, every delivery ends at the same
    if found_now.covered_through >= found_now.stated_head:
        assert found_now.complete_until_us == latest_us


def test_a_device_that_fell_silent_with_records_unsent_is_not_complete_for_the_period() -> None:
    # 816 made, 195 sent; whoever looks at the highest seq that was heard of finds nothing missing
    sent = batch(1, 195, head=195, stated_us=us("2026-01-04T06:00"))
    (decoded,) = decode_messages([messages(sent)])
    ((said, _),) = decoded.streams.values()
    found = said.completed()
    assert not found.missing
    assert found.complete_until_us == us("2026-01-04T06:00") < us("2026-02-01")


def decode(*sent: bytes, now: datetime | None = None) -> DecodedMessages:
    (decoded,) = decode_messages([messages(*sent)], now=now)
    return decoded


def test_a_region_whose_clock_is_far_ahead_is_not_believed_and_is_named_with_its_count(tmp_path: Path) -> None:
    # a device that publishes to Pulsar itself stamps the publication with its own clock
    now = RECEIVED - timedelta(seconds=301)
    decoded = decode(heartbeat(0, RECEIVED_US), heartbeat(3, RECEIVED_US), now=now)
    ((said, _),) = decoded.streams.values()
    assert (said.stated_us, decoded.statements) == (0, {})
    assert decoded.disbelieved == {"eu": 2}
    lake = new_lake(tmp_path / "lake")
    writer = new_ingest(lake)
    attempt = writer.begin()
    writer.write(attempt, [write_part(lake, decoded, attempt.ingest_number, now)] * 2)
    (row,) = lake.rows("ingest_batches").to_pylist()
    assert (row["disbelieved"], row["clocks_ahead"]) == (4, "eu")


def test_one_gap_in_september_leaves_january_complete(tmp_path: Path) -> None:
    lake = new_lake(tmp_path / "lake")
    writer = new_ingest(lake)
    january, october = us("2025-02-01T00:05"), us("2025-10-01T00:05")
    take_in(lake, writer, [batch(1, 4, head=4, stated_us=january)])
    take_in(lake, writer, [batch(7, 8, head=8, stated_us=october)])
    found = coverage(lake)
    assert found.missing == IntervalSet([(5, 6)])
    assert (found.complete_until_us, found.stated_us, found.stated_head) == (january, october, 8)
    # a new process knows what was stated before, and the gap is filled by what states nothing
    take_in(lake, new_ingest(lake), [batch(5, 6, head=8, stated_us=0)])
    assert coverage(lake).complete_until_us == october


@st.composite
def headers(draw: st.DrawFn) -> Header:
    """A header of one of two buffers, with names and tombstones apart."""
    ranges = draw(interval_sets)
    lost = draw(interval_sets) - ranges
    tombstones = tuple(Tombstone(*bounds, draw(st.sampled_from(["quota", "age"]))) for bounds in lost.ranges)
    highest = max(ranges.last or 1, lost.last or 1)
    return Header(draw(st.sampled_from(["a", "b"])), 7, highest + draw(st.integers(0, 3)), ranges, tombstones)


histories = st.lists(headers(), max_size=12)


def parts_of_deduplication(history: list[Header]) -> list[StreamPart]:
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
        decision = deduplicate(known.get, parts_of_deduplication(history[start:end]))
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
    decision = deduplicate(known.get, parts_of_deduplication(history))
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
    decision = deduplicate(known.get, parts_of_deduplication(history))
    for stream, covered in decision.coverage.items():
        assert known.get(stream, Coverage()) | decision.delta.get(stream, Coverage()) == covered


@given(histories)
def test_every_name_up_to_the_head_is_received_lost_or_missing(history: list[Header]) -> None:
    for covered in run(history, [])[0].values():
        assert (covered.received | covered.declared_lost | covered.missing).gaps(1, covered.head) == IntervalSet()
        assert not covered.received & covered.declared_lost
        assert not covered.missing & (covered.received | covered.declared_lost)


def test_a_record_that_comes_after_its_tombstone_is_let_in_and_no_longer_lost() -> None:
    buried = Header("a", 7, 5, IntervalSet([(1, 3)]), (Tombstone(4, 5, "quota"),))
    late = Header("a", 7, 5, IntervalSet([(4, 4)]))
    known, _, _ = run([buried], [])
    assert known[DeviceStream("acme", "a", 7)].declared_lost == IntervalSet([(4, 5)])
    known, accepted, _ = run([buried, late], [])
    coverage = known[DeviceStream("acme", "a", 7)]
    assert (accepted, coverage.declared_lost, coverage.missing) == (4, IntervalSet([(5, 5)]), IntervalSet())
