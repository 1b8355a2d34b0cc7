"""Moves the durable subscription's cursor: the position that travels to the other clusters."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pulsar
import structlog

from cloud_jobs.pulsar_source.clients import durable_consumer
from cloud_jobs.pulsar_source.errors import PulsarSourceError
from cloud_jobs.pulsar_source.message_ids import id_of
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.position import WHOLE_ENTRY, Position

_log = structlog.get_logger(__name__)
_PARALLEL = 8


def acknowledge(cluster: Cluster, options: PulsarOptions, ends: Mapping[str, Position]) -> dict[str, Position]:
    """Acknowledges each topic partition cumulatively up to its position; returns those that the broker took.

    One that fails is logged and left: the next acknowledgement is cumulative and takes it along.
    """
    done: dict[str, Position] = {}
    with ThreadPoolExecutor(max_workers=_PARALLEL) as pool:
        futures = {topic: pool.submit(_acknowledge_one, cluster, options, topic, end) for topic, end in ends.items()}
        for topic, future in futures.items():
            try:
                future.result()
                done[topic] = ends[topic]
            except (PulsarSourceError, pulsar.PulsarException) as error:
                _log.warning("acknowledgement_left", cluster=cluster.name, topic=topic, error=str(error))
    return done


def _acknowledge_one(cluster: Cluster, options: PulsarOptions, topic: str, end: Position) -> None:
    place = whole_entries(end)
    if place.entry < 0:
        return
    with durable_consumer(cluster, options, topic, queue=1, wait_s=options.operation_timeout_seconds) as consumer:
        consumer.acknowledge_cumulative(id_of(place))


def whole_entries(position: Position) -> Position:
    """The position one entry back when it ends inside an entry: the broker's cursor moves by whole entries."""
    return position if position.batch == WHOLE_ENTRY else Position(position.ledger, position.entry - 1)
