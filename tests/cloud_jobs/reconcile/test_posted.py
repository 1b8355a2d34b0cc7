"""What is posted beside what is owed, after a void, another rate, another seller, and for who pays no more."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.billing.register.operations import issue_period, void_invoice
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.reconcile import Comparison, ComparisonOutcome, Reconciliation, Station, reconcile
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import DAYS, NOW, BilledLake, clerk, used
from tests.cloud_jobs.billing.register.metered_lake import JANUARY, meter, metered_lake, publish
from tests.system.lake_of_fixes import square


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    made = metered_lake(tmp_path)
    made.close("one", days=JANUARY)
    assert len(made.issue("clerk", JANUARY).documents) == 2
    return made


def compared(billed: BilledLake) -> Reconciliation:
    return reconcile(billed.lake, take_snapshot(billed.lake, NOW), JANUARY, None, now=NOW)


def wrong(billed: BilledLake) -> list[Comparison]:
    bad = {ComparisonOutcome.DIFFERENT, ComparisonOutcome.UNKNOWN}
    return [one for one in compared(billed).comparisons if one.outcome in bad and one.place != "all payers"]


def void(billed: BilledLake, number: str) -> None:
    void_invoice(billed.register, number, "wrong buyer", clerk=clerk(number))


def acme_agrees(billed: BilledLake, **more: Any) -> None:
    publish(billed, account("acme", device("eu-1", tenant="acme"), payer=payer(**more)))
    billed.close("two", days=JANUARY)


def test_what_is_void_and_not_issued_anew_is_not_equal(billed: BilledLake) -> None:
    void(billed, "WB-EU-00000001")
    (found,) = wrong(billed)
    assert (found.name, found.place, found.expected, found.found) == ("posted", "acme", 154, None)
    assert "not issued anew" in found.note
    issue_period(billed.register, JANUARY, None, clerk=clerk("again"))
    assert compared(billed).outcome is ComparisonOutcome.EQUAL


def test_another_seller_or_currency_is_not_equal_though_the_sums_are(billed: BilledLake) -> None:
    publish(billed, legal_entity(id="another", number_prefix="AN-"))
    acme_agrees(billed, legal_entity="another")
    (found,) = wrong(billed)
    assert (found.name, found.difference) == ("seller and currency of the newest closing", -1)
    assert "void WB-EU-00000001" in found.note


@pytest.mark.parametrize("zones", [("Asia/Tokyo", "America/New_York"), ("America/New_York", "Asia/Tokyo")])
@pytest.mark.parametrize("names", [("aaa", "acme"), ("acme", "aaa")])
def test_of_a_device_that_moves_between_time_zones_nothing_is_nobodys(
    tmp_path: Path, zones: tuple[str, str], names: tuple[str, str]
) -> None:
    made, middle = BilledLake.create(tmp_path, "van-1"), "2026-03-15T00:00:00Z"
    made.publish(
        legal_entity(),
        tariff(),
        account(names[0], device("van-1", end=middle), payer=payer(time_zone=zones[0])),
        account(names[1], device("van-1", begin=middle), payer=payer(time_zone=zones[1])),
    )
    ends = datetime(2026, 2, 28, 20, tzinfo=UTC), datetime(2026, 3, 31, 20, tzinfo=UTC)
    made.use(used("van-1", 1000), *(used("van-1", 4000, hour) for hour in ends))
    made.close("one")
    found = reconcile(made.lake, take_snapshot(made.lake, NOW), DAYS, None, now=NOW).comparisons
    assert [one for one in found if one.name.startswith("nobody's")] == []
    charged = {(one.name, one.place): one for one in found if one.station is Station.RATED}[
        "distance, mm", "all payers"
    ]
    # each hour at an end is in a month of Tokyo before one of New York, and in none the other way round
    metres = 9000 if zones[0] == "Asia/Tokyo" else 1000
    assert (charged.outcome, charged.found) == (ComparisonOutcome.EQUAL, metres * 1000)


@pytest.mark.parametrize("tampered", ["gone", "one gone", "changed"])
def test_certificates_that_are_not_those_of_the_closing_are_named(billed: BilledLake, tampered: str) -> None:
    certificates = billed.lake.open("certificates")
    if tampered == "changed":
        old = billed.lake.rows("certificates", where=[("payer", "=", "beta")]).to_pylist()[0]["certificate"]
        new = old.replace('"complete"', '"silent"').replace("'", "''")
        assert new != old
        certificates.update(updates={"certificate": f"'{new}'"}, predicate="payer = 'beta'")
    else:
        certificates.delete("payer = 'acme' and device = 'eu-1'" if tampered == "one gone" else None)
    found = wrong(billed)
    assert {one.name for one in found} == {"closings with their certificates"}
    assert {one.place for one in found} == {"gone": {"acme", "beta"}, "one gone": {"acme"}, "changed": {"beta"}}[
        tampered
    ]


def reasons(billed: BilledLake, name: str) -> list[tuple[str, str]]:
    return [(one.place, one.note) for one in wrong(billed) if one.name == name]


def test_a_price_that_was_changed_since_the_closing_makes_it_unknown(billed: BilledLake) -> None:
    before = take_snapshot(billed.lake, NOW)
    publish(billed, tariff(price("0.90"), price("0.20", zone="square"), price("0.05", meter="event", unit="each")))
    why = "contracts were published since it was closed; `waybill bill close` it again"
    assert reasons(billed, "closing") == [("acme", why), ("beta", why)]
    # by what was known then it was as it should be
    assert reconcile(billed.lake, before, JANUARY, None, now=NOW).outcome is ComparisonOutcome.EQUAL
    billed.close("two", days=JANUARY)
    assert reasons(billed, "closing") == []
    assert {one.place for one in wrong(billed) if one.name == "newest closing posted"} == {"acme", "beta"}


def test_a_fence_that_usage_does_not_know_yet_makes_it_unknown(billed: BilledLake) -> None:
    publish(billed, square("square", lon=0.005))
    why = "usage was computed with other fences than those of the snapshot, run `cloud-jobs usage`"
    assert [(place, note.partition(";")[0]) for place, note in reasons(billed, "closing")] == [
        ("acme", why),
        ("beta", why),
    ]
    assert compared(billed).outcome is ComparisonOutcome.UNKNOWN
    # a newest closing that is provisional says nothing for certain
    billed.close("two", days=JANUARY)
    assert [place for place, note in reasons(billed, "closing") if note.startswith("provisional: ")] == ["acme", "beta"]
    meter(billed)
    billed.close("three", days=JANUARY)
    assert reasons(billed, "closing") == []
