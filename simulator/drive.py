"""The whole fleet as one stream of messages, sorted by time. Pure: the same scenario gives the same messages."""

import heapq
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from simulator.messages import VehicleMessage
from simulator.roads import Plane, Roads, build_roads
from simulator.scenario import Scenario, ScenarioVehicle
from simulator.vehicle import Clock, DriveSettings, drive_vehicle
from waybill.record import VEHICLE_POSITION

# Faults of the vehicles, drawn from the seed: duplicates, wrong clocks, late vehicles.

WRONG_UNTIL = 0.4
CLOCK_ERRORS_MS = (-3 * 3_600_000 - 123_456, 26 * 3_600_000 + 7, -90_000)


class Faulty(NamedTuple):
    """The devices with a wrong clock, and those that send late."""

    wrong_clocks: tuple[str, ...]
    late: tuple[str, ...]


def faulty_devices(scenario: Scenario) -> Faulty:
    """Draws the faulty devices from the seed; a device may have both faults."""
    devices = [vehicle.device for vehicle in scenario.vehicles]
    rng = Random(f"{scenario.seed}/faults")
    wrong = rng.sample(devices, min(scenario.faults.wrong_clocks, len(devices)))
    # Drawn second, so that late vehicles do not change which clocks are wrong.
    late = rng.sample(devices, min(scenario.faults.late, len(devices)))
    return Faulty(tuple(wrong), tuple(late))


def clock_of(scenario: Scenario, device: str) -> Clock:
    """A function from true time to the device's time (ms); a wrong clock is wrong for the first 40 % of the run."""
    wrong = faulty_devices(scenario).wrong_clocks
    if device not in wrong:
        return lambda time_ms: time_ms
    error_ms = CLOCK_ERRORS_MS[wrong.index(device) % len(CLOCK_ERRORS_MS)]
    right_from_ms = scenario.start_ms + round(scenario.duration_s * 1000 * WRONG_UNTIL)
    return lambda time_ms: time_ms if time_ms >= right_from_ms else time_ms + error_ms


def with_faults(
    scenario: Scenario, device: str, stream: Iterator[VehicleMessage], faulty: Faulty
) -> Iterator[VehicleMessage]:
    """The stream of one device with its faults. A message that is sent twice makes two records."""
    if scenario.faults.dirty:
        stream = _dirty(stream, Random(f"{scenario.seed}/{device}/dirty"), scenario.faults.dirty)
    if scenario.faults.duplicates:
        stream = _twice(stream, Random(f"{scenario.seed}/{device}/twice"), scenario.faults.duplicates)
    if device in faulty.late:
        # The merge of the fleet needs offsets that never fall, so all early messages get the same offset.
        stream = (message._replace(offset_s=max(message.offset_s, scenario.duration_s + 2.0)) for message in stream)
    return stream


def _unknown(members: dict[str, Any]) -> dict[str, Any]:
    sentinels = {"altitude_m": None, "speed_mps": -1, "heading_deg": -1, "accuracy_m": 0}
    return {**{name: value for name, value in sentinels.items() if name not in members}, **members}


_FORMS: tuple[Callable[[dict[str, Any]], bytes], ...] = (
    lambda members: json.dumps({**members, "satellites": 9, "hdop": 0.8}).encode(),
    lambda members: json.dumps(_unknown(members)).encode(),
    lambda members: json.dumps({**members, "altitude": float("nan")}).encode(),
    lambda members: b"\xef\xbb\xbf" + json.dumps(members, indent=1).encode() + b"\r\n\0",
    lambda members: json.dumps({name: str(value) for name, value in members.items()}).encode(),
    lambda members: json.dumps([{**members, "time": float(members["time"])}]).encode(),
)
"""Ways in which devices write a fix: each says the same as the payload that it is made of."""


def _dirty(stream: Iterator[VehicleMessage], rng: Random, share: float) -> Iterator[VehicleMessage]:
    for message in stream:
        if message.topic == VEHICLE_POSITION and rng.random() < share:
            write = rng.choice(_FORMS)
            try:
                members = json.loads(message.payload)
            except (ValueError, RecursionError):
                yield message
                continue
            yield message._replace(written=write(members)) if isinstance(members, dict) else message
        else:
            yield message


def _twice(stream: Iterator[VehicleMessage], rng: Random, share: float) -> Iterator[VehicleMessage]:
    for message in stream:
        yield message
        if rng.random() < share:
            yield message


def roads_of(scenario: Scenario) -> dict[str, Roads]:
    """The streets of each region."""
    # Each purpose has its own seed, so that another vehicle or region changes nothing for the others.
    return {
        region.id: build_roads(Random(f"{scenario.seed}/{region.id}/roads"), region.half_side_m)
        for region in scenario.regions
    }


def drive(scenario: Scenario) -> Iterator[VehicleMessage]:
    """Every message of every vehicle, sorted by `offset_s`.

    The messages of one vehicle come in the order in which its sensors made them, also where their times do not.
    """
    roads = roads_of(scenario)
    faulty = faulty_devices(scenario)
    streams = []
    for vehicle in scenario.vehicles:
        plain = drive_vehicle(_setting(scenario, vehicle, roads[vehicle.region]))
        streams.append(with_faults(scenario, vehicle.device, plain, faulty))
    # Merged, because two weeks of a large fleet do not fit into memory. Ties are sorted by device.
    return heapq.merge(*streams, key=lambda message: (message.offset_s, message.device))


def _setting(scenario: Scenario, vehicle: ScenarioVehicle, roads: Roads) -> DriveSettings:
    region = scenario.region(vehicle.region)
    return DriveSettings(
        device=vehicle.device,
        seed=scenario.seed,
        plane=Plane(region.latitude, region.longitude),
        roads=roads,
        start_ms=scenario.start_ms,
        duration_s=scenario.duration_s,
        interval_s=scenario.interval_s,
        clock=clock_of(scenario, vehicle.device),
        noise=scenario.gps_noise,
    )
