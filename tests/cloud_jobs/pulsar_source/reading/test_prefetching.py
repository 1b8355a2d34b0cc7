"""What a consumer holds ahead is counted by what messages unpack to, as far as this process saw any."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.feeds import FIRST_QUEUE, Feed, Sizes, WideningFeed
from cloud_jobs.pulsar_source.position import LedgerPosition

TOPIC = "persistent://t/n/x"
MIB = 1 << 20
MOST, PREFETCH = 1000, 16 * MIB


@dataclass(frozen=True)
class PrefetchedMessage:
    number: int
    size: int

    def length(self) -> int:
        return self.size


class PrefetchedTopic:
    """Messages of given sizes; opened, a client takes as many as its queue holds, and again as they are received."""

    def __init__(self, sizes: list[int]) -> None:
        self._messages = [PrefetchedMessage(number, size) for number, size in enumerate(sizes)]
        self.held: list[int] = []
        self.opened: list[int] = []

    @contextmanager
    def opening(self, queue: int) -> Iterator[Feed]:
        self.opened.append(queue)
        yield _Client(self, self._messages, queue)


class _Client:
    def __init__(self, topic: PrefetchedTopic, messages: list[PrefetchedMessage], queue: int) -> None:
        self._topic, self._left, self._queue = topic, list(messages), queue

    def receive(self) -> list[PrefetchedMessage]:
        held, self._left = self._left[: self._queue], self._left[self._queue :]
        self._topic.held.append(sum(message.size for message in held))
        return held

    def last(self) -> LedgerPosition:
        return LedgerPosition(1, 1)

    def connected(self) -> bool:
        return True

    def probe_exhausted(self, _: LedgerPosition) -> bool:
        return True


def read(topic: PrefetchedTopic, sizes: Sizes) -> set[int]:
    feed = WideningFeed(topic.opening, f"{TOPIC}-partition-1", MOST, PREFETCH, sizes)
    found: set[int] = set()
    while messages := feed.receive():
        found |= {message.number for message in messages}
    feed.close()
    return found


@given(st.integers(0, 64 * MIB), st.integers(0, 3000))
def test_messages_of_one_size_are_held_within_the_bytes_or_a_few_at_first_and_each_is_handed_over(
    size: int, count: int
) -> None:
    topic, sizes = PrefetchedTopic([size] * count), Sizes()
    assert read(topic, sizes) == set(range(count))
    assert max(topic.held) <= max(PREFETCH, FIRST_QUEUE * size)
    assert len(topic.opened) <= 3
    again = PrefetchedTopic([size] * count)
    read(again, sizes)
    assert max(again.held) <= max(PREFETCH, (1 if count else FIRST_QUEUE) * size)
