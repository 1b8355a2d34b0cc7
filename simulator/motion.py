"""How a vehicle moves: second by second along a route, then parked, then the next trip.

Speeds follow one law, v² = v₀² + 2·a·d: a driver brakes in time for the next bend or red light, and accelerates up to
the limit otherwise.
"""

import math
from collections.abc import Iterator
from enum import Enum
from random import Random
from typing import NamedTuple

from simulator.plane import PlanePoint, distance_m, heading_deg
from simulator.roads import Roads

ACCELERATE_MPS2 = 1.4
BRAKE_MPS2 = 2.0
BEND_MPS = 6.0
BEND_DEG = 30.0
STOP_CHANCE = 0.25
STOP_S = (5, 45)
TRIP_M = 1_500.0
CREEP_MPS = 0.5


class Phase(Enum):
    """What the vehicle does: drives, is parked and still reports now and then, or is parked and silent."""

    DRIVING = "driving"
    PARKED = "parked"
    SILENT = "silent"


class State(NamedTuple):
    """Where a vehicle is at a whole second of its run; `odometer_m` counts from the start of the run."""

    second: int
    at: PlanePoint
    speed_mps: float
    heading_deg: float
    odometer_m: float
    phase: Phase


class Leg(NamedTuple):
    """A straight piece of a trip: its limit, the speed at which its end may be passed, and the wait there."""

    start: PlanePoint
    end: PlanePoint
    limit_mps: float
    end_mps: float
    wait_s: int


def states(rng: Random, roads: Roads, duration_s: int) -> Iterator[State]:
    """The states of one vehicle for every second from 0 to `duration_s`, both included."""
    junction = _somewhere(rng, roads)
    now = State(-1, roads.junctions[junction], 0.0, rng.uniform(0, 360), 0.0, Phase.PARKED)
    while True:
        for state in _parked(rng, now):
            now = state
            if now.second > duration_s:
                return
            yield now
        junction, legs = _trip(rng, roads, junction)
        for state in _driven(now, legs):
            now = state
            if now.second > duration_s:
                return
            yield now


def _parked(rng: Random, since: State) -> Iterator[State]:
    first = since.second < 0
    silent = not first and rng.random() < 0.2
    # Silence is longer than the 300 s at which a track breaks, so that some tracks do.
    seconds = rng.randint(0, 120) if first else rng.randint(400, 900) if silent else rng.randint(60, 420)
    phase = Phase.SILENT if silent else Phase.PARKED
    for elapsed in range(1, seconds + 1):
        yield since._replace(second=since.second + elapsed, speed_mps=0.0, phase=phase)


def _somewhere(rng: Random, roads: Roads) -> int:
    while True:
        junction = rng.randrange(len(roads.junctions))
        # A junction may have lost all its streets to missing blocks.
        if roads.streets[junction]:
            return junction


def _trip(rng: Random, roads: Roads, start: int) -> tuple[int, list[Leg]]:
    for _ in range(100):
        goal = _somewhere(rng, roads)
        if distance_m(roads.junctions[start], roads.junctions[goal]) >= TRIP_M and (way := roads.route(start, goal)):
            return goal, _legs(rng, roads, way)
    raise AssertionError("a street grid of this size always has a way to somewhere")


def _legs(rng: Random, roads: Roads, way: list[tuple[int, float]]) -> list[Leg]:
    points = [roads.junctions[junction] for junction, _ in way]
    legs = []
    for index in range(1, len(way)):
        start, end, limit = points[index - 1], points[index], way[index][1]
        if index == len(way) - 1:
            legs.append(Leg(start, end, limit, 0.0, 0))
        elif rng.random() < STOP_CHANCE:
            legs.append(Leg(start, end, limit, 0.0, rng.randint(*STOP_S)))
        else:
            turn = abs((heading_deg(end, points[index + 1]) - heading_deg(start, end) + 180) % 360 - 180)
            passing = BEND_MPS if turn > BEND_DEG else min(limit, way[index + 1][1])
            legs.append(Leg(start, end, limit, passing, 0))
    return legs


def _driven(now: State, legs: list[Leg]) -> Iterator[State]:
    """Each second moves by the speed of that second; what is left of it at the end of a leg goes into the next."""
    odometer_m = now.odometer_m
    second, speed_mps = now.second, 0.0
    done_m = 0.0
    for leg in legs:
        length_m = distance_m(leg.start, leg.end)
        heading = heading_deg(leg.start, leg.end)
        while done_m < length_m:
            second += 1
            speed_mps = _next_speed(speed_mps, leg, length_m - done_m)
            done_m += speed_mps
            # It stops there: what the step of a second goes too far must not begin the next leg.
            if leg.end_mps == 0.0:
                done_m = min(done_m, length_m)
            odometer_m += speed_mps
            at = _along(leg, min(done_m, length_m) / length_m)
            yield State(second, at, speed_mps, heading, odometer_m, Phase.DRIVING)
        for _ in range(leg.wait_s):
            second += 1
            yield State(second, leg.end, 0.0, heading, odometer_m, Phase.DRIVING)
        speed_mps = min(speed_mps, leg.end_mps)
        done_m -= length_m


def _next_speed(speed_mps: float, leg: Leg, left_m: float) -> float:
    braking_mps = math.sqrt(leg.end_mps**2 + 2 * BRAKE_MPS2 * left_m)
    return max(CREEP_MPS, min(leg.limit_mps, speed_mps + ACCELERATE_MPS2, braking_mps))


def _along(leg: Leg, share: float) -> PlanePoint:
    return PlanePoint(leg.start.x + (leg.end.x - leg.start.x) * share, leg.start.y + (leg.end.y - leg.start.y) * share)
