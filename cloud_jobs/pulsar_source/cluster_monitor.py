"""Monitors the clusters: their state, since when one is silent, and when to read another one."""

import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Self
from uuid import uuid4

import structlog
from pydantic import Field, TypeAdapter

from cloud_jobs.pulsar_source.admin import ClusterSurvey, ClusterView, LeftOutTopics, States
from cloud_jobs.pulsar_source.options import (
    AccessRefused,
    FailoverFileError,
    NoClusterAnswers,
    PulsarOptions,
    PulsarSourceError,
    SourceCluster,
    SourceClusterUnreachable,
)
from cloud_jobs.pulsar_source.position import BEGINNING, Offset, SubscriptionProperties
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import create_durably, replace_durably
from waybill.settings import one_line

# The file of topics that a query leaves out, for health checks.

_log = structlog.get_logger(__name__)
_VERSION = 1
_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class LeftOutTopic:
    """A topic that is left out; `since`: ISO 8601, UTC."""

    topic: str
    cluster: str
    reason: str
    since: str


def read_left_out(path: Path) -> tuple[LeftOutTopic, ...]:
    """The topics in the file; empty without a file. Raises ValueError for a file with other content."""
    try:
        document = json.loads(read_bounded(path, _MAX_BYTES))
        if document["version"] != _VERSION:
            raise ValueError(f"it has version {document['version']!r}, not {_VERSION}")
        return tuple(LeftOutTopic(**{key: str(value) for key, value in row.items()}) for row in document["topics"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


class LeftOutNote:
    """Keeps the file of left-out topics current; a topic keeps its time across restarts. One thread."""

    def __init__(self, path: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._path, self._now = path, now
        self._noted: tuple[LeftOutTopic, ...] | None = None

    def keep(self, cluster: str, reasons: Mapping[str, str]) -> None:
        """Writes the topics and reasons if they differ from the file."""
        before = {one.topic: one for one in (self._read() if self._noted is None else self._noted)}
        now = self._now().isoformat(timespec="seconds")
        topics = tuple(
            LeftOutTopic(topic, cluster, reason, before[topic].since if topic in before else now)
            for topic, reason in sorted(reasons.items())
        )
        if topics == self._noted:
            return
        try:
            content = json.dumps({"version": _VERSION, "topics": [asdict(topic) for topic in topics]}, indent=1)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_durably(self._path, content.encode())
        except OSError as error:
            # The log names them too, and what waits for them is seen at the broker: no reason to stop the others.
            _log.warning("the file of left-out topics cannot be written", path=str(self._path), error=str(error))
        self._noted = topics

    def _read(self) -> tuple[LeftOutTopic, ...]:
        try:
            return read_left_out(self._path)
        except ValueError as error:
            _log.warning("the file of left-out topics is written again", error=str(error))
            return ()


# The current cluster, stored next to the checkpoint, and the operator's switchover request.

_MAX_ABANDONED = 16
_TOUCH_PERIOD_S = 1.0
_MAX_FILE_BYTES = 64 << 20
_FILE_VERSION = 2
_REQUEST_SUFFIX = ".switchover"
_Word = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class FailoverState:
    """The active cluster, and the ends of batches that were planned on a cluster that was lost afterwards. Pure.

    `created`: cluster -> topic partitions whose subscription was missing after the query had begun. They stay until the
    query reads there, has read all of its own cluster, or the loss was accepted.
    """

    active: _Word
    abandoned: tuple[str, ...] = ()
    created: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def with_active(self, cluster: str) -> Self:
        return replace(self, active=cluster)

    def with_abandoned(self, end: Offset) -> Self:
        """Closes the batch up to `end` unread: its records come again from the other cluster."""
        return replace(self, abandoned=(*self.abandoned, _text(end))[-_MAX_ABANDONED:])

    def with_created(self, cluster: str, topics: Collection[str]) -> Self:
        """Records that the subscription is missing on those topic partitions and is about to be created."""
        everywhere = {*self.created.get(cluster, ()), *topics}
        return replace(self, created={**self.created, cluster: tuple(sorted(everywhere))}) if topics else self

    def without_created(self, cluster: str) -> Self:
        return replace(self, created={name: topics for name, topics in self.created.items() if name != cluster})

    def is_abandoned(self, end: Offset) -> bool:
        """Whether the batch up to `end` was closed unread."""
        return _text(end) in self.abandoned

    def restarts_at_cursor(self, start: Offset) -> bool:
        """Whether the batch after `start` begins at the active cluster's cursor instead of at `start`."""
        return start.cluster != self.active or self.is_abandoned(start)


@dataclass(frozen=True, slots=True)
class QueryIdentity:
    """The owner of a failover file: the query of a checkpoint, its subscription and its topics."""

    query: _Word
    subscription: _Word
    topics: _Word


_IDENTITY, _STATE = TypeAdapter(QueryIdentity), TypeAdapter(FailoverState)


class FailoverFile:
    """The file of a `FailoverState`, and `<file>.switchover`, in which an operator names a cluster.

    Every method raises FailoverFileError when the disk fails or the file has other content.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._request_path = path.with_name(path.name + _REQUEST_SUFFIX)

    def load(self) -> tuple[QueryIdentity, FailoverState] | None:
        try:
            content = read_bounded(self._path, _MAX_FILE_BYTES)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise FailoverFileError(self._path, f"it cannot be read: {error}") from error
        try:
            document = json.loads(content)
            if document["version"] != _FILE_VERSION or "abandoned" not in document:
                raise ValueError(f"it is of another version than {_FILE_VERSION}, or lacks a part")
            return _IDENTITY.validate_python(document), _STATE.validate_python(document)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = one_line(str(error)) if content else "it is empty"
            raise FailoverFileError(self._path, f"it is not a failover file of the Pulsar source: {what}") from error

    def save(self, owner: QueryIdentity, state: FailoverState) -> None:
        """Stores the state durably; never replaces the file of another query."""
        document = {"version": _FILE_VERSION, **asdict(owner), **asdict(state)}
        content = json.dumps(document, sort_keys=True).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Created, not replaced: of two queries that begin with one path, the second finds the first one's file.
            if create_durably(self._path, content):
                return
            kept = self.load()
            if kept and kept[0].query != owner.query:
                raise FailoverFileError(self._path, f"another query, of {kept[0].subscription!r}, has begun with it")
            replace_durably(self._path, content)
        except OSError as error:
            raise FailoverFileError(self._path, f"it cannot be written: {error}") from error

    def record_answer(self, now_s: float) -> bool:
        """Sets the file's modification time to the active cluster's last answer, `now_s` (seconds since 1970).

        False when there is no file and it must be saved again.
        """
        try:
            os.utime(self._path, (now_s, now_s))
        except FileNotFoundError:
            return False
        except OSError as error:
            _log.warning("the failover file cannot be touched", path=str(self._path), error=str(error))
        return True

    def last_answer_s(self) -> float | None:
        """When a cluster last answered any process of this query; None: never recorded."""
        try:
            return self._path.stat().st_mtime
        except OSError:
            return None

    def switchover_request(self) -> str | None:
        """The cluster that an operator requested; None without a request."""
        try:
            return self._request_path.read_bytes()[:1000].decode("utf-8", "replace").strip() or None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FailoverFileError(self._request_path, f"it cannot be read: {error}") from error

    def clear_switchover_request(self) -> None:
        try:
            self._request_path.unlink(missing_ok=True)
        except OSError as error:
            raise FailoverFileError(self._request_path, f"it cannot be removed: {error}") from error


class Failover:
    """Which cluster one query reads, checked against its checkpoint; each change is on disk before it takes effect.

    Without a `failoverFile` the state is in memory only. Its calls raise FailoverFileError.
    """

    def __init__(self, options: PulsarOptions, wall_s: Callable[[], float] = time.time) -> None:
        """`wall_s`: seconds since 1970."""
        self._options = options
        self._wall_s = wall_s
        self._file = FailoverFile(options.failover_file) if options.failover_file else None
        self._clusters = [cluster.name for cluster in options.clusters]
        kept = self._file.load() if self._file else None
        self._identity = kept[0] if kept else None
        self._state = kept[1] if kept else FailoverState(self._clusters[0])
        if self._state.active not in self._clusters:
            known = ", ".join(self._clusters)
            raise self._file_error(f"it speaks of cluster {self._state.active!r}, the options know only {known}")
        self._begun = self._bound = False
        self._drawn: str | None = None
        self._answered_s = wall_s()

    @property
    def state(self) -> FailoverState:
        return self._state

    def start_query(self) -> str:
        """The id of a query without a checkpoint. Raises FailoverFileError when the file belongs to another query."""
        self._begun = True
        if self._identity is None:
            self._drawn = uuid4().hex
            return self._drawn
        if self._identity != (mine := self._identity_of(self._identity.query)):
            raise self._file_error(f"it belongs to another query, of {self._identity.subscription!r}, not of {mine}")
        return self._identity.query

    def bind_checkpoint(self, offset: Offset, *, planned: bool = False) -> None:
        """Checks the failover file against the checkpoint; FailoverFileError when they belong to different queries.

        When the file is lost, the batch up to `offset` may have been closed unread. So unless that batch is only
        `planned`, reading begins at the cursor, which is before it.
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
            _log.error("the failover file is lost", path=str(self._options.failover_file), cluster=offset.cluster)
            self._options.cluster_named(offset.cluster)
            self._state = FailoverState(offset.cluster, created=self._state.created)
            self._state = self._state if planned else self._state.with_abandoned(offset)
        self._identity = identity
        self._bound = True
        if kept != identity:
            self._save(self._state)

    def accept_switchover_request(self) -> str | None:
        """The cluster that an operator requested instead of the active one.

        A request that changes nothing is removed, so that it cannot take effect later.
        """
        if self._file is None or (request := self._file.switchover_request()) is None:
            return None
        if request in self._clusters and request != self._state.active:
            return request
        if request not in self._clusters:
            _log.error("the requested cluster is unknown", requested=request, clusters=sorted(self._clusters))
        self._file.clear_switchover_request()
        return None

    def clear_switchover_request(self) -> None:
        if self._file:
            self._file.clear_switchover_request()

    def switch_to(self, cluster: str, reason: str, **known: int) -> None:
        """Makes a cluster the active one; `known` goes into the log line."""
        _log.warning("the cluster changed", old=self._state.active, new=cluster, reason=reason, **known)
        self._keep(self._state.with_active(cluster))

    def abandon(self, end: Offset) -> None:
        """Closes a planned batch that can no longer be read."""
        self._keep(self._state.with_abandoned(end))
        _log.warning("the batch is abandoned", cluster=end.cluster)

    def clear_abandoned(self, start: Offset) -> None:
        """Forgets abandoned batches and created subscriptions once the query has passed them."""
        state = self._state.without_created(start.cluster)
        self._keep(state if state.restarts_at_cursor(start) else replace(state, abandoned=()))

    def record_created(self, cluster: str, topics: Collection[str]) -> None:
        self._keep(self._state.with_created(cluster, topics))

    def accept_created(self, cluster: str) -> None:
        """Forgets missing subscriptions after their loss was reported."""
        self._keep(self._state.without_created(cluster))

    def on_caught_up(self) -> None:
        """The active cluster is read to its end: nothing sent to the others without a subscription is missing."""
        self._keep(replace(self._state, created={}))

    def on_answer(self, cluster: str) -> None:
        """Records in the file, at most once a second, that the active cluster answered, for the next process."""
        if self._file and cluster == self._state.active and self._wall_s() - self._answered_s >= _TOUCH_PERIOD_S:
            self._answered_s = self._wall_s()
            if not self._file.record_answer(self._answered_s) and self._bound:
                self._save(self._state)

    def last_answer_age_s(self) -> float | None:
        """Seconds since a cluster last answered any process of this query; None: never recorded."""
        heard_s = self._file.last_answer_s() if self._file else None
        return None if heard_s is None else self._wall_s() - heard_s

    def _identity_of(self, query: str) -> QueryIdentity:
        return QueryIdentity(query, self._options.subscription_name(), ",".join(sorted(map(str, self._options.topics))))

    def _file_error(self, detail: str) -> FailoverFileError:
        assert self._options.failover_file is not None  # nothing is refused where nothing was read
        return FailoverFileError(self._options.failover_file, detail)

    def _keep(self, state: FailoverState) -> None:
        if state != self._state:
            # The disk first: what only memory knew, the next process would not know.
            self._save(state)
            self._state = state

    def _save(self, state: FailoverState) -> None:
        if self._file and self._identity:
            self._file.save(self._identity, state)


def _text(offset: Offset) -> str:
    return json.dumps(offset.to_json(), sort_keys=True)


_PROBE_PERIOD_S = 0.25
_FRESH_S = 60.0
"""For how long it counts that another process heard from the cluster."""
_MIN_PROBE_S = 1.0
"""How long a process looks itself before it calls a cluster silent, whatever others heard."""


class SilentClusters:
    """Since when each cluster is silent, and which clusters refuse access. Pure; times in seconds.

    A cluster that refuses access counts as silent.
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
        return now_s - self._since[cluster]

    def suspect(self, cluster: str, since_s: float) -> None:
        """A call that began at `since_s` was not answered: the cluster is silent since then, unless it answers the next
        poll.
        """
        self._suspected.setdefault(cluster, since_s)

    def on_failure(self, cluster: str, asked_s: float, error: SourceClusterUnreachable | AccessRefused) -> None:
        """A poll that began at `asked_s` failed. Raises the refusal of the only cluster."""
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
        for known in (self._since, self._suspected, self._refusals):
            known.pop(cluster, None)

    def check_refused(self, active: str) -> None:
        """Raises the active cluster's refusal when every cluster refuses access, because waiting does not help."""
        if len(self._refusals) == len(self._clusters):
            raise self._refusals[active]

    def error(self) -> NoClusterAnswers:
        return NoClusterAnswers(", ".join(sorted(self._since)), "looking for a cluster to read", self._last_error)


class ClusterMonitor:
    """The clusters of the options, in order, and which one is active: see `failover`."""

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
        self._surveys = {cluster.name: survey(cluster, options) for cluster in options.clusters}
        self._silent = SilentClusters(list(self._surveys))
        self.failover = Failover(options, wall_s)
        self._restore_silence()

    def _restore_silence(self) -> None:
        """A restarted query counts the silence of its cluster from before the restart."""
        heard_s = self.failover.last_answer_age_s()
        # Negative where the wall clock was set back: then the file's time says nothing.
        if heard_s is not None and 0 <= heard_s < _FRESH_S:
            most_s = max(0.0, self._options.cluster_lost_after_seconds - _MIN_PROBE_S)
            self.suspect(self.failover.state.active, self._clock() - min(heard_s, most_s))

    def close(self) -> None:
        for survey in self._surveys.values():
            survey.close()

    def is_reachable(self, cluster: str) -> bool:
        """Whether the cluster answered the last call."""
        return cluster not in self._silent

    def suspect(self, cluster: str, since_s: float) -> None:
        self._silent.suspect(cluster, since_s)

    def record_planned(self, cluster: str, created_times: Mapping[str, str]) -> Mapping[str, SubscriptionProperties]:
        """Stores with the subscription that batches are planned in those openings, before Spark's log has them."""
        return self._surveys[cluster].record_planned(created_times)

    def record_acknowledged(self, cluster: str, created_times: Mapping[str, str]) -> None:
        """Stores with the subscription that batches of those openings are in Spark's log and acknowledged."""
        self._surveys[cluster].record_acknowledged(created_times)

    def left_out(self, cluster: str) -> LeftOutTopics:
        return self._surveys[cluster].left_out

    def known_clusters(self, cluster: str) -> frozenset[str]:
        """The names of clusters that messages can come from, as one cluster knows them."""
        return self._surveys[cluster].known_clusters()

    def create_subscriptions(self) -> ClusterView:
        """Creates the subscription on the active cluster (returned) and on every standby.

        A standby without the subscription would delete what it receives before the first cursor arrives there.
        """
        view = self.look_at_active()
        for name, survey in self._surveys.items():
            if name == view.cluster.name:
                continue
            try:
                self._subscribe_missing(name, survey.states())
            except PulsarSourceError as error:
                _log.warning("a standby has no subscription", cluster=name, error=str(error))
        return view

    def look_at_others(self, cluster: str) -> list[ClusterView]:
        views = []
        for name, survey in self._surveys.items():
            if name != cluster and self.is_reachable(name):
                try:
                    views.append(ClusterView(survey.cluster, survey.states()))
                except PulsarSourceError as error:
                    _log.warning("a cluster was not checked", cluster=name, error=str(error))
        return views

    def look_at_active(self, *, create: bool = True) -> ClusterView:
        """The view of the active cluster; another one becomes active when it is silent for too long.

        Creates a missing subscription, if `create`. Raises NoClusterAnswers when no
        cluster answers for `readTimeoutSeconds`, and AccessRefused as soon as every cluster refuses access.
        """
        began = self._clock()
        while self._clock() - began < self._options.read_timeout_seconds:
            active = self.failover.state.active
            view = self.look_at(active, create=create)
            if view is not None:
                return view
            # In the order of preference: the options give it.
            for name in self._surveys:
                view = self._try(name, create=create) if name != active else None
                if view is not None:
                    self.failover.switch_to(name, "lost")
                    return view
            self._silent.check_refused(active)
            self._pause(_PROBE_PERIOD_S)
        raise self._silent.error()

    def look_at(self, name: str, *, create: bool = True) -> ClusterView | None:
        """The view of one cluster; None when it stays silent for `clusterLostAfterSeconds`."""
        while True:
            view = self._try(name, create=create)
            if view is not None:
                return view
            if self._silent.duration_s(name, self._clock()) >= self._options.cluster_lost_after_seconds:
                return None
            self._pause(_PROBE_PERIOD_S)

    def switch_over(self) -> None:
        """Switches to the cluster that the operator requested, if it answers, and removes the request.

        Logs how many entries are before the cursor there: those already read here are read once more.
        """
        if request := self.failover.accept_switchover_request():
            view = self.look_at(request, create=False)
            if view is None:
                _log.error("the requested cluster does not answer", requested=request)
            else:
                waiting = sum(
                    state.entries_between(state.cursor or BEGINNING, state.last) for state in view.states.values()
                )
                self.failover.switch_to(request, "requested", waiting_entries=waiting)
        # Only now: whoever is killed before has it still to do.
        self.failover.clear_switchover_request()

    def _try(self, name: str, *, create: bool) -> ClusterView | None:
        survey = self._surveys[name]
        asked = self._clock()
        try:
            states = survey.states()
            if create and self._subscribe_missing(name, states):
                states = survey.states()
            # Asking for the properties creates those that are missing, and without `create` nothing is to be created.
            properties = survey.ensure_properties(states) if create else {}
        except (SourceClusterUnreachable, AccessRefused) as error:
            self._silent.on_failure(name, asked, error)
            return None
        self._silent.on_answer(name)
        self.failover.on_answer(name)
        created = frozenset(self.failover.state.created.get(name, ()))
        return ClusterView(survey.cluster, states, created, properties).without(survey.left_out)

    def _subscribe_missing(self, name: str, states: States) -> bool:
        """Returns whether a cursor was moved."""
        # First the failover file: afterwards nothing shows that the subscription was not there.
        self.failover.record_created(name, [topic for topic, state in states.items() if state.cursor is None])
        return self._surveys[name].subscribe_missing(states)
