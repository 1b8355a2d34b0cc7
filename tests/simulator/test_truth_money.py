"""The minor units of currencies, and the one rounding."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.truth.contracts import exponent, half_up


@given(st.fractions(0, 10**9))
def test_half_up_is_never_further_than_a_half(amount: Fraction) -> None:
    assert -Fraction(1, 2) < half_up(amount) - amount <= Fraction(1, 2)


@pytest.mark.parametrize(("currency", "decimals"), [("EUR", 2), ("JPY", 0), ("KWD", 3), ("CLF", 4), ("USD", 2)])
def test_a_currency_has_its_own_decimals(currency: str, decimals: int) -> None:
    assert exponent(currency) == decimals
