"""From rows of usage to cells: local days, windows, versions, accounts, and which rows count."""

import hashlib
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.billing.rating import MeteredKey, PayerUsage, cells_of_usage
from simulator.truth import TrueDays
from tests.cloud_jobs.billing.rating.worlds import Row, World, assigned, price, row, table, tariff

CAP = {"scope": "device", "span": "day", "amount": "1000000"}
NIGHT = {"id": "night", "days": ["sat", "sun"], "hours": ["22:00-04:00"]}
CALLS = price("distance"), price("active day", "2")


def used(world: World, *rows: Row) -> PayerUsage:
    (found,) = cells_of_usage([world.contract], table(rows))
    return found


def quantities(found: PayerUsage, meter: str = "distance") -> dict[tuple[Any, ...], int]:
    return {(cell.day, cell.window, cell.version): cell.quantity for cell in found.cells if cell.meter == meter}


def utc(*of: int) -> datetime:
    return datetime(*of, tzinfo=UTC)  # type: ignore[misc,arg-type]


def world(zone: str, first: date, last: date, *more: dict[str, Any], **of_tariff: Any) -> World:
    return World(days=TrueDays(zone, first, last), tariffs=(tariff(*CALLS, **of_tariff), *more))


@pytest.mark.parametrize(
    ("day", "hours", "at_night"), [(date(2026, 3, 29), 23, 3 + 2), (date(2026, 10, 25), 25, 5 + 2)]
)
def test_the_days_on_which_clocks_change_have_23_and_25_hours_and_windows_follow_the_clock(
    day: date, hours: int, at_night: int
) -> None:
    """From 00:00 to 04:00 are 3 or 5 hours in Berlin; a window that began on Saturday lasts until Sunday 04:00."""
    berlin = world("Europe/Berlin", day, day, windows=[NIGHT], caps=[CAP])
    noon = utc(day.year, day.month, day.day, 12)
    rows = [row(noon + timedelta(hours=number), distance_mm=(1, 1, 1, 1)) for number in range(-30, 30)]
    assert quantities(used(berlin, *rows)) == {(day, "night", 0): 4 * at_night, (day, "", 0): 4 * (hours - at_night)}


def test_an_active_day_counts_once_whatever_its_windows_and_is_the_local_one() -> None:
    berlin = world("Europe/Berlin", date(2026, 3, 7), date(2026, 3, 8), windows=[NIGHT], caps=[CAP])
    one = (16, 0, 0, 0)
    rows = [row(utc(2026, 3, 7, hour), "*", content_bytes=one) for hour in (9, 20, 22, 23)]
    found = used(berlin, *rows)
    assert quantities(found, "active day") == {(date(2026, 3, 7), "", 0): 1, (date(2026, 3, 8), "", 0): 1}
    assert sum(quantities(found, "transmitted").values()) == 64
    # a fix outside all zones is metered in its own row; it makes no day active without a record in the whole's
    assert quantities(used(berlin, row(utc(2026, 3, 7, 9), distance_mm=one)), "active day") == {}


def test_the_metered_rows_are_counted_and_digested_in_the_order_of_the_hours() -> None:
    day = world("UTC", date(2026, 3, 2), date(2026, 3, 2))
    rows = [row(utc(2026, 3, 2, hour), zone, distance_mm=(hour, 0, 0, 0)) for hour in (9, 8, 20) for zone in ("a", "")]
    mine = sorted((one for one in rows if one["zone"] == "a"), key=lambda one: one["hour"])
    metered = used(day, *rows, row(utc(2026, 3, 4, 1), "a", distance_mm=(1, 1, 1, 1))).metered
    assert metered[MeteredKey("acme", "fleet", "van", "a")] == (
        3,
        utc(2026, 3, 2, 8),
        utc(2026, 3, 2, 20),
        hashlib.sha256("".join(one["digest"] for one in mine).encode()).hexdigest(),
    )


def test_two_rows_of_one_commit_that_differ_are_an_error() -> None:
    day = world("UTC", date(2026, 3, 2), date(2026, 3, 2))
    rows = [row(utc(2026, 3, 2, 9), "a", distance_mm=(km, 0, 0, 0)) for km in (1, 2)]
    with pytest.raises(BillingError, match="fleet/van at 2026-03-02T09:00:00"):
        used(day, *rows)
    # of a device that nobody asked about it is nobody's matter
    other = [one | {"device": "stranger"} for one in rows]
    assert used(day, *other) == PayerUsage([], {})


def test_a_device_in_two_accounts_at_one_moment_is_an_error_that_names_both() -> None:
    twice = replace(
        world("UTC", date(2026, 3, 2), date(2026, 3, 2)),
        devices=(assigned(end=utc(2026, 3, 2, 9)),),
        child_devices=(assigned(begin=utc(2026, 3, 2, 8)),),
    )
    with pytest.raises(BillingError, match="to acme and to acme-west at 2026-03-02T08:00"):
        used(twice)
    # before the period and after it the accounts of other bills may disagree
    early = replace(
        twice, child_devices=(assigned(begin=utc(2026, 3, 2, 9)),), devices=(assigned(end=utc(2026, 3, 2, 9)),)
    )
    assert used(early).cells == []


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("distance_mm", [1, 2, 3], "four quarters"),
        ("distance_mm", [1, 2, 3, -4], "negative"),
        ("duration_ms", [1 << 62, 0, 0, 0], "larger"),
        ("digest", "short", "16 characters"),
    ],
)
def test_rows_that_are_not_what_the_schema_says_are_refused(column: str, value: object, problem: str) -> None:
    day = world("UTC", date(2026, 3, 2), date(2026, 3, 2))
    with pytest.raises(BillingError, match=problem):
        used(day, row(utc(2026, 3, 2, 9), distance_mm=(1, 1, 1, 1)) | {column: value})
