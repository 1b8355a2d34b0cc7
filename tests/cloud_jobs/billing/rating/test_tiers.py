"""What a quantity costs by allowance and tiers."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.billing.contracts import Price
from cloud_jobs.billing.rating.pools import Paid
from cloud_jobs.billing.rating.pools import cost as cost_of
from tests.cloud_jobs.billing.rating.worlds import price, tiers

TO_100 = [{"up_to": "100", "unit_amount": "0.50"}, {"unit_amount": "0.30"}]
units = st.fractions(0, 200, max_denominator=1000)


def cost(agreed: Price, some: Fraction) -> Fraction:
    """Of all units of a pool."""
    return cost_of(agreed, Paid(Fraction(0), some, some))


def tiered(listed: list[dict[str, str]], mode: str = "graduated") -> Price:
    return Price.model_validate(price("distance", tiers=listed, tier_mode=mode))


@given(tiers(), units, units)
def test_more_units_of_graduated_tiers_never_cost_less(
    listed: list[dict[str, str]], some: Fraction, more: Fraction
) -> None:
    agreed = tiered(listed)
    assert cost(agreed, some) <= cost(agreed, some + more)


def test_graduated_prices_each_unit_by_its_own_tier_and_volume_all_by_the_last_one() -> None:
    assert cost(tiered(TO_100), Fraction(150)) == 100 * Fraction(1, 2) + 50 * Fraction(3, 10)
    assert cost(tiered(TO_100, "volume"), Fraction(150)) == 150 * Fraction(3, 10)
    assert cost(tiered(TO_100, "volume"), Fraction(100)) == 50
