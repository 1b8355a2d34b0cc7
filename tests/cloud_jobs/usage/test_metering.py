"""Usage is a function of an hour's fixes and those around them, the same in whatever pieces it is computed."""

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyproj import Geod

from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import StoredFiles
from cloud_jobs.lake.erasures import Erasures
from cloud_jobs.lake.schemas import WHOLE_DEVICE
from cloud_jobs.usage.devices import device_groups, wanted_files
from cloud_jobs.usage.reading import HOUR_MS
from geo.spatial import TrackSettings
from tests.cloud_jobs.usage.test_any_order import START
from tests.geo.spatial.noisy_drives import Receiver, parked
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of
from tests.usage_rows import metered_rows

RULES = TrackSettings()
SQUARE = {
    "type": "Feature",
    "properties": {"id": "square", "priority": 1, "effective_from": "1970-01-01T00:00:00Z"},
    "geometry": {"type": "Polygon", "coordinates": [[[0, 0], [0.01, 0], [0.01, 0.01], [0, 0.01], [0, 0]]]},
}
FEATURES = [json.dumps(SQUARE)]


def fixes(rows: list[tuple[int, float, float]], device: str = "d", *, touched: bool = True) -> list[dict[str, Any]]:
    return [
        {
            "tenant": "acme",
            "device": device,
            "epoch": 7,
            "seq": seq,
            "t_ms": t_ms,
            "latitude": lat,
            "longitude": lon,
            "accuracy_m": None,
            "touched": touched,
        }
        for seq, (t_ms, lat, lon) in enumerate(rows, 1)
    ]


def used(rows: list[dict[str, Any]], features: Sequence[str] = FEATURES) -> list[dict[str, Any]]:
    return [row for row in metered_rows(rows, features, RULES) if row["zone"] != WHOLE_DEVICE]


def test_a_drive_into_the_square_is_split_at_its_border() -> None:
    outside, inside = used(fixes([(0, 0.005, -0.005), (60_000, 0.005, 0.005)]))
    half_m = Geod(ellps="WGS84").inv(-0.005, 0.005, 0.0, 0.005)[2]
    assert (outside["zone"], sum(outside["entries"]), inside["zone"], sum(inside["entries"])) == ("", 0, "square", 1)
    assert outside["distance_mm"] == inside["distance_mm"] == [round(half_m * 1000), 0, 0, 0]
    assert outside["duration_ms"] == inside["duration_ms"] == [30_000, 0, 0, 0]
    assert json.loads(inside["seq_ranges"]) == {"7": [[1, 2]]}


def test_a_segment_belongs_to_the_hour_of_the_fix_that_ends_it() -> None:
    (row,) = used(fixes([(HOUR_MS - 1_000, 0.1, 0.1), (HOUR_MS, 0.1, 0.1001)]))
    assert row["hour"].timestamp() == 3600
    assert row["duration_ms"] == [1_000, 0, 0, 0]


steps = st.tuples(
    st.integers(1_000, 900_000), st.floats(-0.02, 0.02).map(lambda x: round(x, 5)), st.floats(-0.02, 0.02)
)


@given(st.lists(steps, min_size=2, max_size=20))
def test_zones_and_outside_together_are_the_whole_track(moves: list[tuple[int, float, float]]) -> None:
    track, t_ms = [], 0
    for wait, lat, lon in moves:
        t_ms += wait % 300_000 + 1
        track.append((t_ms, lat, lon))
    split = used(fixes(track))
    whole = used(fixes(track), ())
    for name in ("distance_mm", "duration_ms"):
        found, expected = (sum(sum(row[name]) for row in rows) for rows in (split, whole))
        assert found == pytest.approx(expected, abs=4 * len(split) + 1)


CLEAN = TrackSettings(rule="standstill")


def parked_van(every_s: float, **said: float | None) -> list[dict[str, Any]]:
    """A day beside the square's border, with a short drive into the square at its end."""
    found = parked(24, Receiver(every_s, 4.0), 3, home=(0.01 + 2e-5, 0.005)).fixes
    stood = zip((found.t_ms - found.t_ms[0]).tolist(), found.lat.tolist(), found.lon.tolist(), strict=True)
    after = 86_400_000 + 10_000 * np.arange(6)
    drive = [(int(t_ms), 0.005, round(0.01 - 0.0012 * at, 7)) for at, t_ms in enumerate(after, 1)]
    return [row | {"accuracy_m": 8.0} | said for row in fixes([*stood, *drive])]


@pytest.mark.parametrize("said", [{}, {"speed_mps": 0.0}, {"speed_mps": -1.0}, {"accuracy_m": -1.0}])
def test_a_parked_van_is_charged_its_drive_alone(said: dict[str, float | None]) -> None:
    van = parked_van(60.0, **said)
    noisy, clean = (metered_rows(van, FEATURES, rules) for rules in (TrackSettings.every_fix(), CLEAN))
    totals = [
        {name: sum(sum(row[name]) for row in rows) for name in ("distance_mm", "duration_ms", "entries", "events")}
        for rows in (noisy, clean)
    ]
    assert totals[0]["duration_ms"] == totals[1]["duration_ms"]
    assert totals[0]["distance_mm"] > 5_000_000
    assert totals[0]["entries"] > 100
    assert totals[1]["entries"] == 1
    assert totals[1]["distance_mm"] == pytest.approx(800_000, abs=30_000)


def test_devices_of_one_name_at_several_tenants_do_not_share_files(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    tenants = ["t1", "t2", "t3"]
    for tenant in tenants:
        ingest(lake, [LakeFix("van", at, START + timedelta(minutes=at), 0, 0, tenant=tenant) for at in range(1, 4)])
    wanted = wanted_files(StoredFiles.of(lake.open("records"), "records"), (1, 3), [], 0)
    counts = dict.fromkeys((TenantDevice(tenant, "van") for tenant in tenants), 1_000_000)
    usage = StoredFiles.of(lake.open("usage"), "usage")
    groups = [*device_groups(counts, wanted, usage, Erasures([]), tasks=3)]
    assert [len(group.names) for group in groups] == [1, 1, 1]
    assert sorted(path for group in groups for path in group.new) == sorted(wanted.new.paths)
    assert sorted(file.path for group in groups for file in group.around) == sorted(wanted.around.paths)
