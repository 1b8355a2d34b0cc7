"""What goes out to devices: no more than the broker takes, and one error does not keep the others from theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import Engine
from gateway.config import PushFolder
from gateway.effects import DevicePublisher
from gateway.metrics import GatewayMetrics
from gateway.mqtt_connection import PublishResult
from gateway.push import PushQueue
from gateway.status import PublicationResults
from tests.gateway.strategies import engine
from waybill.record import DeviceChannel, device_topic


class Taking:
    """A broker's side that notes what it is given, in its order."""

    def __init__(self) -> None:
        self.free_slots, self.is_subscribed = 100, True
        self.fails_on = ""
        self.out: list[str | int] = []

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if topic == self.fails_on:
            raise ValueError("a packet that cannot be made")
        self.free_slots -= 1
        self.out.append(topic)

    def puback(self, mid: int) -> None:
        self.out.append(mid)


def publisher(made: Engine, broker: Any, folder: Path | None = None) -> tuple[DevicePublisher, GatewayMetrics]:
    metrics = GatewayMetrics()
    return DevicePublisher(
        made, broker, PushQueue(PushFolder(folder=folder, unsigned=folder is not None)), metrics, PublicationResults()
    ), metrics


def test_files_of_settings_are_looked_at_one_by_one_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "fleet").mkdir()
    for number in range(6):
        (tmp_path / "fleet" / f"d{number}.toml").write_text("[drain]\nwindow = 9\n" if number % 2 else "wrong")
    broker = Taking()
    it, metrics = publisher(engine(), broker, tmp_path)
    for turn in range(6):
        assert it.next_due_s(7.0) == 7.0
        it.publish_due(7.0)
        assert len(broker.out) == (turn + 1) // 2
    assert it.next_due_s(7.0) is None
    assert broker.out == [device_topic("fleet", f"d{number}", DeviceChannel.CONFIG) for number in (1, 3, 5)]
    assert metrics.counts["pushes_published"] == 3


@pytest.mark.parametrize(("channel", "counts"), [(DeviceChannel.ACK, (1, 0)), (DeviceChannel.CONFIG, (0, 1))])
def test_what_the_broker_refuses_is_counted_as_what_it_was(channel: DeviceChannel, counts: tuple[int, int]) -> None:
    it, metrics = publisher(engine(), Taking())
    it.on_publish_result(PublishResult(device_topic("fleet", "d1", channel), "not authorized"), 0.0)
    assert (metrics.counts["acks_refused"], metrics.counts["pushes_refused_by_broker"]) == counts
