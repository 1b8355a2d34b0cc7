"""Two ingests and a maintenance at once, in whatever order their steps come: no record twice, and none missing."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from cloud_jobs.errors import CloudError, Fenced
from cloud_jobs.ingest.micro_batch import CrashPoint, MicroBatchWriter
from cloud_jobs.lake.tables import Lake
from tests.cloud_jobs.ingest.centre import batch, check, coverage, new_ingest, seqs_in_table, take_in
from tests.cloud_jobs.ingest.test_decoding import Message
from tests.new_lakes import new_lake
from waybill.record import IntervalSet, Tombstone


class Killed(BaseException):
    """The process ended here."""


class Scheduler:
    """Lets one of several threads run at a time, up to its next step; a seed says which."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._turns: dict[str, threading.Event] = {}
        self._paused = threading.Semaphore(0)
        self._failures: list[BaseException] = []

    def step(self, name: str) -> None:
        self._paused.release()
        assert self._turns[name].wait(60), "the scheduler is gone"
        self._turns[name].clear()

    def run(self, **actors: Callable[[], None]) -> None:
        """Runs all to their ends. Raises what the first that failed raised."""
        for name, actor in actors.items():
            self._turns[name] = threading.Event()
            threading.Thread(target=self._act, args=(name, actor), daemon=True).start()
            assert self._paused.acquire(timeout=60)
        while self._turns:
            chosen = self._random.choice(sorted(self._turns))
            self._turns[chosen].set()
            assert self._paused.acquire(timeout=60)
        if self._failures:
            raise self._failures[0]

    def _act(self, name: str, actor: Callable[[], None]) -> None:
        try:
            self.step(name)
            actor()
        except BaseException as error:  # noqa: BLE001  # raised by `run`
            self._failures.append(error)
        del self._turns[name]
        self._paused.release()


class Ingest:
    """One that reads its messages until all are durable, as a query that is started again after each failure."""

    def __init__(self, lake: Lake, scheduler: Scheduler, name: str, messages: list[Message], random: Random) -> None:
        self._lake = lake
        self._scheduler = scheduler
        self._name = name
        self._left = messages
        self._random = random
        self._kills = 3

    def __call__(self) -> None:
        writer: MicroBatchWriter | None = None
        while self._left:
            self._scheduler.step(self._name)
            try:
                writer = writer or new_ingest(self._lake, self._reached)
                # after a failure the messages come in other pieces
                size = self._random.randint(1, 4)
                taken, split = self._left[:size], self._random.randint(0, size)
                take_in(self._lake, writer, taken[:split], taken[split:])
                self._left = self._left[size:]
            except (CloudError, Killed):
                writer = None

    def _reached(self, step: CrashPoint) -> None:
        if self._kills and self._random.random() < 0.1:
            self._kills -= 1
            raise Killed
        self._scheduler.step(self._name)


@pytest.mark.nightly  # by day with our own maintenances, usage and a reader: maintenance/test_all_at_once.py
@pytest.mark.parametrize("seed", range(4))
def test_two_ingests_and_a_maintenance_at_once_store_each_record_once(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    lake = new_lake(tmp_path)
    scheduler = Scheduler(seed)
    sent: list[Message] = [batch(*range(first, first + 3), head=60) for first in range(1, 40, 2)]
    sent += [batch(head=60, lost=(Tombstone(50, 52, "age"),)), batch(1, 2, device="e")]

    def shuffled() -> list[Message]:
        return random.sample(sent, len(sent))

    def maintain() -> None:
        for _ in range(6):
            scheduler.step("maintenance")
            lake.open("records").optimize.compact()
            scheduler.step("maintenance")
            lake.open("records").create_checkpoint()

    scheduler.run(
        one=Ingest(lake, scheduler, "one", shuffled(), random),
        other=Ingest(lake, scheduler, "other", shuffled(), random),
        maintenance=maintain,
    )
    assert check(lake) == IntervalSet([(1, 41)])
    assert check(lake, "e") == IntervalSet([(1, 2)])
    known = coverage(lake)
    assert (known.head, known.declared_lost) == (60, IntervalSet([(50, 52)]))
    assert lake.rows("quarantine").num_rows == 0


@pytest.mark.parametrize("table", ["records", "ingest_batches"])
def test_an_ingest_stops_where_a_table_is_made_anew_beside_it_and_the_table_stays_whole(
    tmp_path: Path, table: str
) -> None:
    lake = new_lake(tmp_path)
    ingest = new_ingest(lake)
    for seq in (1, 2, 3):
        take_in(lake, ingest, [batch(seq)])
    shutil.rmtree(lake.path(table))
    lake.create()
    with pytest.raises(Fenced, match="restored from a backup, or created again"):
        take_in(lake, ingest, [batch(4)])
    assert lake.open(table).version() == 0
    if table == "ingest_batches":
        take_in(lake, new_ingest(lake), [batch(5)])
        assert seqs_in_table(lake) == [1, 2, 3, 4, 5]
