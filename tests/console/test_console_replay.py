"""The replay: its columns hold the lake's fixes, nothing is drawn through a gap, and the time comes from the clock."""

import base64
import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from cloud_jobs.maintenance.erasing import access_log_of
from console.asked import Span, span_asked
from console.context import LOCAL, Query, Viewer
from console.errors import BadQuery, NotThere
from console.movements import newest_span
from console.page import Clock, as_json
from console.pages import replay
from tests.console.conftest import NOW

DAY = "start=2026-01-05T00:00Z&end=2026-01-05T12:00Z"
SPAN = Span(datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 5, 12, tzinfo=UTC))


def column(island, name):
    return np.frombuffer(base64.b64decode(island[name]), "<i4")


def test_the_columns_hold_fixes_of_the_lake_at_most_one_each_ten_seconds(served):
    island = served.json(f"/replay/data?{DAY}")["island"]
    first, t_ms = column(island, "first"), column(island, "t_ms")
    latitude, longitude = column(island, "latitude"), column(island, "longitude")
    rows = served.console.lake.rows("records", where=[("kind", "=", "position")]).to_pylist()
    known = {
        (f"{row['tenant']}/{row['device']}", round(row["device_time"].timestamp() * 1000) - SPAN.start_ms): (
            round(row["latitude"] * 1e7),
            round(row["longitude"] * 1e7),
        )
        for row in rows
    }
    assert len(island["devices"]) == 2
    for at, device in enumerate(island["devices"]):
        for fix in range(first[at], first[at + 1]):
            assert known[device, t_ms[fix]] == (latitude[fix], longitude[fix])
    begins = set(column(island, "begins").tolist())
    steps = [at for at in range(1, len(t_ms)) if at not in begins and at + 1 not in begins and at + 1 < len(t_ms)]
    assert all(t_ms[at] // 10_000 > t_ms[at - 1] // 10_000 for at in steps)
    assert set(first[:-1].tolist()) <= begins
    # a gap of the rules is never joined by a line
    assert all(t_ms[at] - t_ms[at - 1] <= 300_000 for at in range(1, len(t_ms)) if at not in begins)


def test_the_table_has_each_device_with_its_first_and_last_fix(served):
    rows = served.json(f"/replay?{DAY}")["tables"]["devices"]["rows"]
    records = served.console.lake.rows("records", where=[("kind", "=", "position")]).to_pylist()
    for row in rows:
        times = [one["device_time"] for one in records if one["device"] == row["device"]]
        ends = [moment.isoformat().replace("+00:00", "Z") for moment in (min(times), max(times))]
        assert [row["first"], row["last"]] == ends
    assert "eu-0001" in served.html(f"/replay?{DAY}")


def test_a_viewer_sees_own_devices_only_and_each_access_is_logged(served):
    console, asked = served.console, {"start": "2026-01-05T00:00", "end": "2026-01-05T12:00"}
    stranger = Viewer("stranger", frozenset({"other"}))
    assert replay.page(console, Query(stranger, asked=asked)).tables[1].rows == ()
    assert as_json(replay.data(console, Query(stranger, asked=asked)))["island"]["devices"] == []
    with pytest.raises(NotThere):
        replay.page(console, Query(stranger, asked={"tenant": "fleet"}))
    replay.data(console, Query(asked=asked))
    last = json.loads(access_log_of(console.settings.location).read_text().splitlines()[-1])
    assert (last["command"], last["devices"], last["viewer"]) == ("console replay", ["fleet/*"], LOCAL.name)


def test_a_span_is_bounded_and_named_in_the_zone(served):
    def usual() -> Span:
        return SPAN

    zone = served.console.clock(LOCAL).zone
    clock = Clock(zone, NOW)
    asked = Query(asked={"start": "2026-01-05T08:00", "end": "2026-01-05T09:00+01:00"})
    made = span_asked(asked, clock, default=usual, longest=timedelta(days=1))
    assert made.start == datetime(2026, 1, 5, 8, tzinfo=zone)
    assert made.end == datetime(2026, 1, 5, 8, tzinfo=UTC)
    for text in (
        "start=2026-01-01T00:00&end=2026-01-05T00:00",
        "start=x",
        "start=0001-01-01T00:00",
        "end=9999-12-31T23:59-12:00",
    ):
        asked = Query(asked=dict(part.split("=", 1) for part in text.split("&")))
        with pytest.raises(BadQuery):
            span_asked(asked, clock, default=usual, longest=timedelta(days=1))
    assert newest_span(served.console.lake, timedelta(hours=2), NOW).end.date() == NOW.date()


def test_the_picture_shows_each_vehicle_where_it_is_and_plays_by_the_clock(served, tab):
    tab.open(f"{served.url}/replay?{DAY}&at=2026-01-05T07:40:00Z&rate=60")
    assert "SwiftShader" in tab.renderer
    element = "const e = document.querySelector('[data-island]'), m = e.movers;"
    places = tab.page.evaluate(
        f"() => {{ {element} return Array.from({{length: m.count}}, (_, d) => m.place(d, e.player.now()))"
        ".filter(Boolean) }"
    )
    assert len(places) == 2
    assert tab.drawn_by("movers", places) == [True, True]
    tab.page.get_by_role("button", name="Play").click()
    times = tab.page.evaluate(
        f"async () => {{ {element} const begin = [performance.now(), e.player.now()];"
        " await new Promise(done => setTimeout(done, 700));"
        " return [performance.now() - begin[0], e.player.now() - begin[1]] }"
    )
    assert times[1] == pytest.approx(60 * times[0], rel=0.02)
    tab.page.get_by_role("button", name="Pause").click()
    assert "at=2026-01-05T07" in tab.page.url
