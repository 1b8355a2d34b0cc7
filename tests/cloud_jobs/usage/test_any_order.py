"""Usage depends on the records, the fences and the settings alone: not on order, splits, lateness, groups or clocks."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloud_jobs.lake.erasures import Erasure, declare_erasure
from cloud_jobs.lake.schemas import LATE_POSITIONS, OBSERVED, QUANTITIES, QUARTERS, WHOLE_DEVICE
from cloud_jobs.lake.snapshot_reads import rows_in_force
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.values import row_digest
from cloud_jobs.usage import devices as groups
from cloud_jobs.usage import job, metering
from cloud_jobs.usage.devices import MAX_VEHICLES, UsageSums, VehicleUsage
from cloud_jobs.usage.job import UsageRun, compute_usage
from geo.spatial import ENGINE_VERSION, TrackSettings
from tests.cloud_jobs.publications import rows_of
from tests.system.lake_of_fixes import LakeFix, ingest, lake_of, square

START = datetime(2026, 1, 5, 21, tzinfo=UTC)
RULES = TrackSettings(max_gap_s=2_400.0)
GATE: dict[str, Any] = {
    "type": "Feature",
    "properties": {"id": "gate", "gate": True},
    "geometry": {"type": "LineString", "coordinates": [[0.005, -0.005], [0.005, 0.02]]},
}
FENCES = [
    square("square"),
    square("square", effective_from="2026-01-06T01:10:00Z", label="the same square"),
    square("east", 0.01, effective_from="2026-01-05T23:30:00Z"),
    GATE,
]


ONE_MACHINE: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_LEAST_RECORDS", 1)
    monkeypatch.setattr(job, "run_on_executors", lambda _, work, items: [work(item) for item in items])


def compute(lake: Lake, rules: TrackSettings = RULES) -> UsageRun:
    return compute_usage(ONE_MACHINE, lake, rules)


def in_force(lake: Lake) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Of each key the amounts that were committed last, without those that are nothing."""
    rows = sorted(lake.rows("usage").to_pylist(), key=lambda row: row["commit_number"])
    keys, amounts = ("tenant", "device", "hour", "zone"), (*QUANTITIES, "seq_ranges", "fence_version", "digest")
    newest = {tuple(row[name] for name in keys): tuple(row[name] for name in amounts) for row in rows}
    return {key: found for key, found in sorted(newest.items()) if found[len(QUANTITIES)] != "{}"}


def publish(lake: Lake, *features: dict[str, Any]) -> None:
    lake.append("reference", rows_of("fence", features))


Step = tuple[int, int, int] | tuple[int, int, int, str]


def drive(tenant: str, device: str, steps: Sequence[Step]) -> list[LakeFix]:
    time, fixes = START, []
    for seq, (wait_s, north, east, *kind) in enumerate(steps, 1):
        time += timedelta(seconds=wait_s)
        fix = LakeFix(device, seq, time, north / 1000, east / 1000, tenant=tenant)
        fixes.append(fix._replace(kind=kind[0]) if kind else fix)
    return fixes


kinds = st.sampled_from(["position", "position", "position", "event", "signal"])
step = st.tuples(st.integers(1, 3_600), st.integers(-5, 25), st.integers(-5, 25), kinds)
steps = st.lists(step, min_size=1, max_size=25)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(steps, steps, steps), st.randoms(use_true_random=False), st.integers(1, 5))
def test_any_order_split_and_lateness_gives_the_same_usage(
    tmp_path_factory: pytest.TempPathFactory, drives: Any, random: Any, commits: int
) -> None:
    named = zip([("acme", "eu-1"), ("other", "eu-1"), ("acme", "eu-2")], drives, strict=True)
    fixes = [fix for name, moves in named for fix in drive(*name, moves)]
    whole = lake_of(tmp_path_factory.mktemp("whole"), FENCES)
    ingest(whole, fixes)
    compute(whole)
    late = lake_of(tmp_path_factory.mktemp("late"))
    random.shuffle(fixes)
    for at in range(commits):
        ingest(late, fixes[at::commits])
        if random.random() < 0.3:
            publish(late, *FENCES)
        if random.random() < 0.5:
            compute(late)
        if random.random() < 0.3:
            late.open("records").optimize.compact()
            late.open("usage").optimize.compact()
    publish(late, *FENCES)
    compute(late)
    assert json.dumps([*in_force(late).items()], default=str) == json.dumps([*in_force(whole).items()], default=str)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = lake_of(tmp_path / "lake")
    ingest(made, drive("acme", "eu-1", [(600, 5, at) for at in range(-10, 20)]))
    compute(made)
    return made


def test_a_fence_that_is_published_late_changes_the_hours_near_it_and_no_others(lake: Lake) -> None:
    before = in_force(lake)
    publish(lake, square("far", 50.0))
    far = compute(lake)
    assert (far.fence_changes, far.touched_hours, far.rows) == (1, 0, 0)
    publish(lake, square("square"))
    run = compute(lake)
    assert (run.fence_changes, run.commits_behind) == (1, 0)
    assert {zone for _, _, _, zone in in_force(lake)} == {"", "*", "square"}
    assert 0 < run.touched_hours < len(before)
    assert compute(lake).fence_changes == 0


def test_hours_of_erased_positions_keep_their_ways_and_late_fixes_there_are_named(lake: Lake) -> None:
    before = in_force(lake)
    declare_erasure(lake, Erasure("acme", "eu-1", START + timedelta(hours=2)), START + timedelta(days=9))
    ingest(lake, [LakeFix("eu-1", 900, START + timedelta(minutes=65), 0.02, 0.02)])
    run = compute(lake)
    assert (run.touched_hours, run.rows, run.records_after_erasure) == (0, 2, 1)
    ingest(lake, [LakeFix("eu-1", 901, START + timedelta(minutes=245), 0.02, 0.02)])
    assert compute(lake).rows
    hour, early = START + timedelta(hours=1), START + timedelta(hours=3)
    after = {key: found for key, found in in_force(lake).items() if key[2] < early}
    named = after.pop(("acme", "eu-1", hour, LATE_POSITIONS))
    assert [*named[: len(QUANTITIES)]] == [[0] * QUARTERS] * len(QUANTITIES)
    assert named[len(QUANTITIES)] == '{"7":[[900,900]]}'
    whole = "acme", "eu-1", hour, WHOLE_DEVICE
    size = QUANTITIES.index("content_bytes")
    assert after.pop(whole)[size][0] > before[whole][size][0]
    assert after == {key: found for key, found in before.items() if key[2] < early and key != whole}


def test_what_needs_no_position_is_metered_however_late_it_comes(lake: Lake, tmp_path: Path) -> None:
    def late(first: int) -> list[LakeFix]:
        times = [START + timedelta(minutes=minute) for minute in (65, 66, 118)]
        return [LakeFix("eu-1", seq, time, 0.0, 0.0, kind="event") for seq, time in enumerate(times, first)]

    always = lake_of(tmp_path / "always")
    ingest(always, drive("acme", "eu-1", [(600, 5, at) for at in range(-10, 20)]))
    ingest(always, [*late(900), *late(910)])
    compute(always)
    declare_erasure(lake, Erasure("acme", "eu-1", START + timedelta(hours=2)), START + timedelta(days=9))
    for first in (900, 910):
        ingest(lake, late(first))
        assert compute(lake).records_after_erasure == 3
    assert in_force(lake) == in_force(always)
    assert compute(lake).rows == 0


def test_what_a_run_finds_unchanged_is_not_written_again(lake: Lake) -> None:
    ingest(lake, [LakeFix("eu-1", 900, START + timedelta(minutes=60), 0.005, -0.005)])
    run = compute(lake)
    # of equal times the first fix counts: of the device as a whole each record
    assert (run.touched_hours > 0, run.rows) == (True, 1)


def test_of_another_engine_every_row_is_computed_again_also_of_hours_without_a_fix(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(lake, [LakeFix("eu-1", 900, START + timedelta(days=3), 0.0, 0.0, kind="event")])
    compute(lake)
    before = in_force(lake)
    assert (engine_versions(lake), compute(lake).rows) == ({ENGINE_VERSION}, 0)
    for module in (job, metering):
        monkeypatch.setattr(module, "ENGINE_VERSION", ENGINE_VERSION + 1)
    run = compute(lake)
    assert (run.rows, run.fence_changes, engine_versions(lake)) == (len(before), 1, {ENGINE_VERSION + 1})
    # all but the digest is the same
    assert {key: found[:-1] for key, found in in_force(lake).items()} == {key: one[:-1] for key, one in before.items()}
    assert not compute(lake)


def test_the_digest_of_each_row_is_that_of_what_it_says(lake: Lake) -> None:
    publish(lake, *FENCES)
    compute(lake)
    for row in newest(lake):
        rests_on = row["seq_ranges"], row["fence_version"], row["engine_version"]
        names, hour = (row["tenant"], row["device"]), round(row["hour"].timestamp()) // 3600
        amounts, observed = ([row[name] for name in of] for of in (QUANTITIES, OBSERVED))
        said = {"observed": observed, **{name: row[name] for name in ("unreadable", "counters")}}
        assert row["digest"] == row_digest(names, hour, row["zone"], amounts, rests_on, **said)


def engine_versions(lake: Lake) -> set[int]:
    return {row["engine_version"] for row in newest(lake)}


def newest(lake: Lake) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = rows_in_force(lake.rows("usage")).to_pylist()
    return rows


def test_a_run_says_for_which_vehicles_it_computed_how_much(tmp_path: Path) -> None:
    made = lake_of(tmp_path / "lake", [square("square")])
    ingest(made, drive("acme", "eu-1", [(600, 5, at) for at in range(-10, 20)]))
    ingest(made, drive("acme", "eu-2", [(600, 5, 0)] * 3))
    run = compute(made)
    rows = made.rows("usage").to_pylist()
    ways = {name: sum(sum(row["distance_mm"]) for row in rows if row["device"] == name) for name in ("eu-1", "eu-2")}
    entries = sum(sum(row["entries"]) for row in rows)
    assert ways["eu-1"] > ways["eu-2"] == 0
    assert [(one.device, one.distance_mm) for one in run.sums.listed] == [*ways.items()]
    assert (run.sums.vehicles, run.sums.distance_mm, run.sums.entries) == (2, ways["eu-1"], entries)
    assert entries > 0
    assert compute(made).sums == UsageSums()


def test_the_list_of_vehicles_is_bounded_and_its_sums_are_not() -> None:
    one = VehicleUsage("acme", "eu-1", 1, 5, 2)
    parts = [UsageSums((one._replace(device=f"eu-{at}"),), 1, 5, 2) for at in range(MAX_VEHICLES + 3)]
    found = UsageSums.total(parts)
    assert (len(found.listed), found[1:]) == (MAX_VEHICLES, (MAX_VEHICLES + 3, 5 * len(parts), 2 * len(parts)))
