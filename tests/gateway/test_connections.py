"""When each side is opened, and what is said of one that does not come up."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from structlog.testing import capture_logs

from tests.gateway.sides import FakeBroker, Region
from tests.gateway.strategies import batch, topic
from waybill.mqtt.mqtt_client import MANY


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region(FakeBroker(greets=False))
    yield made
    made.close()


def test_a_broker_that_does_not_answer_is_given_up_after_the_timeout_and_tried_again(region: Region) -> None:
    region.until(lambda: region.broker.connections == 1)
    region.now_s += 4.9
    region.turn()
    assert region.status.last_error == f"connecting to the MQTT broker at 127.0.0.1:{region.broker.port}"
    region.now_s += 1.1
    region.turn()
    region.now_s += 1
    region.turn()
    assert region.status.last_error == "the MQTT broker does not answer in time"
    region.broker.greets = True
    region.connect()
    assert region.broker.connections > 1
    assert region.status.healthy


def test_attempts_at_pulsar_become_rarer(region: Region) -> None:
    tried_s: list[float] = []
    region.pulsar.is_up = False
    while region.now_s < 1100:
        region.now_s += 0.05
        region.loop.run_once()
        tried_s += [region.now_s] * (region.pulsar.tried - len(tried_s))
    waits_s = [later - earlier for earlier, later in pairwise(tried_s)]
    assert waits_s[0] < 1
    assert waits_s[-1] > 5
    assert max(waits_s) <= 15.1
    assert region.status.last_error.startswith("no producer from pulsar://")


def test_a_full_window_connects_to_nothing(region: Region) -> None:
    region.broker.greets = True
    region.connect()
    for seq in range(1, 17):
        region.broker.deliver(topic("d1"), batch("d1", seq, seq))
    region.until(lambda: len(region.pulsar.waiting) == 16)
    region.broker.hang_up()
    for _ in range(30):
        region.now_s += 1
        region.turn(2)
    assert region.broker.connections == 1, "nothing could be taken there"
    region.pulsar.answer()
    region.until(lambda: region.broker.connections == 2, step_s=1)


def test_a_connection_that_this_side_ended_again_and_again_says_why_and_blames_nobody_else(region: Region) -> None:
    region.broker.greets = True
    with capture_logs() as lines:

        def is_ended_often() -> bool:
            if region.loop._connections.is_mqtt_up:
                region.broker.deliver(topic("d1"), b"x", qos=2)
            else:  # time passes between connections alone, so that none of them lasts
                region.now_s += 0.1
            return [line["event"] for line in lines].count("not connected") > MANY

        region.until(is_ended_often)
    errors = [line["error"] for line in lines if line["event"] == "not connected"]
    assert {error.rpartition(": ")[2] for error in errors} == {"the broker sent a message of QoS 2"}
