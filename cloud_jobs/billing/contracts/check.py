"""Contracts before they are published: what is wrong with them beside those that are, and whose bills would change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts.errors import (
    AccountCycle,
    BlockedPayer,
    ContractFault,
    DeviceInTwoAccounts,
    MetersForgotten,
    SharedNumberPrefix,
    UnknownPayer,
)
from cloud_jobs.billing.contracts.published import MODEL_OF
from cloud_jobs.billing.contracts.resolved import Contracts
from cloud_jobs.billing.contracts.what_if import BillChange, Rated, last_month_of, what_if
from cloud_jobs.billing.contracts.zones_of_prices import faults_of_zones
from cloud_jobs.billing.period import stamp
from cloud_jobs.lake.beginning import beginning
from cloud_jobs.lake.schemas import publication_order
from cloud_jobs.publication_id import next_publication_id

MAX_MONTHS: Final = 24
"""So many months in which a stated version begins are looked at, the earliest ones."""
MAX_RATED: Final = 100
"""Amounts are said for so many payers; of more it is said whose contracts differ. Each is rated by itself."""
MAX_DEVICES_NAMED: Final = 5
Row = dict[str, Any]


class CheckedContracts(NamedTuple):
    """`faults`: what contradicts itself, or what is published; `lacking`: what is needed and neither there nor in the
    files; `notices`: what may be meant, or a slip; `changes`: whose last month would be billed otherwise."""

    faults: list[str]
    lacking: list[str]
    notices: list[str]
    changes: list[BillChange]


def check_contracts(
    published: Sequence[Row],
    stated: Sequence[Row],
    moment: datetime,
    rated: Rated | None = None,
    *,
    with_changes: bool = True,
) -> CheckedContracts:
    """Judges versions (rows of the table `reference`, of no publication yet) beside those that were published.

    A stated row has its `place`, and may have `place_of`, which says where a part of it stands. `moment`: the last
    month that was over then is compared. What is wrong with what is published already is no fault of the files.
    """
    before, after = Contracts(published), Contracts([*published, *_as_published(published, stated, moment)])
    changed = {(row["kind"], row["id"]) for row in stated if row["kind"] in MODEL_OF}
    payers = after.payers_of(changed)
    places = {(row["kind"], row["id"], since): row["place"] for row in stated for since in (None, _begin(row))}
    found = [_Found(_placed(fault, places), fault.is_lack) for fault in _faults(before, after, stated, payers)]
    found += [_Found(text, is_lack) for text, is_lack in faults_of_zones(published, stated)]
    return CheckedContracts(
        [text for text, is_lack in dict.fromkeys(found) if not is_lack],
        [text for text, is_lack in dict.fromkeys(found) if is_lack],
        [*_replaced(published, stated), *_left(before, after, stated)],
        what_if(before, after, payers, moment, rated if len(payers) <= MAX_RATED else None)
        if published and with_changes
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
    for since in sorted({begin for row in stated if (begin := _begin(row))})[:MAX_MONTHS]:
        known = set(map(str, before.without_payer(since)))
        yield from (one for one in after.without_payer(since) if str(one) not in known)
        for payer in payers:
            period = _month_of(after, payer, since)
            if period is not None:
                faults = _faults_of(after, payer, period)
                # asked only where something is wrong: of a hundred thousand payers hardly one has been
                was = {str(one) for one in _faults_of(before, payer, period)} if faults else set()
                yield from (one for one in faults if str(one) not in was)


def _replaced(published: Iterable[Row], stated: Iterable[Row]) -> Iterator[str]:
    """Stated versions that begin when one that is published does, and say something else."""
    in_order = sorted(published, key=publication_order)
    bodies = {(row["kind"], row["id"], begin): row["body"] for row in in_order if (begin := _begin(row))}
    for row in stated:
        begin = _begin(row)
        if begin is not None and bodies.get((row["kind"], row["id"], begin), row["body"]) != row["body"]:
            yield (
                f"{row['place']}: {row['kind']} {row['id']!r} from {stamp(begin)} is published with another "
                "content; this replaces it from that moment on"
            )


def _left(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Devices that somebody pays for until a stated version of an account begins, and nobody from then on."""
    for row in stated:
        begin = _begin(row)
        if row["kind"] != "account" or begin is None:
            continue
        gone = before.devices_of(row["id"], begin) - after.devices_of(row["id"], begin)
        # what moves to another account is no loss
        gone -= after.devices_held(gone, begin)
        if gone:
            names = [f"{one.tenant}/{one.device}" for one in sorted(gone)]
            more = [f"and {len(names) - MAX_DEVICES_NAMED} more"] if len(names) > MAX_DEVICES_NAMED else []
            yield (
                f"{row['place']}: account {row['id']!r} has no longer {', '.join([*names[:MAX_DEVICES_NAMED], *more])} "
                f"from {stamp(begin)} on, and nobody else pays for them"
            )


def _begin(row: Row) -> datetime | None:
    """From when a version of a contract is in force; None: it does not say, or is none."""
    if row["kind"] not in MODEL_OF:
        return None
    try:
        return datetime.fromisoformat(beginning(row["kind"], row["body"]))
    except ValueError:
        return None


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


def _named(fault: ContractFault) -> Iterator[tuple[str, str, datetime | None]]:
    match fault:
        case DeviceInTwoAccounts() | AccountCycle():
            yield from (("account", one, None) for one in fault.accounts)
        case SharedNumberPrefix():
            yield from (("legal_entity", one, None) for one in fault.legal_entities)
        case MetersForgotten():
            yield "tariff", fault.tariff, fault.begin
        case _:
            yield "account", getattr(fault, "account", ""), getattr(fault, "begin", None)


def _month_of(contracts: Contracts, payer: str, moment: datetime) -> BillingPeriod | None:
    """The month of a payer in which a moment is."""
    # the month before one that begins up to 32 days later
    last = last_month_of(contracts, payer, moment)
    if last is None:
        return None
    following = last.month_after()
    try:
        return contracts.period_of(payer, following.first_day, following.last_day)
    except UnknownPayer:
        return None


def _faults_of(contracts: Contracts, payer: str, period: BillingPeriod) -> Sequence[ContractFault]:
    try:
        contracts.contract_of(payer, period)
    except BlockedPayer as blocked:
        return blocked.faults
    return ()
