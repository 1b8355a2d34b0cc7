"""Bills by example."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from cloud_jobs.billing import (
    Account,
    BadReference,
    Bill,
    BilledVehicle,
    BillingError,
    BillStatus,
    Certificate,
    Completeness,
    ContradictoryUsage,
    Direction,
    Meter,
    NoTariffInForce,
    NotTheSameBill,
    Period,
    SeqRanges,
    Tariff,
    UnknownCurrency,
    UnknownLine,
    UsageRow,
    adjustment,
    bill,
    bill_document,
    parse,
    read_bill,
    to_html,
    to_json,
)
from cloud_jobs.lake.coverage import TenantDevice
from telemetry import IntervalSet
from tests.cloud_jobs.billing.strategies import LONG_AFTER, MARCH, VEHICLES, account, prices

JANUARY = datetime(2026, 1, 1, tzinfo=UTC)
APRIL = datetime(2026, 4, 1, tzinfo=UTC)
PRICES = {(Meter.DISTANCE, ""): "0.4500", (Meter.DISTANCE, "eu-centre"): "0.9", (Meter.ENTRY, "eu-centre"): "2.50"}


def tariff(effective_from: datetime = JANUARY, currency: str = "EUR", **changes: str) -> Tariff:
    amounts = {**PRICES, **({(Meter.DISTANCE, ""): changes["outside"]} if changes else {})}
    return Tariff(id="standard", currency=currency, effective_from=effective_from, prices=prices(amounts))


def row(
    day: int = 5,
    hour: int = 0,
    *,
    tenant: str = "fleet",
    device: str = "eu-0001",
    zone: str = "",
    km: float = 0,
    **more: object,
) -> UsageRow:
    facts: dict[str, object] = {"computed_at": APRIL, "seq_ranges": SeqRanges.of({7: IntervalSet([(day, day + 1)])})}
    return UsageRow(
        tenant=tenant,
        device=device,
        hour=MARCH.start + timedelta(days=day - 1, hours=hour),
        zone=zone,
        distance_mm=round(km * 1_000_000),
        **{**facts, **more},  # type: ignore[arg-type]
    )


def made(
    usage: list[UsageRow],
    *tariffs: Tariff,
    as_of: datetime = LONG_AFTER,
    states: dict[str, Completeness] | None = None,
) -> Bill:
    certificates = {
        TenantDevice("fleet", device): Certificate(tenant="fleet", device=device, state=state)
        for device, state in (states or {}).items()
    }
    return bill(account(), tariffs or [tariff()], usage, period=MARCH, as_of=as_of, completeness=certificates)


def test_a_line_sums_the_hours_of_a_device_in_a_zone_and_keeps_their_records() -> None:
    found = made([row(5, km=10), row(6, km=2.5), row(5, zone="eu-centre", km=1, entries=2)])
    assert [(line.key.meter, line.key.zone, line.quantity, line.amount_minor) for line in found.lines] == [
        (Meter.DISTANCE, "", 12_500_000, 563),
        (Meter.DISTANCE, "eu-centre", 1_000_000, 90),
        (Meter.ENTRY, "eu-centre", 2, 500),
    ]
    assert found.lines[0].seq_ranges == SeqRanges.of({7: IntervalSet([(5, 7)])})
    assert found.total_minor == 1153


def test_the_price_in_force_at_the_service_hour_is_charged_with_one_line_for_each_price() -> None:
    noon = MARCH.start + timedelta(days=14, hours=12)
    found = made([row(15, 11, km=1), row(15, 12, km=1)], tariff(), tariff(noon, outside="0.60"))
    assert [(line.key.price_since, line.amount_minor) for line in found.lines] == [(JANUARY, 45), (noon, 60)]


def test_a_new_version_that_keeps_the_price_does_not_split_the_line() -> None:
    found = made([row(14, km=1), row(16, km=1)], tariff(), tariff(datetime(2026, 3, 15, tzinfo=UTC)))
    assert [(line.key.price_since, line.amount_minor) for line in found.lines] == [(JANUARY, 90)]


def test_usage_before_any_tariff_is_refused_and_never_free() -> None:
    with pytest.raises(NoTariffInForce, match="no version in force at 2026-03-05"):
        made([row(5, km=1)], tariff(datetime(2026, 3, 6, tzinfo=UTC)))


def test_what_the_tariff_has_no_price_for_has_no_line() -> None:
    assert made([row(5, duration_ms=3_600_000)]).lines == ()


def test_devices_of_two_tenants_with_one_id_are_billed_each_for_itself() -> None:
    both = [BilledVehicle(tenant=tenant, device="van", region="eu") for tenant in ("north", "south")]
    payer = account().model_copy(update={"vehicles": tuple(both)})
    usage = [row(5, tenant=tenant, device="van", km=km) for tenant, km in (("north", 10), ("south", 1), ("west", 100))]
    known = {TenantDevice("north", "van"): Certificate(tenant="north", device="van", state=Completeness.COMPLETE)}
    found = bill(payer, [tariff()], usage, period=MARCH, as_of=LONG_AFTER, completeness=known)
    assert [(line.key.tenant, line.quantity) for line in found.lines] == [("north", 10_000_000), ("south", 1_000_000)]
    assert [(one.tenant, one.state) for one in found.certificates] == [
        ("north", Completeness.COMPLETE),
        ("south", Completeness.OPEN),
    ]
    assert read_bill(to_json(bill_document(found))) == found


def test_a_bill_is_final_when_the_period_is_over_and_every_device_is_accounted_for() -> None:
    complete = {
        "eu-0001": Completeness.COMPLETE,
        "eu-0002": Completeness.DECLARED_LOSS,
        "us-0001": Completeness.COMPLETE,
    }
    assert made([], states=complete).status is BillStatus.FINAL
    assert made([], states=complete, as_of=MARCH.end - timedelta(seconds=1)).status is BillStatus.PROVISIONAL
    assert made([], states={**complete, "us-0001": Completeness.OPEN}).status is BillStatus.PROVISIONAL


def test_a_device_that_nothing_was_heard_of_keeps_the_bill_provisional() -> None:
    found = made([], states={"eu-0001": Completeness.COMPLETE, "eu-0002": Completeness.COMPLETE})
    assert found.status is BillStatus.PROVISIONAL
    assert [(c.device, c.state) for c in found.certificates if c.state is Completeness.OPEN] == [
        ("us-0001", Completeness.OPEN)
    ]


def test_late_records_are_posted_as_a_debit_and_wrong_ones_as_a_credit_in_the_old_service_period() -> None:
    may = datetime(2026, 5, 1, tzinfo=UTC)
    usage = [
        row(5, km=10),
        row(5, km=12, computed_at=may, commit_number=2, seq_ranges=SeqRanges.of({7: IntervalSet([(5, 9)])})),
        row(6, zone="eu-centre", entries=1),
        row(6, zone="eu-centre", computed_at=may, commit_number=2),
    ]
    change = adjustment(made(usage, as_of=APRIL), made(usage, as_of=may))
    assert [(line.direction, line.quantity, line.amount_minor) for line in change.lines] == [
        (Direction.DEBIT, 2_000_000, 90),
        (Direction.CREDIT, -1, -250),
    ]
    assert change.lines[0].added == SeqRanges.of({7: IntervalSet([(7, 9)])})
    assert change.lines[0].service_period == MARCH
    assert change.total_minor == -160


def test_bills_of_two_accounts_have_no_difference() -> None:
    other = Account(id="other", name="Other", currency="EUR", tariff="standard", vehicles=VEHICLES)
    with pytest.raises(NotTheSameBill, match="account of the issued bill is acme"):
        adjustment(made([]), bill(other, [tariff()], [], period=MARCH, as_of=LONG_AFTER, completeness={}))


def test_the_row_that_was_committed_last_counts_whatever_the_clock_said() -> None:
    late = [row(5, km=1, commit_number=2), row(5, km=7, computed_at=APRIL + timedelta(hours=1), commit_number=1)]
    assert [line.quantity for line in made(late).lines] == [1_000_000]
    assert made(late).lines == made(late[::-1]).lines


def test_two_results_of_one_computation_are_refused() -> None:
    with pytest.raises(ContradictoryUsage, match="eu-0001"):
        made([row(5, km=1), row(5, km=2)])


def test_a_tariff_in_another_currency_is_refused() -> None:
    with pytest.raises(BadReference, match="pays in EUR, its tariff 'standard' is in USD"):
        made([], tariff(currency="USD"))


def test_two_versions_effective_at_one_moment_are_refused() -> None:
    with pytest.raises(BadReference, match="two different versions"):
        made([], tariff(), tariff(outside="1"))


def test_a_line_that_is_not_there_says_which_are() -> None:
    with pytest.raises(UnknownLine, match="numbered 1 to 1"):
        made([row(5, km=1)]).line(2)


def test_the_published_forms_are_read() -> None:
    payer = parse(
        Account,
        '{"id": "acme", "name": "Acme Logistics", "currency": "EUR", "tariff": "standard-eur",'
        ' "vehicles": [{"tenant": "t", "device": "eu-0001", "region": "eu"}]}',
    )
    priced = parse(
        Tariff,
        '{"id": "standard-eur", "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z", "prices": ['
        '{"meter": "distance", "zone": "eu-centre", "unit": "km", "unit_amount": "0.4500"},'
        '{"meter": "entry", "zone": "", "unit": "each", "unit_amount": "2.50"},'
        '{"meter": "duration", "zone": "", "unit": "h", "unit_amount": "1.20"}]}',
    )
    assert payer.vehicles[0].region == "eu"
    assert str(priced.prices[0].unit_amount) == "0.4500"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"id": "t", "currency": "EUR", "effective_from": "2026-01-01T00:00:00", "prices": []}', "effective_from"),
        ('{"id": "t", "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z", "price": []}', "prices"),
        ("no json", "the whole"),
    ],
)
def test_reference_data_that_is_wrong_says_where(body: str, says: str) -> None:
    with pytest.raises(BadReference, match=says):
        parse(Tariff, body)


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ([("distance", "mile", "1")], "sold by 'km'"),
        ([("distance", "km", "1"), ("distance", "km", "2")], "two prices for distance"),
        ([("distance", "km", "-1")], "greater than or equal to 0"),
        ([("distance", "km", "NaN")], "finite"),
    ],
)
def test_prices_that_mean_nothing_are_refused(listed: list[tuple[str, str, str]], says: str) -> None:
    quoted = [{"meter": meter, "zone": "", "unit": unit, "unit_amount": amount} for meter, unit, amount in listed]
    body = {"id": "t", "currency": "EUR", "effective_from": "2026-01-01T00:00:00Z", "prices": quoted}
    with pytest.raises(BadReference, match=says):
        parse(Tariff, json.dumps(body))


def test_a_currency_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownCurrency, match="EURO"):
        parse(Tariff, '{"id": "t", "currency": "EURO", "effective_from": "2026-01-01T00:00:00Z", "prices": []}')


def test_an_issued_bill_that_somebody_changed_is_not_read() -> None:
    document = bill_document(made([row(5, km=10)]))
    document["lines"][0]["invoice_line_net_amount"]["minor"] += 1
    with pytest.raises(BillingError, match="does not have the content"):
        read_bill(to_json(document))
    with pytest.raises(BillingError, match="this is not a valid bill"):
        read_bill(b"[]")


def test_a_bill_of_another_format_is_said_to_be_one() -> None:
    document = bill_document(made([row(5, km=10)]))
    assert document["format"] == 6
    with pytest.raises(BillingError, match=r"bill acme\S* is of format 4; this version reads 6"):
        read_bill(to_json(document | {"format": 4}))
    # the first format had no number, and other keys
    without_number = {key: value for key, value in document.items() if key not in {"format", "lines"}}
    with pytest.raises(BillingError, match=r"bill acme\S* is of format 1; this version reads 6"):
        read_bill(to_json(without_number))


def test_the_invoice_escapes_names_and_says_that_it_is_provisional() -> None:
    payer = account().model_copy(update={"name": "<script>alert(1)</script>"})
    page = to_html(
        bill_document(bill(payer, [tariff()], [row(5, km=10)], period=MARCH, as_of=LONG_AFTER, completeness={}))
    )
    assert "<script>" not in page
    assert "Provisional." in page
    assert "4.50" in page
    assert "2026-03-01 to 2026-03-31" in page


def test_negative_usage_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="negative"):
        row(5, km=-1)


def test_a_period_is_what_a_person_writes() -> None:
    assert str(Period.parse("2026")) == "2026-01-01T00:00:00Z/2027-01-01T00:00:00Z"
    assert str(Period.parse("2026-12")) == "2026-12-01T00:00:00Z/2027-01-01T00:00:00Z"
    assert str(Period.parse("2026-03-31")) == "2026-03-31T00:00:00Z/2026-04-01T00:00:00Z"
    assert str(Period.parse("2026-03-05T06Z/2026-03-05T09:00")) == "2026-03-05T06:00:00Z/2026-03-05T09:00:00Z"


@pytest.mark.parametrize("text", ["", "March", "2026-13", "26-03", "2026-03-05T06:30Z/2026-03-06", "2026-04/2026-03"])
def test_a_period_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BillingError, match=r"use 2026|not a whole hour"):
        Period.parse(text)
