"""The whole fleet as one stream of messages: pure, the same for the same scenario, in the order of the wall clock."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from simulator.faults import clock_of, faulty_devices, with_faults
from simulator.messages import VehicleMessage
from simulator.plane import Plane
from simulator.replay import RecordedFix, replay_vehicle
from simulator.roads import Roads, build_roads
from simulator.scenario import Scenario, ScenarioRegion, ScenarioVehicle
from simulator.vehicle import DriveSettings, drive_vehicle

Track = Mapping[str, Sequence[RecordedFix]]


def drive(scenario: Scenario, track: Track | None = None) -> Iterator[VehicleMessage]:
    """Every message of every vehicle, sorted by `offset_s`; `track`: the recorded fixes by device, if any.

    The messages of one vehicle come in the order in which its sensors made them, also where their times do not.
    """
    roads = {region.id: _roads(scenario, region) for region in scenario.regions} if track is None else {}
    faulty = faulty_devices(scenario)
    streams = []
    for vehicle in scenario.vehicles:
        plain = (
            drive_vehicle(_setting(scenario, vehicle, roads[vehicle.region]))
            if track is None
            else replay_vehicle(
                vehicle.device, track.get(vehicle.device, ()), scenario.start_ms, clock_of(scenario, vehicle.device)
            )
        )
        streams.append(with_faults(scenario, vehicle.device, plain, faulty))
    # Merged, not sorted: two weeks of a large fleet do not fit the memory. The device decides between equal moments.
    return heapq.merge(*streams, key=lambda message: (message.offset_s, message.device))


def _roads(scenario: Scenario, region: ScenarioRegion) -> Roads:
    # By its own text each purpose draws its own numbers: one more vehicle or region changes nothing for the others.
    return build_roads(Random(f"{scenario.seed}/{region.id}/roads"), region.half_side_m)


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
