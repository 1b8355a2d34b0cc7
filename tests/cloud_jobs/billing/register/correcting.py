"""Lakes whose contracts are corrected after a closing or an issue, and what a clerk does with them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cloud_jobs.billing.register.closing import Days
from cloud_jobs.billing.register.ledger import Ledger
from cloud_jobs.billing.register.operations import PostingResult, adjust_period, issue_period
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import DAYS, BilledLake, clerk, used

OWN = account("acme", device("van-1"))
CHILD = account("acme", device("van-1"), parent="beta")
BETA = account("beta", device("van-2"))


def billed_in(folder: Path, *bodies: dict[str, Any]) -> BilledLake:
    made = BilledLake.create(folder, "van-1", "van-2")
    made.publish(legal_entity(), tariff(price()), *(bodies or (OWN, BETA)))
    made.use(used("van-1", 10_000), used("van-2", 4_000))
    return made


def agree(billed: BilledLake, *bodies: dict[str, Any]) -> None:
    billed.publish(legal_entity(), tariff(price()), OWN, BETA, *bodies)


def issue(billed: BilledLake, name: str, payers: Sequence[str] | None = None, days: Days = DAYS) -> PostingResult:
    return issue_period(billed.register, days, payers, clerk=clerk(name))


def adjust(billed: BilledLake, name: str, payers: Sequence[str] | None = None, days: Days = DAYS) -> PostingResult:
    return adjust_period(billed.register, days, payers, clerk=clerk(name))


def changes(done: PostingResult) -> list[tuple[str, int]]:
    return sorted((one.key.payer, one.net_minor) for one in done.documents)


def asked_for(billed: BilledLake) -> Counter[str]:
    """Of each device what the invoices that stand ask for, in minor units."""
    register = billed.register
    documents = register.documents()
    ledger, found = Ledger(documents), Counter[str]()
    for name in {one.key.payer for one in documents}:
        for one in ledger.standing(name):
            closing = register.closing(one.invoice.key, one.closing)
            for charge in register.charges_of([closing])[closing.id]:
                found[charge.key.device] += charge.amount_minor
    return found


def posted(billed: BilledLake) -> int:
    return sum(one.net_minor for one in billed.register.documents())


SMALL = {"van-1": 450, "van-2": 180, "van-3": 90}
"""Of each device what its way costs, all of it on one day of March."""


def small_fleet(folder: Path, *bodies: dict[str, Any]) -> tuple[BilledLake, list[dict[str, Any]]]:
    """A lake, and what was published: it is published again with what follows."""
    billed, agreed = BilledLake.create(folder, *SMALL), [legal_entity(), tariff(price()), *bodies]
    billed.publish(*agreed)
    billed.use(*(used(name, cost * 200 // 9) for name, cost in SMALL.items()))
    return billed, agreed


def agree_more(billed: BilledLake, agreed: list[dict[str, Any]], *bodies: dict[str, Any]) -> None:
    agreed += bodies
    billed.publish(*agreed)
