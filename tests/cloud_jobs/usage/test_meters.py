"""Each meter counts what an independent account counts, quarter by quarter, whatever the way and the records."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloud_jobs.lake.schemas import QUANTITIES, WHOLE_DEVICE
from geo.spatial import TrackRule, TrackSettings
from simulator.truth import TrueUnknown, TrueUsage, content_bytes, made_event, made_position, made_signal
from simulator.truth.journal import Made, TruePosition
from simulator.truth.metering import gate_usage_of, inferred_in, unknown_of, usage_of, whole_usage_of
from simulator.truth.shapes import TrueGate, Zones, read_gates, read_zones
from tests.usage_rows import metered_rows

BEGIN = datetime(2026, 1, 5, 8, 40, tzinfo=UTC)
QUARTER = timedelta(minutes=15)


def box(name: str, priority: int, low: tuple[float, float], high: tuple[float, float]) -> dict[str, Any]:
    (west, south), (east, north) = low, high
    ring = [[west, south], [east, south], [east, north], [west, north], [west, south]]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    return {"type": "Feature", "properties": {"id": name, "priority": priority}, "geometry": geometry}


def gate(name: str, *corners: tuple[float, float]) -> dict[str, Any]:
    geometry = {"type": "LineString", "coordinates": [[*corner] for corner in corners]}
    return {"type": "Feature", "properties": {"id": name, "gate": True}, "geometry": geometry}


# borders and gates on which fixes of the grid lie; but no way between two of these goes through a corner or an end, or
# is in a zone for half a millisecond beside whole ones: what is exactly between is another thing for doubles
TOWN = [
    box("low", 1, (0.0001234321, 0.0), (0.0081234321, 0.008)),
    box("high", 2, (0.0041234321, 0.004), (0.0121234321, 0.012)),
    gate("straight", (0.0021234, 0.005), (0.0101234, 0.005)),
    gate("slanted", (0.0071234, 0.0032357), (0.0031234, 0.012)),
]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> tuple[Zones, tuple[TrueGate, ...]]:
    path = tmp_path_factory.mktemp("town") / "fences.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": TOWN}))
    return read_zones(path), read_gates(path)


grid = st.integers(-4, 14)
moves = st.tuples(
    st.sampled_from([20, 60, 100, 296, 300, 301]), grid, grid, st.sampled_from(["fix", "event", "signal"])
)


@pytest.mark.parametrize("rule", ["standstill", "every_fix"])
@given(moved=st.lists(moves, min_size=1, max_size=30))
def test_every_quantity_of_every_quarter_is_the_truth_s(
    town: tuple[Zones, tuple[TrueGate, ...]], rule: TrackRule, moved: list[tuple[int, int, int, str]]
) -> None:
    zones, gates = town
    made, positions = journal(moved)
    truth = [
        *usage_of("d", positions, zones, rule),
        *gate_usage_of("d", positions, gates, rule),
        *whole_usage_of("d", Counter(made)),
    ]
    features = [json.dumps(feature) for feature in TOWN]
    rows = metered_rows(records(made, positions), features, TrackSettings(rule=rule))
    assert sorted(by_quarters(rows)) == sorted(truth)


waits = st.sampled_from([60, 299, 301, 900, 3_599, 3_600, 7_000, 40_000, 86_400, 90_000])
far = st.integers(-60, 60)
leaps = st.lists(st.tuples(waits, far, far, st.sampled_from(["fix", "fix", "fix", "event"])), min_size=1, max_size=20)


@pytest.mark.parametrize("rule", ["standstill", "every_fix"])
@given(moved=leaps)
@example(moved=[(60, 7, 4, "fix"), (301, 2, 1, "fix")])  # the gap begins on the border of the zone that it leaves
def test_what_is_unknown_of_each_quarter_is_unknown_to_the_truth(
    town: tuple[Zones, tuple[TrueGate, ...]], rule: TrackRule, moved: list[tuple[int, int, int, str]]
) -> None:
    zones, _ = town
    made, positions = journal(moved)
    features = [json.dumps(feature) for feature in TOWN]
    rows = metered_rows(records(made, positions), features, TrackSettings(rule=rule))
    assert sorted(unknown_in(rows)) == unknown_of("d", positions, zones, rule)
    inferred = {
        (int(row["hour"].timestamp()) // 900 + number, row["zone"]): count
        for row in rows
        for number, count in enumerate(row["inferred_entries"])
        if row["zone"] != WHOLE_DEVICE and count
    }
    assert inferred == inferred_in(positions, lambda _: zones, rule)


# metres from the border of a zone in the west: before the gap, and after it; a fix without an accuracy is sure at 10 m
@pytest.mark.parametrize(
    ("before_m", "after_m", "entries"), [(300, -30, 1), (300, -6, 0), (6, -300, 0), (-6, -300, 0), (300, 6, 0)]
)
def test_an_entry_is_inferred_between_fixes_that_are_sure_of_their_side(
    before_m: int, after_m: int, entries: int
) -> None:
    east = 111_320.0
    square = [[-1, -1], [0, -1], [0, 1], [-1, 1], [-1, -1]]
    zone = {"type": "Feature", "properties": {"id": "west"}, "geometry": {"type": "Polygon", "coordinates": [square]}}
    began_us = round(BEGIN.timestamp()) * 1_000_000
    places = [(before_m / east, 0.0, 0), (before_m / east, 0.01, 60), (after_m / east, 0.02, 1_000)]
    places += [(after_m / east, 0.02, 1_060)]
    positions = [
        TruePosition(began_us + at * 1_000_000, round(lon * 1e7), round(lat * 1e7), None) for lon, lat, at in places
    ]
    made = [made_position(one.time_us, one.latitude_e7 / 1e7, one.longitude_e7 / 1e7) for one in positions]
    rows = metered_rows(records(made, positions), [json.dumps(zone)], TrackSettings(rule="standstill"))
    assert sum(sum(row["inferred_entries"]) for row in rows if row["zone"] == "west") == entries


def unknown_in(rows: Sequence[dict[str, Any]]) -> Iterator[TrueUnknown]:
    for row in rows:
        for number, amounts in enumerate(zip(*(row[name] for name in TrueUnknown._fields[2:]), strict=True)):
            if row["zone"] == WHOLE_DEVICE and any(amounts):
                yield TrueUnknown(row["device"], row["hour"] + number * QUARTER, *amounts)


def journal(moved: Sequence[tuple[int, int, int, str]]) -> tuple[list[Made], list[TruePosition]]:
    time_us, made, positions = round(BEGIN.timestamp()) * 1_000_000, list[Made](), list[TruePosition]()
    for wait_s, x, y, kind in moved:
        time_us += wait_s * 1_000_000
        if kind == "fix":
            made.append(made_position(time_us, 0.001 * y, 0.001 * x))
            positions.append(TruePosition(time_us, x * 10_000, y * 10_000, None))
        elif kind == "event":
            made.append(made_event(time_us, "door", {"at": x}))
        else:
            made.append(made_signal(time_us, "Vehicle.Speed", float(x)))
    return made, positions


def records(made: Sequence[Made], positions: Sequence[TruePosition]) -> Iterator[dict[str, Any]]:
    places = iter(positions)
    for seq, one in enumerate(made, 1):
        assert one.time_us is not None
        yield {"device": "d", "seq": seq, "kind": one.kind, "t_ms": one.time_us // 1000} | {
            "content_bytes": content_bytes(one),
            **(place_of(next(places)) if one.kind == "position" else {}),
        }


def place_of(position: TruePosition) -> dict[str, float]:
    return {"latitude": position.latitude_e7 / 1e7, "longitude": position.longitude_e7 / 1e7}


def by_quarters(rows: Sequence[dict[str, Any]]) -> Iterator[TrueUsage]:
    for row in rows:
        for number, amounts in enumerate(zip(*(row[name] for name in QUANTITIES), strict=True)):
            if any(amounts):
                yield TrueUsage(row["device"], row["hour"] + number * QUARTER, row["zone"], *amounts)
