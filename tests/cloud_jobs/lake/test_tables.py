"""The lake on real Delta tables, without Spark: made, read at a moment, and what its commits say that they cover."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.errors import LakeError
from cloud_jobs.lake.coverage import Coverage, DeviceStream, TenantDevice
from cloud_jobs.lake.erasures import Erasure, Erasures, declare_erasure, is_erased
from cloud_jobs.lake.schemas import RECORDS, REFERENCE, TABLES, USAGE, without
from cloud_jobs.lake.snapshot_reads import rows_in_force
from cloud_jobs.lake.snapshots import note_tracks, read_snapshot, take_snapshot
from cloud_jobs.lake.tables import TRACKS, Condition, Lake
from geo.spatial import TrackSettings
from tests.cloud_jobs.lake.metered import HOUR
from tests.new_lakes import new_lake
from tests.system.lake_of_fixes import cover, derive, lake_of
from tests.usage_rows import usage_row
from waybill.record import IntervalSet, Tombstone

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def lake_of_tables(tmp_path: Path) -> Lake:
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


def test_a_lake_is_made_with_all_its_tables_and_making_it_again_changes_nothing(lake_of_tables: Lake) -> None:
    versions = {name: lake_of_tables.open(name).version() for name in TABLES}
    lake_of_tables.create()
    assert {name: lake_of_tables.open(name).version() for name in TABLES} == versions
    assert lake_of_tables.open("records").metadata().partition_columns == ["device_date"]


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
    with pytest.raises(LakeError, match=r"^table usage in .* another version: its columns colour differ; begin"):
        opening(lake, "usage")
    lake = made_by_another_version(tmp_path / "less", "usage", without(USAGE, "zone", "seq_ranges"))
    with pytest.raises(LakeError, match=r"its columns .*seq_ranges.*zone.* differ; begin"):
        opening(lake, "usage")


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
    lake_of_tables: Lake, write: Callable[..., None], conditions: list[Condition], expected: set[str]
) -> None:
    write(lake_of_tables, published("a"), published(LONG))
    write(lake_of_tables, published("c", "1:1"))
    found = lake_of_tables.rows("reference", ["id"], where=conditions)
    assert found.schema == pa.schema([REFERENCE.field("id")])
    assert set(found["id"].to_pylist()) == expected


@pytest.mark.parametrize("write", [merged, appended, checkpointed])
def test_a_condition_opens_only_the_files_that_can_hold_such_rows(
    lake_of_tables: Lake, write: Callable[..., None]
) -> None:
    write(lake_of_tables, published("a"))
    (needless,) = Path(lake_of_tables.path("reference")).glob("*.parquet")
    write(lake_of_tables, published("b"))
    needless.unlink()
    assert lake_of_tables.rows("reference", ["body"], where=[("id", "=", "b")]).num_rows == 1
    with pytest.raises(LakeError, match="cannot be read"):
        lake_of_tables.rows("reference", where=[("kind", "=", "fence")])


def known(device: str, epoch: int, *received: tuple[int, int], head: int = 9) -> dict[DeviceStream, Coverage]:
    return {DeviceStream("acme", device, epoch): Coverage(IntervalSet(received), (Tombstone(8, 9, "age"),), head)}


def test_coverage_is_that_of_the_devices_asked_for_and_what_became_known_of_a_stream_is_united(
    lake_of_tables: Lake,
) -> None:
    assert lake_of_tables.coverage() == {}
    cover(lake_of_tables, known("d", 1, (1, 3)) | known("d", 2) | known("e", 1))
    cover(lake_of_tables, known("d", 1, (4, 5)))
    found = lake_of_tables.coverage(
        [TenantDevice("acme", "d"), TenantDevice("acme", "nobody"), TenantDevice("other", "e")]
    )
    assert sorted(found) == [DeviceStream("acme", "d", 1), DeviceStream("acme", "d", 2)]
    assert found["acme", "d", 1].received == IntervalSet([(1, 5)])  # type: ignore[index]  # a stream is a tuple
    assert sorted(lake_of_tables.coverage()) == [("acme", "d", 1), ("acme", "d", 2), ("acme", "e", 1)]
    assert lake_of_tables.coverage([]) == {}


NOW = datetime(2026, 2, 1, tzinfo=UTC)
USUAL = TrackSettings()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path / "lake")


def apply(lake: Lake, tracks: TrackSettings) -> None:
    derive(lake, "usage", states={TRACKS: note_tracks(lake, tracks.model_dump())})


def test_other_settings_are_another_snapshot_and_each_says_its_own(lake: Lake) -> None:
    apply(lake, USUAL)
    first = take_snapshot(lake, NOW)
    apply(lake, TrackSettings(max_gap_s=60))
    second = take_snapshot(lake, NOW)
    assert (first.number, second.number) == (1, 2)
    gaps = [json.loads(read_snapshot(lake, one.id).usage_tracks or "")["max_gap_s"] for one in (first, second)]
    assert gaps == [300.0, 60.0]


def test_a_snapshot_has_its_settings_whatever_becomes_of_their_file(lake: Lake) -> None:
    apply(lake, USUAL)
    taken = take_snapshot(lake, NOW)
    for file in Path(lake.path("applied_tracks")).rglob("*.json"):
        file.unlink()
    assert read_snapshot(lake, taken.id) == taken
    # a new one would say something that nobody knows
    with pytest.raises(LakeError, match="run `cloud-jobs usage`, which writes them again"):
        take_snapshot(lake, NOW)
    note_tracks(lake, USUAL.model_dump())
    assert take_snapshot(lake, NOW) == taken


Key = tuple[str, str, str, int]
KEYS = st.tuples(st.sampled_from(["s", "t"]), st.sampled_from("ab"), st.sampled_from(["", "*", "z"]), st.integers(1, 4))


def table(keys: list[Key], dice: Random) -> pa.Table:
    made = [
        usage_row(device, HOUR, zone, tenant=tenant, commit_number=number, distance_mm=[number, 0, 0, 7])
        for tenant, device, zone, number in keys
    ]
    dice.shuffle(made)
    at = dice.randint(0, len(made))
    # of several files, as a reader has them
    return pa.concat_tables(pa.Table.from_pylist(part, schema=USAGE) for part in (made[:at], made[at:]))


@given(st.lists(KEYS, max_size=30), st.randoms())
def test_of_each_key_the_row_of_the_highest_commit_is_in_force_in_any_order(keys: list[Key], dice: Random) -> None:
    found = rows_in_force(table(keys, dice)).to_pylist()
    expected = {key: max(n for *other, n in keys if (*other,) == key) for key in {key[:3] for key in keys}}
    assert [((row["tenant"], row["device"], row["zone"]), row["commit_number"]) for row in found] == sorted(
        expected.items()
    )
    assert [row["distance_mm"] for row in found] == [[row["commit_number"], 0, 0, 7] for row in found]


def test_two_results_of_one_commit_are_no_usage() -> None:
    rows = [usage_row("d", HOUR, distance_mm=1), usage_row("d", HOUR, distance_mm=2)]
    with pytest.raises(LakeError, match=r"acme/d at 2026-01-05T12:00:00\+00:00 in zone '' was computed twice"):
        rows_in_force(pa.Table.from_pylist(rows, USAGE))
    after = usage_row("d", HOUR, distance_mm=3, commit_number=2)
    assert rows_in_force(pa.Table.from_pylist([*rows, after], USAGE)).to_pylist()[0]["distance_mm"][0] == 3


DAY = timedelta(days=1)
DECLARED = datetime(2026, 3, 1, tzinfo=UTC)


def test_of_all_that_are_of_a_device_the_latest_boundary_holds() -> None:
    declared = [
        Erasure("acme", "d", DECLARED),
        Erasure("acme", "d", DECLARED - DAY),
        Erasure("acme", None, DECLARED - DAY),
    ]
    erasures = Erasures([*declared, Erasure(None, None, DECLARED - 2 * DAY)])
    assert erasures.before("acme", "d") == DECLARED
    assert erasures.before("acme", "e") == DECLARED - DAY
    assert erasures.before("other", "d") == erasures.before(None, "d") == DECLARED - 2 * DAY
    assert Erasures([]).before("acme", "d") is None


def test_a_request_is_declared_although_positions_are_erased_and_says_nothing_of_other_times(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    assert declare_erasure(lake, Erasure("acme", "d", DECLARED), DECLARED)
    assert declare_erasure(lake, Erasure("acme", "d", DECLARED - DAY, DECLARED - 3 * DAY), DECLARED)
    assert not declare_erasure(lake, Erasure("acme", "d", DECLARED - DAY, DECLARED - 2 * DAY), DECLARED)
    assert declare_erasure(lake, Erasure("acme", "d", DECLARED - DAY, DECLARED - 4 * DAY), DECLARED)
    assert declare_erasure(lake, Erasure("acme", "e", DECLARED, DECLARED - DAY), DECLARED)
    assert declare_erasure(lake, Erasure("acme", "e", DECLARED), DECLARED), (
        "a request says nothing of what was before it"
    )


def test_erasures_that_are_declared_at_once_are_numbered_in_the_order_of_their_commits(tmp_path: Path) -> None:
    lake = new_lake(tmp_path)
    with ThreadPoolExecutor(3) as threads:
        made = threads.map(lambda name: declare_erasure(lake, Erasure("acme", name, DECLARED), DECLARED), "abc")
        assert list(made) == [True] * 3
    assert sorted(lake.rows("erasures", ["number"])["number"].to_pylist()) == [1, 2, 3]


names, moments = st.sampled_from("abc"), st.integers(0, 4).map(lambda days: DECLARED + days * DAY)
requests = st.builds(Erasure, names, names, moments, moments)
declared_ones = st.builds(Erasure, st.none() | names, st.none() | names, moments, st.none()) | requests
rows_of_devices = st.lists(
    st.tuples(names, names, st.sampled_from(["position", "signal"]), moments, st.none() | moments, st.booleans())
)


@given(st.lists(declared_ones, max_size=6), rows_of_devices)
def test_a_record_is_erased_if_one_of_the_erasures_is_of_its_device_and_later_than_it(
    erasures: list[Erasure], records: list[tuple[str, str, str, datetime, datetime | None, bool]]
) -> None:
    columns = ("tenant", "device", "kind", "device_time", "received_at", "device_date")
    schema = pa.schema([RECORDS.field(name) for name in columns])
    rows: list[dict[str, Any]] = [
        dict(zip(columns, (*one[:5], one[3].date() if one[5] else None), strict=True)) for one in records
    ]
    expected = [
        any(
            tenant in (None, row["tenant"])
            and device in (None, row["device"])
            and moment < before
            # a data subject asks for records of all kinds
            and (row["kind"] == "position" if since is None else since <= moment)
            for tenant, device, before, since in erasures
        )
        for row in rows
        for moment in [row["device_time"] if row["device_date"] else row["received_at"] or row["device_time"]]
    ]
    assert is_erased(pa.Table.from_pylist(rows, schema=schema), erasures).to_pylist() == expected
