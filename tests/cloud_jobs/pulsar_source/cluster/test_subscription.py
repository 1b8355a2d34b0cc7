"""A subscription and the partitions of its topics, as an admin address describes them."""

from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.pulsar_source.options import DataLoss
from cloud_jobs.pulsar_source.position import (
    BEGINNING,
    MAX_PLANNED,
    LedgerInfo,
    LedgerPosition,
    PartitionState,
    SubscriptionProperties,
)
from tests.cloud_jobs.pulsar_source.model import ModelWorld
from tests.cloud_jobs.pulsar_source.model_query import PARTITIONS, ModelQuery
from tests.cloud_jobs.pulsar_source.model_topic import ModelTopic

openings = st.lists(st.integers(0, 99).map("{:02d}".format), unique=True, max_size=40).map(sorted)


@given(openings)
def test_what_is_kept_on_the_broker_is_read_back_with_the_newest_openings_beside_the_properties_of_others(
    names: list[str],
) -> None:
    notes = SubscriptionProperties("4f")
    for name in names:
        notes = notes.with_planned(name).with_planned(name)
    assert SubscriptionProperties.from_properties({"team": "a"} | notes.to_properties()) == notes
    assert list(notes.planned) == names[-MAX_PLANNED:]
    assert SubscriptionProperties.from_properties({"team": "a"}) is None


@given(openings, openings)
def test_a_mark_is_known_by_the_disks_on_which_it_was_planned_and_not_by_older_ones(
    before: list[str], after: list[str]
) -> None:
    old = SubscriptionProperties("4f")
    for name in before:
        old = old.with_planned(name)
    new = old
    for name in after:
        new = new.with_planned(f"later {name}")
    for name in before:
        assert new.has_read(old.generation(name))  # also when it was forgotten
    for name in after:
        assert not old.has_read(new.generation(f"later {name}"))
    assert old.has_read(old.generation())
    assert not SubscriptionProperties("5e", new.planned).has_read(new.generation())


class RestoredTopic:
    def __init__(self, folder: Path) -> None:
        self.world = ModelWorld()
        self.reported: list[str] = []
        for cluster in self.world.clusters.values():
            cluster.create(PARTITIONS[0])
        self.query = ModelQuery(self.world, folder, self.reported.append)
        self.count = 0

    @property
    def topic(self) -> ModelTopic:
        return self.world.clusters["hq"].topics[PARTITIONS[0]]

    def send(self, count: int) -> None:
        newest = self.topic.ledgers[max(self.topic.ledgers)]
        newest += [(number,) for number in range(self.count, self.count + count)]
        self.count += count

    def drain(self, *, strict: bool = True) -> None:
        while self.query.trigger(strict=strict):
            pass

    def roll(self) -> None:
        self.world.clusters["hq"].open_again(PARTITIONS[0])

    def missing(self) -> set[int]:
        return set(range(self.count)) - self.query.delivered().keys()


@pytest.fixture
def restored(tmp_path: Path) -> Any:
    one = RestoredTopic(tmp_path)
    one.drain()
    yield one
    one.query.stop()


@contextmanager
def set_back(restored: RestoredTopic) -> Any:
    log, done, sink = list(restored.query.log), restored.query.done, dict(restored.query.sink)
    failover = restored.query._folder / "failover.json"
    kept = failover.read_bytes()
    yield
    restored.query.stop()
    restored.query.log, restored.query.done, restored.query.sink = log, done, sink
    failover.write_bytes(kept)


@pytest.mark.parametrize(
    "normal", [True, False], ids=["the cursor in the next ledger", "the cursor in a removed ledger"]
)
def test_a_checkpoint_that_was_set_back_misses_what_was_removed_since_and_says_so(
    restored: RestoredTopic, *, normal: bool
) -> None:
    restored.send(10)
    restored.drain()
    with set_back(restored):
        for _ in range(3):
            restored.roll()
            restored.send(10)
            restored.drain()
        acknowledged = restored.topic.last
        restored.roll()
        restored.topic.trim()
        if not normal:
            restored.topic.cursor = acknowledged  # a broker can leave it there
    restored.send(10)
    with pytest.raises(DataLoss):
        restored.drain()
    restored.query.stop()
    restored.drain(strict=False)
    assert restored.missing() == set(range(10, 40))


@pytest.mark.parametrize("rolls", [0, 1, 2])
def test_a_cluster_that_comes_back_with_older_disks_is_found_by_its_openings(
    restored: RestoredTopic, rolls: int
) -> None:
    hq = restored.world.clusters["hq"]
    restored.send(100)
    restored.drain()
    disks = (
        {number: list(rows) for number, rows in restored.topic.ledgers.items()},
        restored.topic.cursor,
        restored.topic.notes,
    )
    restored.roll()
    restored.send(100)
    restored.drain()
    restored.query.stop()
    number = max(restored.topic.ledgers)
    restored.topic.ledgers, restored.topic.cursor, restored.topic.notes = disks
    restored.topic.ledgers[number] = []
    restored.topic.opened = f"restored {uuid4().hex}"
    restored.send(150)
    for _ in range(rolls):
        restored.roll()
        restored.send(5)
    with pytest.raises(DataLoss, match="older disks"):
        restored.drain()
    restored.query.stop()
    restored.drain(strict=False)
    assert hq.topics[PARTITIONS[0]].messages() <= restored.query.delivered().keys()


#   ledger 3: 10 entries, ledger 5: none, ledger 7: 4 entries and open
STATE = PartitionState(
    (LedgerInfo(3, 10, 1000), LedgerInfo(5, 0, 0), LedgerInfo(7, 4, 100)), LedgerPosition(7, 3), LedgerPosition(3, 4)
)


def test_entries_are_counted_over_ledgers():
    assert STATE.entries_between(BEGINNING, STATE.last) == 14
    assert STATE.entries_between(LedgerPosition(3, 4), LedgerPosition(7, 0)) == 6
    assert STATE.entries_between(LedgerPosition(3, 9), LedgerPosition(7, -1)) == 0
    assert STATE.entries_between(LedgerPosition(7, 3), STATE.last) == 0


def test_an_entry_of_which_messages_are_left_counts_as_waiting():
    assert STATE.entries_between(LedgerPosition(7, 3, 0), STATE.last) == 1
    assert STATE.has_entries_after(LedgerPosition(7, 3, 0))
    assert not STATE.has_entries_after(LedgerPosition(7, 3))


def gone(start: LedgerPosition, cursor: LedgerPosition | None) -> bool:
    return PartitionState((LedgerInfo(3, 10, 1000),), LedgerPosition(3, 9), cursor).loss_after(start) is not None


def test_a_removed_ledger_is_no_loss_when_only_we_moved_the_cursor():
    assert not gone(LedgerPosition(2, 5), LedgerPosition(2, 5))
    assert not gone(
        LedgerPosition(2, 5), LedgerPosition(3, -1)
    )  # the broker moves a cursor out of the ledger that it removes


def test_a_removed_ledger_is_a_loss_when_the_subscription_is_gone_or_its_cursor_was_moved_by_others():
    assert gone(LedgerPosition(2, 5), None)
    assert gone(LedgerPosition(2, 5), LedgerPosition(3, 2))
    assert gone(LedgerPosition(1, 5), LedgerPosition(2, 9))  # a broker can leave a cursor in a ledger that it removed


def test_what_is_still_stored_is_no_loss():
    assert not gone(LedgerPosition(3, -1), None)
    assert not gone(LedgerPosition(3, 4), LedgerPosition(3, 8))
    assert not gone(BEGINNING, None)
