"""Whatever happens to a query and its clusters: each message is in the sink exactly once, or its loss was reported."""

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from cloud_jobs.pulsar_source.options import (
    DataLoss,
    FailoverFileError,
    PulsarSourceError,
    SourceClusterUnreachable,
    SubscriptionBusy,
)
from cloud_jobs.pulsar_source.position import LedgerPosition
from tests.cloud_jobs.pulsar_source.model import ModelWorld
from tests.cloud_jobs.pulsar_source.model_query import CRASHES, PARTITIONS, TOPIC, Crash, ModelQuery
from tests.cloud_jobs.pulsar_source.model_topic import Broken, Entry, ModelTopic


class SourceMachine(RuleBasedStateMachine):
    """One query on two clusters; the law is checked at the end, after everything works again."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.world = ModelWorld()
        self.query = ModelQuery(self.world, self.folder, self.report)
        self.sent: dict[int, str] = {}
        self.numbers = itertools.count()
        self.waiting: dict[str, list[tuple[str, Entry]]] = {"hq": [], "dr": []}
        self.destroyed: dict[str, set[int]] = {}
        self.excused: set[int] = set()
        self.may_repeat = False
        self.skipped: set[int] = set()

    @initialize(compacted=st.booleans())
    def begin(self, compacted: bool = False) -> None:
        self.query.compacted = compacted
        for cluster in self.world.clusters.values():
            for partition in PARTITIONS[:2]:
                cluster.create(partition)
        self.run_query()

    # -- what producers and replication do

    @rule(part=st.integers(0, 2), size=st.integers(1, 3))
    def produce(self, part: int, size: int) -> None:
        self.store(PARTITIONS[part], tuple(itertools.islice(self.numbers, size)))

    def store(self, partition: str, entry: Entry) -> None:
        if any(partition not in cluster.topics for cluster in self.world.clusters.values()):
            return
        self.sent |= dict.fromkeys(entry, partition)
        for name in self.waiting:
            self.waiting[name].append((partition, entry))
        self.replicate()

    @rule(part=st.integers(0, 1), count=st.integers(1, 5))
    def mark(self, part: int, count: int = 1) -> None:
        for name in self.waiting:
            self.waiting[name] += [(PARTITIONS[part], ())] * count
        self.replicate()

    @rule(part=st.integers(0, 1))
    def produce_what_every_client_drops(self, part: int) -> None:
        self.store(PARTITIONS[part], Broken())

    @rule(part=st.integers(0, 2), name=st.sampled_from(["hq", "dr"]))
    def compact(self, part: int, name: str) -> None:
        topic = self.world.clusters[name].topics.get(PARTITIONS[part])
        if topic is not None:
            topic.compacted = topic.last

    def replicate(self) -> None:
        for name, entries in self.waiting.items():
            cluster = self.world.clusters[name]
            while cluster.answers and entries:
                partition, entry = entries.pop(0)
                newest = cluster.topics[partition].ledgers
                newest[max(newest)].append(entry)

    @rule()
    def cursors_travel(self) -> None:
        """A snapshot: the other cluster's cursor goes as far as what was acknowledged here."""
        hq, dr = self.world.clusters.values()
        if not (hq.answers and dr.answers):
            return
        for here, there in ((hq, dr), (dr, hq)):
            for partition in here.topics.keys() & there.topics.keys():
                self._travel(here.topics[partition], there.topics[partition])

    @staticmethod
    def _travel(here: ModelTopic, there: ModelTopic) -> None:
        if here.cursor is None or there.cursor is None:
            return
        acknowledged = {n for at, entry in here.entries() if at <= here.cursor for n in entry}
        for position, entry in list(there.entries()):
            if not set(entry) <= acknowledged:
                break
            there.acknowledge(position)

    # -- what the query does

    @rule(crash=st.sampled_from([None, None, *CRASHES]))
    def run_query(self, crash: str | None = None) -> None:
        strict = True
        for _ in range(6):
            try:
                self.query.trigger(crash, strict=strict)
            except DataLoss:
                strict = False
            except FailoverFileError:
                (self.folder / "failover.json").unlink()
                self.may_repeat = True
            except (PulsarSourceError, Crash):
                pass
            else:
                if not strict:
                    self.query.stop()  # with failOnDataLoss=false once, then as before
                return
            self.query.stop()
            crash = None

    @rule()
    def stop_query(self) -> None:
        self.query.stop()

    @rule(
        part=st.integers(0, 1),
        after=st.integers(0, 3),
        operation=st.sampled_from(["skip", "delete", "wipe", "down", "transactions end"]),
    )
    def something_happens_within_a_read(self, part: int, after: int, operation: str) -> None:
        left = after

        def meanwhile() -> None:
            nonlocal left
            left -= 1
            if left == -1:
                operations[operation]()

        operations: dict[str, Callable[[], None]] = {
            "skip": lambda: self.skip(part, 5),
            "delete": lambda: self.delete_and_create(part, both=False),
            "wipe": lambda: self.wipe("hq"),
            "down": lambda: self.go_down("hq"),
            "transactions end": self.transactions_end,
        }
        self.produce(part, 2)
        self.produce(part, 1)
        self.world.meanwhile = meanwhile
        self.run_query()
        self.world.meanwhile = lambda: None

    @rule(strict=st.booleans())
    def a_second_query_is_refused_while_the_first_runs(self, strict: bool) -> None:
        if self.query._driver is None or not all(one.answers for one in self.world.clusters.values()):
            return
        self.run_query()
        if self.query._driver is None:
            return  # type: ignore[unreachable]  # running may end the query
        with second(self) as other, pytest.raises((SubscriptionBusy, FailoverFileError)):
            other.trigger(strict=strict)

    # -- what operators and machines do

    @rule(part=st.integers(0, 2), count=st.integers(1, 9))
    def skip(self, part: int, count: int) -> None:
        for cluster in self.active_clusters():
            if PARTITIONS[part] in cluster.topics:
                topic = cluster.topics[PARTITIONS[part]]
                unread = topic.unread()
                topic.skip(count)
                self.skipped |= topic.messages()
                self.destroy(PARTITIONS[part], unread - topic.unread())  # once the loss of the topic is reported

    @rule(part=st.integers(0, 1), index=st.integers(0, 5))
    def somebody_else_acknowledges_one_entry(self, part: int, index: int) -> None:
        for cluster in self.active_clusters():
            topic = cluster.topics.get(PARTITIONS[part])
            unread = (
                [place for place, entry in topic.entries() if topic.cursor and place > topic.cursor] if topic else []
            )
            if topic and unread:
                place = unread[index % len(unread)]
                before = topic.unread()
                topic.acknowledge_one(place)
                self.skipped |= topic.messages()
                self.destroy(PARTITIONS[part], before - topic.unread())  # where the cursor follows

    @rule(part=st.integers(0, 1), size=st.integers(1, 2))
    def a_transaction_begins(self, part: int, size: int) -> None:
        clusters = self.world.clusters.values()
        if all(one.answers and PARTITIONS[part] in one.topics for one in clusters):
            for cluster in clusters:
                topic = cluster.topics[PARTITIONS[part]]
                newest = max(topic.ledgers)
                topic.held_from = topic.held_from or LedgerPosition(newest, len(topic.ledgers[newest]), -1)
            self.produce(part, size)

    @rule()
    def transactions_end(self) -> None:
        for cluster in self.world.clusters.values():
            for topic in cluster.topics.values():
                topic.held_from = None

    @rule(part=st.integers(0, 2), name=st.sampled_from(["hq", "dr"]))
    def open_again_and_trim(self, part: int, name: str) -> None:
        cluster = self.world.clusters[name]
        if PARTITIONS[part] in cluster.topics and cluster.answers:
            cluster.open_again(PARTITIONS[part])
            topic = cluster.topics[PARTITIONS[part]]
            gone = topic.trim()
            self.destroy(PARTITIONS[part], gone)
            if topic.cursor is not None and topic.cursor.entry == -1:
                # Nothing that Pulsar keeps distinguishes it from a ledger that was read to its end.
                self.excused |= gone & self.skipped

    @rule(part=st.integers(0, 2))
    def set_the_cursor_back(self, part: int) -> None:
        for cluster in self.active_clusters():
            topic = cluster.topics.get(PARTITIONS[part])
            if topic is not None and topic.cursor is not None:
                topic.cursor = LedgerPosition(min(topic.ledgers), -1)
                self.may_repeat = True

    @rule(part=st.integers(0, 2), both=st.booleans())
    def delete_and_create(self, part: int, both: bool) -> None:
        for cluster in list(self.world.clusters.values()) if both else self.active_clusters():
            if PARTITIONS[part] in cluster.topics and cluster.answers:
                self.destroy(PARTITIONS[part], cluster.topics[PARTITIONS[part]].messages())
                cluster.create(PARTITIONS[part])

    @rule(part=st.integers(0, 2))
    def delete_the_subscription(self, part: int) -> None:
        for cluster in self.active_clusters():
            if PARTITIONS[part] in cluster.topics:
                topic = cluster.topics[PARTITIONS[part]]
                topic.cursor = topic.notes = None

    @rule(name=st.sampled_from(["hq", "dr"]))
    def wipe(self, name: str) -> None:
        cluster = self.world.clusters[name]
        for partition, topic in cluster.topics.items():
            self.destroy(partition, topic.messages())
        cluster.wipe()

    @rule(name=st.sampled_from(["hq", "dr"]))
    def go_down(self, name: str) -> None:
        self.world.clusters[name].answers = False

    @rule(name=st.sampled_from(["hq", "dr"]))
    def come_back(self, name: str) -> None:
        self.world.clusters[name].answers = True
        self.replicate()

    @rule()
    def both_are_down_for_an_hour(self) -> None:
        self.go_down("hq")
        self.go_down("dr")
        for _ in range(2):
            with pytest.raises((SourceClusterUnreachable, FailoverFileError)):
                self.query.trigger()
            self.query.stop()
            self.world.time.pause(1800)
        self.come_back("hq")
        self.come_back("dr")

    @rule(name=st.sampled_from(["hq", "dr", "nowhere"]))
    def order(self, name: str) -> None:
        (self.folder / "failover.json.switchover").write_text(name)

    @rule()
    def partitions_are_added(self) -> None:
        for cluster in self.world.clusters.values():
            if PARTITIONS[2] not in cluster.topics:
                cluster.create(PARTITIONS[2])

    @precondition(lambda self: (self.folder / "failover.json").exists())
    @rule(content=st.sampled_from([None, b"", b'{"active"', b'{"version": 1}']))
    def the_failover_file_is_lost_or_damaged(self, content: bytes | None) -> None:
        self.query.stop()
        self.may_repeat = True
        file = self.folder / "failover.json"
        file.unlink() if content is None else file.write_bytes(content)

    # -- the law

    def active_clusters(self) -> list[Any]:
        running = self.query.log[-1][1]["cluster"] if self.query.log else "hq"
        cluster = self.world.clusters[running]
        return [cluster] if cluster.answers else []

    def report(self, topic: str) -> None:
        self.excused |= self.destroyed.pop(topic, set())
        self.may_repeat = True

    def destroy(self, partition: str, messages: set[int]) -> None:
        unread = messages - self.query.delivered().keys()
        if partition not in (self.query.log[-1][1]["positions"] if self.query.log else ()):
            self.excused |= unread  # a checkpoint that has never heard of a partition cannot miss what was there
        elif unread:
            self.destroyed.setdefault(partition, set()).update(unread)

    def teardown(self) -> None:
        try:
            for name in self.world.clusters:
                self.come_back(name)
            (self.folder / "failover.json.switchover").unlink(missing_ok=True)
            self.transactions_end()
            for _ in range(8):
                self.run_query()
            self.check()
        finally:
            self.query.stop()
            shutil.rmtree(self.folder)

    def check(self) -> None:
        delivered = self.query.delivered()
        clusters = {end["cluster"] for _, end in self.query.log}
        lost = self.sent.keys() - delivered.keys() - self.excused
        if len(clusters) > 1 or self.query.closed_unread:
            lost -= self.skipped  # the cursor, which the skip had moved, decides
        assert not lost, f"never read, and no loss reported: {sorted(lost)}"
        if not self.may_repeat and len(clusters) == 1:
            twice = [number for number, count in delivered.items() if count > 1]
            assert not twice, f"read twice: {twice}"


@contextmanager
def second(machine: SourceMachine) -> Any:
    """Another query on the same subscription, with a checkpoint and a failover file of its own."""
    folder = Path(tempfile.mkdtemp())
    active = json.loads((machine.folder / "failover.json").read_text())["active"]
    query = ModelQuery(machine.world, folder, lambda _: None)
    driver_file = {"version": 2, "query": "other", "subscription": "s", "topics": TOPIC, "active": active}
    (folder / "failover.json").write_text(json.dumps(driver_file | {"abandoned": []}))
    try:
        yield query
    finally:
        query.stop()
        shutil.rmtree(folder)


_MANY = 2000


def test_a_loss_is_reported_at_each_start_until_it_is_accepted_and_never_after_that():
    machine = SourceMachine()
    machine.begin()
    machine.produce(part=0, size=1)
    machine.run_query()
    machine.wipe("dr")
    machine.go_down("hq")
    for _ in range(2):
        machine.query.stop()
        with pytest.raises(DataLoss, match="nothing was kept for it"):
            machine.query.trigger()
    machine.query.stop()
    assert not machine.query.trigger(strict=False)
    machine.query.stop()
    assert not machine.query.trigger()
    machine.teardown()


def machine_of(examples: int) -> None:
    run_state_machine_as_test(
        SourceMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            derandomize=examples < _MANY,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_each_message_is_in_the_sink_once_or_its_loss_is_reported():
    machine_of(20)


@pytest.mark.nightly
def test_each_message_is_in_the_sink_once_or_its_loss_is_reported_in_many_more_scenarios():
    machine_of(_MANY)
