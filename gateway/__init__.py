"""The regional gateway: batches from the MQTT broker to Pulsar, acknowledged to devices after Pulsar's receipt."""

from gateway.config import GatewaySettings
from gateway.engine import Engine, NotSent, Produce, SendAck
from gateway.errors import BrokerUnreachable, GatewayError, NoAnswer, PulsarUnreachable
from gateway.service import Service
from gateway.status import GatewayStatus, read_status

__all__ = [
    "BrokerUnreachable",
    "Engine",
    "GatewayError",
    "GatewaySettings",
    "GatewayStatus",
    "NoAnswer",
    "NotSent",
    "Produce",
    "PulsarUnreachable",
    "SendAck",
    "Service",
    "read_status",
]
