"""Watches the clusters: which one is read, how it stands, and when it counts as gone."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from uuid import uuid4

import structlog

from cloud_jobs.pulsar_source.cluster.partition_state import SubscriptionProperties
from cloud_jobs.pulsar_source.cluster.survey import ClusterSurvey, ClusterView, Start, States
from cloud_jobs.pulsar_source.driver.failover import FailoverFile, FailoverState, QueryIdentity
from cloud_jobs.pulsar_source.errors import (
    AccessRefused,
    FailoverFileError,
    NoClusterAnswers,
    PulsarSourceError,
    SourceClusterUnreachable,
)
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.position import BEGINNING, Offset

_log = structlog.get_logger(__name__)
_PROBE_PERIOD_S = 0.25
_TOUCH_PERIOD_S = 1.0
_FRESH_S = 60.0
"""For how long it counts that another process heard from the cluster."""
_MIN_PROBE_S = 1.0
"""How long a process looks itself before it calls a cluster silent, whatever others heard."""


class ClusterMonitor:
    """The clusters of the options, in order, and the one of them that is read."""

    def __init__(
        self,
        options: PulsarOptions,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        survey: Callable[[SourceCluster, PulsarOptions], ClusterSurvey] = ClusterSurvey,
    ) -> None:
        self._options = options
        self._clock = clock
        self._pause = pause
        self._surveys = {cluster.name: survey(cluster, options) for cluster in options.all_clusters()}
        self._silent_since: dict[str, float] = {}
        self._suspect_since: dict[str, float] = {}
        self._refused_by: dict[str, AccessRefused] = {}
        self._last_error = "none of the clusters answers"
        self._file = FailoverFile(options.failover_file) if options.failover_file else None
        kept = self._file.load() if self._file else None
        self._identity = kept[0] if kept else None
        self._state = kept[1] if kept else FailoverState(options.all_clusters()[0].name)
        if self._state.active not in self._surveys:
            known = ", ".join(self._surveys)
            raise self._file_error(f"it speaks of cluster {self._state.active!r}, the options know only {known}")
        self._begun = self._bound = False
        self._drawn: str | None = None
        self._answered_s = time.time()
        self._restore_silence()

    def _restore_silence(self) -> None:
        """A query that failed because its cluster is silent need not wait for the whole of that silence again."""
        heard_s = self._file.last_answer_s() if self._file else None
        if heard_s is not None and 0 <= self._answered_s - heard_s < _FRESH_S:
            most_s = max(0.0, self._options.cluster_lost_after_seconds - _MIN_PROBE_S)
            self.suspect(self._state.active, self._clock() - min(self._answered_s - heard_s, most_s))

    def start_query(self) -> str:
        """The id of a query that has no checkpoint yet. FailoverFileError when the file belongs to another one."""
        self._begun = True
        if self._identity is None:
            self._drawn = uuid4().hex
            return self._drawn
        if self._identity != (mine := self._identity_of(self._identity.query)):
            raise self._file_error(f"it belongs to another query, of {self._identity.subscription!r}, not of {mine}")
        return self._identity.query

    def bind_checkpoint(self, offset: Offset, *, planned: bool = False) -> None:
        """Holds the failover file against the checkpoint; FailoverFileError when they belong to different queries.

        A file that is lost cannot tell whether the batch up to `offset` was closed unread, so unless that batch is only
        `planned` reading begins at the cursor, which stands before it.
        """
        if self._file is None or self._bound:
            return
        identity = self._identity_of(offset.query)
        kept = self._identity
        if kept and (kept.query, kept.subscription) != (identity.query, identity.subscription):
            raise self._file_error(f"it belongs to another query, {kept}; the checkpoint is of {identity}")
        if offset.query == self._drawn:
            # It begins now: what it created is where it begins.
            self._state = replace(self._state, created={})
        if kept is None and (not self._begun or offset.cluster != self._state.active):
            # Also a query that begins may have its first batch in Spark's log already, planned elsewhere.
            _log.error("failover_file_lost", path=str(self._options.failover_file), cluster=offset.cluster)
            self._options.cluster_named(offset.cluster)
            self._state = FailoverState(offset.cluster, created=self._state.created)
            self._state = self._state if planned else self._state.with_abandoned(offset)
        self._identity = identity
        self._bound = True
        if kept != identity:
            self._save(self._state)

    def _identity_of(self, query: str) -> QueryIdentity:
        topics = ",".join(sorted(map(str, self._options.topics))) or str(self._options.topics_pattern)
        return QueryIdentity(query, self._options.subscription_name(), topics)

    def _file_error(self, detail: str) -> FailoverFileError:
        assert self._options.failover_file is not None  # nothing is refused where nothing was read
        return FailoverFileError(self._options.failover_file, detail)

    def close(self) -> None:
        """Gives every connection back."""
        for survey in self._surveys.values():
            survey.close()

    @property
    def state(self) -> FailoverState:
        """Which cluster is read, and what was abandoned."""
        return self._state

    def accept_switchover_request(self) -> str | None:
        """The cluster that an operator wants read instead of the active one.

        A request that moves nothing is removed, so that it cannot move the query on another day.
        """
        if self._file is None or (request := self._file.switchover_request()) is None:
            return None
        if request in self._surveys and request != self._state.active:
            return request
        if request not in self._surveys:
            _log.error("switchover_request_unknown", requested=request, clusters=sorted(self._surveys))
        self._file.clear_switchover_request()
        return None

    def switch_over(self) -> None:
        """Moves to the cluster that the operator named; one that does not answer is rejected; the request is removed.

        Tells how many entries lie before the cursor there: what was read here already is read once more.
        """
        assert self._file is not None  # only called when there is an order
        if request := self.accept_switchover_request():
            view = self.view_of(request, create_at=None)
            if view is None:
                _log.error("switchover_request_rejected", requested=request, reason="the cluster does not answer")
            else:
                waiting = sum(
                    state.entries_between(state.cursor or BEGINNING, state.last) for state in view.states.values()
                )
                self._switch_to(request, "requested", waiting_entries=waiting)
        self._file.clear_switchover_request()

    def is_reachable(self, cluster: str) -> bool:
        """Whether the cluster answered when it was last asked."""
        return cluster not in self._silent_since

    def suspect(self, cluster: str, since_s: float) -> None:
        """It left a call that began at `since_s` unanswered: silent since then, unless it answers the next look."""
        self._suspect_since.setdefault(cluster, since_s)

    def record_planned(self, cluster: str, created_times: Mapping[str, str]) -> Mapping[str, SubscriptionProperties]:
        """Keeps with the subscription that batches are planned in those openings, before Spark's log has them."""
        return self._surveys[cluster].record_planned(created_times)

    def record_acknowledged(self, cluster: str, created_times: Mapping[str, str]) -> None:
        """Keeps with the subscription that batches of those openings are in Spark's log and are acknowledged."""
        self._surveys[cluster].record_acknowledged(created_times)

    def known_clusters(self, cluster: str) -> frozenset[str]:
        """The names of clusters that messages can come from, as one cluster knows them."""
        return self._surveys[cluster].known_clusters()

    def view_creating_subscriptions(self) -> ClusterView:
        """The active cluster, with the subscription at startingPosition created here and on every standby.

        A standby without the subscription would throw away what it is sent before the first cursor arrives there.
        """
        view = self.active_view(self._options.starting_position)
        for name, survey in self._surveys.items():
            if name == view.cluster.name:
                continue
            try:
                self._subscribe_missing(name, survey.states(), self._options.starting_position)
            except PulsarSourceError as error:
                _log.warning("standby_without_subscription", cluster=name, error=str(error))
        return view

    def other_views(self, cluster: str) -> list[ClusterView]:
        """The clusters other than one that answer, as they stand."""
        views = []
        for name, survey in self._surveys.items():
            if name != cluster and self.is_reachable(name):
                try:
                    views.append(ClusterView(survey.cluster, survey.states()))
                except PulsarSourceError as error:
                    _log.warning("cluster_not_checked", cluster=name, error=str(error))
        return views

    def active_view(self, create_at: Start | None = "earliest") -> ClusterView:
        """The active cluster as it stands; another one becomes active when it is silent for too long.

        Where the subscription is missing it is created at `create_at`, or left missing for None.
        Raises NoClusterAnswers when no cluster answers for `readTimeoutSeconds`, and AccessRefused as soon as each of
        them refuses us.
        """
        began = self._clock()
        while self._clock() - began < self._options.read_timeout_seconds:
            view = self.view_of(self._state.active, create_at)
            if view is not None:
                return view
            for name in self._surveys:
                view = self._try(name, create_at) if name != self._state.active else None
                if view is not None:
                    self._switch_to(name, "lost")
                    return view
            if len(self._refused_by) == len(self._surveys):
                raise self._refused_by[self._state.active]
            self._pause(_PROBE_PERIOD_S)
        lost = ", ".join(sorted(self._silent_since))
        raise NoClusterAnswers(lost, "looking for a cluster to read", self._last_error)

    def view_of(self, name: str, create_at: Start | None = "earliest") -> ClusterView | None:
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
        self._keep(self._state.with_abandoned(end))
        _log.warning("batch_abandoned", cluster=end.cluster)

    def clear_abandoned(self, start: Offset) -> None:
        """Forgets abandoned batches and created subscriptions once the query stands behind them."""
        state = self._state.without_created(start.cluster)
        self._keep(state if state.restarts_at_cursor(start) else replace(state, abandoned=()))

    def accept_created(self, cluster: str) -> None:
        """What was lost because the subscription was missing there is told."""
        self._keep(self._state.without_created(cluster))

    def caught_up(self) -> None:
        """All that the active cluster has is read: what others were sent without a subscription is not missing."""
        self._keep(replace(self._state, created={}))

    def _try(self, name: str, create_at: Start | None) -> ClusterView | None:
        survey = self._surveys[name]
        asked = self._clock()
        try:
            states = survey.states()
            if create_at is not None and self._subscribe_missing(name, states, create_at):
                states = survey.states()
            properties = survey.subscription_properties(states) if create_at is not None else {}
        except (SourceClusterUnreachable, AccessRefused) as error:
            self._on_failure(name, error)
            if name not in self._silent_since:
                _log.warning("cluster_silent", cluster=name, error=str(error))
            self._silent_since.setdefault(name, self._suspect_since.pop(name, asked))
            return None
        self._refused_by.pop(name, None)
        self._silent_since.pop(name, None)
        self._suspect_since.pop(name, None)
        self._on_answer(name)
        return ClusterView(survey.cluster, states, frozenset(self._state.created.get(name, ())), properties)

    def _subscribe_missing(self, name: str, states: States, create_at: Start) -> bool:
        """Whether a cursor was moved."""
        missing = [topic for topic, state in states.items() if state.cursor is None]
        # First the note: afterwards nothing tells that the subscription was not there.
        self._keep(self._state.creating(name, missing))
        return self._surveys[name].subscribe_missing(states, create_at)

    def _on_failure(self, name: str, error: SourceClusterUnreachable | AccessRefused) -> None:
        """A cluster that refuses us serves us as little as a silent one; the only one that there is says so at once."""
        self._last_error = str(error)
        self._refused_by.pop(name, None)
        if isinstance(error, AccessRefused):
            if len(self._surveys) == 1:
                raise error
            self._refused_by[name] = error

    def _on_answer(self, name: str) -> None:
        if self._file and name == self._state.active and time.time() - self._answered_s >= _TOUCH_PERIOD_S:
            self._answered_s = time.time()
            if not self._file.record_answer(self._answered_s) and self._bound:
                self._save(self._state)

    def _switch_to(self, name: str, reason: str, **known: int) -> None:
        _log.warning("cluster_changed", old=self._state.active, new=name, reason=reason, **known)
        self._keep(self._state.with_active(name))

    def _keep(self, state: FailoverState) -> None:
        """Kept on disk before this returns."""
        if state != self._state:
            self._save(state)
            self._state = state

    def _save(self, state: FailoverState) -> None:
        if self._file and self._identity:
            self._file.save(self._identity, state)
