"""What one evaluation of a region does in a second: 100,000 devices among 100,000 fences, a fix each two seconds.

Of fixes in columns, and of the messages that a process reads: encoded batches of one fix and of ten.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import psutil

from gateway.alerts.config import ReportedTracks
from gateway.alerts.evaluation import AlertRules, LiveEvents
from gateway.alerts.fixes import FixColumns, FixSource
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.partition_evaluation import PartitionEvaluation, PartitionSettings
from geo.spatial import Fence, FenceSet, GateSet, PublishedEventSettings
from geo.spatial.ragged import Floats
from waybill.identity.sealing import Unsealer
from waybill.record import Batch, Position, Record, encode

DEVICES: Final = 100_000
FENCES: Final = 100_000
TARGET_RATE: Final = 50_000.0
TARGET_MIB: Final = 600.0
STEP_S: Final = 2.0
IN_A_CALL: Final = 2_500
"""What comes in 50 ms."""
PARKED: Final = 0.3
SECONDS: Final = 60
MESSAGE_SECONDS: Final = 10
IN_A_MESSAGE: Final = (10, 1)
_WARM: Final = 3
"""So many fixes of each device come before what is measured."""
START_MS: Final = 1_767_600_000_000
_WEST, _SOUTH, _WIDTH, _HEIGHT = 6.0, 48.0, 8.0, 6.0
_TOWNS: Final = 400
_DEGREE_M: Final = 111_320.0


@dataclass(frozen=True, slots=True)
class EvaluationFigures:
    """What was measured. `judged`: the share of fixes that went through the engine."""

    rate: float
    slowest_ms: float
    events: int
    judged: float
    mib: float
    index_mib: float
    rate_of_messages: dict[int, float]


class _Message(NamedTuple):
    """A batch as the cluster's client hands it over."""

    content: bytes
    published_ms: int

    def data(self) -> bytes:
        return self.content

    def properties(self) -> dict[str, str]:
        return {"tenant": "acme"}

    def publish_timestamp(self) -> int:
        return self.published_ms

    def message_id(self) -> None:
        return None


class DrivingFleet:
    """Vehicles that drive about towns, some of them parked, each with a fix in `STEP_S`."""

    def __init__(self, random: np.random.Generator, towns: Floats) -> None:
        town = random.integers(0, len(towns), DEVICES)
        spread = random.normal(0.0, 0.03, (DEVICES, 2))
        self.lon, self.lat = towns[town, 0] + spread[:, 0], towns[town, 1] + spread[:, 1]
        self.heading = random.uniform(0.0, 2 * np.pi, DEVICES)
        self.speed_mps = random.uniform(5.0, 25.0, DEVICES)
        self.speed_mps[random.random(DEVICES) < PARKED] = 0.0
        self._random = random

    def drive(self) -> None:
        self.heading += self._random.normal(0.0, 0.1, DEVICES)
        metres = self.speed_mps * STEP_S
        self.lat += metres * np.cos(self.heading) / _DEGREE_M
        self.lon += metres * np.sin(self.heading) / (_DEGREE_M * np.cos(np.radians(self.lat)))


def fences(random: np.random.Generator, towns: Floats) -> list[Fence]:
    import shapely  # noqa: PLC0415 - once

    town = random.integers(0, len(towns), FENCES)
    centre = towns[town] + random.normal(0.0, 0.05, (FENCES, 2))
    angle = np.linspace(0.0, 2 * np.pi, 9)[:-1]
    radius = random.uniform(100.0, 200.0, (FENCES, 1)) * random.uniform(0.8, 1.2, (FENCES, 8))
    lat = centre[:, 1:] + radius * np.sin(angle) / _DEGREE_M
    lon = centre[:, :1] + radius * np.cos(angle) / (_DEGREE_M * np.cos(np.radians(centre[:, 1:])))
    shapes = shapely.polygons(np.stack([lon, lat], axis=2))
    return [Fence(id=f"f{number}", shape=shape) for number, shape in enumerate(shapes)]


def measure(seconds: int = SECONDS, message_seconds: int = MESSAGE_SECONDS) -> EvaluationFigures:
    """Feeds one evaluation as fast as it goes, after each device has had two fixes; then one with messages."""
    random = np.random.default_rng(7)
    towns = np.column_stack([_WEST + _WIDTH * random.random(_TOWNS), _SOUTH + _HEIGHT * random.random(_TOWNS)])
    before_mib = _resident_mib()
    rules = AlertRules(FenceSet(fences(random, towns)), GateSet(()), ReportedTracks(), PublishedEventSettings())
    index_mib = _resident_mib() - before_mib
    live, fleet = LiveEvents(rules), DrivingFleet(random, towns)
    names = [FixSource("acme", f"bus-{number}", 7) for number in range(DEVICES)]
    step = 0
    for _ in range(_WARM):
        _drive(live, fleet, names, step)
        step += 1
    judged, events, fixes, slowest, spent = live.judged, 0, 0, 0.0, 0.0
    while spent < seconds:
        some = _drive(live, fleet, names, step)
        step += 1
        events, fixes, spent = events + some[0], fixes + DEVICES, spent + some[1]
        slowest = max(slowest, some[2])
    share, mib = (live.judged - judged) / fixes, _resident_mib()
    del live
    of_messages = {count: _rate_of_messages(rules, fleet, count, message_seconds) for count in IN_A_MESSAGE}
    return EvaluationFigures(fixes / spent, 1000 * slowest, events, share, mib, index_mib, of_messages)


def _rate_of_messages(rules: AlertRules, fleet: DrivingFleet, in_a_message: int, seconds: int) -> float:
    """Fixes a second from the bytes of batches on, as a partition's thread takes them in."""
    settings = PartitionSettings("eu", frozenset({"acme"}), Unsealer.of_folder(None), 0)
    state = PartitionEvaluation("batches", settings, lambda: rules, LiveEvents, AlertMetrics())
    begun_ms, seq, fixes, spent = round(time.time() * 1000), 0, 0, 0.0
    while spent < seconds:
        is_warm = seq >= _WARM
        messages = _batches(fleet, in_a_message, seq, begun_ms)
        seq += in_a_message
        step = IN_A_CALL // in_a_message
        for begin in range(0, DEVICES, step):
            started = time.perf_counter()
            for part in state.parts(messages[begin : begin + step], report=True):
                state.take(part, report=True)
            spent += (time.perf_counter() - started) if is_warm else 0.0
        fixes += DEVICES * in_a_message if is_warm else 0
    return fixes / spent


def _batches(fleet: DrivingFleet, in_a_message: int, seq: int, begun_ms: int) -> list[_Message]:
    driven = []
    for _ in range(in_a_message):
        fleet.drive()
        driven.append((fleet.lat.tolist(), fleet.lon.tolist()))
    end_ms = begun_ms + round(1000 * STEP_S) * (seq + in_a_message)
    return [
        _Message(
            encode(Batch(f"bus-{device}", 7, seq + in_a_message, tuple(_records(driven, device, seq, begun_ms)))),
            end_ms,
        )
        for device in np.random.default_rng(seq).permutation(DEVICES).tolist()
    ]


def _records(driven: list[tuple[list[float], list[float]]], device: int, seq: int, begun_ms: int) -> Iterator[Record]:
    for number, (lat, lon) in enumerate(driven, seq + 1):
        t_us = (begun_ms + round(1000 * STEP_S) * number + device % 1000) * 1000
        yield Record(number, t_us, Position(latitude=lat[device], longitude=lon[device], accuracy_m=5.0))


def _drive(live: LiveEvents, fleet: DrivingFleet, names: list[FixSource], step: int) -> tuple[int, float, float]:
    """One step of the fleet: events, seconds in the evaluation, the slowest call."""
    fleet.drive()
    events, spent, slowest = 0, 0.0, 0.0
    order = np.random.default_rng(step).permutation(DEVICES)
    for begin in range(0, DEVICES, IN_A_CALL):
        some = order[begin : begin + IN_A_CALL]
        count = len(some)
        none: Floats = np.full(count, np.nan)
        t_ms = np.full(count, START_MS + round(1000 * STEP_S) * step) + some % 1000
        fixes = FixColumns(
            sources=[names[number] for number in some.tolist()],
            source=np.arange(count),
            seq=np.full(count, step + 1),
            t_ms=t_ms,
            latitude=fleet.lat[some],
            longitude=fleet.lon[some],
            accuracy_m=np.full(count, 5.0),
            speed_mps=none,
            received_ms=t_ms + 200,
        )
        started = time.perf_counter()
        events += len(live.take(fixes, START_MS + round(1000 * STEP_S) * step, report=True))
        took = time.perf_counter() - started
        spent, slowest = spent + took, max(slowest, took)
    return events, spent, slowest


def _resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / (1 << 20)


def _met(rate: float) -> str:
    return "met" if rate >= TARGET_RATE else "NOT met"


def main() -> bool:
    found = measure()
    memory = "met" if found.mib < TARGET_MIB else "NOT met"
    print(f"one evaluation, {FENCES:,} fences, {DEVICES:,} devices, {PARKED:.0%} of them parked")
    print(f"  fixes a second     {found.rate:>10,.0f}   asked >= {TARGET_RATE:,.0f}   {_met(found.rate)}")
    print(f"  resident           {found.mib:>10.1f} MiB   asked < {TARGET_MIB:.0f} MiB   {memory}")
    print(f"  of that the fences {found.index_mib:>10.1f} MiB")
    print(f"  slowest call       {found.slowest_ms:>10.1f} ms of {IN_A_CALL:,} fixes; judged {found.judged:.1%}")
    print(f"  events             {found.events:>10,}")
    print(f"from the bytes of batches, as a partition's thread takes them, {MESSAGE_SECONDS} s each")
    of_tens = found.rate_of_messages[max(IN_A_MESSAGE)]
    for count, rate in found.rate_of_messages.items():
        limit = f"   asked >= {TARGET_RATE:,.0f}   {_met(rate)}" if rate is of_tens else ""
        print(f"  {count:>2} fixes a batch    {rate:>10,.0f} fixes/s{limit}", flush=True)
    return found.rate >= TARGET_RATE and of_tens >= TARGET_RATE and found.mib < TARGET_MIB
