"""Readers of a topic's partitions, also of those that it gets while the canary runs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pulsar
import pytest

from deploy.canary import service as topic_observers
from deploy.canary.config import WatchedCluster
from deploy.canary.service import LOOK_S, TopicReaders


class Topic:
    """Its partitions, each with its messages; a reader of the end gets what comes after it was made."""

    def __init__(self) -> None:
        self.partitions: dict[str, list[bytes]] = defaultdict(list)
        self.fails: Exception | None = None

    def get_topic_partitions(self, _: str) -> list[str]:
        if self.fails is not None:
            raise self.fails
        return [*self.partitions]

    def create_reader(self, partition: str, start: Any) -> Any:
        messages = self.partitions[partition]
        if isinstance(start, int):
            return _Reader(messages, start + 1)
        return _Reader(messages, 0 if start is pulsar.MessageId.earliest else len(messages))

    def close(self) -> None:
        pass


class _Reader:
    def __init__(self, messages: list[bytes], at: int) -> None:
        self._messages, self._at = messages, at

    def is_connected(self) -> bool:
        return True

    def read_next(self, _: int) -> Any:
        if self._at == len(self._messages):
            raise pulsar.Timeout("nothing came")
        self._at += 1
        return _Message(self._messages[self._at - 1], self._at - 1)


class _Message:
    def __init__(self, body: bytes, number: int) -> None:
        self._body, self._number = body, number

    def message_id(self) -> int:
        return self._number

    def data(self) -> bytes:
        return self._body


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()
    monkeypatch.setattr(topic_observers, "open_pulsar_client", lambda *_, **__: made)
    return made


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def readers(clock: Clock) -> TopicReaders:
    return TopicReaders(WatchedCluster(service_url="pulsar://none:1"), "persistent://canary/telemetry-eu/b", clock)


def test_a_partition_that_comes_later_is_read_from_its_beginning_and_the_others_from_their_end(topic: Topic) -> None:
    clock = Clock()
    one = readers(clock)
    topic.partitions["p-0"] += [b"before"]
    assert [*one.read()] == []
    topic.partitions["p-0"] += [b"a"]
    topic.partitions["p-1"] += [b"b"]
    assert [*one.read()] == [b"a"]
    clock.now_s += LOOK_S
    assert [*one.read()] == [b"b"]
    topic.partitions["p-1"] += [b"c"]
    # after a failure both go on where they were, and one that came meanwhile is read as a whole
    one.close()
    topic.partitions["p-2"] += [b"d"]
    assert [*one.read()] == [b"c", b"d"]


def test_a_look_for_partitions_that_fails_stops_no_reader(topic: Topic) -> None:
    clock = Clock()
    one = readers(clock)
    topic.partitions["p-0"] = []
    assert [*one.read()] == []
    topic.fails = pulsar.Timeout("nobody answers")
    clock.now_s += LOOK_S
    topic.partitions["p-0"] += [b"a"]
    assert [*one.read()] == [b"a"]
