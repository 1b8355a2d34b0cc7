"""What one generated vehicle sends: fixes with the faults of real receivers, signals, events and raw messages."""

import math
from collections.abc import Callable, Iterator
from enum import Enum
from random import Random
from typing import NamedTuple

from simulator import messages
from simulator.messages import VehicleMessage
from simulator.roads import Plane, PlanePoint, Roads, distance_m, heading_deg
from simulator.scenario import GpsNoise
from waybill.record import VEHICLE_CANARY, VEHICLE_EVENT, VEHICLE_POSITION, VEHICLE_SIGNAL, vehicle_topic

# The motion of a vehicle: a route, a stop, the next trip.

ACCELERATE_MPS2 = 1.4
BRAKE_MPS2 = 2.0
BEND_MPS = 6.0
BEND_DEG = 30.0
STOP_CHANCE = 0.25
STOP_S = (5, 45)
TRIP_M = 1_500.0
CREEP_MPS = 0.5


class Phase(Enum):
    """SILENT: parked without sending."""

    DRIVING = "driving"
    PARKED = "parked"
    SILENT = "silent"


class State(NamedTuple):
    """The vehicle at a whole second of its run; `odometer_m` counts from the start of the run."""

    second: int
    at: PlanePoint
    speed_mps: float
    heading_deg: float
    odometer_m: float
    phase: Phase


class Leg(NamedTuple):
    """A straight part of a trip. `end_mps`: the speed at its end; `wait_s`: the wait there."""

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
    # Longer than the 300 s after which a track breaks, so that some tracks do.
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
    """One state a second. What is left of a second at the end of a leg goes into the next leg."""
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
            # The vehicle stops there, so an overshoot must not begin the next leg.
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


PARKED_EVERY = 6
PARKED_AT_MOST_S = 240
CANARY_EVERY_S = 300
POOR_FIX, NULL_ISLAND, JUMP = 0.004, 0.001, 0.002
# Well above the 70 m/s at which a step counts as impossible.
JUMP_MPS = 150.0
RAW_CHANCE = 0.004
BATTERY_KM = 320.0

Clock = Callable[[int], int]


class DriveSettings(NamedTuple):
    device: str
    seed: int
    plane: Plane
    roads: Roads
    start_ms: int
    duration_s: int
    interval_s: int
    clock: Clock
    noise: GpsNoise | None = None


def drive_vehicle(setting: DriveSettings) -> Iterator[VehicleMessage]:
    """Every message of one vehicle, in order."""
    # Two random sources, so that messages do not change the drive. A string seeds alike in every process.
    motion = Random(f"{setting.seed}/{setting.device}/motion")
    voice = MessageGenerator(setting, Random(f"{setting.seed}/{setting.device}/voice"))
    phase_before: Phase | None = None
    for state in states(motion, setting.roads, setting.duration_s):
        yield from voice.messages_for(state, phase_before or state.phase)
        phase_before = state.phase


class _ReceiverNoise:
    """A Gauss-Markov process in each direction, and the receiver's accuracy and speed."""

    def __init__(self, noise: GpsNoise, rng: Random) -> None:
        self._noise, self._rng, self._second = noise, rng, 0
        self._at = self._fresh(), self._fresh()

    def _fresh(self) -> float:
        return self._rng.gauss(0.0, self._noise.sigma_m)

    def offset(self, second: int) -> tuple[float, float]:
        """Metres east and north at a second, which must not be before the last one."""
        tau_s = self._noise.tau_s
        keeps = math.exp((self._second - second) / tau_s) if tau_s else 0.0
        east_m, north_m = (keeps * metres + math.sqrt(1.0 - keeps * keeps) * self._fresh() for metres in self._at)
        self._second, self._at = second, (east_m, north_m)
        return self._at

    def accuracy_m(self) -> float:
        """The stated accuracy: about two thirds of all places are nearer."""
        return self._noise.sigma_m * self._rng.uniform(1.7, 2.6)

    def speed(self, speed_mps: float) -> float:
        """A receiver measures speed independently of place, so it is near 0 for a standing vehicle."""
        return abs(speed_mps + self._rng.gauss(0.0, 0.1))


class MessageGenerator:
    """Turns the states of a vehicle into its messages."""

    def __init__(self, setting: DriveSettings, rng: Random) -> None:
        self._setting = setting
        self._rng = rng
        # Shifted, so that vehicles do not report in the same second.
        self._shift_s = rng.randrange(setting.interval_s)
        self._shift_ms = rng.randrange(1000)
        self._electric = rng.random() < 0.5
        self._charge = rng.uniform(60.0, 95.0)
        self._fixes = self._trips = self._canaries = 0
        # A source of its own, so that noise changes nothing else.
        noise_rng = Random(f"{setting.seed}/{setting.device}/noise")
        self._noise = None if setting.noise is None else _ReceiverNoise(setting.noise, noise_rng)

    def messages_for(self, state: State, phase_before: Phase) -> Iterator[VehicleMessage]:
        if state.phase is not phase_before and Phase.DRIVING in {state.phase, phase_before}:
            yield from self._trip_changes(state)
        if self._is_due(state):
            yield self._fix(state)
            yield from self._signals(state)
            if self._rng.random() < RAW_CHANCE:
                yield self._unknown(state)
        if (state.second + self._shift_s) % CANARY_EVERY_S == 0:
            self._canaries += 1
            yield self._message(
                state, VEHICLE_CANARY, messages.canary(self._time_ms(state), f"{self._setting.device}/{self._canaries}")
            )

    def _is_due(self, state: State) -> bool:
        if state.phase is Phase.SILENT:
            return False
        every_s = self._setting.interval_s
        if state.phase is Phase.PARKED:
            every_s = max(every_s, min(every_s * PARKED_EVERY, PARKED_AT_MOST_S))
        return (state.second + self._shift_s) % every_s == 0

    def _message(self, state: State, topic: str, payload: bytes) -> VehicleMessage:
        return VehicleMessage(state.second + self._shift_ms / 1000, self._setting.device, topic, payload)

    def _time_ms(self, state: State) -> int:
        return self._setting.clock(self._setting.start_ms + state.second * 1000 + self._shift_ms)

    def _fix(self, state: State) -> VehicleMessage:
        self._fixes += 1
        chance = self._rng.random()
        accuracy_m, off_m = self._rng.uniform(2.0, 12.0), 0.0
        if chance < POOR_FIX:
            # Worse than the 100 m beyond which a fix is excluded.
            accuracy_m, off_m = self._rng.uniform(120.0, 400.0), 200.0
        elif chance < POOR_FIX + JUMP:
            off_m = JUMP_MPS * self._setting.interval_s
        elif chance < POOR_FIX + JUMP + NULL_ISLAND:
            return self._fix_message(state, messages.position(self._time_ms(state), 0.0, 0.0))
        spread_m = min(accuracy_m, 12.0) / 3
        seen = PlanePoint(state.at.x + self._rng.gauss(off_m, spread_m), state.at.y + self._rng.gauss(off_m, spread_m))
        speed_mps = state.speed_mps
        if self._noise is not None:
            (east_m, north_m), speed_mps = self._noise.offset(state.second), self._noise.speed(speed_mps)
            seen = PlanePoint(state.at.x + off_m + east_m, state.at.y + off_m + north_m)
            accuracy_m = self._noise.accuracy_m() if off_m == 0.0 else accuracy_m
        latitude, longitude = self._setting.plane.degrees(seen)
        payload = messages.position(
            self._time_ms(state),
            latitude,
            longitude,
            altitude_m=self._rng.gauss(20.0, 4.0) if self._fixes % 4 == 0 else None,
            speed_mps=speed_mps,
            # A standing receiver has no heading. Rounded first, because 359.999 would become an invalid 360.
            heading_deg=round(state.heading_deg, 2) % 360.0 if state.speed_mps else None,
            accuracy_m=accuracy_m,
        )
        return self._fix_message(state, payload)

    def _fix_message(self, state: State, payload: bytes) -> VehicleMessage:
        driven = messages.position(self._time_ms(state), *self._setting.plane.degrees(state.at))
        return self._message(state, VEHICLE_POSITION, payload)._replace(driven=driven)

    def _signals(self, state: State) -> Iterator[VehicleMessage]:
        time_ms = self._time_ms(state)
        distance_km = state.odometer_m / 1000
        if self._fixes % 3 == 0:
            yield self._signal(state, time_ms, "Vehicle.TraveledDistance", round(distance_km, 3))
        if self._fixes % 6 == 1:
            yield self._signal(state, time_ms, "Vehicle.Speed", round(state.speed_mps * 3.6, 2))
        if self._electric and self._fixes % 12 == 5:
            charge = max(5.0, self._charge - 100 * distance_km / BATTERY_KM)
            path = "Vehicle.Powertrain.TractionBattery.StateOfCharge.Current"
            yield self._signal(state, time_ms, path, round(charge, 2))

    def _signal(self, state: State, time_ms: int, path: str, value: float | bool | str) -> VehicleMessage:
        return self._message(state, VEHICLE_SIGNAL, messages.signal(time_ms, path, value))

    def _trip_changes(self, state: State) -> Iterator[VehicleMessage]:
        starts = state.phase is Phase.DRIVING
        self._trips += starts
        time_ms = self._time_ms(state)
        attributes = {"trip": f"{self._setting.device}-{self._trips}", "odometer_km": round(state.odometer_m / 1000, 3)}
        name = "trip_start" if starts else "trip_end"
        yield self._message(state, VEHICLE_EVENT, messages.event(time_ms, name, attributes))
        yield self._signal(state, time_ms, "Vehicle.IsMoving", starts)

    def _unknown(self, state: State) -> VehicleMessage:
        topic, payload = self._rng.choice(
            (
                (vehicle_topic("diagnostics/can"), self._rng.randbytes(self._rng.randint(1, 64))),
                (VEHICLE_POSITION, b'{"time": 17676, "latitude": 5'),
                (vehicle_topic("firmware"), f"build {self._rng.randrange(10_000)} \u00fc".encode()),
            )
        )
        return self._message(state, topic, payload)
