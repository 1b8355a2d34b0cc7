"""Currencies against the independent truth, which shares no code with billing."""

from __future__ import annotations

from cloud_jobs.billing.units import EXPONENT_OF, exponent
from simulator.truth.contracts import exponent as true_exponent


def test_every_currency_has_the_truth_s_number_of_digits() -> None:
    assert {code: exponent(code) for code in EXPONENT_OF} == {code: true_exponent(code) for code in EXPONENT_OF}
