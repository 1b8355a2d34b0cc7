"""What an MQTT 5 session asks of its broker, and how much of what comes is held at once."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RECEIVE_BYTES", "TRUNCATED_BYTES", "TRUNCATED_PAYLOAD_BYTES", "MqttSessionOptions"]

RECEIVE_BYTES = 1 << 16
TRUNCATED_BYTES = 128 << 10
"""Kept of a packet that is too large while it comes: room for the longest topic."""
TRUNCATED_PAYLOAD_BYTES = 512
"""Kept of the payload of a message that is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttSessionOptions:
    """What a session asks of its broker.

    A broker silently drops what is larger than CONNECT's Maximum Packet Size. With `truncates_larger` none is set:
    of a larger packet than `max_packet_bytes` TRUNCATED_PAYLOAD_BYTES of the payload and the size of the rest are kept.
    `keeps_session`: for ever; else it ends with its connection. A time between may end Mosquitto (docs/security.md).
    `receive_bytes`: what is read from the socket before packets are looked at. Who is sent much reads more at once.
    """

    client_id: str
    keeps_session: bool = False
    receive_maximum: int = 1000
    max_packet_bytes: int = 16 << 20
    truncates_larger: bool = False
    receive_bytes: int = RECEIVE_BYTES
