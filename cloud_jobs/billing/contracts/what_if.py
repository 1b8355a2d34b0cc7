"""What other contracts would change on bills: those of last month, and all that are posted. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple, Protocol

from cloud_jobs.billing.billing_period import BillingPeriod, month_before
from cloud_jobs.billing.contracts.errors import BlockedPayer, UnknownPayer
from cloud_jobs.billing.contracts.payer_contract import PayerContract
from cloud_jobs.billing.contracts.resolved import Contracts
from cloud_jobs.billing.errors import BadPeriod, BillingError

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


class BothContracts(NamedTuple):
    """All contracts as they are, and as they would be."""

    before: Contracts
    after: Contracts


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
        return replace(contracts.contract_of(payer, contracts.period_of(payer, *days)), publication_ids=())
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
            return KnownBill(reasons=(f"its invoice is by the clocks of {zone}, and a payer keeps its time zone",))
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
