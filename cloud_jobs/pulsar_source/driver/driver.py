"""What the streaming reader does in Spark's driver: offsets, plans, acknowledgements."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import structlog

from cloud_jobs.pulsar_source.cluster.clients import close_clients
from cloud_jobs.pulsar_source.cluster.partition_state import PartitionState, SubscriptionProperties, ledger_created_in
from cloud_jobs.pulsar_source.cluster.survey import ClusterView, check_topics
from cloud_jobs.pulsar_source.driver.acknowledging import acknowledge
from cloud_jobs.pulsar_source.driver.cluster_monitor import ClusterMonitor
from cloud_jobs.pulsar_source.driver.crash_guard import CrashGuard
from cloud_jobs.pulsar_source.driver.lookahead import Lookahead, Lookaheads
from cloud_jobs.pulsar_source.driver.ownership import Ownership
from cloud_jobs.pulsar_source.driver.planning import (
    BatchLimits,
    limit_batch,
    limit_to_target,
    newest_positions,
    start_positions,
)
from cloud_jobs.pulsar_source.errors import AccessRefused, DataLoss, NoClusterAnswers, SourceClusterUnreachable
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition, Offset, PartitionRange, ranges
from cloud_jobs.pulsar_source.reading.chunks import kept_before
from cloud_jobs.pulsar_source.reading.entries import IdleTimeout, Inquiry
from cloud_jobs.pulsar_source.reading.entry_store import open_entry_store
from cloud_jobs.pulsar_source.reading.planned import OpenEntryStore, PlannedRange, stream_range

_log = structlog.get_logger(__name__)
_POLL_PERIOD_S = 0.04
"""How long a look that showed nothing takes at least. Spark itself waits 10 ms before the next one."""
_MAX_WARNINGS = 1000

ViewT = TypeVar("ViewT", ClusterView, ClusterView | None)
Acknowledger = Callable[[SourceCluster, PulsarOptions, Mapping[str, LedgerPosition]], Mapping[str, LedgerPosition]]


class Driver:
    """The state of one streaming query between Spark's calls; Spark calls from one thread."""

    def __init__(
        self,
        options: PulsarOptions,
        *,
        monitor: ClusterMonitor | None = None,
        ownership: Ownership | None = None,
        acknowledger: Acknowledger = acknowledge,
        lookahead: Callable[[SourceCluster, PulsarOptions, str, int], Lookahead] = Lookahead,
        crash_guard: CrashGuard | None = None,
        store: OpenEntryStore = open_entry_store,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._monitor = monitor or ClusterMonitor(options)
        self._ownership = ownership or Ownership(options)
        self._acknowledge = acknowledger
        self._crash_guard = crash_guard or CrashGuard(options)
        self._store = store
        self._pause = pause
        self._initial: Offset | None = None
        self._warned: set[tuple[str, str, str]] = set()
        self._view: ClusterView | None = None
        self._lookaheads = Lookaheads(options, lookahead)
        self._acknowledged: dict[tuple[str, str], LedgerPosition] = {}
        self._served: Offset | None = None
        self._target: Offset | None = None
        self._planned: Offset | None = None
        self._round = 0

    def close(self) -> None:
        """Gives every connection back."""
        self._lookaheads.close()
        self._ownership.close()
        self._monitor.close()
        close_clients()

    def initial_offset(self) -> Offset:
        """Where a query without a checkpoint begins: the cursor, created at startingPosition where there is none."""
        query = self._monitor.start_query()
        view = self._claim_view(self._monitor.view_creating_subscriptions)
        check_topics(self._options, view.cluster, view.states)
        begin = start_positions({}, view.states, self._options)
        self._initial = Offset(view.cluster.name, begin, {}, _generations({}, view), query)
        return self._initial

    def _claim_view(self, look: Callable[[], ViewT]) -> ViewT:
        """What the look shows once this query alone reads the subscription there."""
        while (view := look()) is not None and not self._ownership.claim(view, self._monitor.other_views):
            pass
        return view

    def next_offset(self, start: Offset, *, limited: bool) -> Offset:
        """The end of the next batch; `start` itself when there is nothing to read."""
        self._monitor.bind_checkpoint(start)
        if self._monitor.accept_switchover_request():
            if start == self._served:
                # What was seen at the last plan can be another life of the topic by now.
                self._view = self._monitor.view_of(start.cluster)
            self.commit(start)
            self._monitor.switch_over()
        try:
            return self._next_offset(start, limited=limited)
        except NoClusterAnswers:
            raise
        except SourceClusterUnreachable:
            # It went away after it had answered: let the watch decide once more, with nothing left open.
            self._lookaheads.close()
            return self._next_offset(start, limited=limited)

    def _next_offset(self, start: Offset, *, limited: bool) -> Offset:
        looked_at = time.monotonic()
        self._view = view = self._claim_view(self._monitor.active_view)
        self._monitor.clear_abandoned(start)
        changed = self._monitor.state.restarts_at_cursor(start)
        reset_topics = self._lost_positions(start, view)
        known = _known_positions(start, view, reset_topics, from_cursor=changed)
        begin = start_positions(known, view.states, self._options)
        ends = self._ends(begin, view, limited=limited)
        # A query without a checkpoint asks again where it begins: its first batch must not depend on the answer.
        origin = _origin(begin, {} if changed or start == self._initial else known)
        restarts = start.restarts + bool(changed or reset_topics)
        advanced = {topic: view.states[topic].ledger_created_at for topic, end in ends.items() if end > begin[topic]}
        old = {topic: generation for topic, generation in start.subscription_ids.items() if topic in known}
        self._planned = Offset(
            view.cluster.name, ends, origin, _generations(advanced, view, old), start.query, restarts
        )
        if ends == begin and not reset_topics:
            # Spark asks from `start` on, so the batch that ended there is done; it says so only with the next batch.
            self.commit(start)
            if start.cluster == view.cluster.name and begin == newest_positions(begin, view.states):
                self._monitor.caught_up()
            self._throttle(looked_at)
            return start
        properties = self._monitor.record_planned(view.cluster.name, advanced)
        self._view = replace(view, properties={**view.properties, **properties})
        return self._planned

    def fix_target(self) -> None:
        """Trigger.AvailableNow: nothing that arrives after this moment is read."""
        # Spark asks for this first of all: only `initial_offset` knows where a new subscription begins.
        self._target = _newest_of(self._monitor.active_view(create_at=None))

    def newest_offset(self) -> dict[str, Any] | None:
        """The newest offset there is and the entries that wait before it, for Spark's progress report."""
        view, planned = self._view, self._planned
        if view is None or planned is None:
            return None
        waiting = {
            name: state.entries_between(planned.positions[name], state.last) for name, state in view.states.items()
        }
        return {**_newest_of(view).to_json(), "waiting_entries": waiting}

    def plan(self, start: Offset, end: Offset) -> list[PlannedRange]:
        """The tasks of the batch between two offsets.

        None when its cluster is gone: the batch is closed without being read, and kept as abandoned. What it held was
        never acknowledged, so the other cluster's cursor stands before it, and the next batch begins there.
        """
        self._monitor.bind_checkpoint(end, planned=True)
        parts = list(ranges(start, end))
        view = self._claim_view(lambda: self._view_for(end, {part.topic for part in parts}))
        if view is None:
            self._monitor.abandon(end)
            return []
        self._served = end
        known = self._monitor.known_clusters(end.cluster)
        tasks = [
            stream_range(part, view.states[part.topic], view.cluster, self._options, known)
            for part in parts
            if self._is_still_readable(part, end, view)
        ]
        isolated = self._crash_guard.on_batch_planned(replayed=end != self._planned)
        return [task.isolated_copy() for task in tasks] if isolated else tasks

    def _is_still_readable(self, part: PartitionRange, end: Offset, view: ClusterView) -> bool:
        """Whether a range that was planned can still be read where it was planned."""
        if not self._options.asks_for(part.topic):
            return False
        loss = _loss(part.topic, part.start, end.subscription_ids.get(part.topic), view)
        state = view.states.get(part.topic)
        if not loss and state and state.is_removed(part.end) and not self._is_compacted(state, part.end):
            # It was planned and held something; no reading of it would ever end.
            loss = _Loss(f"all that was planned, {part.start} to {part.end}, is removed", from_cursor=True)
        if loss:
            self._report_losses(view.cluster.name, {part.topic: loss.detail})
        return not (loss and loss.from_cursor)

    def _is_compacted(self, state: PartitionState, position: LedgerPosition) -> bool:
        """Whether what was there is read from the compacted form, which outlives its ledgers."""
        return self._options.read_compacted and position[:2] <= state.compacted[:2]

    def commit(self, end: Offset) -> None:
        """Everything up to `end` is processed: moves the cursor there.

        Only an end that this process planned itself: after a restart the next one takes it along. A cluster that is
        gone is left as it is: its cursor stays behind, never ahead.
        """
        if end != self._served or self._monitor.state.is_abandoned(end) or not self._monitor.is_reachable(end.cluster):
            return
        name = end.cluster
        properties = self._view.properties if self._view and self._view.cluster.name == name else {}
        moved = {
            topic: at
            for topic, at in end.positions.items()
            # In another life of the topic the same place holds other messages, which nobody has read.
            if self._acknowledged.get((name, topic)) != at
            and _is_same_generation(properties.get(topic), end.subscription_ids.get(topic))
        }
        if not moved:
            return
        began = time.monotonic()
        done = self._acknowledge_recorded(name, moved, end)
        self._acknowledged |= {(name, topic): at for topic, at in done.items()}
        if not done:
            # Perhaps it is gone: no batch is planned on what was seen of it before.
            self._monitor.suspect(name, began)
            self._view = None

    def _acknowledge_recorded(
        self, name: str, moved: Mapping[str, LedgerPosition], end: Offset
    ) -> Mapping[str, LedgerPosition]:
        created_times = {
            topic: created for topic in moved if (created := ledger_created_in(end.subscription_ids.get(topic, "")))
        }
        try:
            # First the note: once the cursor has moved, the ledger can be gone.
            self._monitor.record_acknowledged(name, created_times)
        except (SourceClusterUnreachable, AccessRefused) as error:
            _log.warning("acknowledgements_left", cluster=name, topics=len(moved), first_error=str(error))
            return {}
        cluster = self._options.cluster_named(name)
        done = self._acknowledge(cluster, self._options, {**moved, **self._kept(cluster, moved)})
        return {topic: moved[topic] for topic in done}

    def _kept(self, cluster: SourceCluster, moved: Mapping[str, LedgerPosition]) -> dict[str, LedgerPosition]:
        """How far to acknowledge the partitions that are known for messages in chunks."""
        view = self._view if self._view and self._view.cluster == cluster else None
        kept: dict[str, LedgerPosition] = {}
        left_s = IdleTimeout(self._options.call_timeout_s())
        for topic in [topic for topic in moved if view and topic in view.properties and view.properties[topic].chunked]:
            assert view is not None  # it has notes
            with self._store(cluster, self._options, topic) as stored:
                ledgers = view.states[topic].entry_counts_between(BEGINNING, moved[topic])
                inquiry = Inquiry(stored, left_s)
                kept[topic] = kept_before(moved[topic], ledgers, inquiry)
        return kept

    def _throttle(self, looked_at: float) -> None:
        """Spark asks an idle source a hundred times a second; the brokers are asked twenty times.

        After a look that showed nothing, not before one: a batch must not wait for it.
        """
        self._pause(max(0.0, looked_at + _POLL_PERIOD_S - time.monotonic()))

    def _view_for(self, end: Offset, topics: set[str]) -> ClusterView | None:
        if self._view and self._view.cluster.name == end.cluster and topics <= set(self._view.states):
            return self._view
        self._options.cluster_named(end.cluster)
        view = self._monitor.view_of(end.cluster)
        if view is None:
            # Another cluster, or this one if it came back before any other answered; raises when none does.
            active = self._monitor.active_view()
            view = active if active.cluster.name == end.cluster else None
        return view

    def _ends(
        self, begin: Mapping[str, LedgerPosition], view: ClusterView, *, limited: bool
    ) -> dict[str, LedgerPosition]:
        ends = newest_positions(begin, view.states)
        if self._target is not None:
            if self._target.cluster != view.cluster.name:
                self._target = _newest_of(view)
            ends = limit_to_target(begin, ends, self._target.positions)
        limits = BatchLimits(self._options.max_messages_per_trigger, self._options.max_bytes_per_trigger)
        if not limited or not limits or ends == begin:
            return ends
        self._round += 1
        advanced = {topic: end for topic, end in ends.items() if end > begin[topic]}
        weights = {
            topic: float(view.states[topic].entries_between(begin[topic], end)) for topic, end in advanced.items()
        }
        parts = [PartitionRange(topic, begin[topic], end) for topic, end in advanced.items()]
        with self._crash_guard.lookahead_marked() as isolated:
            ahead = self._lookaheads.messages_by_topic(view.cluster, view.states, parts, isolated=isolated)
            admitted = limit_batch(ahead, weights, limits, self._round)
            self._lookaheads.close_if_large()
            return {**begin, **admitted}

    def _lost_positions(self, start: Offset, view: ClusterView) -> set[str]:
        """The partitions whose position means nothing any more, each reported; gaps of others are reported too."""
        reset_topics: set[str] = set()
        losses: dict[str, str] = {}
        for topic, position in start.positions.items():
            if not self._options.asks_for(topic):
                self._warn_once("topic_ignored", view.cluster.name, topic, "the options do not name it any more")
            elif (
                loss := _loss_after_switch(topic, view)
                if start.cluster != view.cluster.name
                else _loss(topic, position, start.subscription_ids.get(topic), view)
            ):
                losses[topic] = loss.detail
                if loss.from_cursor and topic in view.states:
                    reset_topics.add(topic)
        if losses:
            self._report_losses(view.cluster.name, losses)
            self._monitor.accept_created(view.cluster.name)
        if reset_topics:
            self._lookaheads.close()
        return reset_topics

    def _report_losses(self, cluster: str, losses: Mapping[str, str]) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(cluster, ", ".join(losses), next(iter(losses.values())))
        for topic, detail in losses.items():
            self._warn_once("data_loss", cluster, topic, detail)

    def _warn_once(self, event: str, cluster: str, topic: str, detail: str) -> None:
        """Logs it once: Spark asks an idle source twenty times a second."""
        if (cluster, topic, detail) not in self._warned:
            self._warned = {*self._warned, (cluster, topic, detail)} if len(self._warned) < _MAX_WARNINGS else set()
            _log.warning(event, cluster=cluster, topic=topic, detail=detail)


class _Loss(NamedTuple):
    """`reset_topics`: the position belongs to another life of the topic; reading goes on at the subscription's
    cursor."""

    detail: str
    from_cursor: bool


def _known_positions(
    start: Offset, view: ClusterView, reset_topics: Collection[str], *, from_cursor: bool
) -> dict[str, LedgerPosition]:
    """Where the query stands, as far as its positions mean something.

    `from_cursor`: the batch up to `start` may be unread, so what the cursor keeps before it is read too. A cursor that
    somebody moved ahead of the query takes nothing away from it.
    """
    if start.cluster != view.cluster.name:
        return {}
    known = {topic: at for topic, at in start.positions.items() if topic in view.states and topic not in reset_topics}
    if not from_cursor:
        return known
    return {topic: min(at, view.states[topic].cursor or BEGINNING) for topic, at in known.items()}


def _loss(topic: str, position: LedgerPosition, read_through: str | None, view: ClusterView) -> _Loss | None:
    state = view.states.get(topic)
    if state is None:
        return _Loss("the topic does not exist any more", from_cursor=True)
    properties = view.properties.get(topic)
    if not _is_same_generation(properties, read_through):
        detail = (
            "its subscription is not the one that the query read (the topic was deleted and created anew, the cluster "
            "came back with empty or older disks, or the subscription was deleted)"
        )
        return _Loss(detail, from_cursor=True)
    detail_of_gap = state.loss_after(position)
    if detail_of_gap:
        return _Loss(detail_of_gap, from_cursor=state.ends_before(position))
    if state.is_removed(position) and properties and properties.acknowledged_after(read_through or ""):
        detail = (
            f"what came after {position} was read once, the checkpoint was set back since, and the ledger is removed"
        )
        return _Loss(detail, from_cursor=False)
    return None


def _is_same_generation(properties: SubscriptionProperties | None, generation: str | None) -> bool:
    return properties is None if generation is None else properties is not None and properties.has_read(generation)


def _generations(
    advanced: Mapping[str, str], view: ClusterView, old: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Topic partition -> the mark of its position; `advanced`: the opening of each one that has a batch."""
    generations = {
        topic: properties.generation(advanced.get(topic, "")) for topic, properties in view.properties.items()
    }
    return generations | {
        topic: generation for topic, generation in (old or {}).items() if topic in generations and topic not in advanced
    }


def _loss_after_switch(topic: str, view: ClusterView) -> _Loss | None:
    """After a change of cluster: the position speaks of another one, the cursor here decides, if there was one."""
    if topic not in view.states:
        return _Loss("the topic does not exist there", from_cursor=False)
    if topic in view.created:
        return _Loss("its subscription did not exist there, so nothing was kept for it", from_cursor=False)
    return None


def _origin(begin: Mapping[str, LedgerPosition], known: Mapping[str, LedgerPosition]) -> dict[str, LedgerPosition]:
    return {topic: position for topic, position in begin.items() if topic not in known}


def _newest_of(view: ClusterView) -> Offset:
    return Offset(view.cluster.name, {topic: state.last for topic, state in view.states.items()})
