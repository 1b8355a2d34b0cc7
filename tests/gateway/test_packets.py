"""A PUBLISH is taken apart whatever a publisher put into it."""

from __future__ import annotations

import time

import paho.mqtt.client as mqtt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from gateway.packets import InboundMessage, read_publish

QOS_1 = 0x32


def packet(topic: bytes, payload: bytes, *, mid: int | None = 7, properties: bytes = b"\0") -> bytes:
    packet_id = b"" if mid is None else mid.to_bytes(2, "big")
    return len(topic).to_bytes(2, "big") + topic + packet_id + properties + payload


@given(st.text(max_size=50), st.binary(max_size=50), st.integers(1, 65_535), st.text(max_size=20))
def test_topic_payload_and_id_are_read_whatever_the_properties_are(
    topic: str, payload: bytes, mid: int, text: str
) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = ("a", text.encode("utf-8", "replace").decode())
    made = packet(topic.encode("utf-8", "replace"), payload, mid=mid, properties=properties.pack())
    read = read_publish(QOS_1, made)
    assert read == InboundMessage(topic.encode("utf-8", "replace").decode(), payload, mid)


def test_a_message_of_qos_0_has_no_id() -> None:
    assert read_publish(0x30, packet(b"t", b"x", mid=None)) == InboundMessage("t", b"x", 0)


def test_a_topic_that_is_not_utf_8_is_still_a_topic() -> None:
    assert read_publish(QOS_1, packet(b"\xff\xfe", b"x")).topic == "\ufffd\ufffd"


@given(st.integers(0, 255), st.binary(max_size=300))
def test_any_bytes_are_a_message_or_a_value_error(command: int, content: bytes) -> None:
    try:
        read_publish(command, content)
    except ValueError:
        return


@given(st.integers(0, 20))
def test_a_packet_that_is_cut_is_refused(cut: int) -> None:
    whole = packet(b"waybill/1/t/d/batch", b"", properties=b"\x03\x26\x00\x00")
    assert read_publish(QOS_1, whole).payload == b""
    with pytest.raises(ValueError, match="ends early"):
        read_publish(QOS_1, whole[: min(cut, len(whole) - 1)])


def test_the_cost_of_four_million_bytes_of_properties_is_that_of_passing_over_them() -> None:
    area = b"\x26\x00\x01a\x00\x01b" * 600_000
    length = bytes(
        [len(area) & 0x7F | 0x80, len(area) >> 7 & 0x7F | 0x80, len(area) >> 14 & 0x7F | 0x80, len(area) >> 21]
    )
    began = time.thread_time()
    assert read_publish(QOS_1, packet(b"t", b"x", properties=length + area)).payload == b"x"
    assert time.thread_time() - began < 0.25  # 0.01 s; a step for each property takes seconds


def test_the_private_parts_of_paho_that_are_used_are_there() -> None:
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    assert callable(client._handle_publish)
    assert client._in_packet.keys() >= {"command", "packet"}
    assert client._out_messages == {}
