"""What arrives at the gateway: topic, batch, answer, whatever the bytes. Nothing raises; what is owed can be sent.

The first byte chooses what the rest is; for a batch, the next two give the length of its topic.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway import Produce
from gateway.inflight import UNKNOWN_SENDER, sender_of
from gateway.push import OUTCOMES, UNKNOWN, parse_config_result
from tests.gateway.strategies import batch, engine, topic
from waybill.mqtt.mqtt_client import read_publish
from waybill.record import decode, decode_ack, encode_ack

_PACKET, _ANSWER, _BATCH = 0, 1, 2
_KINDS = 3


def seeds() -> Iterable[bytes]:
    """A PUBLISH, an answer, a valid batch, and one of another device."""
    name = topic("d1").encode()
    yield bytes([_PACKET, 0x32]) + len(name).to_bytes(2, "big") + name + b"\x00\x07\x00payload"
    yield bytes([_ANSWER]) + b'{"outcome": "applied", "reason": ""}'
    for payload in (batch("d1", 1, 3), batch("d2", 1, 3, lost=(5, 9)), b"WB"):
        yield bytes([_BATCH]) + len(name).to_bytes(2, "big") + name + payload


def judge(data: bytes) -> None:
    """See `tests.fuzz`."""
    kind, rest = data[:1], data[1:]
    if not kind:
        return
    if kind[0] % _KINDS == _PACKET:
        judge_packet(rest)
    elif kind[0] % _KINDS == _ANSWER:
        answer = parse_config_result(rest)
        assert answer.outcome in {*OUTCOMES, UNKNOWN}
        answer.reason.encode()
    else:
        length = int.from_bytes(rest[:2], "big")
        judge_batch(rest[2 : 2 + length].decode("utf-8", "replace"), rest[2 + length :])


def judge_packet(data: bytes) -> None:
    """A PUBLISH is refused as a whole, or a message."""
    try:
        message = read_publish(data[0] if data else 0, data[1:])
    except ValueError:
        return
    assert len(message.payload) <= len(data)


def judge_batch(on_topic: str, payload: bytes) -> None:
    """What is acknowledged can be read at the centre; what is not is a bounded dead letter; both are released."""
    made = engine()
    order = made.on_batch(on_topic, payload, 1, 0.0)
    assert isinstance(order, Produce)
    assert len(order.payload) <= len(payload)
    for text in (order.key, *order.properties.values()):
        assert len(text.encode()) <= 4096
    if not order.refused:
        assert decode(payload).header.seqs == made.in_flight.get(order.token).seqs
    made.on_persisted(order.token, 0.0)
    messages = made.take_due_acks(1.0, 100)
    assert bool(messages) == (sender_of(on_topic) != UNKNOWN_SENDER)
    for message in messages:
        assert bool(decode_ack(encode_ack(message.ack)).refusal) == order.refused
    assert made.release() == [1]
    assert made.is_idle
