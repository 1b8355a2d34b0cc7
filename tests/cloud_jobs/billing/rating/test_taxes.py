"""Groups of taxes are the document; a sum with tax that was shown is the sum to pay, in whatever lines it was shown."""

from collections import Counter
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing.rating import ChargeKind, RatedAccount, cells_of_usage, difference, rate
from cloud_jobs.billing.units import round_ratio
from tests.cloud_jobs.billing.contracts.makers import (
    MARCH,
    account,
    contracts,
    device,
    exchange_rate,
    faults_of,
    legal_entity,
    payer,
    tariff,
)
from tests.cloud_jobs.billing.rating.test_price_book import few
from tests.cloud_jobs.billing.rating.worlds import Row, explained, row, table

NOON = datetime(2026, 3, 20, 12, tzinfo=UTC)
STANDARD = {"category": "S", "rate": "19"}
TAXES: list[dict[str, Any] | None] = [
    None,
    {"category": "S", "rate": "7"},
    {"category": "S", "rate": "8.1"},
    {"category": "E", "exemption_reason": "Exempt by Article 132"},
]
vats, minor = st.sampled_from(TAXES), st.integers(0, 3000)


def text(of_minor: int) -> str:
    return f"{of_minor / 100:.2f}"


def taxed(vat: dict[str, Any] | None) -> dict[str, Any]:
    return {"vat": vat} if vat else {}


@st.composite
def agreements(draw: st.DrawFn, *, gross: bool | None = None) -> dict[str, Any]:
    """A tariff with prices of three places, caps, fees and a minimum, each of some tax."""
    prices = [
        {"meter": "distance", "unit": "km", "unit_amount": text(draw(minor)), "zone": zone} | taxed(draw(vats))
        for zone in ("", "a", "b")
    ]
    prices.append({"meter": "entry", "unit": "each", "unit_amount": text(draw(minor)), "zone": "*"} | taxed(draw(vats)))
    fees = [
        {"id": f"fee-{number}", "name": "Fee", **terms} | taxed(draw(vats))
        for number, terms in enumerate(
            draw(
                st.lists(
                    st.integers(-3000, 3000).map(lambda one: {"amount": text(one)})
                    | st.integers(-100, 200).map(lambda one: {"percent": str(one)})
                    | st.just({"amount": "1.01", "scope": "device"}),
                    max_size=3,
                )
            )
        )
    ]
    caps = draw(
        st.sampled_from(
            [
                [],
                [{"scope": "device", "span": "day", "amount": "20.01"}],
                [{"scope": "account", "span": "cycle", "amount": "33.33"}],
            ]
        )
    )
    least = draw(st.sampled_from([{}, {"minimum_amount": "50.05"}]))
    includes = draw(st.booleans()) if gross is None else gross
    return tariff(*prices, fees=fees, caps=caps, includes_tax=includes, **least)


usages = st.lists(
    st.builds(
        row,
        st.just(NOON),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from(["van-1", "van-2"]),
        distance_mm=st.tuples(*[st.integers(0, 5_000_000)] * 4),
        entries=st.tuples(*[st.integers(0, 2)] * 4),
    ),
    max_size=4,
    unique_by=lambda one: (one["zone"], one["device"]),
)


def owed(agreed: dict[str, Any], used: list[Row], **pays: Any) -> RatedAccount:
    used = [one | {"entries": (0, 0, 0, 0)} if not one["zone"] else one for one in used]
    made = contracts(legal_entity(), agreed, account("acme", device(), device("van-2"), payer=payer(**pays)))
    contract = made.contract_of("acme", MARCH)
    usage = table(used)
    usage = usage.append_column("seq_ranges", pa.array(["{}"] * usage.num_rows, pa.string()))
    [cells] = cells_of_usage([contract], usage)
    found = rate(contract, *cells)
    for one in found.charges:
        if one.key.kind is ChargeKind.FEE:
            assert explained(contract, usage, one).agrees
        elif one.key.kind is ChargeKind.USAGE:
            assert explained(contract, usage, one).amount_agrees
    return found


def by_tax(found: RatedAccount) -> Counter[str]:
    sums = Counter[str]()
    for one in found.charges:
        sums[one.key.tax] += one.amount_minor
    return sums


@few
@given(agreements(), usages)
def test_each_group_is_the_sum_of_its_lines_taxed_once_and_never_negative(
    agreed: dict[str, Any], used: list[Row]
) -> None:
    found = owed(agreed, used)
    assert {group.tax: group.taxable_minor for group in found.taxes} == (dict(by_tax(found)) or {"S 19": 0})
    for group in found.taxes:
        assert group.taxable_minor >= 0
        assert group.tax_minor == round_ratio(*(group.taxable_minor * Fraction(group.rate) / 100).as_integer_ratio())
    assert owed(agreed, used[::-1]) == found


@few
@given(agreements(gross=True), usages)
def test_what_was_shown_with_tax_is_what_is_paid(agreed: dict[str, Any], used: list[Row]) -> None:
    shown = owed(agreed | {"includes_tax": False}, used)
    found = owed(agreed, used)
    # the same amounts, of which the lines leave out the tax
    assert found.payable_minor == shown.net_minor
    assert abs(found.rounding_minor) <= len(found.taxes)
    assert [one.quantity for one in found.charges] == [one.quantity for one in shown.charges]
    for with_tax, without in zip(shown.charges, found.charges, strict=True):
        percent = Fraction(with_tax.key.tax.split()[1])
        assert abs(without.amount_minor - with_tax.amount_minor / (1 + percent / 100)) < 1


@few
@given(agreements(gross=True), usages, st.integers(0, 3), st.integers(1, 500))
def test_a_higher_price_with_tax_never_lowers_what_is_paid(
    agreed: dict[str, Any], used: list[Row], number: int, more: int
) -> None:
    # a percentage below 0 of a higher price is a higher credit
    agreed = agreed | {"fees": []}
    prices = [dict(one) for one in agreed["prices"]]
    prices[number]["unit_amount"] = f"{float(prices[number]['unit_amount']) + more / 100:.2f}"
    assert owed(agreed | {"prices": prices}, used).payable_minor >= owed(agreed, used).payable_minor


@few
@given(agreements(), usages, agreements(), usages, st.sampled_from([None, "0.05", "1"]))
def test_invoice_and_note_are_the_right_sum_in_each_group_also_in_cash(
    agreed: dict[str, Any], used: list[Row], corrected: dict[str, Any], now: list[Row], unit: str | None
) -> None:
    pays = {"cash_rounding": unit} if unit else {}
    invoice, right = owed(agreed, used, **pays), owed(corrected, now, **pays)
    note = difference(invoice, right)
    for attribute in ("taxable_minor", "tax_minor"):
        sums = Counter[str]()
        for document in (invoice, note):
            for group in document.taxes:
                sums[group.tax] += getattr(group, attribute)
        assert +sums == +Counter({group.tax: getattr(group, attribute) for group in right.taxes})
    assert {one.key.tax for one in note.charges} <= {group.tax for group in note.taxes}
    assert invoice.payable_minor + note.payable_minor == right.payable_minor
    if unit:
        assert all(one.payable_minor % round(float(unit) * 100) == 0 for one in (invoice, note))


def test_taxes_that_contradict_are_faults_and_doubts_are_said() -> None:
    gross = tariff(includes_tax=True, effective_from="2026-03-10T00:00:00Z")
    made = contracts(legal_entity(), tariff(), gross, account("acme", device()))
    [fault] = faults_of(made)
    assert "change includes_tax at the start of a period" in str(fault)
    reverse = tariff({"meter": "distance", "unit": "km", "unit_amount": "1"} | taxed(REVERSE))
    [fault] = faults_of(contracts(legal_entity(), reverse, account("acme", device())))
    assert "needs a vat_id (EN 16931, BR-AE-02)" in str(fault)
    swiss = legal_entity(tax_currency="CHF")
    [fault] = faults_of(contracts(swiss, tariff(), account("acme", device())))
    assert "no exchange rate 'eur-chf' is in force at the end of 2026-03-31; publish one" in str(fault)
    rated = exchange_rate("0.95", id="eur-chf", currency="EUR", into="CHF")
    contract = contracts(swiss, tariff(), rated, account("acme", device())).contract_of("acme", MARCH)
    assert str(contract.tax_rate) == "0.95"


REVERSE = {"category": "AE", "exemption_reason": "Reverse charge"}
