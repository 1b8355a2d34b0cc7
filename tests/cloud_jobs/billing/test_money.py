"""Rounding, currencies, and quantities to read."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing import Meter
from cloud_jobs.billing.units import EXPONENT_OF, amount_text, exponent, quantity_text, round_ratio


@given(st.decimals(-(10**9), 10**9, places=4, allow_nan=False, allow_infinity=False))
def test_a_half_goes_away_from_zero_as_decimal_has_it(value: Decimal) -> None:
    assert round_ratio(*value.as_integer_ratio()) == int(value.to_integral_value(ROUND_HALF_UP))


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [(0, "EUR", "0.00"), (-5, "EUR", "-0.05"), (1234, "USD", "12.34"), (500, "JPY", "500"), (-1005, "KWD", "-1.005")],
)
def test_an_amount_is_written_with_its_currency_s_digits(amount: int, currency: str, text: str) -> None:
    assert amount_text(amount, currency) == text


@given(st.integers(-(10**12), 10**12), st.sampled_from(sorted(EXPONENT_OF)))
def test_the_text_of_an_amount_is_the_amount(amount: int, currency: str) -> None:
    assert int(Decimal(amount_text(amount, currency)).scaleb(exponent(currency))) == amount


@pytest.mark.parametrize(
    ("meter", "quantity", "text"),
    [
        (Meter.DISTANCE, 12_345_678, "12.345678"),
        (Meter.DISTANCE, -1, "-0.000001"),
        (Meter.DURATION, 1_200_000, "0.333333"),
        (Meter.ENTRY, 7, "7"),
    ],
)
def test_a_quantity_is_read_in_its_unit_of_sale(meter: Meter, quantity: int, text: str) -> None:
    assert quantity_text(meter, quantity) == text
