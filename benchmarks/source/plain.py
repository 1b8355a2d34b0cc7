"""Plain Python readers: what the source is measured against. One process for each partition, all at once."""

import multiprocessing
import time
from typing import Any

import pulsar

from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client

OPERATION_S = 30
_barrier: Any = None


def plain_rate(
    service_url: str, access: PulsarAccess, partitions: list[str], messages: int, value_bytes: int, *, everything: bool
) -> float:
    """Messages a second from the first reader's start to the last one's end, without the start of the processes.

    `everything`: take all that the source has columns for, not the value alone.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(partitions))
    with context.Pool(len(partitions), initializer=_remember, initargs=(barrier,)) as pool:
        work = [(service_url, access, partition, value_bytes, everything) for partition in partitions]
        spans = pool.starmap_async(_read, work, chunksize=1).get(timeout=300)
    assert sum(count for count, *_ in spans) == messages
    return messages / (max(end for *_, end in spans) - min(start for _, start, _ in spans))


def _remember(barrier: Any) -> None:
    global _barrier  # noqa: PLW0603  # how a pool hands its workers something
    _barrier = barrier


def _read(
    service_url: str, access: PulsarAccess, partition: str, value_bytes: int, everything: bool
) -> tuple[int, float, float]:
    client = open_pulsar_client(service_url, access, timeout_s=OPERATION_S)
    _barrier.wait(60)
    start = time.time()
    reader = client.create_reader(partition, pulsar.MessageId.earliest)
    count = size = 0
    while reader.has_message_available():
        # What a good plain reader does: ask now and then, not before each message.
        for _ in range(1000):
            try:
                message = reader.read_next(timeout_millis=100)
            except pulsar.Timeout:
                break
            size += len(message.data())
            count += 1
            if everything:
                _take(message)
    end = time.time()
    client.close()
    assert size == count * value_bytes
    return count, start, end


def _take(message: pulsar.Message) -> tuple[object, ...]:
    place = message.message_id()
    return (
        message.partition_key(),
        message.properties(),
        message.publish_timestamp(),
        message.event_timestamp(),
        message.topic_name(),
        f"{place.ledger_id()}:{place.entry_id()}:{place.partition()}:{place.batch_index()}",
        message.producer_name(),
    )
