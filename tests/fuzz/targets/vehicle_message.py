"""Messages of the vehicle's own broker, as the agent takes them in: the topic, a line end, and the payload."""

from __future__ import annotations

from collections.abc import Iterable

from edge_agent.intake.messages import LATEST_US, parse_message
from waybill.record import (
    VEHICLE_CANARY,
    VEHICLE_EVENT,
    VEHICLE_POSITION,
    VEHICLE_SIGNAL,
    Batch,
    Raw,
    Record,
    decode,
    encode,
)


def seeds() -> Iterable[bytes]:
    """One of each kind, and such as are of wrong types, deep, or at the edges of time and number."""
    for topic, payload in (
        (VEHICLE_POSITION, b'{"time": 1767614400000, "latitude": 53.5, "longitude": -9.9, "speed_mps": 1e308}'),
        (VEHICLE_SIGNAL, b'{"time": "2026-01-05T12:00:00+01:00", "path": "a", "value": 9007199254740993}'),
        (VEHICLE_SIGNAL, b'{"time": 0, "path": "a", "value": "text"}'),
        (VEHICLE_EVENT, b'{"time": 1, "name": "x", "attributes": {"a": [[{"b": null}]]}}'),
        (VEHICLE_CANARY, b'{"time": "9999-12-31T23:59:59.999999-23:59", "id": "c"}'),
        (VEHICLE_POSITION, b"[" * 3000),
        (VEHICLE_EVENT, b'{"time": 1, "name": "x", "attributes": ' + b'{"":' * 30 + b"1" + b"}" * 30 + b"}"),
        ("vehicle/other", b"\xff\x00"),
        (
            "vehicle/7/position",
            b'\xef\xbb\xbf[{"time": "1767614400000", "latitude": "5e1", "longitude": 190}, {"a": NaN}]\0',
        ),
    ):
        yield topic.encode() + b"\n" + payload


def judge(data: bytes) -> None:
    """A body that travels and is read again as it was; of what is not understood the bytes."""
    topic, _, payload = data.partition(b"\n")
    parsed = parse_message(topic.decode("utf-8", "replace"), payload)
    assert parsed
    for one in parsed:
        assert one.device_time_us is None or 0 <= one.device_time_us < LATEST_US
        assert not one.malformed or not isinstance(one.body, Raw) or one.body.payload == one.payload
    assert len(parsed) > 1 or parsed[0].payload == payload or not parsed[0].malformed
    records = tuple(Record(seq, one.device_time_us or 0, one.body) for seq, one in enumerate(parsed, 1))
    batch = Batch("d", 1, len(records), records)
    assert decode(encode(batch)) == batch
