"""Scenarios: what they hold, what they refuse, and the files they are written to."""

import ast
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from simulator import (
    Scenario,
    ScenarioError,
    drive,
    generated_scenario,
    read_folder,
    truth,
    with_two_tenants,
    write_folder,
)
from tests.truth import facts


def fleet(**changes: Any) -> Scenario:
    return generated_scenario(**{"seed": 7, "vehicles": 20, "regions": ("eu", "us"), **changes})


@given(seed=st.integers(0, 2**32), vehicles=st.integers(1, 60), regions=st.permutations(["eu", "us", "ap"]))
def test_a_scenario_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, seed: int, vehicles: int, regions: list[str]
) -> None:
    scenario = fleet(seed=seed, vehicles=vehicles, regions=tuple(regions))
    folder = tmp_path_factory.mktemp("scenario")
    write_folder(folder, scenario)
    assert read_folder(folder) == scenario


def test_every_vehicle_has_one_account_and_every_zone_a_price() -> None:
    scenario = fleet()
    owned = [vehicle.device for account in scenario.accounts for vehicle in account.vehicles]
    assert sorted(owned) == sorted(vehicle.device for vehicle in scenario.vehicles)
    for tariff in scenario.tariffs:
        priced = {price.zone for price in tariff.prices if price.meter == "distance"}
        assert priced == {"", *(fence.id for fence in scenario.fences)}
        assert {price.meter for price in tariff.prices} == {"distance", "entry", "duration"}


@pytest.mark.parametrize("vehicles", [2, 4, 7])
def test_of_two_tenants_the_devices_have_equal_names_and_drive_as_they_did(vehicles: int) -> None:
    plain = fleet(vehicles=vehicles, duration_s=120)
    made = with_two_tenants(plain)
    acme, kaze = ({(one.tenant, one.device) for one in account.vehicles} for account in made.accounts)
    assert (acme, kaze & acme) == ({("fleet", one.device) for one in plain.accounts[0].vehicles}, set())
    assert {device for tenant, device in kaze if tenant == "kaze"} <= {device for _, device in acme}
    assert len(kaze) == len(plain.accounts[1].vehicles)
    assert {one.sender for one in made.vehicles} == acme | kaze
    assert [*drive(made)] == [*drive(plain)]


def test_the_files_have_the_form_that_is_published(tmp_path: Path) -> None:
    write_folder(tmp_path, fleet())
    fences = json.loads((tmp_path / "fences.geojson").read_text())
    assert fences["type"] == "FeatureCollection"
    assert fences["features"][0]["properties"].keys() == {"id", "priority", "effective_from"}
    assert any(len(feature["geometry"]["coordinates"]) == 2 for feature in fences["features"]), "one has a hole"
    contracts = tomllib.loads((tmp_path / "contracts.toml").read_text())
    price = {"meter": "distance", "zone": "", "unit": "km", "unit_amount": "0.4500"}
    assert contracts["tariff"][0]["prices"][0] == price
    assigned = contracts["account"][0]["devices"][0]
    assert (assigned["tenant"], assigned["device"], assigned["region"]) == ("fleet", "eu-0001", "eu")
    vehicle = json.loads((tmp_path / "vehicles.json").read_text())[0]
    assert vehicle == {"device": "eu-0001", "region": "eu", "account": "acme", "tenant": "fleet", "device_id": ""}
    streets = json.loads((tmp_path / "streets.geojson").read_text())["features"]
    assert {(one["properties"]["region"], one["properties"]["class"]) for one in streets} == {
        (region, kind) for region in ("eu", "us") for kind in ("main", "side")
    }
    assert all(one["geometry"]["type"] == "MultiLineString" for one in streets)


def test_a_vehicle_in_an_unknown_region_is_refused() -> None:
    vehicles = [{"device": "eu-0001", "region": "mars", "account": "acme"}]
    with pytest.raises(ValidationError, match="unknown regions: mars"):
        Scenario.model_validate({**fleet().model_dump(), "vehicles": vehicles})


def test_a_folder_without_scenario_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="write it with `fleet-simulator scenario`"):
        read_folder(tmp_path)


TRUTH = Path(truth.__file__).parent
OF_TESTS = Path(facts.__file__).parent
FILES = [*TRUTH.glob("*.py"), *(path for path in OF_TESTS.glob("*.py") if not path.name.startswith("test_"))]
ALLOWED = {"simulator", "geographiclib"}
STANDARD = {
    "base64",
    "bisect",
    "collections",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "itertools",
    "json",
    "math",
}
CONTRACTS = {"tomllib", "zoneinfo"}


@pytest.mark.parametrize("path", sorted(FILES), ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_the_truth_imports_nothing_that_it_judges(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            top = name.split(".")[0]
            if path.parent == OF_TESTS and name.startswith("tests.truth"):
                continue
            assert top in ALLOWED | STANDARD | CONTRACTS | {"pathlib", "typing"}, f"{path.name} imports {name}"
            assert top != "simulator" or name.startswith("simulator.truth"), f"{path.name} imports {name}"
