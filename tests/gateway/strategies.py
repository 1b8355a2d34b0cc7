"""Settings and batches for the gateway's tests."""

from typing import Any

from gateway.config import GatewaySettings
from gateway.engine import Engine
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import Batch, Canary, Record, Tombstone, encode


def settings(**changes: Any) -> GatewaySettings:
    """All share the Pulsar tenant `fleet`, unless `tenants` are named; then each has its own."""
    shared = {} if "tenants" in changes else {"tenant": "fleet"}
    base = {
        "name": "gateway-eu-1",
        "region": "eu",
        "insecure": True,
        "mqtt": {"host": "127.0.0.1", "receive_maximum": 8},
    }
    pulsar = {"service_url": "pulsar://127.0.0.1:6650", **shared, **changes.get("pulsar", {})}
    return GatewaySettings.model_validate(base | changes | {"pulsar": pulsar})


def engine(**changes: Any) -> Engine:
    return Engine(settings(**changes), jitter=lambda: 0.5)


def batch(device: str, first: int, last: int, *, epoch: int = 1, lost: tuple[int, int] | None = None) -> bytes:
    tombstones = (Tombstone(*lost, "quota"),) if lost else ()
    records = tuple(Record(seq, 0, Canary(id="c")) for seq in range(first, last + 1))
    return encode(Batch(device, epoch, max(last, lost[1] if lost else 0), records, tombstones))


def topic(device: str, tenant: str = "fleet") -> str:
    return f"waybill/1/{tenant}/{device}/batch"


def message(topic: str, payload: bytes, mid: int = 1) -> MqttMessage:
    """As the broker delivers it with QoS 1."""
    return MqttMessage(mid, 1, False, topic, payload)
