"""What is owed for a canary is known without any tariff: whatever else is rated is wrong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.canary.reference import CURRENCY, bill_fault, expected_minor

ENTRIES = st.integers(0, 10**6)


@given(ENTRIES)
def test_the_expected_amount_is_right(entries: int) -> None:
    assert bill_fault(entries, expected_minor(entries), 0, CURRENCY) == ""


@given(ENTRIES, st.integers(-(10**9), 10**9), st.integers(-(10**6), 10**6))
def test_any_other_amount_is_wrong_be_it_a_cent(entries: int, net_minor: int, tax_minor: int) -> None:
    is_right = net_minor == expected_minor(entries) and tax_minor == 0
    assert (bill_fault(entries, net_minor, tax_minor, CURRENCY) == "") == is_right


def test_the_fault_says_both_amounts() -> None:
    assert bill_fault(12, 120, 0, CURRENCY) == "12 entries cost 1.20 EUR, not 12.00 EUR"
    assert bill_fault(1, 100, 19, CURRENCY) == "a tax of 0.19 EUR is owed on it"
    assert bill_fault(1, 100, 0, "USD") == "it is owed in USD, not in EUR"
