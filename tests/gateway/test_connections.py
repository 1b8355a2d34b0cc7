"""When each side is opened, and what is said of one that does not come up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.sides import FakeBroker, Region


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
