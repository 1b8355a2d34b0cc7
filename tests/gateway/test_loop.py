"""The order of acknowledgement through the loop: batch, Pulsar's receipt, the device's acknowledgement, PUBACK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.sides import Published, Region
from tests.gateway.strategies import batch, settings, topic


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region().connect()
    yield made
    made.close()


def receivers_of(heard: list[Published | int | None]) -> list[object]:
    """What the gateway sent: devices of acknowledgements, and message ids of PUBACKs, in their order."""
    return [it.device if isinstance(it, Published) else it for it in heard]


def test_asked_to_stop_it_finishes_what_it_took_and_then_ends(region: Region) -> None:
    region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    region.loop.stop()
    region.turn()
    region.now_s += 1
    region.turn()
    assert not region.loop.is_finished
    assert region.status.state == "stopping"
    region.broker.deliver(topic("d2"), batch("d2", 1, 1))  # the broker had sent it before it heard of it
    region.until(lambda: len(region.pulsar.waiting) == 2)
    region.pulsar.answer()
    region.pulsar.answer()
    region.until(lambda: region.loop.is_finished, step_s=0.05)
    region.until(lambda: len(region.broker.heard) == 4)
    assert receivers_of(region.broker.heard) == ["d1", "d2", 1, 2]
    region.loop.disconnect()
    assert region.loop.close() == 0


def test_a_stop_that_takes_too_long_acknowledges_nothing_that_is_not_safe(region: Region) -> None:
    region.broker.deliver(topic("d1"), batch("d1", 1, 3))
    region.until(lambda: region.pulsar.waiting)
    region.loop.stop()
    timeout_s = settings().stop_timeout_s
    region.now_s += 0.6 * timeout_s
    region.broker.deliver(topic("d2"), batch("d2", 1, 1))
    region.turn(8)
    assert len(region.pulsar.waiting) == 1, "the second half of the time is for what was taken"
    region.now_s += 0.5 * timeout_s
    assert region.loop.is_finished
    region.loop.disconnect()
    region.until(lambda: region.broker.heard)
    assert region.broker.heard == [None], "the connection ended, and nothing was acknowledged on it"
    assert region.loop.close() == 1
