"""The files of a scenario: what the simulator writes, and reads back to drive it."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.drive import Track
from simulator.errors import ScenarioError
from simulator.fleet import contracts_toml
from simulator.replay import RecordedFix
from simulator.scenario import Scenario, ScenarioFence
from waybill.settings import one_line, read_file

SCENARIO_FILE = "scenario.json"
FENCES_FILE = "fences.geojson"
VEHICLES_FILE = "vehicles.json"
CONTRACTS_FILE = "contracts.toml"
TRACK_COLUMNS = ("device", "time_ms", "latitude", "longitude", "heading_deg", "trip")


def write_folder(folder: Path, scenario: Scenario, track: Track | None = None) -> tuple[Path, ...]:
    """Write the files of a scenario; returns their paths. Raises ScenarioError."""
    whole = scenario.model_dump(mode="json")
    files = {
        SCENARIO_FILE: whole,
        FENCES_FILE: {"type": "FeatureCollection", "features": [feature_of(fence) for fence in scenario.fences]},
        VEHICLES_FILE: whole["vehicles"],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        (folder / CONTRACTS_FILE).write_text(contracts_toml(scenario), encoding="utf-8")
        if track is not None:
            _write_track(folder / scenario.track, track)
    except OSError as error:
        raise ScenarioError(f"cannot write the scenario to {folder}: {error}") from error
    return tuple(folder / name for name in (*files, CONTRACTS_FILE, *([scenario.track] if track is not None else [])))


def read_folder(folder: Path) -> tuple[Scenario, Track | None]:
    """The scenario in a folder, and its recorded track if it has one. Raises ScenarioError."""
    path = folder / SCENARIO_FILE
    try:
        scenario = Scenario.model_validate_json(read_file(path))
        return scenario, _read_track(folder / scenario.track) if scenario.track else None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error}); write it with `fleet-simulator scenario`") from error
    except (ValueError, KeyError, csv.Error) as error:
        raise ScenarioError(f"{path}: {one_line(str(error))}") from error


def feature_of(fence: ScenarioFence) -> dict[str, Any]:
    """A zone as GeoJSON."""
    properties = {
        "id": fence.id,
        "priority": fence.priority,
        "effective_from": fence.effective_from.isoformat().replace("+00:00", "Z"),
    }
    geometry = {"type": "Polygon", "coordinates": [[list(point) for point in ring] for ring in fence.rings]}
    return {"type": "Feature", "id": fence.id, "properties": properties, "geometry": geometry}


def _write_track(path: Path, track: Track) -> None:
    # csv writes the line ends itself, and each float by its shortest text that reads back as the same double.
    with path.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.writer(lines)
        writer.writerow(TRACK_COLUMNS)
        for device, fixes in track.items():
            writer.writerows((device, *fix) for fix in fixes)


def _read_track(path: Path) -> Track:
    track: dict[str, list[RecordedFix]] = {}
    with path.open(newline="", encoding="utf-8") as lines:
        reader = csv.DictReader(lines)
        for row in reader:
            if None in row.values():
                raise ScenarioError(f"{path}, line {reader.line_num}: the row has fewer fields than there are columns")
            heading = float(row["heading_deg"]) if row["heading_deg"] else None
            fix = RecordedFix(
                int(row["time_ms"]), float(row["latitude"]), float(row["longitude"]), heading, row["trip"]
            )
            # JSON has no NaN: what is read here is sent as JSON.
            if not all(map(math.isfinite, (fix.latitude, fix.longitude, heading or 0.0))):
                raise ScenarioError(f"{path}, line {reader.line_num}: a position or heading is not a finite number")
            track.setdefault(row["device"], []).append(fix)
    fixes: dict[str, Sequence[RecordedFix]] = {device: tuple(rows) for device, rows in track.items()}
    return fixes
