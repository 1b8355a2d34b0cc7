"""Directly to the Pulsar cluster of a region, for large sites. Needs the extra `edge-pulsar`."""

from __future__ import annotations

import time
from queue import Empty, Queue
from typing import Any

import pulsar

from edge_agent.config import DeviceSettings, UplinkSettings
from edge_agent.errors import LinkError
from edge_agent.uplink.protocol import HeartbeatAnswered, OutgoingBatch, RefusedBatch, UplinkEvent
from waybill.daemon.tls import tls_context
from waybill.pulsar.pulsar_client import PulsarAccess, open_pulsar_client
from waybill.record import Ack, RefusalReason

MAX_PENDING = 1024
BYTES_A_MESSAGE = 200
"""Frame, command, metadata and properties of a message, and the receipt, beside its payload."""


class PulsarUplink:
    """See Uplink. A receipt of the cluster is the acknowledgement; properties and key are those the gateway gives."""

    def __init__(self, device: DeviceSettings, settings: UplinkSettings) -> None:
        self.region = settings.region
        self._device = device
        self._settings = settings
        # Not a SimpleQueue: CPython's may wait for ever where a short time-out has passed before it looks again.
        self._events: Queue[Ack | HeartbeatAnswered | RefusedBatch | LinkError | None] = Queue()
        self._client: Any = None
        self._producer: Any = None
        self._sent = self._received = 0

    def open(self) -> None:
        """See Uplink."""
        settings = self._settings
        timeout_s = max(1, int(settings.connect_timeout_s))
        assert settings.service_url is not None  # the settings' own check: this is a Pulsar uplink
        access = self._access()
        try:
            self._client = open_pulsar_client(settings.service_url, access, timeout_s=timeout_s)
            self._producer = self._client.create_producer(
                settings.topic,
                send_timeout_millis=timeout_s * 1000,
                max_pending_messages=MAX_PENDING,
                # The drain's thread must not wait in here: a full queue is an error of the link.
                block_if_queue_full=False,
                batching_enabled=False,
            )
        except (pulsar.PulsarException, ValueError) as error:
            raise LinkError(f"{settings.service_url}: {access.token_problem(time.time()) or error}") from error

    def send(self, batch: OutgoingBatch) -> None:
        """See Uplink."""
        properties = {
            "tenant": self._device.tenant,
            "device": self._device.id,
            "epoch": str(batch.epoch),
            "region": self.region,
        }
        self._sent += len(batch.data) + BYTES_A_MESSAGE

        def receipt(result: Any, _message_id: Any) -> None:
            # In the client's own thread: it only puts.
            if result == pulsar.Result.Ok:
                self._events.put(Ack(batch.epoch, batch.seqs) if batch.seqs else HeartbeatAnswered())
            elif result == pulsar.Result.MessageTooBig:
                self._events.put(
                    RefusedBatch(RefusalReason.TOO_LARGE, batch.epoch, batch.seqs, is_too_large_to_send=True)
                )
            else:
                self._events.put(LinkError(f"{self._settings.service_url}: {result}"))

        try:
            self._producer.send_async(batch.data, receipt, partition_key=self._device.id, properties=properties)
        except pulsar.PulsarException as error:
            raise LinkError(f"{self._settings.service_url}: {error}") from error

    def report(self, text: bytes) -> None:
        """See Uplink. A cluster has no ear for this."""

    def ask_certificate(self, request: bytes) -> None:
        """See Uplink. A cluster has no authority."""

    def poll(self, timeout_s: float) -> list[UplinkEvent]:
        """See Uplink."""
        events: list[UplinkEvent] = []
        until_s = time.monotonic() + timeout_s
        while True:
            try:
                event = self._events.get(timeout=max(0.0, until_s - time.monotonic()))
            except Empty:
                return events
            if isinstance(event, LinkError):
                raise event
            if event is not None:
                self._received += BYTES_A_MESSAGE
                events.append(event)
            # Something came: the others are taken as they are, without another wait.
            until_s = time.monotonic()

    def wake(self) -> None:
        """See Uplink."""
        self._events.put(None)

    def wire_bytes(self) -> tuple[int, int]:
        """See Uplink. The library keeps its connection to itself, so this is an estimate."""
        return self._sent, self._received

    def close(self) -> None:
        """See Uplink."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except pulsar.PulsarException:
                # Lets go of everything without waiting for the brokers.
                client.shutdown()

    def _access(self) -> PulsarAccess:
        tls = self._settings.tls
        try:
            if tls is not None:
                tls_context(tls)  # for its refusals: of such files the client would say only that it cannot connect
        except (OSError, ValueError) as error:
            raise LinkError(f"certificates cannot be loaded: {error}") from error
        return PulsarAccess.of_tls(tls, token_file=self._settings.token_file)
