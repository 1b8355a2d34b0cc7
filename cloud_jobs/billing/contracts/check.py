"""Contracts before they are published: what is wrong with them beside those that are, and whose bills would change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

from pydantic import ValidationError

from cloud_jobs.billing.billing_period import BillingPeriod, month_before, zone_of
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
from cloud_jobs.billing.contracts.payer_contract import PayerContract
from cloud_jobs.billing.contracts.published import MODEL_OF
from cloud_jobs.billing.contracts.resolved import Contracts
from cloud_jobs.billing.contracts.tariff import ANY_ZONE, Tariff
from cloud_jobs.billing.errors import BadPeriod, BillingError
from cloud_jobs.billing.units import Meter
from cloud_jobs.reference.tables import in_force
from geo.reference.in_force import publication_order, usable_fence
from geo.reference.moments import beginning, ending, stamp
from waybill.identity.publication_id import next_publication_id
from waybill.settings import as_read, name_advice

# Bills that changed contracts would change: last month's and all issued ones. Pure.

PAYERS_AT_ONCE: Final = 1000
_A_DAY_ANYWHERE: Final = timedelta(days=2)
"""No local day is further than this from the day of the same name in UTC."""
_Days = tuple[date, date]


class NetAndTax(NamedTuple):
    """What is owed, in minor units."""

    net_minor: int
    tax_minor: int


class Bills(Protocol):
    """What is known of bills beside contracts."""

    def rated(self, contracts: Sequence[PayerContract]) -> Sequence[NetAndTax | BillingError]:
        """What payers owe by their contracts for one period, in their currencies, or why nobody can say: rating on the
        usage there is. No two contracts are of one payer."""

    def posted(self, payers: Collection[str], since: date) -> Mapping[str, Collection[_Days]]:
        """Of some payers the days, first and last, of the invoices that stand and have this day or a later one."""

    def progress(self, done: int, whole: int) -> None:
        """Takes how many bills were compared, and of how many."""


class KnownBill(NamedTuple):
    """What a payer would owe for a period: amounts, or the reasons why nobody can say. `pays`: whether it is a payer in
    the period at all; of one that is not the reasons say why."""

    currency: str | None = None
    owed: NetAndTax | None = None
    reasons: tuple[str, ...] = ()
    pays: bool = True


class BillChange(NamedTuple):
    """A payer whose bill for a period would be another one. `is_posted`: whether its invoice stands."""

    payer: str
    period: BillingPeriod
    is_posted: bool
    before: KnownBill
    after: KnownBill


BothContracts = tuple[Contracts, Contracts]
"""All contracts as they are, and as they would be."""
_Agreed = PayerContract | KnownBill
"""A contract without what no bill depends on, or what there is instead of a bill."""


def what_if(
    contracts: BothContracts, payers: Collection[str], moment: datetime, since: datetime, bills: Bills
) -> list[BillChange]:
    """The payers whose bill would change, by payer and period: for the last month that was over at a moment, and for
    each posted period that has a part from `since` on, which is when the first version that differs begins.

    Whose contract for a period is the same, or makes the same amounts, is not among them.
    """
    posted = bills.posted(payers, (since - _A_DAY_ANYWHERE).date())
    asked: dict[_Days, list[str]] = defaultdict(list)
    for payer in sorted(payers):
        for days in {*_last_month(contracts, payer, moment), *posted.get(payer, ())}:
            asked[days].append(payer)
    whole, done = sum(map(len, asked.values())), 0
    changes = []
    for days, names in sorted(asked.items()):
        for at in range(0, len(names), PAYERS_AT_ONCE):
            part = names[at : at + PAYERS_AT_ONCE]
            stand = {name for name in part if days in posted.get(name, ())}
            for name, was, would_be in _changes(contracts, part, days, stand, bills):
                changes.append(BillChange(name, _period(contracts, name, days), name in stand, was, would_be))
            done += len(part)
            bills.progress(done, whole)
    return sorted(changes, key=lambda one: (one.payer, one.period.first_day, one.period.last_day))


def _changes(
    contracts: BothContracts, payers: Sequence[str], days: _Days, stand: Set[str], bills: Bills
) -> Iterator[tuple[str, KnownBill, KnownBill]]:
    names, before, after = list[str](), list[_Agreed](), list[_Agreed]()
    for name in payers:
        was, would_be = (_agreed(one, name, days) for one in contracts)
        # the same contract makes the same bill: nothing is read for it
        if was != would_be:
            names.append(name)
            before.append(was)
            after.append(_kept(was, would_be) if name in stand else would_be)
    for name, old, new in zip(names, _known(before, bills), _known(after, bills), strict=True):
        # who begins to pay and has used nothing owes what it did before
        if old != new and (old.pays or new.owed is None or any(new.owed)):
            yield name, old, new


def _agreed(contracts: Contracts, payer: str, days: _Days) -> _Agreed:
    try:
        return replace(contracts.contract_of(payer, contracts.period_of(payer, *days)), digest="")
    except BlockedPayer as blocked:
        pays = not all(isinstance(one, UnknownPayer) for one in blocked.faults)
        return KnownBill(reasons=tuple(map(str, blocked.faults)), pays=pays)
    except UnknownPayer as unknown:
        return KnownBill(reasons=(str(unknown),), pays=False)
    except BadPeriod as never:
        return KnownBill(reasons=(str(never),))


def _kept(was: _Agreed, would_be: _Agreed) -> _Agreed:
    """What a contract makes of an invoice that stands: the register changes no time zone of one."""
    if isinstance(was, PayerContract) and isinstance(would_be, PayerContract):
        zone = was.period.time_zone
        if would_be.period.time_zone != zone:
            return KnownBill(reasons=(f"its invoice is in time zone {zone}, and a payer keeps its time zone",))
    return would_be


def _known(agreed: Sequence[_Agreed], bills: Bills) -> list[KnownBill]:
    contracts = [one for one in agreed if isinstance(one, PayerContract)]
    amounts = iter(bills.rated(contracts) if contracts else ())
    return [one if isinstance(one, KnownBill) else _bill(one, next(amounts)) for one in agreed]


def _bill(contract: PayerContract, owed: NetAndTax | BillingError) -> KnownBill:
    if isinstance(owed, BillingError):
        return KnownBill(reasons=(str(owed),))
    return KnownBill(contract.payer.currency, owed)


def _last_month(contracts: BothContracts, payer: str, moment: datetime) -> Iterator[_Days]:
    for one in reversed(contracts):
        try:
            month = month_before(one.time_zone_of(payer), moment)
        except (UnknownPayer, BadPeriod):
            continue
        yield month.first_day, month.last_day
        return


def _period(contracts: BothContracts, payer: str, days: _Days) -> BillingPeriod:
    """The days by the clocks of the payer; of one who pays no more by those that it had."""
    for one in reversed(contracts):
        try:
            return one.period_of(payer, *days)
        except (UnknownPayer, BadPeriod):
            continue
    return BillingPeriod("UTC", *days)


# Warnings about published versions, which never block a publication.

MAX_DEVICES_NAMED: Final = 5
Row = dict[str, Any]


def notices(published: Sequence[Row], stated: Sequence[Row], before: Contracts, after: Contracts) -> list[str]:
    """Versions that are replaced, devices that nobody pays for any more, meters that become free, pools that begin
    anew, payers that are none any more."""
    return [
        *_replaced(published, stated),
        *_left(before, after, stated),
        *_free(before, after, stated),
        *_begun_anew(after, stated),
        *_no_payers(before, after, stated),
    ]


def begin_of(row: Row) -> datetime | None:
    """From when a version of a contract is in force; None: it does not say, or is none."""
    if row["kind"] not in MODEL_OF:
        return None
    try:
        return datetime.fromisoformat(beginning(row["kind"], row["body"]))
    except ValueError:
        return None


def differing(published: Iterable[Row], stated: Iterable[Row]) -> list[Row]:
    """The stated versions that are not published with the same content."""
    bodies = _bodies(published)
    return [row for row in stated if bodies.get((row["kind"], row["id"], begin_of(row))) != row["body"]]


def _bodies(published: Iterable[Row]) -> dict[tuple[str, str, datetime | None], str]:
    return {(row["kind"], row["id"], begin_of(row)): row["body"] for row in sorted(published, key=publication_order)}


def _replaced(published: Iterable[Row], stated: Iterable[Row]) -> Iterator[str]:
    """Stated versions that begin when one that is published does, and say something else."""
    bodies = _bodies(published)
    for row in stated:
        begin = begin_of(row)
        if begin is not None and bodies.get((row["kind"], row["id"], begin), row["body"]) != row["body"]:
            yield (
                f"{row['place']}: {row['kind']} {row['id']!r} from {stamp(begin)} is published with another "
                "content; this replaces it from that moment on"
            )


def _left(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Devices that somebody pays for until a stated version of an account begins or ends, and nobody from then on."""
    for row, begin in _accounts(stated):
        changes = [(begin, before.devices_of(row["id"], begin))]
        if end := ending("account", row["body"]):
            changes.append((end, after.devices_of(row["id"], end - timedelta.resolution)))
        for moment, had in changes:
            gone = had - after.devices_of(row["id"], moment)
            # what moves to another account is no loss
            gone -= after.devices_held(gone, moment)
            if gone:
                names = [f"{one.tenant}/{one.device}" for one in sorted(gone)]
                more = [f"and {len(names) - MAX_DEVICES_NAMED} more"] if len(names) > MAX_DEVICES_NAMED else []
                yield (
                    f"{row['place']}: account {row['id']!r} has no longer "
                    f"{', '.join([*names[:MAX_DEVICES_NAMED], *more])} from {stamp(moment)} on, and nobody else pays "
                    "for them"
                )


def _free(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Meters that are sold until a stated version begins, and not by it: it says so, or is of another tariff."""
    for row in stated:
        begin = begin_of(row)
        if begin is None or row["kind"] not in {"account", "tariff"}:
            continue
        just_before = begin - timedelta.resolution
        was = _sold(before, row, begin) | _sold(after, row, just_before)
        gone = was - _sold(after, row, begin)
        if row["kind"] == "tariff":
            # one that says nothing of it is a fault
            gone &= after.tariff_at(row["id"], begin).not_sold
        if gone:
            yield (
                f"{row['place']}: {row['kind']} {row['id']!r} has no price for {', '.join(sorted(gone))} from "
                f"{stamp(begin)} on, and had one; what is used of it is free"
            )


def _begun_anew(after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    """Pools that begin with a version within a month, of a meter that had one: allowances are given twice."""
    for row in stated:
        begin = begin_of(row)
        if begin is None or row["kind"] != "tariff" or _begins_a_month(begin):
            continue
        had = after.tariff_at(row["id"], begin - timedelta.resolution).pools
        new = sorted(
            {pool.meter.value for pool in after.tariff_at(row["id"], begin).pools - had} & {one.meter for one in had}
        )
        if new:
            yield (
                f"{row['place']}: tariff {row['id']!r} adds up {', '.join(new)} anew from {stamp(begin)} on, by "
                "another zone, window, pool or pool_id: allowances and tiers of the month are given once more"
            )


def _begins_a_month(moment: datetime) -> bool:
    """Whether a month begins then in some time zone."""
    return 1 in {(moment + timedelta(hours=14)).day, (moment - timedelta(hours=12)).day}


def _sold(contracts: Contracts, row: Row, moment: datetime) -> frozenset[str]:
    if row["kind"] == "tariff":
        return contracts.tariff_at(row["id"], moment).sold
    account = contracts.account_at(row["id"], moment)
    return frozenset() if account is None else contracts.tariff_at(account.tariff, moment).sold


def _no_payers(before: Contracts, after: Contracts, stated: Iterable[Row]) -> Iterator[str]:
    for row, begin in _accounts(stated):
        was = before.account_at(row["id"], begin), after.account_at(row["id"], begin - timedelta.resolution)
        now = after.account_at(row["id"], begin)
        if any(one and one.pays for one in was) and not (now and now.pays):
            yield (
                f"{row['place']}: account {row['id']!r} is no payer any more from {stamp(begin)} on: what it uses "
                "stands on the invoice of its parent"
            )


def _accounts(stated: Iterable[Row]) -> Iterator[tuple[Row, datetime]]:
    for row in stated:
        begin = begin_of(row)
        if row["kind"] == "account" and begin is not None:
            yield row, begin


# Zone names in prices: a mistyped zone would never be priced.

MAX_FAULTS: Final = 100
_LAST: Final[Row] = {"publication_id": "~", "published_at": datetime.max.replace(tzinfo=UTC)}
"""A stated version, of no publication yet, comes after all that are published."""


def faults_of_zones(published: Sequence[Row], stated: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    """What is wrong with the zones of stated prices, each behind its place, and whether a zone is merely not there.

    Fences and gates are those of both, as rows of the table `reference`. Without any publication and any fence nobody
    knows which zones there are, and nothing is said.
    """
    fences = [row for row in (*published, *stated) if row["kind"] == "fence"]
    if not published and not fences:
        return
    named = [
        (row, number, price.meter, price.zone)
        for row in stated
        if row["kind"] == "tariff" and (tariff := _tariff(row["body"]))
        for number, price in enumerate(tariff.prices)
        if price.zone not in {"", ANY_ZONE}
    ]
    gates = _gates(fences, {zone for *_, zone in named})
    # by their names alone: to see whether all of them can be used would take long
    known = {row["id"] for row in fences}
    for row, number, meter, zone in named[:MAX_FAULTS]:
        place = row["place_of"]("prices", number, "zone") if "place_of" in row else row["place"]
        price = f"{place}: tariff {row['id']!r}: prices.{number} is for {meter} in zone {zone!r}"
        if zone not in gates:
            # what is published later is never the one that reads the same: the price would be for nothing
            is_lack = not any(one != zone and as_read(one) == as_read(zone) for one in known)
            yield f"{price}, which no fence or gate is that can be used{name_advice(zone, known)}", is_lack
        elif gates[zone] != (meter is Meter.CROSSING):
            what = (
                "a gate, in which nothing is; a gate has crossings"
                if gates[zone]
                else "a fence; crossings are of gates"
            )
            yield f"{price}, which is {what}", False


def _gates(fences: Iterable[Row], names: set[str]) -> dict[str, bool]:
    """Of some ids those that are in force, and whether they are gates; no others are read: there may be a country's."""
    from geo.spatial import Gate  # noqa: PLC0415, as in `published_fences`

    rows = [_LAST | row for row in fences if row["id"] in names]
    found = in_force(rows, lambda _, body: usable_fence(body))
    return {held.row["id"]: isinstance(held.made, Gate) for held in found.held}


def _tariff(body: str) -> Tariff | None:
    try:
        return Tariff.model_validate_json(body)
    except ValidationError:
        return None


MAX_MONTHS: Final = 24
"""So many months in which a stated version begins or ends are looked at, the earliest ones."""


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
        (_placed(fault, places) + _advice(fault, ids), fault.is_lack)
        for fault in _faults(before, after, stated, payers)
    ]
    found += faults_of_zones(published, stated)
    begins = [begin for row in differing(published, stated) if (begin := begin_of(row))]
    return CheckedContracts(
        [text for text, is_lack in dict.fromkeys(found) if not is_lack],
        [text for text, is_lack in dict.fromkeys(found) if is_lack],
        notices(published, stated, before, after),
        what_if((before, after), payers, moment, min(begins), bills) if bills and published and begins else [],
    )


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
            now = after.tariff_at(row["id"], begin)
            gone = before.tariff_at(row["id"], begin).sold - now.sold - now.not_sold
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
