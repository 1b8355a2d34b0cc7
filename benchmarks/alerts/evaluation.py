"""What one evaluation of a region does in a second, from columns and from messages: 100,000 devices and fences."""

import time
from collections.abc import Iterator
from typing import Final

import numpy as np
import psutil

from benchmarks.harness import Figure, limited, print_figures
from gateway.alerts.config import ReportedTracks
from gateway.alerts.evaluation import AlertRules, LiveEvents
from gateway.alerts.fixes import FixColumns, FixSource
from gateway.alerts.metrics import AlertMetrics
from gateway.alerts.partition_evaluation import PartitionEvaluation, PartitionSettings
from geo.spatial import Fence, FenceSet, GateSet, PublishedEventSettings
from geo.spatial.ragged import Floats
from tests.gateway.alerts.scripted_partition import ScriptedMessage
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
START_MS: Final = 1_767_600_000_000
_WEST, _SOUTH, _WIDTH, _HEIGHT = 6.0, 48.0, 8.0, 6.0
_TOWNS: Final = 400
_DEGREE_M: Final = 111_320.0


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


def main() -> bool:
    return print_figures("One evaluation", _figures())


def _figures() -> Iterator[Figure]:
    """Feeds one evaluation as fast as it goes, after each device has had some fixes; then one with messages."""
    random = np.random.default_rng(7)
    towns = np.column_stack([_WEST + _WIDTH * random.random(_TOWNS), _SOUTH + _HEIGHT * random.random(_TOWNS)])
    rules = AlertRules(FenceSet(fences(random, towns)), GateSet(()), ReportedTracks(), PublishedEventSettings())
    live, fleet = LiveEvents(rules), DrivingFleet(random, towns)
    names = [FixSource("acme", f"bus-{number}", 7) for number in range(DEVICES)]
    for step in range(_WARM):
        _drive(live, fleet, names, step)
    step, spent = _WARM, 0.0
    while spent < SECONDS:
        spent += _drive(live, fleet, names, step)
        step += 1
    rate, mib = (step - _WARM) * DEVICES / spent, float(psutil.Process().memory_info().rss) / (1 << 20)
    size = f"{DEVICES:,} devices, {FENCES:,} fences"
    yield limited(f"fixes a second; {size}", rate, ">=", TARGET_RATE)
    yield limited(f"resident memory; {size}", mib, "<", TARGET_MIB, "{:.0f} MiB")
    del live
    for count in IN_A_MESSAGE:
        rate = _rate_of_messages(rules, fleet, count, MESSAGE_SECONDS)
        what = f"fixes a second from bytes, {count} in a batch"
        is_limited = count == max(IN_A_MESSAGE)
        yield limited(what, rate, ">=", TARGET_RATE) if is_limited else Figure(what, f"{rate:,.0f}")


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


def _batches(fleet: DrivingFleet, in_a_message: int, seq: int, begun_ms: int) -> list[ScriptedMessage]:
    driven = []
    for _ in range(in_a_message):
        fleet.drive()
        driven.append((fleet.lat.tolist(), fleet.lon.tolist()))
    end_ms = begun_ms + round(1000 * STEP_S) * (seq + in_a_message)
    seqs, order = seq + in_a_message, np.random.default_rng(seq).permutation(DEVICES).tolist()
    batches = (Batch(f"bus-{at}", 7, seqs, tuple(_records(driven, at, seq, begun_ms))) for at in order)
    return [ScriptedMessage(0, 0, encode(batch), end_ms) for batch in batches]


def _records(driven: list[tuple[list[float], list[float]]], device: int, seq: int, begun_ms: int) -> Iterator[Record]:
    for number, (lat, lon) in enumerate(driven, seq + 1):
        t_us = (begun_ms + round(1000 * STEP_S) * number + device % 1000) * 1000
        yield Record(number, t_us, Position(latitude=lat[device], longitude=lon[device], accuracy_m=5.0))


def _drive(live: LiveEvents, fleet: DrivingFleet, names: list[FixSource], step: int) -> float:
    """One step of the fleet; seconds in the evaluation."""
    fleet.drive()
    spent = 0.0
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
        live.take(fixes, START_MS + round(1000 * STEP_S) * step, report=True)
        spent += time.perf_counter() - started
    return spent
