"""Sends probes to the vehicle's broker, and remembers which were sent in which quarter of an hour."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Final

from gateway.canary.config import CanaryScript
from gateway.errors import ProbeCut
from simulator import BrokerAddress, PublishSettings, SimulatorError, VehicleMessage, publish
from simulator.messages import canary, position
from waybill.record import VEHICLE_CANARY, VEHICLE_POSITION

# The sensor: publishes one probe to the vehicle's broker in real time.

_SILENCE_S: Final = 5.0
"""A broker that accepts nothing for so long cuts the probe."""


def canary_name(device: str, number: int) -> str:
    return f"{device}/{number}"


def messages_of(script: CanaryScript, device: str, number: int) -> Iterator[VehicleMessage]:
    begins_ms = script.begins_ms(number)
    yield VehicleMessage(0.0, device, VEHICLE_CANARY, canary(begins_ms, canary_name(device, number)))
    speed_mps = script.settings.speed_mps
    for fix in script.fixes(number):
        payload = position(begins_ms + fix.after_ms, fix.latitude, fix.longitude, speed_mps=speed_mps)
        yield VehicleMessage(fix.after_ms / 1000, device, VEHICLE_POSITION, payload)


def publish_probe(script: CanaryScript, device: str, number: int, port: int, stop: threading.Event) -> None:
    """Publish a probe; returns when the vehicle's broker has all of it. Raises ProbeCut."""

    def until_stopped() -> Iterator[VehicleMessage]:
        for message in messages_of(script, device, number):
            # a probe that is stopped counts as cut
            if stop.is_set():
                raise ProbeCut("the canary was stopped")
            yield message

    settings = PublishSettings(speedup=1.0, timeout_s=_SILENCE_S)
    try:
        summary = publish(until_stopped(), {device: BrokerAddress("127.0.0.1", port)}, settings)
    except SimulatorError as error:
        raise ProbeCut(f"the vehicle's broker: {error}") from error
    # a possible double in the broker is no hop's fault
    if not summary.complete or summary.maybe_doubled:
        raise ProbeCut("the connection to the vehicle's broker was lost")


_KEPT: Final = 16
"""Quarters of an hour that are remembered."""


class SentProbes:
    """The probes that were sent as a whole, by quarter of an hour (counted since 1970), and the unknown quarters.

    After a cut probe the vehicle stands somewhere on its way. So the number of entries is unknown in the quarter of the
    cut probe and in that of the next one. `after_cut`: the vehicle drove before this process, which has the same
    effect.
    """

    def __init__(self, *, after_cut: bool) -> None:
        self._after_cut = after_cut
        self._whole: dict[int, list[int]] = {}
        self._unknown: set[int] = set()
        self._newest = self._forgotten = -1
        self._begun: tuple[int, int] | None = None
        self.last: int | None = None

    def begin(self, number: int, quarter: int) -> None:
        assert self._begun is None, "the probe before has ended or was cut"
        if self._after_cut:
            self._unknown.add(quarter)
        self._begun, self._after_cut = (number, quarter), False
        self._newest = max(self._newest, number)
        known = sorted(self._whole.keys() | self._unknown)
        for old in known[:-_KEPT]:
            self._whole.pop(old, None)
            self._unknown.discard(old)
            self._forgotten = old

    def end(self) -> None:
        assert self._begun is not None, "it was begun"
        self.last, quarter = self._begun
        self._whole.setdefault(quarter, []).append(self.last)
        self._begun = None

    def cut(self) -> None:
        assert self._begun is not None, "it was begun"
        self._unknown.add(self._begun[1])
        # the position is unknown, so the next probe may start at either end
        self._begun, self._after_cut, self.last = None, True, None

    def is_unknown(self, quarter: int) -> bool:
        return quarter in self._unknown or quarter <= self._forgotten

    def whole(self, quarter: int) -> list[int]:
        return sorted(self._whole.get(quarter, ()))

    def begun(self, quarter: int) -> int | None:
        """The probe of a quarter that is being sent."""
        return self._begun[0] if self._begun is not None and self._begun[1] == quarter else None

    def may_follow(self, number: int) -> bool:
        """Whether a probe begins where the last one ended: one drives north, the next one south."""
        return self.last is None or (number - self.last) % 2 == 1

    def first_not_begun(self, number: int) -> int:
        """This probe, or the first one after all that were begun: a clock that is set back reaches them again."""
        return max(number, self._newest + 1)
