"""What devices, gateways and brokers send: batches, acknowledgements, JSON, messages of a vehicle, MQTT packets."""

import contextlib
import json
import zlib
from typing import Any

import msgpack
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from cloud_jobs.ingest.decoding import RECORD_COLUMNS, decode_messages
from edge_agent.drain.region import Pause
from edge_agent.drain.sent_batches import SentSeqs
from edge_agent.intake.messages import LATEST_US, parse_message
from edge_agent.uplink.mqtt import control_events
from gateway.engine import Produce
from gateway.inflight import UNKNOWN_SENDER, sender_of
from gateway.push import OUTCOMES, UNKNOWN, parse_config_result
from tests.cloud_jobs.ingest.test_decoding import messages
from tests.fuzz.bounds import Target, by_first_byte, tagged
from tests.gateway.strategies import batch as gateway_batch
from tests.gateway.strategies import engine, topic
from tests.telemetry.test_columns import assert_same
from tests.telemetry.test_stored_examples import BURIED, EVERY_KIND, HEARTBEAT, ONE_MINUTE
from tests.telemetry.test_wire import framed
from waybill.mqtt.broker_settings import BrokerSettings
from waybill.mqtt.mqtt_client import MAX_PACKETS, MqttClient, MqttSessionOptions, read_publish
from waybill.record import (
    VEHICLE_CANARY,
    VEHICLE_EVENT,
    VEHICLE_POSITION,
    VEHICLE_SIGNAL,
    Ack,
    Batch,
    Header,
    IntervalSet,
    InvalidJson,
    Malformed,
    Raw,
    Record,
    WireError,
    decode,
    decode_ack,
    encode,
    encode_ack,
    parse_json,
    validate,
)
from waybill.record.columns import decode_columns
from waybill.record.content import pack_records

MAX_COMPARED = 300
"""Records of a batch that is compared row by row."""
SENT = IntervalSet([(1, 1000), (2000, 2010)])
HEADER = msgpack.packb(["d", 1, 1 << 20, 0, [1, 0], []])
TOMBSTONES = msgpack.packb(["d", 1, 1 << 20, 0, [], [[number, number, "q"] for number in range(1, 3000, 2)]])


def judge_ack(data: bytes) -> None:
    """Refused, or an acknowledgement that can be written and read again."""
    with contextlib.suppress(Malformed):
        ack = decode_ack(data)
        assert decode_ack(encode_ack(ack)) == ack


def judge_control(data: bytes) -> None:
    """Nothing raises, nothing is taken that was not sent, and a pause ends."""
    sent, pause = SentSeqs(), Pause(600.0)
    sent.add("eu", 7, SENT)
    for event in (one for kind in ("ack", "config", "other") for one in control_events(kind, data)):
        if isinstance(event, Ack):
            assert SENT.covers(sent.take_acked("eu", event.epoch, event.seqs))
            pause.request(0.0, event.pause_s)
            assert pause.left_s(0.0) <= 600.0


def parts(batch: Batch, compression: int) -> bytes:
    """The input that stands for a batch. A checksum lets no mutation of a frame through, so it is what stands in it: a
    byte that says how (0 plain, 1 zlib, others: the rest is the frame), the header's length in two, header and content.
    """
    whole = encode(batch)
    length = int.from_bytes(whole[8:12], "big")
    content = msgpack.packb(pack_records(batch.records)) if batch.records else b""
    return bytes([compression]) + length.to_bytes(2, "big") + whole[16 : 16 + length] + content


def frame_of(data: bytes) -> bytes:
    if data[:1] not in (b"\x00", b"\x01"):
        return data[1:]
    end = 3 + int.from_bytes(data[1:3], "big")
    content = data[end:]
    return framed(data[3:end], zlib.compress(content, 1) if data[0] else content, data[0])


def header_of(frame: bytes) -> Header | None:
    with contextlib.suppress(WireError):
        return validate(frame)
    return None


def judge_batch(data: bytes) -> None:
    """Judged, decoded to records, to columns and to Arrow alike, and written again."""
    frame, columns_header = frame_of(data), None
    header = header_of(frame)
    with contextlib.suppress(WireError):
        columns_header = decode_columns(frame).header
    assert header == columns_header, "the gateway and the centre agree"
    if header is None or header.record_seqs.count > MAX_COMPARED:
        return
    batch = decode(frame)
    assert_same(decode_columns(frame), batch)
    assert decode(encode(batch)) == batch
    (decoded,) = decode_messages([messages(frame)])
    assert decoded.malformed == []
    (said, records), *_ = decoded.streams.values()
    assert (said.received, said.head, records) == (header.record_seqs, header.head, header.record_seqs.count)
    if decoded.rows is not None:
        rows = decoded.rows.cast(RECORD_COLUMNS)
        assert rows["seq"].to_pylist() == list(header.record_seqs)
        rows.to_pylist()


def judge_packet(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        message = read_publish(data[0] if data else 0, data[1:])
        assert len(message.payload) <= len(data)
        message.topic.encode("utf-8")


def judge_answer(data: bytes) -> None:
    outcome, reason = parse_config_result(data)
    assert outcome in {*OUTCOMES, UNKNOWN}
    reason.encode()


def judge_arrival(data: bytes) -> None:
    """What is acknowledged can be read at the centre; what is not is a bounded dead letter; both are released."""
    length = int.from_bytes(data[:2], "big")
    on_topic, payload, made = data[2 : 2 + length].decode("utf-8", "replace"), data[2 + length :], engine()
    order = made.on_batch(on_topic, payload, 1, 0.0)
    assert isinstance(order, Produce)
    assert len(order.payload) <= len(payload)
    assert all(len(text.encode()) <= 4096 for text in (order.key, *order.properties.values()))
    if not order.refused:
        assert decode(payload).header.seqs == made.in_flight.get(order.token).seqs
    made.on_persisted(order.token, 0.0)
    acks = made.take_due_acks(1.0, 100)
    assert bool(acks) == (sender_of(on_topic) != UNKNOWN_SENDER)
    assert all(bool(decode_ack(encode_ack(one.ack)).refusal) == order.refused for one in acks)
    assert made.release() == [1]
    assert made.is_idle


def judge_json(data: bytes) -> None:
    """Read as the standard library reads it, or refused; what is read fits msgpack."""
    with contextlib.suppress(InvalidJson):
        value = parse_json(data, max_bytes=64 << 10)
        assert value == json.loads(data)
        assert msgpack.unpackb(msgpack.packb(value)) == value


def judge_vehicle_message(data: bytes) -> None:
    """A body that travels and is read again as it was; of what is not understood the bytes."""
    on_topic, _, payload = data.partition(b"\n")
    parsed = parse_message(on_topic.decode("utf-8", "replace"), payload)
    assert parsed
    for one in parsed:
        assert one.device_time_us is None or 0 <= one.device_time_us < LATEST_US
        assert not one.malformed or not isinstance(one.body, Raw) or one.body.payload == one.payload
    assert len(parsed) > 1 or parsed[0].payload == payload or not parsed[0].malformed
    records = tuple(Record(seq, one.device_time_us or 0, one.body) for seq, one in enumerate(parsed, 1))
    batch = Batch("d", 1, len(records), records)
    assert decode(encode(batch)) == batch


class ReceivingSocket:
    """The received side of a connection: gives its bytes, and then ends."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def recv(self, size: int) -> bytes:
        chunk, self._data = self._data[:size], self._data[size:]
        return chunk

    def send(self, data: bytes) -> int:
        return len(data)

    def close(self) -> None:
        """Nothing is open."""

    def fileno(self) -> int:
        return -1


MOST_READS = 64
"""Calls of `receive` for one input: each reads MAX_PACKETS."""


def packet(first: int, body: bytes) -> bytes:
    length, digits = len(body), bytearray()
    while True:
        digits.append(length & 0x7F | (0x80 if length > 0x7F else 0))
        length >>= 7
        if not length:
            return bytes([first, *digits]) + body


def connack(*users: tuple[str, str], reason: int = 0) -> bytes:
    properties = Properties(PacketTypes.CONNACK)
    properties.ReceiveMaximum = 20
    properties.MaximumPacketSize = 1 << 20
    properties.ReasonString = "why"
    for user in users:
        properties.UserProperty = user
    return packet(0x20, bytes([0, reason]) + properties.pack())


def judge_connection(data: bytes) -> None:
    """The bytes are read, or the connection ends and says why; nothing is raised."""
    for truncates in (False, True):
        options = MqttSessionOptions(client_id="c", max_packet_bytes=4096, truncates_larger=truncates)
        client, stand_in, ended = (
            MqttClient(BrokerSettings(host="127.0.0.1"), options),
            ReceivingSocket(data),
            list[Any](),
        )
        given: Any = stand_in
        client._sock = given
        client.publish_qos_1("t", b"x")
        client.on_disconnect = lambda *facts, ended=ended: ended.append(facts)
        for _ in range(MOST_READS):
            client.receive()
            if client.socket() is None:
                break
        if len(data) <= MOST_READS * MAX_PACKETS:
            assert client.socket() is None, "the bytes end, and with them the connection"
        assert bool(ended) == (client.socket() is None)
        assert all(len(message.payload) <= len(data) for message in client.messages)
        for message in client.messages:
            message.topic.encode()


PUBLISH, NAME = packet(0x32, b"\x00\x01t\x00\x07\x00payload"), topic("d1").encode()
TARGETS = {
    "ack": Target(
        (
            encode_ack(Ack(1 << 60, IntervalSet([(1, 2), (5, 1 << 40)]), 2.5)),
            encode_ack(Ack(7, IntervalSet([(1, 9)]), refusal="too-large")),
            encode_ack(Ack()),
        ),
        judge_ack,
    ),
    "agent_control": Target(
        (
            encode_ack(Ack(7, IntervalSet([(1, 10**12)]), 3600.0)),
            encode_ack(Ack(7, IntervalSet([(5, 9), (990, 2005)]))),
            encode_ack(Ack(7, IntervalSet([(1, 9)]), 1.0, "full")),
            b"\x81\xa5epoch\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",
        ),
        judge_control,
    ),
    "batch": Target(
        (
            *(parts(one, kind) for one in (EVERY_KIND, ONE_MINUTE, BURIED, HEARTBEAT) for kind in (0, 1)),
            *(b"\xff" + encode(one) for one in (EVERY_KIND, ONE_MINUTE, BURIED, HEARTBEAT)),
            # bombs
            b"\x00" + len(HEADER).to_bytes(2, "big") + HEADER + b"\x85\xa1t\x93\x00\x00\xc4\x00" + b"\x90" * 300,
            b"\x00" + len(HEADER).to_bytes(2, "big") + HEADER + b"\xdc\xff\xff" * 300,
            b"\x00" + len(TOMBSTONES).to_bytes(2, "big") + TOMBSTONES,
        ),
        judge_batch,
        lambda data: header_of(frame_of(data)),
    ),
    "gateway": Target(
        (
            *tagged(0, b"\x32" + len(NAME).to_bytes(2, "big") + NAME + b"\x00\x07\x00payload"),
            *tagged(1, b'{"outcome": "applied", "reason": ""}'),
            *(
                b"\x02" + len(NAME).to_bytes(2, "big") + NAME + payload
                for payload in (gateway_batch("d1", 1, 3), gateway_batch("d2", 1, 3, lost=(5, 9)), b"WB")
            ),
        ),
        by_first_byte(judge_packet, judge_answer, judge_arrival),
    ),
    "mqtt_packets": Target(
        (
            connack() + packet(0x90, b"\x00\x01\x00\x01") + packet(0x40, b"\x00\x01") + PUBLISH + packet(0xD0, b""),
            connack(("a", "b"), ("c", "d")) + packet(0xE0, b"\x8e\x00"),
            connack(reason=0x87),
            packet(0x40, b"\x00\x01\x10\x00") + packet(0x50, b"\x00\x02\x00") + packet(0x62, b"\x00\x03\x00"),
            packet(0x90, b"\x00\x01\x05\x1f\x00\x02no\x87")
            + packet(0xB0, b"\x00\x01\x00\x11")
            + packet(0xF0, b"\x18\x00"),
            b"\x30\xff\xff\xff\xff\x01" + PUBLISH,
            b"\x30\xff\xff\xff\x7f" + PUBLISH,
            packet(0x20, b"\x00\x00\x06\x22\x00\x14\x22\x00\x14"),
            packet(0x20, b"\x00\x00" + b"\xff\xff\x03" + b"\x26\x00\x01a\x00\x01b" * 7_000),
            packet(0xE0, b"\x00" + b"\x80" * 200),
        ),
        judge_connection,
    ),
    "mqtt_publish": Target(
        (
            b"\x30\x00\x01t\x00hi",
            b"\x32\x00\x01t\x00\x05\x00hi",
            b"\x32\x00\x01t\x00\x05\x02\x01\x01hi",
            b"\x32\xff\xffcut",
            b"\x32\x00\x01t\x00\x05" + b"\xff" * 50,
        ),
        judge_packet,
    ),
    "strict_json": Target(
        (
            b'{"time": 1767614400000, "latitude": 53.5530418, "longitude": -9.9877018, "speed_mps": 19.4}',
            rb'{"time": "2026-01-05T12:00:00Z", "path": "a", "value": "\ud83d\ude00 \n \\ \" \/"}',
            b'[null, true, false, -0, 0.5e-7, 1E308, 9223372036854775807, {"a": {"b": [[]]}}]',
            b"[" * 16 + b"]" * 16,
            '"ä€😀"'.encode(),
        ),
        judge_json,
    ),
    "vehicle_message": Target(
        tuple(
            on_topic.encode() + b"\n" + payload
            for on_topic, payload in (
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
            )
        ),
        judge_vehicle_message,
    ),
}
