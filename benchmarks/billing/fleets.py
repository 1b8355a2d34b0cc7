"""Made-up contracts and usage of many payers, and lakes in which a month can be closed, or a line taken apart."""

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from benchmarks import lakes
from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import (
    Account,
    AccountContract,
    Assigned,
    LegalEntity,
    PayerContract,
    Tariff,
    TariffSpan,
)
from cloud_jobs.billing.contracts.published import micros
from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.explain import meter_again
from cloud_jobs.job_settings import MaintenanceSettings
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.data_files import DataFile, StoredFiles, write_data_files
from cloud_jobs.lake.schemas import OBSERVED, QUANTITIES, QUARTERS, TABLES, USAGE, WHOLE_DEVICE
from cloud_jobs.lake.snapshots import LakeState, note_fences, note_tracks
from cloud_jobs.lake.tables import FENCES, TRACKS, Lake
from cloud_jobs.maintenance.job import Maintenance
from cloud_jobs.reference.tables import fences_in
from geo.spatial import TrackSettings
from tests.cloud_jobs.billing.contracts import makers
from tests.cloud_jobs.publications import row_of
from tests.system.lake_of_fixes import cover, square
from waybill.record import IntervalSet

START, END = datetime(2026, 2, 28, 23, tzinfo=UTC), datetime(2026, 3, 31, 22, tzinfo=UTC)
ALWAYS = datetime(2026, 1, 1, tzinfo=UTC)
TENANT = "fleet"
ZONES = ("", "depot", "port", WHOLE_DEVICE)
ZONE_SHARES = (0.4, 0.15, 0.15, 0.3)
ROWS_IN_FILE = 1_000_000
"""About as many rows as a merged file has."""
_DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
_HOUR_US = 3_600_000_000
_HOURS = 24


def tariff(effective_from: datetime, *, daily_cap: bool) -> Tariff:
    """Distance and time by zone, the first 100 km free, a price at night, bytes and active days."""
    distance = {"meter": "distance", "unit": "km"}
    prices: list[dict[str, Any]] = [
        distance | {"zone": zone, "unit_amount": amount} for zone, amount in (("", "0.45"), ("*", "0.2475"))
    ]
    if not daily_cap:
        prices = [one | {"allowance": "100"} for one in prices]
    hour = {"meter": "duration", "unit": "h"}
    prices += [hour | {"zone": zone, "unit_amount": "1.2"} for zone in ("", "*")]
    prices += [hour | {"window": "night", "unit_amount": "0.9"}]
    prices += [{"meter": "entry", "unit": "each", "zone": "*", "unit_amount": "2.5"}]
    prices += [{"meter": "transmitted", "unit": "MB", "unit_amount": "0.1", "pool": "account"}]
    prices += [{"meter": "active day", "unit": "day", "unit_amount": "0.35"}]
    night = {"id": "night", "days": ["mon-fri"], "hours": ["22:00-06:00"]}
    cap = {"scope": "device", "span": "day", "amount": "15", "meters": ["distance", "duration"]}
    return Tariff.model_validate(
        {"id": "standard", "effective_from": effective_from, "currency": "EUR", "prices": prices, "windows": [night]}
        | {"caps": [cap] if daily_cap else [], "minimum_amount": "5"}
    )


class FleetSize(NamedTuple):
    """Payers, devices of each, rows of usage of each device in the month. `scattered`: neighbours have other payers."""

    payers: int
    devices: int
    rows: int
    scattered: bool = False

    @property
    def all_devices(self) -> int:
        return self.payers * self.devices

    @property
    def all_rows(self) -> int:
        return self.all_devices * self.rows

    def name(self, payer: int, number: int) -> str:
        at = number * self.payers + payer if self.scattered else payer * self.devices + number
        return f"van-{at:08}"


def contracts(fleet: FleetSize, first: int, payers: int, *, daily_cap: bool) -> list[PayerContract]:
    """Of some payers of a fleet; the tariff changes in the middle of the month."""
    middle = datetime(2026, 3, 15, 12, tzinfo=UTC)
    period = BillingPeriod("Europe/Berlin", date(2026, 3, 1), date(2026, 3, 31))
    start, end = micros(START), micros(END)
    spans = tuple(TariffSpan(micros(since), end, tariff(since, daily_cap=daily_cap)) for since in (ALWAYS, middle))
    account, seller = (
        Account.model_validate(makers.account("payer")),
        LegalEntity.model_validate(makers.legal_entity()),
    )
    made = []
    for payer in range(first, first + payers):
        name = f"payer-{payer:06}"
        devices = tuple(
            Assigned(TENANT, fleet.name(payer, number), start, end, name, "eu") for number in range(fleet.devices)
        )
        mine = AccountContract(id=name, name=name, times=((start, end),), spans=spans, assigned=devices)
        named = account.model_copy(update={"id": name})
        made.append(PayerContract(account=named, period=period, seller=seller, accounts=(mine,), rates={}, digest=""))
    return made


def quantities(random: np.random.Generator, zone: NDArray[np.int64], whole: NDArray[np.bool_]) -> dict[str, pa.Array]:
    """The columns of QUANTITIES for rows with these zones (numbers of ZONES); `whole`: rows of the whole device."""
    count, found = len(zone), {}
    most = {"distance_mm": 12_000_000, "duration_ms": 900_001, "entries": 2, "events": 2, "content_bytes": 4_000}
    for name in QUANTITIES:
        values = random.integers(0, most.get(name, 1), (count, QUARTERS))
        values[whole != (name in {"events", "content_bytes"})] = 0
        if name == "entries":
            values[zone == ZONES.index("")] = 0
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * QUARTERS)
        found[name] = pa.ListArray.from_arrays(offsets, pa.array(values.reshape(-1)))
    return found


def billable_lake(folder: Path, fleet: FleetSize) -> Lake:
    with lakes.unsynced():
        lake = lakes.new_lake(folder)
        lake.append("reference", [*_publications(fleet)])
        # each device has stated its head a day after the month, and all of it is there
        names = [f"van-{at:08}" for at in range(fleet.all_devices)]
        stated_us = int((END + _DAY).timestamp()) * 1_000_000
        ranges = np.tile([1, 9_000], (fleet.all_devices, 1))
        lakes.add_streams(lake, names, ranges, stated_us=stated_us, complete_us=stated_us, tenant=TENANT)
        _add_usage(lake, usage(fleet, 0, fleet.all_devices))
    return lake


def _publications(fleet: FleetSize) -> Iterator[dict[str, Any]]:
    yield row_of("legal_entity", "waybill-eu", makers.legal_entity(), 0, commit_number=1)
    prices = tariff(ALWAYS, daily_cap=False).model_dump_json(exclude_none=True)
    yield row_of("tariff", "standard", prices, 1, commit_number=1)
    for payer in range(fleet.payers):
        name = f"payer-{payer:06}"
        devices = [makers.device(fleet.name(payer, number)) for number in range(fleet.devices)]
        yield row_of("account", name, makers.account(name, *devices, name=name), payer + 2, commit_number=1)


def usage(fleet: FleetSize, begin: int, end: int) -> Iterator[pa.Table]:
    """The rows of some devices for each day of the month, in the order of devices, in parts of ROWS_IN_FILE."""
    # the first day is begun and ended by the payers' midnights, which are not those of UTC
    days = [START + at * _DAY for at in range(1, (END - START).days)]
    each, more = divmod(fleet.rows, len(days))
    for at, day in enumerate(days):
        of_day = each + (at < more)
        step = max(ROWS_IN_FILE // max(of_day, 1), 1)
        for first in range(begin, end if of_day else begin, step):
            yield _rows(first, min(step, end - first), of_day, day)


def _rows(first: int, devices: int, each: int, day: datetime) -> pa.Table:
    """So many rows of one UTC day for devices that are numbered from `first`."""
    random = np.random.default_rng((first, day.toordinal()))
    count, midnight = devices * each, datetime(day.year, day.month, day.day, tzinfo=UTC)
    device = np.repeat(np.arange(first, first + devices), each)
    # hours of a device and day are apart, so no key is there twice
    hour = (random.integers(0, _HOURS, devices)[:, None] + np.arange(each)).reshape(-1) % _HOURS
    zone = random.choice(len(ZONES), count, p=ZONE_SHARES)
    whole = zone == ZONES.index(WHOLE_DEVICE)
    digests = np.frombuffer(random.bytes(8 * count), np.uint64)
    seqs = random.integers(1, 8_900, count)
    columns: dict[str, Any] = {
        "tenant": pa.repeat(TENANT, count),
        "device": pa.array([f"van-{at:08}" for at in range(first, first + devices)]).take(pa.array(device - first)),
        "hour": pa.array(int(midnight.timestamp()) * 1_000_000 + hour * _HOUR_US).cast(USAGE.field("hour").type),
        "zone": pa.array(ZONES).take(pa.array(zone)),
        **quantities(random, zone, whole),
        **_observed(whole),
        "unreadable": pa.array(np.full(count, ""), mask=~whole),
        "counters": pa.array(np.full(count, ""), mask=~whole),
        "seq_ranges": pa.array([json.dumps({"7": [[at, at + 60]]}, separators=(",", ":")) for at in seqs.tolist()]),
        "fence_version": pa.array(["", "a" * 16, "b" * 16, ""]).take(pa.array(zone)),
        "engine_version": np.ones(count, np.int32),
        "digest": pa.array([f"{one:016x}" for one in digests.tolist()]),
        "day": pa.repeat(pa.scalar(midnight.date(), pa.date32()), count),
        "computed_at": pa.repeat(pa.scalar(midnight + _DAY, USAGE.field("computed_at").type), count),
        "commit_number": np.zeros(count, np.int64),
        # the lake states no track settings either
        "rules_number": pa.nulls(count, pa.int64()),
    }
    return pa.table([columns[name] for name in USAGE.names], schema=USAGE)


def _observed(whole: NDArray[np.bool_]) -> dict[str, pa.Array]:
    """Each whole device sent a readable position each 10 s, and nothing of its way is unknown."""
    each = {"messages": 90, "positions": 90, "kept": 90, "driven_ms": 450_000}
    offsets = pa.array(np.append(0, np.cumsum(whole * QUARTERS)).astype(np.int32))
    return {
        name: pa.ListArray.from_arrays(
            offsets, pa.array(np.full(int(whole.sum()) * QUARTERS, each.get(name, 0))), mask=pa.array(~whole)
        )
        for name in OBSERVED
    }


def _add_usage(lake: Lake, parts: Iterable[pa.Table]) -> None:
    increment = next_increment(lake, "usage")
    stamp = USAGE.get_field_index("commit_number")
    files: list[DataFile] = []
    for rows in parts:
        number = pa.array(np.full(rows.num_rows, increment.commit_number))
        stamped = rows.set_column(stamp, USAGE.field(stamp), number)
        files += write_data_files(lake.files("usage"), stamped, datetime.now(UTC), table="usage")
    commit_written(increment, files)


_VISITED: Final = range(-7, 31, 3)
"""The days of the month, from its first one, on which each device visits the port for an hour, and a week before."""


def add_visits(lake: Lake, fleet: FleetSize) -> int:
    """Visits of all devices, as the geofence job writes them, and a tariff that sells them; returns their events."""
    increment, number, files = next_increment(lake, "geofence_events"), 0, list[DataFile]()
    for day in _VISITED:
        moment = START + day * _DAY + 8 * HOUR
        of_visit = (("enter", 0, 0.0), ("dwell", 300, 300.0), ("exit", 3_600, 3_600.0))
        rows = [
            {"id": f"{device:08x}{day & 255:02x}{kind}", "revision": 0, "tenant": TENANT, "device": f"van-{device:08}"}
            | {"epoch": 7, "seq": 1, "kind": kind, "place": "port", "time": moment + timedelta(seconds=after)}
            | {"value": value, "retracted": False, "day": moment.date(), "emitted_at": moment}
            | {"commit_number": increment.commit_number}
            for device in range(fleet.all_devices)
            for kind, after, value in of_visit
        ]
        number += len(rows)
        table = pa.Table.from_pylist(rows, schema=TABLES["geofence_events"].schema)
        files += write_data_files(lake.files("geofence_events"), table, moment, table="geofence_events")
    commit_written(increment, files, states={FENCES: note_fences(lake, fences_in(lake).features)})
    facts = [{"meter": "visit", "unit": "each", "zone": "*", "unit_amount": "2"}]
    facts += [{"meter": "stay", "unit": "min", "zone": "*", "unit_amount": "0.05", "allowance": "15"}]
    body = tariff(ALWAYS, daily_cap=False).model_dump(mode="json", exclude_none=True)
    body["prices"] += facts
    lake.append("reference", [row_of("tariff", "standard", json.dumps(body), fleet.payers + 2, commit_number=2)])
    return number


# A lake with a past in which a vehicle's month can be taken apart: few big commits upon very many small ones. Usage of
# one vehicle is what the usage job makes of its records, that of the others has the same rows under their names.

EXPLAINED: Final = TenantDevice(lakes.TENANT, "van-00000")
FIRST_DAY: Final = datetime(2026, 3, 1, tzinfo=UTC)
DAYS: Final = 31
FIXES_A_DAY: Final = 5_000
"""Of each vehicle, over the whole day."""
_AT_ONCE: Final = 1_000
_GROUND: Final = (9.0, 52.0)
"""Where the vehicles are: longitude and latitude."""


class Past(NamedTuple):
    """How much there is in a lake. `vehicles`: each with DAYS times FIXES_A_DAY records."""

    vehicles: int
    commits: int
    fences: int

    @classmethod
    def of(cls, records: int, commits: int, fences: int) -> Self:
        return cls(max(records // (DAYS * FIXES_A_DAY), 1), commits, fences)

    @property
    def records(self) -> int:
        return self.vehicles * DAYS * FIXES_A_DAY


def metered_lake(folder: Path, past: Past) -> Lake:
    """A lake in which March 2026 is over, all of it is there, and the payer `acme` has the first vehicle."""
    lake = lakes.new_lake(folder)
    lakes.add_small_commits(lake, past.commits)
    groups = ((first, min(_AT_ONCE, past.vehicles - first)) for first in range(0, past.vehicles, _AT_ONCE))
    lakes.add_records(lake, (_fixes_of_day(*group, day) for day, group in product(range(DAYS), groups)))
    Maintenance(lake, MaintenanceSettings()).run()
    lake.append("reference", [*_metered_publications(past.fences)])
    end_us = int((FIRST_DAY + timedelta(days=DAYS + 1)).timestamp()) * 1_000_000
    head = DAYS * FIXES_A_DAY
    stated = Coverage(IntervalSet([(1, head)]), (), head, end_us, head, end_us)
    cover(lake, {DeviceStream(*EXPLAINED, lakes.EPOCH): stated})
    _add_metered_usage(lake, past.vehicles)
    return lake


def _metered_publications(fences: int) -> Iterator[dict[str, Any]]:
    bodies = [
        makers.legal_entity(),
        makers.tariff(makers.price("0.45"), makers.price("0.30", zone="*")),
        makers.account("acme", makers.device(EXPLAINED.device, tenant=EXPLAINED.tenant)),
    ]
    for at, body in enumerate(bodies):
        yield row_of(makers.kind_of(body), body["id"], body, at, commit_number=1)
    west, south = _GROUND
    for at in range(fences):
        # a grid that goes on over the vehicles' ground and far beyond it, half of it free
        row, column = divmod(at, 1_000)
        body = square(f"zone-{at:06}", west - 1 + column * 0.02, south - 1 + row * 0.02)
        yield row_of("fence", body["properties"]["id"], body, len(bodies) + at, commit_number=1)


def _fixes_of_day(first: int, vehicles: int, day: int) -> pa.Table:
    number = np.arange(vehicles * FIXES_A_DAY)
    within = number % FIXES_A_DAY
    ways = lakes.random_ways(_AT_ONCE * FIXES_A_DAY, _GROUND[1], _GROUND[0], 5e-4)
    return lakes.fix_rows(
        first + number // FIXES_A_DAY,
        day * FIXES_A_DAY + within + 1,
        int(FIRST_DAY.timestamp()) * 1_000_000 + day * lakes.DAY_US + within * (lakes.DAY_US // FIXES_A_DAY),
        *(way[: len(number)] for way in ways),
        prefix="van",
    )


def _add_metered_usage(lake: Lake, vehicles: int) -> None:
    increment = next_increment(lake, "usage")
    features, tracks = fences_in(lake).features, TrackSettings()
    rules = note_tracks(lake, tracks.model_dump())
    hours = [FIRST_DAY + at * timedelta(hours=1) for at in range(DAYS * 24)]
    state = LakeState(ingest_commit=increment.newest, covers=increment.until)
    reference = lake.rows("reference")
    stored = StoredFiles.of(lake.open("records"), "records")
    metered = meter_again(lake, state, stored, EXPLAINED, hours, tracks=tracks, reference=reference).rows
    count, now = metered.num_rows, datetime.now(UTC)
    stamps = {
        "computed_at": pa.repeat(pa.scalar(now, USAGE.field("computed_at").type), count),
        "commit_number": pa.array(np.full(count, increment.commit_number)),
        "rules_number": pa.array(np.full(count, rules)),
    }
    columns = [stamps[name] if name in stamps else metered[name] for name in USAGE.names]
    mine = pa.table(columns, schema=USAGE)
    files = []
    for first in range(0, vehicles, _AT_ONCE):
        names = [f"van-{at:05}" for at in range(first, min(first + _AT_ONCE, vehicles))]
        for day in range(DAYS):
            of_day = mine.filter(pc.equal(mine["day"], (FIRST_DAY + timedelta(days=day)).date()))
            files += write_data_files(lake.files("usage"), _under(names, of_day), now, table="usage")
    commit_written(increment, files, states={FENCES: note_fences(lake, features), TRACKS: rules})


def _under(names: Sequence[str], rows: pa.Table) -> pa.Table:
    many = pa.concat_tables([rows] * len(names)).combine_chunks()
    of = pa.array(names).take(pa.array(np.repeat(np.arange(len(names)), rows.num_rows)))
    return many.set_column(USAGE.names.index("device"), USAGE.field("device"), of)
