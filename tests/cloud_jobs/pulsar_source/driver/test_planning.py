"""Where a batch begins and ends, and how its limits are shared."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.lookahead import (
    Lookahead,
    limit_batch,
    limit_to_target,
    start_positions,
)
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerInfo, LedgerPosition, PartitionState

counts_by_topic = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 15), min_size=1)


def taken(waiting: dict[str, int], limit: int, turn: int) -> dict[str, int]:
    pieces = {topic: [LedgerPosition(1, number) for number in range(count)] for topic, count in waiting.items()}
    ends = limit_batch(pieces, {topic: float(count) for topic, count in waiting.items()}, limit, turn)
    return {topic: end.entry + 1 for topic, end in ends.items()}


@given(counts_by_topic, st.integers(1, 20), st.integers(0, 9))
def test_a_batch_is_filled_as_long_as_messages_wait_and_the_one_whose_turn_it_is_gets_one(
    waiting: dict[str, int], limit: int, turn: int
) -> None:
    batch = taken(waiting, limit, turn)
    assert sum(batch.values()) == min(limit, sum(waiting.values()))
    assert batch[sorted(waiting)[turn % len(waiting)]]


@given(counts_by_topic)
def test_batch_after_batch_takes_every_message_once(waiting: dict[str, int]) -> None:
    left, total = waiting, 0
    for turn in range(sum(waiting.values())):
        batch = taken(left, 3, turn)
        total += sum(batch.values())
        left = {topic: rest for topic, count in left.items() if (rest := count - batch.get(topic, 0))}
        if not left:
            break
    assert not left
    assert total == sum(waiting.values())


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


TOPIC_OF_LOOKAHEAD = "persistent://public/default/t"
OPTIONS = PulsarOptions.parse(
    {"clusters": "hq=pulsar://h:1|http://h:2", "topics": TOPIC_OF_LOOKAHEAD, "subscription": "s"}
)


class ScriptedFeed:
    """Gives what was sent after a place, two messages at a time, with the names of the native client."""

    def __init__(self, sent: list[LedgerPosition], after: LedgerPosition, now: "Clock") -> None:
        self.left = [position for position in sent if position > after]
        self.newest, self.now = max([after, *sent]), now
        self.connects, self.is_exhausted = True, False
        self.received = 0

    def receive(self) -> list[Any]:
        self.now.s += 1
        given, self.left = self.left[:2], self.left[2:]
        self.received += len(given)
        return [SentMessage(position) for position in given]

    def last(self) -> LedgerPosition:
        return self.newest

    def connected(self) -> bool:
        return self.connects

    def probe_exhausted(self, _: LedgerPosition) -> bool:
        return self.is_exhausted


class SentMessage:
    def __init__(self, position: LedgerPosition) -> None:
        self._position = position

    def message_id(self) -> "SentMessage":
        return self

    def ledger_id(self) -> int:
        return self._position.ledger

    def entry_id(self) -> int:
        return self._position.entry

    def batch_index(self) -> int:
        return -1


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


class OpenedFeeds:
    def __init__(self, sent: int) -> None:
        self.sent = [LedgerPosition(7, entry) for entry in range(sent)]
        self.now = Clock()
        self.opened: list[ScriptedFeed] = []
        self.is_exhausted = False
        self.ahead = Lookahead(OPTIONS.clusters[0], OPTIONS, TOPIC_OF_LOOKAHEAD, 10, self._open)

    @contextmanager
    def _open(self, _: Any, __: Any, topic: str, after: LedgerPosition, queue: int) -> Iterator[ScriptedFeed]:
        feed = ScriptedFeed(self.sent, after, self.now)
        feed.is_exhausted = self.is_exhausted
        self.opened.append(feed)
        yield feed

    def between(self, after: int, upto: int) -> Iterator[LedgerPosition]:
        return self.ahead.read_between(LedgerPosition(7, after), LedgerPosition(7, upto), self.now)


def test_a_look_ahead_receives_no_more_than_its_caller_asks_for() -> None:
    feeds = OpenedFeeds(9)
    assert next(feeds.between(-1, 8)) == LedgerPosition(7, 0)
    assert feeds.opened[0].received == 2


def test_an_entry_that_is_never_delivered_counts_as_a_message_and_is_not_waited_for() -> None:
    feeds = OpenedFeeds(3)
    feeds.is_exhausted = True
    messages = feeds.between(-1, 8)
    first = next(messages)
    feeds.opened[0].newest = LedgerPosition(7, 8)
    assert [first, *messages][-1] == LedgerPosition(7, 8)
