"""The law: what is known decides what the register holds, byte for byte; not how it came, in which pieces, or where.

One month is billed again and again: its batches shuffled, sent twice, cut anew, in other micro-batches, with runs of
usage between, by another cluster's topic, in one task or many, here, on Spark or on executors, in a folder or a store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from cloud_jobs.lake.tables import Lake
from deploy.local import ObjectStore
from tests.month import Adjust, ArrivedBatch, Close, Decide, Deliver, Issue, Month, Publish, hard_month
from tests.system.billed_month import Centre, billed, owed, posted
from tests.system.lake_in_store import place
from waybill.record import Batch, decode, encode

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

SEED = 15
FIRST_ADJUSTMENT = 11
"""So many steps of the month are up to the note after what came late; the rest is more of the kind."""
SENT_AGAIN = 0.2
CUT = 0.3


@pytest.fixture(scope="module")
def month() -> Month:
    return hard_month(SEED)


@pytest.fixture(scope="module")
def reference(month: Month, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return billed_in_order(month, tmp_path_factory.mktemp("reference"))


def billed_in_order(month: Month, folder: Path) -> dict[str, list[str]]:
    """The month in its own order, in a folder and one process."""
    centre = Centre(Lake(folder))
    bill(centre, month, None)
    found = billed(centre)
    assert {name: len(rows) for name, rows in found.items() if name in {"certificates", "closings", "documents"}} == {
        "certificates": 7,
        "closings": 2,
        "documents": 3,
    }
    return found


def bill(centre: Centre, month: Month, dice: Random | None) -> None:
    """The steps up to the first adjustment; with dice, deliveries come in any way that they may come."""
    for step in month.steps[:FIRST_ADJUSTMENT]:
        match step:
            case Publish():
                centre.publish(step)
            case Deliver():
                deliver(centre, step.deliveries, dice)
            case Decide():
                centre.decide(step)
            case Issue():
                centre.meter()
                centre.close(step.at)
                assert len(centre.issue(step.at).documents) == 2
            case Adjust() if centre.register.documents():
                centre.meter()
                centre.close(step.at)
                centre.adjust(step.at)
            case Adjust() | Close():
                pass


def deliver(centre: Centre, batches: Sequence[ArrivedBatch], dice: Random | None) -> None:
    """In micro-batches; each with its tasks."""
    if dice is None:
        centre.take_in(batches)
        return
    left = any_order(batches, dice)
    while left:
        count = dice.randrange(40, 240)
        arrived, left = left[:count], left[count:]
        tasks = dice.randrange(1, 5)
        centre.take_in(*(arrived[at::tasks] for at in range(tasks)))
        if dice.random() < 0.25:
            centre.meter()


def any_order(batches: Sequence[ArrivedBatch], dice: Random) -> list[ArrivedBatch]:
    """All of them in any order, some twice, some cut in two: as any number of gateways and regions may send them."""
    sent = [*batches, *dice.sample([*batches], int(len(batches) * SENT_AGAIN))]
    cut = [part for one in sent for part in (halves(one, dice) if dice.random() < CUT else (one,))]
    dice.shuffle(cut)
    return cut


def halves(one: ArrivedBatch, dice: Random) -> Iterator[ArrivedBatch]:
    """A batch as two: what its device states of its head, both state."""
    batch = decode(one.data)
    if batch.tombstones or len(batch.records) < 2:
        yield one
        return
    at = dice.randrange(1, len(batch.records))
    for records in (batch.records[:at], batch.records[at:]):
        part = Batch(batch.device, batch.epoch, batch.head, records, (), batch.stated_us)
        yield one._replace(data=encode(part), records=tuple(record.seq for record in records))


@pytest.mark.nightly
def test_a_month_in_any_order_on_spark_and_in_an_object_store_is_billed_to_the_same_bytes(
    month: Month, reference: dict[str, list[str]], spark: SparkSession, store: ObjectStore
) -> None:
    centre = Centre(Lake(place(store, "spark")), spark, cluster="dr")
    bill(centre, month, Random(1))
    assert billed(centre) == reference


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 8))])
def test_however_late_whatever_comes_all_that_is_posted_is_what_is_owed_in_the_end(
    month: Month, reference: dict[str, list[str]], tmp_path: Path, seed: int
) -> None:
    """A payer is issued as soon as it is final, and adjusted as often as somebody thinks of it."""
    dice, centre = Random(seed), Centre(Lake(tmp_path))
    steps = month.steps[:FIRST_ADJUSTMENT]
    for step in steps:
        if isinstance(step, Publish):
            centre.publish(step)
    left = any_order([one for step in steps if isinstance(step, Deliver) for one in step.deliveries], dice)
    (decision,) = (step for step in steps if isinstance(step, Decide))
    now = steps[-1].at
    while left:
        count = dice.randrange(len(left) // 4, len(left) + 1) + 1
        arrived, left = left[:count], left[count:]
        centre.take_in(arrived)
        centre.meter()
        if left and dice.random() < 0.5:
            continue
        if not left:
            centre.decide(decision)
            centre.meter()
        centre.close(now)
        centre.issue(now)
        centre.adjust(now)
    assert posted(centre) == owed(centre)
    found = billed(centre)
    # the decision closes nothing any more: the device has said all by itself
    for table in ("rated_lines", "certificates", "closings"):
        assert found[table] == reference[table]
