"""Batches as devices send them, and as messages of Pulsar in Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

import pyarrow as pa

from tests.cloud_jobs.ingest.test_decoding import MESSAGES
from waybill.record import Batch, Position, Record, encode

TENANT = "acme"
EPOCH = 7


def fixes(device: str, first: int, count: int, start_us: int) -> bytes:
    """A batch of `count` fixes, one a second, whose seqs begin with `first`; seq 0 would be made at `start_us`."""
    records = tuple(
        Record(seq, start_us + seq * 1_000_000, Position(latitude=53 + seq * 1e-5, longitude=-2.5, speed_mps=9.5))
        for seq in range(first, first + count)
    )
    return encode(Batch(device, EPOCH, first + count - 1, records))


def fleet(devices: int, batches: int, size: int, *, first: int = 1, start_us: int) -> Iterator[tuple[str, bytes]]:
    """Devices and their batches: each device in turn, `batches` times round."""
    for number in range(batches):
        for device in range(devices):
            name = f"eu-{device:05}"
            yield name, fixes(name, first + number * size, size, start_us)


def as_messages(values: Iterable[bytes]) -> pa.Table:
    shared = {"properties": [("tenant", TENANT), ("region", "eu")], "publish_time": datetime.now(UTC), "topic": "t"}
    rows = [shared | {"value": value, "message_id": str(at)} for at, value in enumerate(values)]
    return pa.Table.from_pylist(rows, schema=MESSAGES)
