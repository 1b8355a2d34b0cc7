"""`make bench-gateway`: the memory and the processor time of one gateway with 100,000 devices.

The parts of a real gateway process (engine, acknowledgements, counters, devices, drain limit) in the order in which its
loop turns them, with Pulsar and the broker answering at once. Each device sends two batches of 20 positions.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil

from benchmarks.harness import Target, are_met
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


def resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / (1 << 20)


def batch(device: str, number: int) -> bytes:
    first = 1 + number * RECORDS
    records = tuple(
        Record(
            seq, 1_700_000_000_000_000 + seq * 1_000_000, Position(latitude=50 + seq * 1e-5, longitude=8.5), boot="b"
        )
        for seq in range(first, first + RECORDS)
    )
    return encode(Batch(device, 7, first + RECORDS - 1, records))


def windows(names: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), WINDOW):
        yield names[start : start + WINDOW]


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


def read_registry(names: list[str]) -> tuple[DeviceRegistry[DeviceState], float]:
    """The registry as a gateway has it, and the processor seconds that it took to check and take it."""
    trusted = trusted_key(_SIGNER, "operator", tenants=("*",), kinds=("device",))
    registry, check = DeviceRegistry(kept_of_entry), check_by(OperatorKeys(keys={_SIGNER.key_id: trusted}))
    spent_s = 0.0
    for message in entries(names):
        began = time.process_time()
        assert isinstance(registry.take(message, check), Taken)
        spent_s += time.process_time() - began
    return registry, spent_s


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
    bare = resident_mib()
    registry, checked_s = read_registry(names)
    assert len(registry) == DEVICES
    before, spent_s, batches = resident_mib(), 0.0, 0
    for number in range(ROUNDS):
        for window in windows(names):
            payloads = [batch(name, number) for name in window]
            began = time.process_time()
            batches += turn(engine, metrics, devices, window, payloads)
            spent_s += time.process_time() - began
    assert batches == ROUNDS * DEVICES
    began = time.process_time()
    devices.list_silent(now_s + 1e6, 1.0)
    silent_ms = (time.process_time() - began) * 1000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{DEVICES:,} devices, {batches:,} batches of {RECORDS} records")
    print(f"  resident before the devices {bare:8.1f} MiB, with the registry {before:8.1f} MiB")
    print(f"  registry entry, checked     {checked_s / DEVICES * 1e6:8.1f} us")
    print(f"  processor time per batch    {spent_s / batches * 1e6:8.1f} us")
    print(f"  list of silent devices      {silent_ms:8.1f} ms")
    # The parts of a gateway in one process, without its connections: those are in the memory that `speed` shows.
    return are_met([Target("largest resident memory", f"< {LIMIT_MIB} MiB", f"{peak:.0f} MiB", peak < LIMIT_MIB)])


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
