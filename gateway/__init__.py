"""The regional gateway: batches from the MQTT broker to Pulsar, acknowledged to devices after Pulsar's receipt."""

from gateway.config import GatewaySettings
from gateway.engine import Engine, NotSent, Produce, SendAck
from gateway.service import Service
from gateway.status import GatewayStatus, read_status

__all__ = [
    "Engine",
    "GatewaySettings",
    "GatewayStatus",
    "NotSent",
    "Produce",
    "SendAck",
    "Service",
    "read_status",
]
