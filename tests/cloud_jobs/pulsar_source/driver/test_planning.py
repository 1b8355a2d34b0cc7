"""Where a batch begins and ends, and how its limits are shared."""

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.lookahead import (
    BatchLimits,
    PendingMessage,
    limit_batch,
    limit_to_target,
    start_positions,
)
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerInfo, LedgerPosition, PartitionState

sizes_by_topic = st.dictionaries(
    st.sampled_from("abcd"), st.lists(st.integers(0, 50), min_size=1, max_size=15), min_size=1
)
limits = st.builds(BatchLimits, st.none() | st.integers(1, 20), st.none() | st.integers(1, 200)).filter(bool)


def pieces(sizes: list[int]) -> list[PendingMessage]:
    return [PendingMessage(LedgerPosition(1, number), size) for number, size in enumerate(sizes)]


def taken(waiting: dict[str, list[int]], limit: BatchLimits, turn: int) -> dict[str, list[int]]:
    weights = {topic: float(len(sizes)) for topic, sizes in waiting.items()}
    ends = limit_batch({topic: pieces(sizes) for topic, sizes in waiting.items()}, weights, limit, turn)
    return {topic: waiting[topic][: end.entry + 1] for topic, end in ends.items()}


@given(sizes_by_topic, limits, st.integers(0, 9))
def test_a_batch_is_filled_as_long_as_any_next_message_fits(
    waiting: dict[str, list[int]], limit: BatchLimits, turn: int
) -> None:
    batch = taken(waiting, limit, turn)
    count = sum(len(sizes) for sizes in batch.values())
    size = sum(sum(sizes) for sizes in batch.values())
    assert count >= 1
    for topic, sizes in waiting.items():
        following = sizes[len(batch.get(topic, [])) :]
        if following and (limit.messages is None or count < limit.messages):
            assert limit.bytes is not None
            assert size + following[0] > limit.bytes


@given(sizes_by_topic)
def test_batch_after_batch_takes_every_message_once(waiting: dict[str, list[int]]) -> None:
    left, total = waiting, 0
    for turn in range(sum(map(len, waiting.values()))):
        batch = taken(left, BatchLimits(3, 40), turn)
        total += sum(map(len, batch.values()))
        left = {topic: rest for topic, sizes in left.items() if (rest := sizes[len(batch.get(topic, [])) :])}
        if not left:
            break
    assert not left
    assert total == sum(map(len, waiting.values()))


TOPIC = "t"
places = st.builds(LedgerPosition, st.integers(1, 3), st.integers(-1, 4))
entries = st.lists(st.integers(0, 5), min_size=1, max_size=3)


def options(**more: str) -> PulsarOptions:
    return PulsarOptions.parse({"clusters": "hq=pulsar://h:1|http://h:2", "topics": "t", "subscription": "s"} | more)


def state(counts: list[int], cursor: LedgerPosition | None) -> PartitionState:
    ledgers = tuple(LedgerInfo(number, count, 10 * count) for number, count in enumerate(counts, start=1))
    return PartitionState(ledgers, LedgerPosition(len(counts), counts[-1] - 1), cursor)


@given(entries, st.none() | places, st.none() | places)
def test_reading_begins_at_the_querys_position_then_at_the_cursor_then_at_the_beginning(
    counts: list[int], cursor: LedgerPosition | None, known: LedgerPosition | None
) -> None:
    begin = start_positions({TOPIC: known} if known else {}, {TOPIC: state(counts, cursor)}, options())
    assert begin == {TOPIC: known or cursor or BEGINNING}


@given(places, places, st.none() | places)
def test_no_end_lies_beyond_the_target_nor_before_its_beginning(
    one: LedgerPosition, other: LedgerPosition, target: LedgerPosition | None
) -> None:
    begin, end = min(one, other), max(one, other)
    (limited,) = limit_to_target({TOPIC: begin}, {TOPIC: end}, {TOPIC: target} if target else {}).values()
    assert begin <= limited <= end
    assert limited == begin or (target is not None and limited <= target)
