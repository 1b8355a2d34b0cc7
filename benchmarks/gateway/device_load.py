"""Devices that cost little: PUBLISH packets made beforehand, a few hundred TLS connections, one thread."""

import json
import random
import select
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgpack

from benchmarks.harness import percentile
from waybill.record import Batch, DeviceChannel, Raw, Record, device_topic, encode

TENANT = "fleet"
RECORDS = 20
READY = 16
"""Batches that a device has ready; its window is smaller, so that none is under way twice."""
_OVERHEAD_BYTES = 150
CONNACK, PUBLISH, SUBACK = 2, 3, 9
_ACK_QOS_1 = b"\x40\x02"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What to send. `window`: batches under way of each device. `rate`: batches a second of all; 0: as many as go.

    `certificates`: CA, certificate and key of each device. `skip_s`: latencies count from then on. `deaf`: answers
    count for nothing. `waits`: when ready, it waits for a line on standard input.
    """

    port: int
    certificates: list[tuple[str, str, str]]
    batch_bytes: int
    seconds: float
    window: int = 4
    rate: float = 0.0
    skip_s: float = 0.0
    name: str = "bench"
    tenant: str = TENANT
    records: int = RECORDS
    deaf: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Batches whose records were all acknowledged, and how long that took. `unsent`: were due with a full window."""

    acknowledged: int
    p50_ms: float
    p99_ms: float
    left: int
    unsent: int


@contextmanager
def running_load(
    folder: Path, settings: LoadSettings, module: str = "benchmarks.gateway.device_load"
) -> Iterator[subprocess.Popen[str]]:
    """A process with this load, once it has begun or waits for its line. Its last line is a LoadResult."""
    file = folder / f"{settings.name}.json"
    file.write_text(json.dumps(asdict(settings)))
    command = [sys.executable, "-m", module, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready", "the load did not begin"
            yield process
        finally:
            process.terminate()


def result_of(load: subprocess.Popen[str]) -> LoadResult:
    assert load.stdout is not None
    return LoadResult(**json.loads(load.stdout.readline()))


def device_name(name: str, number: int) -> str:
    return f"{name}-{number:04d}"


def packets_of(settings: LoadSettings, number: int) -> list[bytes]:
    """READY different batches of that size which do not compress, as PUBLISH packets with packet ids from 1."""
    draw, device = random.Random(number), device_name(settings.name, number)
    topic = device_topic(settings.tenant, device, DeviceChannel.BATCH).encode()
    size = (settings.batch_bytes - _OVERHEAD_BYTES) // RECORDS - 3
    made = []
    for turn in range(READY):
        first = 1 + turn * RECORDS
        records = tuple(
            Record(seq, 1_767_614_400_000_000 + seq * 1_000_003, Raw(topic="can/0", payload=draw.randbytes(size)))
            for seq in range(first, first + RECORDS)
        )
        made.append(publish_packet(topic, turn + 1, encode(Batch(device, 7, READY * RECORDS, records))))
    return made


def publish_packet(topic: bytes, number: int, batch: bytes) -> bytes:
    return packet(0x32, text(topic) + struct.pack(">H", number) + b"\x00" + batch)


class Device:
    """One connection. `sent_s`: when each batch that is under way was due, the oldest first."""

    def __init__(self, settings: LoadSettings, number: int, made: list[bytes]) -> None:
        device = device_name(settings.name, number)
        self.packets = made
        self._records = settings.records
        self.socket = _connected(settings, number)
        self.socket.sendall(_connect(f"{settings.tenant}/{device}"))
        self.socket.sendall(subscribe_packet(device_topic(settings.tenant, device, DeviceChannel.ACK)))
        self._received = b""
        self.outgoing = bytearray()
        self.is_ready = False
        self.sent_s: deque[float] = deque()
        self._next = 0
        self._part = 0
        self._deaf = settings.deaf

    def send(self, now_s: float) -> None:
        self.outgoing += self.packets[self._next]
        self._next = (self._next + 1) % len(self.packets)
        if not self._deaf:
            self.sent_s.append(now_s)

    def flush(self) -> bool:
        try:
            while self.outgoing:
                sent = self.socket.send(self.outgoing)
                del self.outgoing[:sent]
        except (ssl.SSLWantWriteError, BlockingIOError):
            return False
        return True

    def receive(self) -> int:
        try:
            received = self.socket.recv(16 << 10)
        except (ssl.SSLWantReadError, BlockingIOError):
            return 0
        if not received:
            raise ConnectionError("the broker closed the connection of a device")
        data = self._received + received if self._received else received
        at, done = 0, 0
        while at + 2 <= len(data):
            begin, length = at + 2, data[at + 1]
            if length > 0x7F:  # two bytes are enough for anything that a device gets here
                if at + 3 > len(data):
                    break
                begin, length = at + 3, length & 0x7F | data[at + 2] << 7
            if begin + length > len(data):
                break
            kind = data[at] >> 4
            if kind == PUBLISH:
                done += self._on_ack(data, at, begin, begin + length)
            elif kind == SUBACK:
                self.is_ready = True
            at = begin + length
        self._received = data[at:]
        return done

    def _on_ack(self, data: bytes, at: int, begin: int, end: int) -> int:
        topic_bytes = data[begin] << 8 | data[begin + 1]
        body = begin + 2 + topic_bytes
        if data[at] & 6:
            self.outgoing += _ACK_QOS_1 + data[body : body + 2]
            body += 2
        if self._deaf:
            return 0
        ack = msgpack.unpackb(data[body + 1 + data[body] : end])
        assert "refused" not in ack, ack
        self._part += sum(last - first + 1 for first, last in ack["ranges"])
        done, self._part = divmod(self._part, self._records)
        return done


class LoadFleet:
    """All devices, and the loop that serves them."""

    def __init__(self, settings: LoadSettings, make: Callable[[LoadSettings, int], list[bytes]]) -> None:
        self._settings = settings
        count = len(settings.certificates)
        self._devices = [Device(settings, number, make(settings, number)) for number in range(count)]
        self._poll = select.epoll()
        self._by_fd = {}
        for device in self._devices:
            device.socket.setblocking(False)
            self._by_fd[device.socket.fileno()] = device
            self._poll.register(device.socket, select.EPOLLIN)
        self._done = 0
        self._latencies: list[float] = []
        self._unsent = 0
        self._blocked: set[int] = set()

    def run(self) -> LoadResult:
        """Subscribe, send for `seconds`, then wait a little for what is under way."""
        while not all(device.is_ready for device in self._devices):
            self._turn(1.0, sends=False)
        print("ready", flush=True)
        if self._settings.waits:
            sys.stdin.readline()
        began_s = time.monotonic()
        end_s = began_s + self._settings.seconds
        if not self._settings.rate:
            self._fill()
        due = 0
        while (now_s := time.monotonic()) < end_s:
            timeout_s = end_s - now_s
            if self._settings.rate:
                due = self._send_due(began_s, now_s, due)
                timeout_s = max(0.0, began_s + (due + 1) / self._settings.rate - time.monotonic())
            self._turn(timeout_s, sends=not self._settings.rate, counts=now_s >= began_s + self._settings.skip_s)
        acknowledged = self._done
        until_s = time.monotonic() + 5
        while any(device.sent_s for device in self._devices) and time.monotonic() < until_s:
            self._turn(0.1, sends=False)
        p50_ms, p99_ms = (percentile(self._latencies, share) * 1000 for share in (0.5, 0.99))
        left = sum(len(device.sent_s) for device in self._devices)
        return LoadResult(acknowledged, p50_ms, p99_ms, left, self._unsent)

    def _fill(self) -> None:
        for device in self._devices:
            for _ in range(self._settings.window):
                device.send(time.monotonic())
            self._flush(device)

    def _send_due(self, began_s: float, now_s: float, sent: int) -> int:
        due = int((now_s - began_s) * self._settings.rate)
        for number in range(sent, due):
            device = self._devices[number % len(self._devices)]
            if len(device.sent_s) < READY - 1:
                device.send(began_s + number / self._settings.rate)
                self._flush(device)
            else:
                self._unsent += 1
        return max(sent, due)

    def _turn(self, timeout_s: float, *, sends: bool, counts: bool = False) -> None:
        events = self._poll.poll(timeout_s)
        now_s = time.monotonic()
        for fd, event in events:
            device = self._by_fd[fd]
            if event & ~select.EPOLLOUT:
                done = device.receive()
                self._done += done
                for _ in range(done):
                    took_s = now_s - device.sent_s.popleft()
                    if counts:
                        self._latencies.append(took_s)
                    if sends:
                        device.send(now_s)
            if device.outgoing:
                self._flush(device)

    def _flush(self, device: Device) -> None:
        fd = device.socket.fileno()
        if device.flush():
            if fd in self._blocked:
                self._blocked.discard(fd)
                self._poll.modify(fd, select.EPOLLIN)
        elif fd not in self._blocked:
            self._blocked.add(fd)
            self._poll.modify(fd, select.EPOLLIN | select.EPOLLOUT)


def _connected(settings: LoadSettings, number: int) -> Any:
    ca, certificate, key = settings.certificates[number]
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key)
    return context.wrap_socket(connected(settings.port, 30), server_hostname="127.0.0.1")


def connected(port: int, timeout_s: float) -> socket.socket:
    """A connection that sends each write at once."""
    plain = socket.create_connection(("127.0.0.1", port), timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return plain


def _connect(client_id: str) -> bytes:
    # MQTT 5, a new session that ends with the connection; no ping is due within the benchmark.
    return packet(0x10, text(b"MQTT") + b"\x05\x02" + struct.pack(">H", 3600) + b"\x00" + text(client_id.encode()))


def subscribe_packet(topic: str) -> bytes:
    return packet(0x82, struct.pack(">H", 1) + b"\x00" + text(topic.encode()) + b"\x01")


def text(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def packet(first: int, body: bytes) -> bytes:
    """An MQTT packet: its first byte, the length of its body in groups of seven bits, its body."""
    length, digits = len(body), bytearray([first])
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (0x80 if length else 0))
        if not length:
            return bytes(digits) + body


def settings_of_load() -> LoadSettings:
    """What the process of `running_load` is to do."""
    return LoadSettings(**json.loads(Path(sys.argv[1]).read_text()))


def run_load(settings: LoadSettings, make: Callable[[LoadSettings, int], list[bytes]]) -> None:
    print(json.dumps(asdict(LoadFleet(settings, make).run())), flush=True)


if __name__ == "__main__":
    run_load(settings_of_load(), packets_of)
