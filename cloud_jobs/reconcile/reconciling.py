"""All stations of a period, from the coverage to the register."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cloud_jobs.billing.certificates import CertificateState, DeviceCertificate, Observed, certify, listed
from cloud_jobs.billing.certificates.decisions import by_device, decisions
from cloud_jobs.billing.contracts import Contracts, PayerContract
from cloud_jobs.billing.contracts.published import micros
from cloud_jobs.billing.register.close import contracts_of
from cloud_jobs.billing.register.closer import ClosedPayer, ClosingRun
from cloud_jobs.billing.register.closing import ClosingState, Days
from cloud_jobs.billing.register.control_totals import whole_hours
from cloud_jobs.billing.register.tables import Register, in_parts
from cloud_jobs.billing.units import Meter
from cloud_jobs.lake.coverage import Coverage, TenantDevice
from cloud_jobs.lake.coverage_log import from_rows
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.snapshot_reads import (
    conflicts,
    count_all,
    count_by_device,
    coverage,
    erasures,
    erasures_since,
    received_by_device,
    received_counts,
    reference_rows,
    rows_within,
    stored_at,
)
from cloud_jobs.lake.snapshots import LakeState, Snapshot, reach_at
from cloud_jobs.lake.tables import Lake
from cloud_jobs.reconcile.charged import compare_charges, compare_documents, compare_numbers
from cloud_jobs.reconcile.comparison import (
    Comparison,
    ComparisonOutcome,
    Station,
    named,
    outcome_of,
    quantity_name,
    summed,
)
from cloud_jobs.reconcile.used import CountedUsage

# Station device: records stated by devices, compared with received and lost ones.

_AT_ONCE: Final = 10_000
_MAX_NAMED: Final = 5
_STATE: Final = {CertificateState.OPEN: "open", CertificateState.SILENT: "silent"}
_Integers = NDArray[np.int64]


Hours = tuple[datetime, datetime]
"""The first moment of a period, and the first one after it."""


def compare_heads(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice] | None,
    hours: Hours,
    hours_of: Mapping[TenantDevice, Collection[Hours]],
) -> tuple[list[Comparison], dict[TenantDevice, int]]:
    """Checks that every record below a stated head was received or declared lost, for all streams of the period.

    `devices`: None for all of the coverage. `hours_of`: the certified times of devices with a payer; `hours`: the time
    of the others, which contains all of these. Also returns the received records of each device. Raises LakeError.
    """
    rows = lake.coverage_rows(lake.coverage_manifest(snapshot.ingest_commit), devices)
    made = np.maximum(rows["head"].to_numpy(), rows["stated_head"].to_numpy())
    received, lost = received_counts(rows), _lost(rows)
    missing = made - received - lost
    # the few devices whose streams do not all reach the end
    settled_at = hours[1] + reach_at(snapshot).after
    late = rows["complete_until_us"].to_numpy() < micros(settled_at)
    asked = {*_devices(rows.filter(pa.array(late)))}
    by = received_by_device(rows, received)
    if devices is not None:
        asked |= {*devices} - by.keys()
    wrong = [*_not_closed(lake, snapshot, {device: hours_of.get(device, [hours]) for device in asked})]
    of_wrong, found = sum(one.missing.count for one in wrong), int(received.sum())
    # vehicles out of service stay silent
    retired = [one for one in wrong if _is_silent(one) and one.of_device not in hours_of]
    known = [*_wrong_ones([one for one in wrong if not _is_silent(one) or one.of_device in hours_of])]
    note = f"{int(lost.sum()):,} declared lost"
    if (other := int(missing.sum()) - of_wrong) > 0:
        note += f"; {other:,} missing that are of no stream of the period, or closed by decision"
    name = "records made, less declared lost, of any period"
    whole = Comparison(Station.DEVICE, name, "all devices", found + of_wrong, found, note)
    return [whole, *named(known), *_counted(retired)], by


def _lost(rows: pa.Table) -> _Integers:
    found = np.zeros(rows.num_rows, np.int64)
    having = np.flatnonzero(pc.list_value_length(rows["lost"]).to_numpy())
    for at, (_, known) in zip(having.tolist(), from_rows(rows.take(pa.array(having))), strict=True):
        found[at] = known.declared_lost.count
    return found


def _devices(rows: pa.Table) -> Iterator[TenantDevice]:
    pairs = rows.group_by(["tenant", "device"]).aggregate([])
    return map(TenantDevice, pairs["tenant"].to_pylist(), pairs["device"].to_pylist())


def _not_closed(
    lake: Lake, snapshot: LakeState, hours_of: Mapping[TenantDevice, Collection[Hours]]
) -> Iterator[DeviceCertificate]:
    """The worst certificate of each device that is open or silent for one of its payers."""
    reach = reach_at(snapshot)
    for asked in in_parts(sorted(hours_of), _AT_ONCE):
        streams: dict[TenantDevice, dict[int, Coverage]] = defaultdict(dict)
        for stream, known in coverage(lake, snapshot, asked).items():
            streams[stream.of_device][stream.epoch] = known
        decided = by_device(decisions(lake, snapshot, asked))
        for device in asked:
            its, of = streams[device], decided.get(device, ())
            made = [certify(device, *hours, its, reach=reach, decisions=of) for hours in sorted(hours_of[device])]
            yield from sorted((one for one in made if one.state in _STATE), key=_is_silent)[:1]


def _is_silent(certificate: DeviceCertificate) -> bool:
    return certificate.state is CertificateState.SILENT


def _counted(retired: Sequence[DeviceCertificate]) -> Iterator[Comparison]:
    if retired:
        first = ", ".join(f"{one.tenant}/{one.device}" for one in retired[:_MAX_NAMED])
        name = "silent devices that no account has in the period"
        yield Comparison(Station.DEVICE, name, "all devices", None, len(retired), first)


def _wrong_ones(certificates: list[DeviceCertificate]) -> Iterator[Comparison]:
    """Open devices first: of silent ones more may still arrive."""
    for one in sorted(certificates, key=lambda one: (_is_silent(one), one.of_device)):
        is_open = not _is_silent(one)
        expected, found = (one.received + one.missing.count, one.received) if is_open else (one.received, None)
        name = f"records of a device that is {_STATE[one.state]}"
        yield Comparison(Station.DEVICE, name, f"{one.tenant}/{one.device}", expected, found, "; ".join(one.reasons))


# Station usage: records of a period, compared with coverage and usage rows.

_RUN_USAGE: Final = "run `cloud-jobs usage`"
_IN_NO_SUM: Final[tuple[tuple[str, Callable[[Observed], int], Callable[[Observed], str]], ...]] = (
    ("messages that could not be read", attrgetter("faults"), attrgetter("reasons")),
    (
        "messages without a position, value or known topic",
        lambda one: sum(one.no_faults.values()),
        lambda one: listed(one.no_faults.items()),
    ),
    ("unknown distance, straight line in mm", attrgetter("unknown_mm"), attrgetter("unknown")),
    ("messages that vehicles' brokers dropped", attrgetter("dropped"), lambda _: "before the agent"),
)


def compare_usage(
    lake: Lake, snapshot: LakeState, used: CountedUsage, records: int, *, everyone: bool
) -> Iterator[Comparison]:
    """Compares the records of the period with those that usage covers, and these with the counts of usage rows.

    `records`: of all regions, read before `used`. `everyone`: all devices. Raises LakeError.
    """
    place = "all devices" if everyone else "these payers' devices"
    yield from _covered(lake, snapshot, used, records, place)
    for name, (recorded, metered) in used.counted.items():
        yield Comparison(Station.USAGE, f"{name} metered", place, recorded, metered)
    yield from named(
        [
            Comparison(
                Station.USAGE,
                f"{one.name} metered",
                f"{one.device.tenant}/{one.device.device} on {one.day}",
                one.recorded,
                one.metered,
            )
            for one in used.differences
        ]
    )
    if snapshot.covers < snapshot.ingest_number:
        # counted only: their records are compared above
        note = f"of {snapshot.ingest_number:,}; run `cloud-jobs usage`"
        yield Comparison(Station.USAGE, "commits of the ingest that usage covers", "", None, snapshot.covers, note)
    if used.late_positions:
        note = "their distance is not metered; their bytes are"
        yield Comparison(Station.USAGE, "positions that came after an erasure", place, None, used.late_positions, note)
    yield from _in_no_sum(used, place)
    note = "; ".join(used.damaged[:3])
    yield Comparison(
        Station.USAGE, "rows that match their digest", place, used.rows, used.rows - len(used.damaged), note
    )
    for meter, quantity in sorted(used.meters.items()):
        yield Comparison(Station.USAGE, f"used: {quantity_name(meter)}", place, None, quantity, "in all zones")


def _in_no_sum(used: CountedUsage, place: str) -> Iterator[Comparison]:
    """Unreadable messages and unknown distance, which no sum contains. Closings decide whether a bill may be final."""
    for name, amount_of, note_of in _IN_NO_SUM:
        found = {device: amount for device, one in used.observed.items() if (amount := amount_of(one))}
        if found:
            note = f"of {len(found):,} devices; in no sum"
            yield Comparison(Station.USAGE, name, place, None, sum(found.values()), note)
        yield from named(
            [
                Comparison(Station.USAGE, name, f"{one.tenant}/{one.device}", None, amount, note_of(used.observed[one]))
                for one, amount in sorted(found.items(), key=lambda item: (-item[1], item[0]))
            ]
        )


def _covered(lake: Lake, snapshot: LakeState, used: CountedUsage, records: int, place: str) -> Iterator[Comparison]:
    """Unknown if records are not metered yet, or may have been erased before."""
    found, note = used.covered, ""
    if unmetered := used.not_metered.total():
        note = f"{unmetered:,} records are not metered yet; {_RUN_USAGE}"
    elif used.may_be_more:
        note = f"of {len(used.may_be_more):,} devices records that were not metered may be erased since; {_RUN_USAGE}"
    elif found != records and any((erasures(lake, snapshot), erasures_since(lake, snapshot))):
        note = "positions were erased, perhaps in this moment; reconcile again"
    name = "records of the period that usage covers"
    yield Comparison(Station.USAGE, name, place, records, None if note else found, note)
    yield from named(
        [
            Comparison(Station.USAGE, "records that are not metered yet", f"{one.tenant}/{one.device}", count, None)
            for one, count in sorted(used.not_metered.items())
        ]
    )


# Metered distance compared with the vehicles' odometers. Pure.

MOST_PER_CENT: Final = 10


def compare_odometers(observed: Mapping[TenantDevice, Observed]) -> Iterator[Comparison]:
    """Compares the metered distance with the odometer, from its first to its last reading.

    Usage is by quarters of an hour, so the distance of the first and last quarter is uncertain. Only counted, because
    an odometer may be wrong, too.
    """
    ways = [(device, one.odometer) for device, one in sorted(observed.items()) if one.odometer is not None]
    if not ways:
        return
    wrong = []
    for device, way in ways:
        driven_mm = 1000 * way.driven_m
        is_less = 100 * way.most_mm < (100 - MOST_PER_CENT) * driven_mm
        if is_less or 100 * way.least_mm > (100 + MOST_PER_CENT) * driven_mm:
            note = f"its odometer says {way.driven_m / 1000:,.1f} km of the same time"
            place = f"{device.tenant}/{device.device}"
            wrong.append(Comparison(Station.USAGE, "distance unlike the odometer, mm", place, None, way.most_mm, note))
    note = f"the ways of {len(wrong):,} differ by more than {MOST_PER_CENT} %"
    yield Comparison(Station.USAGE, "devices with an odometer", "", None, len(ways), note)
    yield from named(wrong)


# Stations region and centre: records by region, compared with the coverage.


def compare_regions(
    lake: Lake,
    snapshot: LakeState,
    devices: Collection[TenantDevice] | None,
    heard_of: Collection[TenantDevice],
    hours: tuple[datetime, datetime],
) -> tuple[list[Comparison], int]:
    """The records of [start, end) by region, those in quarantine, and the number of records.

    Only columns are read whose values the log does not tell. Raises LakeError.
    """
    start, last = hours[0], hours[1] - timedelta.resolution
    by_region: Counter[str | None] = Counter()
    stored = stored_at(lake, snapshot).of_days(start.date(), last.date())
    bounds = {"device_time": (start, last), "ingest_number": (None, snapshot.ingest_number)}
    for rows in rows_within(lake, stored, ("region",), bounds, devices):
        for row in rows.group_by(["region"]).aggregate([([], "count_all")]).to_pylist():
            by_region[row["region"]] += row["count_all"]
    found = [
        Comparison(Station.REGION, "records brought", region, None, count)
        for region, count in sorted(by_region.items(), key=lambda one: one[0] or "")
        if region is not None
    ]
    whole = Comparison(
        Station.REGION,
        "records of the period with a region",
        "all regions",
        by_region.total(),
        by_region.total() - by_region[None],
    )
    again = conflicts(lake, snapshot, heard_of).total()
    quarantined = [Comparison(Station.REGION, "records in quarantine: conflict, of any period", "", None, again)]
    if devices is None:
        malformed = lake.rows(
            "quarantine",
            ["cause"],
            where=[("cause", "=", "malformed"), ("commit_number", "<=", snapshot.quarantine_commit)],
        ).num_rows
        quarantined.append(
            Comparison(Station.REGION, "messages in quarantine: malformed, of any period", "", None, malformed)
        )
    return [whole, *found, *quarantined], by_region.total()


def compare_centre(
    lake: Lake, snapshot: LakeState, devices: Collection[TenantDevice] | None, received: Mapping[TenantDevice, int]
) -> list[Comparison]:
    """Compares the received records of the coverage, of any period, with the table of records.

    The log's counts are enough if they are equal; otherwise, and for some devices, records are counted by device.
    """
    stored, expected = stored_at(lake, snapshot), sum(received.values())
    declared = [one for one in (erasures(lake, snapshot), erasures_since(lake, snapshot)) if one]
    name = "received records in the table, of any period"
    if devices is None:
        found = count_all(lake, snapshot, stored)
        if found == expected:
            return [Comparison(Station.CENTRE, name, "all devices", expected, found), *_without_day(stored)]
    counted = count_by_device(lake, snapshot, stored, devices)
    erased, wrong = 0, []
    for device in sorted({*received, *counted}):
        there, should = counted[device], received.get(device, 0)
        if there < should and any(one.before(*device) is not None for one in declared):
            erased += should - there
        elif there != should:
            wrong.append(Comparison(Station.CENTRE, name, f"{device.tenant}/{device.device}", should, there))
    note = f"{erased:,} of devices with erased positions are gone" if erased else ""
    whole = Comparison(Station.CENTRE, name, "all devices", expected - erased, counted.total(), note)
    return [whole, *named(wrong), *(_without_day(stored) if devices is None else ())]


def _without_day(stored: StoredFiles) -> list[Comparison]:
    far_off = sum(stored.without_day().row_counts)
    if not far_off:
        return []
    note = "their clock was far off: they are in no period"
    return [Comparison(Station.CENTRE, "records without a day", "all devices", None, far_off, note)]


_DEVICES_AT_ONCE: Final = 250
_NAME: Final = "reconcile"


class Reconciliation(NamedTuple):
    """All comparisons of a period, in the order of the stations."""

    snapshot: Snapshot
    days: Days
    comparisons: list[Comparison]

    @property
    def outcome(self) -> ComparisonOutcome:
        return outcome_of(self.comparisons)

    def values(self) -> dict[str, Any]:
        return {
            "snapshot": self.snapshot.id,
            "first_day": self.days[0].isoformat(),
            "last_day": self.days[1].isoformat(),
            "outcome": self.outcome.value,
            "comparisons": [one.values() for one in self.comparisons],
        }


def reconcile(
    lake: Lake,
    snapshot: Snapshot,
    days: Days,
    payers: Collection[str] | None = None,
    *,
    now: datetime,
) -> Reconciliation:
    """Compares the stations of some days at a snapshot, for some payers or for all devices and payers.

    Raises UnknownPayer for a requested account that never pays; BillingError, LakeError, StoreUnavailable.
    """
    run = ClosingRun(name=_NAME, snapshot=snapshot.number, snapshot_id=snapshot.id, now=now)
    contracts, refused, later = contracts_of(lake, snapshot, days, payers, run)
    hours = _hours(days, contracts)
    mine = sorted({device for one in contracts for device in one.devices})
    devices = None if payers is None else mine
    hours_of = _hours_of(contracts)
    found, received = compare_heads(lake, snapshot, devices, hours, hours_of)
    if payers is None and (never_heard := [*({*mine} - received.keys())]):
        found += [*compare_heads(lake, snapshot, never_heard, hours, hours_of)[0][1:]]
    regions, records = compare_regions(lake, snapshot, devices, sorted(received), whole_hours(hours))
    found += regions
    found += compare_centre(lake, snapshot, devices, received)
    used = CountedUsage(lake, snapshot, hours)
    for part, agreed in _parts(contracts):
        used.add(part, agreed)
    for part in in_parts(sorted(received.keys() - {*mine}) if payers is None else [], _DEVICES_AT_ONCE):
        used.add(part, [])
    found += compare_usage(lake, snapshot, used, records, everyone=payers is None)
    found += compare_odometers(used.observed)
    found += _unbilled(lake, snapshot, used, refused, hours[1], later=later)
    register = Register(lake)
    names = {*(one.id for one in contracts), *(one.closing.key.payer for one in refused)}
    if payers is None:
        # also former payers: their posted invoices are valid until taken back
        names |= {*register.payers(*days)}
    found += [*_nothing_to_compare(names), *_charges(register, snapshot, days, sorted(names), used)]
    return Reconciliation(snapshot, days, found)


def _charges(
    register: Register, snapshot: Snapshot, days: Days, names: Sequence[str], used: CountedUsage
) -> Iterator[Comparison]:
    yield from summed(compare_charges(register, snapshot, days, names, used.owed), "all payers")
    yield from summed(compare_documents(register, snapshot, days, names), "all payers")
    yield from compare_numbers(register)


def _nothing_to_compare(names: Collection[str]) -> Iterator[Comparison]:
    if not names:
        why = "no account pays for these days, and nothing was closed; check the period"
        yield Comparison(Station.RATED, "payers", "", None, None, why)


def _hours_of(contracts: Iterable[PayerContract]) -> dict[TenantDevice, set[Hours]]:
    """The times of each device, one for each of its payers in the period."""
    found: dict[TenantDevice, set[Hours]] = defaultdict(set)
    for contract in contracts:
        for device, span in contract.spans.items():
            found[device].add(span)
    return dict(found)


def _hours(days: Days, contracts: Sequence[PayerContract]) -> tuple[datetime, datetime]:
    """The first moment of the days and the first one after them, in the time zones of all payers."""
    first = datetime.combine(days[0], time(), UTC)
    end = datetime.combine(days[1], time(), UTC) + timedelta(days=1)
    if not contracts:
        return first, end
    return min(one.period.start for one in contracts), max(one.period.end for one in contracts)


def _parts(contracts: Sequence[PayerContract]) -> Iterator[tuple[Sequence[TenantDevice], list[PayerContract]]]:
    """Devices in parts, each device once, with the contracts of all of its payers."""
    agreed = {one.id: one for one in contracts}
    payers: dict[TenantDevice, list[str]] = {}
    for contract in contracts:
        for device in contract.devices:
            payers.setdefault(device, []).append(contract.id)
    for some in in_parts(sorted(payers), _DEVICES_AT_ONCE):
        yield some, [agreed[payer] for payer in sorted({payer for device in some for payer in payers[device]})]


def _unbilled(
    lake: Lake,
    snapshot: Snapshot,
    used: CountedUsage,
    refused: Sequence[ClosedPayer],
    end: datetime,
    *,
    later: Collection[TenantDevice],
) -> Iterator[Comparison]:
    owed: Counter[Meter] = Counter()
    for key, quantity in (*used.owed.items(), *used.unsold.items(), *used.nobody.items()):
        owed[next(one for one in key if isinstance(one, Meter))] += quantity
    for meter, quantity in sorted(used.meters.items()):
        name = f"with or without account: {quantity_name(meter)}"
        yield Comparison(Station.RATED, name, "all accounts", quantity, owed[meter])
    unsold = (
        Comparison(Station.RATED, f"not sold: {quantity_name(meter)}", f"{payer}, {account}", None, quantity)
        for (payer, account, meter), quantity in sorted(used.unsold.items())
        if quantity
    )
    yield from summed(unsold, "all accounts")
    note = "no account that can be billed has it"
    if names := sorted(one.closing.key.payer for one in refused if one.closing.outcome is ClosingState.BLOCKED):
        note += f"; blocked: {', '.join(names[:5])}"
    yield from named(
        [
            Comparison(
                Station.RATED,
                f"without account: {quantity_name(meter)}",
                f"{device.tenant}/{device.device}",
                None,
                quantity,
                "its payer is billed for a longer period" if device in later else note,
            )
            for (device, meter), quantity in sorted(used.nobody.items())
            if quantity
        ]
    )
    moment = end - timedelta.resolution
    faults = Contracts(reference_rows(lake, snapshot)).without_payer(moment)
    yield from named(
        [Comparison(Station.RATED, "account without a payer", "", None, 1, str(fault)) for fault in faults]
    )
