"""Watches what one cluster holds, and since when: readers that leave no trace on the broker."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

import pulsar
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from cloud_jobs.lake.coverage import DeviceStream
from deploy.drill.record_ids import SeenRange
from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client
from waybill.record import WireError, read_header

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
