"""One drill's own devices and clocks, from the first record to the account."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import randrange

from cloud_jobs.lake.coverage import DeviceStream
from deploy.drill.central_table import CentralTable
from deploy.drill.environment import DrillEnvironment
from deploy.drill.findings import DrillObservations
from deploy.drill.fleet import Fleet
from deploy.drill.follower import Follower
from deploy.drill.record_ids import RecordIds, SeenRange, common, count, minus, record_ids_of
from waybill.record import new_epoch

# what has arrived at a cluster is with its followers by then
_ON_THE_WAY_S = 2.0
_STEADY_COMMITS = 3
# two commits are alike: what is taken in is what comes, and no backlog any more
_ALIKE = 1.5
_DEVICES_GO_ON_S = 2.0


@dataclass(slots=True)
class _Times:
    """As in `DrillObservations`, seconds since 1970."""

    steady_from_s: float = 0.0
    lost_at_s: float = 0.0
    counted_at_s: float = 0.0
    replicated_until_s: float = 0.0


@dataclass(slots=True)
class DrillRun:
    """Devices of every region, their receipts, what arrived in the cluster that survives, and the table."""

    environment: DrillEnvironment
    table: CentralTable
    fleets: dict[str, Fleet]
    follower: Follower
    started_s: float
    starts: int
    affected: Collection[DeviceStream] = ()
    times: _Times = field(default_factory=_Times)

    @property
    def receipts(self) -> list[SeenRange]:
        """Everything that was acknowledged to devices, in the order of time."""
        # Of a copy: the client's thread appends meanwhile.
        return sorted(one for fleet in self.fleets.values() for one in list(fleet.receipts))

    @property
    def restarts(self) -> int:
        """How often the ingest had to be started again."""
        return self.environment.ingest.starts - self.starts

    def wait_until_steady(self, cursor_in: str | None, read: str = "") -> None:
        """Until the ingest keeps up and, if asked, the cursor in another cluster follows `read`.

        A slow beginning, so that Spark's first micro-batch is not all that came while it started.
        """
        environment = self.environment
        environment.wait_for("the first record comes through", lambda: bool(self.table.commits()))
        for fleet in self.fleets.values():
            fleet.speed_up()
        first_s = time.time()
        environment.wait_for("the ingest keeps up", lambda: self._keeps_up(first_s))
        environment.say(f"records come through, {self.behind_s():.1f} s after they were acknowledged")
        if cursor_in is not None:
            environment.wait_for(
                f"the cursor in {cursor_in} follows",
                lambda: environment.cursor_follows(cursor_in, read, self._batch_s()),
                every_s=0.5,
            )
            environment.say(f"the ingest's cursor has travelled to {cursor_in}")
        self.times.steady_from_s = time.time()
        self.let_traffic_flow(environment.settings.steady_s)

    def behind_s(self) -> float:
        """How long ago the newest record that is in the table was acknowledged."""
        known = self.table.record_ids()
        through = (one for one in reversed(self.receipts) if one.last in known.get(one.stream, ()))
        return time.time() - next((one.at_s for one in through), 0.0)

    def _batch_s(self) -> float:
        """From one micro-batch to the next: the trigger's interval, or longer where the machine needs longer."""
        before, last = self.table.commits()[-2:]
        return max(self.environment.settings.trigger_s, last.at_s - before.at_s)

    def _keeps_up(self, since_s: float) -> bool:
        """Whether the last two micro-batches are about equal, so that what came while Spark started is worked off."""
        sizes = [count(commit.record_ids) for commit in self.table.commits() if commit.at_s > since_s]
        return len(sizes) >= _STEADY_COMMITS and max(sizes[-2:]) <= _ALIKE * min(sizes[-2:])

    def let_traffic_flow(self, seconds: float) -> None:
        """Nothing happens for a while but traffic."""
        ends = time.monotonic() + seconds
        self.environment.wait_for("time passes", lambda: time.monotonic() >= ends)

    def mark_loss(self, affected: Collection[DeviceStream]) -> None:
        """Now it is lost."""
        self.affected = affected
        self.times.lost_at_s = time.time()
        self.mark_count()

    def mark_count(self) -> None:
        """What is acknowledged now is under way; what has not arrived now is not replicated."""
        self.times.counted_at_s = self.times.replicated_until_s = time.time()

    def wait_until_through(self, *, only_arrived: bool = False) -> None:
        """Until records come through again, then some traffic, then until all is in the table (or what arrived)."""
        environment = self.environment
        if environment.wait_for_or_timeout("a record is through again", self._first_through):
            environment.say(f"the first record is through after {time.time() - self.times.counted_at_s:.1f} s")
        self.let_traffic_flow(environment.settings.after_s)
        for fleet in self.fleets.values():
            fleet.pause()
        environment.wait_for_or_timeout(
            "every batch is answered", lambda: all(one.idle for one in self.fleets.values())
        )
        if only_arrived:
            # What arrived at the survivor may still be on its way to the follower, and counts as replicated.
            self.let_traffic_flow(_ON_THE_WAY_S)
            self.times.replicated_until_s = time.time()
        if environment.wait_for_or_timeout("all is in the table", lambda: not self._missing(only_arrived=only_arrived)):
            environment.say(
                f"{count(record_ids_of(self.receipts)):,} records were acknowledged, and what is expected is there"
            )

    def lost(self) -> int:
        """How many acknowledged records are not in the table now."""
        return count(self._missing(only_arrived=False))

    def observations(self) -> DrillObservations:
        """All that was seen."""
        times = self.times
        return DrillObservations(
            receipts=self.receipts,
            arrivals=list(self.follower.arrivals),
            commits=self.table.commits(),
            batches=self.table.batches(self.started_s),
            rows=self.table.rows(),
            steady_from_s=times.steady_from_s,
            lost_at_s=times.lost_at_s,
            counted_at_s=times.counted_at_s,
            replicated_until_s=times.replicated_until_s,
            snapshot_period_s=self.environment.settings.snapshot_period_s,
            affected=frozenset(self.affected),
            resent=sum(fleet.resent for fleet in self.fleets.values()),
        )

    def _first_through(self) -> bool:
        since_s = self.times.counted_at_s
        fresh = record_ids_of(one for one in self.receipts if one.at_s > since_s and one.stream in self.affected)
        return any(commit.at_s > since_s and common(fresh, commit.record_ids) for commit in self.table.commits())

    def _missing(self, *, only_arrived: bool) -> RecordIds:
        wanted: RecordIds = record_ids_of(self.receipts)
        if only_arrived:
            wanted = common(wanted, record_ids_of(self.follower.arrivals))
        return minus(wanted, self.table.record_ids())


@contextmanager
def drill_run(environment: DrillEnvironment, survivor: str, *, moving: bool = False) -> Iterator[DrillRun]:
    """A run whose devices send; `moving`: those of a silent region go to the next one. Stopped on leaving."""
    # An epoch of its own distinguishes this drill's records from those of others in the same table.
    epoch = new_epoch(time.time_ns() // 1_000_000, randrange(1 << 15))
    pace = environment.settings.fleet
    if moving:
        pace = pace.model_copy(update={"silence_s": _DEVICES_GO_ON_S})
    # Opened before the devices send: it notes only what arrives from then on.
    survivor_cluster = environment.stack.pulsar[survivor]
    with Follower(survivor_cluster.service_url, environment.topics, survivor_cluster.access) as follower:
        fleets = {
            region: Fleet(_service_urls(environment, region, moving=moving), epoch, pace, environment.stack.access())
            for region in environment.topology.regions
        }
        table = CentralTable(environment.ingest.settings.tables, epoch)
        run = DrillRun(environment, table, fleets, follower, time.time(), environment.ingest.starts)
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
