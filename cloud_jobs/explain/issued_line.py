"""A line of an issued document, explained from the lake at the snapshot of its closing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import Contracts, PayerContract, Pool, Span
from cloud_jobs.billing.documents import Document
from cloud_jobs.billing.documents.document import charge_key
from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import Charge, ChargeKey, ChargeKind, cells_of_usage
from cloud_jobs.billing.rating.facts import DeviceFacts
from cloud_jobs.billing.rating.rate import PeriodUsage
from cloud_jobs.billing.rating.terms import terms_of
from cloud_jobs.billing.register.current_contracts import contracts_above
from cloud_jobs.billing.register.documents_of import IssuedAgain, issued_again
from cloud_jobs.billing.register.facts_at import read_facts, sells_facts
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.billing.units import FACTS
from cloud_jobs.explain.explanation import (
    ExplainedHour,
    Explanation,
    explain,
    with_hours_again,
)
from cloud_jobs.explain.metered_again import MAX_HOURS, MeteredAgain, meter_again
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import Range, StoredFiles, stored_rows
from cloud_jobs.lake.erasures import records_and_erasures
from cloud_jobs.lake.snapshot_reads import publications, reference_table, usage_rows
from cloud_jobs.lake.snapshots import MAX_SEGMENT, LakeState, Snapshot, read_snapshot, tracks_at
from cloud_jobs.lake.tables import Lake
from geo.spatial import TrackSettings

_MAX_NAMED: Final = 10


# Records of one hour of a charge.

_SHOWN: Final = ("epoch", "seq", "kind", "device_time", "latitude", "longitude", "accuracy_m", "mapping", "received_at")
_HOUR: Final = timedelta(hours=1)


def records_of_hour(lake: Lake, device: TenantDevice, hour: ExplainedHour, limit: int) -> Iterator[dict[str, Any]]:
    """The first `limit` records of an hour's seq ranges, by epoch and seq. Raises LakeError."""
    with lake.damage_as_error("records"):
        stored = StoredFiles.of(lake.open("records"), "records")
        stored = stored.of_days((hour.hour - MAX_SEGMENT).date(), (hour.hour + _HOUR).date())
        stored = stored.between("device", device.device, device.device).between("tenant", device.tenant, device.tenant)
        for epoch, seqs in hour.seq_ranges:
            wanted: dict[str, Range] = {
                "tenant": (device.tenant, device.tenant),
                "device": (device.device, device.device),
                "epoch": (epoch, epoch),
                "seq": (seqs.first, seqs.last),
            }
            chosen = stored.between("epoch", epoch, epoch).between("seq", seqs.first, seqs.last)
            found = [
                rows
                for path in chosen.paths
                for rows in stored_rows(lake.files("records"), "records", path, _SHOWN, wanted)
            ]
            for row in pa.concat_tables(found).sort_by("seq").to_pylist() if found else ():
                if limit <= 0:
                    return
                # the range also covers records of other zones
                if row["seq"] in seqs:
                    limit -= 1
                    yield row


MAX_POOL_DEVICES: Final = 1_000
"""The most devices of a pool or an account that are rated again; for more the amount is unknown."""
_MOMENT: Final = timedelta.resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLine:
    """What a line of a document comes from.

    `posted`: the charge posted before a note; None for an invoice, or if there was none. `is_void`: the explained
    charge is taken back. `erased_before`: the device's earlier positions are erased, and their hours not computed
    again. `again`: what was computed again; None if no hour could be.
    """

    number: str
    line: int
    currency: str
    snapshot: Snapshot
    explanation: Explanation
    posted: Charge | None
    is_void: bool
    erased_before: datetime | None
    again: MeteredAgain | None


def explain_line(
    register: Register,
    number: str,
    line: int,
    device: TenantDevice | None = None,
    *,
    hours: Collection[datetime] | None = None,
    issued: IssuedAgain | None = None,
) -> ExplainedLine:
    """Explains a charge on a line: of a device, or of the account. Hours of usage are computed again.

    `hours`: only these are computed again; None: all of them. `issued`: the document, if it was made again already.
    For a note, the charge of its closing is explained. Raises UnknownDocument, BillingError, RegisterDamaged,
    LakeError.
    """
    lake, issued = register.lake, issued or issued_again(register, number)
    key = _key_of(issued.document, number, line, device)
    # a void has no closing of its own; explain what it takes back
    closing = issued.closing or issued.before
    assert closing is not None, "a document posts a closing, or takes one back"
    charge = _charge(issued.charges[closing.id], key)
    posted = issued.before if issued.closing else None
    snapshot = read_snapshot(lake, closing.snapshot_id)
    if snapshot.usage_tracks is None and key.kind is ChargeKind.USAGE:
        raise BillingError(
            f"snapshot {snapshot.id} does not state the track settings of its usage; run `cloud-jobs usage` and"
            " close the period again"
        )
    reference = reference_table(lake, snapshot)
    period = BillingPeriod(closing.time_zone, closing.key.first_day, closing.key.last_day)
    contract = contracts_above(reference, [key.account]).contract_of(closing.key.payer, period)
    if any(pool.scope is Pool.TREE for of in contract.accounts for span in of.spans for pool in span.tariff.pools):
        contract = Contracts(publications(reference)).contract_of(closing.key.payer, period)
    return ExplainedLine(
        number=number,
        line=line,
        currency=issued.document["invoice_currency_code"],
        snapshot=snapshot,
        posted=None if posted is None else _charge(issued.charges[posted.id], key),
        is_void=issued.closing is None,
        **explain_charge(lake, snapshot, contract, charge, reference, hours=hours)._asdict(),
    )


class ExplainedCharge(NamedTuple):
    """As in ExplainedLine."""

    explanation: Explanation
    erased_before: datetime | None
    again: MeteredAgain | None


def explain_charge(
    lake: Lake,
    snapshot: LakeState,
    contract: PayerContract,
    charge: Charge,
    reference: pa.Table,
    *,
    hours: Collection[datetime] | None = None,
) -> ExplainedCharge:
    """Explains a charge, and computes the hours of usage again from the records.

    `reference`: rows of the table `reference` at the snapshot. `hours`: as in `explain_line`. Raises LakeError.
    """
    found = _explained(lake, snapshot, contract, charge)
    if charge.key.kind is not ChargeKind.USAGE or charge.key.meter in FACTS:
        return ExplainedCharge(found, None, None)
    device, tracks = TenantDevice(charge.key.tenant, charge.key.device), tracks_at(snapshot)
    stored, erasures = records_and_erasures(lake)
    erased = erasures.before(device.tenant, device.device)
    again = None
    if kept := _computable(found, tracks, erased, hours):
        again = meter_again(lake, snapshot, stored, device, kept, tracks=tracks, reference=reference)
        found = with_hours_again(found, again.rows, kept, is_of_other_engine=again.is_of_other_engine)
    return ExplainedCharge(found, erased, again)


def _key_of(made: Document, number: str, line: int, device: TenantDevice | None) -> ChargeKey:
    """The key of a device's charge on a line; `device` may be None if the line has one device."""
    found = [one for one in made["lines"] if one["invoice_line_identifier"] == line]
    entries = [one for one in made["annex"] if one["line"] == line]
    if not found or not entries:
        raise BillingError(f"document {number} has no line {line}; its lines are numbered 1 to {len(made['lines'])}")
    devices = [TenantDevice(one["tenant"], one["device"]) for one in entries]
    if device is None and len(devices) > 1:
        named = ", ".join(f"{one.tenant}/{one.device}" for one in devices[:_MAX_NAMED])
        named += " ..." if len(devices) > _MAX_NAMED else ""
        raise BillingError(f"line {line} of {number} is of {len(devices)} devices ({named}); add --device")
    chosen = devices[0] if device is None else device
    if chosen not in devices:
        raise BillingError(f"line {line} of document {number} does not charge {chosen.tenant}/{chosen.device}")
    return charge_key(found[0], *chosen)


def _charge(charges: Iterable[Charge], key: ChargeKey) -> Charge:
    """The charge of a key; one of 0 if a note took it back completely."""
    found = next((one for one in charges if one.key == key), None)
    return found or Charge(key=key, quantity=0, free=0, amount_minor=0, metered=None)


def _explained(lake: Lake, snapshot: LakeState, contract: PayerContract, charge: Charge) -> Explanation:
    """Rates what the charge depends on once more, if it is not too much."""
    key = charge.key
    contract = _needed(contract, key)
    mine = TenantDevice(key.tenant, key.device)
    devices = {one for of in (*contract.earlier, contract) for one in of.devices} | ({mine} if key.device else set())
    usage = None
    if key.kind is ChargeKind.USAGE and key.meter not in FACTS:
        usage = _usage(lake, snapshot, contract, {mine})
    if len(devices) > MAX_POOL_DEVICES:
        return explain(contract, charge, usage)
    periods = [_used(lake, snapshot, of, devices) for of in (*contract.earlier, contract)]
    return explain(contract, charge, usage, periods)


def _usage(lake: Lake, snapshot: LakeState, contract: PayerContract, devices: Collection[TenantDevice]) -> pa.Table:
    return usage_rows(lake, snapshot, devices, contract.period.start, contract.period.end - _MOMENT)


def _used(lake: Lake, snapshot: LakeState, contract: PayerContract, devices: Collection[TenantDevice]) -> PeriodUsage:
    usage, found = _usage(lake, snapshot, contract, devices), dict[TenantDevice, DeviceFacts]()
    if sells_facts(contract):
        read_facts(lake, snapshot, {contract.id: found}, contracts=[contract], devices=devices, usage=usage)
    [used] = cells_of_usage([contract], usage)
    return PeriodUsage(*used, found)


def _needed(contract: PayerContract, key: ChargeKey) -> PayerContract:
    """The accounts, devices and earlier periods that a charge depends on: the text of a usage charge says it."""
    tariffs = [span.tariff for one in contract.accounts for span in one.spans]
    scopes = {tariff.pool(price).scope for tariff in tariffs for price in tariff.prices}
    spans, terms = (
        {span for one in contract.accounts for span in one.depends_on},
        {one.key for one in terms_of(key.price)},
    )
    is_device, is_tree = bool(key.device), Pool.TREE in scopes
    if key.kind is ChargeKind.USAGE:
        is_tree = "pooled_tree" in terms
        is_device = not is_tree and "pooled_account" not in terms
        spans = {span for span in spans if f"by_{span}" in terms}
    elif key.kind is not ChargeKind.CAP or scopes - {Pool.DEVICE}:
        is_device = False
    device = TenantDevice(key.tenant, key.device) if is_device else None
    earlier = contract.earlier if spans & {Span.WEEK, Span.YEAR} else ()
    account = None if is_tree else key.account
    made = [_of(one, account, device) for one in (*earlier, contract)]
    return replace(made[-1], earlier=tuple(made[:-1]))


def _of(contract: PayerContract, account: str | None, device: TenantDevice | None) -> PayerContract:
    """The contract of one account or all, with one device or all."""
    accounts = (
        replace(terms, assigned=tuple(one for one in terms.assigned if device in {None, one.of_device}))
        for terms in contract.accounts
        if account in {None, terms.id}
    )
    return replace(contract, accounts=tuple(accounts))


def _computable(
    found: Explanation, tracks: TrackSettings, erased: datetime | None, asked: Collection[datetime] | None
) -> list[datetime]:
    """The hours asked for whose records still exist, at most MAX_HOURS."""
    margin = timedelta(milliseconds=tracks.margin_ms)
    hours = [one.hour for one in found.hours if asked is None or one.hour in asked]
    return [hour for hour in hours if erased is None or hour - margin >= erased][:MAX_HOURS]
