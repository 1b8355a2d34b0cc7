"""What no webhook took, on its way into the topics of its tenants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from gateway.errors import UndeliveredUnfit
from gateway.webhooks.posting import EndedDelivery, WebhookDelivery
from gateway.webhooks.undelivered import MAX_BYTES, UndeliveredWriter, decode_undelivered, encode_undelivered
from tests.waiting import wait_until


class Cluster:
    """What it has by topic; `refuses` raises, by the name of the topic."""

    def __init__(self) -> None:
        self.has: dict[str, list[bytes]] = {}
        self.refuses: dict[str, Exception] = {}
        self.too_big = MAX_BYTES

    def client(self) -> Any:
        return _Client(self)


class _Client:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def subscribe(self, topic: str, *_: Any, **__: Any) -> Any:
        if (error := self._cluster.refuses.get(topic)) is not None:
            raise error
        return self

    def create_producer(self, topic: str, **_: Any) -> Any:
        return _Producer(self._cluster, topic)

    def close(self) -> None:
        pass


class _Producer:
    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic

    def send(self, data: bytes, **_: Any) -> None:
        if len(data) > self._cluster.too_big:
            raise pulsar.MessageTooBig("too big")
        self._cluster.has.setdefault(self._topic, []).append(data)


def given_up(number: int, tenant: str, rules: tuple[str, ...] = ("acme/all",)) -> EndedDelivery:
    return EndedDelivery(WebhookDelivery(f"{number}/provisional", "ops", tenant, rules, b"{}"), "refused")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def started(cluster: Cluster) -> Iterator[Callable[[int], UndeliveredWriter]]:
    made = list[UndeliveredWriter]()

    def start(tenants: int) -> UndeliveredWriter:
        one = UndeliveredWriter(cluster.client, topic, written.append, dropped.append, tenants=tenants)
        made.append(one)
        one.start()
        return one

    written.clear()
    dropped.clear()
    yield start
    for one in made:
        one.close()


written, dropped = list[EndedDelivery](), list[EndedDelivery]()


def topic(tenant: str) -> str:
    return f"persistent://{tenant}/events/undelivered"


def test_a_tenant_whose_topic_takes_nothing_holds_up_no_other(
    cluster: Cluster, started: Callable[[int], UndeliveredWriter]
) -> None:
    cluster.refuses[topic("bad")] = pulsar.AuthorizationError("no right")
    one = started(2)
    one.add(given_up(0, "bad"))
    for number in range(500):
        one.add(given_up(number, "good"))
    wait_until(lambda: len(written) == 500)
    assert len(one) == 1
    wait_until(lambda: bool(one.problems))
    assert [*one.problems] == [topic("bad")]
    assert "no right" in one.problems[topic("bad")]
    cluster.refuses.clear()
    wait_until(lambda: len(written) == 501)
    assert one.problems == {}
    assert one.is_running


def test_what_cannot_be_kept_is_dropped_and_what_comes_after_it_is_written(
    cluster: Cluster, started: Callable[[int], UndeliveredWriter]
) -> None:
    one = started(1)
    one.add(given_up(0, "acme", tuple(f"acme/r{number}" for number in range(10_001))))
    one.add(given_up(1, "acme"))
    wait_until(lambda: len(written) == 1)
    assert ([ended.delivery.key for ended in dropped], len(one)) == (["0/provisional"], 0)


def of_rules(count: int) -> EndedDelivery:
    return given_up(0, "acme", tuple(f"a{'x' * 60}/{'r' * 50}{number:05d}" for number in range(count)))


@pytest.mark.parametrize("count", [900, 1_200, 4_000, 8_000])
def test_all_that_is_written_can_be_read(count: int) -> None:
    ended = of_rules(count)
    assert decode_undelivered(encode_undelivered(ended, 1)).delivery.rules == ended.delivery.rules


def test_what_nobody_could_read_is_not_written() -> None:
    with pytest.raises(UndeliveredUnfit, match=r"^0/provisional: "):
        encode_undelivered(of_rules(9_500), 1)
