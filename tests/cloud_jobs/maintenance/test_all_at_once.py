"""Two ingests, three maintenances and a reader at once, each killed anywhere: no record twice, and none missing."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from cloud_jobs.errors import CloudError
from cloud_jobs.lake.erasures import Erasure, declare_erasure, read_erasures
from cloud_jobs.lake.tables import Lake
from cloud_jobs.maintenance.rewriting import MaintenancePoint
from telemetry import IntervalSet, Tombstone
from tests.cloud_jobs.ingest.centre import batch, check, coverage, new_ingest, new_lake, seqs_in_table, take_in
from tests.cloud_jobs.ingest.test_two_ingests import Ingest, Killed, Scheduler
from tests.cloud_jobs.maintenance.test_erasing import ERASURE
from tests.cloud_jobs.maintenance.upkeep import positions, run

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
            rows = self._lake.dataset("records", opened).to_table(columns=["device", "seq", "kind"]).to_pylist()
            ids = [(row["device"], row["seq"]) for row in rows]
            assert len(ids) == len(set(ids)), "a record is there twice"
            found = sum(row["kind"] == "position" for row in rows)
            assert erased or found >= self._positions, "positions are gone, and no erasure says so"
            self._positions = found


@pytest.mark.parametrize("seed", range(3))
def test_ingests_maintenances_and_a_reader_at_once_keep_each_record_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    lake = new_lake(tmp_path)
    scheduler = Scheduler(seed)
    sent = [batch(*range(first, first + 3), head=120) for first in range(1, 40, 2)]
    sent += [batch(head=120, lost=(Tombstone(50, 52, "age"),)), batch(1, 2, device="e")]
    sent += [positions(*range(first, first + 3)) for first in (100, 102, 104)]
    scheduler.run(
        one=Ingest(lake, scheduler, "one", random.sample(sent, len(sent)), random),
        other=Ingest(lake, scheduler, "other", random.sample(sent, len(sent)), random),
        first=Upkeep(lake, scheduler, "first", random),
        second=Upkeep(lake, scheduler, "second", random),
        third=Upkeep(lake, scheduler, "third", random),
        reader=Reader(lake, scheduler),
    )
    run(lake, ERASURE)
    assert IntervalSet.of(seqs_in_table(lake)) == IntervalSet([(1, 41)])
    assert len(seqs_in_table(lake)) == 41
    assert check(lake, "e") == IntervalSet([(1, 2)])
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
