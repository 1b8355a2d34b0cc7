"""The regional front door: batches from the MQTT broker into Pulsar, acknowledged to the devices once they are safe."""

from gateway.config import GatewaySettings
from gateway.engine import Engine, NotSent, Produce, SendAck
from gateway.errors import AddressTaken, BrokerUnreachable, GatewayError, NoAnswer, PulsarUnreachable, ThreadEnded
from gateway.service import Service
from gateway.status import GatewayStatus, read_status

__all__ = [
    "AddressTaken",
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
    "ThreadEnded",
    "read_status",
]
