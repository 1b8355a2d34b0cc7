"""Holds what came out against the truth: records, completeness, usage and money. It reads tables, and only that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from cloud_jobs.billing import Bill, Period
from cloud_jobs.billing.lake_reader import bill_from_lake
from cloud_jobs.billing.meters import MEASURE_OF
from cloud_jobs.lake.coverage import Completeness, Coverage, completeness
from cloud_jobs.lake.schemas import QUANTITIES, QUARTERS, WHOLE_DEVICE
from cloud_jobs.lake.tables import Lake
from simulator.truth import (
    Made,
    TrueBill,
    TrueUsage,
    Truth,
    content_bytes,
    made_canary,
    made_event,
    made_position,
    made_raw,
    made_signal,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_QUARTER = timedelta(hours=1) / QUARTERS
_MEASURED = ("altitude_m", "speed_mps", "heading_deg", "accuracy_m")
_COLUMNS = [
    "tenant",
    "device",
    "kind",
    "device_time",
    "latitude",
    "longitude",
    *_MEASURED,
    "name",
    "number",
    "text",
    "payload",
]


Names = Mapping[tuple[str, str], str]
"""The name in the scenario, which the truth has, of each tenant and device."""


@dataclass(frozen=True, slots=True)
class DeviceAudit:
    """One device: what the simulator made, what its agent says, what the centre has."""

    device: str
    region: str
    made: int
    stored: int
    forwarded: int
    redelivered: int
    ingested: int
    lost: int
    unexpected: int
    received: int
    declared: int
    missing: int
    state: Completeness

    @property
    def equal(self) -> bool:
        """Whether exactly the records that were made are in the table, and the certificate says so."""
        return (
            self.lost == self.unexpected == 0
            and self.made == self.stored == self.ingested == self.received
            and self.state is Completeness.COMPLETE
        )


@dataclass(frozen=True, slots=True)
class BillAudit:
    """One account: the bill from the lake and the one from the truth."""

    bill: Bill
    truth: TrueBill
    differing_lines: int

    @property
    def equal(self) -> bool:
        """Whether all lines are the same, to the last minor unit."""
        return self.differing_lines == 0 and self.bill.total_minor == self.truth.total_minor


@dataclass(frozen=True, slots=True)
class Audit:
    """Everything that was compared."""

    devices: tuple[DeviceAudit, ...]
    bills: tuple[BillAudit, ...]
    duplicates_removed: int
    conflicts: int
    malformed: int
    usage_rows: int
    usage_differing: int

    @property
    def equal(self) -> bool:
        """Whether all is as the truth says."""
        return (
            all(device.equal for device in self.devices)
            and all(bill.equal for bill in self.bills)
            and bool(self.devices)
            and bool(self.bills)
            and self.conflicts == self.malformed == self.usage_differing == 0
        )


def audit(
    lake: Lake, truth: Truth, agents: Mapping[str, tuple[str, dict[str, Any]]], names: Names, now: datetime
) -> Audit:
    """Compares the lake with the truth. `agents`: for each vehicle its region and its agent's status."""
    ingested = _ingested(lake, names)
    coverage = _coverage(lake, names)
    counted = lake.rows("ingest_batches").to_pydict()
    usage, differing = _usage(lake, truth, names)
    return Audit(
        devices=tuple(
            _device(
                device,
                *agents[device],
                truth.records(device),
                ingested.get(device, Counter()),
                coverage.get(device, []),
            )
            for device in sorted(agents)
        ),
        bills=tuple(_bill(lake, truth, account, names, now) for account in sorted(truth.accounts)),
        duplicates_removed=sum(counted["duplicates"]),
        conflicts=sum(counted["conflicts"]),
        malformed=sum(counted["malformed"]),
        usage_rows=usage,
        usage_differing=differing,
    )


def _device(  # noqa: PLR0917 - the three stations of one device
    device: str,
    region: str,
    status: dict[str, Any],
    made: Counter[Made],
    ingested: Counter[Made],
    coverage: list[Coverage],
) -> DeviceAudit:
    return DeviceAudit(
        device=device,
        region=region,
        made=made.total(),
        stored=status["head"],
        forwarded=status["acknowledged"],
        redelivered=status["duplicates"],
        ingested=ingested.total(),
        # Counters, not sets: a message that the vehicle sent twice must be there twice.
        lost=(made - ingested).total(),
        unexpected=(ingested - made).total(),
        received=sum(stream.received.count for stream in coverage),
        declared=sum(stream.declared_lost.count for stream in coverage),
        missing=sum(stream.missing.count for stream in coverage),
        state=completeness(coverage),
    )


def _ingested(lake: Lake, names: Names) -> dict[str, Counter[Made]]:
    made: dict[str, Counter[Made]] = {}
    for batch in lake.rows("records", _COLUMNS).to_batches():
        for row in batch.to_pylist():
            made.setdefault(_name(names, row["tenant"], row["device"]), Counter())[_made(row)] += 1
    return made


def _name(names: Names, tenant: str, device: str) -> str:
    return names.get((tenant, device), f"{tenant}/{device}")


def _made(row: dict[str, Any]) -> Made:
    """A row of the records table in the truth's own words."""
    since = row["device_time"] - _EPOCH
    time_us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    match row["kind"]:
        case "position":
            measured = {name: row[name] for name in _MEASURED}
            return made_position(time_us, row["latitude"], row["longitude"], **measured)
        case "signal":
            value = row["number"] if row["text"] is None else row["text"]
            return made_signal(time_us, row["name"], value)
        case "event":
            return made_event(time_us, row["name"], row["text"])
        case "canary":
            return made_canary(time_us, row["name"])
        case _:
            return made_raw(row["name"], row["payload"])


def _coverage(lake: Lake, names: Names) -> dict[str, list[Coverage]]:
    coverages: dict[str, list[Coverage]] = {}
    for stream, coverage in lake.coverage().items():
        coverages.setdefault(_name(names, stream.tenant, stream.device), []).append(coverage)
    return coverages


def _usage(lake: Lake, truth: Truth, names: Names) -> tuple[int, int]:
    """How many quarters of usage there are, and how many differ from the truth's or are on one side only."""
    newest: dict[tuple[str, datetime, str], dict[str, Any]] = {}
    # The table is only appended to: of each hour the row that was committed last counts.
    for row in sorted(lake.rows("usage").to_pylist(), key=lambda row: row["commit_number"]):
        newest[_name(names, row["tenant"], row["device"]), row["hour"].astimezone(UTC), row["zone"]] = row
    undated = _undated(lake, names)
    ours = set()
    for (device, hour, zone), row in newest.items():
        for number, amounts in enumerate(zip(*(row[name] for name in QUANTITIES), strict=True)):
            quarter = hour + number * _QUARTER
            one = TrueUsage(device, quarter, zone, *amounts)
            if zone == WHOLE_DEVICE:
                one = one._replace(content_bytes=one.content_bytes - undated[device, quarter])
            # The truth has no row for a quarter with nothing in it.
            if any(one[3:]):
                ours.add(one)
    theirs = {*truth.usage()}
    return len(ours), len(ours ^ theirs)


def _undated(lake: Lake, names: Names) -> Counter[tuple[str, datetime]]:
    """The bytes of the payloads that nobody understood, by device and quarter: only the vehicle's agent dates them."""
    found: Counter[tuple[str, datetime]] = Counter()
    for row in lake.rows("records", [*_COLUMNS, "device_date"], where=[("kind", "=", "raw")]).to_pylist():
        if row["device_date"] is not None:
            quarter = _EPOCH + (row["device_time"] - _EPOCH) // _QUARTER * _QUARTER
            found[_name(names, row["tenant"], row["device"]), quarter] += content_bytes(_made(row))
    return found


def _bill(lake: Lake, truth: Truth, account: str, names: Names, now: datetime) -> BillAudit:
    period = Period(truth.period.start, truth.period.end)
    ours, theirs = bill_from_lake(lake, account, period, now), truth.bill(account)
    our_lines = {
        (line.key.meter.value, line.key.zone, _name(names, line.key.tenant, line.key.device)): (
            Decimal(line.quantity) / MEASURE_OF[line.key.meter].base_per_unit,
            line.amount_minor,
        )
        for line in ours.lines
    }
    true_lines = {(line.meter, line.zone, line.device): (line.quantity, line.amount_minor) for line in theirs.lines}
    differing = sum(our_lines.get(key) != true_lines.get(key) for key in our_lines | true_lines)
    return BillAudit(ours, theirs, differing)
