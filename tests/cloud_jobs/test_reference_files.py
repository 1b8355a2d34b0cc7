"""Files of fences, tariffs and accounts: each fault has its file and place."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cloud_jobs.errors import ReferenceFileError
from cloud_jobs.reference.checks import check_reference
from cloud_jobs.reference.files import read_reference
from tests.cloud_jobs.publications import rows_of

RING = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0]]
FENCE = {"type": "Feature", "properties": {"id": "a"}, "geometry": {"type": "Polygon", "coordinates": [RING]}}


def file_of(folder: Path, name: str, content: Any) -> Path:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / name


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("fences.geojson", "[1]", "line 1"),
        ("fences.geojson", {"type": "Feature", "properties": None}, "line 1"),
        ("fences.geojson", [FENCE, FENCE | {"geometry": None}], "feature 2"),
        ("fences.geojson", "{", "line 1"),
        ("zones.json", {"type": "FeatureCollection", "features": [{"type": "Feature", "id": 3}]}, "line 1"),
        ("tariffs.json", '[{"id": "t", "prices": []}]', "it has no geometry"),
        ("zones.json", "no JSON", "line 1"),
    ],
)
def test_a_fault_is_named_with_its_file_and_place(tmp_path: Path, name: str, content: Any, fault: str) -> None:
    file = file_of(tmp_path, name, content)
    with pytest.raises(ReferenceFileError) as refused:
        read_reference([file])
    assert any(one.startswith(f"{file}: ") and fault in one for one in refused.value.faults), refused.value
    assert str(refused.value).startswith("nothing was published:\n")


def test_all_faults_of_all_files_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    files = [file_of(tmp_path, "a.json", [{}, {}]), tmp_path / "empty", tmp_path / "absent.json"]
    with pytest.raises(ReferenceFileError) as refused:
        read_reference(files)
    assert [fault.split(": ")[0] for fault in refused.value.faults] == [str(files[at]) for at in (0, 0, 1, 2)]


def test_a_folder_stands_for_its_fences_and_contracts_and_a_version_given_twice_is_one(tmp_path: Path) -> None:
    fences = file_of(tmp_path, "fences.geojson", FENCE)
    rates = file_of(tmp_path, "rates.toml", CONTRACT)
    found = read_reference([tmp_path, fences, rates])
    assert [(one.kind, one.key) for one in found] == [
        ("fence", "a@"),
        ("exchange_rate", "usd-eur@2025-12-31T23:00:00Z"),
    ]


CONTRACT = """
[[exchange_rate]]
id = "usd-eur"
effective_from = 2026-01-01T00:00:00+01:00
currency = "USD"
into = "EUR"
rate = 0.9
source = "European Central Bank"
"""


def test_contracts_in_toml_are_read_as_what_is_published(tmp_path: Path) -> None:
    (version,) = read_reference([file_of(tmp_path, "rates.toml", CONTRACT)])
    assert (version.kind, version.key) == ("exchange_rate", "usd-eur@2025-12-31T23:00:00Z")
    assert json.loads(version.body)["rate"] == "0.9"
    (row,) = rows_of(version.kind, [json.loads(version.body)])
    assert row["id"] == "usd-eur"


CROSSED = [[10, 53.5], [10.1, 53.6], [10.1, 53.5], [10, 53.6], [10, 53.5]]
OPEN = [[10, 53.5], [10.1, 53.5], [10.1, 53.6]]


def fence_with(ring: Any = RING, **properties: Any) -> dict[str, Any]:
    geometry = {"type": "Polygon", "coordinates": [ring]}
    return {"type": "Feature", "properties": {"id": "a", **properties}, "geometry": geometry}


@pytest.mark.parametrize(
    ("feature", "said"),
    [
        (fence_with(CROSSED), "repaired: Self-intersection[10.05 53.55]"),
        (fence_with(OPEN), "an unclosed ring was closed"),
        (fence_with(effective_form="2027-01-01T00:00:00Z"), "did you mean effective_from?"),
        (fence_with(radius=3), "did you mean radius_m?"),
        (fence_with(Priority=3), "did you mean priority?"),
        (fence_with() | {"effective_from": "2027-01-01T00:00:00Z"}, "stands beside its properties"),
    ],
)
def test_what_a_fence_says_and_may_not_mean_is_a_warning_with_its_place(
    tmp_path: Path, feature: dict[str, Any], said: str
) -> None:
    file = file_of(tmp_path, "fences.geojson", [FENCE | {"id": "b", "properties": {}}, feature])
    (one,) = (notice for notice in check_reference([file], None, datetime.now(UTC)).checked.notices)
    assert one.startswith(f"{file}: line 1, feature 2: fence 'a': "), one
    assert said in one


def test_contracts_in_a_file_of_another_name_are_said_to_need_theirs(tmp_path: Path) -> None:
    for text in (CONTRACT, f"# rates\n\n{CONTRACT}"):
        with pytest.raises(ReferenceFileError) as refused:
            read_reference([file_of(tmp_path, "rates.tml", text)])
        assert "name it .toml" in refused.value.faults[0]
    assert len(read_reference([file_of(tmp_path, "fences.tml", [FENCE])])) == 1
