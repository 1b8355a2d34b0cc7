"""A line of an issued document, explained from the lake as it was at the snapshot of its closing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts import Contracts, PayerContract, Pool
from cloud_jobs.billing.documents import Document
from cloud_jobs.billing.meters import Meter
from cloud_jobs.billing.rating import Charge, ChargeKey, ChargeKind, RatingContract
from cloud_jobs.billing.rating.agreed import rating_contract
from cloud_jobs.billing.rating.price_text import price_text
from cloud_jobs.billing.register.closing import Closing
from cloud_jobs.billing.register.documents_of import issued_again
from cloud_jobs.billing.register.tables import Register
from cloud_jobs.billing.usage import tracks_at
from cloud_jobs.explain.errors import NoSuchLine, NotOfUsage, SeveralDevices, TracksUnknown
from cloud_jobs.explain.explanation import Explanation, explain, with_hours_again
from cloud_jobs.explain.metered_again import MAX_HOURS, MeteredAgain, meter_again
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.erasures import records_and_erasures
from cloud_jobs.lake.snapshot_reads import publications, reference_table, usage_rows
from cloud_jobs.lake.snapshots import Snapshot, read_snapshot
from cloud_jobs.lake.tables import Lake
from geo.spatial import TrackSettings

MAX_POOL_DEVICES: Final = 1_000
"""Of so many devices usage is read to rate a pool of an account once more; of more the amount is unknown."""
_MAX_LEVELS: Final = 16
_MOMENT: Final = timedelta.resolution


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLine:
    """What a line of a document comes from.

    `posted`: the charge that was posted before a note (None: no note, or there was none). `is_void`: what is explained
    was posted, and is taken back. `erased_before`: positions of the device before this moment are erased, and their
    hours not computed again. `requests`: rows of `erasures` that data subjects asked for. `again`: what was computed
    again; None: no hour could be.
    """

    number: str
    line: int
    currency: str
    snapshot: Snapshot
    explanation: Explanation
    posted: Charge | None
    is_void: bool
    erased_before: datetime | None
    requests: tuple[dict[str, Any], ...]
    again: MeteredAgain | None


def explain_line(
    register: Register,
    number: str,
    line: int,
    device: TenantDevice | None = None,
    *,
    legal_entity: str | None = None,
) -> ExplainedLine:
    """The charge of a device on a line of a document: its hours, and each of them computed again from its records.

    Of a note what is owed by its closing is explained. Raises UnknownDocument, NoSuchLine, SeveralDevices, NotOfUsage,
    TracksUnknown, RegisterDamaged, LakeError.
    """
    lake, issued = register.lake, issued_again(register, number, legal_entity)
    key = _key_of(issued.document, number, line, device)
    # a void has no closing of its own: what it takes back is explained
    closing = issued.closing or issued.before
    assert closing is not None, "a document posts a closing, or takes one back"
    charge = _charge(issued.charges[closing.in_register], key)
    posted = issued.before if issued.closing else None
    snapshot = read_snapshot(lake, closing.snapshot_id)
    tracks, reference = _tracks(snapshot), reference_table(lake, snapshot)
    found = _explained(lake, snapshot, _contract(reference, closing, key.account), charge)
    stored, erasures = records_and_erasures(lake)
    erased = erasures.before(key.tenant, key.device)
    again = None
    if kept := _computable(found, tracks, erased):
        of_device = TenantDevice(key.tenant, key.device)
        again = meter_again(lake, snapshot, stored, of_device, kept, tracks=tracks, reference=reference)
        found = _with_hours_again(found, again, {*kept})
    return ExplainedLine(
        number=number,
        line=line,
        currency=issued.document["invoice_currency_code"],
        snapshot=snapshot,
        explanation=found,
        posted=None if posted is None else _charge(issued.charges[posted.in_register], key),
        is_void=issued.closing is None,
        erased_before=erased,
        requests=_requests(lake, key) if erased else (),
        again=again,
    )


def _requests(lake: Lake, key: ChargeKey) -> tuple[dict[str, Any], ...]:
    rows = lake.rows("erasures", where=[("device", "=", key.device)]).to_pylist()
    return tuple(row for row in rows if row["since"] is not None and row["tenant"] == key.tenant)


def _tracks(snapshot: Snapshot) -> TrackSettings:
    """What usage was computed with, whatever the jobs' settings say today."""
    if snapshot.usage_tracks is None:
        raise TracksUnknown(snapshot.id)
    return tracks_at(snapshot)


def _key_of(made: Document, number: str, line: int, device: TenantDevice | None) -> ChargeKey:
    """The key of the charge of a device on a line; of the only one, if none is named."""
    found = [one for one in made["lines"] if one["invoice_line_identifier"] == line]
    entries = [one for one in made["annex"] if one["line"] == line]
    if not found or not entries:
        raise NoSuchLine(number, line, len(made["lines"]), None)
    stated = found[0]
    if stated["kind"] != ChargeKind.USAGE.value:
        raise NotOfUsage(number, line, stated["kind"])
    devices = [TenantDevice(one["tenant"], one["device"]) for one in entries]
    if device is None and len(devices) > 1:
        raise SeveralDevices(number, line, devices)
    chosen = devices[0] if device is None else device
    if chosen not in devices:
        raise NoSuchLine(number, line, len(made["lines"]), chosen)
    names: dict[str, Any] = {name: stated[name] for name in ("account", "region", "zone", "window", "price")}
    return ChargeKey(**names, **chosen._asdict(), kind=ChargeKind.USAGE, meter=Meter(stated["meter"]))


def _charge(charges: Iterable[Charge], key: ChargeKey) -> Charge:
    """That of a key; one of nothing, where a note took all of it back."""
    found = next((one for one in charges if one.key == key), None)
    return found or Charge(key=key, quantity=0, free=0, amount_minor=0, metered=None)


def _contract(reference: pa.Table, closing: Closing, account: str) -> PayerContract:
    """The contract of the account and of those above it; the payer's other accounts have no part in the charge."""
    rows, wanted = list[dict[str, Any]](), {account}
    for _ in range(_MAX_LEVELS + 1):
        there = publications(reference, "account", wanted)
        rows += there
        wanted = _named(there, "parent") - {row["id"] for row in rows}
        if not wanted:
            break
    rows += publications(reference, "tariff", _named(rows, "tariff"))
    rows += publications(reference, "legal_entity", {closing.key.legal_entity})
    rows += publications(reference, "exchange_rate")
    period = BillingPeriod(closing.time_zone, closing.key.first_day, closing.key.last_day)
    return Contracts(rows).contract_of(closing.key.payer, period)


def _named(rows: Iterable[dict[str, Any]], field: str) -> set[str]:
    """The ids that publications give in a field; of what cannot be used none: whether that matters is judged later."""
    found = set()
    for row in rows:
        try:
            body = json.loads(row["body"])
        except (ValueError, RecursionError):
            continue
        if isinstance(body, dict) and isinstance(body.get(field), str):
            found.add(body[field])
    return found


def _explained(lake: Lake, snapshot: Snapshot, contract: PayerContract, charge: Charge) -> Explanation:
    key, agreed = charge.key, rating_contract(contract)
    mine = TenantDevice(key.tenant, key.device)
    devices = {mine}
    if _is_pooled(agreed, key):
        devices = {one.of_device for one in contract.assigned if one.account == key.account} | devices
    is_whole = len(devices) <= MAX_POOL_DEVICES
    usage = usage_rows(
        lake, snapshot, devices if is_whole else {mine}, contract.period.start, contract.period.end - _MOMENT
    )
    return explain(agreed, usage, charge, is_whole=is_whole)


def _is_pooled(contract: RatingContract, key: ChargeKey) -> bool:
    """Whether the amount of a charge depends on other devices of its account."""
    return any(
        price.pool is Pool.ACCOUNT and price.meter is key.meter and price_text(price, one.tariff.currency) == key.price
        for terms in contract.accounts
        if terms.account == key.account
        for one in terms.tariffs
        for price in one.tariff.prices
    )


def _computable(found: Explanation, tracks: TrackSettings, erased: datetime | None) -> list[datetime]:
    """The hours that the records still give once more, as many as are held at once."""
    margin = timedelta(milliseconds=tracks.margin_ms)
    return [one.hour for one in found.hours if erased is None or one.hour - margin >= erased][:MAX_HOURS]


def _with_hours_again(found: Explanation, again: MeteredAgain, computed: set[datetime]) -> Explanation:
    checked = with_hours_again(found, again.rows, is_of_other_engine=again.is_of_other_engine)
    hours = (one if one.hour in computed else replace(one, again=None) for one in checked.hours)
    return replace(checked, hours=tuple(hours))
