"""Bills by hand, in a currency with two decimals and in one with none."""

from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.truth import TrueUsage, TruthError
from simulator.truth.money import Customer, TruePrice, bill_of, exponent, half_up

START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
HOUR = datetime(2026, 1, 5, 9, tzinfo=UTC)


def customer(currency: str, *prices: tuple[str, str, str]) -> Customer:
    listed = tuple(TruePrice(meter, zone, Decimal(amount)) for meter, zone, amount in prices)
    return Customer("acme", "Acme Logistics", currency, ("eu-0001",), listed)


def usage(zone: str, distance_mm: int = 0, duration_ms: int = 0, entries: int = 0, hour: datetime = HOUR) -> TrueUsage:
    return TrueUsage("eu-0001", hour, zone, distance_mm, duration_ms, entries)


def test_a_bill_in_euro_by_hand() -> None:
    """2.226389 km at 0.45 = 1.00187505 -> 1.00; 141.667 s at 1.20 an hour = 0.0472... -> 0.05; 1 entry at 2.50."""
    prices = (("distance", "block", "0.4500"), ("duration", "block", "1.20"), ("entry", "block", "2.50"))
    bill = bill_of(customer("EUR", *prices), [usage("block", 2_226_389, 141_667, 1)], START, END)
    assert [(line.meter, line.amount_minor) for line in bill.lines] == [
        ("distance", 100),
        ("duration", 5),
        ("entry", 250),
    ]
    assert bill.total_minor == 355
    assert bill.lines[0].quantity == Decimal("2.226389")


def test_a_bill_in_yen_by_hand() -> None:
    """2.226389 km at 72 = 160.30 -> 160; 141.667 s at 190 an hour = 7.4769 -> 7; 1 entry at 400."""
    prices = (("distance", "block", "72"), ("duration", "block", "190"), ("entry", "block", "400"))
    bill = bill_of(customer("JPY", *prices), [usage("block", 2_226_389, 141_667, 1)], START, END)
    assert [line.amount_minor for line in bill.lines] == [160, 7, 400]
    assert bill.total_minor == 567


@pytest.mark.parametrize(
    ("currency", "price", "distance_mm", "amount_minor"),
    [
        ("EUR", "0.125", 1_000_000, 13),
        ("EUR", "0.124999", 1_000_000, 12),
        ("EUR", "0.45", 11_111, 0),
        ("EUR", "0.45", 11_112, 1),
        ("JPY", "0.5", 1_000_000, 1),
        ("JPY", "72", 6_944, 0),
        ("JPY", "72", 6_945, 1),
        ("TND", "0.0005", 1_000_000, 1),
        ("CLF", "0.00005", 1_000_000, 1),
    ],
)
def test_a_half_is_rounded_up_and_less_is_not(currency: str, price: str, distance_mm: int, amount_minor: int) -> None:
    bill = bill_of(customer(currency, ("distance", "", price)), [usage("", distance_mm)], START, END)
    assert [line.amount_minor for line in bill.lines] == [amount_minor]


def test_a_half_that_no_decimal_can_write_is_still_a_half() -> None:
    """15,000 ms are 1/240 of an hour: at 1.20 an hour exactly half a cent."""
    bill = bill_of(customer("EUR", ("duration", "", "1.20")), [usage("", duration_ms=15_000)], START, END)
    assert bill.total_minor == 1


def test_hours_are_added_before_the_one_rounding() -> None:
    hours = [usage("", 4_000, hour=HOUR.replace(hour=hour)) for hour in (8, 9, 10)]
    bill = bill_of(customer("EUR", ("distance", "", "0.45")), hours, START, END)
    assert [(line.quantity, line.amount_minor) for line in bill.lines] == [(Decimal("0.012"), 1)]


def test_only_the_hours_of_the_period_are_billed() -> None:
    rows = [
        usage("", 1_000_000, hour=datetime(2025, 12, 31, 23, tzinfo=UTC)),
        usage("", 2_000_000, hour=START),
        usage("", 4_000_000, hour=datetime(2026, 1, 31, 23, tzinfo=UTC)),
        usage("", 8_000_000, hour=END),
    ]
    bill = bill_of(customer("EUR", ("distance", "", "1.00")), rows, START, END)
    assert bill.total_minor == 600


def test_what_has_no_price_or_no_quantity_has_no_line() -> None:
    rows = [usage("elsewhere", 5_000), usage("block", 0, 900, 0)]
    bill = bill_of(customer("EUR", ("distance", "block", "1.00"), ("entry", "block", "1.00")), rows, START, END)
    assert bill.lines == ()
    assert bill.total_minor == 0


def test_what_others_drove_is_not_billed() -> None:
    row = TrueUsage("eu-0002", HOUR, "", 5_000_000, 0, 0)
    assert bill_of(customer("EUR", ("distance", "", "1.00")), [row], START, END).lines == ()


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 10**9), st.integers(0, 3_600_000), st.integers(0, 50))
    )
)
def test_the_total_is_the_sum_of_the_lines(rows: list[tuple[str, int, int, int]]) -> None:
    prices = [(meter, zone, "0.37") for meter in ("distance", "duration", "entry") for zone in ("", "a", "b")]
    bill = bill_of(customer("EUR", *prices), [usage(*row) for row in rows], START, END)
    assert bill.total_minor == sum(line.amount_minor for line in bill.lines)
    assert all(line.quantity > 0 for line in bill.lines)
    assert len({(line.device, line.meter, line.zone) for line in bill.lines}) == len(bill.lines)


@given(st.fractions(0, 10**9))
def test_half_up_is_never_further_than_a_half(amount: Fraction) -> None:
    assert -Fraction(1, 2) < half_up(amount) - amount <= Fraction(1, 2)


@pytest.mark.parametrize(("currency", "decimals"), [("EUR", 2), ("JPY", 0), ("KWD", 3), ("CLF", 4), ("USD", 2)])
def test_a_currency_has_its_own_decimals(currency: str, decimals: int) -> None:
    assert exponent(currency) == decimals


def test_what_is_no_currency_code_is_refused() -> None:
    with pytest.raises(TruthError, match="not a valid ISO 4217 code"):
        exponent("euro")
