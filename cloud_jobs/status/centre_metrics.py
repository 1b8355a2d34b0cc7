"""Prometheus metrics of the centre. What is unknown is not exported, or `NaN`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from cloud_jobs.status.facts import MAX_SKEW_S, CentreStatus, DerivedStatus, TableStatus

Value = float | int | None
Labelled = tuple[tuple[str, ...], Value]


class _Fact(NamedTuple):
    """A gauge: its labels, help, and values in a status."""

    labels: tuple[str, ...]
    text: str
    values: Callable[[CentreStatus], Iterable[Labelled]]


def _one(read: Callable[[CentreStatus], Value]) -> Callable[[CentreStatus], Iterator[Labelled]]:
    def values(status: CentreStatus) -> Iterator[Labelled]:
        yield (), read(status)

    return values


def _tables(read: Callable[[TableStatus], Value]) -> Callable[[CentreStatus], Iterator[Labelled]]:
    return lambda status: (((one.table,), read(one)) for one in status.tables)


def _derived(read: Callable[[CentreStatus, DerivedStatus], Value]) -> Callable[[CentreStatus], Iterator[Labelled]]:
    return lambda status: (((one.table,), read(status, one)) for one in status.derived)


def _of(part: str, name: str) -> Callable[[CentreStatus], Value]:
    def read(status: CentreStatus) -> Value:
        found: Value = getattr(getattr(status, part), name, None)
        return found

    return read


def _s(moment: datetime | None) -> Value:
    return None if moment is None else moment.timestamp()


def _lag_s(status: CentreStatus, one: DerivedStatus) -> Value:
    return 0 if one.commits_behind == 0 else status.age_s(one.waiting_since)


def _fences_s(status: CentreStatus, one: DerivedStatus) -> Value:
    return (0 if one.fences_since is None else status.age_s(one.fences_since)) if one.computed else None


def _unpublished_s(status: CentreStatus, one: DerivedStatus) -> Value:
    return 0 if one.unpublished_since is None else status.age_s(one.unpublished_since)


def _provisional_s(status: CentreStatus) -> Value:
    found = status.provisional
    # without a sample, a rule or panel would show that none waits
    if found is None or found.error or not found.was_collected:
        return math.nan
    age_s = 0.0 if found.since is None else status.age_s(found.since)
    # the age of an alert from the future is unknown
    return math.nan if age_s is None or age_s < -MAX_SKEW_S else max(0.0, age_s)


def _waiting(status: CentreStatus) -> Iterator[Labelled]:
    return (((one.topic, one.cluster), one.backlog) for one in status.lag)


def _waiting_s(status: CentreStatus) -> Iterator[Labelled]:
    return (((one.topic, one.cluster), 0 if one.backlog == 0 else status.age_s(one.oldest)) for one in status.lag)


def _left_out_s(status: CentreStatus) -> Iterator[Labelled]:
    return (((one.topic, one.cluster), status.age_s(one.since)) for one in status.left_out)


def _quarantine(status: CentreStatus) -> Iterator[Labelled]:
    return (((cause,), count) for cause, count in (status.quarantine or {}).items())


def _versions(status: CentreStatus) -> Iterator[Labelled]:
    yield ("in force",), _of("reference", "in_force")(status)
    yield ("refused",), _of("reference", "refused")(status)


_TABLE: Final = ("table",)
_TOPIC: Final = ("topic", "cluster")
FACTS: Final[Mapping[str, _Fact]] = {
    "waybill_centre_clock_ahead_seconds": _Fact(
        (), "How far this machine's clock is ahead of that of the lake's store", _one(lambda one: one.clock_ahead_s)
    ),
    "waybill_centre_ingest_commits": _Fact((), "Commits of the ingest so far", _one(lambda one: one.ingest_number)),
    "waybill_centre_backlog_messages": _Fact(
        _TOPIC, "Messages of a topic partition that wait for the ingest", _waiting
    ),
    "waybill_centre_backlog_age_seconds": _Fact(_TOPIC, "Age of the oldest of them; 0: none waits", _waiting_s),
    "waybill_centre_left_out_seconds": _Fact(_TOPIC, "How long the ingest reads without a topic", _left_out_s),
    "waybill_centre_table_readable": _Fact(
        _TABLE, "1 when the log of the table could be read", _tables(lambda one: not one.error)
    ),
    "waybill_centre_table_rows": _Fact(_TABLE, "Rows, by the log of the table", _tables(lambda one: one.rows)),
    "waybill_centre_table_files": _Fact(_TABLE, "Data files, by the log", _tables(lambda one: one.files)),
    "waybill_centre_table_bytes": _Fact(_TABLE, "Their bytes", _tables(lambda one: one.bytes)),
    "waybill_centre_table_missing_files": _Fact(
        _TABLE, "Of these, not there or of another size", _tables(lambda one: one.missing_files)
    ),
    "waybill_centre_table_commit_timestamp_seconds": _Fact(
        _TABLE, "When the newest commit was made, since 1970", _tables(lambda one: _s(one.committed_at))
    ),
    "waybill_centre_table_computed": _Fact(
        _TABLE, "1 when the derived table was ever computed", _derived(lambda _, one: one.computed)
    ),
    "waybill_centre_lag_commits": _Fact(
        _TABLE,
        "Commits of the ingest that the derived table does not cover",
        _derived(lambda _, one: one.commits_behind),
    ),
    "waybill_centre_lag_records": _Fact(
        _TABLE,
        "Records that it does not cover, at most",
        _derived(lambda _, one: one.records_behind),
    ),
    "waybill_centre_lag_seconds": _Fact(
        _TABLE, "Age of the oldest commit that it does not cover; 0: it covers all", _derived(_lag_s)
    ),
    "waybill_centre_other_fences_seconds": _Fact(
        _TABLE, "How long other fences are in force than those that it was computed with", _derived(_fences_s)
    ),
    "waybill_centre_unpublished_seconds": _Fact(
        _TABLE, "Age of the oldest row that waits to be published; 0: none does", _derived(_unpublished_s)
    ),
    "waybill_centre_oldest_provisional_seconds": _Fact(
        (), "Age of the oldest alert whose verdict is not published; 0: none waits; NaN: unknown", _one(_provisional_s)
    ),
    "waybill_centre_max_provisional_seconds": _Fact(
        (), "The longest that one may wait", _one(_of("provisional", "bound_s"))
    ),
    "waybill_centre_streams": _Fact((), "Device streams of the coverage", _one(_of("coverage", "streams"))),
    "waybill_centre_open_streams": _Fact((), "Of these, with a gap", _one(_of("coverage", "open_streams"))),
    "waybill_centre_received_records": _Fact((), "Records received", _one(_of("coverage", "received"))),
    "waybill_centre_lost_records": _Fact((), "Records declared lost", _one(_of("coverage", "declared_lost"))),
    "waybill_centre_missing_records": _Fact(
        (), "Records that devices have and that neither came nor were declared lost", _one(_of("coverage", "missing"))
    ),
    "waybill_centre_disbelieved_statements": _Fact(
        (),
        "Device statements of the newest micro-batch ignored because they are ahead of the centre's clock",
        _one(lambda one: None if one.newest_batch is None else one.newest_batch["disbelieved"]),
    ),
    "waybill_centre_quarantined_rows": _Fact(("cause",), "What is in quarantine, by cause", _quarantine),
    "waybill_centre_reference_versions": _Fact(
        ("state",), "Versions of fences, tariffs and accounts: in force, or refused", _versions
    ),
    "waybill_centre_reference_quarantined_messages": _Fact(
        (), "Messages in their topics that are no publications", _one(_of("reference", "quarantined"))
    ),
    "waybill_centre_reference_taken_timestamp_seconds": _Fact(
        (),
        "Time of the last read of the reference topics, since 1970",
        _one(lambda one: None if one.reference is None else _s(one.reference.taken_at)),
    ),
    "waybill_centre_erasures": _Fact((), "Erasures declared", _one(lambda one: one.erasures)),
    "waybill_centre_pending_erasures": _Fact(
        (), "Of these, not done in all files yet", _one(lambda one: one.erasures_pending)
    ),
    "waybill_centre_maintenance_end_timestamp_seconds": _Fact(
        (), "When the maintenance last ended, since 1970", _one(lambda one: _s(one.maintenance.ended_at))
    ),
    "waybill_centre_maintenance_errors": _Fact(
        (), "Parts of its last run that failed", _one(lambda one: len(one.maintenance.errors))
    ),
}
_HEALTHY: Final = ("waybill_centre_healthy", "1 while nothing is wrong, by the limits of the settings, or unknown")
_PROBLEMS: Final = ("waybill_centre_problems", "Problems: `cloud-jobs status` names them")
_LOOKED: Final = ("waybill_centre_look_timestamp_seconds", "When the lake was last looked at, since 1970")
_FAILED: Final = ("waybill_centre_looks_failed_total", "Looks at the lake that failed")


class CentreCollector(Collector):
    """Exports the last look at the centre. After a failed look it exports nothing of the lake and is not healthy.

    One thread looks, any thread may read. A look older than `max_age_s` is not healthy.
    """

    def __init__(self, max_age_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_age_s, self._clock = max_age_s, clock
        self._last: tuple[CentreStatus | None, tuple[str, ...], float] | None = None
        self._failed = 0

    def registry(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        registry.register(self)
        return registry

    def looked(self, status: CentreStatus, problems: Sequence[str]) -> None:
        self._last = (status, tuple(problems), self._clock())

    def failed(self, error: str) -> None:
        self._failed += 1
        self._last = (None, (error,), self._clock())

    def health(self) -> Mapping[str, Any]:
        """Whether the last look found no problem; None before the first one."""
        last = self._last
        if last is None:
            return {"healthy": None, "problems": []}
        _, problems, at_s = last
        age_s = self._clock() - at_s
        if age_s > self._max_age_s:
            problems = (*problems, f"the centre was last looked at {age_s:.0f} s ago")
        return {"healthy": not problems, "problems": list(problems)}

    def describe(self) -> Iterator[Metric]:
        yield from (GaugeMetricFamily(name, fact.text, labels=fact.labels) for name, fact in FACTS.items())
        yield from (GaugeMetricFamily(*one) for one in (_HEALTHY, _PROBLEMS, _LOOKED))
        yield CounterMetricFamily(*_FAILED)

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(*_FAILED, value=self._failed)
        last, health = self._last, self.health()
        if last is None:
            return
        yield GaugeMetricFamily(*_HEALTHY, value=float(health["healthy"]))
        yield GaugeMetricFamily(*_PROBLEMS, value=len(health["problems"]))
        status = last[0]
        if status is None:
            return
        yield GaugeMetricFamily(*_LOOKED, value=status.now.timestamp())
        for name, fact in FACTS.items():
            family = GaugeMetricFamily(name, fact.text, labels=fact.labels)
            for labels, value in fact.values(status):
                if value is not None:
                    family.add_metric(labels, float(value))
            yield family
