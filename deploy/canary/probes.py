"""Which probes were sent in which quarter of an hour, on disk before each: a canary that is started again goes on.

A probe that was begun and not ended was cut: how often the vehicle came into the fence in its quarter, nobody knows,
nor in the quarter of the next one, before which it stood somewhere on the way.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from deploy.canary.config import CanaryScript
from deploy.canary.errors import ProbeCut, StateFileDamaged
from simulator import BrokerAddress, PublishSettings, SimulatorError, VehicleMessage, publish
from simulator.messages import canary, position
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import replace_durably
from waybill.record import VEHICLE_CANARY, VEHICLE_POSITION

# The sensor: publishes one probe to the vehicle's broker in real time.

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


_MAX_BYTES: Final = 1 << 20
_KEPT: Final = 16
"""So many quarters are remembered: four hours."""


class SentProbes:
    """By quarter (counted since 1970) the numbers of the probes that were sent as a whole, and the quarters of which
    that is not known."""

    def __init__(self, file: Path, *, has_sent_before: bool) -> None:
        """`has_sent_before`: whether the vehicle's buffer shows that it did; then a file that is gone is a gap.

        Raises StateFileDamaged, OSError.
        """
        self._file = file
        self._whole: dict[int, list[int]] = {}
        self._unknown: set[int] = set()
        self._newest = -1
        self._begun: tuple[int, int] | None = None
        self._after_cut = False
        self._forgotten = -1
        self.last: int | None = None
        if file.exists():
            self._load()
        else:
            # what was driven before this file was lost is not known
            self._after_cut = has_sent_before

    def begin(self, number: int, quarter: int) -> None:
        """A probe is about to be sent; returns when that is on disk. Raises OSError."""
        if self._begun is not None:
            self.cut()
        if self._after_cut:
            self._unknown.add(quarter)
        self._begun, self._after_cut = (number, quarter), False
        self._newest = max(self._newest, number)
        self._save()

    def end(self) -> None:
        """It was sent as a whole. On disk with the next one, or at the end: what is lost until then counts as cut."""
        assert self._begun is not None, "it was begun"
        number, quarter = self._begun
        self._whole.setdefault(quarter, []).append(number)
        self.last, self._begun = number, None
        self._save()

    def cut(self) -> None:
        """It was not sent as a whole."""
        if self._begun is not None:
            self._unknown.add(self._begun[1])
            # where the vehicle stands now nobody knows, so any parity will do for the next one
            self._begun, self._after_cut, self.last = None, True, None
            self._save()

    def is_unknown(self, quarter: int) -> bool:
        """Whether nobody knows what was driven in a quarter."""
        return quarter in self._unknown or quarter <= self._forgotten

    def whole(self, quarter: int) -> list[int]:
        """The probes of a quarter that were sent as a whole, in order."""
        # a clock that was ahead sends later ones first
        return sorted(self._whole.get(quarter, ()))

    def begun(self, quarter: int) -> int | None:
        """The probe of a quarter that is being sent."""
        return self._begun[0] if self._begun is not None and self._begun[1] == quarter else None

    def may_follow(self, number: int) -> bool:
        """Whether a probe begins where the last one ended: one drives north, the next one south."""
        return self.last is None or (number - self.last) % 2 == 1

    def first_not_begun(self, number: int) -> int:
        """This probe, or the first one after all that were begun: a clock that is set back comes to them again."""
        return max(number, self._newest + 1)

    def _load(self) -> None:
        try:
            self._take(json.loads(read_bounded(self._file, _MAX_BYTES)))
        except (AttributeError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise StateFileDamaged(
                f"{self._file} cannot be read ({error}): remove it; until the next quarter of an hour usage is unknown"
            ) from error
        # a probe that was begun and not ended by an earlier process
        self.cut()

    def _take(self, held: dict[str, Any]) -> None:
        self._whole = {int(quarter): [int(one) for one in numbers] for quarter, numbers in held["whole"].items()}
        self._unknown = {int(one) for one in held["unknown"]}
        self._newest = int(held["newest"])
        self._begun = None if held["begun"] is None else (int(held["begun"][0]), int(held["begun"][1]))
        self.last = None if held["last"] is None else int(held["last"])
        self._after_cut = bool(held["after_cut"])

    def _save(self) -> None:
        # a file that is written each period stays small, also where each probe is cut
        known = sorted(self._whole.keys() | self._unknown)
        for old in known[:-_KEPT]:
            self._whole.pop(old, None)
            self._unknown.discard(old)
            self._forgotten = old
        held = {
            "whole": self._whole,
            "unknown": sorted(self._unknown),
            "newest": self._newest,
            "begun": self._begun,
            "last": self.last,
            "after_cut": self._after_cut,
        }
        replace_durably(self._file, json.dumps(held).encode())
