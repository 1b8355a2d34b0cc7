"""What a look ahead sees and keeps from batch to batch, and when its readers are given back."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cloud_jobs.pulsar_source.lookahead import Lookahead, Lookaheads, PendingMessage
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerInfo, LedgerPosition, PartitionRange, PartitionState

TOPIC = "persistent://public/default/t"
OPTIONS = PulsarOptions.parse({"clusters": "hq=pulsar://h:1|http://h:2", "topics": TOPIC, "subscription": "s"})
STATES = {TOPIC: PartitionState((LedgerInfo(7, 9, 90),), LedgerPosition(7, 8), LedgerPosition(7, -1))}
REST, GIB = 5 << 30, 1 << 30


class Opened:
    """Stands for a look ahead; notes that it was closed."""

    def __init__(self, *_: Any) -> None:
        self.closed = False

    def read_between(self, *_: Any) -> list[Any]:
        return []

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("held", "closed"), [(0, False), (GIB, False), (2 * GIB, True), (8 * GIB, True)])
def test_what_a_header_made_a_reader_hold_is_given_back_when_the_batch_is_planned(held: int, closed: bool) -> None:
    resident, opened = [REST], list[Opened]()

    def opening(*_: Any) -> Any:
        opened.append(Opened())
        return opened[-1]

    lookaheads = Lookaheads(OPTIONS, opening, lambda: resident[-1])
    news = [PartitionRange(TOPIC, LedgerPosition(7, -1), LedgerPosition(7, 8))]
    for batch in range(2):
        lookaheads.read_by_topic(OPTIONS.all_clusters()[0], STATES, news, isolated=False)
        resident.append(REST + held)
        lookaheads.close_if_large()
        assert opened[-1].closed is (closed and batch == 0)  # what is held then at rest is not the readers'
        assert len(opened) == 1 + (closed and batch == 1)


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

    def length(self) -> int:
        return 7


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


class OpenedFeeds:
    """A look ahead over scripted feeds."""

    def __init__(self, sent: int) -> None:
        self.sent = [LedgerPosition(7, entry) for entry in range(sent)]
        self.now = Clock()
        self.opened: list[ScriptedFeed] = []
        self.is_exhausted = False
        self.ahead = Lookahead(OPTIONS.all_clusters()[0], OPTIONS, TOPIC, 10, self._open)

    @contextmanager
    def _open(self, _: Any, __: Any, topic: str, after: LedgerPosition, queue: int) -> Iterator[ScriptedFeed]:
        feed = ScriptedFeed(self.sent, after, self.now)
        feed.is_exhausted = self.is_exhausted
        self.opened.append(feed)
        yield feed

    def between(self, after: int, upto: int) -> Iterator[PendingMessage]:
        return self.ahead.read_between(LedgerPosition(7, after), LedgerPosition(7, upto), self.now)


def test_a_look_ahead_receives_no_more_than_its_caller_asks_for() -> None:
    feeds = OpenedFeeds(9)
    assert next(feeds.between(-1, 8)) == PendingMessage(LedgerPosition(7, 0), 7)
    assert feeds.opened[0].received == 2


def test_an_entry_that_is_never_delivered_counts_as_a_message_without_size_and_is_not_waited_for() -> None:
    feeds = OpenedFeeds(3)
    feeds.is_exhausted = True
    messages = feeds.between(-1, 8)
    first = next(messages)
    feeds.opened[0].newest = LedgerPosition(7, 8)
    assert [first, *messages][-1] == PendingMessage(LedgerPosition(7, 8), 0)
