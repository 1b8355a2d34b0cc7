"""Who pays is corrected after an issue: whatever the order of commands, nothing is asked for twice or forgotten."""

from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.certificates.decisions import ClosedState, decide, withdraw
from cloud_jobs.billing.documents import DocumentType
from cloud_jobs.billing.register.closing import ClosingState
from cloud_jobs.billing.register.current_contracts import CurrentContracts
from cloud_jobs.billing.register.documents_of import outstanding
from cloud_jobs.billing.register.errors import (
    AdjustmentDue,
    Blocked,
    InvoicedToAnother,
    NothingToAdjust,
    NothingToIssue,
    OtherSeller,
    OutdatedClosing,
)
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.reconcile import ComparisonOutcome, reconcile
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
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
    posted,
    small_fleet,
)
from tests.examples import examples


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    return billed_in(tmp_path)


def test_who_became_a_child_after_its_invoice_is_credited_before_its_parent_is_asked(billed: BilledLake) -> None:
    billed.close("one", payers=["acme"])
    issue(billed, "first", ["acme"])
    agree(billed, CHILD)
    closings = {one.key.payer: one for one in billed.close("two")}
    assert (closings["acme"].outcome, closings["acme"].charges, closings["acme"].net_minor) == (
        ClosingState.FINAL,
        0,
        0,
    )
    assert closings["beta"].net_minor == 630
    done = issue(billed, "second")
    assert {type(one) for one in done.refused} == {AdjustmentDue, InvoicedToAnother}
    assert posted(billed) == 450
    done = adjust(billed, "third")
    assert [(one.type, one.key.payer, one.net_minor) for one in done.documents] == [
        (DocumentType.CREDIT_NOTE, "acme", -450)
    ]
    done = issue(billed, "fourth")
    assert [(one.key.payer, one.net_minor) for one in done.documents] == [("beta", 630)]
    found = reconcile(billed.lake, take_snapshot(billed.lake, NOW), DAYS, None, now=NOW)
    assert [
        one
        for one in found.comparisons
        if one.station.value == "invoiced" and one.outcome is not ComparisonOutcome.EQUAL
    ] == []


def test_contracts_that_begin_later_or_are_of_others_hold_nobody_up(billed: BilledLake) -> None:
    billed.close("one")
    agree(billed, tariff(price("9"), effective_from="2026-04-03T00:00:00Z"), account("gamma", device("van-9")))
    assert len(issue(billed, "first").documents) == 2


def test_a_changed_tariff_holds_up_who_pays_for_its_accounts_and_nobody_else(tmp_path: Path) -> None:
    night = {"id": "night", "effective_from": "2026-01-01T00:00:00Z"}
    bodies = [tariff(price("0.20"), **night), OWN, account("deep", device("van-2"), tariff="night", parent="acme")]
    billed = BilledLake.create(tmp_path, "van-1", "van-2", "van-3")
    billed.publish(legal_entity(), tariff(price()), *bodies, account("beta", device("van-3")))
    billed.use(used("van-1", 1_000), used("van-2", 1_000), used("van-3", 1_000))
    billed.close("one")
    there = [tariff(price()), *bodies, account("beta", device("van-3"))]
    billed.publish(legal_entity(), *there, tariff(price("0.10"), **night))
    done = issue(billed, "first")
    assert [(type(one), one.payer) for one in done.refused] == [(OutdatedClosing, "acme")]
    assert [one.key.payer for one in done.documents] == ["beta"]


@given(st.data())
@settings(max_examples=examples(16), deadline=None)
def test_in_any_order_of_corrections_and_commands_no_account_is_asked_for_twice(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    billed, bodies = billed_in(tmp_path_factory.mktemp("lake")), [OWN, BETA]
    for number in range(data.draw(st.integers(1, 8))):
        what = data.draw(st.sampled_from(["close", "issue", "adjust", "own", "child"]))
        some = data.draw(st.sampled_from([None, ["acme"], ["beta"]]))
        if what in {"own", "child"}:
            bodies.append(OWN if what == "own" else CHILD)
            billed.publish(legal_entity(), tariff(price()), *bodies)
        elif what == "close":
            billed.close(f"close {number}")
        elif billed.register.payers(*DAYS):
            (issue if what == "issue" else adjust)(billed, f"{what} {number}", some)
        assert posted(billed) <= 630
    billed.close("last")
    # in this order: what is taken back is taken back first
    adjust(billed, "adjust the last")
    issue(billed, "issue the last")
    assert posted(billed) == 630


def test_a_difference_is_shown_of_what_adjust_would_post_and_of_nothing_else(billed: BilledLake) -> None:
    billed.close("one")
    issue(billed, "first")
    assert outstanding(billed.register, DAYS, "acme")[1].net_minor == 0
    agree(billed, account("acme", device("van-1"), tariff="unknown"))
    assert billed.close("two", payers=["acme"])[0].outcome is ClosingState.BLOCKED
    with pytest.raises(Blocked):
        outstanding(billed.register, DAYS, "acme")
    agree(
        billed,
        account("acme", device("van-1"), tariff="unknown"),
        legal_entity(id="another", number_prefix="AN-"),
        account("acme", device("van-1"), payer=payer(legal_entity="another")),
    )
    billed.close("three")
    with pytest.raises(OtherSeller):
        outstanding(billed.register, DAYS, "acme")
    assert [type(one) for one in adjust(billed, "second").refused] == [OtherSeller, NothingToAdjust]


@pytest.mark.parametrize(
    "corrected",
    [
        [account("acme", device("van-1"), parent="bta")],
        [account("m", parent="nowhere"), account("acme", device("van-1"), parent="m")],
        [account("acme", device("van-1"), parent="m"), account("m", parent="acme")],
        [account("m", effective_from="2026-04-10T00:00:00Z"), account("acme", device("van-1"), parent="m")],
    ],
    ids=["a slip of the parent", "below one that leads nowhere", "a circle", "a payer that begins later"],
)
def test_who_pays_no_more_while_nobody_pays_instead_keeps_its_invoice(
    billed: BilledLake, corrected: list[dict[str, Any]]
) -> None:
    billed.close("one")
    issue(billed, "first")
    agree(billed, *corrected)
    closings = {one.key.payer: one for one in billed.close("two")}
    assert closings["acme"].outcome is ClosingState.BLOCKED
    assert [type(one) for one in adjust(billed, "second").refused if one.payer == "acme"] == [Blocked]
    assert posted(billed) == 630
    agree(billed, *corrected, OWN)
    billed.close("three")
    assert adjust(billed, "third").documents == []


def test_a_closing_that_was_blocked_holds_up_nobody_once_another_one_pays(billed: BilledLake) -> None:
    agree(billed, account("acme", device("van-1"), tariff="unknown"))
    assert {one.key.payer: one.outcome for one in billed.close("one")}["acme"] is ClosingState.BLOCKED
    agree(billed, account("acme", device("van-1"), tariff="unknown"), CHILD)
    assert {one.key.payer: (one.outcome, one.net_minor) for one in billed.close("two")} == {
        "acme": (ClosingState.FINAL, 0),
        "beta": (ClosingState.FINAL, 630),
    }
    done = issue(billed, "first")
    assert ([type(one) for one in done.refused], changes(done)) == ([NothingToIssue], [("beta", 630)])
    found = reconcile(billed.lake, take_snapshot(billed.lake, NOW), DAYS, None, now=NOW)
    assert "acme" not in {one.place for one in found.comparisons if one.outcome is ComparisonOutcome.DIFFERENT}


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


@pytest.mark.parametrize("more", [pytest.param(0, marks=pytest.mark.nightly), 2000])
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
