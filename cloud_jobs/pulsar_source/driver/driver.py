"""What the streaming reader does in Spark's driver: offsets, plans, acknowledgements."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from cloud_jobs.pulsar_source.cluster.clients import close_clients
from cloud_jobs.pulsar_source.cluster.survey import ClusterView, check_topics
from cloud_jobs.pulsar_source.driver.acknowledging import Acknowledger
from cloud_jobs.pulsar_source.driver.batch_ends import BatchEnds, OnUnreadable, newest_offset
from cloud_jobs.pulsar_source.driver.cluster_monitor import ClusterMonitor
from cloud_jobs.pulsar_source.driver.crash_guard import CrashGuard
from cloud_jobs.pulsar_source.driver.left_out_note import LeftOutNote
from cloud_jobs.pulsar_source.driver.lookahead import Lookahead
from cloud_jobs.pulsar_source.driver.losses import (
    LossReporter,
    generations_of,
    known_positions,
    positions_left_out,
)
from cloud_jobs.pulsar_source.driver.ownership import Ownership
from cloud_jobs.pulsar_source.driver.planning import newest_positions, start_positions
from cloud_jobs.pulsar_source.errors import DataLoss, NoClusterAnswers, SourceClusterUnreachable
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition, Offset, PartitionRange, ranges
from cloud_jobs.pulsar_source.reading.planned import PlannedRange, stream_range

_log = structlog.get_logger(__name__)
_POLL_PERIOD_S = 0.04
"""How long a look that showed nothing takes at least. Spark itself waits 10 ms before the next one."""

ViewT = TypeVar("ViewT", ClusterView, ClusterView | None)


class Driver:
    """The state of one streaming query between Spark's calls; Spark calls from one thread."""

    def __init__(
        self,
        options: PulsarOptions,
        *,
        monitor: ClusterMonitor | None = None,
        ownership: Ownership | None = None,
        acknowledger: Acknowledger | None = None,
        losses: LossReporter | None = None,
        lookahead: Callable[[SourceCluster, PulsarOptions, str, int], Lookahead] = Lookahead,
        crash_guard: CrashGuard | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._monitor = monitor or ClusterMonitor(options)
        self._ownership = ownership or Ownership(options)
        self._acknowledger = acknowledger or Acknowledger(options, self._monitor)
        self._losses = losses or LossReporter(options)
        self._crash_guard = crash_guard or CrashGuard(options)
        self._ends = BatchEnds(options, self._crash_guard, lookahead)
        self._note = LeftOutNote(options.left_out_file) if options.left_out_file else None
        self._pause = pause
        self._view: ClusterView | None = None
        self._initial: Offset | None = None
        """Where the query began in this process."""
        self._chosen: Offset | None = None
        """The newest end that was chosen; Spark's log may have it."""
        self._planned: Offset | None = None
        """The newest end whose tasks this process handed out: only that one it acknowledges."""

    def close(self) -> None:
        """Gives every connection back."""
        self._ends.close()
        self._ownership.close()
        self._monitor.close()
        close_clients()

    def begin(self) -> Offset:
        """Begins a query without a checkpoint: at the cursor, created at startingPosition where there is none."""
        query = self._monitor.failover.start_query()
        view = self._claim_view(self._monitor.create_subscriptions)
        if self._note is None:
            check_topics(self._options, view.cluster, view.states)
        self._note_left_out(view)
        begin = start_positions({}, view.states, self._options)
        self._initial = Offset(view.cluster.name, begin, {}, generations_of({}, view), query)
        return self._initial

    def _claim_view(self, look: Callable[[], ViewT]) -> ViewT:
        """What the look shows once this query alone reads the subscription there."""
        while (view := look()) is not None and not self._ownership.claim(view, self._monitor.look_at_others):
            pass
        return view

    def choose_end(self, start: Offset, *, limited: bool) -> Offset:
        """Chooses the end of the next batch; `start` itself when there is nothing to read."""
        self._monitor.failover.bind_checkpoint(start)
        if self._monitor.failover.accept_switchover_request():
            if start == self._planned:
                # What was seen at the last plan can be another life of the topic by now.
                self._view = self._monitor.look_at(start.cluster)
            # Before the switch: what is not acknowledged here is read once more there.
            self.commit(start)
            self._monitor.switch_over()
        try:
            return self._choose_end(start, limited=limited)
        except NoClusterAnswers:
            raise
        except SourceClusterUnreachable:
            # It went away after it had answered: the monitor decides once more, with nothing left open.
            self._ends.close()
            return self._choose_end(start, limited=limited)

    def _choose_end(self, start: Offset, *, limited: bool) -> Offset:
        looked_at = time.monotonic()
        view = self._claim_view(self._monitor.look_at_active)
        self._monitor.failover.clear_abandoned(start)
        changed = self._monitor.failover.state.restarts_at_cursor(start)
        view, reset_topics = self._report_losses(start, view)
        self._view = view
        left_out = positions_left_out(start, view, from_cursor=changed)
        known = known_positions(start, view, reset_topics, from_cursor=changed)
        if self._note is not None:
            # A topic that was left out when its batch was closed unread; see `positions_left_out`.
            known = {topic: at for topic, at in known.items() if at != BEGINNING}
        begin = start_positions(known, view.states, self._options)
        ends = self._ends.choose(begin, view, limited=limited, on_unreadable=self._on_unreadable(view))
        self._monitor.left_out(view.cluster.name).on_served(view.states)
        self._note_left_out(view)
        # A query without a checkpoint asks again where it begins: its first batch must not depend on the answer.
        origin = _origin(begin, {} if changed or start == self._initial else known)
        restarts = start.restarts + bool(changed or reset_topics)
        advanced = {topic: view.states[topic].ledger_created_at for topic, end in ends.items() if end > begin[topic]}
        old = {topic: generation for topic, generation in start.generations.items() if topic in known}
        generations = generations_of(advanced, view, old)
        generations |= {topic: start.generations[topic] for topic in left_out if topic in start.generations}
        self._chosen = Offset(view.cluster.name, {**left_out, **ends}, origin, generations, start.query, restarts)
        if ends == begin and not reset_topics:
            # Spark asks from `start` on, so the batch that ended there is done; it says so only with the next batch.
            self.commit(start)
            caught_up = not view.left_out and begin == newest_positions(begin, view.states)
            if start.cluster == view.cluster.name and caught_up:
                self._monitor.failover.on_caught_up()
            self._throttle(looked_at)
            return start
        # Before Spark's log has the batch: a log that knows more than the broker was written on other disks.
        properties = self._monitor.record_planned(view.cluster.name, advanced)
        self._view = replace(view, properties={**view.properties, **properties})
        return self._chosen

    def fix_target(self) -> None:
        """Trigger.AvailableNow: nothing that arrives after this moment is read."""
        # Spark asks for this first of all: only `begin` knows where a new subscription begins.
        self._ends.fix_target(newest_offset(self._monitor.look_at_active(create_at=None)))

    def newest_offset(self) -> dict[str, Any] | None:
        """The newest offset there is and the entries that wait before it, for Spark's progress report."""
        view, chosen = self._view, self._chosen
        if view is None or chosen is None:
            return None
        waiting = {
            name: state.entries_between(chosen.positions[name], state.last) for name, state in view.states.items()
        }
        named = {"left_out": sorted(view.left_out)} if view.left_out else {}
        return {**newest_offset(view).to_json(), "waiting_entries": waiting} | named

    def plan(self, start: Offset, end: Offset) -> list[PlannedRange]:
        """The tasks of the batch between two offsets.

        No tasks when its cluster is gone: the batch is closed without being read, and kept as abandoned. What it held
        was never acknowledged, so the other cluster's cursor stands before it, and the next batch begins there.
        """
        self._monitor.failover.bind_checkpoint(end, planned=True)
        parts = list(ranges(start, end))
        view = self._claim_view(lambda: self._look_for(end, {part.topic for part in parts}))
        if view is None:
            # On disk before Spark closes the batch: afterwards nothing shows that it was not read.
            self._monitor.failover.abandon(end)
            return []
        if self._note is not None and not self._readable(parts, end, view):
            # As when the cluster is gone: the others go on at their cursors, without the topics that cannot be read.
            self._monitor.failover.abandon(end)
            return []
        self._planned = end
        known = self._monitor.known_clusters(end.cluster)
        tasks = [
            stream_range(part, view.states[part.topic], view.cluster, self._options, known)
            for part in parts
            if self._losses.check_readable(part, end, view)
        ]
        # Spark asks once more only for a batch that did not complete.
        isolated = self._crash_guard.on_batch_planned(replayed=end != self._chosen)
        return [task.isolated_copy() for task in tasks] if isolated else tasks

    def commit(self, end: Offset) -> None:
        """Everything up to `end` is processed: moves the cursor there.

        Only an end that this process planned itself: after a restart the next one takes it along. A cluster that is
        gone is left as it is: its cursor stays behind, never ahead.
        """
        if (
            end != self._planned
            or self._monitor.failover.state.is_abandoned(end)
            or not self._monitor.is_reachable(end.cluster)
        ):
            return
        began = time.monotonic()
        view = self._view if self._view and self._view.cluster.name == end.cluster else None
        if not self._acknowledger.move_cursors(end, view):
            # Perhaps it is gone: no batch is planned on what was seen of it before.
            self._monitor.suspect(end.cluster, began)
            self._view = None

    def _throttle(self, looked_at: float) -> None:
        """Spark asks an idle source a hundred times a second; the brokers are asked twenty times.

        After a look that showed nothing, not before one: a batch must not wait for it.
        """
        self._pause(max(0.0, looked_at + _POLL_PERIOD_S - time.monotonic()))

    def _look_for(self, end: Offset, topics: set[str]) -> ClusterView | None:
        if self._view and self._view.cluster.name == end.cluster and topics <= set(self._view.states):
            return self._view
        self._options.cluster_named(end.cluster)
        view = self._monitor.look_at(end.cluster)
        if view is None:
            # Another cluster, or this one if it came back before any other answered; raises when none does.
            active = self._monitor.look_at_active()
            view = active if active.cluster.name == end.cluster else None
        return view

    def _readable(self, parts: Sequence[PartitionRange], end: Offset, view: ClusterView) -> bool:
        """Whether each range can still be read; a topic of which one cannot is left out."""
        left_out = self._monitor.left_out(view.cluster.name)
        for part in parts:
            try:
                if view.leaves_out(part.topic):
                    return False
                self._losses.check_readable(part, end, view)
            except DataLoss as loss:
                left_out.hold(part.topic, str(loss))
                return False
        return True

    def _on_unreadable(self, view: ClusterView) -> OnUnreadable | None:
        return None if self._note is None else self._monitor.left_out(view.cluster.name).hold

    def _note_left_out(self, view: ClusterView) -> None:
        if self._note is not None:
            self._note.keep(view.cluster.name, self._monitor.left_out(view.cluster.name).reasons())

    def _report_losses(self, start: Offset, view: ClusterView) -> tuple[ClusterView, set[str]]:
        """Reports what is lost; returns the partitions whose position means nothing any more.

        Where one topic does not stop the others, those with a loss are left out of the view that is returned.
        """
        losses = self._losses.find_losses(start, view)
        if losses and self._note is not None and self._options.fail_on_data_loss and start.cluster == view.cluster.name:
            left_out = self._monitor.left_out(view.cluster.name)
            for topic, loss in losses.items():
                left_out.hold(topic, str(DataLoss(view.cluster.name, topic, loss.detail)))
            return view.without(left_out), set()
        if losses:
            self._losses.report(view.cluster.name, losses)
            self._monitor.failover.accept_created(view.cluster.name)
        reset_topics = {topic for topic, loss in losses.items() if loss.from_cursor and topic in view.states}
        if reset_topics:
            self._ends.close()
        return view, reset_topics


def _origin(begin: Mapping[str, LedgerPosition], known: Mapping[str, LedgerPosition]) -> dict[str, LedgerPosition]:
    return {topic: position for topic, position in begin.items() if topic not in known}
