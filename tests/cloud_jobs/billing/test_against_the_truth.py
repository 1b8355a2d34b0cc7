"""The bill against the independent truth, which shares no code with it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing import Meter, Tariff, UsageRow, bill
from cloud_jobs.billing.currency import EXPONENT_OF, exponent
from simulator.truth import TrueUsage
from simulator.truth.money import Customer, TruePrice, bill_of
from simulator.truth.money import exponent as true_exponent
from tests.cloud_jobs.billing.strategies import (
    CURRENCIES,
    LONG_AFTER,
    MARCH,
    VEHICLES,
    account,
    tariff_versions,
    usage_rows,
)

one_version = st.sampled_from(CURRENCIES).flatmap(tariff_versions).map(lambda versions: versions[0])


@given(one_version, usage_rows(MARCH.end))
def test_every_line_and_the_total_are_the_truth_s(tariff: Tariff, usage: list[UsageRow]) -> None:
    payer = account(tariff.currency)
    found = bill(payer, [tariff], usage, period=MARCH, as_of=LONG_AFTER, completeness={})
    customer = Customer(
        payer.id,
        payer.name,
        payer.currency,
        tuple(vehicle.device for vehicle in VEHICLES),
        tuple(TruePrice(price.meter.value, price.zone, price.unit_amount) for price in tariff.prices),
    )
    rows = [
        TrueUsage(row.device, row.hour, row.zone, row.distance_mm, row.duration_ms, row.quantity(Meter.ENTRY))
        for row in usage
    ]
    truth = bill_of(customer, rows, MARCH.start, MARCH.end)
    assert found.total_minor == truth.total_minor
    assert {(line.key.device, line.key.meter.value, line.key.zone, line.amount_minor) for line in found.lines} == {
        (line.device, line.meter, line.zone, line.amount_minor) for line in truth.lines
    }


def test_every_currency_has_the_truth_s_number_of_digits() -> None:
    assert {code: exponent(code) for code in EXPONENT_OF} == {code: true_exponent(code) for code in EXPONENT_OF}
