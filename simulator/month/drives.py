"""Where the vehicles of the month drive: two trips of forty minutes a day, a fix every four minutes.

Some trips lie across local midnight, of Berlin or Tokyo, and one in the hour that Berlin's clocks leave out.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import cos, radians, sin
from random import Random
from typing import NamedTuple

from simulator.fleet import CITIES
from simulator.plane import Plane, PlanePoint
from waybill.record import Body, Event, Position, Signal

FIRST_DAY = datetime(2026, 2, 28, tzinfo=UTC)
LAST_DAY = datetime(2026, 4, 1, tzinfo=UTC)
FIXES = 11
FIX_INTERVAL = timedelta(seconds=240)
SPEED_MPS = 9.0
EDGE_M = 3300.0
SIX_FORTY = timedelta(hours=6, minutes=40)
CLOCK_CHANGE = datetime(2026, 3, 29, 0, 40, tzinfo=UTC)
"""A trip around 01:00 UTC, when Berlin goes from 02:00 to 03:00."""


class MonthVehicle(NamedTuple):
    """A vehicle: whose it is, what that tenant calls it, its region, and its second trip of each day (time, UTC)."""

    tenant: str
    device: str
    region: str
    evening: timedelta

    @property
    def key(self) -> tuple[str, str]:
        """Tenant and device."""
        return self.tenant, self.device


BERLIN_MIDNIGHT = timedelta(hours=22, minutes=40)
TOKYO_MIDNIGHT = timedelta(hours=14, minutes=40)
VEHICLES = (
    MonthVehicle("acme", "van-1", "eu", BERLIN_MIDNIGHT),
    MonthVehicle("acme", "van-2", "eu", BERLIN_MIDNIGHT - timedelta(hours=1)),
    MonthVehicle("acme", "van-3", "eu", BERLIN_MIDNIGHT),
    MonthVehicle("acme", "van-4", "eu", BERLIN_MIDNIGHT),
    MonthVehicle("kaze", "van-1", "ap", TOKYO_MIDNIGHT),
    MonthVehicle("kaze", "van-2", "ap", TOKYO_MIDNIGHT),
)


class MadeRecord(NamedTuple):
    """A record as its vehicle made it; `time` by a clock that is right."""

    time: datetime
    body: Body


def trips_of(vehicle: MonthVehicle, seed: int) -> Iterator[list[MadeRecord]]:
    """The records of each trip, in the order of time; the same for the same seed."""
    day = FIRST_DAY
    while day <= LAST_DAY:
        begins = [day + SIX_FORTY, day + vehicle.evening]
        if vehicle.region == "eu" and CLOCK_CHANGE.date() == day.date():
            begins.insert(0, CLOCK_CHANGE)
        for begin in begins:
            dice = Random(f"{seed} {vehicle.tenant} {vehicle.device} {begin.isoformat()}")
            yield _trip(CITIES[vehicle.region].latitude, CITIES[vehicle.region].longitude, begin, dice)
        day += timedelta(days=1)


def _trip(latitude: float, longitude: float, begin: datetime, dice: Random) -> list[MadeRecord]:
    plane = Plane(latitude, longitude)
    # Not on whole seconds, and no two trips alike.
    begin += timedelta(milliseconds=dice.randrange(60_000))
    place = PlanePoint(dice.uniform(-EDGE_M, EDGE_M), dice.uniform(-EDGE_M, EDGE_M))
    heading = dice.uniform(0, 360)
    made = [MadeRecord(begin - timedelta(seconds=1), Event(name="trip_start", attributes='{"by":"driver"}'))]
    driven_m = 0.0
    for number in range(FIXES):
        time = begin + number * FIX_INTERVAL
        at_latitude, at_longitude = plane.degrees(place)
        made.append(
            MadeRecord(
                time,
                Position(latitude=round(at_latitude, 7), longitude=round(at_longitude, 7), accuracy_m=5.0),
            )
        )
        length_m = dice.uniform(0.3, 1.0) * SPEED_MPS * FIX_INTERVAL.total_seconds()
        heading += dice.uniform(-50, 50)
        if max(abs(place.x), abs(place.y)) > EDGE_M:
            # Back to the middle.
            place, driven_m = PlanePoint(place.x * 0.7, place.y * 0.7), driven_m + 0.3 * EDGE_M
        else:
            place = PlanePoint(place.x + length_m * sin(radians(heading)), place.y + length_m * cos(radians(heading)))
            driven_m += length_m
    end = begin + (FIXES - 1) * FIX_INTERVAL
    made.append(MadeRecord(end + timedelta(seconds=1), Signal(path="Vehicle.TraveledDistance", value=round(driven_m))))
    made.append(MadeRecord(end + timedelta(seconds=2), Event(name="trip_end")))
    return made
