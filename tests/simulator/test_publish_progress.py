"""A run reports where it is: also one that is behind and never waits, and never further than its messages are."""

from __future__ import annotations

from typing import Any

from paho.mqtt import client as mqtt

from simulator import BrokerAddress, Progress, PublishSettings, VehicleMessage, publish
from simulator.publisher import _Answer, _Fleet

VAN = {"van": BrokerAddress("127.0.0.1", 1)}


class TakesAll:
    """A client whose broker takes each message at once."""

    def __init__(self, fleet: _Fleet, device: str) -> None:
        self._fleet, self._device, self._count = fleet, device, 0

    def publish(self, topic: str, payload: bytes, qos: int) -> Any:
        assert (topic, payload, qos) == ("signals", b"{}", 1)
        self._count += 1
        self._fleet._news.put(_Answer(self._device, self._count, kept=True))
        info = mqtt.MQTTMessageInfo(self._count)
        info.rc = mqtt.MQTT_ERR_SUCCESS
        return info

    def disconnect(self) -> None:
        """There is no session."""

    loop_stop = disconnect


def messages(*offsets_s: float) -> list[VehicleMessage]:
    return [VehicleMessage(offset_s, "van", "signals", b"{}") for offset_s in offsets_s]


def test_a_run_that_is_behind_reports_its_place_all_the_way() -> None:
    seen: list[Progress] = []
    # a billion seconds in one: each message is due before it is made
    summary = publish(messages(*range(0, 1000, 100)), VAN, PublishSettings(speedup=1e9), on_progress=seen.append)
    assert summary.complete
    assert {0, 300, 600, 900} <= {one.driven_s for one in seen}
