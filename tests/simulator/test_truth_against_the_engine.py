"""Two ways to the same usage: the plain truth, and the vectorised engine of geo.spatial. They share no code."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud_jobs.lake.schemas import QUANTITIES, WHOLE_DEVICE
from geo.spatial import Fixes, TrackSettings
from simulator import Faults, Scenario, generated_scenario
from simulator.truth import TruePosition, TrueUnknown, TrueUsage, Truth
from simulator.truth.metering import gate_usage_of, usage_of
from simulator.truth.shapes import read_gates, read_zones
from tests.geo.spatial.noisy_drives import HOME, ROADS, Drive, Receiver, drive, parked
from tests.simulator.runs import run_in
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
    check(scenario, tmp_path)


def test_a_fleet_with_faults_is_metered_the_same(tmp_path: Path) -> None:
    faults = Faults(duplicates=0.05, wrong_clocks=3, late=1)
    check(generated_scenario(seed=7, vehicles=6, regions=("eu", "us"), faults=faults), tmp_path)


def check(scenario: Scenario, folder: Path) -> None:
    truth = run_in(folder, scenario)
    found = [row for row in truth.usage() if row.zone != WHOLE_DEVICE]
    rows = rows_by_the_engine(truth, (folder / "fences.geojson").read_text())
    assert_same(found, sorted(quarters_of(rows)))
    assert sorted(unknown_in(rows)) == sorted(truth.unknown())


RECEIVERS = [
    Receiver(1.0, 4.0, 30.0, speed=0.2),
    Receiver(2.0, 3.0),
    Receiver(5.0, 8.0, 60.0, accuracy_m=float("nan"), speed=0.3),
    Receiver(10.0, 4.0, 1800.0),
    Receiver(60.0, 15.0),
    Receiver(20.0, 9.0, 60.0, accuracy_m=5.0, speed=0.0),
]


def features() -> list[dict[str, Any]]:
    """Zones one over the other around home, a narrow one, one with a hole, and gates."""
    (x, y), east, north = HOME, 1 / 66_150.0, 1 / 111_300.0

    def ring(*corners: tuple[float, float]) -> list[list[float]]:
        return [[round(x + a * east, 9), round(y + b * north, 9)] for a, b in (*corners, corners[0])]

    def zone(name: str, priority: int, *rings: list[list[float]]) -> dict[str, Any]:
        shape = {"type": "Polygon", "coordinates": rings}
        return {"type": "Feature", "properties": {"id": name, "priority": priority}, "geometry": shape}

    def gate(name: str, *corners: tuple[float, float]) -> dict[str, Any]:
        shape = {"type": "LineString", "coordinates": ring(*corners)[:-1]}
        return {"type": "Feature", "properties": {"id": name, "gate": True}, "geometry": shape}

    outer = ring((-900, -700), (1.3, -900), (800, -650), (700, 900), (-650, 800))
    return [
        zone("town", 1, outer, ring((-300, -250), (-310, 260), (280, 300), (310, -290))),
        zone("yard", 3, ring((1.1, -60), (60, -70), (55, 65), (0.7, 50))),
        zone("alley", 4, ring((-2_000, 108), (2_000, 111), (2_000, 125), (-2_000, 122))),
        zone("north", 2, ring((-3_000, 400), (3_000, 420), (3_000, 3_000), (-3_000, 3_000))),
        gate("at home", (0.3, -500), (1.9, 600)),
        gate("slanted", (203, -207), (1_500, 800)),
    ]


FEATURES = features()


CASES = [
    pytest.param(name, receiver, marks=[] if number % len(RECEIVERS) == at else [pytest.mark.nightly])
    for number, name in enumerate(["parked", *ROADS, "mast"])
    for at, receiver in enumerate(RECEIVERS)
]


@pytest.mark.parametrize(("name", "receiver"), CASES)
def test_noisy_drives_are_metered_the_same(name: str, receiver: Receiver, tmp_path: Path) -> None:
    stands = name in {"parked", "mast"}
    found = parked(1 if receiver.every_s < 5 else 6, receiver, 5) if stands else drive_of(name, receiver)
    if name == "mast":
        found.fixes.lon[7::10] += 0.02
        found.fixes.lon[48::40] += 0.02
    path = tmp_path / "fences.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": FEATURES}))
    positions, records = both(found.fixes)
    zones, gates = read_zones(path), read_gates(path)
    for rule in ("standstill", "every_fix"):
        if rule == "every_fix" and receiver.every_s < 10:
            continue
        truth = [*usage_of("d", positions, zones, rule), *gate_usage_of("d", positions, gates, rule)]
        rows = metered_rows(records, [json.dumps(one) for one in FEATURES], TrackSettings(rule=rule))
        assert sorted(quarters_of(row for row in rows if row["zone"] != WHOLE_DEVICE)) == sorted(truth)


def drive_of(name: str, receiver: Receiver) -> Drive:
    found = drive(ROADS[name](11), receiver, 11, wait_s=400.0)
    some = slice(0, 1_500)
    return Drive(*(Fixes(**{n: v[some] for n, v in columns(one).items()}) for one in found))


def columns(fixes: Fixes) -> dict[str, Any]:
    names = ("device", "t_ms", "lat", "lon", "accuracy_m", "speed_mps")
    return {name: value for name in names if (value := getattr(fixes, name)) is not None}


def both(fixes: Fixes) -> tuple[list[TruePosition], list[dict[str, Any]]]:
    """The same fixes as the truth takes them and as records, on the grid of the wire."""
    positions, records = [], []
    nothing = np.full(len(fixes), np.nan)
    accuracies = nothing if fixes.accuracy_m is None else fixes.accuracy_m
    speeds = nothing if fixes.speed_mps is None else fixes.speed_mps
    given = zip(fixes.t_ms.tolist(), fixes.lon.tolist(), fixes.lat.tolist(), accuracies, speeds, strict=True)
    for seq, (t_ms, lon, lat, accuracy_m, speed_mps) in enumerate(given, 1):
        x, y = round(lon * 1e7), round(lat * 1e7)
        accuracy, speed = (None if np.isnan(one) else round(float(one) * 1000) for one in (accuracy_m, speed_mps))
        positions.append(TruePosition(t_ms * 1000, x, y, accuracy, speed))
        records.append(
            {
                "device": "d",
                "seq": seq,
                "t_ms": t_ms,
                "latitude": y / 1e7,
                "longitude": x / 1e7,
                "accuracy_m": None if accuracy is None else accuracy / 1e3,
                "speed_mps": None if speed is None else speed / 1e3,
            }
        )
    return positions, records
