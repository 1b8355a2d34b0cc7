"""What each vehicle of the month sends, and when its region receives it: late, twice, out of order, or never."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import NamedTuple

from simulator.month.drives import LAST_DAY, MadeRecord, MonthVehicle, trips_of
from waybill.record import Batch, Record, Tombstone, encode, new_epoch

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
    """A batch as its region received it. `records`: the seqs in it."""

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
    """All records that a device made, the first has the seq 1. `far_off`: seqs whose time is too far from receipt."""

    vehicle: MonthVehicle
    records: tuple[Record, ...]
    far_off: frozenset[int]


class _Sender:
    """One vehicle: numbers what it makes and packs it."""

    def __init__(self, vehicle: MonthVehicle, dice: Random) -> None:
        self.vehicle = vehicle
        self.made: list[Record] = []
        self.far_off: set[int] = set()
        self.deliveries: list[ArrivedBatch] = []
        self._dice = dice

    def send(self, trip: list[MadeRecord]) -> None:
        """One batch after each trip, and now and then the same one again."""
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
        """A statement without records."""
        stated = now - GRACE
        data = self._packed(range(0), range(0), stated)
        self._deliver(self._received(now), data, stated, range(0), range(0))

    def _send_again(self, received: datetime, first: int, lost: range) -> None:
        """The last records once more, some of those before with them: a batch of its own with known records."""
        again = range(max(1, first - 5), len(self.made) + 1)
        if lost or any(seq in self.far_off for seq in again) or (self._is(SILENT[0]) and received >= SILENT[1]):
            return
        # The statement of that moment once more: an old one takes nothing back.
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
        # The region believes no statement about what is to come.
        stated = min(stated, received)
        self.deliveries.append(
            ArrivedBatch(received, tenant, device, region, data, records, tuple(lost), len(self.made), stated)
        )

    def _clock(self, time: datetime) -> tuple[timedelta, int]:
        """How far ahead the clock is, and how uncertain a corrected time is."""
        for of, day, ahead in (FAR_OFF, AHEAD):
            if self._is(of) and day <= time < day + timedelta(hours=12):
                return ahead, 0
        if self._is(CORRECTED[0]) and CORRECTED[1] <= time < CORRECTED[1] + DAY:
            return timedelta(), CORRECTED[2]
        return timedelta(), 0

    def _received(self, now: datetime) -> datetime:
        if self._is(OUTAGE[0]) and OUTAGE[1] <= now < OUTAGE[2]:
            # The later it was made, the earlier it comes.
            return OUTAGE[2] + (OUTAGE[2] - now) / 1000
        if self._is(SILENT[0]) and SILENT[1] <= now:
            return SILENT[2] + (now - SILENT[1]) / 1000
        return now + timedelta(milliseconds=self._dice.randrange(200, 4000))

    def _is(self, key: tuple[str, str]) -> bool:
        return self.vehicle.key == key


def sent_by(vehicle: MonthVehicle, seed: int) -> tuple[DeviceJournal, list[ArrivedBatch]]:
    """What a vehicle made, and all that was received of it, in the order in which it was received."""
    sender = _Sender(vehicle, Random(f"{seed} {vehicle.tenant} {vehicle.device} deliveries"))
    for trip in trips_of(vehicle, seed):
        sender.send(trip)
    sender.beat(LAST_DAY + DAY)
    journal = DeviceJournal(vehicle, tuple(sender.made), frozenset(sender.far_off))
    return journal, sorted(sender.deliveries, key=lambda delivery: delivery.received_at)


def shuffled(deliveries: list[ArrivedBatch], seed: int) -> Iterator[ArrivedBatch]:
    """The deliveries of some days, neighbours out of order: two regions have no common order."""
    dice = Random(f"{seed} order")
    yield from sorted(deliveries, key=lambda one: one.received_at + timedelta(minutes=dice.randrange(90)))


def _us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _time(time_us: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
