"""Two ways to the same usage: the plain truth, and the vectorised engine of geo.spatial. They share no code."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from geo.spatial import OUTSIDE, Fixes, ZoneSet, build_tracks, fences_from_geojson
from simulator import Faults, Scenario, generated_scenario, read_recording, recorded_scenario
from simulator.drive import Track
from simulator.truth import TrueUsage, Truth
from tests.simulator.runs import RECORDING, run_in

HOUR_MS = 3_600_000


def usage_by_the_engine(truth: Truth, fences: str) -> tuple[TrueUsage, ...]:
    zones = ZoneSet(fences_from_geojson(fences).fences)
    rows = [(number, fix) for number, device in enumerate(truth.devices) for fix in truth.positions(device)]
    fixes = Fixes(
        device=[number for number, _ in rows],
        t_ms=[fix.time_us // 1000 for _, fix in rows],
        lat=[fix.latitude_e7 / 1e7 for _, fix in rows],
        lon=[fix.longitude_e7 / 1e7 for _, fix in rows],
        accuracy_m=[np.nan if fix.accuracy_mm is None else fix.accuracy_mm / 1e3 for _, fix in rows],
    )
    pieces = zones.split(build_tracks(fixes))
    sums: dict[tuple[int, int, int], list[float]] = {}
    for piece, end in enumerate(pieces.end_fix):
        key = (int(fixes.device[end]), int(fixes.t_ms[end]) // HOUR_MS, int(pieces.zone[piece]))
        total = sums.setdefault(key, [0.0, 0.0, 0])
        total[0] += pieces.metres[piece]
        total[1] += pieces.ms[piece]
        total[2] += bool(pieces.entry[piece])
    found = [
        TrueUsage(
            truth.devices[device],
            datetime.fromtimestamp(hour * 3600, UTC),
            "" if zone == OUTSIDE else zones.names[zone],
            round(metres * 1000),
            round(ms),
            int(entries),
        )
        for (device, hour, zone), (metres, ms, entries) in sums.items()
    ]
    return tuple(sorted(row for row in found if row.distance_mm or row.duration_ms or row.entries))


def assert_same(one: Sequence[TrueUsage], other: Sequence[TrueUsage]) -> None:
    assert [row[:3] for row in one] == [row[:3] for row in other]
    for plain, engine in zip(one, other, strict=True):
        assert plain == engine


@pytest.mark.parametrize("seed", [1, 7, 23])
def test_a_generated_fleet_is_metered_the_same(seed: int, tmp_path: Path) -> None:
    scenario = generated_scenario(seed=seed, vehicles=6, regions=("eu", "us"))
    check(scenario, None, tmp_path)


def test_a_fleet_with_faults_is_metered_the_same(tmp_path: Path) -> None:
    faults = Faults(duplicates=0.05, wrong_clocks=3, late=1)
    check(generated_scenario(seed=7, vehicles=6, regions=("eu", "us"), faults=faults), None, tmp_path)


@pytest.mark.skipif(not RECORDING.exists(), reason=f"{RECORDING.name} is not here")
def test_a_recorded_track_is_metered_the_same(tmp_path: Path) -> None:
    scenario, track = recorded_scenario(read_recording(RECORDING), seed=7, regions=("eu", "us"))
    check(scenario, track, tmp_path)


def check(scenario: Scenario, track: Track | None, folder: Path) -> None:
    truth = run_in(folder, scenario, track)
    assert_same(truth.usage(), usage_by_the_engine(truth, (folder / "fences.geojson").read_text()))
