"""Each station that is tampered with is named, by how much; what nobody tampered with is equal."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from cloud_jobs.billing.register.operations import issue_period, void_invoice
from cloud_jobs.lake.coverage import Coverage, DeviceStream
from cloud_jobs.lake.snapshots import take_snapshot
from cloud_jobs.reconcile import Comparison, ComparisonOutcome, Reconciliation, Station, outcome_of, reconcile
from cloud_jobs.reconcile.cli import DIFFERENT
from cloud_jobs.reconcile.comparison import summed
from tests.cloud_jobs.billing.contracts.makers import account, device, legal_entity, payer, price, tariff
from tests.cloud_jobs.billing.register.billed_lake import DAYS, NOW, BilledLake, clerk, used
from tests.cloud_jobs.billing.register.metered_lake import (
    FIXES,
    JANUARY,
    STATED,
    TEN,
    issued_lake,
    meter,
    metered_lake,
    publish,
    state,
)
from tests.page_sessions import assert_shown, steps_of
from tests.system.lake_of_fixes import LakeFix, cover, ingest, square
from waybill.commands import SUBCOMMANDS, command_line


@pytest.fixture
def billed(tmp_path: Path) -> BilledLake:
    return issued_lake(tmp_path)


def compared(billed: BilledLake, *payers: str) -> list[Comparison]:
    snapshot = take_snapshot(billed.lake, NOW)
    return reconcile(billed.lake, snapshot, JANUARY, payers or None, now=NOW).comparisons


def wrong(billed: BilledLake, *payers: str) -> list[Comparison]:
    return [
        one
        for one in compared(billed, *payers)
        if one.outcome in {ComparisonOutcome.DIFFERENT, ComparisonOutcome.UNKNOWN}
    ]


def stations(found: list[Comparison]) -> set[Station]:
    return {one.station for one in found}


def test_what_nobody_tampered_with_is_equal_at_every_station(billed: BilledLake) -> None:
    found = compared(billed)
    assert wrong(billed) == []
    assert stations(found) == {*Station}
    counts = {(one.station, one.name, one.place): (one.expected, one.found) for one in found}
    every = 4 * (FIXES + 1)
    assert counts[Station.DEVICE, "records made, less declared lost, of any period", "all devices"] == (every, every)
    assert counts[Station.REGION, "records brought", "us"] == (None, 2 * (FIXES + 1))
    assert counts[Station.CENTRE, "received records in the table, of any period", "all devices"] == (every, every)
    assert counts[Station.USAGE, "records metered", "all devices"] == (every, every)
    # nobody pays for one device, and that is said
    (nobody,) = [one.place for one in found if one.name == "without account: event"]
    assert nobody == "acme/us-9"
    assert counts[Station.INVOICED, "numbers of a legal entity", "waybill-eu"] == (2, 2)
    assert wrong(billed, "acme") == []


@pytest.mark.parametrize("form", [None, "{:.4f}", " {:.3f} km "])
@pytest.mark.parametrize(
    ("km_a_minute", "named"), [(0.0372, []), (0.0405, []), (0.05, ["acme/eu-1"]), (0.02, ["acme/eu-1"])]
)
def test_a_device_whose_way_is_not_its_odometers_is_named(
    billed: BilledLake, km_a_minute: float, named: list[str], form: str | None
) -> None:
    def written(km: float) -> dict[str, Any]:
        return {"number": km} if form is None else {"number": None, "text": form.format(km)}

    ingest(
        billed.lake,
        [
            LakeFix(
                "eu-1",
                FIXES + 1 + at,
                TEN + timedelta(minutes=at),
                0.0,
                0.0,
                kind="signal",
                name="Vehicle.TraveledDistance",
                **written(1_000.0 + km_a_minute * at),
            )
            for at in range(1, FIXES + 1)
        ],
    )
    state(billed.lake, "eu-1", count=2 * FIXES + 1)
    meter(billed)
    found = compared(billed)
    (whole,) = [one for one in found if one.name == "devices with an odometer"]
    assert (whole.found, whole.outcome) == (1, ComparisonOutcome.COUNTED)
    assert [one.place for one in found if one.name == "distance unlike the odometer, mm"] == named


def test_records_that_a_device_states_and_that_did_not_come_are_named_at_the_device(billed: BilledLake) -> None:
    cover(billed.lake, {DeviceStream("acme", "eu-8", 7): Coverage(head=3, stated_us=1, stated_head=3)})
    meter(billed)
    found = wrong(billed)
    assert stations(found) == {Station.DEVICE}
    assert [(one.place, one.difference) for one in found] == [("all devices", -3), ("acme/eu-8", -3)]


def late_fixes(billed: BilledLake, day: int, count: int = 3) -> None:
    at = datetime(2026, 1, day, 10, tzinfo=UTC)
    fixes = [
        LakeFix("eu-1", FIXES + 2 + one, at + timedelta(minutes=one), 0.005, 0.1 + one / 3_000) for one in range(count)
    ]
    ingest(billed.lake, fixes)
    state(billed.lake, "eu-1", STATED + timedelta(days=1), FIXES + 1 + count)


def test_records_of_the_period_that_came_and_are_not_metered_are_unknown(billed: BilledLake) -> None:
    late_fixes(billed, 20)
    whole, named = wrong(billed)
    every = 4 * (FIXES + 1) + 3
    assert (whole.name, whole.expected, whole.found) == ("records of the period that usage covers", every, None)
    assert whole.note == "3 records are not metered yet; run `cloud-jobs usage`"
    assert (named.name, named.place, named.expected) == ("records that are not metered yet", "acme/eu-1", 3)
    assert stations(wrong(billed, "acme")) == {Station.USAGE}
    assert wrong(billed, "beta") == []
    # they are metered, and the bill is of before
    meter(billed)
    assert {one.name for one in wrong(billed)} == {"distance, mm"}


def test_a_record_that_is_there_twice_is_named_at_the_centre_and_at_usage(billed: BilledLake) -> None:
    (row,) = [one for one in billed.lake.rows("records").to_pylist() if (one["device"], one["seq"]) == ("eu-1", 7)]
    billed.lake.append("records", [row])
    found = wrong(billed)
    assert stations(found) == {Station.CENTRE, Station.USAGE}
    (centre,) = [one for one in found if one.station is Station.CENTRE and one.place == "acme/eu-1"]
    assert centre.difference == 1
    assert ("records metered", "acme/eu-1 on 2026-01-05", -1) in [
        (one.name, one.place, one.difference) for one in found
    ]
    assert stations(wrong(billed, "acme")) == {Station.CENTRE, Station.USAGE}
    assert wrong(billed, "beta") == []


def test_a_record_without_a_region_is_named_at_the_region(billed: BilledLake) -> None:
    billed.lake.open("records").update(updates={"region": "null"}, predicate="device = 'eu-1' and seq = 7")
    assert stations(wrong(billed)) == {Station.REGION}


def test_a_row_of_usage_that_was_written_over_is_named_at_usage_and_its_charge_at_rated(billed: BilledLake) -> None:
    row = usage_row(billed, "eu-1", "")
    billed.use(row | {"distance_mm": [9_000_000, 0, 0, 0], "computed_at": NOW})
    found = wrong(billed)
    assert [(one.name, one.difference) for one in found if one.station is Station.USAGE] == [
        ("rows that match their digest", -1)
    ]
    rated = [(one.name, one.place) for one in found if one.station is Station.RATED]
    assert rated == [("distance, mm", "all payers"), ("distance, mm", "acme, acme")]


def test_a_charge_that_is_gone_is_named_at_rated(billed: BilledLake) -> None:
    billed.lake.open("rated_lines").delete("device = 'eu-1' and meter = 'event'")
    found = wrong(billed)
    assert ("lines of the closing", "acme") in [(one.name, one.place) for one in found if one.station is Station.RATED]
    # nor can the document be made again
    assert stations(found) == {Station.RATED, Station.INVOICED}


def test_a_document_that_was_changed_is_named_at_invoiced(billed: BilledLake) -> None:
    billed.lake.open("documents").update(updates={"net_minor": "net_minor + 1"}, predicate="payer = 'acme'")
    found = wrong(billed)
    assert stations(found) == {Station.INVOICED}
    assert ("posted", "acme", 1, "EUR") in [(one.name, one.place, one.difference, one.currency) for one in found]


def test_a_period_that_is_not_closed_or_not_issued_is_unknown(tmp_path: Path) -> None:
    made = metered_lake(tmp_path)
    assert {(one.station, one.outcome) for one in wrong(made)} == {(Station.RATED, ComparisonOutcome.UNKNOWN)}
    made.close("one", days=JANUARY)
    assert {(one.station, one.outcome) for one in wrong(made)} == {(Station.INVOICED, ComparisonOutcome.UNKNOWN)}


def usage_row(billed: BilledLake, device: str, zone: str) -> dict[str, Any]:
    found = [one for one in billed.lake.rows("usage").to_pylist() if (one["device"], one["zone"]) == (device, zone)]
    return dict(found[0])


def run(billed: BilledLake, *words: str) -> Result:
    words = ("reconcile", "--lake", str(billed.lake.location), *words)
    return CliRunner().invoke(command_line(SUBCOMMANDS, words, "Waybill."), [*words])


def test_the_command_ends_with_0_if_all_is_equal_with_3_if_something_differs_and_with_1_for_an_error(
    billed: BilledLake,
) -> None:
    same = run(billed, "--period", "2026-01", "--json")
    assert same.exit_code == 0, same.output
    assert json.loads(same.stdout)["outcome"] == "equal"
    table = run(billed, "--period", "2026-01").stdout
    assert all(one.value in table for one in Station)
    assert run(billed, "--period", "2026-01", "--snapshot", "9-abc").exit_code == 1
    billed.lake.open("documents").delete("counter = 1")
    differs = run(billed, "--period", "2026-01", "--json")
    assert differs.exit_code == DIFFERENT
    assert json.loads(differs.stdout)["outcome"] == "different"


@given(st.lists(st.tuples(st.none() | st.integers(0, 3), st.none() | st.integers(0, 3))))
def test_only_what_is_known_and_the_same_is_equal(pairs: list[tuple[int | None, int | None]]) -> None:
    found = [Comparison(Station.USAGE, "n", str(at), *pair) for at, pair in enumerate(pairs)]
    is_equal = bool(pairs) and all(found is not None and expected in {None, found} for expected, found in pairs)
    assert (outcome_of(found) is ComparisonOutcome.EQUAL) == is_equal
    # summed up, a difference that another one takes back is still there
    assert (outcome_of(summed(found, "all")) is ComparisonOutcome.EQUAL) == is_equal


def compared_with_posted(billed: BilledLake) -> Reconciliation:
    return reconcile(billed.lake, take_snapshot(billed.lake, NOW), JANUARY, None, now=NOW)


def wrongly_posted(billed: BilledLake) -> list[Comparison]:
    bad = {ComparisonOutcome.DIFFERENT, ComparisonOutcome.UNKNOWN}
    return [one for one in compared_with_posted(billed).comparisons if one.outcome in bad and one.place != "all payers"]


def void(billed: BilledLake, number: str) -> None:
    void_invoice(billed.register, number, "wrong buyer", clerk=clerk(number))


def acme_agrees(billed: BilledLake, **more: Any) -> None:
    publish(billed, account("acme", device("eu-1", tenant="acme"), payer=payer(**more)))
    billed.close("two", days=JANUARY)


def test_what_is_void_and_not_issued_anew_is_not_equal(billed: BilledLake) -> None:
    void(billed, "WB-EU-00000001")
    (found,) = wrongly_posted(billed)
    assert (found.name, found.place, found.expected, found.found) == ("posted", "acme", 154, None)
    assert "not issued again" in found.note
    issue_period(billed.register, JANUARY, None, clerk=clerk("again"))
    assert compared_with_posted(billed).outcome is ComparisonOutcome.EQUAL


def test_another_seller_or_currency_is_not_equal_though_the_sums_are(billed: BilledLake) -> None:
    publish(billed, legal_entity(id="another", number_prefix="AN-"))
    acme_agrees(billed, legal_entity="another")
    (found,) = wrongly_posted(billed)
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
    assert [one for one in found if one.name.startswith("without account")] == []
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
    found = wrongly_posted(billed)
    assert {one.name for one in found} == {"closings with their certificates"}
    assert {one.place for one in found} == {"gone": {"acme", "beta"}, "one gone": {"acme"}, "changed": {"beta"}}[
        tampered
    ]


def reasons(billed: BilledLake, name: str) -> list[tuple[str, str]]:
    return [(one.place, one.note) for one in wrongly_posted(billed) if one.name == name]


def test_a_price_that_was_changed_since_the_closing_makes_it_unknown(billed: BilledLake) -> None:
    before = take_snapshot(billed.lake, NOW)
    publish(billed, tariff(price("0.90"), price("0.20", zone="square"), price("0.05", meter="event", unit="each")))
    why = "contracts were published since it was closed; `waybill bill close` it again"
    assert reasons(billed, "closing") == [("acme", why), ("beta", why)]
    # by what was known then it was as it should be
    assert reconcile(billed.lake, before, JANUARY, None, now=NOW).outcome is ComparisonOutcome.EQUAL
    billed.close("two", days=JANUARY)
    assert reasons(billed, "closing") == []
    assert {one.place for one in wrongly_posted(billed) if one.name == "newest closing posted"} == {"acme", "beta"}


def test_a_fence_that_usage_does_not_know_yet_makes_it_unknown(billed: BilledLake) -> None:
    publish(billed, square("square", lon=0.005))
    why = "usage was computed with other fences than those of the snapshot, run `cloud-jobs usage`"
    assert [(place, note.partition(";")[0]) for place, note in reasons(billed, "closing")] == [
        ("acme", why),
        ("beta", why),
    ]
    assert compared_with_posted(billed).outcome is ComparisonOutcome.UNKNOWN
    # a newest closing that is provisional says nothing for certain
    billed.close("two", days=JANUARY)
    assert [place for place, note in reasons(billed, "closing") if note.startswith("provisional: ")] == ["acme", "beta"]
    meter(billed)
    billed.close("three", days=JANUARY)
    assert reasons(billed, "closing") == []


PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reconcile.md").read_text(encoding="utf-8")
TWICE = "# an existing record is appended again"


def test_the_tables_of_the_page_are_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    billed = issued_lake(tmp_path / "lake")
    monkeypatch.chdir(tmp_path)
    steps = steps_of(PAGE)
    assert [line[0] for line, _ in steps] == ["$", "#", "$"]
    for line, expected in steps:
        if line.startswith("#"):
            assert line.startswith(TWICE)
            rows = billed.lake.rows("records", where=[("device", "=", "eu-1"), ("seq", "=", 7)])
            billed.lake.append("records", rows.to_pylist())
        else:
            assert_shown(line, expected)
