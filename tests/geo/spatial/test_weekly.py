"""Weekly windows: the zones they may be in, whether they are ever open, and that laying them out is quick."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geo.spatial import FenceReport, fences_from_geojson
from geo.spatial.activity import Activity, Schedule
from geo.spatial.weekly import DAYS, Weekly
from tests.examples import examples

CLOCKS = st.integers(0, 1439).map(lambda minute: f"{minute // 60:02d}:{minute % 60:02d}")
WINDOWS = st.fixed_dictionaries(
    {"days": st.lists(st.sampled_from(DAYS), min_size=1, max_size=7, unique=True), "from": CLOCKS, "until": CLOCKS}
)


def read(*several: dict[str, Any]) -> FenceReport:
    ring = [[0, 0], [1, 0], [1, 1], [0, 0]]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    features = [
        {"type": "Feature", "properties": {"id": f"f{at}"} | properties, "geometry": geometry}
        for at, properties in enumerate(several)
    ]
    return fences_from_geojson(json.dumps({"type": "FeatureCollection", "features": features}))


def is_open(windows: list[dict[str, Any]], local: datetime) -> bool:
    """By the definition: today's windows, and those of yesterday that run past midnight."""
    clock, today, before = local.strftime("%H:%M"), DAYS[local.weekday()], DAYS[local.weekday() - 1]
    for one in windows:
        start, until = one["from"], one["until"]
        if start < until:
            if today in one["days"] and start <= clock < until:
                return True
        elif (today in one["days"] and start <= clock) or (before in one["days"] and clock < until):
            return True
    return False


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(WINDOWS, min_size=1, max_size=4),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "UTC"]),
    st.lists(st.integers(0, 29 * 365 * 24 * 60), min_size=1, max_size=50),
)
def test_a_window_is_open_while_the_local_clock_shows_a_time_in_it(
    windows: list[dict[str, Any]], zone: str, minutes: list[int]
) -> None:
    moments = [datetime(2015, 1, 2, tzinfo=UTC) + timedelta(minutes=minute) for minute in minutes]
    active = Weekly.model_validate({"timezone": zone, "windows": windows}).activity()
    found = active.at(np.array([int(moment.timestamp()) * 1000 for moment in moments]))
    assert found.tolist() == [is_open(windows, moment.astimezone(ZoneInfo(zone))) for moment in moments]


ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Casablanca", "UTC"]
# days at which one of these clocks is changed, the first and the last that count, and others
DAYS_OF_CHANGES = [
    datetime(year, month, day, tzinfo=UTC)
    for year, month, day in (
        (2026, 3, 8),
        (2026, 3, 29),
        (2026, 4, 4),
        (2026, 10, 3),
        (2026, 10, 25),
        (2026, 2, 15),
        (2015, 1, 1),
        (2044, 12, 31),
        (2026, 12, 31),
    )
]
STRETCHES = st.tuples(st.sampled_from(DAYS_OF_CHANGES), st.integers(-26 * 60, 26 * 60), st.integers(0, 20 * 60))
DATES = st.none() | st.tuples(st.sampled_from(DAYS_OF_CHANGES), st.integers(-900, 900))


@st.composite
def activities(draw: st.DrawFn) -> Activity:
    begin, until = (
        None if date is None else int((date[0] + timedelta(minutes=date[1])).timestamp()) * 1000
        for date in (draw(DATES), draw(DATES))
    )
    dated = Activity([(begin, until)])
    if draw(st.booleans()):
        return dated
    windows = draw(st.lists(WINDOWS, min_size=1, max_size=3))
    return dated & Weekly.model_validate({"timezone": draw(st.sampled_from(ZONES)), "windows": windows}).activity()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(activities(), min_size=1, max_size=5), st.lists(STRETCHES, min_size=1, max_size=3))
def test_many_activities_are_asked_together_and_every_switch_within_the_times_at_hand_is_known(
    several: list[Activity], stretches: list[tuple[datetime, int, int]]
) -> None:
    schedule = Schedule(several)
    begin = np.array([int((day + timedelta(minutes=at)).timestamp()) * 1000 for day, at, _ in stretches])
    length = np.array([minutes for _, _, minutes in stretches]) * 60_000
    for start, minutes in zip(begin.tolist(), (length // 60_000).tolist(), strict=True):
        looks = start + np.arange(minutes + 1) * 60_000
        for number, active in enumerate(several):
            found = schedule.switches(schedule.kind[[number]], looks[:1] + 1, looks[-1:] + 1)
            row, t_ms = found.made()
            assert found.count.tolist() == [len(row)]
            known = set(t_ms.tolist())
            assert all(start < switch <= looks[-1] for switch in known)
            held = active.at(looks)
            asked = schedule.in_force(np.full(len(looks), number), looks)
            assert asked.tolist() == held.tolist()
            assert set(looks[1:][held[1:] != held[:-1]].tolist()) <= known


@pytest.mark.parametrize(
    "dates",
    [
        {"effective_from": "2050-01-01T00:00:00Z"},
        {"effective_from": "2026-01-05T00:00:00Z", "effective_until": "2026-01-07T00:00:00Z"},
    ],
)
def test_a_fence_that_is_never_in_force_is_refused(dates: dict[str, str]) -> None:
    weekly = {"timezone": "UTC", "windows": [{"days": ["sun"], "from": "00:00", "until": "24:00"}]}
    (refused,) = read(dates | {"weekly": weekly}).refused
    assert "never in force" in refused
