"""Contracts before they are published: what is wrong with them beside those that are, and whose bills would change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from cloud_jobs.billing.billing_period import BillingPeriod
from cloud_jobs.billing.contracts.errors import (
    AccountCycle,
    BlockedPayer,
    ContractFault,
    DeviceInTwoAccounts,
    UnknownPayer,
)
from cloud_jobs.billing.contracts.published import MODEL_OF
from cloud_jobs.billing.contracts.resolved import Contracts
from cloud_jobs.billing.contracts.what_if import BillChange, Rated, last_month_of, what_if
from cloud_jobs.publication_id import next_publication_id

MAX_MONTHS: Final = 24
"""So many months in which a version begins are looked at, the earliest ones."""
MAX_RATED: Final = 100
"""Amounts are said for so many payers; of more it is said whose contracts differ. Each is rated by itself."""
Row = dict[str, Any]


class CheckedContracts(NamedTuple):
    """`faults`: what publishing would block; `lacking`: what a payer needs and is neither there nor in the files;
    `changes`: whose last month would be billed otherwise."""

    faults: list[str]
    lacking: list[str]
    changes: list[BillChange]


def check_contracts(
    published: Sequence[Row], stated: Sequence[Row], moment: datetime, rated: Rated | None = None
) -> CheckedContracts:
    """Judges versions (rows of the table `reference`, of no publication yet) beside those that were published.

    `moment`: the last month that was over then is compared. A payer that is blocked already is no fault of the files.
    """
    before, after = Contracts(published), Contracts([*published, *_as_published(published, stated, moment)])
    changed = {(row["kind"], row["id"]) for row in stated if row["kind"] in MODEL_OF}
    payers = after.payers_of(changed)
    places = {row["id"]: row["place"] for row in stated if row["kind"] == "account"}
    there = set(map(str, before.device_overlaps()))
    faults = [_placed(one, places) for one in after.device_overlaps() if str(one) not in there]
    lacking: list[str] = []
    for since in sorted(set(after.begins_of(changed)))[:MAX_MONTHS]:
        known = set(map(str, before.without_payer(since)))
        lacking += [_placed(one, places) for one in after.without_payer(since) if str(one) not in known]
        for payer in payers:
            period = _month_of(after, payer, since)
            if period is not None:
                was = {str(one) for one in _faults(before, payer, period)} if published else set()
                lacking += [_placed(one, places) for one in _faults(after, payer, period) if str(one) not in was]
    lacking = [one for one in dict.fromkeys(lacking) if one not in faults]
    changes = what_if(before, after, payers, moment, rated if len(payers) <= MAX_RATED else None) if published else []
    return CheckedContracts(faults, lacking, changes)


def _as_published(published: Iterable[Row], stated: Iterable[Row], moment: datetime) -> list[Row]:
    """The rows as they would be: after all others."""
    newest = max((row["publication_id"] for row in published), default=None)
    made = list[Row]()
    for row in stated:
        newest = next_publication_id(newest, int(moment.timestamp() * 1000), 0)
        made.append(row | {"publication_id": newest, "published_at": moment})
    return made


def _placed(fault: ContractFault, places: Mapping[str, str]) -> str:
    """A fault behind the file and line of the accounts that it names, if these are in the files."""
    named = fault.accounts if isinstance(fault, DeviceInTwoAccounts | AccountCycle) else [getattr(fault, "account", "")]
    return ": ".join([", ".join(places[one] for one in named if one in places), str(fault)]).removeprefix(": ")


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


def _faults(contracts: Contracts, payer: str, period: BillingPeriod) -> Sequence[ContractFault]:
    try:
        contracts.contract_of(payer, period)
    except BlockedPayer as blocked:
        return blocked.faults
    return ()
