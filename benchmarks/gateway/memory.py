"""The memory and processor time of the parts of one gateway with 100,000 devices, without its connections."""

import resource
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from benchmarks.harness import Figure, print_figures
from gateway import Engine, GatewaySettings, Produce, Service
from gateway.metrics import GatewayMetrics
from gateway.registry_check import kept_of_entry
from gateway.status import DevicesHeard
from waybill.identity.operator_keys import OperatorKeys
from waybill.identity.publication_id import PROPERTY, next_publication_id
from waybill.identity.registry import Claim, DeviceChange, DeviceState, EnrolledCertificate, enrol, expect
from waybill.identity.registry_messages import check_by, entry_body, signed_by
from waybill.identity.registry_topic import DeviceRegistry, Taken
from waybill.identity.signatures import OperatorKey, trusted_key
from waybill.pulsar.compacted_topic import TopicMessage
from waybill.record import Batch, DeviceChannel, Position, Record, device_topic, encode, encode_ack

DEVICES = 100_000
_SIGNER = OperatorKey.generate()
RECORDS = 20
ROUNDS = 2
WINDOW = 256
LIMIT_MIB = 150


def batch(device: str, number: int) -> bytes:
    first = 1 + number * RECORDS
    begin_us, bodies = (
        1_700_000_000_000_000,
        (Position(latitude=50 + at * 1e-5, longitude=8.5) for at in range(RECORDS)),
    )
    records = tuple(Record(seq, begin_us + seq * 1_000_000, body, boot="b") for seq, body in enumerate(bodies, first))
    return encode(Batch(device, 7, first + RECORDS - 1, records))


def turn(
    engine: Engine, metrics: GatewayMetrics, devices: DevicesHeard, names: list[str], payloads: list[bytes]
) -> int:
    """One window of batches from the broker to Pulsar and back; how many acknowledgements were made."""
    now_s = time.monotonic()
    tokens = []
    for mid, (name, payload) in enumerate(zip(names, payloads, strict=True), start=1):
        order = engine.on_batch(device_topic("fleet", name, DeviceChannel.BATCH), payload, mid, now_s)
        assert isinstance(order, Produce)
        tokens.append(order.token)
    for token in tokens:
        delivery = engine.on_persisted(token, now_s)
        metrics.on_persisted([delivery], now_s)
        devices.on_heard(delivery.sender, now_s)
    messages = engine.take_due_acks(now_s, len(tokens))
    for message in messages:
        encode_ack(message.ack)
        metrics.on_acked(message.ack)
    assert len(engine.release()) == len(tokens)
    return len(messages)


def entries(names: list[str]) -> Iterator[TopicMessage]:
    change, sign, previous = DeviceChange(datetime.now(UTC), "operator", "measured"), signed_by(_SIGNER), None
    now_ms = time.time_ns() // 1_000_000
    issued = EnrolledCertificate(issuer="Waybill regional authority eu", serial="a" * 38, not_after=change.at)
    for name in names:
        entry = expect("fleet", name, region="eu", claim=Claim(id=name), change=change)
        entry = enrol(entry, issued, change)
        body, previous = entry_body(entry), next_publication_id(previous, now_ms, 1)
        yield TopicMessage(entry.name, body, {PROPERTY: previous, **sign(entry, body, previous, "")}, now_ms)


def read_registry(names: list[str]) -> DeviceRegistry[DeviceState]:
    """The registry as a gateway has it."""
    trusted = trusted_key(_SIGNER, "operator", tenants=("*",), kinds=("device",))
    registry, check = DeviceRegistry(kept_of_entry), check_by(OperatorKeys(keys={_SIGNER.key_id: trusted}))
    assert all(isinstance(registry.take(message, check), Taken) for message in entries(names))
    return registry


def main() -> bool:
    settings = GatewaySettings.model_validate(
        {
            "name": "gateway-eu-1",
            "region": "eu",
            "mqtt": {"host": "127.0.0.1", "receive_maximum": WINDOW},
            "pulsar": {"service_url": "pulsar://127.0.0.1:6650", "tenant": "fleet"},
            "drain": {"max_records_per_s": 1_000_000},
        }
    )
    process = Service(settings, lambda: settings.drain)  # the whole process: its imports and its parts
    assert process is not None
    now_s = time.monotonic()
    engine = Engine(settings, jitter=lambda: 0.5)
    metrics, devices = GatewayMetrics(), DevicesHeard(settings.status.max_devices)
    names = [f"vehicle-{number:06d}" for number in range(DEVICES)]
    registry, spent_s, batches = read_registry(names), 0.0, 0
    assert len(registry) == DEVICES
    for number in range(ROUNDS):
        for start in range(0, DEVICES, WINDOW):
            window = names[start : start + WINDOW]
            payloads = [batch(name, number) for name in window]
            began = time.process_time()
            batches += turn(engine, metrics, devices, window, payloads)
            spent_s += time.process_time() - began
    assert batches == ROUNDS * DEVICES
    devices.list_silent(now_s + 1e6, 1.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{DEVICES:,} devices, {batches:,} batches of {RECORDS} records")
    print(f"  processor time per batch    {spent_s / batches * 1e6:8.1f} us")
    met = peak < LIMIT_MIB
    return print_figures("Memory", [Figure("largest resident memory", f"{peak:.0f} MiB", f"< {LIMIT_MIB} MiB", met)])


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
