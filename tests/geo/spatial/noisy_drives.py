"""Seeded drives and parked vehicles: what a receiver reports, with the noiseless truth beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from geo.spatial import Fixes, TrackSettings, build_tracks
from geo.spatial.geodesic import WGS84
from geo.spatial.ragged import Floats, Ints
from tests.geo.spatial.worlds import START_MS

HOME: Final = (9.98, 53.55)
_STEP_M: Final = 0.5
_ACCELERATION: Final = 1.5
_SIDEWAYS: Final = 2.5


class Receiver(NamedTuple):
    """How places are reported: a fix each `every_s`, with noise of `sigma_m` in each direction (`memory_s`: its
    correlation time, 0: white). `accuracy_m`: what each fix says of itself; None: twice the noise; NaN: nothing.
    `speed`: the noise of reported speeds, m/s; None: none is reported."""

    every_s: float = 1.0
    sigma_m: float = 4.0
    memory_s: float = 0.0
    accuracy_m: float | None = None
    speed: float | None = None


class Drive(NamedTuple):
    """Fixes of one device, and the places where it truly was at their times."""

    fixes: Fixes
    truth: Fixes

    @property
    def true_m(self) -> float:
        return float(build_tracks(self.truth, TrackSettings.every_fix(3_600)).metres.sum())


class Road:
    """A way in metres east and north of its beginning, of straight lines and arcs, with a speed and with stops."""

    def __init__(self, heading_deg: float = 0.0) -> None:
        self._x, self._y, self._most = [0.0], [0.0], [0.0]
        self._stops: dict[int, float] = {}
        self._heading = np.radians(heading_deg)

    def straight(self, metres: float, mps: float) -> Road:
        for _ in range(max(round(metres / _STEP_M), 1)):
            self._go(mps)
        return self

    def turn(self, degrees: float, radius_m: float, mps: float) -> Road:
        steps = max(round(abs(np.radians(degrees)) * radius_m / _STEP_M), 1)
        for _ in range(steps):
            self._heading += np.radians(degrees) / steps
            self._go(min(mps, float(np.sqrt(_SIDEWAYS * radius_m))))
        return self

    def stop(self, seconds: float) -> Road:
        self._most[-1], self._stops[len(self._x) - 1] = 0.0, seconds
        return self

    def _go(self, mps: float) -> None:
        self._x.append(self._x[-1] + _STEP_M * float(np.cos(self._heading)))
        self._y.append(self._y[-1] + _STEP_M * float(np.sin(self._heading)))
        self._most.append(mps)

    def driven(self, t_s: Floats) -> tuple[Floats, Floats]:
        """East and north metres at times since the departure; it waits where it arrives."""
        most = np.array(self._most)
        most[-1] = 0.0
        # a speed changes by what the acceleration allows: v² by 2as
        square, gain = most**2, 2 * _ACCELERATION * _STEP_M
        for at in range(1, len(square)):
            square[at] = min(square[at], square[at - 1] + gain)
        for at in range(len(square) - 2, -1, -1):
            square[at] = min(square[at], square[at + 1] + gain)
        speed = np.sqrt(square)
        taken = np.append(0.0, 2 * _STEP_M / np.maximum(speed[1:] + speed[:-1], 0.1))
        wait = np.zeros(len(taken))
        for at, seconds in self._stops.items():
            wait[at] = seconds
        arrive = np.cumsum(taken) + np.append(0.0, np.cumsum(wait)[:-1])
        knots = np.column_stack([arrive, arrive + wait]).ravel()
        return np.interp(t_s, knots, np.repeat(self._x, 2)), np.interp(t_s, knots, np.repeat(self._y, 2))

    @property
    def seconds(self) -> float:
        """Until it arrives, at the least; more where it accelerates."""
        return float(2.0 * _STEP_M * len(self._x) + sum(self._stops.values()))


def degrees_of(east_m: Floats, north_m: Floats, home: tuple[float, float] = HOME) -> tuple[Floats, Floats]:
    """Longitudes and latitudes of places around a home, on the ellipsoid's radii there."""
    sine = np.sin(np.radians(home[1]))
    flatness = 1.0 - WGS84.es * sine * sine
    prime = WGS84.a / np.sqrt(flatness)
    lat = home[1] + np.degrees(north_m * flatness / (prime * (1.0 - WGS84.es)))
    lon = home[0] + np.degrees(east_m / (prime * np.cos(np.radians(home[1]))))
    return np.round((lon + 180.0) % 360.0 - 180.0, 7), np.round(lat, 7)


def noise(random: np.random.Generator, t_ms: Ints, receiver: Receiver) -> Floats:
    """Metres in each of two directions at each fix: white, or a Gauss-Markov process."""
    white = random.normal(0.0, receiver.sigma_m, (2, len(t_ms)))
    if receiver.memory_s <= 0.0:
        return white
    keeps = np.exp(-np.diff(t_ms) / 1000.0 / receiver.memory_s)
    for at, keep in enumerate(keeps.tolist(), start=1):
        white[:, at] = keep * white[:, at - 1] + np.sqrt(1.0 - keep * keep) * white[:, at]
    return white


def reported(
    east_m: Floats,
    north_m: Floats,
    t_ms: Ints,
    receiver: Receiver,
    seed: int,
    *,
    speed_mps: Floats | None = None,
    home: tuple[float, float] = HOME,
) -> Drive:
    off = noise(np.random.default_rng(seed), t_ms, receiver)
    (lon, lat), (x, y) = degrees_of(east_m, north_m, home), degrees_of(east_m + off[0], north_m + off[1], home)
    said = 2.0 * receiver.sigma_m if receiver.accuracy_m is None else receiver.accuracy_m
    device, accuracy = np.zeros(len(t_ms), np.int64), np.full(len(t_ms), said)
    speed = None
    if receiver.speed is not None:
        truly = np.zeros(len(t_ms)) if speed_mps is None else speed_mps
        speed = np.abs(truly + np.random.default_rng([seed, 2]).normal(0.0, receiver.speed, len(t_ms)))
    return Drive(
        Fixes(device=device, t_ms=t_ms, lat=y, lon=x, accuracy_m=accuracy, speed_mps=speed),
        Fixes(device=device, t_ms=t_ms, lat=lat, lon=lon),
    )


def parked(hours: float, receiver: Receiver, seed: int, *, home: tuple[float, float] = HOME) -> Drive:
    t_ms = START_MS + np.arange(0, round(hours * 3_600_000), round(receiver.every_s * 1000))
    return reported(np.zeros(len(t_ms)), np.zeros(len(t_ms)), t_ms, receiver, seed, home=home)


def drive(road: Road, receiver: Receiver, seed: int, *, wait_s: float = 300.0) -> Drive:
    most = road.seconds
    t_s = np.arange(0.0, wait_s + most + wait_s, receiver.every_s)
    east, north = road.driven(t_s - wait_s)
    later_east, later_north = road.driven(t_s - wait_s + 0.1)
    speed = np.hypot(later_east - east, later_north - north) / 0.1
    arrived = np.flatnonzero((east != east[-1]) | (north != north[-1])).max() * receiver.every_s
    some = t_s <= arrived + wait_s
    t_ms = START_MS + np.rint(t_s[some] * 1000).astype(np.int64)
    return reported(east[some], north[some], t_ms, receiver, seed, speed_mps=speed[some])


def city(seed: int) -> Road:
    random, road = np.random.default_rng(seed), Road(random_heading(seed))
    for _ in range(14):
        road.straight(float(random.uniform(80, 350)), 13.0)
        if random.random() < 0.5:
            road.stop(float(random.uniform(5, 50)))
        road.turn(float(random.choice([-90.0, 90.0, 0.0])), float(random.uniform(7, 15)), 7.0)
    return road.straight(150, 13.0)


def motorway(seed: int) -> Road:
    """Wide bends at 33 m/s."""
    random, road = np.random.default_rng(seed), Road(random_heading(seed))
    for _ in range(6):
        road.straight(float(random.uniform(500, 2500)), 33.0)
        road.turn(float(random.uniform(-40, 40)), float(random.uniform(700, 2000)), 33.0)
    return road.straight(800, 33.0)


def delivery(seed: int) -> Road:
    random, road = np.random.default_rng(seed), Road(random_heading(seed))
    for _ in range(10):
        road.straight(float(random.uniform(150, 400)), 11.0).turn(float(random.choice([-90, 90])), 8.0, 6.0)
        road.straight(float(random.uniform(60, 200)), 9.0).stop(float(random.uniform(60, 240)))
    return road.straight(300, 11.0)


def u_turn(seed: int) -> Road:
    random, road = np.random.default_rng(seed), Road(random_heading(seed))
    there = float(random.uniform(1_000, 2_000))
    return road.straight(there, 12.0).turn(180, 7.0, 5.0).straight(there, 12.0)


def roundabout(seed: int) -> Road:
    random, road = np.random.default_rng(seed), Road(random_heading(seed))
    for _ in range(4):
        road.straight(float(random.uniform(500, 900)), 13.0).turn(-60, 15.0, 6.0)
        road.turn(float(random.choice([150, 210, 300])), float(random.uniform(14, 22)), 7.0).turn(-60, 15.0, 6.0)
    return road.straight(600, 13.0)


def border(seed: int) -> Road:
    return Road(0.0).straight(5_000 + seed % 7, 15.0)


def stop_and_go(seed: int) -> Road:
    """A jam: eight metres, a pause, for a kilometre; then the road is free."""
    random, road = np.random.default_rng(seed), Road(random_heading(seed))
    road.straight(800, 20.0)
    for _ in range(50):
        road.straight(8.0, 3.0).stop(float(random.uniform(8, 25)))
    return road.straight(800, 20.0)


def ferry(seed: int) -> Road:
    road = Road(random_heading(seed)).straight(700, 12.0).stop(600)
    return road.straight(9_000, 6.0).stop(300).straight(700, 12.0)


def walking(seed: int) -> Road:
    random, road = np.random.default_rng(seed), Road(random_heading(seed))
    for _ in range(8):
        road.straight(float(random.uniform(50, 150)), 1.4).turn(float(random.choice([-90, 90])), 2.0, 1.2)
    return road


def random_heading(seed: int) -> float:
    return float(np.random.default_rng([seed, 1]).uniform(0, 360))


ROADS: Final[dict[str, Callable[[int], Road]]] = {
    "city": city,
    "motorway": motorway,
    "delivery": delivery,
    "U-turn": u_turn,
    "roundabout": roundabout,
    "along a border": border,
    "stop and go": stop_and_go,
    "ferry": ferry,
    "walking": walking,
}
