"""What a bill is made of, read from the lake's tables without Spark, as it was known at a moment in UTC.

Usage and reference rows carry their own times and are never changed. Which coverage was known is read from the history
of the records; before the beginning of that history nothing is known, and every device is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import pyarrow as pa

from cloud_jobs.billing.bill import Bill, bill
from cloud_jobs.billing.completeness import Certificate, certify
from cloud_jobs.billing.device_records import count_not_metered, erased_pasts
from cloud_jobs.billing.errors import BadReference, NoTariffInForce, NotMetered, UnknownAccount
from cloud_jobs.billing.period import Period
from cloud_jobs.billing.reference import Account, Tariff, usable_account, usable_tariff
from cloud_jobs.billing.usage import UsageRow
from cloud_jobs.in_force import RefusedVersion, Usable, in_force
from cloud_jobs.lake.coverage import Coverage, TenantDevice
from cloud_jobs.lake.erasures import read_erasures
from cloud_jobs.lake.schemas import WHOLE_DEVICE
from cloud_jobs.lake.seq_ranges import SeqRanges
from cloud_jobs.lake.stored_files import StoredFiles, stored_rows
from cloud_jobs.lake.tables import COVERS, Condition, Lake, row_fault_as_error
from cloud_jobs.lake.transactions import counter_of, stated


def bill_from_lake(lake: Lake, account_id: str, period: Period, as_of: datetime) -> Bill:
    """The account's bill as the lake knew it at `as_of`. Raises BillingError, LakeError."""
    # first of all: what another version published is not looked for in its rows
    lake.check("reference", "usage", "records", "erasures")
    account, refused_accounts = account_at(lake, account_id, as_of)
    tariffs, refused_tariffs = tariff_versions(lake, account.tariff, as_of)
    devices = [vehicle.of_device for vehicle in account.vehicles]
    metered = lake.open("usage")
    if stated(metered, COVERS) is None and not metered.file_uris():
        raise NotMetered(str(lake.location))
    # before the rows: what is metered meanwhile is on the lines, and may be said to be missing
    covered, number = lake.stated("usage", COVERS, as_of) or 0, lake.ingest_commit(as_of)
    try:
        return bill(
            account,
            tariffs,
            _usage(lake, devices, period, as_of),
            period=period,
            as_of=as_of,
            completeness=_certificates(
                lake, devices, number, count_not_metered(lake, devices, period, (covered + 1, counter_of(number)))
            ),
            erased_pasts=erased_pasts(lake, erased_before(lake, devices, as_of), period),
            refused=(*refused_accounts, *refused_tariffs),
        )
    except NoTariffInForce as error:
        if not refused_tariffs:
            raise
        raise BadReference(f"{error}. What cannot be used: {_listed(refused_tariffs)}") from error


def account_at(lake: Lake, account_id: str, as_of: datetime) -> tuple[Account, tuple[RefusedVersion, ...]]:
    """The account in force, and what was to replace it and cannot be used.

    Raises UnknownAccount, naming the accounts there are; BadReference if none of its publications can be used.
    """
    held, refused = _in_force(lake, "account", account_id, as_of, usable_account)
    if held:
        return held[0], refused
    if refused:
        raise BadReference(f"{_listed(refused)}; publish it again, corrected")
    there = lake.rows("reference", ["id"], where=_by_then("account", as_of))["id"].unique()
    raise UnknownAccount(account_id, as_of, sorted(there.to_pylist()))


def tariff_versions(lake: Lake, tariff_id: str, as_of: datetime) -> tuple[list[Tariff], tuple[RefusedVersion, ...]]:
    """All versions in force of the tariff, and what was to be one and cannot be used."""
    return _in_force(lake, "tariff", tariff_id, as_of, usable_tariff)


_Kind = TypeVar("_Kind", Account, Tariff)


def _in_force(
    lake: Lake, kind: str, reference_id: str, as_of: datetime, usable: Callable[[str], Usable[_Kind]]
) -> tuple[list[_Kind], tuple[RefusedVersion, ...]]:
    """What was in force of one thing, as the centre knew it then."""
    rows = lake.rows("reference", where=[*_by_then(kind, as_of), ("id", "=", reference_id)]).to_pylist()
    found = in_force(rows, lambda _, body: usable(body))
    return [held.made for held in found.held], found.refused


def _listed(refused: Sequence[RefusedVersion]) -> str:
    return "; ".join(str(one) for one in refused)


def _by_then(kind: str, as_of: datetime) -> list[Condition]:
    return [("kind", "=", kind), ("collected_at", "<=", _utc(as_of))]


def _utc(moment: datetime) -> pa.Scalar:
    # a scalar keeps the zone of its moment, and Arrow does not compare times of two zones
    return pa.scalar(moment.astimezone(UTC), pa.timestamp("us", tz="UTC"))


def _usage(lake: Lake, devices: Collection[TenantDevice], period: Period, as_of: datetime) -> list[UsageRow]:
    """The usage rows of the devices in the period, computed by then."""
    where: list[Condition] = [
        ("tenant", "in", pa.array({one.tenant for one in devices}, pa.string())),
        ("device", "in", pa.array({one.device for one in devices}, pa.string())),
        ("hour", ">=", _utc(period.start)),
        ("hour", "<", _utc(period.end)),
        ("computed_at", "<=", _utc(as_of)),
    ]
    found = []
    for row in lake.rows("usage", where=where).to_pylist():
        if row["zone"] != WHOLE_DEVICE:
            with row_fault_as_error("usage", row):
                found.append(_usage_row(row))
    return found


def _certificates(
    lake: Lake, devices: Collection[TenantDevice], number: int | None, not_metered: Counter[TenantDevice]
) -> dict[TenantDevice, Certificate]:
    """The completeness of each device as of a commit of the ingest."""
    epochs: dict[TenantDevice, dict[int, Coverage]] = {device: {} for device in devices}
    for stream, coverage in lake.coverage_at(number, devices).items():
        epochs[stream.of_device][stream.epoch] = coverage
    far_off = _far_off(lake, devices, counter_of(number))
    return {device: certify(device, of, far_off[device], not_metered[device]) for device, of in epochs.items()}


def _far_off(lake: Lake, devices: Collection[TenantDevice], ingest_number: int) -> Counter[TenantDevice]:
    """How many records of each device have no day, of those up to an ingest number. Only files of them are opened."""
    names, files = sorted({one.device for one in devices}), lake.files("records")
    stored = (
        StoredFiles.of(lake.open("records"), "records").without_day().within("device", [(one, one) for one in names])
    )
    # by the number, not in the version of then: its files may have been merged, and deleted
    wanted = {"ingest_number": (None, ingest_number), "device": (min(names, default=None), max(names, default=None))}
    found: Counter[TenantDevice] = Counter()
    with lake.damage_as_error("records"):
        for path in stored.paths:
            for rows in stored_rows(files, "records", path, ("tenant", "device"), wanted):
                for row in rows.group_by(["tenant", "device"]).aggregate([([], "count_all")]).to_pylist():
                    found[TenantDevice(row["tenant"], row["device"])] += row["count_all"]
    return found


def erased_before(
    lake: Lake, devices: Collection[TenantDevice], as_of: datetime | None = None
) -> dict[TenantDevice, datetime]:
    """Of each device with erased positions the moment before which they are, as is or was declared by then."""
    erasures = read_erasures(lake, as_of)
    found = {device: erasures.before(*device) for device in devices}
    return {device: before for device, before in found.items() if before is not None}


def _usage_row(row: dict[str, Any]) -> UsageRow:
    return UsageRow(
        tenant=row["tenant"],
        device=row["device"],
        hour=row["hour"].astimezone(UTC),
        zone=row["zone"],
        distance_mm=sum(row["distance_mm"]),
        duration_ms=sum(row["duration_ms"]),
        entries=sum(row["entries"]),
        seq_ranges=SeqRanges.parse(row["seq_ranges"]),
        computed_at=row["computed_at"].astimezone(UTC),
        commit_number=row["commit_number"],
    )
