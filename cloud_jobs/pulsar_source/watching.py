"""Watches the clusters: which one is read, how it stands, and when it counts as gone."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import uuid4

import structlog

from cloud_jobs.pulsar_source.errors import (
    AccessRefused,
    ClusterUnreachable,
    FailoverFileError,
    NoClusterAnswers,
    PulsarSourceError,
)
from cloud_jobs.pulsar_source.failover import FailoverFile, QueryIdentity, Standing
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.planning import States, Survey
from cloud_jobs.pulsar_source.position import BEGINNING, Offset
from cloud_jobs.pulsar_source.subscription import SubscriptionNotes

_log = structlog.get_logger(__name__)
_PROBE_PERIOD_S = 0.25
_NOTE_PERIOD_S = 1.0
_FRESH_S = 60.0
"""For how long it counts that another process heard from the cluster."""
_OWN_LOOK_S = 1.0
"""How long a process looks itself before it calls a cluster silent, whatever others heard."""

Start = str | datetime


@dataclass(frozen=True, slots=True)
class View:
    """One cluster's topic partitions at one moment.

    `created` are those where the durable subscription was missing after the query had begun, see `Standing`. `notes`:
    what is kept with each subscription.
    """

    cluster: Cluster
    states: States
    created: frozenset[str] = frozenset()
    notes: Mapping[str, SubscriptionNotes] = field(default_factory=dict)


class Watch:
    """The clusters of the options, in order, and the one of them that is read."""

    def __init__(
        self,
        options: PulsarOptions,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        survey: Callable[[Cluster, PulsarOptions], Survey] = Survey,
    ) -> None:
        self._options = options
        self._clock = clock
        self._pause = pause
        self._surveys = {cluster.name: survey(cluster, options) for cluster in options.all_clusters()}
        self._silent_since: dict[str, float] = {}
        self._suspect_since: dict[str, float] = {}
        self._refused_by: dict[str, AccessRefused] = {}
        self._last_word = "none of the clusters answers"
        self._file = FailoverFile(options.failover_file) if options.failover_file else None
        kept = self._file.load() if self._file else None
        self._identity = kept[0] if kept else None
        self._standing = kept[1] if kept else Standing(options.all_clusters()[0].name)
        if self._standing.active not in self._surveys:
            known = ", ".join(self._surveys)
            raise self._refusal(f"it speaks of cluster {self._standing.active!r}, the options know only {known}")
        self._begun = self._bound = False
        self._drawn: str | None = None
        self._heard_s = time.time()
        self._remember()

    def _remember(self) -> None:
        """A query that failed because its cluster is silent need not wait for the whole of that silence again."""
        heard_s = self._file.heard_at() if self._file else None
        if heard_s is not None and 0 <= self._heard_s - heard_s < _FRESH_S:
            most_s = max(0.0, self._options.cluster_lost_after_seconds - _OWN_LOOK_S)
            self.suspect(self._standing.active, self._clock() - min(self._heard_s - heard_s, most_s))

    def begin(self) -> str:
        """The id of a query that has no checkpoint yet. FailoverFileError when the file belongs to another one."""
        self._begun = True
        if self._identity is None:
            self._drawn = uuid4().hex
            return self._drawn
        if self._identity != (mine := self._identity_of(self._identity.query)):
            raise self._refusal(f"it belongs to another query, of {self._identity.subscription!r}, not of {mine}")
        return self._identity.query

    def bind(self, offset: Offset, *, planned: bool = False) -> None:
        """Holds the failover file against the checkpoint; FailoverFileError when they belong to different queries.

        A file that is lost cannot tell whether the batch up to `offset` was closed unread, so unless that batch is only
        `planned` reading begins at the cursor, which stands before it.
        """
        if self._file is None or self._bound:
            return
        identity = self._identity_of(offset.query)
        kept = self._identity
        if kept and (kept.query, kept.subscription) != (identity.query, identity.subscription):
            raise self._refusal(f"it belongs to another query, {kept}; the checkpoint is of {identity}")
        if offset.query == self._drawn:
            # It begins now: what it created is where it begins.
            self._standing = replace(self._standing, created={})
        if kept is None and (not self._begun or offset.cluster != self._standing.active):
            # Also a query that begins may have its first batch in Spark's log already, planned elsewhere.
            _log.error("failover_file_lost", path=str(self._options.failover_file), cluster=offset.cluster)
            self._options.cluster_named(offset.cluster)
            self._standing = Standing(offset.cluster, created=self._standing.created)
            self._standing = self._standing if planned else self._standing.abandoning(offset)
        self._identity = identity
        self._bound = True
        if kept != identity:
            self._save(self._standing)

    def _identity_of(self, query: str) -> QueryIdentity:
        topics = ",".join(sorted(map(str, self._options.topics))) or str(self._options.topics_pattern)
        return QueryIdentity(query, self._options.subscription_name(), topics)

    def _refusal(self, detail: str) -> FailoverFileError:
        assert self._options.failover_file is not None  # nothing is refused where nothing was read
        return FailoverFileError(self._options.failover_file, detail)

    def close(self) -> None:
        """Gives every connection back."""
        for survey in self._surveys.values():
            survey.close()

    @property
    def standing(self) -> Standing:
        """Which cluster is read, and what was abandoned."""
        return self._standing

    def ordered_elsewhere(self) -> str | None:
        """The cluster that an operator wants read instead of the active one.

        A word that moves nothing is removed, so that it cannot move the query on another day.
        """
        if self._file is None or (order := self._file.order()) is None:
            return None
        if order in self._surveys and order != self._standing.active:
            return order
        if order not in self._surveys:
            _log.error("failover_order_unknown", order=order, clusters=sorted(self._surveys))
        self._file.obeyed()
        return None

    def obey(self) -> None:
        """Moves to the cluster that the operator named; one that does not answer is refused, and the word removed.

        Tells how many entries lie before the cursor there: what was read here already is read once more.
        """
        assert self._file is not None  # only called when there is an order
        if order := self.ordered_elsewhere():
            view = self.named(order, create_at=None)
            if view is None:
                _log.error("failover_order_refused", order=order, reason="the cluster does not answer")
            else:
                waiting = sum(
                    state.entries_between(state.cursor or BEGINNING, state.last) for state in view.states.values()
                )
                self._move(order, "ordered", waiting_entries=waiting)
        self._file.obeyed()

    def reachable(self, cluster: str) -> bool:
        """Whether the cluster answered when it was last asked."""
        return cluster not in self._silent_since

    def suspect(self, cluster: str, since_s: float) -> None:
        """It left a call that began at `since_s` unanswered: silent since then, unless it answers the next look."""
        self._suspect_since.setdefault(cluster, since_s)

    def note_planned(self, cluster: str, openings: Mapping[str, str]) -> Mapping[str, SubscriptionNotes]:
        """Keeps with the subscription that batches are planned in those openings, before Spark's log has them."""
        return self._surveys[cluster].note_planned(openings)

    def note_acknowledged(self, cluster: str, openings: Mapping[str, str]) -> None:
        """Keeps with the subscription that batches of those openings are in Spark's log and are acknowledged."""
        self._surveys[cluster].note_acknowledged(openings)

    def known_clusters(self, cluster: str) -> frozenset[str]:
        """The names of clusters that messages can come from, as one cluster knows them."""
        return self._surveys[cluster].known_clusters()

    def everywhere(self) -> View:
        """The active cluster, with the subscription at startingPosition created here and on every standby.

        A standby without the subscription would throw away what it is sent before the first cursor arrives there.
        """
        view = self.active(self._options.starting_position)
        for name, survey in self._surveys.items():
            if name == view.cluster.name:
                continue
            try:
                self._subscribe_missing(name, survey.states(), self._options.starting_position)
            except PulsarSourceError as error:
                _log.warning("standby_without_subscription", cluster=name, error=str(error))
        return view

    def elsewhere(self, cluster: str) -> list[View]:
        """The clusters other than one that answer, as they stand."""
        views = []
        for name, survey in self._surveys.items():
            if name != cluster and self.reachable(name):
                try:
                    views.append(View(survey.cluster, survey.states()))
                except PulsarSourceError as error:
                    _log.warning("cluster_not_looked_at", cluster=name, error=str(error))
        return views

    def active(self, create_at: Start | None = "earliest") -> View:
        """The active cluster as it stands; another one becomes active when it is silent for too long.

        Where the subscription is missing it is created at `create_at`, or left missing for None.
        Raises NoClusterAnswers when no cluster answers for `readTimeoutSeconds`, and AccessRefused as soon as each of
        them refuses us.
        """
        began = self._clock()
        while self._clock() - began < self._options.read_timeout_seconds:
            view = self.named(self._standing.active, create_at)
            if view is not None:
                return view
            for name in self._surveys:
                view = self._try(name, create_at) if name != self._standing.active else None
                if view is not None:
                    self._move(name, "lost")
                    return view
            if len(self._refused_by) == len(self._surveys):
                raise self._refused_by[self._standing.active]
            self._pause(_PROBE_PERIOD_S)
        lost = ", ".join(sorted(self._silent_since))
        raise NoClusterAnswers(lost, "looking for a cluster to read", self._last_word)

    def named(self, name: str, create_at: Start | None = "earliest") -> View | None:
        """One cluster as it stands; None when it stays silent for `clusterLostAfterSeconds`."""
        while True:
            view = self._try(name, create_at)
            if view is not None:
                return view
            if self._clock() - self._silent_since[name] >= self._options.cluster_lost_after_seconds:
                return None
            self._pause(_PROBE_PERIOD_S)

    def abandon(self, end: Offset) -> None:
        """Closes a planned batch that cannot be read any more; kept on disk before this returns."""
        self._keep(self._standing.abandoning(end))
        _log.warning("batch_abandoned", cluster=end.cluster)

    def settle(self, start: Offset) -> None:
        """Forgets abandoned batches and created subscriptions once the query stands behind them."""
        standing = self._standing.without_created(start.cluster)
        self._keep(standing if standing.from_cursor(start) else replace(standing, abandoned=()))

    def accept_created(self, cluster: str) -> None:
        """What was lost because the subscription was missing there is told."""
        self._keep(self._standing.without_created(cluster))

    def caught_up(self) -> None:
        """All that the active cluster has is read: what others were sent without a subscription is not missing."""
        self._keep(replace(self._standing, created={}))

    def _try(self, name: str, create_at: Start | None) -> View | None:
        survey = self._surveys[name]
        asked = self._clock()
        try:
            states = survey.states()
            if create_at is not None and self._subscribe_missing(name, states, create_at):
                states = survey.states()
            notes = survey.notes(states) if create_at is not None else {}
        except (ClusterUnreachable, AccessRefused) as error:
            self._note_unserved(name, error)
            if name not in self._silent_since:
                _log.warning("cluster_silent", cluster=name, error=str(error))
            self._silent_since.setdefault(name, self._suspect_since.pop(name, asked))
            return None
        self._refused_by.pop(name, None)
        self._silent_since.pop(name, None)
        self._suspect_since.pop(name, None)
        self._note_heard(name)
        return View(survey.cluster, states, frozenset(self._standing.created.get(name, ())), notes)

    def _subscribe_missing(self, name: str, states: States, create_at: Start) -> bool:
        """Whether a cursor was moved."""
        missing = [topic for topic, state in states.items() if state.cursor is None]
        # First the note: afterwards nothing tells that the subscription was not there.
        self._keep(self._standing.creating(name, missing))
        return self._surveys[name].subscribe_missing(states, create_at)

    def _note_unserved(self, name: str, error: ClusterUnreachable | AccessRefused) -> None:
        """A cluster that refuses us serves us as little as a silent one; the only one that there is says so at once."""
        self._last_word = str(error)
        self._refused_by.pop(name, None)
        if isinstance(error, AccessRefused):
            if len(self._surveys) == 1:
                raise error
            self._refused_by[name] = error

    def _note_heard(self, name: str) -> None:
        if self._file and name == self._standing.active and time.time() - self._heard_s >= _NOTE_PERIOD_S:
            self._heard_s = time.time()
            if not self._file.heard(self._heard_s) and self._bound:
                self._save(self._standing)

    def _move(self, name: str, why: str, **known: int) -> None:
        _log.warning("cluster_changed", old=self._standing.active, new=name, why=why, **known)
        self._keep(self._standing.moved(name))

    def _keep(self, standing: Standing) -> None:
        """Kept on disk before this returns."""
        if standing != self._standing:
            self._save(standing)
            self._standing = standing

    def _save(self, standing: Standing) -> None:
        if self._file and self._identity:
            self._file.save(self._identity, standing)
