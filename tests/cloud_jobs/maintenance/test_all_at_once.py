"""Two ingests, three maintenances, usage and a reader at once, each killed anywhere: nothing is twice, or missing."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cloud_jobs.errors import CloudError
from cloud_jobs.lake.erasures import Erasure, declare_erasure, read_erasures
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.compaction import MaintenancePoint
from cloud_jobs.usage import job
from tests.cloud_jobs.ingest.centre import NOON_US, batch, check, coverage, new_ingest, seqs_in_table, take_in
from tests.cloud_jobs.ingest.test_decoding import Message
from tests.cloud_jobs.ingest.test_two_ingests import Ingest, Killed, Scheduler
from tests.cloud_jobs.maintenance.test_erasing import ERASURE
from tests.cloud_jobs.maintenance.upkeep import positions, run
from tests.cloud_jobs.usage.test_any_order import compute, in_force, publish, small_groups
from tests.new_lakes import new_lake
from tests.system.lake_of_fixes import square
from waybill.record import Batch, IntervalSet, Position, Record, Tombstone, encode

__all__ = ["small_groups"]  # a fixture for all tests here

POSITIONS = IntervalSet([(100, 106)])


class Upkeep:
    """Maintenance again and again, as one that is started anew after each end."""

    def __init__(self, lake: Lake, scheduler: Scheduler, name: str, random: Random, kills: int = 2) -> None:
        self._lake = lake
        self._scheduler = scheduler
        self._name = name
        self._random = random
        self._kills = kills

    def __call__(self) -> None:
        for _ in range(4):
            self._scheduler.step(self._name)
            try:
                erasures = [ERASURE] if self._random.random() < 0.3 else []
                run(self._lake, *erasures, reached=self._reached)
            except (CloudError, Killed):
                pass

    def _reached(self, point: MaintenancePoint) -> None:
        if self._kills and self._random.random() < 0.15:
            self._kills -= 1
            raise Killed
        self._scheduler.step(self._name)


class UsageRuns:
    """`usage` again and again, as a timer starts it; between its reads and writes others have their turns."""

    def __init__(self, lake: Lake, scheduler: Scheduler, random: Random, kills: int = 3) -> None:
        self._lake = lake
        self._scheduler = scheduler
        self._random = random
        self._kills = kills
        self.committed = 0

    def __call__(self) -> None:
        for _ in range(12):
            for _ in range(4):
                self._scheduler.step("usage")
            with suppress(CloudError, Killed):
                self.committed += compute(self._lake).touched_hours > 0

    def between(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step of a run, at both ends of which others may come first, or the process may be killed."""

        def run_step(*arguments: Any, **named: Any) -> Any:
            self._reached()
            made = step(*arguments, **named)
            self._reached()
            return made

        return run_step

    def _reached(self) -> None:
        if self._kills and self._random.random() < 0.1:
            self._kills -= 1
            raise Killed
        self._scheduler.step("usage")


class Reader:
    """What a job that computes from the records sees: each at most once, and positions missing only if erased."""

    def __init__(self, lake: Lake, scheduler: Scheduler) -> None:
        self._lake = lake
        self._scheduler = scheduler
        self._positions = 0

    def __call__(self) -> None:
        for _ in range(12):
            self._scheduler.step("reader")
            opened = self._lake.open("records")
            self._scheduler.step("reader")
            erased = read_erasures(self._lake).before("acme", "d") is not None
            self._scheduler.step("reader")
            rows = self._lake.rows("records", ["tenant", "device", "seq", "kind"], opened=opened)
            ids = [(row["tenant"], row["device"], row["seq"]) for row in rows.to_pylist()]
            assert len(ids) == len(set(ids)), "a record is there twice"
            found = rows["kind"].to_pylist().count("position")
            assert erased or found >= self._positions, "positions are gone, and no erasure says so"
            self._positions = found


SQUARE = square("square")


def driven() -> list[Message]:
    """Through the square, a fix each minute, by two tenants' devices of one name; of these nothing is erased."""
    sent: list[Message] = []
    for tenant, north, last in (("acme", 0.005, 22), ("other", 0.006, 10)):
        for first in range(1, last, 3):
            seqs = range(first, first + 4)
            records = [
                Record(seq, NOON_US + seq * 60_000_000, Position(latitude=north, longitude=seq / 1500 - 0.002))
                for seq in seqs
            ]
            sent.append((tenant, encode(Batch("f", 7, max(seqs), tuple(records), ()))))
    return sent


def usage_of_drives(lake: Lake) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {key: found for key, found in in_force(lake).items() if key[1] == "f"}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_ingests_maintenances_usage_and_a_reader_at_once_keep_each_record_and_each_hour_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = new_lake(tmp_path / "whole")
    publish(whole, SQUARE)
    take_in(whole, new_ingest(whole), driven())
    compute(whole)
    random = Random(seed)
    lake = new_lake(tmp_path / "lake")
    publish(lake, SQUARE)
    scheduler = Scheduler(seed)
    sent: list[Message] = [batch(*range(first, first + 3), head=120) for first in range(1, 40, 2)]
    sent += [batch(head=120, lost=(Tombstone(50, 52, "age"),)), batch(1, 2, device="e")]
    sent += [positions(*range(first, first + 3)) for first in (100, 102, 104)]
    sent += driven()
    usage = UsageRuns(lake, scheduler, random)
    with monkeypatch.context() as steps:
        for name in ("next_increment", "fences_in", "note_fences", "commit_written", "_run"):
            steps.setattr(job, name, usage.between(getattr(job, name)))
        scheduler.run(
            one=Ingest(lake, scheduler, "one", random.sample(sent, len(sent)), random),
            other=Ingest(lake, scheduler, "other", random.sample(sent, len(sent)), random),
            first=Upkeep(lake, scheduler, "first", random),
            second=Upkeep(lake, scheduler, "second", random),
            third=Upkeep(lake, scheduler, "third", random),
            usage=usage,
            reader=Reader(lake, scheduler),
        )
    assert usage.committed
    compute(lake)
    run(lake, ERASURE)
    compute(lake)
    assert usage_of_drives(lake) == usage_of_drives(whole)
    assert {(tenant, zone) for tenant, _, _, zone in usage_of_drives(lake)} >= {("acme", "square"), ("other", "square")}
    assert IntervalSet.of(seqs_in_table(lake)) == IntervalSet([(1, 41)])
    assert len(seqs_in_table(lake)) == 41
    assert check(lake, "e") == IntervalSet([(1, 2)])
    assert (check(lake, "f"), check(lake, "f", "other")) == (IntervalSet([(1, 22)]), IntervalSet([(1, 10)]))
    known = coverage(lake)
    assert known.received == IntervalSet([(1, 41)]) | POSITIONS
    assert (known.head, known.declared_lost) == (120, IntervalSet([(50, 52)]))
    assert lake.rows("quarantine").num_rows == 0
    assert len(lake.open("records").file_uris()) <= 2


@pytest.mark.parametrize("point", list(MaintenancePoint))
def test_killed_at_any_point_and_run_again_nothing_is_lost_and_nothing_is_twice(
    tmp_path: Path, point: MaintenancePoint
) -> None:
    lake = new_lake(tmp_path)
    writer = new_ingest(lake)
    for seq in range(1, 10):
        take_in(lake, writer, [batch(seq)], [positions(seq, device="f")])
    declare_erasure(lake, Erasure("acme", "f", ERASURE.before), ERASURE.before)

    def kill(reached: MaintenancePoint) -> None:
        if reached is point:
            raise Killed

    with pytest.raises(Killed):
        run(lake, reached=kill)
    take_in(lake, writer, [batch(10)])
    run(lake)
    assert check(lake) == IntervalSet([(1, 10)])
    assert seqs_in_table(lake, "f") == []
    assert len(lake.open("records").file_uris()) == 1
