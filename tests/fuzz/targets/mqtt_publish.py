"""A PUBLISH packet of a broker."""

from __future__ import annotations

from collections.abc import Iterable

from waybill.mqtt.mqtt_client import read_publish


def seeds() -> Iterable[bytes]:
    """QoS 0 and 1, with and without properties, and cut off."""
    yield b"\x30\x00\x01t\x00hi"
    yield b"\x32\x00\x01t\x00\x05\x00hi"
    yield b"\x32\x00\x01t\x00\x05\x02\x01\x01hi"
    yield b"\x32\xff\xffcut"
    yield b"\x32\x00\x01t\x00\x05" + b"\xff" * 50


def judge(data: bytes) -> None:
    """A message within the packet, or an error that says that it is cut off."""
    if not data:
        return
    try:
        message = read_publish(data[0], data[1:])
    except ValueError:
        return
    assert len(message.payload) <= len(data)
    message.topic.encode("utf-8")
