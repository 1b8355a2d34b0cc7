"""The ingest, the maintenance and `usage`, each lost at every single write to the lake in turn, and run again.

To the lake it is one thing whether the store, the driver or the machine is killed: what was written is there, and the
rest is not. Every write of a run counts, also those that libraries make for themselves: no list of crash points can
leave one out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest

from cloud_jobs.lake.tables import Lake
from deploy.local import ObjectStore
from tests.cloud_jobs.ingest.centre import batch, new_ingest, take_in
from tests.cloud_jobs.ingest.test_decoding import Message
from tests.cloud_jobs.maintenance.test_all_at_once import SQUARE, driven
from tests.cloud_jobs.maintenance.test_erasing import ERASURE
from tests.cloud_jobs.maintenance.upkeep import positions, run
from tests.cloud_jobs.usage.test_any_order import compute, in_force, publish, small_groups
from tests.system.dying_store import DyingStore
from tests.system.lake_in_store import copy_lake, place
from tests.system.lake_of_fixes import square
from waybill.record import Tombstone

pytestmark = [pytest.mark.system, pytest.mark.own_servers, pytest.mark.timeout(600)]
__all__ = ["small_groups"]  # a fixture for all tests here

STAMPS = {"ingested_at", "ingest_number", "quarantined_at", "erased_at", "commit_number"}
LATE: list[Message] = [
    batch(2, 3, head=9, lost=(Tombstone(5, 6, "age"),)),
    b"no batch",
    ("other", batch(1, 2, device="f")),
]
LATER: list[Message] = [batch(3, 4), batch(1, word="y"), batch(7, day=-500), *driven()[:3]]


class Job(NamedTuple):
    """What is done to a lake that was prepared."""

    prepare: Callable[[Lake], object]
    run: Callable[[Lake], object]


def prepare_ingest(lake: Lake) -> None:
    take_in(lake, new_ingest(lake), [batch(1, 2)])
    take_in(lake, new_ingest(lake), driven()[:2])


def take_all_in(lake: Lake) -> None:
    """Two micro-batches; the second brings some of the first again."""
    writer = new_ingest(lake)
    take_in(lake, writer, LATE, LATER)
    take_in(lake, writer, LATER, [batch(10, head=12)])


def prepare_maintenance(lake: Lake) -> None:
    prepare_usage(lake)
    writer = new_ingest(lake)
    for seq in range(1, 5):
        take_in(lake, writer, [batch(seq)], [positions(seq + 100), b"no batch"])
    compute(lake)
    # an orphan, and files that were replaced
    with lake.files("records").open_output_stream("device_date=2026-01-05/part-orphan.parquet") as file:
        file.write(b"PAR1")
    run(lake)


def maintain(lake: Lake) -> None:
    """So late that whatever nobody needs any more is swept."""
    run(lake, ERASURE, now=datetime.now(UTC) + timedelta(days=9), removed_files_kept_hours=0)


def prepare_usage(lake: Lake) -> None:
    publish(lake, SQUARE)
    take_in(lake, new_ingest(lake), driven()[::2])
    compute(lake)
    take_in(lake, new_ingest(lake), driven())
    publish(lake, square("east", 0.004))


JOBS = {
    "ingest": Job(prepare_ingest, take_all_in),
    "maintain": Job(prepare_maintenance, maintain),
    "usage": Job(prepare_usage, compute),
}


class Walk:
    """A job, a lake that was prepared for it, and copies of that lake."""

    def __init__(self, job: Job, store: ObjectStore, dying: DyingStore, name: str) -> None:
        self.job = job
        self._store = store
        self._dying = dying
        self.name = name
        job.prepare(self.lake("before"))
        self.truth = self.known(self._run("whole"))
        self.writes = dying.writes

    def lost_at(self, number: int) -> None:
        """The run is lost at a write; whoever comes then finds the lake whole, and one more run makes it as it is."""
        lake = self._run(f"lost-{number}", lost_at=number)
        self.agreed(lake)
        self.job.run(lake)
        assert self.known(lake) == self.truth, f"lost at write {number}"

    def unanswered(self, number: int) -> None:
        """A write is made, and its answer lost."""
        lake = self._run(f"unanswered-{number}", unanswered=number)
        self.agreed(lake)
        self.job.run(lake)
        assert self.known(lake) == self.truth, f"no answer to write {number}"

    def lake(self, copy: str, endpoint: str | None = None) -> Lake:
        made = Lake(place(self._store, f"{self.name}-{copy}", endpoint))
        if copy == "before":
            made.create()
        return made

    def agreed(self, lake: Lake) -> None:
        """Of each record that the coverage has there is one, and of no other; but for positions that were erased."""
        rows = lake.rows("records", ["tenant", "device", "seq", "kind"]).to_pylist()
        ids = [(row["tenant"], row["device"], row["seq"]) for row in rows]
        assert len(ids) == len(set(ids)), "a record is there twice"
        covered = {
            (stream.tenant, stream.device, seq) for stream, known in lake.coverage().items() for seq in known.received
        }
        assert {*ids} <= covered
        assert {(device, seq // 100) for _, device, seq in covered - {*ids}} <= {("d", 1)}

    def known(self, lake: Lake) -> str:
        """All that the lake says, but for when and in which pieces it came."""
        self.agreed(lake)
        tables = {
            name: sorted(
                str({column: value for column, value in row.items() if column not in STAMPS})
                for row in lake.rows(name).to_pylist()
            )
            for name in ("records", "quarantine", "erasures")
        }
        coverage = sorted(str(one) for one in lake.coverage().items())
        return json.dumps([tables, coverage, [*in_force(lake).items()]], default=str)

    def _run(self, copy: str, *, lost_at: int | None = None, unanswered: int | None = None) -> Lake:
        copy_lake(self._store, f"{self.name}-before", f"{self.name}-{copy}")
        self._dying.begin(lost_at=lost_at, unanswered=unanswered)
        lost = lost_at is not None or unanswered is not None
        # whatever it says: what counts is what is there
        with suppress(Exception) if lost else nullcontext():
            self.job.run(self.lake(copy, self._dying.endpoint))
        assert lost_at is None or self._dying.is_lost
        return self.lake(copy)


@pytest.fixture
def walk(store: ObjectStore, dying: DyingStore, request: pytest.FixtureRequest) -> Walk:
    name: str = request.param
    return Walk(JOBS[name], store, dying, name)


EVERY = {"ingest": 14, "maintain": 38, "usage": 6}
"""In each run of the tests one of so many writes; all of them take minutes."""


@pytest.mark.parametrize("walk", JOBS, indirect=True)
def test_a_run_that_is_lost_at_a_write_leaves_a_whole_lake_and_the_next_one_makes_it_true(walk: Walk) -> None:
    assert walk.writes > 4
    for number in range(0, walk.writes, EVERY[walk.name]):
        walk.lost_at(number)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("walk", JOBS, indirect=True)
def test_a_run_that_is_lost_at_any_write_leaves_a_whole_lake(walk: Walk) -> None:
    for number in range(walk.writes):
        walk.lost_at(number)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("walk", JOBS, indirect=True)
def test_a_run_of_which_any_write_is_not_answered_leaves_a_whole_lake(walk: Walk) -> None:
    for number in range(walk.writes):
        walk.unanswered(number)
