"""The uplink to a region's gateway, over the region's MQTT 5 broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from edge_agent.config import DeviceSettings, UplinkSettings
from edge_agent.errors import LinkError
from edge_agent.uplink.mqtt_session import MqttSession
from edge_agent.uplink.protocol import (
    CertificateAnswer,
    HeartbeatAnswered,
    MalformedControl,
    NoGateway,
    OutgoingBatch,
    PushedSettings,
    RefusedBatch,
    UplinkEvent,
)
from waybill.mqtt.mqtt_client import NO_MATCHING_SUBSCRIBERS, MqttMessage, MqttSessionOptions
from waybill.record import (
    Ack,
    DeviceChannel,
    EnrolmentChannel,
    Malformed,
    RefusalReason,
    decode_ack,
    device_topic,
    enrolment_topic,
)

CONTROL_PACKET_BYTES = 320 << 10
"""The largest packet that we take from the gateway: room for the largest acknowledgement, and its topic."""
PUBLISH_BYTES = 256
"""Upper bound of a PUBLISH packet without its payload: names of tenant and device have at most 63 letters."""


class MqttUplink:
    """Sends batches on the channel `batch` of the device's topics and receives acknowledgements on `ack`."""

    def __init__(
        self,
        device: DeviceSettings,
        settings: UplinkSettings,
        *,
        is_enrolled: bool = False,
        on_opened: Callable[[bool], None] = lambda _worked: None,
    ) -> None:
        """`is_enrolled`: the certificate may be renewed over this uplink. `on_opened` is told whether `open` worked."""
        self.region = settings.region
        self._on_opened = on_opened
        name = f"{device.tenant}/{device.id}"
        self._certificates = {one: enrolment_topic(name, one) for one in EnrolmentChannel} if is_enrolled else {}
        self._topics = {channel: device_topic(device.tenant, device.id, channel) for channel in DeviceChannel}
        self._channels = {topic: channel for channel, topic in self._topics.items()}
        self._events: list[UplinkEvent] = []
        self._are_heartbeats: deque[bool] = deque()
        options = MqttSessionOptions(
            # the broker knows clients by this alone, and another tenant may have a device of that name
            client_id=f"{device.tenant}/{device.id}",
            max_packet_bytes=CONTROL_PACKET_BYTES,
        )
        self._session = MqttSession(settings, options, self._receive)

    def open(self) -> None:
        try:
            self._session.open()
        except LinkError:
            self._on_opened(False)
            raise
        self._on_opened(True)
        self._session.subscribe(self._topics[DeviceChannel.ACK])
        self._session.subscribe(self._topics[DeviceChannel.CONFIG])
        if self._certificates:
            self._session.subscribe(self._certificates[EnrolmentChannel.ANSWER])

    def send(self, batch: OutgoingBatch) -> None:
        """Refuses a batch that is too large for the broker, which would end the connection."""
        if len(batch.data) + PUBLISH_BYTES > self._session.max_packet_bytes:
            reason = RefusalReason.LARGER_THAN_THE_BROKER_TAKES
            self._events.append(RefusedBatch(reason, batch.epoch, batch.seqs))
        else:
            self._session.publish(self._topics[DeviceChannel.BATCH], batch.data)
            self._are_heartbeats.append(not batch.seqs)

    def report(self, text: bytes) -> None:
        self._session.publish(self._topics[DeviceChannel.CONFIG_RESULT], text)

    def ask_certificate(self, request: bytes) -> None:
        if self._certificates:
            self._session.publish(self._certificates[EnrolmentChannel.REQUEST], request)

    def poll(self, timeout_s: float) -> list[UplinkEvent]:
        self._session.poll(timeout_s)
        for topic, reason in self._session.take_publish_results():
            if reason.is_failure and topic != self._certificates.get(EnrolmentChannel.REQUEST):
                raise LinkError(f"{self.region}: the broker refuses batches: {reason}")
            if topic != self._topics[DeviceChannel.BATCH]:
                continue
            # A broker answers in the order of the messages (MQTT 5, 4.6).
            if self._are_heartbeats.popleft():
                self._events.append(HeartbeatAnswered())
            elif reason.value == NO_MATCHING_SUBSCRIBERS:
                self._events.append(NoGateway())
        events, self._events = self._events, []
        return events

    def wake(self) -> None:
        self._session.wake()

    def wire_bytes(self) -> tuple[int, int]:
        return self._session.wire_bytes()

    def close(self) -> None:
        self._session.close()

    def _receive(self, message: MqttMessage) -> None:
        if message.topic == self._certificates.get(EnrolmentChannel.ANSWER):
            self._events.append(CertificateAnswer(message.payload))
        else:
            self._events.extend(control_events(self._channels.get(message.topic, message.topic), message.payload))
        # Unreadable messages too: without a PUBACK they would come again with every connection.
        self._session.acknowledge(message.mid)


def control_events(source: str, payload: bytes) -> list[UplinkEvent]:
    """The content of a gateway's message. `source`: its channel, or its topic. Never raises: the message would come
    again.
    """
    try:
        if source == DeviceChannel.CONFIG:
            return [PushedSettings(payload)]
        if source == DeviceChannel.ACK:
            return _acknowledgement(payload)
        return [MalformedControl(source, "a topic that was not subscribed to")]
    except Malformed as error:
        return [MalformedControl(source, str(error))]
    except Exception as error:  # noqa: BLE001 - see above
        return [MalformedControl(source, repr(error))]


def _acknowledgement(payload: bytes) -> list[UplinkEvent]:
    ack = decode_ack(payload)
    if not ack.refusal:
        return [ack]
    pause: list[UplinkEvent] = [Ack(pause_s=ack.pause_s)] if ack.pause_s else []
    return [RefusedBatch(ack.refusal, ack.epoch, ack.seqs), *pause]
