"""The sensor of the vehicle: publishes one probe to the vehicle's own broker, in real time, as any other would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from deploy.canary.errors import ProbeCut
from deploy.canary.script import CanaryScript
from simulator import BrokerAddress, PublishSettings, SimulatorError, VehicleMessage, publish
from simulator.messages import canary, position
from waybill.record import VEHICLE_CANARY, VEHICLE_POSITION

__all__ = ["canary_name", "messages_of", "publish_probe"]

_SILENCE_S: Final = 5.0
"""A broker that takes nothing for so long has cut the probe."""


def canary_name(device: str, number: int) -> str:
    """The id of the canary record that names a probe."""
    return f"{device}/{number}"


def messages_of(script: CanaryScript, device: str, number: int) -> Iterator[VehicleMessage]:
    """What the vehicle says of a probe, each message with its moment after the beginning."""
    begins_ms = script.begins_ms(number)
    yield VehicleMessage(0.0, device, VEHICLE_CANARY, canary(begins_ms, canary_name(device, number)))
    speed_mps = script.settings.speed_mps
    for fix in script.fixes(number):
        payload = position(begins_ms + fix.after_ms, fix.latitude, fix.longitude, speed_mps=speed_mps)
        yield VehicleMessage(fix.after_ms / 1000, device, VEHICLE_POSITION, payload)


def publish_probe(script: CanaryScript, device: str, number: int, port: int, stop: threading.Event) -> None:
    """Returns when the vehicle's broker has taken all of a probe for a subscriber. Raises ProbeCut."""

    def until_stopped() -> Iterator[VehicleMessage]:
        for message in messages_of(script, device, number):
            # a probe that is cut on purpose is said to be cut
            if stop.is_set():
                raise ProbeCut("the canary was stopped")
            yield message

    settings = PublishSettings(speedup=1.0, timeout_s=_SILENCE_S)
    try:
        summary = publish(until_stopped(), {device: BrokerAddress("127.0.0.1", port)}, settings)
    except SimulatorError as error:
        raise ProbeCut(f"the vehicle's broker: {error}") from error
    # What may be in the broker twice is not the fault of any hop.
    if not summary.complete or summary.maybe_doubled:
        raise ProbeCut("the connection to the vehicle's broker was lost")
