"""The lake on real Delta tables, without Spark: made, read at a moment, and what its commits say that they cover."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.schemas import REFERENCE, TABLES, USAGE, without
from cloud_jobs.lake.tables import Condition, Lake
from tests.system.lake_of_fixes import cover
from waybill.record import IntervalSet, Tombstone

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)
WITHOUT_PLACES = pa.schema([field for field in REFERENCE if field.name != "place"])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path)
    made.create()
    return made


def published(name: str, place: str | None = None) -> dict[str, Any]:
    return {
        "kind": "fence",
        "id": name,
        "body": "{}",
        "published_at": MOMENT,
        "place": place,
        "publication_id": name,
        "digest": "",
        "collected_at": MOMENT,
        "commit_number": 1,
    }


def test_a_lake_is_made_with_all_its_tables_and_making_it_again_changes_nothing(lake: Lake) -> None:
    versions = {name: lake.open(name).version() for name in TABLES}
    lake.create()
    assert {name: lake.open(name).version() for name in TABLES} == versions
    assert lake.open("records").metadata().partition_columns == ["device_date"]


def made_by_another_version(folder: Path, table: str, schema: pa.Schema) -> Lake:
    lake = Lake(folder)
    DeltaTable.create(lake.path(table), schema=schema)
    return lake


OPENINGS: list[Callable[[Lake, str], object]] = [
    lambda lake, _: lake.create(),
    lambda lake, table: lake.open(table),
    lambda lake, table: lake.open(table, 0),
    lambda lake, table: lake.rows(table),
    lambda lake, table: lake.check(table),
]


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_table_of_another_version_is_refused_by_its_columns_however_it_is_opened(
    tmp_path: Path, opening: Callable[[Lake, str], object]
) -> None:
    lake = made_by_another_version(tmp_path / "more", "usage", USAGE.append(pa.field("colour", pa.string())))
    with pytest.raises(LakeError, match=r"^table usage in .* another version: .* not know its columns colour; begin"):
        opening(lake, "usage")
    lake = made_by_another_version(tmp_path / "less", "usage", without(USAGE, "zone", "seq_ranges"))
    with pytest.raises(LakeError, match=r"^table usage in .* misses the columns zone, seq_ranges; begin"):
        opening(lake, "usage")


def test_a_column_that_a_table_did_not_have_yet_is_null_in_its_rows(tmp_path: Path) -> None:
    old = WITHOUT_PLACES
    lake = made_by_another_version(tmp_path, "reference", old)
    row = {name: value for name, value in published("a").items() if name != "place"}
    write_deltalake(lake.path("reference"), pa.Table.from_pylist([row], schema=old), mode="append")
    assert [row["place"] for row in lake.rows("reference").to_pylist()] == [None]
    lake.create()
    lake.append("reference", [published("b", "1:1")])
    assert {row["id"]: row["place"] for row in lake.rows("reference").to_pylist()} == {"a": None, "b": "1:1"}


def merged(lake: Lake, *rows: dict[str, Any]) -> None:
    made = pa.Table.from_pylist([*rows], schema=REFERENCE)
    merge = lake.open("reference").merge(made, "old.id = new.id", source_alias="new", target_alias="old")
    merge.when_not_matched_insert_all().execute()


def appended(lake: Lake, *rows: dict[str, Any]) -> None:
    lake.append("reference", [*rows])


def without_statistics(lake: Lake, *rows: dict[str, Any]) -> None:
    lake.open("reference").alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    lake.append("reference", [*rows])


def checkpointed(lake: Lake, *rows: dict[str, Any]) -> None:
    lake.append("reference", [*rows])
    lake.open("reference").create_checkpoint()


LONG = "x" * 3_000


@pytest.mark.parametrize("write", [merged, appended, without_statistics, checkpointed])
@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ([("kind", "=", "fence")], {"a", LONG, "c"}),
        ([("id", "=", LONG)], {LONG}),
        ([("id", ">", "c")], {LONG}),
        ([("place", "=", "1:1")], {"c"}),
        ([("published_at", "<=", MOMENT), ("id", "<", "c")], {"a"}),
        ([("published_at", "<", MOMENT)], set()),
        ([("id", "in", pa.array(["a", "c", "nobody"]))], {"a", "c"}),
        ([("id", "in", pa.array([], pa.string()))], set()),
    ],
    ids=str,
)
def test_conditions_find_rows_however_they_were_written(
    lake: Lake, write: Callable[..., None], conditions: list[Condition], expected: set[str]
) -> None:
    write(lake, published("a"), published(LONG))
    write(lake, published("c", "1:1"))
    found = lake.rows("reference", ["id"], where=conditions)
    assert found.schema == pa.schema([REFERENCE.field("id")])
    assert set(found["id"].to_pylist()) == expected


@pytest.mark.parametrize("write", [merged, appended, checkpointed])
def test_a_condition_opens_only_the_files_that_can_hold_such_rows(lake: Lake, write: Callable[..., None]) -> None:
    write(lake, published("a"))
    (needless,) = Path(lake.path("reference")).glob("*.parquet")
    write(lake, published("b"))
    needless.unlink()
    assert lake.rows("reference", ["body"], where=[("id", "=", "b")]).num_rows == 1
    with pytest.raises(LakeError, match="cannot be read"):
        lake.rows("reference", where=[("kind", "=", "fence")])


def known(device: str, epoch: int, *received: tuple[int, int], head: int = 9) -> dict[DeviceStream, Coverage]:
    return {DeviceStream("acme", device, epoch): Coverage(IntervalSet(received), (Tombstone(8, 9, "age"),), head)}


def test_coverage_is_that_of_the_devices_asked_for_and_what_became_known_of_a_stream_is_united(lake: Lake) -> None:
    assert lake.coverage() == {}
    cover(lake, known("d", 1, (1, 3)) | known("d", 2) | known("e", 1))
    cover(lake, known("d", 1, (4, 5)))
    found = lake.coverage([TenantDevice("acme", "d"), TenantDevice("acme", "nobody"), TenantDevice("other", "e")])
    assert sorted(found) == [DeviceStream("acme", "d", 1), DeviceStream("acme", "d", 2)]
    assert found["acme", "d", 1].received == IntervalSet([(1, 5)])  # type: ignore[index]  # a stream is a tuple
    assert sorted(lake.coverage()) == [("acme", "d", 1), ("acme", "d", 2), ("acme", "e", 1)]
    assert lake.coverage([]) == {}
