"""Counts of a drill, from the observations at each station, and the reader of arrivals.

The stations of a record: its device has a *receipt* (the region's Pulsar persisted it, so the device may delete it); it
has an *arrival* in the surviving cluster; a *commit* brings it into the central table.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import pulsar
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from cloud_jobs.lake.coverage import DeviceStream
from waybill.daemon.process import close_within
from waybill.pulsar.pulsar_client import PulsarAccess, close_quietly, open_pulsar_client
from waybill.record import IntervalSet, WireError, read_header

# Sets of records by buffer. Pure.

RecordIds = Mapping[DeviceStream, IntervalSet]
_NONE = IntervalSet()


class SeenRange(NamedTuple):
    """The records `first` to `last` of a buffer, seen at one station at a time (seconds since 1970)."""

    at_s: float
    stream: DeviceStream
    first: int
    last: int


def record_ids_of(seen: Iterable[SeenRange]) -> dict[DeviceStream, IntervalSet]:
    bounds: dict[DeviceStream, list[tuple[int, int]]] = defaultdict(list)
    for one in seen:
        bounds[one.stream].append((one.first, one.last))
    return {stream: IntervalSet(ranges) for stream, ranges in bounds.items()}


def union(left: RecordIds, right: RecordIds) -> dict[DeviceStream, IntervalSet]:
    return {stream: left.get(stream, _NONE) | right.get(stream, _NONE) for stream in {*left, *right}}


def minus(left: RecordIds, right: RecordIds) -> dict[DeviceStream, IntervalSet]:
    rest = {stream: seqs - right.get(stream, _NONE) for stream, seqs in left.items()}
    return {stream: seqs for stream, seqs in rest.items() if seqs}


def common(left: RecordIds, right: RecordIds) -> dict[DeviceStream, IntervalSet]:
    both = {stream: seqs & right.get(stream, _NONE) for stream, seqs in left.items()}
    return {stream: seqs for stream, seqs in both.items() if seqs}


def count(seqs: RecordIds) -> int:
    return sum(one.count for one in seqs.values())


# Readers of one cluster that leave no trace on the broker.

_OPERATION_S = 15
# after a loss topics are found again by the client's own retries
_TIMEOUT_S = 120.0
_CLOSE_S = 5.0


class Follower:
    """Notes each batch that arrives in a cluster while the follower is open.

    The time is that of the delivery to this process, which is never earlier than the arrival.
    """

    def __init__(self, service_url: str, topics: Sequence[str], access: PulsarAccess) -> None:
        self.arrivals: list[SeenRange] = []
        self._client = open_pulsar_client(service_url, access, timeout_s=_OPERATION_S)
        # A cluster that just came back is healthy before it has loaded its topics.
        patiently = Retrying(
            retry=retry_if_exception_type(pulsar.PulsarException),
            stop=stop_after_delay(_TIMEOUT_S),
            wait=wait_fixed(1),
            reraise=True,
        )
        self._readers = [
            patiently(self._client.create_reader, partition, pulsar.MessageId.latest, reader_listener=self._on_message)
            for topic in topics
            for partition in patiently(self._client.get_topic_partitions, topic)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        close_within([partial(close_quietly, self._client)], _CLOSE_S)

    def _on_message(self, _: Any, message: Any) -> None:
        # Before the header is read: the time must be that of the arrival.
        at_s = time.time()
        try:
            header = read_header(message.data())
        except WireError:
            return  # not a batch of ours: the ingest puts it in quarantine
        stream = DeviceStream(message.properties().get("tenant", ""), header.device, header.epoch)
        self.arrivals.extend(SeenRange(at_s, stream, first, last) for first, last in header.record_seqs.ranges)


SNAPSHOT_PERIOD_S = 1.0
"""The time between two snapshots of the cursors, as the stack's brokers have it."""
FIRST_WITHIN_S = 15.0
"""How long after the loss the first record must be through."""
_TWICE = 2
"""How many micro-batches may come a second time: the one under way, and the one whose end was not yet committed."""
_RECENT = 3
"""Of how many micro-batches before the loss the largest counts."""


class Commit(NamedTuple):
    """One commit to the records table: its time, and the records in its files."""

    at_s: float
    record_ids: RecordIds


class BatchCounts(NamedTuple):
    """One row of the ingest's counts: records read, and how many of them were duplicates."""

    at_s: float
    records: int
    duplicates: int


@dataclass(frozen=True, kw_only=True)
class DrillObservations:
    """All observations of one drill; times in seconds since 1970.

    `receipts` and `arrivals`: in the order of time. `rows`: rows of the central table with ids of this drill.
    `steady_from_s` to `lost_at_s`: the traffic before the loss is measured here. `counted_at_s`: the time to the first
    record counts from here, which is the loss, or the repair of a link. `replicated_until_s`: arrivals at the survivor
    up to this time count as replicated. `affected`: the devices whose first record is timed.
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
    affected: Collection[DeviceStream]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """The counts of one drill, in records. `first_through_s` is infinite when no record came through."""

    acknowledged: int
    in_table: int
    lost: int
    lost_of_replicated: int
    not_replicated: int
    duplicates_before: int
    duplicates_bound: int
    duplicates_in_table: int
    first_through_s: float

    @property
    def passed(self) -> bool:
        return (
            self.lost_of_replicated == 0
            and self.duplicates_in_table == 0
            and self.duplicates_before <= self.duplicates_bound
            and self.first_through_s <= FIRST_WITHIN_S
        )


def compute_findings(seen: DrillObservations) -> Findings:
    acknowledged = record_ids_of(seen.receipts)
    in_table: dict[DeviceStream, IntervalSet] = {}
    for commit in seen.commits:
        in_table = union(in_table, commit.record_ids)
    lost = minus(acknowledged, in_table)
    replicated = record_ids_of(one for one in seen.arrivals if one.at_s <= seen.replicated_until_s)
    early = [one for one in seen.receipts if one.at_s <= seen.counted_at_s]
    return Findings(
        acknowledged=count(acknowledged),
        in_table=count(common(in_table, acknowledged)),
        lost=count(lost),
        lost_of_replicated=count(common(lost, replicated)),
        not_replicated=count(minus(record_ids_of(early), replicated)),
        duplicates_before=sum(batch.duplicates for batch in seen.batches),
        duplicates_bound=_duplicates_bound(seen, early),
        duplicates_in_table=seen.rows - count(in_table),
        first_through_s=_first_through_s(seen),
    )


def _duplicates_bound(seen: DrillObservations, early: Sequence[SeenRange]) -> int:
    """Two of the last micro-batches, and a snapshot period of steady traffic.

    The cursor in the other cluster is as old as the last snapshot: the records since then are read again too.
    """
    before = [batch.records for batch in seen.batches if batch.at_s <= seen.lost_at_s and batch.records]
    largest = max(before[-_RECENT:], default=0)
    steady = count(record_ids_of(one for one in early if seen.steady_from_s <= one.at_s <= seen.lost_at_s))
    steady_s = seen.lost_at_s - seen.steady_from_s
    per_s = steady / steady_s if steady_s > 0 else 0.0
    return _TWICE * largest + math.ceil(per_s * SNAPSHOT_PERIOD_S)


def _first_through_s(seen: DrillObservations) -> float:
    """Until a record that was acknowledged after `counted_at_s` was in the table."""
    since_s = seen.counted_at_s
    fresh = record_ids_of(one for one in seen.receipts if one.at_s > since_s and one.stream in seen.affected)
    through = (one.at_s for one in seen.commits if one.at_s > since_s and common(fresh, one.record_ids))
    return min(through, default=math.inf) - since_s
