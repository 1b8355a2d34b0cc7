"""Watches the clusters: how each one stands, since when one is silent, and that another is read then."""

import time
from collections.abc import Callable, Mapping, Sequence

import structlog

from cloud_jobs.pulsar_source.cluster.left_out import LeftOutTopics
from cloud_jobs.pulsar_source.cluster.partition_state import SubscriptionProperties
from cloud_jobs.pulsar_source.cluster.survey import ClusterSurvey, ClusterView, Start, States
from cloud_jobs.pulsar_source.driver.failover import Failover
from cloud_jobs.pulsar_source.errors import (
    AccessRefused,
    NoClusterAnswers,
    PulsarSourceError,
    SourceClusterUnreachable,
)
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.position import BEGINNING

_log = structlog.get_logger(__name__)
_PROBE_PERIOD_S = 0.25
_FRESH_S = 60.0
"""For how long it counts that another process heard from the cluster."""
_MIN_PROBE_S = 1.0
"""How long a process looks itself before it calls a cluster silent, whatever others heard."""


class SilentClusters:
    """Since when each cluster leaves us without an answer, and which of them refuse us. Pure; times in seconds.

    A cluster that refuses us serves us as little as a silent one.
    """

    def __init__(self, clusters: Sequence[str]) -> None:
        self._clusters = clusters
        self._since: dict[str, float] = {}
        self._suspected: dict[str, float] = {}
        self._refusals: dict[str, AccessRefused] = {}
        self._last_error = "none of the clusters answers"

    def __contains__(self, cluster: str) -> bool:
        return cluster in self._since

    def duration_s(self, cluster: str, now_s: float) -> float:
        """For how long a silent cluster has been so."""
        return now_s - self._since[cluster]

    def suspect(self, cluster: str, since_s: float) -> None:
        """It left a call that began then unanswered: silent since then, unless it answers the next look."""
        self._suspected.setdefault(cluster, since_s)

    def on_failure(self, cluster: str, asked_s: float, error: SourceClusterUnreachable | AccessRefused) -> None:
        """A look that began at `asked_s` failed. Raises the refusal of the only cluster that there is."""
        self._last_error = str(error)
        self._refusals.pop(cluster, None)
        if isinstance(error, AccessRefused):
            if len(self._clusters) == 1:
                raise error
            self._refusals[cluster] = error
        if cluster not in self._since:
            _log.warning("the cluster is silent", cluster=cluster, error=str(error))
        # The silence is as old as the call that was left unanswered, not as this look.
        self._since.setdefault(cluster, self._suspected.pop(cluster, asked_s))

    def on_answer(self, cluster: str) -> None:
        """It answered."""
        for known in (self._since, self._suspected, self._refusals):
            known.pop(cluster, None)

    def check_refused(self, active: str) -> None:
        """Raises the active cluster's refusal when every cluster refuses us: waiting helps nothing."""
        if len(self._refusals) == len(self._clusters):
            raise self._refusals[active]

    def error(self) -> NoClusterAnswers:
        """None of them answered for as long as is waited at most."""
        return NoClusterAnswers(", ".join(sorted(self._since)), "looking for a cluster to read", self._last_error)


class ClusterMonitor:
    """The clusters of the options, in order, and the one of them that is read: see `failover`."""

    def __init__(
        self,
        options: PulsarOptions,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        survey: Callable[[SourceCluster, PulsarOptions], ClusterSurvey] = ClusterSurvey,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Raises FailoverFileError."""
        self._options = options
        self._clock = clock
        self._pause = pause
        self._surveys = {cluster.name: survey(cluster, options) for cluster in options.all_clusters()}
        self._silent = SilentClusters(list(self._surveys))
        self.failover = Failover(options, wall_s)
        self._restore_silence()

    def _restore_silence(self) -> None:
        """A query that failed because its cluster is silent need not wait for the whole of that silence again."""
        heard_s = self.failover.last_answer_age_s()
        # Negative where the wall clock was set back: then the file's time says nothing.
        if heard_s is not None and 0 <= heard_s < _FRESH_S:
            most_s = max(0.0, self._options.cluster_lost_after_seconds - _MIN_PROBE_S)
            self.suspect(self.failover.state.active, self._clock() - min(heard_s, most_s))

    def close(self) -> None:
        """Gives every connection back."""
        for survey in self._surveys.values():
            survey.close()

    def is_reachable(self, cluster: str) -> bool:
        """Whether the cluster answered when it was last asked."""
        return cluster not in self._silent

    def suspect(self, cluster: str, since_s: float) -> None:
        """It left a call that began at `since_s` unanswered: silent since then, unless it answers the next look."""
        self._silent.suspect(cluster, since_s)

    def record_planned(self, cluster: str, created_times: Mapping[str, str]) -> Mapping[str, SubscriptionProperties]:
        """Keeps with the subscription that batches are planned in those openings, before Spark's log has them."""
        return self._surveys[cluster].record_planned(created_times)

    def record_acknowledged(self, cluster: str, created_times: Mapping[str, str]) -> None:
        """Keeps with the subscription that batches of those openings are in Spark's log and are acknowledged."""
        self._surveys[cluster].record_acknowledged(created_times)

    def left_out(self, cluster: str) -> LeftOutTopics:
        """The topics that are left out on a cluster."""
        return self._surveys[cluster].left_out

    def known_clusters(self, cluster: str) -> frozenset[str]:
        """The names of clusters that messages can come from, as one cluster knows them."""
        return self._surveys[cluster].known_clusters()

    def create_subscriptions(self) -> ClusterView:
        """Creates the subscription at startingPosition on the active cluster, which is returned, and on every standby.

        A standby without the subscription would throw away what it is sent before the first cursor arrives there.
        """
        view = self.look_at_active(self._options.starting_position)
        for name, survey in self._surveys.items():
            if name == view.cluster.name:
                continue
            try:
                self._subscribe_missing(name, survey.states(), self._options.starting_position)
            except PulsarSourceError as error:
                _log.warning("a standby has no subscription", cluster=name, error=str(error))
        return view

    def look_at_others(self, cluster: str) -> list[ClusterView]:
        """Looks at the clusters other than one; returns those that answer, as they stand."""
        views = []
        for name, survey in self._surveys.items():
            if name != cluster and self.is_reachable(name):
                try:
                    views.append(ClusterView(survey.cluster, survey.states()))
                except PulsarSourceError as error:
                    _log.warning("a cluster was not checked", cluster=name, error=str(error))
        return views

    def look_at_active(self, create_at: Start | None = "earliest") -> ClusterView:
        """Looks at the active cluster; another one becomes active when it is silent for too long.

        Where the subscription is missing it is created at `create_at`, or left missing for None.
        Raises NoClusterAnswers when no cluster answers for `readTimeoutSeconds`, and AccessRefused as soon as each of
        them refuses us.
        """
        began = self._clock()
        while self._clock() - began < self._options.read_timeout_seconds:
            active = self.failover.state.active
            view = self.look_at(active, create_at)
            if view is not None:
                return view
            # In the order of preference: the options give it.
            for name in self._surveys:
                view = self._try(name, create_at) if name != active else None
                if view is not None:
                    self.failover.switch_to(name, "lost")
                    return view
            self._silent.check_refused(active)
            self._pause(_PROBE_PERIOD_S)
        raise self._silent.error()

    def look_at(self, name: str, create_at: Start | None = "earliest") -> ClusterView | None:
        """Looks at one cluster; None when it stays silent for `clusterLostAfterSeconds`."""
        while True:
            view = self._try(name, create_at)
            if view is not None:
                return view
            if self._silent.duration_s(name, self._clock()) >= self._options.cluster_lost_after_seconds:
                return None
            self._pause(_PROBE_PERIOD_S)

    def switch_over(self) -> None:
        """Moves to the cluster that the operator named, if it answers, and removes the request.

        Logs how many entries lie before the cursor there: what was read here already is read once more.
        """
        if request := self.failover.accept_switchover_request():
            view = self.look_at(request, create_at=None)
            if view is None:
                _log.error("the requested cluster does not answer", requested=request)
            else:
                waiting = sum(
                    state.entries_between(state.cursor or BEGINNING, state.last) for state in view.states.values()
                )
                self.failover.switch_to(request, "requested", waiting_entries=waiting)
        # Only now: whoever is killed before has it still to do.
        self.failover.clear_switchover_request()

    def _try(self, name: str, create_at: Start | None) -> ClusterView | None:
        survey = self._surveys[name]
        asked = self._clock()
        try:
            states = survey.states()
            if create_at is not None and self._subscribe_missing(name, states, create_at):
                states = survey.states()
            # Asking for the properties creates those that are missing, and with None nothing is to be created.
            properties = survey.ensure_properties(states) if create_at is not None else {}
        except (SourceClusterUnreachable, AccessRefused) as error:
            self._silent.on_failure(name, asked, error)
            return None
        self._silent.on_answer(name)
        self.failover.on_answer(name)
        created = frozenset(self.failover.state.created.get(name, ()))
        return ClusterView(survey.cluster, states, created, properties).without(survey.left_out)

    def _subscribe_missing(self, name: str, states: States, create_at: Start) -> bool:
        """Whether a cursor was moved."""
        # First the failover file: afterwards nothing shows that the subscription was not there.
        self.failover.record_created(name, [topic for topic, state in states.items() if state.cursor is None])
        return self._surveys[name].subscribe_missing(states, create_at)
