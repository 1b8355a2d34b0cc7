"""What went from one payer to another after an issue is asked for once, and by what is so now."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.certificates.decisions import ClosedState, decide, withdraw
from cloud_jobs.billing.register.closing import ClosingState
from cloud_jobs.billing.register.current_contracts import CurrentContracts
from cloud_jobs.billing.register.documents_of import outstanding
from cloud_jobs.billing.register.errors import (
    Blocked,
    InvoicedToAnother,
    OutdatedClosing,
)
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshots import take_snapshot
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import DAYS, NOW, BilledLake, used
from tests.cloud_jobs.billing.register.correcting import (
    BETA,
    CHILD,
    OWN,
    SMALL,
    adjust,
    agree,
    agree_more,
    asked_for,
    billed_in,
    changes,
    issue,
    small_fleet,
)
from tests.examples import examples


def test_a_device_that_went_to_another_payer_is_not_asked_for_by_both(tmp_path: Path) -> None:
    billed, agreed = small_fleet(tmp_path, account("pa", device("van-1")), account("pb", device("van-2")))
    billed.close("one")
    issue(billed, "first", ["pa"])
    agree_more(billed, agreed, account("pa"), account("pb", device("van-1"), device("van-2")))
    billed.close("two", ["pb"])
    refused = issue(billed, "second", ["pb"]).refused
    assert [(type(one), "device fleet/van-1" in str(one), "pa for 2026-03" in str(one)) for one in refused] == [
        (InvoicedToAnother, True, True)
    ]
    billed.close("three")
    assert changes(adjust(billed, "third")) == [("pa", -450)]
    assert changes(issue(billed, "fourth")) == [("pb", 630)]
    assert asked_for(billed) == {"van-1": 450, "van-2": 180}


def test_who_waits_for_an_invoice_that_stays_keeps_those_waiting_that_wait_for_it(tmp_path: Path) -> None:
    billed, agreed = small_fleet(
        tmp_path, account("pa", device("van-1")), account("pb", device("van-2")), account("pc", device("van-3"))
    )
    billed.close("one")
    issue(billed, "first")
    # each gets the device of the one before; that of the first cannot be closed
    agree_more(
        billed,
        agreed,
        account("pa", tariff="unknown"),
        account("pb", device("van-1")),
        account("pc", device("van-2"), device("van-3")),
    )
    billed.close("two")
    done = adjust(billed, "second")
    assert sorted((one.payer, type(one)) for one in done.refused) == [
        ("pa", Blocked),
        ("pb", InvoicedToAnother),
        ("pc", InvoicedToAnother),
    ]
    assert asked_for(billed) == SMALL
    agree_more(billed, agreed, account("pa"))
    billed.close("three")
    assert changes(adjust(billed, "third")) == [("pa", -450), ("pb", 270), ("pc", 180)]
    assert asked_for(billed) == SMALL


def test_other_days_of_the_same_month_are_not_asked_for_again_by_another_payer(tmp_path: Path) -> None:
    billed = billed_in(tmp_path, CHILD, BETA)
    billed.close("one")
    issue(billed, "first")
    billed.publish(legal_entity(), tariff(price()), CHILD, BETA, OWN)
    day = date(2026, 3, 10), date(2026, 3, 10)
    billed.close("two", ["acme"], days=day)
    assert [type(one) for one in issue(billed, "second", days=day).refused] == [InvoicedToAnother]
    billed.close("three")
    adjust(billed, "third", ["beta"])
    assert changes(issue(billed, "fourth", days=day)) == [("acme", 450)]
    assert asked_for(billed) == {"van-1": 450, "van-2": 180}


@pytest.mark.parametrize("more", [0, 2000])
def test_what_is_posted_of_another_month_has_no_say(tmp_path: Path, more: int) -> None:
    billed = billed_in(tmp_path)
    february, hour = (date(2026, 2, 1), date(2026, 2, 28)), datetime(2026, 2, 10, 6, tzinfo=UTC)
    billed.use(used("van-1", 3000, hour))
    for days in (february, DAYS):
        billed.close(f"of {days[0]}", days=days)
        issue(billed, f"first of {days[0]}", ["acme"], days)
    billed.use(used("van-1", more, hour))
    billed.close("late", ["acme"], days=february)
    assert len(adjust(billed, "late", ["acme"], february).documents) == 1
    agree(billed, account("acme", device("van-1"), parent="beta", effective_from="2026-02-28T23:00:00Z"))
    billed.close("two", ["beta"])
    assert [type(one) for one in issue(billed, "second", ["beta"]).refused] == [InvoicedToAnother]
    billed.close("three")
    assert changes(adjust(billed, "third")) == [("acme", -450)]
    assert changes(issue(billed, "fourth")) == [("beta", 630)]


@given(st.data())
@settings(max_examples=examples(16), deadline=None)
def test_whatever_goes_from_one_payer_to_another_is_asked_for_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    def drawn() -> list[dict[str, Any]]:
        holder = {name: data.draw(st.sampled_from(["pa", "pb", "x"]), label=name) for name in SMALL}
        parent = data.draw(st.sampled_from([None, "pa", "pb"]), label="parent of x")
        held = {name: [device(one) for one, its in holder.items() if its == name] for name in ("pa", "pb", "x")}
        above = {} if parent is None else {"parent": parent}
        return [account("pa", *held["pa"]), account("pb", *held["pb"]), account("x", *held["x"], **above)]

    billed, agreed = small_fleet(tmp_path_factory.mktemp("lake"), *drawn())
    for number in range(data.draw(st.integers(2, 9))):
        what = data.draw(st.sampled_from(["agree", "close", "close", "issue", "issue", "adjust"]))
        some = data.draw(st.sampled_from([None, ["pa"], ["pb"], ["x"], ["pa", "x"]]))
        if what == "agree":
            agree_more(billed, agreed, *drawn())
        elif what == "close":
            billed.close(f"close {number}")
        elif billed.register.payers(*DAYS):
            (issue if what == "issue" else adjust)(billed, f"{what} {number}", some)
        assert not asked_for(billed) - Counter(SMALL)
    billed.close("last")
    # one command of each, whatever happened before
    adjust(billed, "adjust the last")
    issue(billed, "issue the last")
    assert asked_for(billed) == SMALL


@pytest.mark.parametrize("again", [False, True])
def test_nothing_is_posted_on_a_decision_that_was_withdrawn(tmp_path: Path, again: bool) -> None:
    billed = BilledLake.create(tmp_path, "van-2")
    billed.publish(legal_entity(), tariff(price()), OWN, BETA)
    billed.use(used("van-1", 10_000), used("van-2", 4_000))
    billed.hear("van-1", missing=True)
    made = decide(
        billed.lake,
        TenantDevice("fleet", "van-1"),
        ClosedState.OPEN,
        (datetime(2026, 2, 28, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)),
        decided_by="A. Clerk",
        reason="Scrapped in February",
        now=NOW,
    )
    closings = {one.key.payer: one.outcome for one in billed.close("one")}
    assert closings == {"acme": ClosingState.FINAL, "beta": ClosingState.FINAL}
    if again:
        issue(billed, "first")
    withdraw(billed.lake, made.number, decided_by="A. Clerk", reason="It drives again", now=NOW)
    done = (adjust if again else issue)(billed, "second")
    assert [(type(one), "decision 1 was withdrawn" in str(one)) for one in done.refused if one.payer == "acme"] == [
        (OutdatedClosing, True)
    ]
    if again:
        with pytest.raises(OutdatedClosing):
            outstanding(billed.register, DAYS, "acme")
    assert {one.key.payer: one.outcome for one in billed.close("two")}["acme"] is ClosingState.PROVISIONAL


def test_what_a_snapshot_did_not_know_of_is_not_published_since_for_it(tmp_path: Path) -> None:
    billed = billed_in(tmp_path)
    [closing, _] = billed.close("one")
    agree(billed, account("gamma", device("van-9")))
    later = take_snapshot(billed.lake, NOW)
    agree(billed, account("gamma", device("van-9")), tariff(price("9")))
    assert CurrentContracts(billed.lake, later).fault(closing) == ""
    assert CurrentContracts(billed.lake).fault(closing) == "contracts were published since it was closed"
