"""Two ways to the same usage: the plain truth, and the vectorised engine of geo.spatial. They share no code."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.lake.schemas import QUANTITIES, WHOLE_DEVICE
from simulator import Faults, Scenario, generated_scenario, read_recording, recorded_scenario
from simulator.drive import Track
from simulator.truth import TrueUnknown, TrueUsage, Truth
from tests.simulator.runs import RECORDING, run_in
from tests.usage_rows import metered_rows

QUARTER = timedelta(minutes=15)


def rows_by_the_engine(truth: Truth, fences: str) -> list[dict[str, Any]]:
    records = [
        {
            "device": device,
            "seq": seq,
            "t_ms": fix.time_us // 1000,
            "latitude": fix.latitude_e7 / 1e7,
            "longitude": fix.longitude_e7 / 1e7,
            "accuracy_m": None if fix.accuracy_mm is None else fix.accuracy_mm / 1e3,
            "speed_mps": None if fix.speed_mm_s is None else fix.speed_mm_s / 1e3,
        }
        for device in truth.devices
        for seq, fix in enumerate(truth.positions(device), 1)
    ]
    features = [json.dumps(feature) for feature in json.loads(fences)["features"]]
    return metered_rows(records, features)


def unknown_in(rows: Iterable[Mapping[str, Any]]) -> Iterator[TrueUnknown]:
    for row in rows:
        for number, amounts in enumerate(zip(*(row[name] for name in TrueUnknown._fields[2:]), strict=True)):
            if row["zone"] == WHOLE_DEVICE and any(amounts):
                yield TrueUnknown(row["device"], row["hour"] + number * QUARTER, *amounts)


def quarters_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[TrueUsage]:
    """The quarters in which anything was used, of rows of usage; without the devices as a whole."""
    for row in rows:
        for number, amounts in enumerate(zip(*(row[name] for name in QUANTITIES), strict=True)):
            if row["zone"] != WHOLE_DEVICE and any(amounts):
                yield TrueUsage(row["device"], row["hour"] + number * QUARTER, row["zone"], *amounts)


def assert_same(one: Sequence[TrueUsage], other: Sequence[TrueUsage]) -> None:
    assert [row[:3] for row in one] == [row[:3] for row in other]
    for plain, engine in zip(one, other, strict=True):
        assert plain == engine


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (7, 23))])
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
    found = [row for row in truth.usage() if row.zone != WHOLE_DEVICE]
    rows = rows_by_the_engine(truth, (folder / "fences.geojson").read_text())
    assert_same(found, sorted(quarters_of(rows)))
    assert sorted(unknown_in(rows)) == sorted(truth.unknown())
