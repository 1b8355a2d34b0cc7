"""The four drills: what is lost, and what each waits for."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from random import randrange
from typing import Any
from urllib.parse import unquote

import pulsar
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cloud_jobs.lake.coverage import DeviceStream
from cloud_jobs.lake.tables import Lake
from deploy.demo.alert_audit import AlertAudit
from deploy.drill.environment import TENANT, TRIGGER_S, Drill, DrillEnvironment, position_at
from deploy.drill.findings import (
    BatchCounts,
    Commit,
    DrillObservations,
    Findings,
    Follower,
    RecordIds,
    SeenRange,
    common,
    compute_findings,
    count,
    minus,
    record_ids_of,
    union,
)
from waybill.daemon.process import close_within
from waybill.pulsar.pulsar_client import PulsarAccess, close_quietly, open_pulsar_client
from waybill.record import Batch, IntervalSet, Record, encode, new_epoch

# Arrivals in the central table, from its log.

_RECORD_ID = ["tenant", "device", "epoch", "seq"]


class CentralTable:
    """The records table and the ingest's counts, for the records of one epoch.

    The table is only appended to while a drill runs, so `commits` reads only what is new since the last call.
    """

    def __init__(self, lake: Lake, epoch: int) -> None:
        self._lake = lake
        self._epoch = epoch
        self._files = lake.files("records")
        self._version = 0
        self._commits: list[Commit] = []
        self._known: dict[DeviceStream, IntervalSet] = {}

    def commits(self) -> list[Commit]:
        """Every commit so far with records of this epoch, in order."""
        while (actions := self._actions(self._version)) is not None:
            seqs = self._record_ids(actions)
            if seqs:
                self._commits.append(Commit(_committed_s(actions), seqs))
                self._known = union(self._known, seqs)
            self._version += 1
        return list(self._commits)

    def record_ids(self) -> RecordIds:
        self.commits()
        return self._known

    def batches(self, since_s: float) -> list[BatchCounts]:
        """The ingest's counts of each micro-batch since `since_s`, in order."""
        rows = self._lake.rows("ingest_batches", ["committed_at", "records", "duplicates"]).to_pylist()
        found = [BatchCounts(row["committed_at"].timestamp(), row["records"], row["duplicates"]) for row in rows]
        return sorted(one for one in found if one.at_s >= since_s)

    def rows(self) -> int:
        # A set of record ids cannot hold one twice: only rows show a duplicate.
        return int(self._lake.rows("records", ["epoch"], where=[("epoch", "=", self._epoch)]).num_rows)

    def _actions(self, version: int) -> list[dict[str, Any]] | None:
        """The actions of a commit in Delta's log; None before the commit is made."""
        try:
            with self._files.open_input_file(f"_delta_log/{version:020}.json") as file:
                return [json.loads(line) for line in file.read().splitlines()]
        except FileNotFoundError:
            return None

    def _record_ids(self, actions: list[dict[str, Any]]) -> dict[DeviceStream, IntervalSet]:
        seqs_of: dict[DeviceStream, list[int]] = {}
        # Delta's log has the paths of files percent-encoded.
        for path in (unquote(action["add"]["path"]) for action in actions if "add" in action):
            for stream, seqs in self._record_ids_in(path):
                seqs_of.setdefault(stream, []).extend(seqs)
        return {stream: IntervalSet.of(seqs) for stream, seqs in seqs_of.items()}

    def _record_ids_in(self, path: str) -> Iterator[tuple[DeviceStream, list[int]]]:
        of_epoch = pc.field("epoch") == self._epoch
        seqs = pq.read_table(path, filesystem=self._files, columns=_RECORD_ID, partitioning=None, filters=of_epoch)
        for row in seqs.group_by(["tenant", "device"]).aggregate([("seq", "list")]).to_pylist():
            yield DeviceStream(row["tenant"], row["device"], self._epoch), row["seq_list"]


def _committed_s(actions: list[dict[str, Any]]) -> float:
    return max(float(action["commitInfo"]["timestamp"]) for action in actions if "commitInfo" in action) / 1000


# Simulated devices of one region: a steady stream of batches and their acknowledgements.

DEVICES = 8
_RECORDS_PER_BATCH = 20
_MAX_UNANSWERED = 64
"""Batches; with more the devices store and wait."""
_SILENCE_S = 10.0
"""Without an answer for this time, a device tries the next region."""
_TICK_S = 0.02
_CLIENT_S = 5
_CRAWL_S = 0.5


@dataclass(frozen=True, slots=True)
class _Sent:
    stream: DeviceStream
    first: int
    last: int
    payload: bytes


class Fleet:
    """The devices of one region. `regions`: its name and Pulsar address, then those of the regions to try next.

    `receipts` may be read at any time.
    """

    def __init__(
        self,
        regions: Sequence[tuple[str, str]],
        epoch: int,
        access: PulsarAccess,
        *,
        records_per_s: float,
        silence_s: float = _SILENCE_S,
    ) -> None:
        self._regions = list(regions)
        self._access = access
        self._at = 0
        self._records_per_s, self._silence_s = records_per_s, silence_s
        home = regions[0][0]
        self.streams = [DeviceStream(TENANT, f"{home}-{number:04d}", epoch) for number in range(1, DEVICES + 1)]
        self.receipts: list[SeenRange] = []
        self._lock = threading.Lock()
        self._unanswered: dict[int, _Sent] = {}
        self._again: deque[_Sent] = deque()
        self._making, self._stopping, self._slow = threading.Event(), threading.Event(), threading.Event()
        self._heard_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"fleet-{home}", daemon=True)

    def start(self) -> None:
        """Begin to send at a low rate; `speed_up` when the ingest reads."""
        self._slow.set()
        self._making.set()
        self._thread.start()

    def speed_up(self) -> None:
        self._slow.clear()

    def pause(self) -> None:
        """Make no more records; unanswered ones are sent until they are answered."""
        self._making.clear()

    @property
    def idle(self) -> bool:
        """Whether every record has been acknowledged."""
        with self._lock:
            return not self._making.is_set() and not self._unanswered and not self._again

    def stop(self) -> None:
        self._making.clear()
        self._stopping.set()
        # join() of a thread that was never started raises.
        if self._thread.is_alive():
            self._thread.join(3 * _CLIENT_S)

    def _run(self) -> None:
        made = self._batches()
        while not self._stopping.is_set():
            # A region that gives no producer is silent too, and the next one is tried.
            with contextlib.suppress(pulsar.PulsarException), self._producer() as producer:
                self._heard_s = time.monotonic()
                self._send_while_answered(producer, made)
            self._give_up_waiting()

    def _send_while_answered(self, producer: Any, made: Iterator[_Sent]) -> None:
        period_s = _RECORDS_PER_BATCH / self._records_per_s
        due_s = time.monotonic()
        while not self._stopping.wait(_TICK_S):
            while self._again and self._has_room():
                self._send(producer, self._again.popleft())
            # A device does not make up for time in which it could not send: what it measures comes at its own pace.
            due_s = max(due_s, time.monotonic() - 10 * period_s)
            while self._making.is_set() and due_s <= time.monotonic() and self._has_room():
                due_s += max(period_s, _CRAWL_S) if self._slow.is_set() else period_s
                self._send(producer, next(made))
            if self._unanswered_s() > self._silence_s:
                return

    def _unanswered_s(self) -> float:
        with self._lock:
            return time.monotonic() - self._heard_s if self._unanswered else 0.0

    def _has_room(self) -> bool:
        with self._lock:
            return len(self._unanswered) < _MAX_UNANSWERED

    def _send(self, producer: Any, sent: _Sent) -> None:
        token = id(sent)
        with self._lock:
            # Silence counts from the first batch that is not answered, not from the last answer before a pause.
            if not self._unanswered:
                self._heard_s = time.monotonic()
            self._unanswered[token] = sent
        properties = {
            "tenant": sent.stream.tenant,
            "device": sent.stream.device,
            "epoch": str(sent.stream.epoch),
            "region": self._regions[self._at][0],
        }
        producer.send_async(
            sent.payload, partial(self._on_receipt, token), properties=properties, partition_key=sent.stream.device
        )

    def _on_receipt(self, token: int, result: Any, _: Any) -> None:
        with self._lock:
            sent = self._unanswered.get(token)
            if sent is None or result != pulsar.Result.Ok:
                return  # a failure: silence decides when it is sent again
            del self._unanswered[token]
            self._heard_s = time.monotonic()
            self.receipts.append(SeenRange(time.time(), sent.stream, sent.first, sent.last))

    def _give_up_waiting(self) -> None:
        """Send unanswered batches to the next region."""
        with self._lock:
            self._again.extend(self._unanswered.values())
            self._unanswered.clear()
        self._at = (self._at + 1) % len(self._regions)

    @contextlib.contextmanager
    def _producer(self) -> Iterator[Any]:
        region, service_url = self._regions[self._at]
        client = open_pulsar_client(service_url, self._access, timeout_s=_CLIENT_S)
        try:
            yield client.create_producer(
                f"persistent://{TENANT}/telemetry-{region}/batches",
                send_timeout_millis=30_000,
                # More than may be unanswered: the client's own queue never refuses a batch.
                max_pending_messages=2 * _MAX_UNANSWERED,
                batching_enabled=True,
                batching_max_publish_delay_ms=5,
            )
        finally:
            # The devices do not wait for a region that is gone.
            close_within([partial(close_quietly, client)], _CLIENT_S if self._stopping.is_set() else 0.2)

    def _batches(self) -> Iterator[_Sent]:
        spacing_us = round(1e6 * DEVICES / self._records_per_s)
        made = dict.fromkeys(self.streams, 0)
        for number, stream in cycle(enumerate(self.streams)):
            first = made[stream] + 1
            made[stream] += _RECORDS_PER_BATCH
            yield _Sent(stream, first, made[stream], _payload(stream, first, made[stream], spacing_us, number))


def _payload(stream: DeviceStream, first: int, last: int, spacing_us: int, phase: float) -> bytes:
    """A batch with one fix for each record; the last one is measured now."""
    now_us = time.time_ns() // 1000
    times_us = [now_us + spacing_us * (seq - last) for seq in range(first, last + 1)]
    records = tuple(
        Record(seq, time_us, position_at(time_us, phase)) for seq, time_us in enumerate(times_us, start=first)
    )
    return encode(Batch(stream.device, stream.epoch, last, records))


# One drill: its devices, times and counts.

# What has arrived at a cluster has reached its followers after this time.
_ON_THE_WAY_S = 2.0
_STEADY_COMMITS = 3
# Two commits of about equal size: no backlog is left.
_ALIKE = 1.5
_DEVICES_GO_ON_S = 2.0
_STEADY_S = 4.0
_AFTER_S = 3.0
_CUT_S = 8.0


@dataclass(slots=True)
class DrillRun:
    """Devices of every region, their receipts, what arrived in the surviving cluster, and the table.

    The times are those of `DrillObservations`.
    """

    environment: DrillEnvironment
    table: CentralTable
    fleets: dict[str, Fleet]
    follower: Follower
    started_s: float
    affected: Collection[DeviceStream] = ()
    steady_from_s: float = 0.0
    lost_at_s: float = 0.0
    counted_at_s: float = 0.0
    replicated_until_s: float = 0.0

    @property
    def receipts(self) -> list[SeenRange]:
        """All acknowledgements to devices, in the order of time."""
        # Of a copy: the client's thread appends meanwhile.
        return sorted(one for fleet in self.fleets.values() for one in list(fleet.receipts))

    def wait_until_steady(self, cursor_in: str | None, read: str = "") -> None:
        """Until the ingest keeps up and, if asked, the cursor in `cursor_in` follows that in `read`.

        Devices start slowly, so that Spark's first micro-batch is not the backlog of its own start.
        """
        environment = self.environment
        environment.wait_for("the first record comes through", lambda: bool(self.table.commits()))
        for fleet in self.fleets.values():
            fleet.speed_up()
        first_s = time.time()
        environment.wait_for("the ingest keeps up", lambda: self._keeps_up(first_s))
        if cursor_in is not None:
            environment.wait_for(
                f"the cursor in {cursor_in} follows",
                lambda: environment.cursor_follows(cursor_in, read, self._batch_s()),
                every_s=0.5,
            )
            environment.say(f"the ingest's cursor has travelled to {cursor_in}")
        self.steady_from_s = time.time()
        self.let_traffic_flow(_STEADY_S)

    def _batch_s(self) -> float:
        """The time from one micro-batch to the next: the trigger's interval, or more on a slow machine."""
        before, last = self.table.commits()[-2:]
        return max(TRIGGER_S, last.at_s - before.at_s)

    def _keeps_up(self, since_s: float) -> bool:
        """Whether the last two micro-batches are about equal, so that the backlog of Spark's start is gone."""
        sizes = [count(commit.record_ids) for commit in self.table.commits() if commit.at_s > since_s]
        return len(sizes) >= _STEADY_COMMITS and max(sizes[-2:]) <= _ALIKE * min(sizes[-2:])

    def let_traffic_flow(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        self.environment.wait_for("time passes", lambda: time.monotonic() >= ends)

    def mark_loss(self, affected: Collection[DeviceStream]) -> None:
        self.affected = affected
        self.lost_at_s = time.time()
        self.mark_count()

    def mark_count(self) -> None:
        """Records that are acknowledged now are under way; those that have not arrived now are not replicated."""
        self.counted_at_s = self.replicated_until_s = time.time()

    def wait_until_through(self, *, only_arrived: bool = False) -> None:
        """Until records come through again, then some traffic, then until all records (or those that arrived) are in
        the table.
        """
        environment = self.environment
        if environment.wait_for_or_timeout("a record is through again", self._first_through):
            environment.say(f"the first record is through after {time.time() - self.counted_at_s:.1f} s")
        self.let_traffic_flow(_AFTER_S)
        for fleet in self.fleets.values():
            fleet.pause()
        environment.wait_for_or_timeout(
            "every batch is answered", lambda: all(one.idle for one in self.fleets.values())
        )
        if only_arrived:
            # What arrived at the survivor may still be on its way to the follower, and counts as replicated.
            self.let_traffic_flow(_ON_THE_WAY_S)
            self.replicated_until_s = time.time()
        if environment.wait_for_or_timeout("all is in the table", lambda: not self._missing(only_arrived=only_arrived)):
            environment.say(
                f"{count(record_ids_of(self.receipts)):,} records were acknowledged, and what is expected is there"
            )

    def lost(self) -> int:
        """The number of acknowledged records that are not in the table now."""
        return count(self._missing(only_arrived=False))

    def observations(self) -> DrillObservations:
        return DrillObservations(
            receipts=self.receipts,
            arrivals=list(self.follower.arrivals),
            commits=self.table.commits(),
            batches=self.table.batches(self.started_s),
            rows=self.table.rows(),
            steady_from_s=self.steady_from_s,
            lost_at_s=self.lost_at_s,
            counted_at_s=self.counted_at_s,
            replicated_until_s=self.replicated_until_s,
            affected=frozenset(self.affected),
        )

    def _first_through(self) -> bool:
        since_s = self.counted_at_s
        fresh = record_ids_of(one for one in self.receipts if one.at_s > since_s and one.stream in self.affected)
        return any(commit.at_s > since_s and common(fresh, commit.record_ids) for commit in self.table.commits())

    def _missing(self, *, only_arrived: bool) -> RecordIds:
        wanted: RecordIds = record_ids_of(self.receipts)
        if only_arrived:
            wanted = common(wanted, record_ids_of(self.follower.arrivals))
        return minus(wanted, self.table.record_ids())


@contextmanager
def drill_run(environment: DrillEnvironment, survivor: str, *, moving: bool = False) -> Iterator[DrillRun]:
    """A run with sending devices, stopped on leaving. `moving`: devices of a silent region move to the next one."""
    # An epoch of its own distinguishes this drill's records from those of others in the same table.
    epoch = new_epoch(time.time_ns() // 1_000_000, randrange(1 << 15))
    pace = {"records_per_s": environment.settings.records_per_s}
    if moving:
        pace["silence_s"] = _DEVICES_GO_ON_S
    # Opened before the devices send: it notes only what arrives from then on.
    survivor_cluster = environment.stack.pulsar[survivor]
    with Follower(survivor_cluster.service_url, environment.topics, survivor_cluster.access) as follower:
        fleets = {
            region: Fleet(_service_urls(environment, region, moving=moving), epoch, environment.stack.access(), **pace)
            for region in environment.topology.regions
        }
        table = CentralTable(environment.jobs.tables, epoch)
        run = DrillRun(environment, table, fleets, follower, time.time())
        try:
            for fleet in fleets.values():
                fleet.start()
            yield run
        finally:
            for fleet in fleets.values():
                fleet.stop()


def _service_urls(environment: DrillEnvironment, home: str, *, moving: bool) -> list[tuple[str, str]]:
    others = [region for region in environment.topology.regions if region != home] if moving else []
    return [(region, environment.region_cluster(region).service_url) for region in (home, *others)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The counts of one drill. `lost_after_return`: records still lost once the lost region was back with its disks."""

    drill: Drill
    found: Findings
    alerts: AlertAudit
    lost_after_return: int | None = None

    @property
    def passed(self) -> bool:
        return self.found.passed and self.alerts.holds


def run_drill(drill: Drill, environment: DrillEnvironment) -> Outcome:
    """Run one drill while the centre is read; failback: after the centre was lost, while its standby is read."""
    return _DRILLS[drill](environment)


def _hq_loss(environment: DrillEnvironment) -> Outcome:
    centre, standby = environment.topology.centres
    with drill_run(environment, standby) as run:
        run.wait_until_steady(cursor_in=standby, read=centre)
        environment.wait_for_moment()
        run.mark_loss(_all_streams(run))
        # Killed after the mark: the seconds to the first record are never measured too short.
        environment.stack.pulsar[centre].kill()
        environment.say(f"killed {centre} with SIGKILL")
        environment.kill_verdicts()
        run.wait_until_through()
        return _outcome(Drill.HQ_LOSS, run)


def _failback(environment: DrillEnvironment) -> Outcome:
    centre, standby = environment.topology.centres
    environment.start_cluster(centre)
    with drill_run(environment, centre) as run:
        run.wait_until_steady(cursor_in=centre, read=standby)
        environment.wait_for_moment()
        run.mark_loss(_all_streams(run))
        environment.request_switchover(centre)
        environment.say(f"ordered the ingest from {standby} back to {centre}")
        run.wait_until_through()
        return _outcome(Drill.FAILBACK, run)


def _region_loss(environment: DrillEnvironment) -> Outcome:
    region = next(iter(environment.topology.regions))
    cluster = environment.region_cluster(region)
    with drill_run(environment, environment.topology.centre, moving=True) as run:
        run.wait_until_steady(cursor_in=None)
        environment.wait_for_moment()
        run.mark_loss(run.fleets[region].streams)
        cluster.kill()
        environment.say(f"killed region {region} with SIGKILL; its devices go to the next region")
        run.wait_until_through(only_arrived=True)
        # Counted before the disks come back: they bring what was not replicated.
        findings = compute_findings(run.observations())
        environment.say(
            f"{findings.lost:,} acknowledged records burnt with region {region}, unless its disks come back"
        )
        environment.start_cluster(cluster.cluster)
        environment.wait_for_or_timeout("what the region still had comes through", lambda: run.lost() == 0)
        return Outcome(Drill.REGION_LOSS, findings, environment.audit_alerts(), run.lost())


def _link_cut(environment: DrillEnvironment) -> Outcome:
    region = next(iter(environment.topology.regions))
    here, there = environment.topology.regions[region].cluster, environment.topology.centre
    links = [environment.stack.links[f"{here}->{there}"], environment.stack.links[f"{there}->{here}"]]
    with drill_run(environment, there) as run:
        run.wait_until_steady(cursor_in=None)
        environment.wait_for_moment()
        run.mark_loss(run.fleets[region].streams)
        for link in links:
            link.cut()
        environment.say(f"cut the links between {here} and {there}")
        run.let_traffic_flow(_CUT_S)
        for link in links:
            link.heal()
        # The seconds count from here: nothing can come through while the link is cut.
        run.mark_count()
        environment.say(f"healed them after {_CUT_S:.0f} s")
        run.wait_until_through()
        return _outcome(Drill.LINK_CUT, run)


_DRILLS: dict[Drill, Callable[[DrillEnvironment], Outcome]] = {
    Drill.HQ_LOSS: _hq_loss,
    Drill.FAILBACK: _failback,
    Drill.REGION_LOSS: _region_loss,
    Drill.LINK_CUT: _link_cut,
}


def _outcome(drill: Drill, run: DrillRun) -> Outcome:
    return Outcome(drill, compute_findings(run.observations()), run.environment.audit_alerts())


def _all_streams(run: DrillRun) -> frozenset[DeviceStream]:
    return frozenset(stream for fleet in run.fleets.values() for stream in fleet.streams)
