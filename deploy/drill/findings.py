"""What a drill counts, from what was seen at each station. Pure: no clock, no server.

The stations, in the order of a record's way: its device has a *receipt* (the region's Pulsar persisted it, so the
device may delete it); it has an *arrival* in the cluster that survives; a *commit* brings it into the central table.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import pulsar
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from cloud_jobs.lake.coverage import DeviceStream
from geo.alerts import AlertVerdict, VerdictKind
from geo.spatial.event_ids import Revision, in_force
from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client
from waybill.record import IntervalSet, WireError, read_header

# Sets of records by buffer. Pure.

RecordIds = Mapping[DeviceStream, IntervalSet]
_NONE = IntervalSet()


class SeenRange(NamedTuple):
    """The names `first` to `last` of a buffer, seen at one station at a moment (seconds since 1970)."""

    at_s: float
    stream: DeviceStream
    first: int
    last: int


def record_ids_of(seen: Iterable[SeenRange]) -> dict[DeviceStream, IntervalSet]:
    """All names that were seen."""
    bounds: dict[DeviceStream, list[tuple[int, int]]] = defaultdict(list)
    for one in seen:
        bounds[one.stream].append((one.first, one.last))
    return {stream: IntervalSet(ranges) for stream, ranges in bounds.items()}


def union(left: RecordIds, right: RecordIds) -> dict[DeviceStream, IntervalSet]:
    """What one or the other has."""
    return {stream: left.get(stream, _NONE) | right.get(stream, _NONE) for stream in {*left, *right}}


def minus(left: RecordIds, right: RecordIds) -> dict[DeviceStream, IntervalSet]:
    """What the left has and the right has not."""
    rest = {stream: seqs - right.get(stream, _NONE) for stream, seqs in left.items()}
    return {stream: seqs for stream, seqs in rest.items() if seqs}


def common(left: RecordIds, right: RecordIds) -> dict[DeviceStream, IntervalSet]:
    """What both have."""
    both = {stream: seqs & right.get(stream, _NONE) for stream, seqs in left.items()}
    return {stream: seqs for stream, seqs in both.items() if seqs}


def count(seqs: RecordIds) -> int:
    """How many records these are."""
    return sum(one.count for one in seqs.values())


# Audit of alerts: each announced id has exactly one verdict. Pure.


class VerdictRow(NamedTuple):
    """A row of the table `verdicts`."""

    id: str
    revision: int
    verdict: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertAudit:
    """The figures. `unknown`: why they say nothing of all alerts; "": they do.

    `announced`: ids on the topics of alerts. `in_force`: verdicts in force by kind, those of events that no region
    announced among them. `reasons`: of what is withdrawn. `without`: announced ids with no verdict, or with one as if
    nothing had been announced. `twice`: revisions of an id that are in the table more than once. `revised`: ids whose
    verdict was changed. `unpublished`: revisions of the table that are not in the topic of verdicts, or are others
    there. `is_whole`: the verdicts are of the events in force and of what is withdrawn, which have no id in common.
    """

    announced: int = 0
    in_force: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    without: int = 0
    twice: int = 0
    revised: int = 0
    unpublished: int = 0
    is_whole: bool = False
    unknown: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether each announced id has exactly one verdict, which is published; None: it is not known."""
        if self.unknown:
            return None
        return bool(self.announced) and self.is_whole and not (self.without or self.twice or self.unpublished)


def audit_alerts(
    announced: Collection[str],
    events: Iterable[Revision[str]],
    verdicts: Collection[VerdictRow],
    published: Iterable[AlertVerdict],
) -> AlertAudit:
    """Holds ids from the topics against events, verdicts and their topic."""
    held = in_force(Revision(row.id, row.revision, row) for row in verdicts)
    happened = in_force(events).keys()
    kinds = Counter(row.verdict for row in held.values())
    withdrawn = {name for name, row in held.items() if row.verdict == VerdictKind.WITHDRAWN}
    rows = {(row.id, row.revision): row.verdict for row in verdicts}
    said = {(one.id, one.revision): str(one.verdict) for one in published}
    return AlertAudit(
        announced=len({*announced}),
        in_force={kind.value: kinds[kind] for kind in VerdictKind},
        reasons=dict(Counter(str(held[name].reason) for name in withdrawn)),
        # late is said of what no region said
        without=sum(name not in held or held[name].verdict == VerdictKind.LATE for name in {*announced}),
        twice=len(verdicts) - len(rows),
        revised=len({name for name, revision in rows if revision}),
        unpublished=len({*rows.items()} ^ {*said.items()}),
        is_whole=held.keys() == happened | withdrawn and not happened & withdrawn,
    )


# Readers of one cluster that leave no trace on the broker.

_OPERATION_S = 15
# after a loss topics are found again by the client's own retries
_TIMEOUT_S = 120.0
_CLOSE_S = 5.0


class Follower:
    """Notes each batch that arrives in a cluster after the follower was opened, or (`earliest`) that it holds already.

    The moment is that at which the message reached this process: later than the arrival by a delivery, never earlier.
    """

    def __init__(
        self, service_url: str, topics: Sequence[str], access: PulsarAccess, *, earliest: bool = False
    ) -> None:
        self.arrivals: list[SeenRange] = []
        self._client = open_pulsar_client(service_url, access, timeout_s=_OPERATION_S)
        start = pulsar.MessageId.earliest if earliest else pulsar.MessageId.latest
        # A cluster that just came back is healthy before it has loaded its topics.
        patiently = Retrying(
            retry=retry_if_exception_type(pulsar.PulsarException),
            stop=stop_after_delay(_TIMEOUT_S),
            wait=wait_fixed(1),
            reraise=True,
        )
        self._readers = [
            patiently(self._client.create_reader, partition, start, reader_listener=self._on_message)
            for topic in topics
            for partition in patiently(self._client.get_topic_partitions, topic)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A reader whose cluster is gone closes when the process ends.
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    def _close(self) -> None:
        with contextlib.suppress(pulsar.PulsarException):
            self._client.close()

    def _on_message(self, _: Any, message: Any) -> None:
        # First of all: the moment is that of the arrival, not of the header read.
        at_s = time.time()
        try:
            header = read_header(message.data())
        except WireError:
            return  # not a batch of ours: the ingest puts it in quarantine
        stream = DeviceStream(message.properties().get("tenant", ""), header.device, header.epoch)
        self.arrivals.extend(SeenRange(at_s, stream, first, last) for first, last in header.record_seqs.ranges)


FIRST_WITHIN_S = 15.0
"""How long after the loss the first record must be through."""
_TWICE = 2
"""How many micro-batches may come a second time: the one under way, and the one whose end was not yet committed."""
_RECENT = 3
"""Of how many micro-batches before the loss the largest counts."""


class Commit(NamedTuple):
    """One commit to the records table: when it could be seen, and the names in its files."""

    at_s: float
    record_ids: RecordIds


class BatchCounts(NamedTuple):
    """One row of the ingest's account: records taken in, of which so many were known already."""

    at_s: float
    records: int
    duplicates: int


@dataclass(frozen=True, kw_only=True)
class DrillObservations:
    """Everything that was seen of one drill; all times in seconds since 1970.

    `receipts` and `arrivals` in the order in which they came. `rows`: the rows of the central table that carry names
    of this drill. `lost_at_s`: when the cluster or link was lost (failback: when the change was ordered).
    `replicated_until_s`: what arrived at the survivor up to then counts as replicated. `clock_from_s`: from when the
    seconds to the first and last record count (link-cut: when the link was healed). `steady_from_s`: from when the
    traffic before the loss is measured. `affected`: the buffers whose way was cut, by which the first and last record
    are timed. `resent`: records that devices sent again, in another region.
    """

    receipts: Sequence[SeenRange]
    arrivals: Sequence[SeenRange]
    commits: Sequence[Commit]
    batches: Sequence[BatchCounts]
    rows: int
    steady_from_s: float
    lost_at_s: float
    counted_at_s: float
    replicated_until_s: float
    snapshot_period_s: float
    affected: Collection[DeviceStream]
    resent: int = 0


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The figures of one drill. Times to the first and last record are infinite when it never came."""

    acknowledged: int
    in_table: int
    lost: int
    lost_of_replicated: int
    not_replicated: int
    not_replicated_s: float
    duplicates_before: int
    duplicates_bound: int
    duplicates_in_table: int
    resent: int
    largest_batch: int
    records_per_s: float
    first_through_s: float
    last_through_s: float

    @property
    def verdicts(self) -> Mapping[str, bool]:
        """Each statement that a drill must make true."""
        return {
            "nothing lost of what was replicated": self.lost_of_replicated == 0,
            "no duplicate in the table": self.duplicates_in_table == 0,
            "duplicates before deduplication within the bound": self.duplicates_before <= self.duplicates_bound,
            f"first record through within {FIRST_WITHIN_S:.0f} s": self.first_through_s <= FIRST_WITHIN_S,
        }

    @property
    def passed(self) -> bool:
        """Whether all of them hold."""
        return all(self.verdicts.values())


def compute_findings(seen: DrillObservations) -> Findings:
    """The figures, from what was seen."""
    acknowledged = record_ids_of(seen.receipts)
    in_table = _all_record_ids(seen.commits)
    lost = minus(acknowledged, in_table)
    replicated = record_ids_of(one for one in seen.arrivals if one.at_s <= seen.replicated_until_s)
    early = [one for one in seen.receipts if one.at_s <= seen.counted_at_s]
    waiting = minus(record_ids_of(early), replicated)
    largest, per_s = _traffic(seen, early)
    return Findings(
        acknowledged=count(acknowledged),
        in_table=count(common(in_table, acknowledged)),
        lost=count(lost),
        lost_of_replicated=count(common(lost, replicated)),
        not_replicated=count(waiting),
        not_replicated_s=_age_s(early, waiting, seen.counted_at_s),
        duplicates_before=sum(batch.duplicates for batch in seen.batches),
        # The cursor in the other cluster is as old as the last snapshot: what came since then is read again too.
        duplicates_bound=_TWICE * largest + math.ceil(per_s * seen.snapshot_period_s),
        duplicates_in_table=seen.rows - count(in_table),
        resent=seen.resent,
        largest_batch=largest,
        records_per_s=per_s,
        first_through_s=_first_through_s(seen),
        last_through_s=_last_through_s(seen, early, lost),
    )


def _all_record_ids(commits: Iterable[Commit]) -> dict[DeviceStream, IntervalSet]:
    bounds: dict[DeviceStream, list[tuple[int, int]]] = {}
    for commit in commits:
        for stream, seqs in commit.record_ids.items():
            bounds.setdefault(stream, []).extend(seqs.ranges)
    return {stream: IntervalSet(ranges) for stream, ranges in bounds.items()}


def _traffic(seen: DrillObservations, early: Sequence[SeenRange]) -> tuple[int, float]:
    """The largest of the last micro-batches, and the records acknowledged each second of steady traffic."""
    before = [batch for batch in seen.batches if batch.at_s <= seen.lost_at_s]
    batches = [batch.records for batch in before[-_RECENT:] if batch.records]
    steady = record_ids_of(batch for batch in early if seen.steady_from_s <= batch.at_s <= seen.lost_at_s)
    lasted_s = seen.lost_at_s - seen.steady_from_s
    return max(batches, default=0), count(steady) / lasted_s if lasted_s > 0 else 0.0


def _age_s(early: Sequence[SeenRange], waiting: RecordIds, now_s: float) -> float:
    """How long ago the oldest of the waiting records was acknowledged; 0 when none waits."""
    ages = (now_s - one.at_s for one in early if IntervalSet([(one.first, one.last)]) & _of(waiting, one.stream))
    return max(ages, default=0.0)


def _first_through_s(seen: DrillObservations) -> float:
    """Until a record that was acknowledged after the clock began was in the table."""
    fresh = record_ids_of(one for one in seen.receipts if one.at_s > seen.counted_at_s and one.stream in seen.affected)
    for commit in _in_order(seen.commits):
        if commit.at_s > seen.counted_at_s and common(fresh, commit.record_ids):
            return commit.at_s - seen.counted_at_s
    return math.inf


def _last_through_s(seen: DrillObservations, early: Sequence[SeenRange], lost: RecordIds) -> float:
    """Until every record that was under way at the loss was in the table; those that are lost for good left out."""
    under_way = minus(record_ids_of(one for one in early if one.stream in seen.affected), lost)
    last_s = seen.counted_at_s
    for commit in _in_order(seen.commits):
        if not under_way:
            break
        if common(under_way, commit.record_ids):
            under_way = minus(under_way, commit.record_ids)
            last_s = max(last_s, commit.at_s)
    return math.inf if under_way else last_s - seen.counted_at_s


def _in_order(commits: Iterable[Commit]) -> list[Commit]:
    return sorted(commits, key=lambda commit: commit.at_s)


def _of(seqs: RecordIds, stream: DeviceStream) -> IntervalSet:
    return seqs.get(stream, IntervalSet())
