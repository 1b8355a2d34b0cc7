"""The regional front door: batches from the MQTT broker into Pulsar, acknowledged to the devices once they are safe."""

from gateway.config import GatewaySettings
from gateway.engine import Engine, NotSent, Produce, Tell
from gateway.errors import AddressTaken, BrokerUnreachable, GatewayError, NoAnswer, PulsarUnreachable, ThreadEnded
from gateway.service import Service
from gateway.status import Status, read_status

__all__ = [
    "AddressTaken",
    "BrokerUnreachable",
    "Engine",
    "GatewayError",
    "GatewaySettings",
    "NoAnswer",
    "NotSent",
    "Produce",
    "PulsarUnreachable",
    "Service",
    "Status",
    "Tell",
    "ThreadEnded",
    "read_status",
]
