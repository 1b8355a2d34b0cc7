"""No message ends a reader, and a reader that reads no more says so."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.waiting import wait_until
from waybill.pulsar import compacted_topic
from waybill.pulsar.compacted_topic import CompactedTopicReader, TopicMessage
from waybill.pulsar.pulsar_client import PulsarAccess


class Message:
    def __init__(self, number: int) -> None:
        self.number = number

    def message_id(self) -> int:
        return self.number

    def partition_key(self) -> str:
        return str(self.number)

    def data(self) -> bytes:
        return b""

    def properties(self) -> dict[str, str]:
        return {}

    def publish_timestamp(self) -> int:
        return 0


class Cluster:
    """A client and its reader: so many messages, then silence."""

    def __init__(self, count: int) -> None:
        self.messages = [Message(number) for number in range(count)]
        self.starts: list[Any] = []

    def __call__(self, *_: Any, **__: Any) -> Cluster:
        return self

    def create_reader(self, _: str, start: Any, **__: Any) -> Cluster:
        self.starts.append(start)
        return self

    def is_connected(self) -> bool:
        return True

    def has_message_available(self) -> bool:
        return bool(self.messages)

    def read_next(self, _: int) -> Message:
        if not self.messages:
            import pulsar  # noqa: PLC0415

            threading.Event().wait(0.01)
            raise pulsar.Timeout
        return self.messages.pop(0)

    def close(self) -> None:
        pass


@pytest.fixture
def taken() -> list[str | None]:
    return []


def follow(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, handle: Any) -> CompactedTopicReader:
    monkeypatch.setattr(compacted_topic, "open_pulsar_client", cluster)
    reader = CompactedTopicReader("pulsar://nowhere", PulsarAccess(), "persistent://a/b/c", handle)
    reader.start()
    return reader


def test_a_message_that_cannot_be_handled_is_counted_and_the_next_one_is_read(
    monkeypatch: pytest.MonkeyPatch, taken: list[str | None]
) -> None:
    def handle(message: TopicMessage) -> None:
        if message.key == "1":
            raise OverflowError("a moment that no calendar has")
        taken.append(message.key)

    reader = follow(monkeypatch, Cluster(3), handle)
    wait_until(lambda: reader.standing.is_current, 10)
    assert (taken, reader.standing.unhandled, reader.standing.messages) == (["0", "2"], 1, 3)
    assert "OverflowError" in reader.standing.last_unhandled
    reader.close()


def test_a_topic_that_has_become_empty_is_read_from_its_beginning_again(
    monkeypatch: pytest.MonkeyPatch, taken: list[str | None]
) -> None:
    begun, cluster = list[int](), Cluster(2)
    monkeypatch.setattr(compacted_topic, "open_pulsar_client", cluster)
    reader = CompactedTopicReader(
        "pulsar://nowhere",
        PulsarAccess(),
        "a",
        lambda message: taken.append(message.key),
        on_begin=lambda: begun.append(len(taken)),
        loss_look_s=0.05,
    )
    reader.start()
    wait_until(lambda: len(begun) == 2 and reader.standing.is_current, 10)
    assert (begun, taken) == ([0, 2], ["0", "1"])
    looks = len(cluster.starts)
    wait_until(lambda: not reader.standing.problem, 1)
    assert len(cluster.starts) == looks == 3, "of a topic that has nothing nothing is lost: two readers, and one look"
    reader.close()


def test_everything_is_read_again_when_its_owner_asks_for_it(
    monkeypatch: pytest.MonkeyPatch, taken: list[str | None]
) -> None:
    asked, begun = threading.Event(), list[int]()

    def starts_anew() -> bool:
        if not asked.is_set():
            return False
        asked.clear()
        cluster.messages = [Message(number) for number in range(3)]
        return True

    cluster = Cluster(2)
    monkeypatch.setattr(compacted_topic, "open_pulsar_client", cluster)
    reader = CompactedTopicReader(
        "pulsar://nowhere",
        PulsarAccess(),
        "a",
        lambda message: taken.append(message.key),
        on_begin=lambda: begun.append(len(taken)),
        starts_anew=starts_anew,
    )
    reader.start()
    wait_until(lambda: reader.standing.is_current, 10)
    asked.set()
    wait_until(lambda: taken == ["0", "1", "0", "1", "2"], 10)
    assert cluster.starts[0] == cluster.starts[1], "from the beginning, and not behind what was read"
    assert begun == [0, 2]
    assert reader.standing.is_current
    reader.close()


def test_a_reader_from_the_end_asks_for_no_earlier_message_and_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, taken: list[str | None]
) -> None:
    import pulsar  # noqa: PLC0415

    cluster = Cluster(2)
    monkeypatch.setattr(compacted_topic, "open_pulsar_client", cluster)
    topic = "persistent://fleet/eu/batches"
    reader = CompactedTopicReader(
        "pulsar://nowhere", PulsarAccess(), topic, lambda message: taken.append(message.key), from_end=True
    )
    reader.start()
    wait_until(lambda: len(taken) == 2)
    reader.close()
    assert taken == ["0", "1"]
    assert cluster.starts == [pulsar.MessageId.latest]
