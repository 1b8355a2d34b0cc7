"""When something became readable somewhere: alerts in a cluster, batches at the region's broker."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import pulsar
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.alerts.servers import ALERTS, REGION, TENANT
from deploy.local import LocalStack
from geo.alerts import Alert, decode_alert
from waybill.pulsar.pulsar_client import open_pulsar_client
from waybill.record import DeviceChannel, device_topic, read_header

_OPERATION_S = 30
Fix = tuple[str, int]
"""A device and the seq of one of its records."""


class ReadAlert(NamedTuple):
    """An alert, and when a reader had it (seconds since 1970)."""

    at_s: float
    alert: Alert


class AlertReader:
    """Reads the alerts that a cluster gets from now on."""

    def __init__(self, stack: LocalStack, cluster: str) -> None:
        self.arrivals: list[ReadAlert] = []
        self._client = open_pulsar_client(stack.pulsar[cluster].service_url, stack.access(), timeout_s=_OPERATION_S)
        self._client.create_reader(ALERTS, pulsar.MessageId.latest, reader_listener=self._on_message)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(pulsar.PulsarException):
            self._client.close()

    @property
    def ids(self) -> set[str]:
        """Of the alerts that came."""
        return {alert.id for _, alert in self.arrivals}

    @property
    def first_s(self) -> dict[Fix, float]:
        """When the first alert of each fix came."""
        found: dict[Fix, float] = {}
        for at_s, alert in self.arrivals:
            found.setdefault((alert.device, alert.seq), at_s)
        return found

    def _on_message(self, _: Any, message: Any) -> None:
        # First of all: the moment is that of the arrival.
        at_s = time.time()
        self.arrivals.append(ReadAlert(at_s, decode_alert(message.data())))


class TimedBatches:
    """Sees the batches of some devices at the region's broker, beside the gateway."""

    def __init__(self, stack: LocalStack, devices: Iterable[str]) -> None:
        self.first_s: dict[Fix, float] = {}
        self._subscribed = threading.Event()
        self._topics = [(device_topic(TENANT, one, DeviceChannel.BATCH), 0) for one in devices]
        files = stack.client_files(f"gateway@{REGION}-2", REGION)
        assert files is not None
        self._client = Client(CallbackAPIVersion.VERSION2, "observer", protocol=MQTTProtocolVersion.MQTTv5)
        context = ssl.create_default_context(cafile=files.ca)
        context.load_cert_chain(str(files.certificate), str(files.key))
        self._client.tls_set_context(context)
        self._client.on_message = self._on_message
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.connect("127.0.0.1", stack.brokers[REGION].port)

    def __enter__(self) -> Self:
        self._client.loop_start()
        self._client.subscribe(self._topics)
        assert self._subscribed.wait(_OPERATION_S), "the region's broker did not answer"
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _on_message(self, _: Any, __: Any, message: Any) -> None:
        at_s = time.time()
        header = read_header(message.payload)
        for first, last in header.record_seqs.ranges:
            for seq in range(first, last + 1):
                self.first_s.setdefault((header.device, seq), at_s)
