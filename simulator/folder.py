"""The files of a scenario."""

import json
from pathlib import Path
from typing import Any

from simulator.errors import ScenarioError
from simulator.fleet import contracts_toml
from simulator.scenario import Scenario, ScenarioFence
from waybill.settings import one_line, read_file

SCENARIO_FILE = "scenario.json"
FENCES_FILE = "fences.geojson"
VEHICLES_FILE = "vehicles.json"
CONTRACTS_FILE = "contracts.toml"


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
    except OSError as error:
        raise ScenarioError(f"cannot write the scenario to {folder}: {error}") from error
    return tuple(folder / name for name in (*files, CONTRACTS_FILE))


def read_folder(folder: Path) -> Scenario:
    """Raises ScenarioError."""
    path = folder / SCENARIO_FILE
    try:
        return Scenario.model_validate_json(read_file(path))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error}); write it with `fleet-simulator scenario`") from error
    except ValueError as error:
        raise ScenarioError(f"{path}: {one_line(str(error))}") from error


def feature_of(fence: ScenarioFence) -> dict[str, Any]:
    properties = {
        "id": fence.id,
        "priority": fence.priority,
        "effective_from": fence.effective_from.isoformat().replace("+00:00", "Z"),
    }
    geometry = {"type": "Polygon", "coordinates": [[list(point) for point in ring] for ring in fence.rings]}
    return {"type": "Feature", "id": fence.id, "properties": properties, "geometry": geometry}
