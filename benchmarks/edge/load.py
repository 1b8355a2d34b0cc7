"""A publisher that costs almost nothing: packets made beforehand, one system call for many of them."""

import json
import math
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import reduce
from operator import xor

from benchmarks.gateway.device_load import CONNACK, PUBLISH, SUBACK, connected, packet, subscribe_packet, text
from waybill.mqtt.mqtt_client import MqttMessage, read_publish, remaining_length
from waybill.record import VEHICLE_POSITION, Ack, DeviceChannel, decode, device_filter, encode_ack, read_header

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
        fields = {
            "time": FIRST_MS + number,
            "latitude": round(latitude, 6),
            "longitude": round(longitude, 6),
            "altitude_m": round(altitude, 1),
            "speed_mps": round(speed, 2),
            "heading_deg": round(heading, 1),
            "accuracy_m": round(abs(draw.gauss(3, 1)), 1),
        }
        yield json.dumps(fields).encode().ljust(150)


def phone_positions(count: int) -> Iterator[bytes]:
    """The same drive as the OwnTracks app of a phone reports it."""
    for number, position in enumerate(map(json.loads, positions(count))):
        fields = {
            "_type": "location",
            "tst": FIRST_MS // 1000 + number,
            "lat": position["latitude"],
            "lon": position["longitude"],
            "alt": round(position["altitude_m"]),
            "vel": round(position["speed_mps"] * 3.6),
            "cog": round(position["heading_deg"]),
            "acc": round(position["accuracy_m"]) + 1,
            "batt": 80,
        }
        yield json.dumps(fields).encode().ljust(150)


def nmea_positions(count: int) -> Iterator[bytes]:
    """The same drive as a receiver reports it: RMC and GGA."""
    for number, position in enumerate(map(json.loads, positions(count))):
        moment = datetime.fromtimestamp(FIRST_MS // 1000 + number, UTC)
        place = f"{_angle(position['latitude'], 'NS', 2)},{_angle(position['longitude'], 'EW', 3)}"
        motion = f"{position['speed_mps'] * 3600 / 1852:.2f},{position['heading_deg']}"
        rmc = f"GNRMC,{moment:%H%M%S}.000,A,{place},{motion},{moment:%d%m%y},,,A"
        gga = f"GNGGA,{moment:%H%M%S}.000,{place},1,12,0.8,{position['altitude_m']},M,47.0,M,,"
        yield b"".join(b"$%b*%02X\r\n" % (one.encode(), reduce(xor, one.encode())) for one in (rmc, gga))


def _angle(degrees: float, hemispheres: str, digits: int) -> str:
    whole, minutes = divmod(abs(degrees) * 60, 60)
    return f"{whole:0{digits}.0f}{minutes:08.5f},{hemispheres[degrees < 0]}"


class Publisher:
    """MQTT 3.1.1, QoS 1, at most `WINDOW` messages unacknowledged."""

    def __init__(self, port: int, client_id: bytes = b"load") -> None:
        self._socket = connected(port, 60)
        body = b"\x00\x04MQTT\x04\x02\x00\x00" + struct.pack(">H", len(client_id)) + client_id
        self._socket.sendall(bytes([0x10, len(body)]) + body)
        assert self._socket.recv(4)[:2] == b"\x20\x02"
        self._mid = 0
        self._open = 0
        self._rest = b""

    def publish(self, payloads: list[bytes], topic: bytes = TOPIC) -> None:
        for begin in range(0, len(payloads), 100):
            chunk = payloads[begin : begin + 100]
            self._socket.sendall(b"".join(self._packet(payload, topic) for payload in chunk))
            self._open += len(chunk)
            while self._open > WINDOW - 100:
                self._receive()

    def finish(self) -> None:
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


# The region's side of the benchmark: takes batches, acknowledges, keeps what arrived when.

LIVE_MS = FIRST_MS + 10**9
"""Live messages have times from here on; their place says when they were sent."""


class Sink:
    """A client with a lasting session: the region's broker keeps what comes while the sink reconnects.

    `records`: what arrived, repetitions too. `digest` looks at the contents of those above `count_only_above`.
    """

    def __init__(self, port: int, *, count_only_above: int) -> None:
        self.records = 0
        self._names: dict[tuple[int, int], int] = {}
        self.live_sent: dict[int, float] = {}
        self._live_took: dict[int, float] = {}
        self._above = count_only_above
        self._arrived: list[tuple[float, bytes]] = []
        self._digested = 0
        self._port = port
        self._mid = 0
        self._ready = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sink", daemon=True)
        self._thread.start()
        assert self._ready.wait(30)

    def sending_live(self, number: int) -> None:
        self.live_sent[number] = time.monotonic()

    def live_latencies(self, sent_by_s: float = math.inf) -> list[float]:
        """Seconds from sending to arrival of the live messages sent by then; of one that is not there, so far."""
        now_s = time.monotonic()
        sent = [(number, sent_s) for number, sent_s in self.live_sent.items() if sent_s <= sent_by_s]
        return [self._live_took.get(number, now_s - sent_s) for number, sent_s in sent]

    def digest(self) -> None:
        arrived, self._digested = self._arrived[self._digested :], len(self._arrived)
        for at_s, payload in arrived:
            self._digest_batch(at_s, payload)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(5)

    def _digest_batch(self, at_s: float, payload: bytes) -> None:
        header = read_header(payload)
        if (header.record_seqs.last or 0) <= self._above:
            return
        for record in decode(payload).records:
            name, number = (header.epoch, record.seq), record.device_time_us // 1000 - FIRST_MS
            if name not in self._names:
                self._names[name] = number
                live = number - (LIVE_MS - FIRST_MS)
                if live >= 0:
                    self._live_took.setdefault(live, at_s - self.live_sent[live])
            assert self._names[name] == number, "a name has two contents"

    def _run(self) -> None:
        while not self._closing.is_set():
            with suppress(OSError), connected(self._port, 0.2) as sock:
                self._listen(sock)
            self._closing.wait(0.02)

    def _listen(self, sock: socket.socket) -> None:
        sock.sendall(_connect())
        rest = b""
        while not self._closing.is_set():
            try:
                received = sock.recv(1 << 18)
            except TimeoutError:
                continue
            if not received:
                return
            at_s, answers = time.monotonic(), bytearray()
            rest = self._take(at_s, rest + received, answers)
            if answers:
                sock.settimeout(10)
                sock.sendall(answers)
                sock.settimeout(0.2)

    def _take(self, at_s: float, data: bytes, answers: bytearray) -> bytes:
        """Handles the whole packets and puts the answers together; the bytes of the packet that is not whole yet."""
        end = 0
        for first, begin, end in _packets(data):
            kind = first >> 4
            if kind == PUBLISH:
                message = read_publish(first, data[begin:end])
                answers += b"\x40\x02" + struct.pack(">H", message.mid)
                self._arrived.append((at_s, message.payload))
                self.records += self._acknowledged(message, answers)
            elif kind == CONNACK:
                answers += subscribe_packet(device_filter(DeviceChannel.BATCH))
            elif kind == SUBACK:
                self._ready.set()
        return data[end:]

    def _acknowledged(self, message: MqttMessage, answers: bytearray) -> int:
        header = read_header(message.payload)
        topic = (message.topic.removesuffix("batch") + "ack").encode()
        self._mid = self._mid % 65_535 + 1
        ack = encode_ack(Ack(header.epoch, header.seqs))
        answers += packet(0x32, text(topic) + struct.pack(">H", self._mid) + b"\x00" + ack)
        return header.record_seqs.count


def _packets(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The whole packets: first byte, where the body begins and where it ends."""
    at = 0
    while at + 2 <= len(data):
        begin, length = remaining_length(data, at + 1)
        if not begin or begin + length > len(data):
            return
        yield data[at], begin, begin + length
        at = begin + length


def _connect() -> bytes:
    """MQTT 5, the old session if there is one, kept for an hour, no bound on what is unacknowledged."""
    properties = b"\x05\x11" + struct.pack(">I", 3600)
    return packet(0x10, text(b"MQTT") + b"\x05\x00" + struct.pack(">H", 0) + properties + text(b"sink"))
