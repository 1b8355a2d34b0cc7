"""The streaming reader in Spark's driver: offsets, plans, acknowledgements."""

import hashlib
import os
import random
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pulsar
import structlog

from cloud_jobs.pulsar_source.acknowledging import (
    Acknowledger,
    LossReporter,
    generations_of,
    known_positions,
    positions_left_out,
)
from cloud_jobs.pulsar_source.admin import ClusterView, check_topics
from cloud_jobs.pulsar_source.cluster_monitor import ClusterMonitor, LeftOutNote
from cloud_jobs.pulsar_source.entries import PlannedRange, stream_range
from cloud_jobs.pulsar_source.feeds import close_clients, shared_client, to_source_error
from cloud_jobs.pulsar_source.lookahead import (
    Lookahead,
    Lookaheads,
    limit_batch,
    limit_to_target,
    newest_positions,
    start_positions,
)
from cloud_jobs.pulsar_source.options import (
    AccessRefused,
    DataLoss,
    NoClusterAnswers,
    PulsarOptions,
    ReadStalled,
    SourceCluster,
    SourceClusterUnreachable,
    SubscriptionBusy,
)
from cloud_jobs.pulsar_source.position import (
    BEGINNING,
    LedgerPosition,
    Offset,
    PartitionRange,
    PartitionState,
    Role,
    ranges,
    reader_prefix,
)

# Isolated reads after a run that failed within a batch.

_log = structlog.get_logger(__name__)

ISOLATED_BATCHES = 20
"""How many batches are read in isolation after a run that did not end in order."""


class CrashGuard:
    """Decides whether the next batch is read in isolation. One query in one process."""

    def __init__(self, options: PulsarOptions) -> None:
        self._marker = _marker_path(options)
        self._marker_checked = False
        self._batches_left = 0

    def on_batch_planned(self, *, replayed: bool) -> bool:
        """Records a planned batch; True when it is to be read in isolation."""
        if replayed:
            self._start_isolation("a batch was planned and did not complete")
        isolated = self._batches_left > 0
        self._batches_left -= isolated
        return isolated

    @contextmanager
    def mark_lookahead(self) -> Iterator[bool]:
        """Marks that the driver looks ahead; yields True when it is to do so in isolation."""
        # Only the first time: later the file is this process's own.
        if not self._marker_checked:
            self._marker_checked = True
            if self._marker.exists():
                self._start_isolation("a look ahead ended its process")
        try:
            # Not flushed to the disk: it has to outlive a process, not a machine, and costs 0.1 ms a batch.
            self._marker.touch(mode=0o600)
        except OSError as error:
            _log.warning("the marker of the lookahead cannot be written", path=str(self._marker), error=str(error))
        try:
            yield self._batches_left > 0
        finally:
            with suppress(OSError):
                self._marker.unlink(missing_ok=True)

    def _start_isolation(self, reason: str) -> None:
        _log.warning("reading in isolation", reason=reason, batches=ISOLATED_BATCHES)
        self._batches_left = ISOLATED_BATCHES


def _marker_path(options: PulsarOptions) -> Path:
    # A query that ended before its first batch has no id that outlives it; its subscription is its own.
    read = [*(cluster.service_url for cluster in options.clusters), str(options.subscription)]
    read += map(str, options.topics)
    mark = hashlib.sha256("\n".join(read).encode()).hexdigest()[:16]
    folder = options.failover_file.parent if options.failover_file else Path(tempfile.gettempdir())
    return folder / f"waybill-looking-ahead-{os.getuid()}-{mark}"


# The end of a batch: newest entry, target of Trigger.AvailableNow, or a limit.


def newest_offset(view: ClusterView) -> Offset:
    return Offset(view.cluster.name, {topic: state.last for topic, state in view.states.items()})


OnUnreadable = Callable[[str, str, float], None]
"""Called with a topic partition whose look ahead failed, why, and how many seconds that took."""


class BatchEnds:
    """Chooses the ends of one query's batches; keeps its readers for the look ahead, and the turn of each partition."""

    def __init__(
        self,
        options: PulsarOptions,
        crash_guard: CrashGuard,
        lookahead: Callable[[SourceCluster, PulsarOptions, str, int], Lookahead] = Lookahead,
    ) -> None:
        self._options = options
        self._limit = options.max_messages_per_trigger
        self._crash_guard = crash_guard
        self._lookaheads = Lookaheads(options, lookahead)
        self._target: Offset | None = None
        self._round = 0

    def close(self) -> None:
        """Closes the readers; the next look ahead opens new ones."""
        self._lookaheads.close()

    def fix_target(self, target: Offset) -> None:
        """Ends no batch behind `target` as long as its cluster is read."""
        self._target = target

    def choose(
        self,
        begin: Mapping[str, LedgerPosition],
        view: ClusterView,
        *,
        limited: bool,
        on_unreadable: OnUnreadable | None = None,
    ) -> dict[str, LedgerPosition]:
        """The end of the batch after `begin` per topic partition; `limited`: within the limits of the options.

        A partition that cannot be read ahead is passed to `on_unreadable` and ends where reading stopped; without
        `on_unreadable` the error is raised.
        """
        ends = newest_positions(begin, view.states)
        if self._target is not None:
            # Positions of another cluster mean nothing here: what this one has now is the target.
            if self._target.cluster != view.cluster.name:
                self._target = newest_offset(view)
            ends = limit_to_target(begin, ends, self._target.positions)
        if not limited or not self._limit or ends == begin:
            return ends
        return {**begin, **self._look_ahead(begin, ends, view, on_unreadable)}

    def _look_ahead(
        self,
        begin: Mapping[str, LedgerPosition],
        ends: Mapping[str, LedgerPosition],
        view: ClusterView,
        on_unreadable: OnUnreadable | None,
    ) -> dict[str, LedgerPosition]:
        """The ends within the limits, for partitions with messages in the batch."""
        self._round += 1
        parts = [PartitionRange(topic, begin[topic], end) for topic, end in ends.items() if end > begin[topic]]
        weights = {part.topic: float(view.states[part.topic].entries_between(part.start, part.end)) for part in parts}
        with self._crash_guard.mark_lookahead() as isolated:
            ahead = self._lookaheads.read_by_topic(view.cluster, view.states, parts, isolated=isolated)
            if on_unreadable:
                ahead = {name: self._apart(name, messages, on_unreadable) for name, messages in ahead.items()}
            return limit_batch(ahead, weights, self._limit or 0, self._round)

    def _apart(
        self, topic: str, messages: Iterable[LedgerPosition], on_unreadable: OnUnreadable
    ) -> Iterator[LedgerPosition]:
        """The messages of a partition up to the first that cannot be read."""
        began = time.monotonic()
        try:
            yield from messages
        except (ReadStalled, AccessRefused, SourceClusterUnreachable) as error:
            # Its reader is of no use any more, and is opened again for the next try.
            self._lookaheads.close_topic(topic)
            on_unreadable(topic, str(error), time.monotonic() - began)


# One query per durable subscription, enforced by the topic's statistics.

_PARALLEL = 8
_PAUSE_S = 0.2

Close = Callable[[], None]
OtherViews = Callable[[str], Iterable[ClusterView]]
_Key = tuple[str, str]
"""Cluster and topic partition."""


def open_presence(cluster: SourceCluster, options: PulsarOptions, topic: str, role: Role, token: str) -> Close:
    """Opens the reader that marks a query on a topic partition; returns a function that closes it without waiting."""
    prefix = reader_prefix(options.subscription_name(), role) + token
    try:
        # Without a queue the broker sends it nothing: what comes first could end the process.
        reader: Any = shared_client(cluster, options).create_reader(
            topic, pulsar.MessageId.latest, receiver_queue_size=0, subscription_role_prefix=prefix
        )
    except pulsar.PulsarException as error:
        raise to_source_error(cluster, f"opening the {role}'s reader on {topic}", error) from error
    return lambda: reader._reader.close_async(lambda _: None)  # noqa: SLF001  # a cluster that is gone does not answer


def _no_views(_: str) -> Iterable[ClusterView]:
    return ()


class Ownership:
    """One query's ownership of its subscription; one thread."""

    def __init__(
        self,
        options: PulsarOptions,
        opener: Callable[[SourceCluster, PulsarOptions, str, Role, str], Close] = open_presence,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        token: str | None = None,
    ) -> None:
        self._options = options
        self._open = opener
        self._clock = clock
        self._pause = pause
        # Begins with the time, so that the query that runs longer comes before the others.
        self._token = token or f"{time.time_ns():016x}{uuid4().hex[:8]}"
        self._candidate: dict[_Key, Close] = {}
        self._owned: dict[_Key, Close] = {}
        self._waiting_since: float | None = None

    def close(self) -> None:
        _release(self._candidate, list(self._candidate))
        _release(self._owned, list(self._owned))

    def claim(self, view: ClusterView, elsewhere: OtherViews = _no_views) -> bool:
        """Whether this query owns the subscription on every partition of the view; otherwise get a new view and call
        again.

        `elsewhere`: the views of the other clusters that answer. Raises SubscriptionBusy when another query holds the
        subscription for `readTimeoutSeconds`, or has become its owner.
        """
        keys = {(view.cluster.name, partition) for partition in view.states}
        _release(self._candidate, self._candidate.keys() - keys)
        _release(self._owned, self._owned.keys() - keys)
        self._check_owners(view)
        missing = sorted(keys - self._owned.keys())
        return not missing or self._become_owner(view, missing, elsewhere)

    def _open_all(self, cluster: SourceCluster, role: Role, keys: Collection[_Key], opened: dict[_Key, Close]) -> None:
        with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
            opening = {key: pool.submit(self._open, cluster, self._options, key[1], role, self._token) for key in keys}
        # Those that were opened count even where another one failed: they have to be closed.
        opened |= {key: future.result() for key, future in opening.items() if future.exception() is None}
        for future in opening.values():
            future.result()

    def _become_owner(self, view: ClusterView, missing: list[_Key], elsewhere: OtherViews) -> bool:
        others = list(self._others(view, {partition for _, partition in missing}, elsewhere))
        if before_us := [place for place, state in others if self._comes_after(state)]:
            self._wait(before_us[0], leaving=missing)
        elif new := [key for key in missing if key not in self._candidate]:
            self._open_all(view.cluster, "candidate", new, self._candidate)
        elif others:
            self._wait(others[0][0], leaving=())
        # A broker that does not show our own reader may not show another's either: its answer proves nothing.
        elif unseen := [key for key in missing if self._token not in _present(view.states[key[1]])]:
            self._wait(unseen[0], leaving=missing)
        else:
            # The candidate's readers stay until the owner's are there: whoever looks sees one of them.
            self._open_all(view.cluster, "owner", missing, self._owned)
            _release(self._candidate, self._candidate.keys() & self._owned.keys())
            self._waiting_since = None
            return True
        return False

    def _others(
        self, view: ClusterView, partitions: AbstractSet[str], elsewhere: OtherViews
    ) -> Iterator[tuple[_Key, PartitionState]]:
        """Partitions on which another query is present, on any cluster."""
        for seen in (view, *elsewhere(view.cluster.name)):
            for partition in sorted(partitions & seen.states.keys()):
                if _present(seen.states[partition]) - {self._token}:
                    yield (seen.cluster.name, partition), seen.states[partition]

    def _comes_after(self, state: PartitionState) -> bool:
        """Whether this candidate yields to a query there: an owner, or an older candidate."""
        return bool(state.owners - {self._token}) or any(name < self._token for name in state.candidates)

    def _wait(self, place: _Key, leaving: Iterable[_Key]) -> None:
        now = self._clock()
        self._waiting_since = self._waiting_since if self._waiting_since is not None else now
        if now - self._waiting_since >= self._options.read_timeout_seconds:
            waited_s, self._waiting_since = now - self._waiting_since, None
            raise SubscriptionBusy(*place, self._options.subscription_name(), waited_s)
        _release(self._candidate, leaving)
        self._pause(_PAUSE_S * (0.5 + random.random()))

    def _check_owners(self, view: ClusterView) -> None:
        """Stops the younger of two owners; two exist only after a broker lost the older one for a moment."""
        for _, partition in sorted(key for key in self._owned if key[0] == view.cluster.name):
            if min(view.states[partition].owners, default=self._token) < self._token:
                raise SubscriptionBusy(view.cluster.name, partition, self._options.subscription_name(), 0.0)


def _present(state: PartitionState) -> frozenset[str]:
    return state.owners | state.candidates


def _release(opened: dict[_Key, Close], keys: Iterable[_Key]) -> None:
    for key in list(keys):
        if close := opened.pop(key, None):
            close()


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
        self._ends.close()
        self._ownership.close()
        self._monitor.close()
        close_clients()

    def begin(self) -> Offset:
        """Begins a query without a checkpoint at the cursor; creates a missing one at the earliest message."""
        query = self._monitor.failover.start_query()
        view = self._claim_view(self._monitor.create_subscriptions)
        if self._note is None:
            check_topics(self._options, view.cluster, view.states)
        self._note_left_out(view)
        begin = start_positions({}, view.states, self._options)
        self._initial = Offset(view.cluster.name, begin, {}, generations_of({}, view), query)
        return self._initial

    def _claim_view(self, look: Callable[[], ViewT]) -> ViewT:
        """The view after this query owns the subscription."""
        while (view := look()) is not None and not self._ownership.claim(view, self._monitor.look_at_others):
            pass
        return view

    def choose_end(self, start: Offset, *, limited: bool) -> Offset:
        """The end of the next batch; `start` itself when there is nothing to read."""
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
        """Trigger.AvailableNow: later messages are not read."""
        # Spark asks for this first of all: only `begin` knows where a new subscription begins.
        self._ends.fix_target(newest_offset(self._monitor.look_at_active(create=False)))

    def newest_offset(self) -> dict[str, Any] | None:
        """The newest offset and the number of entries before it, for Spark's progress report."""
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

        No tasks when its cluster is gone: the batch is closed unread and recorded as abandoned. Its records were never
        acknowledged, so the other cluster's cursor is before them, and the next batch begins there.
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
        """Moves the cursor to `end`, because Spark has processed everything before it.

        Only for an end that this process planned; after a restart the next acknowledgement includes it. A cluster that
        is gone keeps its cursor: behind, never ahead.
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
        """Spark polls an idle source a hundred times a second; the brokers are asked at most twenty times.

        It waits after a poll without news, not before one, so that no batch is delayed.
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
        """Whether each range can still be read; leaves out a topic with a range that cannot."""
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
        """Reports losses; returns the partitions whose position is no longer valid.

        With `leftOutFile`, topics with a loss are omitted from the returned view.
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
