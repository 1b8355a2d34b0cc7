"""Ingest, maintenance, `usage` and the register's commands, each lost at every single write to the lake, and run again.

To the lake it is one thing whether the store, the driver or the machine is killed: what was written is there, and the
rest is not. Every write of a run counts, also those that libraries make for themselves: no list of crash points can
leave one out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from secrets import token_hex
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
from tests.month import Decide, Deliver, Publish, hard_month
from tests.system.billed_month import Centre, billed
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


ISSUED_AT = datetime(2026, 4, 8, tzinfo=UTC)
ADJUSTED_AT = ISSUED_AT + timedelta(days=13)


class Job(NamedTuple):
    """What is done to a lake that was prepared. `whole`: asserts that the lake is whole, and what of it must stay;
    `known`: all that it says. In each run of the tests one of `every` writes is the last; all of them take minutes.
    """

    prepare: Callable[[Lake], object]
    run: Callable[[Lake], object]
    every: int
    whole: Callable[[Lake], set[str]]
    known: Callable[[Lake], object]


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


def agreed(lake: Lake) -> set[str]:
    """Of each record that the coverage has there is one, and of no other; but for positions that were erased."""
    rows = lake.rows("records", ["tenant", "device", "seq", "kind"]).to_pylist()
    ids = [(row["tenant"], row["device"], row["seq"]) for row in rows]
    assert len(ids) == len(set(ids)), "a record is there twice"
    covered = {
        (stream.tenant, stream.device, seq) for stream, known in lake.coverage().items() for seq in known.received
    }
    assert {*ids} <= covered
    assert {(device, seq // 100) for _, device, seq in covered - {*ids}} <= {("d", 1)}
    return set()


def said_by(lake: Lake) -> str:
    """All that the lake says, but for when and in which pieces it came."""
    agreed(lake)
    tables = {
        name: sorted(
            str({column: value for column, value in row.items() if column not in STAMPS})
            for row in lake.rows(name).to_pylist()
        )
        for name in ("records", "quarantine", "erasures")
    }
    coverage = sorted(str(one) for one in lake.coverage().items())
    return json.dumps([tables, coverage, [*in_force(lake).items()]], default=str)


def prepare_register(command: str, lake: Lake) -> None:
    """A metered month; for the others issued, and for `adjust` with what came late."""
    centre, month = Centre(lake), hard_month(15)
    (decision,) = (step for step in month.steps if isinstance(step, Decide))
    first, second, late, *_ = (step for step in month.steps if isinstance(step, Deliver))
    for step in month.steps[:5]:
        if isinstance(step, Publish):
            centre.publish(step)
    centre.take_in((*first.deliveries, *second.deliveries))
    centre.decide(decision)
    centre.meter()
    if command != "issue":
        issue(lake)
    if command == "adjust":
        centre.take_in(late.deliveries)
        centre.meter()


def issue(lake: Lake) -> None:
    Centre(lake).close(ISSUED_AT)
    Centre(lake).issue(ISSUED_AT)


def adjust(lake: Lake) -> None:
    Centre(lake).close(ADJUSTED_AT)
    Centre(lake).adjust(ADJUSTED_AT)


def void(lake: Lake) -> None:
    Centre(lake).void(ADJUSTED_AT)


def numbers(lake: Lake) -> set[str]:
    """Each number is there once, none is left out, and each document is as it was issued."""
    return {one["invoice_number"] for one in Centre(lake).documents()}


def bill(lake: Lake) -> dict[str, list[str]]:
    return billed(Centre(lake))


JOBS = {
    "ingest": Job(prepare_ingest, take_all_in, 14, agreed, said_by),
    "maintain": Job(prepare_maintenance, maintain, 38, agreed, said_by),
    "usage": Job(prepare_usage, compute, 6, agreed, said_by),
    "issue": Job(partial(prepare_register, "issue"), issue, 12, numbers, bill),
    "adjust": Job(partial(prepare_register, "adjust"), adjust, 12, numbers, bill),
    "void": Job(partial(prepare_register, "void"), void, 6, numbers, bill),
}


class Walk:
    """A job, a lake that was prepared for it, and copies of that lake."""

    def __init__(self, job: Job, store: ObjectStore, dying: DyingStore) -> None:
        self.job = job
        self._store, self._dying, self._prefix = store, dying, token_hex(4)
        lake = self._lake("before")
        lake.create()
        job.prepare(lake)
        self.truth = job.known(self._run("whole"))
        self.writes = dying.writes
        assert self.writes >= 4

    def check(self, number: int, how: str) -> None:
        """`lost_at`: from this write on nothing is written or answered; `unanswered`: it is made, and its answer lost.
        Whoever comes then finds the lake whole, and one more run makes it as it is.
        """
        lake = self._run(f"{how}-{number}", **{how: number})
        kept = self.job.whole(lake)
        self.job.run(lake)
        assert self.job.known(lake) == self.truth, f"{how} {number}"
        assert kept <= self.job.whole(lake)

    def _lake(self, copy: str, endpoint: str | None = None) -> Lake:
        return Lake(place(self._store, f"{self._prefix}-{copy}", endpoint))

    def _run(self, copy: str, **lost: int) -> Lake:
        copy_lake(self._store, f"{self._prefix}-before", f"{self._prefix}-{copy}")
        self._dying.begin(**lost)
        # whatever it says: what counts is what is there
        with suppress(Exception) if lost else nullcontext():
            self.job.run(self._lake(copy, self._dying.endpoint))
        assert "lost_at" not in lost or self._dying.is_lost
        return self._lake(copy)


@pytest.fixture
def walk(store: ObjectStore, dying: DyingStore, request: pytest.FixtureRequest) -> Walk:
    return Walk(JOBS[request.param], store, dying)


@pytest.mark.parametrize(
    "walk",
    [pytest.param(name, marks=[pytest.mark.nightly] if name != "issue" else []) for name in JOBS],
    indirect=True,
)
def test_a_run_that_is_lost_at_a_write_leaves_a_whole_lake_and_the_next_one_makes_it_true(walk: Walk) -> None:
    for number in range(0, walk.writes, walk.job.every):
        walk.check(number, "lost_at")


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("how", ["lost_at", "unanswered"])
@pytest.mark.parametrize("walk", JOBS, indirect=True)
def test_a_run_that_is_lost_or_not_answered_at_any_write_leaves_a_whole_lake(walk: Walk, how: str) -> None:
    for number in range(walk.writes):
        walk.check(number, how)
