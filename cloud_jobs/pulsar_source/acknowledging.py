"""Moves the durable subscription's cursor: the position that travels to the other clusters.

Only an acknowledgement of a consumer of the subscription takes a replicated position along, and the consumers belong to
the tasks while a batch is read. So each commit opens a consumer for each partition that has moved, acknowledges and
leaves; all at once, because each step is a wait for the broker.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import pulsar
import pulsar.asyncio
import structlog
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from cloud_jobs.pulsar_source.clients import kept_client, subscription_settings
from cloud_jobs.pulsar_source.message_ids import id_of
from cloud_jobs.pulsar_source.options import Cluster, PulsarOptions
from cloud_jobs.pulsar_source.position import WHOLE_ENTRY, Position

_log = structlog.get_logger(__name__)
_AT_ONCE = 500
"""How many partitions have a consumer of ours at one moment."""


class _SharedClient(pulsar.asyncio.Client):  # type: ignore[misc]  # untyped here
    """The asynchronous calls of a client that is there already, over its connections."""

    def __init__(self, client: Any) -> None:
        self._client = client._client  # noqa: SLF001


def acknowledge(cluster: Cluster, options: PulsarOptions, ends: Mapping[str, Position]) -> dict[str, Position]:
    """Acknowledges each topic partition cumulatively up to its position; returns those that the broker took.

    Those that fail are logged and left: the next acknowledgement is cumulative and takes them along.
    """
    errors = asyncio.run(_acknowledge_all(cluster, options, ends))
    if failed := {topic: error for topic, error in zip(ends, errors, strict=True) if error is not None}:
        topic, error = next(iter(failed.items()))
        _log.warning(
            "acknowledgements_left", cluster=cluster.name, topics=len(failed), first_topic=topic, first_error=error
        )
    return {topic: end for topic, end in ends.items() if topic not in failed}


async def _acknowledge_all(cluster: Cluster, options: PulsarOptions, ends: Mapping[str, Position]) -> list[str | None]:
    client, slots = _SharedClient(kept_client(cluster, options)), asyncio.Semaphore(_AT_ONCE)

    async def acknowledge_one(topic: str, place: Position) -> str | None:
        if place.entry < 0:
            return None
        try:
            async with slots:
                consumer = await _subscribed(client, options, topic)
                try:
                    await consumer.acknowledge_cumulative(id_of(place))
                finally:
                    await consumer.close()
        except pulsar.asyncio.PulsarException as error:
            return str(error)
        return None

    return await asyncio.gather(*(acknowledge_one(topic, whole_entries(end)) for topic, end in ends.items()))


async def _subscribed(client: _SharedClient, options: PulsarOptions, topic: str) -> Any:
    """Waits for a task that is being cancelled and holds the subscription still."""
    attempts = AsyncRetrying(
        retry=retry_if_exception(_is_busy),
        stop=stop_after_delay(options.operation_timeout_seconds),
        wait=wait_exponential_jitter(multiplier=0.05, max=1.0, jitter=0.05),
        reraise=True,
    )
    # One message of room: what the broker sends is not read here.
    settings = subscription_settings(options) | {"receiver_queue_size": 1}
    return await attempts(client.subscribe, topic, options.subscription_name(), **settings)


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, pulsar.asyncio.PulsarException) and error.error() == pulsar.Result.ConsumerBusy


def whole_entries(position: Position) -> Position:
    """The position one entry back when it ends inside an entry: the broker's cursor moves by whole entries."""
    return position if position.batch == WHOLE_ENTRY else Position(position.ledger, position.entry - 1)
