"""What a bill is made of, read from the lake's tables without Spark, as it was known at a moment in UTC.

Usage and reference rows carry their own times and are never changed. Which coverage was known is read from the history
of the records; before the beginning of that history nothing is known, and every device is open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa

from cloud_jobs.billing.bill import Bill, bill
from cloud_jobs.billing.completeness import Certificate, certify
from cloud_jobs.billing.errors import BadReference, BillingError, UnknownAccount
from cloud_jobs.billing.lines import Line
from cloud_jobs.billing.period import Period, stamp
from cloud_jobs.billing.reference import Account, Tariff, parse
from cloud_jobs.billing.usage import UsageRow
from cloud_jobs.lake.beginning import UNKNOWN_BEGINNING, beginning
from cloud_jobs.lake.coverage import Coverage
from cloud_jobs.lake.schemas import publication_order
from cloud_jobs.lake.seq_ranges import SeqRanges
from cloud_jobs.lake.tables import Condition, Lake, row_fault_as_error

_RECORD_COLUMNS = (
    "epoch",
    "seq",
    "kind",
    "device_time",
    "latitude",
    "longitude",
    "speed_mps",
    "accuracy_m",
    "received_at",
)

MAX_RECORDS_SHOWN = 100_000
"""The most records that one line is opened to."""


def bill_from_lake(lake: Lake, account_id: str, period: Period, as_of: datetime) -> Bill:
    """The account's bill as the lake knew it at `as_of`. Raises BillingError, LakeError."""
    # first of all: what another version published is not looked for in its rows
    lake.check("reference", "usage", "records")
    account = account_at(lake, account_id, as_of)
    devices = [vehicle.device for vehicle in account.vehicles]
    return bill(
        account,
        tariff_versions(lake, account.tariff, as_of),
        _usage(lake, devices, period, as_of),
        period=period,
        as_of=as_of,
        completeness=_certificates(lake, devices, as_of),
    )


def account_at(lake: Lake, account_id: str, as_of: datetime) -> Account:
    """The account as published last. Raises UnknownAccount, naming the accounts there are."""
    rows = _published(lake, "account", account_id, as_of)
    if not rows:
        there = lake.rows("reference", ["id"], where=_by_then("account", as_of))["id"].unique()
        raise UnknownAccount(account_id, as_of, sorted(there.to_pylist()))
    return _parsed(Account, rows[-1])


def tariff_versions(lake: Lake, tariff_id: str, as_of: datetime) -> list[Tariff]:
    """All versions of the tariff; of those with one effective date, the one published last."""
    rows: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(_published(lake, "tariff", tariff_id, as_of)):
        begin = beginning("tariff", row["body"])
        # a version that cannot be used is looked at no more once it was corrected
        rows[str(number) if begin == UNKNOWN_BEGINNING else begin] = row
    versions = [_parsed(Tariff, row) for row in rows.values()]
    # in order of publication, so the last one of a date stays
    return list({version.effective_from: version for version in versions}.values())


def line_records(lake: Lake, line: Line) -> Iterator[dict[str, Any]]:
    """The records that a line was computed from, by epoch and seq, at most MAX_RECORDS_SHOWN."""
    left = MAX_RECORDS_SHOWN
    for epoch, seqs in line.seq_ranges:
        where: list[Condition] = [
            ("device", "=", line.key.device),
            ("epoch", "=", epoch),
            ("seq", ">=", seqs.first),
            ("seq", "<=", seqs.last),
        ]
        found = lake.rows("records", _RECORD_COLUMNS, where=where)
        for batch in found.sort_by("seq").to_batches():
            for row in batch.to_pylist():
                # between the first and the last there are seqs of other lines
                if row["seq"] in seqs:
                    if not left:
                        return
                    left -= 1
                    yield row


_Kind = TypeVar("_Kind", Account, Tariff)


def _parsed(kind: type[_Kind], row: dict[str, Any]) -> _Kind:
    """The account or tariff of a row. Raises BadReference, which names the version."""
    try:
        return parse(kind, row["body"])
    except BillingError as error:
        begin = beginning(row["kind"], row["body"])
        since = f" from {begin}" if begin else ""
        raise BadReference(
            f"{row['kind']} {row['id']!r}{since}, published at {stamp(row['published_at'])}, cannot be used: {error};"
            " publish that version again, corrected"
        ) from error


def _published(lake: Lake, kind: str, reference_id: str, as_of: datetime) -> list[dict[str, Any]]:
    """The rows of one thing, in the order in which they were published."""
    where = [*_by_then(kind, as_of), ("id", "=", reference_id)]
    rows = lake.rows("reference", where=where).to_pylist()
    return sorted(rows, key=publication_order)


def _by_then(kind: str, as_of: datetime) -> list[Condition]:
    return [("kind", "=", kind), ("published_at", "<=", _utc(as_of))]


def _utc(moment: datetime) -> pa.Scalar:
    # a scalar keeps the zone of its moment, and Arrow does not compare times of two zones
    return pa.scalar(moment.astimezone(UTC), pa.timestamp("us", tz="UTC"))


def _usage(lake: Lake, devices: Collection[str], period: Period, as_of: datetime) -> list[UsageRow]:
    """The usage rows of the devices in the period, computed by then."""
    where: list[Condition] = [
        ("device", "in", pa.array(devices, pa.string())),
        ("hour", ">=", _utc(period.start)),
        ("hour", "<", _utc(period.end)),
        ("computed_at", "<=", _utc(as_of)),
    ]
    found = []
    for row in lake.rows("usage", where=where).to_pylist():
        with row_fault_as_error("usage", row):
            found.append(_usage_row(row))
    return found


def _certificates(lake: Lake, devices: Collection[str], as_of: datetime) -> dict[str, Certificate]:
    """The completeness of each device."""
    epochs: dict[str, dict[int, Coverage]] = {device: {} for device in devices}
    for (device, epoch), coverage in lake.coverage(devices, as_of).items():
        epochs[device][epoch] = coverage
    return {device: certify(device, of) for device, of in epochs.items()}


def _usage_row(row: dict[str, Any]) -> UsageRow:
    return UsageRow(
        device=row["device"],
        hour=row["hour"].astimezone(UTC),
        zone=row["zone"],
        distance_mm=row["distance_mm"],
        duration_ms=row["duration_ms"],
        entries=row["entries"],
        seq_ranges=SeqRanges.parse(row["seq_ranges"]),
        computed_at=row["computed_at"].astimezone(UTC),
    )
