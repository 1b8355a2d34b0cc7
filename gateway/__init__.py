"""The regional front door: batches from the MQTT broker into Pulsar, acknowledged to the devices once they are safe."""

from gateway.config import GatewaySettings
from gateway.engine import Engine, Produce, Tell
from gateway.errors import AddressTaken, BrokerUnreachable, GatewayError, NoAnswer, PulsarUnreachable
from gateway.service import Service
from gateway.status import Status, read_status

__all__ = [
    "AddressTaken",
    "BrokerUnreachable",
    "Engine",
    "GatewayError",
    "GatewaySettings",
    "NoAnswer",
    "Produce",
    "PulsarUnreachable",
    "Service",
    "Status",
    "Tell",
    "read_status",
]
