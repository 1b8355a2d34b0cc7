"""A publisher that costs almost nothing: packets made beforehand, one system call for many of them."""

from __future__ import annotations

import json
import random
import socket
import struct
from collections.abc import Iterator

from waybill.record import VEHICLE_POSITION

FIRST_MS = 1_767_603_422_000
TOPIC = VEHICLE_POSITION.encode()
WINDOW = 800


def positions(count: int, seed: int = 1) -> Iterator[bytes]:
    """JSON positions of 150 bytes: a drive with noise in every field; the time is the number."""
    draw = random.Random(seed)
    latitude, longitude, speed, heading, altitude = 53.4445, -2.9251, 12.0, 270.0, 31.0
    for number in range(count):
        latitude += draw.gauss(0, 1e-5)
        longitude += draw.gauss(1e-4, 1e-5)
        speed = min(35.0, max(0.0, speed + draw.gauss(0, 0.3)))
        heading = (heading + draw.gauss(0, 2)) % 360
        altitude += draw.gauss(0, 0.2)
        text = json.dumps(
            {
                "time": FIRST_MS + number,
                "latitude": round(latitude, 6),
                "longitude": round(longitude, 6),
                "altitude_m": round(altitude, 1),
                "speed_mps": round(speed, 2),
                "heading_deg": round(heading, 1),
                "accuracy_m": round(abs(draw.gauss(3, 1)), 1),
            },
        )
        yield text.encode().ljust(150)


class Publisher:
    """MQTT 3.1.1, QoS 1, at most `WINDOW` messages unacknowledged."""

    def __init__(self, port: int, client_id: bytes = b"load") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = b"\x00\x04MQTT\x04\x02\x00\x00" + struct.pack(">H", len(client_id)) + client_id
        self._socket.sendall(bytes([0x10, len(body)]) + body)
        assert self._socket.recv(4)[:2] == b"\x20\x02"
        self._mid = 0
        self._open = 0
        self._rest = b""

    def publish(self, payloads: list[bytes], topic: bytes = TOPIC) -> None:
        """Sends messages; waits while the window is full."""
        for begin in range(0, len(payloads), 100):
            chunk = payloads[begin : begin + 100]
            self._socket.sendall(b"".join(self._packet(payload, topic) for payload in chunk))
            self._open += len(chunk)
            while self._open > WINDOW - 100:
                self._receive()

    def finish(self) -> None:
        """Waits until everything is acknowledged."""
        while self._open:
            self._receive()

    def close(self) -> None:
        self._socket.sendall(b"\xe0\x00")
        self._socket.close()

    def _packet(self, payload: bytes, topic: bytes) -> bytes:
        self._mid = self._mid % 65_535 + 1
        return packet(0x32, text(topic) + struct.pack(">H", self._mid) + payload)

    def _receive(self) -> None:
        received = self._rest + self._socket.recv(1 << 16)
        whole = len(received) // 4 * 4
        self._open -= whole // 4
        self._rest = received[whole:]


def packet(first: int, body: bytes) -> bytes:
    """An MQTT packet: its first byte, the length of its body in groups of seven bits, its body."""
    length, digits = len(body), bytearray([first])
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (0x80 if length else 0))
        if not length:
            return bytes(digits) + body


def text(value: bytes) -> bytes:
    """A string as MQTT writes it."""
    return struct.pack(">H", len(value)) + value
