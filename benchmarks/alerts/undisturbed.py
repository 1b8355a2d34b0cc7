"""What one evaluation that nobody disturbs finds in all batches of the region's topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pulsar

from benchmarks.alerts.servers import BATCHES, REGION, TENANT
from benchmarks.alerts.streets import features
from deploy.local import LocalStack
from gateway.alerts.config import ReportedTracks
from gateway.alerts.evaluation import AlertRules, LiveEvents
from gateway.alerts.fixes import FixColumns
from gateway.alerts.partition_evaluation import ReadBatch, parts_of, read_batch
from geo.spatial import FenceSet, GateSet, PublishedEventSettings, fences_from_geojson
from waybill.identity.sealing import Unsealer
from waybill.pulsar.pulsar_client import open_pulsar_client

_OPERATION_S = 30
_READ_MS = 10_000


class Undisturbed(NamedTuple):
    """The ids of all events, of how many fixes, and in which partition each device is."""

    ids: set[str]
    fixes: int
    partition_of: dict[str, str]


def undisturbed(stack: LocalStack, timed: int) -> Undisturbed:
    """Reads the topic from its beginning to its end, and evaluates all of it."""
    report = fences_from_geojson(json.dumps({"type": "FeatureCollection", "features": features(timed)}))
    rules = AlertRules(FenceSet(report.fences), GateSet(report.gates), ReportedTracks(), PublishedEventSettings())
    ids: set[str] = set()
    fixes, partition_of = 0, dict[str, str]()
    client = open_pulsar_client(stack.pulsar[REGION].service_url, stack.access(), timeout_s=_OPERATION_S)
    try:
        for partition in client.get_topic_partitions(BATCHES):
            live = LiveEvents(rules)
            for part in parts_of(_read(client, partition)):
                partition_of.update((batch[1].header.device, partition) for batch in part.batches)
                columns = FixColumns.of(part.batches)
                fixes += len(columns)
                ids.update(one.id for one in live.take(columns, part.messages[-1].publish_timestamp()))
    finally:
        client.close()
    return Undisturbed(ids, fixes, partition_of)


def _read(client: Any, partition: str) -> Iterator[tuple[Any, ReadBatch]]:
    reader, unsealer, tenants = (
        client.create_reader(partition, pulsar.MessageId.earliest),
        Unsealer.of_folder(None),
        frozenset({TENANT}),
    )
    while reader.has_message_available():
        message = reader.read_next(timeout_millis=_READ_MS)
        tenant, columns = read_batch(message.data(), message.properties(), tenants=tenants, unsealer=unsealer)
        yield message, (tenant, columns, message.publish_timestamp())
