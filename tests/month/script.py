"""The script of the month: contracts are published, batches arrive, and bills are closed, issued and adjusted."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import cos, radians, sin
from random import Random
from typing import Any, NamedTuple

from simulator.fleet import CITIES, SELLERS, city_fences, toml_text
from simulator.folder import feature_of
from simulator.roads import Plane, PlanePoint
from simulator.truth import TrueDays, month_of
from waybill.record import Batch, Body, Event, Position, Record, Signal, Tombstone, encode, new_epoch

# Routes of the month: two trips of forty minutes a day, a fix every four minutes.

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
    """A vehicle. `device`: its tenant's name for it. `evening`: the time of its second trip of each day (UTC)."""

    tenant: str
    device: str
    region: str
    evening: timedelta

    @property
    def key(self) -> tuple[str, str]:
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
    """A record as its vehicle made it; `time` is the true time."""

    time: datetime
    body: Body


def trips_of(vehicle: MonthVehicle, seed: int) -> Iterator[list[MadeRecord]]:
    """The records of each trip, in order; the same seed gives the same records."""
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


# Messages of each vehicle of the month, and their arrival: late, twice, out of order or never.

GRACE = timedelta(seconds=60)
"""A statement is that much behind the clock of its device."""
EPOCH_OF_ALL = new_epoch(1_772_000_000_000, 7)
OUTAGE = ("acme", "van-1"), datetime(2026, 3, 6, 12, tzinfo=UTC), datetime(2026, 3, 11, 9, tzinfo=UTC)
"""No connection between the two; then all at once, the newest first."""
FAR_OFF = ("acme", "van-2"), datetime(2026, 3, 9, tzinfo=UTC), timedelta(days=3)
"""The clock is days ahead in the first trip of that day, and is set right after it."""
AHEAD = ("acme", "van-2"), datetime(2026, 3, 18, tzinfo=UTC), timedelta(minutes=47)
"""The clock is somewhat ahead in the first trip of that day; nobody notices, so it is billed as it says."""
CORRECTED = ("acme", "van-2"), datetime(2026, 3, 24, tzinfo=UTC), 400
"""The clock was hours off for a day, and the device corrected what it recorded, to so many milliseconds."""
EVICTED = ("acme", "van-3"), datetime(2026, 3, 14, tzinfo=UTC), slice(6, 13)
"""Of the first trip of that day these records had to make room, and are declared lost."""
SILENT = ("acme", "van-4"), datetime(2026, 3, 20, tzinfo=UTC), datetime(2026, 4, 20, 10, tzinfo=UTC)
"""Heard of until the first, and again from the second on, with all that it has."""
DAY = timedelta(days=1)
SENT_TWICE = 0.15


class ArrivedBatch(NamedTuple):
    """A batch as its region received it. `records`: its seqs."""

    received_at: datetime
    tenant: str
    device: str
    region: str
    data: bytes
    records: tuple[int, ...]
    lost: tuple[int, ...]
    head: int
    stated: datetime


class DeviceJournal(NamedTuple):
    """All records of a device; the first has seq 1. `far_off`: seqs whose time is too far from their receipt."""

    vehicle: MonthVehicle
    records: tuple[Record, ...]
    far_off: frozenset[int]


class _Sender:
    """Numbers and packs the records of one vehicle."""

    def __init__(self, vehicle: MonthVehicle, dice: Random) -> None:
        self.vehicle = vehicle
        self.made: list[Record] = []
        self.far_off: set[int] = set()
        self.deliveries: list[ArrivedBatch] = []
        self._dice = dice

    def send(self, trip: list[MadeRecord]) -> None:
        """Send one batch after each trip, and sometimes the same records again."""
        now = trip[-1].time + timedelta(seconds=30)
        ahead, uncertainty_ms = self._clock(trip[0].time)
        first = len(self.made) + 1
        for record in trip:
            seq = len(self.made) + 1
            time_us = _us(record.time + ahead)
            monotonic_us = _us(record.time) - _us(datetime(2026, 2, 27, tzinfo=UTC))
            self.made.append(Record(seq, time_us, record.body, monotonic_us, "boot-1", uncertainty_ms))
            if ahead >= DAY:
                self.far_off.add(seq)
        lost = range(0)
        if self._is(EVICTED[0]) and EVICTED[1] <= trip[0].time < EVICTED[1] + timedelta(hours=12):
            lost = range(first, len(self.made) + 1)[EVICTED[2]]
        data = self._packed(range(first, len(self.made) + 1), lost, now + ahead - GRACE)
        received = self._received(now)
        self._deliver(received, data, now + ahead - GRACE, range(first, len(self.made) + 1), lost)
        if self._dice.random() < SENT_TWICE:
            self._send_again(received + timedelta(hours=self._dice.randrange(1, 30)), first, lost)

    def beat(self, now: datetime) -> None:
        """Send a statement without records."""
        stated = now - GRACE
        data = self._packed(range(0), range(0), stated)
        self._deliver(self._received(now), data, stated, range(0), range(0))

    def _send_again(self, received: datetime, first: int, lost: range) -> None:
        """Send the last records again, with some of those before them, as another batch."""
        again = range(max(1, first - 5), len(self.made) + 1)
        if lost or any(seq in self.far_off for seq in again) or (self._is(SILENT[0]) and received >= SILENT[1]):
            return
        # Repeat the old statement, which takes nothing back.
        stated = _time(self.made[-1].device_time_us)
        if self._is(EVICTED[0]) and again[0] < first and self._lost_before(again[0], first):
            return
        self._deliver(received, self._packed(again, lost, stated), stated, again, lost)

    def _lost_before(self, first: int, last: int) -> bool:
        return any(first <= seq < last for delivery in self.deliveries for seq in delivery.lost)

    def _packed(self, seqs: range, lost: range, stated: datetime) -> bytes:
        records = tuple(self.made[seq - 1] for seq in seqs if seq not in lost)
        tombstones = (Tombstone(lost[0], lost[-1], "quota"),) if lost else ()
        batch = Batch(self.vehicle.device, EPOCH_OF_ALL, len(self.made), records, tombstones, _us(stated))
        return encode(batch)

    def _deliver(self, received: datetime, data: bytes, stated: datetime, seqs: range, lost: range) -> None:
        tenant, device, region, _ = self.vehicle
        records = tuple(seq for seq in seqs if seq not in lost)
        # The region does not believe statements about the future.
        stated = min(stated, received)
        self.deliveries.append(
            ArrivedBatch(received, tenant, device, region, data, records, tuple(lost), len(self.made), stated)
        )

    def _clock(self, time: datetime) -> tuple[timedelta, int]:
        """How far the clock is ahead, and the uncertainty (ms) of a corrected time."""
        for of, day, ahead in (FAR_OFF, AHEAD):
            if self._is(of) and day <= time < day + timedelta(hours=12):
                return ahead, 0
        if self._is(CORRECTED[0]) and CORRECTED[1] <= time < CORRECTED[1] + DAY:
            return timedelta(), CORRECTED[2]
        return timedelta(), 0

    def _received(self, now: datetime) -> datetime:
        if self._is(OUTAGE[0]) and OUTAGE[1] <= now < OUTAGE[2]:
            # The newest comes first.
            return OUTAGE[2] + (OUTAGE[2] - now) / 1000
        if self._is(SILENT[0]) and SILENT[1] <= now:
            return SILENT[2] + (now - SILENT[1]) / 1000
        return now + timedelta(milliseconds=self._dice.randrange(200, 4000))

    def _is(self, key: tuple[str, str]) -> bool:
        return self.vehicle.key == key


def sent_by(vehicle: MonthVehicle, seed: int) -> tuple[DeviceJournal, list[ArrivedBatch]]:
    """The records of a vehicle, and its batches in the order of their receipt."""
    sender = _Sender(vehicle, Random(f"{seed} {vehicle.tenant} {vehicle.device} deliveries"))
    for trip in trips_of(vehicle, seed):
        sender.send(trip)
    sender.beat(LAST_DAY + DAY)
    journal = DeviceJournal(vehicle, tuple(sender.made), frozenset(sender.far_off))
    return journal, sorted(sender.deliveries, key=lambda delivery: delivery.received_at)


def shuffled(deliveries: list[ArrivedBatch], seed: int) -> Iterator[ArrivedBatch]:
    """The batches with neighbours out of order, because two regions have no common order."""
    dice = Random(f"{seed} order")
    yield from sorted(deliveries, key=lambda one: one.received_at + timedelta(minutes=dice.randrange(90)))


def _us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _time(time_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)


# Contracts and fences of the month, and when each was published.

BEGIN = datetime(2026, 2, 27, tzinfo=UTC)
DOUBTS = {"unknown_percent": Decimal(100), "unreadable_percent": Decimal(40)}
"""A trip of this month begins where it likes, and not where the one before it ended; and for three days the clock of
one vehicle is far off, which is much of the only day of February."""
MOVED = datetime(2026, 3, 19, 23, tzinfo=UTC)
"""Midnight of 20 March in Berlin, when acme's van-3 becomes kaze's to pay."""
NEW_PRICES = datetime(2026, 3, 15, 23, tzinfo=UTC)
"""Midnight of 16 March in Berlin."""
NEW_HARBOUR = datetime(2026, 3, 12, 3, tzinfo=UTC)
NEW_BEND = datetime(2026, 3, 26, 3, tzinfo=UTC)
NEW_RATE = datetime(2026, 3, 31, tzinfo=UTC)
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
GATES = {
    "eu-bridge": (PlanePoint(-400, -2600), PlanePoint(-150, 900)),
    "eu-tunnel": (PlanePoint(900, -1200), PlanePoint(1300, 2200)),
    "ap-bridge": (PlanePoint(100, -2000), PlanePoint(-300, 2000)),
}
PERIODS: dict[str, TrueDays] = {
    "acme": month_of("Europe/Berlin", 2026, 3),
    "kaze": month_of("Asia/Tokyo", 2026, 3),
}
"""The period that each payer is billed for: Berlin's March has an hour less."""


def contracts_at_first() -> str:
    return toml_text(
        {
            "legal_entity": [
                {"effective_from": BEGIN, **SELLERS["EUR"]},
                {"effective_from": BEGIN, **SELLERS["JPY"], "vat_id": "JP1234567890123"},
            ],
            "tariff": [city_tariff(BEGIN, "0.45"), _mile_tariff()],
            "account": [
                _account(
                    "acme",
                    payer=_berlin(),
                    devices=[_device("acme", "van-1"), _device("acme", "van-2")],
                    fees=[COUPON],
                ),
                _account(
                    "acme-north",
                    parent="acme",
                    devices=[_device("acme", "van-3") | {"end": MOVED}, _device("acme", "van-4")],
                ),
                _account(
                    "kaze",
                    tariff="mile",
                    payer=_tokyo(),
                    devices=[
                        _device("kaze", "van-1"),
                        _device("kaze", "van-2"),
                        _device("acme", "van-3") | {"begin": MOVED},
                    ],
                ),
            ],
            "exchange_rate": [exchange_rate(BEGIN, "151.37"), exchange_rate(NEW_RATE, "149.805")],
        }
    )


COUPON = {"id": "coupon", "name": "Coupon", "amount": Decimal(-5), "every": "once", "begin": date(2026, 3, 10)}


def tariff_published(per_km: str) -> str:
    """The version of the EUR tariff that begins in mid-month."""
    return toml_text({"tariff": [city_tariff(NEW_PRICES, per_km)]})


def rate_published(rate: str) -> str:
    """The exchange rate of the last day of the month."""
    return toml_text({"exchange_rate": [exchange_rate(NEW_RATE, rate)]})


def fences_at_first() -> tuple[str, ...]:
    zones = (_feature(region, 0.0, name, BEGIN) for region in ("eu", "ap") for name in _names(region))
    gates = (_gate(name, *ends) for name, ends in GATES.items())
    return (*zones, *gates)


def fence_moved(name: str, begin: datetime, east_deg: float) -> tuple[str, ...]:
    """A new version of a zone of the first city, moved to the east."""
    return (_feature("eu", east_deg, name, begin),)


def city_tariff(begin: datetime, per_km: str) -> dict[str, Any]:
    """A tariff by zone and window, with an allowance, tiers and a daily cap."""
    km: dict[str, Any] = {"meter": "distance", "unit": "km"}
    prices: list[dict[str, Any]] = [
        km | {"unit_amount": Decimal(per_km)},
        km | {"zone": "*", "unit_amount": Decimal("0.52")},
        km | {"zone": "eu-centre", "unit_amount": Decimal("0.725")},
        km | {"zone": "*", "window": "night", "unit_amount": Decimal("0.31")},
        {"meter": "entry", "zone": "*", "unit": "each", "unit_amount": Decimal("0.40")},
        {"meter": "entry", "zone": "eu-harbour", "unit": "each", "unit_amount": Decimal("2.50")},
        *(
            {"meter": "duration", "zone": zone, "unit": "h", "pool": "hours", "tiers": HOURS_OF_A_YEAR}
            for zone in ("", "*")
        ),
        {
            "meter": "event",
            "unit": "each",
            "tiers": [
                {"up_to": Decimal(100), "unit_amount": Decimal("0.035")},
                {"unit_amount": Decimal("0.0125")},
            ],
            "pool": "account",
        },
        {
            "meter": "transmitted",
            "unit": "MB",
            # It rises in mid-month, when the allowance is used up.
            "unit_amount": Decimal("25.00" if begin < NEW_PRICES else "25.50"),
            "allowance": Decimal("0.05"),
            "pool": "account",
        },
        {"meter": "active day", "unit": "day", "unit_amount": Decimal("1.50")},
        *_prices_of_facts("0.30" if begin < NEW_PRICES else "0.35"),
    ]
    return {
        "id": "city",
        "effective_from": begin,
        "currency": "EUR",
        "windows": [{"id": "night", "days": list(WEEKDAYS), "hours": ["22:00-06:00"]}],
        "pools": [{"id": "hours", "scope": "tree", "span": "year", "unit": "h", "allowance": Decimal(20)}],
        "prices": prices,
        "caps": [{"scope": "device", "span": "day", "amount": Decimal("11.00"), "meters": ["distance"]}],
        "fees": [
            {"id": "rate", "name": "Monthly rate", "amount": Decimal("12.90"), "scope": "device"},
            {"id": "diesel", "name": "Diesel surcharge", "percent": Decimal("3.7"), "meters": ["distance"]},
        ],
    }


HOURS_OF_A_YEAR = [
    {"up_to": Decimal(100), "unit_amount": Decimal("0.333")},
    {"unit_amount": Decimal("0.25")},
]


def _prices_of_facts(per_visit: str) -> list[dict[str, Any]]:
    """Visits, parking with free time or tiers, and tolls by direction and by pair of gates."""
    each: dict[str, Any] = {"unit": "each"}
    toll = each | {"meter": "passage"}
    tiers = [{"up_to": Decimal(30), "unit_amount": Decimal("0.03")}, {"unit_amount": Decimal("0.0125")}]
    parking = {"meter": "stay", "unit": "min"}
    return [
        each | {"meter": "visit", "zone": "*", "unit_amount": Decimal(per_visit)},
        each | {"meter": "visit", "zone": "eu-harbour", "unit_amount": Decimal("1.50")},
        parking | {"zone": "*", "tiers": tiers, "allowance": Decimal(2)},
        parking
        | {"zone": "eu-centre", "unit_amount": Decimal("0.07"), "step": Decimal(5), "allowance": Decimal(6)}
        | {"most": Decimal("4.50")},
        toll | {"zone": "*", "unit_amount": Decimal("0.45")},
        toll | {"zone": "*", "window": "night", "unit_amount": Decimal("0.25")},
        toll | {"zone": "eu-bridge", "direction": "forward", "unit_amount": Decimal("1.20")},
        toll | {"zone": "eu-tunnel", "after": "eu-bridge", "within": 20, "unit_amount": Decimal("1.35")},
    ]


def _mile_tariff() -> dict[str, Any]:
    """A tariff in dollars, with tiers over all zones, a cap of the period and a minimum."""
    tiers = [
        {"up_to": Decimal(300), "unit_amount": Decimal("0.55")},
        {"up_to": Decimal(600), "unit_amount": Decimal("0.455")},
        {"unit_amount": Decimal("0.3")},
    ]
    prices: list[dict[str, Any]] = [
        {"meter": "distance", "zone": zone, "unit": "km", "tiers": tiers, "pool": "km"} for zone in ("", "*")
    ]
    prices += [
        {"meter": "entry", "zone": "*", "unit": "each", "unit_amount": Decimal("1.10")},
        {"meter": "duration", "unit": "h", "unit_amount": Decimal("0.60")},
        {"meter": "duration", "zone": "*", "unit": "h", "unit_amount": Decimal("0.60")},
        {"meter": "active day", "unit": "day", "unit_amount": Decimal("2.00")},
        {"meter": "visit", "zone": "*", "unit": "each", "unit_amount": Decimal("0.35")},
        {"meter": "stay", "zone": "*", "unit": "h", "unit_amount": Decimal("1.00"), "step": Decimal("0.25")},
        {"meter": "passage", "zone": "*", "unit": "each", "unit_amount": Decimal("0.85")},
        {"meter": "driven day", "zone": "*", "unit": "day", "unit_amount": Decimal("0.40")},
    ]
    return {
        "id": "mile",
        "effective_from": BEGIN,
        "currency": "USD",
        "pools": [{"id": "km"}],
        "prices": prices,
        "caps": [{"scope": "device", "span": "cycle", "amount": Decimal("290.00"), "meters": ["distance"]}],
        "minimum_amount": Decimal("50.00"),
    }


def exchange_rate(begin: datetime, rate: str) -> dict[str, Any]:
    """Yen for a dollar."""
    return {
        "id": "usd-jpy",
        "effective_from": begin,
        "currency": "USD",
        "into": "JPY",
        "rate": Decimal(rate),
        "source": "central bank, reference rate",
    }


def _account(name: str, *, tariff: str = "city", **more: Any) -> dict[str, Any]:
    return {"id": name, "effective_from": BEGIN, "name": name.replace("-", " ").title(), "tariff": tariff, **more}


def _berlin() -> dict[str, Any]:
    return {
        "legal_entity": "waybill-eu",
        "currency": "EUR",
        "time_zone": "Europe/Berlin",
        "cycle": "month",
        "address": {"line": "Kehrwieder 5", "city": "Hamburg", "postal_code": "20457", "country": "DE"},
        "vat": {"category": "S", "rate": Decimal(19)},
        "vat_id": "DE129273398",
        "doubts": DOUBTS,
    }


def _tokyo() -> dict[str, Any]:
    return {
        "legal_entity": "waybill-jp",
        "currency": "JPY",
        "time_zone": "Asia/Tokyo",
        "address": {"line": "Sakae 3-5", "city": "Nagoya", "postal_code": "460-0008", "country": "JP"},
        "vat": {"category": "AE", "exemption_reason": "Reverse charge"},
        "vat_id": "JP9876543210987",
        "doubts": DOUBTS,
    }


def _device(tenant: str, device: str) -> dict[str, Any]:
    region = "eu" if tenant == "acme" else "ap"
    return {"tenant": tenant, "device": device, "region": region, "begin": BEGIN}


def _gate(name: str, begin: PlanePoint, end: PlanePoint) -> str:
    city = CITIES[name[:2]]
    plane = Plane(city.latitude, city.longitude)
    ends = [[round(at, 7) + 5e-8 for at in reversed(plane.degrees(place))] for place in (begin, end)]
    shape = {"type": "LineString", "coordinates": [[round(at, 8) for at in one] for one in ends]}
    said = {"id": name, "gate": True, "effective_from": BEGIN.isoformat()}
    return json.dumps({"type": "Feature", "properties": said, "geometry": shape})


def _names(region: str) -> list[str]:
    return [fence.id for fence in city_fences(region, Plane(0, 0), 1000.0)]


def _feature(region: str, east_deg: float, name: str, begin: datetime) -> str:
    city = CITIES[region]
    plane = Plane(city.latitude, city.longitude + east_deg)
    fences = {fence.id: fence for fence in city_fences(region, plane, city.half_side_m)}
    return json.dumps(feature_of(fences[name].model_copy(update={"effective_from": begin})))


@dataclass(frozen=True, slots=True)
class Publish:
    """Reference data is published: contracts as TOML ("": none), and fences as GeoJSON features."""

    at: datetime
    contracts: str = ""
    fences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Deliver:
    at: datetime
    deliveries: tuple[ArrivedBatch, ...]


@dataclass(frozen=True, slots=True)
class Decide:
    """An operator records a decision for a silent device, up to a moment."""

    at: datetime
    tenant: str
    device: str
    until: datetime
    who: str
    reason: str


@dataclass(frozen=True, slots=True)
class Close:
    """The bills of all payers are closed, for review."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Issue:
    """The bills are closed, and the final ones are issued."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Adjust:
    """The bills are closed again, and differences are posted."""

    at: datetime


Step = Publish | Deliver | Decide | Close | Issue | Adjust


@dataclass(frozen=True, slots=True)
class Month:
    """March 2026: the records of the devices, and the steps in order."""

    journals: tuple[DeviceJournal, ...]
    steps: tuple[Step, ...]

    @property
    def records(self) -> int:
        return sum(len(journal.records) for journal in self.journals)


def hard_month(seed: int = 15) -> Month:
    sent = [sent_by(vehicle, seed) for vehicle in VEHICLES]
    everything = [delivery for _, deliveries in sent for delivery in deliveries]
    early = _between(everything, _april(1, 2000), _april(5), seed)
    late = _between(everything, _april(5), _april(30), seed)
    (tenant, device), _, _ = SILENT
    decision = Decide(_april(7), tenant, device, _april(1), "C. Lerk", "van in the workshop, box without power")
    half = len(early) // 2
    steps: tuple[Step, ...] = (
        Publish(datetime(2026, 2, 27, tzinfo=UTC), contracts_at_first(), fences_at_first()),
        Deliver(datetime(2026, 3, 14, tzinfo=UTC), early[:half]),
        Publish(datetime(2026, 3, 14, 12, tzinfo=UTC), tariff_published("0.47")),
        Publish(datetime(2026, 3, 14, 13, tzinfo=UTC), fences=fence_moved("eu-harbour", NEW_HARBOUR, 0.004)),
        Deliver(_april(5), early[half:]),
        Close(_april(6)),
        decision,
        Issue(_april(8)),
        Adjust(_april(9)),
        Deliver(_april(20, hour=12), late),
        Adjust(_april(21)),
        Publish(_april(22), tariff_published("0.44")),
        Adjust(_april(22, hour=12)),
        Publish(_april(23), fences=fence_moved("eu-bend", NEW_BEND, -0.015)),
        Adjust(_april(23, hour=12)),
        Publish(_april(24), rate_published("149.91")),
        # Everything again, which is known already.
        Deliver(_april(24, hour=6), late[::-1]),
        Adjust(_april(24, hour=12)),
        Adjust(_april(25)),
    )
    return Month(tuple(journal for journal, _ in sent), steps)


def _between(everything: list[ArrivedBatch], begin: datetime, end: datetime, seed: int) -> tuple[ArrivedBatch, ...]:
    return tuple(shuffled([one for one in everything if begin <= one.received_at < end], seed))


def _april(day: int, year: int = 2026, hour: int = 0) -> datetime:
    return datetime(year, 4, day, hour, tzinfo=UTC)
