"""A lake in which a month can be closed: contracts, statements of devices, and rows of usage in files as merged ones.

Files are written and committed by what the usage job writes and commits with; nothing is synced while it is built.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.billing.fleets import END, START, TENANT, ZONE_SHARES, ZONES, quantities, tariff
from benchmarks.centre.lakes import new_lake, unsynced
from cloud_jobs.derived.incremental import commit_written, next_increment
from cloud_jobs.lake.coverage_log import COVERAGE_ROWS, Manifest
from cloud_jobs.lake.data_files import DataFile, write_data_files
from cloud_jobs.lake.schemas import OBSERVED, QUARTERS, USAGE, WHOLE_DEVICE
from cloud_jobs.lake.tables import INGEST, Lake
from cloud_jobs.lake.transactions import commit_files, next_number
from tests.cloud_jobs.publications import row_of

ROWS_IN_FILE = 1_000_000
"""About as many rows as a merged file has."""
_DAY = timedelta(days=1)
_HOUR_US = 3_600_000_000
_HOURS = 24
_SINCE = "2026-01-01T00:00:00Z"
_ADDRESS = {"line": "Hafenstr. 1", "city": "Hamburg", "postal_code": "20457", "country": "DE"}


class FleetSize(NamedTuple):
    """How many payers, with how many devices each, and rows of usage of each device and month.

    `months`: March 2026 and so many months before it. `scattered`: neighbours by name have different payers.
    """

    payers: int
    devices: int
    rows: int
    months: int = 1
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


def billable_lake(folder: Path, fleet: FleetSize) -> Lake:
    with unsynced():
        lake = new_lake(folder)
        lake.append("reference", [*_publications(fleet)])
        _state_heads(lake, fleet)
        for month in reversed(range(fleet.months)):
            _add_usage(lake, _month_of(fleet, month))
    return lake


def _publications(fleet: FleetSize) -> Iterator[dict[str, Any]]:
    seller = {
        "id": "waybill-eu",
        "effective_from": _SINCE,
        "name": "Waybill Europe GmbH",
        "address": _ADDRESS,
        "vat_id": "DE123456789",
        "number_prefix": "WB-EU-",
        "payment": {"means_code": "58", "iban": "DE89370400440532013000", "bic": "COBADEFFXXX"},
    }
    prices = tariff(datetime(2026, 1, 1, tzinfo=UTC), daily_cap=False).model_dump_json(exclude_none=True)
    yield row_of("legal_entity", "waybill-eu", seller, 0, commit_number=1)
    yield row_of("tariff", "standard", prices, 1, commit_number=1)
    pays = {
        "legal_entity": "waybill-eu",
        "currency": "EUR",
        "time_zone": "Europe/Berlin",
        "address": _ADDRESS,
        "vat": {"category": "S", "rate": "19"},
    }
    for payer in range(fleet.payers):
        name = f"payer-{payer:06}"
        devices = [
            {"tenant": TENANT, "device": fleet.name(payer, number), "region": "eu", "begin": _SINCE}
            for number in range(fleet.devices)
        ]
        body = {"id": name, "effective_from": _SINCE, "name": name, "tariff": "standard", "devices": devices}
        yield row_of("account", name, body | {"payer": pays}, payer + 2, commit_number=1)


def _state_heads(lake: Lake, fleet: FleetSize) -> None:
    """One commit of the ingest: each device has stated its head a day after the month, and all of it is there."""
    count = fleet.all_devices
    stated = np.full(count, int((END + _DAY).timestamp()) * 1_000_000)
    head = np.full(count, 9_000)
    received = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 2 * count + 1, 2, dtype=np.int32)), pa.array(np.tile([1, 9_000], count))
    )
    nothing = pa.array(np.zeros(count + 1, np.int32))
    columns: dict[str, Any] = {
        "tenant": pa.repeat(TENANT, count),
        "device": pa.array([f"van-{at:08}" for at in range(count)]),
        "epoch": np.full(count, 7),
        "head": head,
        "stated_us": stated,
        "stated_head": head,
        "complete_until_us": stated,
        "received": received,
        "lost": pa.ListArray.from_arrays(nothing, pa.array([], pa.int64())),
        "reasons": pa.ListArray.from_arrays(nothing, pa.array([], pa.string())),
    }
    known = pa.table([columns[name] for name in COVERAGE_ROWS.names], schema=COVERAGE_ROWS)
    number, log = next_number(None), lake.coverage_log
    # of a level that was merged often enough for so many
    log.write_manifest(Manifest(number, (log.write(known, level=6),)))
    commit_files(lake.open("records"), "records", [], writer=INGEST, previous=None, number=number)


def _month_of(fleet: FleetSize, months_ago: int) -> Iterable[pa.Table]:
    """The rows of each day of a month, in the order of devices, in parts of ROWS_IN_FILE."""
    days = [START + at * _DAY for at in range((END - START).days)]
    # a month is as long as March: what is before it is only to be there
    days = [day - months_ago * len(days) * _DAY for day in days]
    each, more = divmod(fleet.rows, len(days) - 1)
    # the first day is begun and ended by the payers' midnights, which are not those of UTC
    for at, day in enumerate(days[1:]):
        of_day = each + (at < more)
        step = max(ROWS_IN_FILE // max(of_day, 1), 1)
        for first in range(0, fleet.all_devices if of_day else 0, step):
            yield _rows(first, min(step, fleet.all_devices - first), of_day, day)


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
