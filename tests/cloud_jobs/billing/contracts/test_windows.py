"""Windows and calendars: when a window holds, which windows overlap, and which calendar a contract has."""

from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud_jobs.billing.contracts import Calendar, Window
from cloud_jobs.billing.contracts.errors import CalendarEnds
from cloud_jobs.billing.contracts.windows import WEEKDAYS, overlaps_of
from cloud_jobs.billing.rating import cells_of_usage, rate
from cloud_jobs.billing.rating.cells_of_usage import LocalTimes, window_mask
from tests.cloud_jobs.billing.contracts.makers import (
    APRIL,
    BERLIN,
    account,
    calendar,
    contracts,
    device,
    faults_of,
    legal_entity,
    price,
    tariff,
    window,
)
from tests.cloud_jobs.billing.rating.worlds import row, table
from tests.examples import examples

FIRST = date(2026, 3, 30)
"""A Monday."""
minutes = st.integers(0, 1439)


@st.composite
def windows(draw: st.DrawFn, name: str) -> Window:
    hours = [f"{begin // 60:02}:{begin % 60:02}-{end // 60:02}:{end % 60:02}" for begin, end in [draw(spans())]]
    made = {
        "id": name,
        "days": sorted(draw(st.sets(st.sampled_from(WEEKDAYS), min_size=1)), key=WEEKDAYS.index),
        "hours": hours,
        "season": draw(st.sampled_from([None, "low", "peak"])),
        "holidays": draw(st.sampled_from([None, "without", "only"])),
    }
    return Window.model_validate(made)


def spans() -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(minutes, minutes)


days = st.integers(0, 13).map(lambda number: FIRST + timedelta(days=number))


@st.composite
def calendars(draw: st.DrawFn) -> Calendar:
    split = draw(days)
    seasons = {
        "low": [{"begin": FIRST - timedelta(days=9), "end": split}],
        "peak": [{"begin": split, "end": FIRST + timedelta(days=30)}],
    }
    return Calendar.model_validate(calendar(holidays=sorted(draw(st.sets(days))), seasons=seasons))


def holds(window: Window, of: Calendar, moment: datetime) -> bool:
    """As a person reads a window: on which day does it begin, and is the moment before its end?"""
    begin, end = (datetime.strptime(one, "%H:%M").time() for one in window.hours[0].split("-"))
    for day in (moment.date(), moment.date() - timedelta(days=1)):
        since = datetime.combine(day, begin)
        until = datetime.combine(day + timedelta(days=end <= begin), end)
        in_season = window.season is None or any(one.begin <= day < one.end for one in of.seasons[window.season])
        fits = window.holidays is None or (window.holidays == "only") == (day in of.holidays)
        if day.strftime("%a").lower() in window.days and in_season and fits and since <= moment < until:
            return True
    return False


@settings(max_examples=examples(60), deadline=None)
@given(windows("one"), calendars(), st.lists(st.tuples(days, minutes), min_size=1, max_size=20))
def test_a_window_holds_when_a_person_says_so(one: Window, of: Calendar, at: list[tuple[date, int]]) -> None:
    moments = [datetime.combine(day, datetime.min.time()) + timedelta(minutes=minute) for day, minute in at]
    expected = [holds(one, of, moment) for moment in moments]
    local = LocalTimes(np.array([day.toordinal() for day, _ in at]), np.array([minute for _, minute in at]))
    assert window_mask(one, of, local).tolist() == expected
    assert [one.holds(moment, of) for moment in moments] == expected


@settings(max_examples=examples(60), deadline=None)
@given(windows("one"), windows("other"), calendars(), days, minutes)
def test_windows_without_a_fault_never_hold_at_once(
    one: Window, other: Window, of: Calendar, day: date, minute: int
) -> None:
    moment = datetime.combine(day, datetime.min.time()) + timedelta(minutes=minute)
    if holds(one, of, moment) and holds(other, of, moment):
        assert [*overlaps_of([one, other])]


def made(**more: Any) -> Window:
    return Window.model_validate(window(**more))


def test_windows_of_other_seasons_overlap_only_where_one_of_the_day_before_lasts() -> None:
    night, day = made(season="low"), made(id="day", hours="21:00-23:00", season="peak")
    assert [*overlaps_of([night, day])] == []
    assert [*overlaps_of([night, made(id="day", hours="21:00-23:00")])] == [
        "windows 'night' and 'day' overlap on mon 22:00"
    ]
    assert [*overlaps_of([made(holidays="only"), made(id="day", hours="05:00-22:00", holidays="without")])]


def test_a_day_has_one_season() -> None:
    seasons = {"low": [{"begin": "2026-03-01", "end": "2026-04-02"}]}
    seasons["peak"] = [{"begin": "2026-04-01", "end": "2026-07-01"}]
    with pytest.raises(ValueError, match="2026-04-01 is in season 'low' and in season 'peak'"):
        Calendar.model_validate(calendar(seasons=seasons))


SEASONAL = tariff(
    price("1"),
    price("0", window="free"),
    calendar="sweden",
    windows=[{"id": "free", "hours": ["00:00-00:00"], "holidays": "only"}],
)
WORLD = (legal_entity(), SEASONAL, account("acme", device("van")))


def owed(*of: dict[str, Any]) -> int:
    """One kilometre in each hour of April in Berlin."""
    contract = contracts(*WORLD, *of).contract_of("acme", APRIL)
    hours = (APRIL.end - APRIL.start) // timedelta(hours=1)
    usage = [row(APRIL.start + timedelta(hours=at), device="van", distance_mm=(10**6, 0, 0, 0)) for at in range(hours)]
    (cells,) = cells_of_usage([contract], table(usage))
    return rate(contract, *cells).net_minor


def test_a_holiday_is_a_local_day_also_at_the_border_of_a_period_and_when_clocks_change() -> None:
    whole = 30 * 24 * 100
    assert owed(calendar(holidays=["2026-03-31"])) == owed(calendar(holidays=["2026-05-01"])) == whole
    assert owed(calendar(holidays=["2026-04-01", "2026-04-30"])) == whole - 48 * 100
    # the window of a holiday before the period ends at its midnight, and an hour is missing on 29 March
    moment = datetime(2026, 3, 29, 3, 30, tzinfo=ZoneInfo(BERLIN))
    of = Calendar.model_validate(calendar(holidays=["2026-03-29"]))
    at = LocalTimes(np.array([moment.toordinal()]), np.array([moment.hour * 60 + moment.minute]))
    assert window_mask(Window.model_validate(SEASONAL["windows"][0]), of, at).all()


def test_a_version_of_a_calendar_counts_from_its_start_and_one_with_equal_content_changes_nothing() -> None:
    later = calendar(effective_from="2026-04-03T10:00:00Z")
    assert owed(calendar()) == owed(calendar(), later) == (30 - 1) * 24 * 100
    # at 10:00 UTC it is noon in Berlin
    assert owed(calendar(), later | {"holidays": [], "until": "2027-01-01"}) == 30 * 24 * 100 - 12 * 100


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "tariff 'standard' has the calendar 'sweden', of which no version is in force at 2026-03-31T22:00:00Z"),
        ((calendar(effective_from="2026-04-10T00:00:00Z"),), "of which no version is in force at 2026-03-31T22:00:00Z"),
        ((calendar(id="norway"),), "of which no version is in force"),
    ],
)
def test_a_missing_calendar_blocks_its_payers(more: tuple[dict[str, Any], ...], said: str) -> None:
    (fault,) = faults_of(contracts(*WORLD, *more), period=APRIL)
    assert said in str(fault)
    assert fault.missing == ("calendar", "sweden")


def test_a_calendar_that_ends_blocks_those_whose_windows_need_it() -> None:
    ends = calendar(holidays=["2025-12-25"], effective_from="2020-01-01T00:00:00Z")
    (fault,) = faults_of(contracts(*WORLD, ends), period=APRIL)
    assert (type(fault), fault.is_lack) == (CalendarEnds, True)
    assert "calendar 'sweden', which is known until 2026-01-01 (excluded); publish a version" in str(fault)
    assert faults_of(contracts(*WORLD, ends | {"until": "2026-04-30"}), period=APRIL)
    whole = 30 * 24 * 100
    assert owed(ends | {"until": "2026-05-01"}) == owed(calendar(holidays=["2026-01-01"])) == whole
    plain = SEASONAL | {"windows": [{"id": "free", "hours": "00:00-01:00"}]}
    assert contracts(legal_entity(), plain, account("acme"), ends).contract_of("acme", APRIL)


@pytest.mark.parametrize(
    ("holidays", "peak", "until"),
    [
        (["2026-12-25"], [("2026-01-01", "2026-03-01")], "2027-01-01"),
        (["2026-12-25"], [("2025-12-01", "2026-03-01")], "2026-03-01"),
        (["2025-12-25"], [("2026-12-01", "2027-03-01")], "2026-01-01"),
    ],
)
def test_what_a_calendar_knows_follows_from_its_dates(
    holidays: list[str], peak: list[tuple[str, str]], until: str
) -> None:
    seasons = {"peak": [{"begin": begin, "end": end} for begin, end in peak]}
    of = Calendar.model_validate(calendar(holidays=holidays, seasons=seasons))
    assert str(of.known_until([made(season="peak", holidays="without")])) == until
    assert of.known_until([made()]) == date.max


def test_a_season_that_the_calendar_does_not_have_is_a_fault() -> None:
    low = {"low": [{"begin": "2026-01-01", "end": "2027-01-01"}]}
    seasonal = SEASONAL | {"windows": [{"id": "free", "hours": ["00:00-00:00"], "season": "peak"}]}
    (fault,) = faults_of(contracts(legal_entity(), seasonal, account("acme"), calendar(seasons=low)), period=APRIL)
    assert "a window of season 'peak', which calendar 'sweden' does not have; it has 'low'" in str(fault)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"days": ["wed", "mon"]}, "a (mon, wed 22:00-06:00)"),
        ({"days": "sun-wed"}, "a (mon-wed, sun 22:00-06:00)"),
        ({"days": ["mon-tue", "sat"]}, "a (mon, tue, sat 22:00-06:00)"),
        ({"season": "peak", "holidays": "only"}, "a (mon-sun 22:00-06:00, season peak, only holidays)"),
        ({"hours": ["06:30-07:00", "09:00-09:30"]}, "a (mon-sun 06:30-07:00, 09:00-09:30)"),
    ],
)
def test_a_window_says_its_hours(given: dict[str, Any], text: str) -> None:
    assert Window.model_validate({"id": "a", "hours": "22:00-06:00"} | given).text == text
