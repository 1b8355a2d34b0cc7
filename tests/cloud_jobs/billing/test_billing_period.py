"""Periods of whole local days: they tile time in every zone, whatever its clocks do at midnight."""

from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cloud_jobs.billing import BadPeriod, Meter
from cloud_jobs.billing.billing_period import BillingPeriod, day_start, time_zones
from cloud_jobs.billing.units import EXPONENT_OF, amount_text, exponent, quantity_text, round_ratio
from geo.reference.moments import QUARTER
from simulator.truth.contracts import exponent as true_exponent

ZONES = st.sampled_from(sorted(time_zones()))
DAYS = st.dates(date(1970, 1, 3), date(2100, 12, 31))
DAY = timedelta(days=1)
ODD_NIGHTS = [
    ("Pacific/Apia", date(2011, 12, 30)),
    ("Pacific/Kwajalein", date(1993, 8, 21)),
    ("America/Sao_Paulo", date(2018, 11, 4)),
    ("America/St_Johns", date(2006, 10, 29)),
    ("Asia/Beirut", date(2026, 3, 29)),
    ("Africa/Cairo", date(2026, 4, 24)),
    ("America/Havana", date(2026, 11, 1)),
    ("Asia/Kathmandu", date(1986, 1, 1)),
    ("Europe/Berlin", date(2026, 10, 25)),
    ("Australia/Lord_Howe", date(2026, 4, 5)),
]


def clock(zone: str, moment: datetime) -> date:
    return moment.astimezone(ZoneInfo(zone)).date()


def check_first_moment(zone: str, day: date) -> None:
    """By looking at the clock of the zone on each quarter of an hour of four days."""
    start = day_start(zone, day)
    about = datetime(day.year, day.month, day.day, tzinfo=UTC) - 2 * DAY
    showing = [about + QUARTER * number for number in range(4 * 96) if clock(zone, about + QUARTER * number) >= day]
    assert start <= showing[0] < start + QUARTER
    assert clock(zone, start) >= day > clock(zone, start - timedelta(seconds=1))


@given(ZONES, DAYS)
def test_a_day_begins_when_the_clocks_of_its_zone_first_show_it_or_a_later_one(zone: str, day: date) -> None:
    check_first_moment(zone, day)


@pytest.mark.parametrize(("zone", "day"), ODD_NIGHTS)
@pytest.mark.parametrize("after", [-1, 0, 1])
def test_so_it_does_about_nights_in_which_midnight_is_skipped_or_comes_twice(zone: str, day: date, after: int) -> None:
    check_first_moment(zone, day + after * DAY)


def test_midnight_of_known_nights() -> None:
    assert day_start("Europe/Berlin", date(2026, 3, 1)) == datetime(2026, 2, 28, 23, tzinfo=UTC)
    assert day_start("Asia/Kolkata", date(2026, 3, 1)) == datetime(2026, 2, 28, 18, 30, tzinfo=UTC)
    assert day_start("Asia/Kathmandu", date(2026, 3, 1)) == datetime(2026, 2, 28, 18, 15, tzinfo=UTC)
    # the clocks go from 00:00 to 01:00
    assert day_start("America/Sao_Paulo", date(2018, 11, 4)) == datetime(2018, 11, 4, 3, tzinfo=UTC)
    # they go from 00:01 back to 23:01: midnight is at 02:30 UTC and at 03:30 UTC
    assert day_start("America/St_Johns", date(2006, 10, 29)) == datetime(2006, 10, 29, 2, 30, tzinfo=UTC)


def test_a_day_that_the_zone_skipped_is_no_period_and_takes_nothing_of_its_month() -> None:
    with pytest.raises(BadPeriod, match="had no day 2011-12-30"):
        BillingPeriod.parse("2011-12-30", "Pacific/Apia")
    december = BillingPeriod.parse("2011-12", "Pacific/Apia")
    assert december.end - december.start == 30 * DAY


@st.composite
def periods(draw: st.DrawFn) -> BillingPeriod:
    first, length = draw(DAYS), draw(st.integers(0, 400))
    try:
        return BillingPeriod(draw(ZONES), first, first + length * DAY)
    except BadPeriod:
        assume(False)
        raise


@given(periods())
def test_the_text_of_a_period_is_read_as_the_same_period(period: BillingPeriod) -> None:
    assert BillingPeriod.parse(str(period), period.time_zone) == period


@given(ZONES, DAYS, st.integers(0, 40), st.integers(0, 40))
def test_periods_that_follow_each_other_tile_time(zone: str, day: date, length: int, more: int) -> None:
    middle = day + length * DAY
    try:
        one = BillingPeriod(zone, day, middle)
        other = BillingPeriod(zone, middle + DAY, middle + (more + 1) * DAY)
        both = BillingPeriod(zone, day, middle + (more + 1) * DAY)
    except BadPeriod:
        assume(False)
        raise
    assert (both.start, one.end, other.end) == (one.start, other.start, both.end)
    assert one.start in one
    assert one.end not in one
    assert one.end in other


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-1",
        "2026-13",
        "2026-02-30",
        "0000",
        "1969",
        "3000",
        "../..",
        "2026-03-05/",
        "/",
        "2026-03-05T06:00Z",
        "2026-03-05/2026-03-01",
        "2026-04/2026-03",
        "2026/2027/2028",
        "٢٠٢٦",
        "2026-03\n-01",
        "9" * 5000,
    ],
)
def test_a_text_that_names_no_days_is_refused(text: str) -> None:
    with pytest.raises(BadPeriod):
        BillingPeriod.parse(text, "Europe/Berlin")


@pytest.mark.parametrize("zone", ["", "localtime", "Factory", "posixrules", "../etc/passwd", "/etc/localtime", "CET\0"])
def test_a_zone_that_is_none_or_another_one_on_each_machine_is_refused(zone: str) -> None:
    with pytest.raises(BadPeriod, match="no time zone"):
        BillingPeriod.parse("2026", zone)


def test_a_midnight_that_is_on_no_quarter_of_an_hour_is_refused() -> None:
    # its clocks were 44 minutes and 30 seconds behind UTC until 1972
    with pytest.raises(BadPeriod, match="not on a quarter"):
        BillingPeriod.parse("1971-03", "Africa/Monrovia")


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


def test_every_currency_has_the_truth_s_number_of_digits() -> None:
    assert {code: exponent(code) for code in EXPONENT_OF} == {code: true_exponent(code) for code in EXPONENT_OF}
