"""Topics of alerts on real Pulsar: what is not acknowledged comes again, and one that cannot be read stops no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from cloud_jobs.verdicts import subscription
from cloud_jobs.verdicts.subscription import AlertSubscription, ReceivedAlerts
from tests.cloud_jobs.pulsar_source.world import LiveCluster, eventually

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(300)]


def consumers(
    hq: LiveCluster, *topics: str, urls: tuple[str, ...] = (), clock: Callable[[], float] = time.monotonic
) -> AlertSubscription:
    named = dict.fromkeys(topics, "acme")
    return AlertSubscription([*urls, hq.service_url], hq.access, named, "verdicts", clock=clock)


def bodies(received: ReceivedAlerts) -> list[int]:
    return sorted(int(one.body) for one in received.messages)


@pytest.mark.parametrize("partitions", [0, 2])
def test_what_is_not_acknowledged_comes_again_in_this_process_and_in_the_next(hq: LiveCluster, partitions: int) -> None:
    topic = hq.new_topic(partitions)
    hq.send(topic, range(500))
    first = consumers(hq, topic)
    received = first.receive(200)
    assert (len(received.messages), received.is_all) == (200, False)
    assert {(one.topic, one.tenant) for one in received.messages} == {(topic, "acme")}
    # the run failed before its commit
    again = [*bodies(first.receive(10_000))]
    while len({*again}) < 500:
        again += bodies(first.receive(10_000))
        assert len(again) <= 2_000
    first.close()
    second = consumers(hq, topic)
    assert bodies(second.receive(10_000)) == [*range(500)]
    second.acknowledge()
    assert bodies(second.receive(10_000)) == []
    hq.send(topic, [500])
    assert eventually("the next one", lambda: bodies(second.receive(10_000))) == [500]
    second.acknowledge()
    second.close()
    third = consumers(hq, topic)
    assert bodies(third.receive(10_000)) == []
    third.close()
    assert hq.backlog(topic, "verdicts") == 0


def test_a_topic_that_cannot_be_read_is_named_and_tried_again(hq: LiveCluster) -> None:
    there = hq.new_topic()
    absent = "persistent://nobody/alerts-eu/alerts"
    hq.send(there, [1, 2])
    ahead_s = 0.0
    reading = consumers(hq, absent, there, clock=lambda: time.monotonic() + ahead_s)
    received = reading.receive(100)
    assert bodies(received) == [1, 2]
    assert [*received.unread] == [absent]
    reading.acknowledge()
    ahead_s = subscription.RETRY_S
    assert [*reading.receive(100).unread] == [absent]
    reading.close()


def test_a_cluster_that_does_not_answer_is_passed_over(hq: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "_OPERATION_S", 2)
    topic = hq.new_topic()
    hq.send(topic, [1])
    reading = consumers(hq, topic, urls=("pulsar://127.0.0.1:1",))
    assert bodies(reading.receive(100)) == [1]
    reading.close()


def test_alerts_that_come_all_the_time_hold_up_no_run(hq: LiveCluster) -> None:
    topic = hq.new_topic()
    ended = threading.Event()

    def send_on() -> None:
        for number in range(10_000):
            if ended.wait(0.01):
                return
            hq.send(topic, [number])

    sending = threading.Thread(target=send_on, daemon=True)
    sending.start()
    reading = consumers(hq, topic)
    try:
        for _ in range(3):
            received = reading.receive(10_000)
            assert received.is_all
            reading.acknowledge()
        assert sending.is_alive()
    finally:
        ended.set()
        sending.join()
        reading.close()
