"""Who pays is corrected after an issue: whatever the order of commands, nothing is asked for twice or forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.documents import DocumentType
from cloud_jobs.billing.register.closing import ClosingState
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
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.reconcile import ComparisonOutcome, reconcile
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import DAYS, NOW, BilledLake, used
from tests.cloud_jobs.billing.register.correcting import (
    BETA,
    CHILD,
    OWN,
    adjust,
    agree,
    billed_in,
    changes,
    issue,
    posted,
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
    assert sum(one.net_minor for one in outstanding(billed.register, DAYS, "acme")[1]) == 0
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
