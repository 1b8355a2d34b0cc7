"""Contracts before they are published: what is wrong with them beside those that are, and whose bills would change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.billing_period import BillingPeriod, zone_of
from cloud_jobs.billing.contracts.errors import (
    AccountCycle,
    BlockedPayer,
    ContractFault,
    DeviceInTwoAccounts,
    MetersForgotten,
    MissingParent,
    SharedNumberPrefix,
    UnknownLegalEntity,
    UnknownPayer,
    UnknownTariff,
)
from cloud_jobs.billing.contracts.notices import begin_of, differing, notices
from cloud_jobs.billing.contracts.resolved import Contracts
from cloud_jobs.billing.contracts.what_if import BillChange, Bills, BothContracts, what_if
from cloud_jobs.billing.contracts.zones_of_prices import faults_of_zones
from cloud_jobs.billing.errors import BadPeriod
from geo.reference.beginning import ending
from waybill.identity.publication_id import next_publication_id
from waybill.settings import name_advice

MAX_MONTHS: Final = 24
"""So many months in which a stated version begins or ends are looked at, the earliest ones."""
Row = dict[str, Any]


class CheckedContracts(NamedTuple):
    """`faults`: what contradicts itself, or what is published; `lacking`: what is needed and neither there nor in the
    files; `notices`: what may be meant, or a slip; `changes`: whose bills would be others."""

    faults: list[str]
    lacking: list[str]
    notices: list[str]
    changes: list[BillChange]


def check_contracts(
    published: Sequence[Row], stated: Sequence[Row], moment: datetime, bills: Bills | None = None
) -> CheckedContracts:
    """Judges versions (rows of the table `reference`, of no publication yet) beside those that were published.

    A stated row has its `place`, and may have `place_of`, which says where a part of it stands. `moment`: the last
    month that was over then is compared, and what is posted; without `bills` nothing is. What is wrong with what is
    published already is no fault of the files.
    """
    before, after = Contracts(published), Contracts([*published, *_as_published(published, stated, moment)])
    changed = {(row["kind"], row["id"]) for row in stated}
    payers = sorted({*before.payers_of(changed), *after.payers_of(changed)})
    places = {(row["kind"], row["id"], since): row["place"] for row in stated for since in (None, begin_of(row))}
    ids = _ids((*published, *stated))
    found = [
        _Found(_placed(fault, places) + _advice(fault, ids), fault.is_lack)
        for fault in _faults(before, after, stated, payers)
    ]
    found += [_Found(text, is_lack) for text, is_lack in faults_of_zones(published, stated)]
    begins = [begin for row in differing(published, stated) if (begin := begin_of(row))]
    return CheckedContracts(
        [text for text, is_lack in dict.fromkeys(found) if not is_lack],
        [text for text, is_lack in dict.fromkeys(found) if is_lack],
        notices(published, stated, before, after),
        what_if(BothContracts(before, after), payers, moment, min(begins), bills)
        if bills and published and begins
        else [],
    )


class _Found(NamedTuple):
    text: str
    is_lack: bool


def _faults(
    before: Contracts, after: Contracts, stated: Sequence[Row], payers: Sequence[str]
) -> Iterator[ContractFault]:
    """What is wrong with the contracts as they would be, and is not with those that are published."""
    there = set(map(str, before.contradictions()))
    yield from (one for one in after.contradictions() if str(one) not in there)
    yield from _forgotten(before, after, stated)
    accounts = [row["body"] for row in stated if row["kind"] == "account"]
    for end in sorted({end for body in accounts if (end := ending("account", body))})[:MAX_MONTHS]:
        yield from _without_payer(before, after, end)
    for since in sorted({begin for row in stated if (begin := begin_of(row))})[:MAX_MONTHS]:
        yield from _without_payer(before, after, since)
        for payer in payers:
            period = _month_of(after, payer, since)
            if period is not None:
                faults = _faults_of(after, payer, period)
                # asked only where something is wrong: of a hundred thousand payers hardly one has been
                was = {str(one) for one in _faults_of(before, payer, period)} if faults else set()
                yield from (one for one in faults if str(one) not in was)


def _without_payer(before: Contracts, after: Contracts, moment: datetime) -> Iterator[ContractFault]:
    known = set(map(str, before.without_payer(moment)))
    yield from (one for one in after.without_payer(moment) if str(one) not in known)


def _forgotten(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[ContractFault]:
    """Meters that are sold where a stated version begins, and of which it says nothing: also one that it replaces."""
    for row in stated:
        begin = begin_of(row)
        if row["kind"] == "tariff" and begin is not None:
            gone = before.sold(row["id"], begin) - after.sold(row["id"], begin) - after.not_sold(row["id"], begin)
            if gone:
                yield MetersForgotten(row["id"], sorted(gone), begin)


def _as_published(published: Iterable[Row], stated: Iterable[Row], moment: datetime) -> list[Row]:
    """The rows as they would be: after all others."""
    newest = max((row["publication_id"] for row in published), default=None)
    made = list[Row]()
    for row in stated:
        newest = next_publication_id(newest, int(moment.timestamp() * 1000), 0)
        made.append(row | {"publication_id": newest, "published_at": moment})
    return made


def _placed(fault: ContractFault, places: Mapping[tuple[str, str, datetime | None], str]) -> str:
    """A fault behind the file and line of what it names, if that is in the files."""
    found = [places[one] for one in _named(fault) if one in places]
    return ": ".join([", ".join(found), str(fault)]).removeprefix(": ")


def _ids(rows: Iterable[Row]) -> dict[str, set[str]]:
    """The ids that there are of each kind, published or stated."""
    ids: dict[str, set[str]] = {}
    for row in rows:
        ids.setdefault(row["kind"], set()).add(row["id"])
    return ids


def _advice(fault: ContractFault, ids: Mapping[str, set[str]]) -> str:
    """The name that may be meant by one that is not there."""
    match fault:
        case UnknownTariff():
            kind, name = "tariff", fault.tariff
        case UnknownLegalEntity():
            kind, name = "legal_entity", fault.legal_entity
        case MissingParent():
            kind, name = "account", fault.parent
        case _:
            return ""
    return name_advice(name, ids.get(kind, ()))


def _named(fault: ContractFault) -> Iterator[tuple[str, str, datetime | None]]:
    match fault:
        case DeviceInTwoAccounts() | AccountCycle():
            yield from (("account", one, None) for one in fault.accounts)
        case SharedNumberPrefix():
            yield from (("legal_entity", one, None) for one in fault.legal_entities)
        case MetersForgotten():
            yield "tariff", fault.tariff, fault.begin
        case _:
            yield "account", getattr(fault, "account", ""), None


def _month_of(contracts: Contracts, payer: str, moment: datetime) -> BillingPeriod | None:
    """The month of a payer in which a moment is."""
    try:
        zone = contracts.time_zone_of(payer)
        return BillingPeriod.parse(f"{moment.astimezone(zone_of(zone)):%Y-%m}", zone)
    except (UnknownPayer, BadPeriod):
        return None


def _faults_of(contracts: Contracts, payer: str, period: BillingPeriod) -> Sequence[ContractFault]:
    try:
        contracts.contract_of(payer, period)
    except BlockedPayer as blocked:
        return blocked.faults
    return ()
