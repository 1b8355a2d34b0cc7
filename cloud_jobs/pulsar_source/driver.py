"""What the streaming reader does in Spark's driver: offsets, plans, acknowledgements."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import structlog

from cloud_jobs.pulsar_source.accounting import Inquiry
from cloud_jobs.pulsar_source.acknowledging import acknowledge
from cloud_jobs.pulsar_source.admission import Limits, admit
from cloud_jobs.pulsar_source.caution import Caution
from cloud_jobs.pulsar_source.chunks import kept_before
from cloud_jobs.pulsar_source.clients import forget_clients
from cloud_jobs.pulsar_source.entries import Patience, stored_entries
from cloud_jobs.pulsar_source.errors import AccessRefused, ClusterUnreachable, DataLoss, NoClusterAnswers
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.ownership import Ownership
from cloud_jobs.pulsar_source.planned import PlannedRange, Store
from cloud_jobs.pulsar_source.planning import begin_of, check_topics, everything, planned_range, upto_target
from cloud_jobs.pulsar_source.position import BEGINNING, Offset, Position, Range, ranges
from cloud_jobs.pulsar_source.scouting import Scout, Scouts
from cloud_jobs.pulsar_source.subscription import SubscriptionNotes, opening_of
from cloud_jobs.pulsar_source.watching import View, Watch

_log = structlog.get_logger(__name__)
_LOOK_PERIOD_S = 0.04
"""How long a look that showed nothing takes at least. Spark itself waits 10 ms before the next one."""
_MOST_TOLD = 1000

Seen = TypeVar("Seen", View, View | None)
Acknowledger = Callable[[Cluster, PulsarOptions, Mapping[str, Position]], Mapping[str, Position]]


class Driver:
    """The state of one streaming query between Spark's calls; Spark calls from one thread."""

    def __init__(
        self,
        options: PulsarOptions,
        *,
        watch: Watch | None = None,
        ownership: Ownership | None = None,
        acknowledger: Acknowledger = acknowledge,
        scout: Callable[[Cluster, PulsarOptions, str, int], Scout] = Scout,
        caution: Caution | None = None,
        store: Store = stored_entries,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._watch = watch or Watch(options)
        self._ownership = ownership or Ownership(options)
        self._acknowledge = acknowledger
        self._caution = caution or Caution(options)
        self._store = store
        self._pause = pause
        self._initial: Offset | None = None
        self._told: set[tuple[str, str, str]] = set()
        self._view: View | None = None
        self._scouts = Scouts(options, scout)
        self._acknowledged: dict[tuple[str, str], Position] = {}
        self._served: Offset | None = None
        self._target: Offset | None = None
        self._planned: Offset | None = None
        self._turn = 0

    def close(self) -> None:
        """Gives every connection back."""
        self._scouts.close()
        self._ownership.close()
        self._watch.close()
        forget_clients()

    def initial(self) -> Offset:
        """Where a query without a checkpoint begins: the cursor, created at startingPosition where there is none."""
        query = self._watch.begin()
        view = self._owned(self._watch.everywhere)
        check_topics(self._options, view.cluster, view.states)
        begin = begin_of({}, view.states, self._options)
        self._initial = Offset(view.cluster.name, begin, {}, _marks({}, view), query)
        return self._initial

    def _owned(self, look: Callable[[], Seen]) -> Seen:
        """What the look shows once this query alone reads the subscription there."""
        while (view := look()) is not None and not self._ownership.claim(view, self._watch.elsewhere):
            pass
        return view

    def latest(self, start: Offset, *, limited: bool) -> Offset:
        """The end of the next batch; `start` itself when there is nothing to read."""
        self._watch.bind(start)
        if self._watch.ordered_elsewhere():
            if start == self._served:
                # What was seen at the last plan can be another life of the topic by now.
                self._view = self._watch.named(start.cluster)
            self.commit(start)
            self._watch.obey()
        try:
            return self._latest(start, limited=limited)
        except NoClusterAnswers:
            raise
        except ClusterUnreachable:
            # It went away after it had answered: let the watch decide once more, with nothing left open.
            self._scouts.close()
            return self._latest(start, limited=limited)

    def _latest(self, start: Offset, *, limited: bool) -> Offset:
        looked_at = time.monotonic()
        self._view = view = self._owned(self._watch.active)
        self._watch.settle(start)
        changed = self._watch.standing.from_cursor(start)
        anew = self._lost_lives(start, view)
        known = _known(start, view, anew, from_cursor=changed)
        begin = begin_of(known, view.states, self._options)
        ends = self._ends(begin, view, limited=limited)
        # A query without a checkpoint asks again where it begins: its first batch must not depend on the answer.
        origin = _origin(begin, {} if changed or start == self._initial else known)
        restarts = start.restarts + bool(changed or anew)
        news = {topic: view.states[topic].opened for topic, end in ends.items() if end > begin[topic]}
        old = {topic: mark for topic, mark in start.subscription_ids.items() if topic in known}
        self._planned = Offset(view.cluster.name, ends, origin, _marks(news, view, old), start.query, restarts)
        if ends == begin and not anew:
            # Spark asks from `start` on, so the batch that ended there is done; it says so only with the next batch.
            self.commit(start)
            if start.cluster == view.cluster.name and begin == everything(begin, view.states):
                self._watch.caught_up()
            self._rest(looked_at)
            return start
        notes = self._watch.note_planned(view.cluster.name, news)
        self._view = replace(view, notes={**view.notes, **notes})
        return self._planned

    def fix_target(self) -> None:
        """Trigger.AvailableNow: nothing that arrives after this moment is read."""
        # Spark asks for this first of all: only `initial` knows where a new subscription begins.
        self._target = _newest(self._watch.active(create_at=None))

    def newest(self) -> dict[str, Any] | None:
        """The newest offset there is and the entries that wait before it, for Spark's progress report."""
        view, planned = self._view, self._planned
        if view is None or planned is None:
            return None
        waiting = {
            name: state.entries_between(planned.positions[name], state.last) for name, state in view.states.items()
        }
        return {**_newest(view).to_json(), "waiting_entries": waiting}

    def plan(self, start: Offset, end: Offset) -> list[PlannedRange]:
        """The tasks of the batch between two offsets.

        None when its cluster is gone: the batch is closed without being read, and kept as abandoned. What it held was
        never acknowledged, so the other cluster's cursor stands before it, and the next batch begins there.
        """
        self._watch.bind(end, planned=True)
        pieces = list(ranges(start, end))
        view = self._owned(lambda: self._view_for(end, {piece.topic for piece in pieces}))
        if view is None:
            self._watch.abandon(end)
            return []
        self._served = end
        known = self._watch.known_clusters(end.cluster)
        tasks = [
            planned_range(piece, view.states[piece.topic], view.cluster, self._options, known)
            for piece in pieces
            if self._stands(piece, end, view)
        ]
        careful = self._caution.planning(replayed=end != self._planned)
        return [task.carefully() for task in tasks] if careful else tasks

    def _stands(self, piece: Range, end: Offset, view: View) -> bool:
        """Whether a range that was planned can still be read where it was planned."""
        if not self._options.asks_for(piece.topic):
            return False
        loss = _loss(piece.topic, piece.start, end.subscription_ids.get(piece.topic), view)
        state = view.states.get(piece.topic)
        if not loss and state and state.removed(piece.end) and not self._is_compacted(state, piece.end):
            # It was planned and held something; no reading of it would ever end.
            loss = _Loss(f"all that was planned, {piece.start} to {piece.end}, is removed", anew=True)
        if loss:
            self._report(view.cluster.name, {piece.topic: loss.detail})
        return not (loss and loss.anew)

    def _is_compacted(self, state: TopicState, place: Position) -> bool:
        """Whether what was there is read from the compacted form, which outlives its ledgers."""
        return self._options.read_compacted and place[:2] <= state.compacted[:2]

    def commit(self, end: Offset) -> None:
        """Everything up to `end` is processed: moves the cursor there.

        Only an end that this process planned itself: after a restart the next one takes it along. A cluster that is
        gone is left as it is: its cursor stays behind, never ahead.
        """
        if end != self._served or self._watch.standing.abandoned_at(end) or not self._watch.reachable(end.cluster):
            return
        name = end.cluster
        notes = self._view.notes if self._view and self._view.cluster.name == name else {}
        moved = {
            topic: at
            for topic, at in end.positions.items()
            # In another life of the topic the same place holds other messages, which nobody has read.
            if self._acknowledged.get((name, topic)) != at
            and _is_same(notes.get(topic), end.subscription_ids.get(topic))
        }
        if not moved:
            return
        began = time.monotonic()
        done = self._acknowledge_noted(name, moved, end)
        self._acknowledged |= {(name, topic): at for topic, at in done.items()}
        if not done:
            # Perhaps it is gone: no batch is planned on what was seen of it before.
            self._watch.suspect(name, began)
            self._view = None

    def _acknowledge_noted(self, name: str, moved: Mapping[str, Position], end: Offset) -> Mapping[str, Position]:
        openings = {topic: opening for topic in moved if (opening := opening_of(end.subscription_ids.get(topic, "")))}
        try:
            # First the note: once the cursor has moved, the ledger can be gone.
            self._watch.note_acknowledged(name, openings)
        except (ClusterUnreachable, AccessRefused) as error:
            _log.warning("acknowledgements_left", cluster=name, topics=len(moved), first_error=str(error))
            return {}
        cluster = self._options.cluster_named(name)
        done = self._acknowledge(cluster, self._options, {**moved, **self._kept(cluster, moved)})
        return {topic: moved[topic] for topic in done}

    def _kept(self, cluster: Cluster, moved: Mapping[str, Position]) -> dict[str, Position]:
        """How far to acknowledge the partitions that are known for messages in chunks."""
        view = self._view if self._view and self._view.cluster == cluster else None
        kept: dict[str, Position] = {}
        left_s = Patience(self._options.call_timeout_s())
        for topic in [topic for topic in moved if view and topic in view.notes and view.notes[topic].chunked]:
            assert view is not None  # it has notes
            with self._store(cluster, self._options, topic) as stored:
                ledgers = view.states[topic].sizes_between(BEGINNING, moved[topic])
                inquiry = Inquiry(stored, left_s)
                kept[topic] = kept_before(moved[topic], ledgers, inquiry)
        return kept

    def _rest(self, looked_at: float) -> None:
        """Spark asks an idle source a hundred times a second; the brokers are asked twenty times.

        After a look that showed nothing, not before one: a batch must not wait for it.
        """
        self._pause(max(0.0, looked_at + _LOOK_PERIOD_S - time.monotonic()))

    def _view_for(self, end: Offset, topics: set[str]) -> View | None:
        if self._view and self._view.cluster.name == end.cluster and topics <= set(self._view.states):
            return self._view
        self._options.cluster_named(end.cluster)
        view = self._watch.named(end.cluster)
        if view is None:
            # Another cluster, or this one if it came back before any other answered; raises when none does.
            active = self._watch.active()
            view = active if active.cluster.name == end.cluster else None
        return view

    def _ends(self, begin: Mapping[str, Position], view: View, *, limited: bool) -> dict[str, Position]:
        ends = everything(begin, view.states)
        if self._target is not None:
            if self._target.cluster != view.cluster.name:
                self._target = _newest(view)
            ends = upto_target(begin, ends, self._target.positions)
        limits = Limits(self._options.max_messages_per_trigger, self._options.max_bytes_per_trigger)
        if not limited or not limits or ends == begin:
            return ends
        self._turn += 1
        news = {topic: end for topic, end in ends.items() if end > begin[topic]}
        weights = {topic: float(view.states[topic].entries_between(begin[topic], end)) for topic, end in news.items()}
        pieces = [Range(topic, begin[topic], end) for topic, end in news.items()]
        with self._caution.looking_ahead() as careful:
            ahead = self._scouts.ahead(view.cluster, view.states, pieces, careful=careful)
            admitted = admit(ahead, weights, limits, self._turn)
            self._scouts.rest()
            return {**begin, **admitted}

    def _lost_lives(self, start: Offset, view: View) -> set[str]:
        """The partitions whose position means nothing any more, each reported; gaps of others are reported too."""
        anew: set[str] = set()
        losses: dict[str, str] = {}
        for topic, position in start.positions.items():
            if not self._options.asks_for(topic):
                self._tell("topic_left_out", view.cluster.name, topic, "the options do not name it any more")
            elif (
                loss := _loss_elsewhere(topic, view)
                if start.cluster != view.cluster.name
                else _loss(topic, position, start.subscription_ids.get(topic), view)
            ):
                losses[topic] = loss.detail
                if loss.anew and topic in view.states:
                    anew.add(topic)
        if losses:
            self._report(view.cluster.name, losses)
            self._watch.accept_created(view.cluster.name)
        if anew:
            self._scouts.close()
        return anew

    def _report(self, cluster: str, losses: Mapping[str, str]) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(cluster, ", ".join(losses), next(iter(losses.values())))
        for topic, detail in losses.items():
            self._tell("data_loss", cluster, topic, detail)

    def _tell(self, event: str, cluster: str, topic: str, detail: str) -> None:
        """Logs it once: Spark asks an idle source twenty times a second."""
        if (cluster, topic, detail) not in self._told:
            self._told = {*self._told, (cluster, topic, detail)} if len(self._told) < _MOST_TOLD else set()
            _log.warning(event, cluster=cluster, topic=topic, detail=detail)


class _Loss(NamedTuple):
    """`anew`: the position belongs to another life of the topic; reading goes on at the subscription's cursor."""

    detail: str
    anew: bool


def _known(start: Offset, view: View, anew: Collection[str], *, from_cursor: bool) -> dict[str, Position]:
    """Where the query stands, as far as its positions mean something.

    `from_cursor`: the batch up to `start` may be unread, so what the cursor keeps before it is read too. A cursor that
    somebody moved ahead of the query takes nothing away from it.
    """
    if start.cluster != view.cluster.name:
        return {}
    known = {topic: at for topic, at in start.positions.items() if topic in view.states and topic not in anew}
    if not from_cursor:
        return known
    return {topic: min(at, view.states[topic].cursor or BEGINNING) for topic, at in known.items()}


def _loss(topic: str, position: Position, read_through: str | None, view: View) -> _Loss | None:
    state = view.states.get(topic)
    if state is None:
        return _Loss("the topic does not exist any more", anew=True)
    notes = view.notes.get(topic)
    if not _is_same(notes, read_through):
        detail = (
            "its subscription is not the one that the query read (the topic was deleted and created anew, the cluster "
            "came back with empty or older disks, or the subscription was deleted)"
        )
        return _Loss(detail, anew=True)
    detail_of_gap = state.loss_after(position)
    if detail_of_gap:
        return _Loss(detail_of_gap, anew=state.ends_before(position))
    if state.removed(position) and notes and notes.went_beyond(read_through or ""):
        detail = (
            f"what came after {position} was read once, the checkpoint was set back since, and the ledger is removed"
        )
        return _Loss(detail, anew=False)
    return None


def _is_same(notes: SubscriptionNotes | None, mark: str | None) -> bool:
    return notes is None if mark is None else notes is not None and notes.knows(mark)


def _marks(news: Mapping[str, str], view: View, old: Mapping[str, str] | None = None) -> dict[str, str]:
    """Topic partition -> the mark of its position; `news`: the opening of each one that has a batch."""
    marks = {topic: notes.mark(news.get(topic, "")) for topic, notes in view.notes.items()}
    return marks | {topic: mark for topic, mark in (old or {}).items() if topic in marks and topic not in news}


def _loss_elsewhere(topic: str, view: View) -> _Loss | None:
    """After a change of cluster: the position speaks of another one, the cursor here decides, if there was one."""
    if topic not in view.states:
        return _Loss("the topic does not exist there", anew=False)
    if topic in view.created:
        return _Loss("its subscription did not exist there, so nothing was kept for it", anew=False)
    return None


def _origin(begin: Mapping[str, Position], known: Mapping[str, Position]) -> dict[str, Position]:
    return {topic: position for topic, position in begin.items() if topic not in known}


def _newest(view: View) -> Offset:
    return Offset(view.cluster.name, {topic: state.last for topic, state in view.states.items()})
