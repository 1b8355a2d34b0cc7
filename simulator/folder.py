"""The files of a scenario."""

import json
from pathlib import Path
from typing import Any

from simulator.drive import roads_of
from simulator.errors import ScenarioError
from simulator.fleet import contracts_toml
from simulator.roads import MAIN_LIMIT_MPS, Plane, Roads
from simulator.scenario import Scenario, ScenarioFence
from waybill.settings import one_line, read_file

SCENARIO_FILE = "scenario.json"
FENCES_FILE = "fences.geojson"
VEHICLES_FILE = "vehicles.json"
CONTRACTS_FILE = "contracts.toml"
STREETS_FILE = "streets.geojson"


def write_folder(folder: Path, scenario: Scenario) -> tuple[Path, ...]:
    """Write the files of a scenario and return their paths. Raises ScenarioError."""
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
        (folder / STREETS_FILE).write_text(json.dumps(streets_of(scenario)) + "\n", encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"cannot write the scenario to {folder}: {error}") from error
    return tuple(folder / name for name in (*files, CONTRACTS_FILE, STREETS_FILE))


def read_folder(folder: Path) -> Scenario:
    """Raises ScenarioError."""
    path = folder / SCENARIO_FILE
    try:
        return Scenario.model_validate_json(read_file(path))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error}); write it with `fleet-simulator scenario`") from error
    except ValueError as error:
        raise ScenarioError(f"{path}: {one_line(str(error))}") from error


def streets_of(scenario: Scenario) -> dict[str, Any]:
    """The streets of all regions as a GeoJSON FeatureCollection: main and side streets of each as a MultiLineString."""
    roads = roads_of(scenario)
    features = [
        {
            "type": "Feature",
            "properties": {"region": region.id, "class": "main" if main else "side"},
            "geometry": {
                "type": "MultiLineString",
                "coordinates": _blocks(roads[region.id], Plane(region.latitude, region.longitude), main=main),
            },
        }
        for region in scenario.regions
        for main in (False, True)
    ]
    return {"type": "FeatureCollection", "features": features}


def _blocks(roads: Roads, plane: Plane, *, main: bool) -> list[list[list[float]]]:
    """Each street between two junctions, once, as two (longitude, latitude) places to a decimetre."""
    places = [[round(longitude, 6), round(latitude, 6)] for latitude, longitude in map(plane.degrees, roads.junctions)]
    return [
        [places[start], places[street.to]]
        for start, streets in enumerate(roads.streets)
        for street in streets
        if start < street.to and (street.limit_mps >= MAIN_LIMIT_MPS) is main
    ]


def feature_of(fence: ScenarioFence) -> dict[str, Any]:
    properties = {
        "id": fence.id,
        "priority": fence.priority,
        "effective_from": fence.effective_from.isoformat().replace("+00:00", "Z"),
    }
    geometry = {"type": "Polygon", "coordinates": [[list(point) for point in ring] for ring in fence.rings]}
    return {"type": "Feature", "id": fence.id, "properties": properties, "geometry": geometry}
