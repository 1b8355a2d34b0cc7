"""What other contracts would change on bills: of each payer a period, before and after. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from cloud_jobs.billing.billing_period import BillingPeriod, month_before
from cloud_jobs.billing.contracts.errors import BlockedPayer, UnknownPayer
from cloud_jobs.billing.contracts.payer_contract import PayerContract
from cloud_jobs.billing.contracts.resolved import Contracts
from cloud_jobs.billing.errors import BillingError

Rated = Callable[[PayerContract], int]
"""What a payer owes by a contract for its period, net, in minor units of its currency: rating on the usage there is.

It may raise BillingError; then nothing can be billed."""


class KnownBill(NamedTuple):
    """What is known of a bill: its contract, the amount if it was rated, and why there is none."""

    contract: PayerContract | None
    amount_minor: int | None
    reasons: tuple[str, ...]


class BillChange(NamedTuple):
    """A payer whose bill for a period would be another one."""

    payer: str
    period: BillingPeriod
    before: KnownBill
    after: KnownBill


def what_if(
    before: Contracts, after: Contracts, payers: Iterable[str], moment: datetime, rated: Rated | None = None
) -> list[BillChange]:
    """The payers whose bill for the last month that was over at a moment would change, in the order given.

    Without `rated` nothing is priced: then a payer is listed if anything that its bill depends on would change.
    """
    changes = []
    for payer in payers:
        period = last_month_of(after, payer, moment) or last_month_of(before, payer, moment)
        if period is not None:
            was, would_be = (_owed(contracts, payer, period, rated) for contracts in (before, after))
            if (_bare(was), was.amount_minor, was.reasons) != (
                _bare(would_be),
                would_be.amount_minor,
                would_be.reasons,
            ):
                changes.append(BillChange(payer, period, was, would_be))
    return changes


def last_month_of(contracts: Contracts, payer: str, moment: datetime) -> BillingPeriod | None:
    """The last month of a payer that was over at a moment; None for who is no payer."""
    month = month_before("UTC", moment)
    try:
        zone = contracts.period_of(payer, month.first_day, month.last_day).time_zone
        month = month_before(zone, moment)
        return contracts.period_of(payer, month.first_day, month.last_day)
    except UnknownPayer:
        return None


def _owed(contracts: Contracts, payer: str, period: BillingPeriod, rated: Rated | None) -> KnownBill:
    try:
        contract = contracts.contract_of(payer, period)
    except BlockedPayer as blocked:
        return KnownBill(None, None, tuple(map(str, blocked.faults)))
    try:
        return KnownBill(contract, rated(contract) if rated else None, ())
    except BillingError as error:
        return KnownBill(None, None, (str(error),))


def _bare(owed: KnownBill) -> PayerContract | None:
    """A contract without what no bill depends on."""
    return owed.contract and replace(owed.contract, publication_ids=())
