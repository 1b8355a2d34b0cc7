"""Reads the state of the centre: the lake, the topics, and the note of topics left out."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cloud_jobs.config import CloudSettings, ClusterSettings
from cloud_jobs.derived.outbox import unpublished_since
from cloud_jobs.errors import CloudError, LakeError, StoreUnavailable
from cloud_jobs.lake.coverage_log import from_rows
from cloud_jobs.lake.data_files import StoredFiles, read_stored
from cloud_jobs.lake.location import error_text
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.snapshot_reads import received_counts
from cloud_jobs.lake.snapshots import COMPUTED_WITH_FENCES, Covering, covering, fences_number
from cloud_jobs.lake.tables import FENCES, INGEST, Condition, Lake, store_time
from cloud_jobs.lake.transactions import COMMITTED, counter_of, newest_number, stated
from cloud_jobs.maintenance.erasing import searched
from cloud_jobs.maintenance.sweeping import listed_data, read_last_run
from cloud_jobs.pulsar_source.cluster_monitor import read_left_out
from cloud_jobs.reference.files import usable
from cloud_jobs.reference.tables import fences_in, in_force, reference_taken_at
from cloud_jobs.status.facts import (
    CentreStatus,
    CoverageStatus,
    DerivedStatus,
    MaintenanceStatus,
    ProvisionalStatus,
    ReferenceStatus,
    TableStatus,
    TopicLag,
    TopicLeftOut,
    problems,
)
from cloud_jobs.verdicts.job import provisional_since
from geo.replication.admin import AdminClient
from geo.replication.errors import ReplicationError
from geo.replication.rest_types import PARTITIONS, STATS
from geo.replication.topic_naming import PERSISTENT, partition_name, topic_path
from waybill.pulsar.pulsar_client import TokenWatch

# Status from logs, folders, coverage and small tables.

DERIVED: Final = ("usage", "geofence_events", "encounters")
_PUBLISHED: Final = ("geofence_events", "encounters")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FAILURES: Final = (LakeError, DeltaError, OSError, ValueError)
_COUNTS: Final = (
    "messages",
    "records",
    "accepted",
    "duplicates",
    "conflicts",
    "malformed",
    "far_off",
    "disbelieved",
    "unreadable",
)
_BATCH: Final = ("ingest_number", "committed_at", *_COUNTS, "clocks_ahead", "unreadable_of", "seconds")

_Made = TypeVar("_Made")


class LakeReader:
    """Reads a lake again and again; coverage and reference data only when they changed.

    `checkpoints`: of the jobs on this machine. `compares_clocks`: writes a small file into the lake, whose time shows
    the clock of its store. Raises LakeError without a lake, StoreUnavailable. The result names what else cannot be
    read.
    """

    def __init__(
        self,
        lake: Lake,
        checkpoints: Path | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        compares_clocks: bool = True,
    ) -> None:
        self._lake = lake
        self._compares_clocks = compares_clocks
        self._checkpoints = checkpoints
        self._now = now
        self._coverage: tuple[object, CoverageStatus] | None = None
        self._reference: tuple[tuple[object, int], ReferenceStatus] | None = None

    def read(self) -> CentreStatus:
        """The status without the lag."""
        lake, errors = self._lake, dict[str, str]()

        def tried(name: str, read: Callable[[], _Made]) -> _Made | None:
            try:
                with lake.location.errors_named():
                    return read()
            except StoreUnavailable:
                raise
            except _FAILURES as error:
                errors[name] = error_text(error)
                return None

        lake.check("records")
        ahead = tried("the clock of the lake's store", self._clock_ahead_s) if self._compares_clocks else None
        # derived tables before records, so that they cannot seem to cover more
        derived = {name: self._opened(name) for name in DERIVED}
        records = lake.open("records")
        number = newest_number(records, INGEST)
        coverage = tried("coverage", lambda: self._read_coverage(number))
        erased = tried("erasures", lambda: _erasures(lake, records))
        last = read_last_run(lake)
        return CentreStatus(
            now=self._now(),
            clock_ahead_s=ahead,
            ingest_number=counter_of(number),
            begun_at=_begun_at(records),
            tables=tuple(self._table(name, records if name == "records" else derived.get(name)) for name in TABLES),
            derived=tuple(self._derived(name, opened, records) for name, opened in derived.items()),
            coverage=coverage,
            newest_batch=tried("ingest_batches", lambda: _newest_batch(lake)),
            quarantine=tried("quarantine", lambda: _quarantined(lake)),
            reference=tried("reference", self._read_reference),
            erasures=None if erased is None else erased[0],
            erasures_pending=None if erased is None else erased[1],
            maintenance=MaintenanceStatus() if last is None else MaintenanceStatus(*last[:3]),
            errors=errors,
        )

    def _clock_ahead_s(self) -> float:
        return (self._now() - store_time(self._lake)).total_seconds()

    def _opened(self, table: str) -> DeltaTable | None:
        # the reason is found where the tables are looked at
        with suppress(LakeError):
            return self._lake.open(table)
        return None

    def _table(self, table: str, opened: DeltaTable | None) -> TableStatus:
        try:
            with self._lake.location.errors_named():
                return _table_status(self._lake, table, opened or self._lake.open(table))
        except StoreUnavailable:
            raise
        except _FAILURES as error:
            return TableStatus(table, error=error_text(error))

    def _derived(self, table: str, opened: DeltaTable | None, records: DeltaTable) -> DerivedStatus:
        if opened is None:
            return DerivedStatus(table, error="it cannot be opened")
        try:
            with self._lake.location.errors_named():
                found = covering(opened, table, records)
                status = behind(StoredFiles.of(records, "records"), table, found)
                if table in COMPUTED_WITH_FENCES:
                    status = replace(status, fences_since=_other_fences(self._lake, opened))
                if table in _PUBLISHED and self._checkpoints is not None:
                    since = unpublished_since(self._lake, table, self._checkpoints)
                    status = replace(status, unpublished_since=since)
                if not status.commits_behind:
                    return status
                return replace(status, waiting_since=_committed(self._lake, found, records))
        except StoreUnavailable:
            raise
        except _FAILURES as error:
            return DerivedStatus(table, error=error_text(error))

    def _read_coverage(self, number: int | None) -> CoverageStatus:
        manifest = self._lake.coverage_manifest(number)
        # report a missing file at once, although its content is cached
        seen = manifest, self._lake.coverage_log.sizes(manifest)
        if self._coverage is None or self._coverage[0] != seen:
            self._coverage = seen, coverage_status(self._lake.coverage_rows(manifest))
        return self._coverage[1]

    def _read_reference(self) -> ReferenceStatus:
        opened = self._lake.open("reference")
        seen = opened.metadata().id, opened.version()
        refused = StoredFiles.of(self._lake.open("reference_quarantine"), "reference_quarantine")
        quarantined = sum(filter(None, refused.row_counts))
        if self._reference is None or self._reference[0] != seen:
            found = in_force(self._lake.rows("reference").to_pylist(), usable)
            self._reference = seen, ReferenceStatus(len(found.held), len(found.refused), quarantined)
        return replace(self._reference[1], quarantined=quarantined, taken_at=reference_taken_at(self._lake))


def _begun_at(records: DeltaTable) -> datetime | None:
    made_ms = records.metadata().created_time
    return None if made_ms is None else _EPOCH + timedelta(milliseconds=made_ms)


def _other_fences(lake: Lake, opened: DeltaTable) -> datetime | None:
    """Since when the fences in force differ from those of a table; None: they are the same."""
    number = stated(opened, FENCES)
    # a table that states no fences was computed without any
    if (fences_number(()) if number is None else number) == fences_number(fences_in(lake).features):
        return None
    committed = _newest_commit(opened) or _EPOCH
    taken = lake.rows("reference", ["collected_at"], where=[("kind", "=", "fence")])["collected_at"].to_pylist()
    return min((moment for moment in taken if moment > committed), default=committed)


def behind(records: StoredFiles, table: str, found: Covering) -> DerivedStatus:
    since = found.since or 0
    bounds = zip(records.bounds("ingest_number"), records.row_counts, strict=True) if len(records) else ()
    # an upper bound: a file may hold old rows, too
    at_most = sum(rows for (_, high), rows in bounds if high is None or high > since)
    commits = found.until - since
    return DerivedStatus(table, found.since is not None, commits, at_most if commits else 0)


def coverage_status(rows: pa.Table) -> CoverageStatus:
    with_tombstones = pc.greater(pc.list_value_length(rows["lost"]), 0)
    simple = rows.filter(pc.invert(with_tombstones))
    received = received_counts(simple)
    missing = simple["head"].to_numpy() - received
    others = [coverage for _, coverage in from_rows(rows.filter(with_tombstones))]
    gaps = [one.missing.count for one in others]
    return CoverageStatus(
        streams=rows.num_rows,
        open_streams=int(np.count_nonzero(missing > 0)) + sum(gap > 0 for gap in gaps),
        received=int(received.sum()) + sum(one.received.count for one in others),
        declared_lost=sum(one.declared_lost.count for one in others),
        missing=int(missing.sum()) + sum(gaps),
    )


def _table_status(lake: Lake, table: str, opened: DeltaTable) -> TableStatus:
    stored = StoredFiles.of(opened, table)
    sizes, rows = dict(zip(stored.paths, stored.actions["size_bytes"].to_pylist(), strict=True)), stored.row_counts
    listed = {info.path: info.size for info in listed_data(lake.files(table))}
    missing = {path for path, size in sizes.items() if listed.get(path) != size}
    if missing:
        # a maintenance may have just replaced and deleted them
        missing.intersection_update(StoredFiles.of(lake.open(table), table).paths)
    return TableStatus(
        table,
        rows=None if None in rows else sum(rows),
        files=len(sizes),
        bytes=sum(sizes.values()),
        committed_at=_newest_commit(opened),
        missing_files=len(missing),
    )


def _newest_commit(opened: DeltaTable) -> datetime | None:
    """The time that the writer of the newest commit stated, else the time of the commit's clock."""
    if (committed_us := stated(opened, COMMITTED)) is not None:
        return _EPOCH + timedelta(microseconds=committed_us)
    newest = next(iter(opened.history(1)), {})
    return _EPOCH + timedelta(milliseconds=newest["timestamp"]) if "timestamp" in newest else None


def _committed(lake: Lake, found: Covering, records: DeltaTable) -> datetime | None:
    """When the first commit was made that a table does not cover. A crash of the ingest may lose the row of a
    commit.
    """
    first = (found.since or 0) + 1
    if first == found.until:
        return _newest_commit(records)
    rows = _batches(lake, first, first) or _batches(lake, first + 1, None)
    moments = (row["committed_at"] for row in rows)
    return min(moments, default=_newest_commit(records))


def _newest_batch(lake: Lake) -> dict[str, Any] | None:
    bounds = StoredFiles.of(lake.open("ingest_batches"), "ingest_batches")
    numbers = [high for _, high in bounds.bounds("ingest_number")] if len(bounds) else []
    rows = _batches(lake, max(numbers), None) if numbers else []
    return {name: rows[-1][name] for name in _BATCH} if rows else None


def _batches(lake: Lake, first: int, last: int | None) -> list[dict[str, Any]]:
    where: list[Condition] = [("ingest_number", ">=", first)]
    where += [] if last is None else [("ingest_number", "<=", last)]
    return [*lake.rows("ingest_batches", where=where).to_pylist()]


def _quarantined(lake: Lake) -> dict[str, int]:
    stored = StoredFiles.of(lake.open("quarantine"), "quarantine")
    counts = Counter[str]()
    if not len(stored):
        return {}
    for path, rows, (low, high) in zip(stored.paths, stored.row_counts, stored.bounds("cause"), strict=True):
        if low is not None and low == high:
            counts[low] += rows
        else:
            found = read_stored(lake.files("quarantine"), "quarantine", path, ["cause"], {})
            counts.update(found["cause"].to_pylist())
    return dict(counts)


def _erasures(lake: Lake, records: DeltaTable) -> tuple[int, int]:
    """The number of declared erasures, and of those that were not searched for in every file."""
    numbers = lake.rows("erasures", ["number"])["number"].to_pylist()
    return len(numbers), sum(number > searched(records).erasure for number in numbers)


# The backlog in Pulsar by partition.

_TIMEOUT_S: Final = 5.0
_RECONNECT_S: Final = 3.0


def topic_lags(settings: CloudSettings, pause: Callable[[float], object] = time.sleep) -> tuple[TopicLag, ...]:
    """The backlog of the ingest in each partition; unknown, with the reason, if the cluster does not say."""
    cluster, subscription = _cluster_read(settings), settings.ingest.subscription
    found = subscription_lags(settings, cluster, settings.batch_topics, subscription)
    if not any(one.cut_off for one in found):
        return found
    # a connection that was just lost is opened again within seconds, and is no problem
    pause(_RECONNECT_S)
    return subscription_lags(settings, cluster, settings.batch_topics, subscription)


def subscription_lags(
    settings: CloudSettings, cluster: ClusterSettings, topics: Iterable[str], subscription: str
) -> tuple[TopicLag, ...]:
    try:
        client = AdminClient(
            cluster.name,
            cluster.admin_url,
            access=settings.access,
            timeout_s=_TIMEOUT_S,
            unavailable_s=0,
            # only an administrator may ask for the name
            check_name=False,
        )
    except ReplicationError as error:
        return tuple(TopicLag(topic, cluster.name, error=str(error), answered=False) for topic in topics)
    with client:
        return tuple(lag for topic in topics for lag in _lags(client, topic, subscription))


def left_out_topics(settings: CloudSettings) -> tuple[TopicLeftOut, ...]:
    """The topics that the ingest reads without, by its note. Raises ValueError for a damaged note."""
    noted = read_left_out(settings.left_out_file)
    return tuple(TopicLeftOut(one.topic, one.cluster, one.reason, datetime.fromisoformat(one.since)) for one in noted)


def _cluster_read(settings: CloudSettings) -> ClusterSettings:
    try:
        active = json.loads(Path(settings.source_options["failoverFile"]).read_bytes())["active"]
    except (KeyError, OSError, ValueError, TypeError, RecursionError):
        active = None
    return next((one for one in settings.clusters if one.name == active), settings.clusters[0])


def _lags(client: AdminClient, topic: str, subscription: str) -> Iterator[TopicLag]:
    name = topic.removeprefix(PERSISTENT)
    try:
        found = client.get(f"{topic_path(name)}/partitions", PARTITIONS)
        count = 0 if found is None else found.partitions
        for partition in [partition_name(name, number) for number in range(count)] or [name]:
            yield _lag(client, partition, subscription)
    except ReplicationError as error:
        yield TopicLag(topic, client.cluster, error=str(error), answered=False)


def _lag(client: AdminClient, partition: str, subscription: str) -> TopicLag:
    topic = PERSISTENT + partition
    # Pulsar's estimate may stay wrong
    asked = {"getEarliestTimeInBacklog": True, "getPreciseBacklog": True}
    stats = client.get(f"{topic_path(partition)}/stats", STATS, **asked)
    if stats is None:
        return TopicLag(topic, client.cluster, error="the cluster does not have it")
    cut_off = tuple(sorted(name for name, one in stats.replication.items() if not one.inbound))
    waiting = stats.subscriptions.get(subscription)
    if waiting is None:
        return TopicLag(topic, client.cluster, error=f"it has no subscription {subscription!r}", cut_off=cut_off)
    oldest = _EPOCH + timedelta(milliseconds=waiting.earliest_ms) if waiting.earliest_ms > 0 else None
    return TopicLag(topic, client.cluster, waiting.backlog, oldest if waiting.backlog else None, cut_off=cut_off)


# The oldest alert without a verdict, from tables and topics.


def provisional_alerts(settings: CloudSettings) -> ProvisionalStatus:
    """The oldest alert without a published verdict, if any was ever collected. Raises nothing."""
    lake, given = settings.tables, settings.verdicts
    try:
        with settings.location.errors_named():
            if newest_number(lake.open("alerts"), "alerts") is None:
                return ProvisionalStatus(given.max_provisional_s, was_collected=False)
            waiting = [*_in_tables(lake, settings)]
        waiting += _in_topics(settings)
    except (CloudError, OSError, ValueError) as error:
        return ProvisionalStatus(given.max_provisional_s, error=str(error))
    return ProvisionalStatus(given.max_provisional_s, min(waiting, default=None))


def _in_tables(lake: Lake, settings: CloudSettings) -> Iterator[datetime]:
    found = provisional_since(lake), unpublished_since(lake, "verdicts", settings.checkpoints)
    yield from (one for one in found if one is not None)


def _in_topics(settings: CloudSettings) -> Iterator[datetime]:
    """When the oldest uncollected alert of each topic was published. Raises ValueError if that is unknown.

    The subscription is replicated: an alert that was taken in one cluster is done, although another cluster may not
    know. So each cluster is asked: one that does not answer may have taken what waits elsewhere.
    """
    for topic in settings.alert_topics:
        lags = [
            lag
            for cluster in settings.clusters
            for lag in subscription_lags(settings, cluster, [topic], settings.verdicts.subscription)
        ]
        if silent := [lag for lag in lags if not lag.answered]:
            raise ValueError(f"the backlog of {topic} is unknown: {_errors(silent)}")
        # each partition has its own position
        for partition in sorted({lag.topic for lag in lags} - {topic}) or [topic]:
            if (oldest := _oldest_in(partition, lags)) is not None:
                yield oldest


def _oldest_in(partition: str, lags: Sequence[TopicLag]) -> datetime | None:
    mine = [lag for lag in lags if lag.topic == partition]
    known = [lag for lag in mine if lag.backlog is not None]
    if not known:
        raise ValueError(f"the backlog of {partition} is unknown: {_errors(mine)}")
    best = min(known, key=lambda lag: lag.backlog or 0)
    if best.backlog and best.oldest is None:
        raise ValueError(f"the age of {best.backlog:,} waiting alerts of {partition} is unknown")
    return best.oldest if best.backlog else None


def _errors(lags: Sequence[TopicLag]) -> str:
    return "; ".join(f"{lag.cluster}: {lag.error or 'the cluster did not report it'}" for lag in lags)


class CentreReader:
    def __init__(self, settings: CloudSettings) -> None:
        self._settings = settings
        self._lake = LakeReader(settings.tables, settings.checkpoints)
        self._token = TokenWatch([settings.access])

    def look(self) -> tuple[CentreStatus, tuple[str, ...]]:
        """The status and its problems, by the limits of the settings. Raises CloudError."""
        lags = topic_lags(self._settings)
        token_problem = self._token.ended or self._token.ending
        provisional = provisional_alerts(self._settings)
        found = replace(self._lake.read(), lag=lags, token_problem=token_problem, provisional=provisional)
        try:
            found = replace(found, left_out=left_out_topics(self._settings))
        except ValueError as error:
            found = replace(found, errors={**found.errors, "the note of topics left out": str(error)})
        return found, problems(found, self._settings.status)
