"""Which bills other contracts would change: of last month, and of all that is posted."""

from __future__ import annotations

from typing import Any

from tests.cloud_jobs.billing.contracts.checks import HundredUnits, checked
from tests.cloud_jobs.billing.contracts.makers import account, device, payer, price, tariff


def test_a_new_price_changes_the_bills_of_last_month_of_those_who_pay_it_and_no_others() -> None:
    found = checked(tariff(price("0.50")))
    assert found.faults == found.lacking == []
    (change,) = found.changes
    assert (change.payer, str(change.period), change.period.time_zone) == ("acme", "2026-03", "Europe/Berlin")
    assert (change.before.owed, change.after.owed) == ((4500, 855), (5000, 950))


def test_a_price_from_a_later_date_or_the_same_one_changes_no_bill_of_last_month() -> None:
    assert checked(tariff(price("0.50"), effective_from="2026-04-01T00:00:00+02:00")).changes == []
    assert checked(tariff()).changes == []


def shown(*bodies: dict[str, Any], **posted: str) -> list[tuple[str, str, bool]]:
    found = checked(*bodies, bills=HundredUnits(**posted)).changes
    return [(one.payer, str(one.period), one.is_posted) for one in found]


def test_each_posted_period_that_a_version_reaches_is_compared_and_no_other() -> None:
    """What a tariff of January changes is not only last month: what was issued since would be adjusted, too."""
    posted = {"acme": "2025-12 2026-01 2026-02-05 2026-03", "beta": "2026-01"}
    dearer = tariff(price("0.50"), effective_from="2026-02-05T00:00:00+01:00")
    assert shown(dearer, **posted) == [("acme", "2026-02-05", True), ("acme", "2026-03", True)]
    bills = HundredUnits(**posted)
    checked(dearer, bills=bills)
    # before and after, of these two: where the contract is the same nothing is rated
    assert bills.rated_payers == ["acme"] * 4
    assert bills.compared[-1] == (2, 2)


def test_who_is_a_payer_no_more_is_listed_and_who_pays_instead() -> None:
    found = checked(account("acme", device(), parent="beta"))
    (acme, beta) = found.changes
    assert (acme.payer, acme.before.owed, acme.after.pays) == ("acme", (4500, 855), False)
    assert acme.after.reasons == ("account 'acme' is paid for by its parent, 'beta'",)
    assert (beta.payer, beta.before.owed, beta.after.owed) == ("beta", (4500, 855), (9000, 1710))
    assert (
        "f:1: account 'acme' is no payer any more from 2026-01-01T00:00:00Z on: what it uses stands on the invoice of "
        "its parent"
    ) in found.notices


def test_a_time_zone_may_be_corrected_until_it_stands_on_an_invoice() -> None:
    tokyo = account("acme", device(), payer=payer(time_zone="Asia/Tokyo"))
    assert (checked(tokyo).faults, checked(tokyo).changes) == ([], [])
    (change,) = checked(tokyo, bills=HundredUnits(acme="2026-02")).changes
    assert (str(change.period), change.before.owed) == ("2026-02", (4500, 855))
    assert change.after.reasons == ("its invoice is by the clocks of Europe/Berlin, and a payer keeps its time zone",)
