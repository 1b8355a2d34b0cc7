"""Whatever happens to a query and its clusters: each message is in the sink exactly once, or its loss was reported."""

import itertools
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from cloud_jobs.pulsar_source.driver.cluster_monitor import ClusterMonitor
from cloud_jobs.pulsar_source.driver.driver import Driver
from cloud_jobs.pulsar_source.driver.ownership import Ownership
from cloud_jobs.pulsar_source.errors import (
    DataLoss,
    FailoverFileError,
    PulsarSourceError,
    SourceClusterUnreachable,
    SubscriptionBusy,
)
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import LedgerPosition, Offset
from cloud_jobs.pulsar_source.reading.entries import Chunk, InquiryBounds
from tests.cloud_jobs.pulsar_source.model import Broken, ChunkPart, Entry, ModelTopic, ModelWorld

TOPIC = "persistent://public/default/t"
PARTITIONS = [f"{TOPIC}-partition-{number}" for number in range(3)]
_MANY = 2000
_REFUSED = re.compile(r"message '(\d+)' of \d chunks cannot be put together")
CRASHES = ["begun", "asked", "log written", "planned", "read", "sink written"]


class Crash(Exception):
    """The process is killed here."""


class ReportingDriver(Driver):
    """The driver, with a note of each loss that it reports, by error or by log."""

    reported: Callable[[str], None]

    def _report_losses(self, cluster: str, losses: Mapping[str, str]) -> None:
        for topic in losses:
            self.reported(topic)
        super()._report_losses(cluster, losses)


class ModelQuery:
    """Spark's micro-batch loop around the driver: offsets written ahead, a sink that knows batch numbers, commits."""

    def __init__(self, world: ModelWorld, folder: Path, reported: Callable[[str], None]) -> None:
        self._world, self._folder, self._reported = world, folder, reported
        self.compacted = False
        """Whether it reads with `readCompacted`."""
        self.log: list[tuple[Any, Any]] = []
        self.done = 0
        self.sink: dict[int, list[int]] = {}
        self.refused: set[int] = set()
        """The messages of which the table says that they cannot be put together."""
        self.closed_unread = False
        self._driver: ReportingDriver | None = None
        self._start: Any = None

    def options(self, *, strict: bool) -> PulsarOptions:
        return PulsarOptions.parse(
            {
                "clusters": "hq=pulsar://hq:1|http://hq:2,dr=pulsar://dr:1|http://dr:2",
                "topics": TOPIC,
                "subscription": "s",
                "failoverFile": str(self._folder / "failover.json"),
                "columns": "value,message_id,malformed",
                "failOnDataLoss": str(strict).lower(),
                "readCompacted": str(self.compacted).lower(),
                "readTimeoutSeconds": "4",
                "clusterLostAfterSeconds": "1",
            }
        )

    def trigger(self, crash: str | None = None, *, strict: bool = True) -> bool:
        """Starts the query if it does not run, and runs one batch; whether there was one."""
        reached: Callable[[str], None] = lambda place: _crash_at(place, crash)  # noqa: E731
        if self._driver is None:
            self._driver = self._new_driver(strict=strict)
            self._start = None if self.done else json.loads(json.dumps(self._driver.initial_offset().to_json()))
            reached("begun")
            if len(self.log) > self.done:
                self._run_batch(reached)
                return True
        start = self.log[-1][1] if self.log else self._start
        end = json.loads(json.dumps(self._driver.next_offset(Offset.from_json(start), limited=False).to_json()))
        reached("asked")
        if end == start:
            return False
        self.log.append((start, end))
        reached("log written")
        if len(self.log) > 1:
            self._driver.commit(Offset.from_json(self.log[-2][1]))
        self._run_batch(reached)
        return True

    def _run_batch(self, reached: Callable[[str], None]) -> None:
        assert self._driver is not None
        start, end = self.log[-1]
        if len(self.log) == 1:
            start = self._start  # Spark does not keep where the first batch began
        options = self._driver._options
        tasks = self._driver.plan(Offset.from_json(start), Offset.from_json(end))
        self.closed_unread |= not tasks
        reached("planned")
        read = [row for task in tasks for batch in self._world.read(options, task) for row in batch.to_pylist()]
        rows = [int(row["value"]) for row in read if row["malformed"] is None]
        for row in read:
            if row["malformed"] is not None:
                refused = _REFUSED.match(row["malformed"])
                assert refused is not None, row["malformed"]
                self.refused.add(int(refused[1]))
        reached("read")
        self.sink.setdefault(len(self.log), rows)
        reached("sink written")
        self.done = len(self.log)

    def _new_driver(self, *, strict: bool) -> ReportingDriver:
        options, time = self.options(strict=strict), self._world.time
        driver = ReportingDriver(
            options,
            monitor=ClusterMonitor(options, time, time.pause, self._world.survey),
            ownership=Ownership(options, self._world.own, time, time.pause),
            acknowledger=self._world.acknowledge,
            store=self._world.store,
            pause=time.pause,
        )
        driver.reported = self._reported
        return driver

    def stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
        self._driver = None

    def delivered(self) -> Counter[int]:
        return Counter(number for rows in self.sink.values() for number in rows)


def _crash_at(place: str, crash: str | None) -> None:
    if place == crash:
        raise Crash(place)


class SourceMachine(RuleBasedStateMachine):
    """One query on two clusters; the law is checked at the end, after everything works again."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.world = ModelWorld()
        self.world.bounds = InquiryBounds(single=2)
        self.world.hides = lambda chunk: int(chunk.message) % 3 == 0
        self.query = ModelQuery(self.world, self.folder, self.report)
        self.sent: dict[int, str] = {}
        self.numbers = itertools.count()
        self.begun: list[tuple[str, Chunk]] = []
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

    @rule(part=st.integers(0, 1), of=st.integers(2, 3))
    def produce_a_first_chunk(self, part: int, of: int) -> None:
        self.begun.append((PARTITIONS[part], Chunk(str(next(self.numbers)), 0, of)))
        self.store_chunk(-1)

    @precondition(lambda self: self.begun)
    @rule(index=st.integers(0, 3))
    def produce_a_next_chunk(self, index: int) -> None:
        self.store_chunk(index % len(self.begun))

    def store_chunk(self, index: int) -> None:
        partition, chunk = self.begun.pop(index)
        self.store(partition, ChunkPart.of(int(chunk.message), chunk.number, chunk.of))
        if not chunk.is_last:
            self.begun.append((partition, chunk._replace(number=chunk.number + 1)))

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
                # Told apart from a ledger that was read to its end by nothing that Pulsar keeps.
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
        assert not self.query.refused & delivered.keys() or self.may_repeat or len(clusters) > 1
        lost = self.sent.keys() - delivered.keys() - self.excused - self.query.refused
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


Step = tuple[str, dict[str, Any]]
WITHIN_A_READ = "something_happens_within_a_read"
STORIES: dict[str, list[Step]] = {
    "a topic is empty when the query begins": [("produce", {"part": 0, "size": 1})],
    "somebody else acknowledges one of three entries, behind more gaps than are asked for one by one": [
        *[("mark", {"part": 0, "count": 1}), ("produce", {"part": 0, "size": 1})] * 3,
        ("somebody_else_acknowledges_one_entry", {"part": 0, "index": 3}),
    ],
    "what every client drops lies behind a last chunk whose message began in the batch before": [
        ("produce_a_first_chunk", {"part": 0, "of": 2}),
        ("run_query", {}),
        ("produce_a_next_chunk", {"index": 0}),
        ("produce_what_every_client_drops", {"part": 0}),
        ("produce", {"part": 0, "size": 1}),
    ],
    "a chunk of which the broker says nothing, and the cursor is moved over it and what follows": [
        ("produce_a_first_chunk", {"part": 0, "of": 2}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 0}),
    ],
    "a message in chunks in two batches, which the end of the process, and the next cluster, divide": [
        ("produce_a_first_chunk", {"part": 0, "of": 2}),
        ("run_query", {"crash": "sink written"}),
        ("produce_a_first_chunk", {"part": 0, "of": 3}),
        ("produce_a_next_chunk", {"index": 0}),
        ("run_query", {"crash": "read"}),
        ("produce_a_next_chunk", {"index": 0}),
        ("run_query", {}),
        ("cursors_travel", {}),
        ("order", {"name": "dr"}),
        ("produce_a_next_chunk", {"index": 0}),
    ],
    "a skip that no checkpoint can know of": [
        ("both_are_down_for_an_hour", {}),
        ("produce", {"part": 0, "size": 1}),
        ("skip", {"count": 1, "part": 0}),
    ],
    "a skip beyond the query while the failover file is lost": [
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 0}),
        ("the_failover_file_is_lost_or_damaged", {"content": None}),
        ("produce", {"part": 0, "size": 1}),
        ("skip", {"count": 1, "part": 0}),
    ],
    "a batch that is removed as a whole before it is read": [
        ("order", {"name": "dr"}),
        ("a_transaction_begins", {"part": 0, "size": 1}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 1}),
        ("open_again_and_trim", {"name": "dr", "part": 1}),
    ],
    "the failover file is lost before the first batch, planned on the standby, is done": [
        ("a_transaction_begins", {"part": 0, "size": 1}),
        ("go_down", {"name": "hq"}),
        ("run_query", {}),
        ("both_are_down_for_an_hour", {}),
        ("the_failover_file_is_lost_or_damaged", {"content": None}),
        (WITHIN_A_READ, {"after": 0, "operation": "wipe", "part": 0}),
    ],
    "a transaction holds back what follows a chunk without a last one, and the cursor is moved over both": [
        ("produce_a_first_chunk", {"part": 0, "of": 2}),
        ("a_transaction_begins", {"part": 0, "size": 1}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 0}),
    ],
    "a transaction ends while what comes before it is read by a reader": [
        ("produce", {"part": 0, "size": 1}),
        ("a_transaction_begins", {"part": 0, "size": 1}),
        ("run_query", {}),
        ("skip", {"part": 0, "count": 9}),
        (WITHIN_A_READ, {"after": 0, "operation": "transactions end", "part": 0}),
    ],
    "the first batch never ends, a standby with empty disks is subscribed to anew, the cluster of the batch is lost": [
        ("a_transaction_begins", {"part": 0, "size": 1}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 1}),
        ("wipe", {"name": "dr"}),
        (WITHIN_A_READ, {"after": 0, "operation": "down", "part": 0}),
    ],
    "the process ends as soon as it has subscribed anew to a cluster with empty disks": [
        ("a_transaction_begins", {"part": 0, "size": 1}),
        ("run_query", {}),
        ("wipe", {"name": "dr"}),
        ("go_down", {"name": "hq"}),
        ("run_query", {"crash": "begun"}),
    ],
    "an order after the topic began another life at the same place": [
        ("delete_and_create", {"both": True, "part": 0}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 0}),
        ("go_down", {"name": "dr"}),
        (WITHIN_A_READ, {"after": 0, "operation": "wipe", "part": 1}),
        ("delete_and_create", {"both": False, "part": 0}),
        ("order", {"name": "dr"}),
        (WITHIN_A_READ, {"after": 0, "operation": "skip", "part": 0}),
    ],
}


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("story", STORIES)
def test_what_was_lost_once_is_not_lost_again(story: str, compacted: bool) -> None:
    machine = SourceMachine()
    machine.begin(compacted=compacted)
    for step, arguments in STORIES[story]:
        getattr(machine, step)(**arguments)
    machine.teardown()


def test_a_loss_is_told_at_each_start_until_it_is_accepted_and_never_after_that():
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


def test_what_a_standby_lost_is_no_loss_once_the_query_has_read_all_that_its_own_cluster_has():
    machine = SourceMachine()
    machine.begin()
    machine.produce(part=0, size=1)
    with pytest.raises(Crash):
        machine.query.trigger("log written")
    machine.query.stop()
    machine.wipe("dr")
    assert [machine.query.trigger(), machine.query.trigger()] == [True, False]
    machine.query.stop()
    machine.go_down("hq")
    assert not machine.query.trigger()
    machine.teardown()
    assert list(machine.query.delivered()) == [0]


def test_the_chunks_of_a_message_that_is_not_whole_stay_stored_on_a_topic_that_is_known_for_them():
    machine = SourceMachine()
    machine.begin()
    for _ in range(2):
        machine.produce_a_first_chunk(part=0, of=2)
        machine.run_query()
        machine.run_query()
        machine.open_again_and_trim(part=0, name="hq")  # the first time nothing is known yet
        machine.produce_a_next_chunk(index=0)
        machine.run_query()
    machine.teardown()
    assert (machine.query.refused, list(machine.query.delivered())) == ({0}, [1])


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
def test_each_message_is_in_the_sink_once_or_its_loss_is_reported_in_many_more_stories():
    machine_of(_MANY)
