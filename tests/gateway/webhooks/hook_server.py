"""A real HTTP server that does to its clients what servers do: it takes, refuses, hangs, drips, floods and dies."""

import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from gateway.webhooks.config import WebhookSettings

SECRET = b"0123456789abcdef0123456789abcdef"
LOOPBACK = IPv4Network("127.0.0.0/8")
SECRET_TEXT = f"whsec_{base64.b64encode(SECRET).decode()}\n"


def write_secret(file: Path) -> None:
    file.touch(0o600)
    file.write_text(SECRET_TEXT)


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def key(self) -> str:
        return self.headers["idempotency-key"]

    @property
    def content(self) -> dict[str, Any]:
        return json.loads(self.body)  # type: ignore[no-any-return]

    def is_signed(self, secret: bytes = SECRET) -> bool:
        stamp = self.headers["webhook-timestamp"]
        signed = f"{self.headers['webhook-id']}.{stamp}.".encode() + self.body
        right = "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()
        return right in self.headers["webhook-signature"].split() and abs(time.time() - int(stamp)) < 60


Behaviour = Callable[[socket.socket, Request], None]


def answers(status: str = "200 OK", *headers: str, body: bytes = b"") -> Behaviour:

    def behave(connection: socket.socket, _: Request) -> None:
        lines = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}"))
        connection.sendall(f"{lines}\r\n".encode() + body)

    return behave


def sends(data: bytes) -> Behaviour:
    return lambda connection, _: connection.sendall(data)


def drips(data: bytes, every_s: float = 0.05) -> Behaviour:

    def behave(connection: socket.socket, _: Request) -> None:
        while True:
            for at in range(len(data)):
                connection.sendall(data[at : at + 1])
                time.sleep(every_s)

    return behave


def hangs(until: threading.Event) -> Behaviour:

    def behave(_: socket.socket, __: Request) -> None:
        until.wait(60)

    return behave


@dataclass
class HookServer:
    """`behave` for each path, else for all; `requests` are those that came whole."""

    behave: Behaviour = field(default_factory=answers)
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    by_path: dict[str, Behaviour] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        scheme = "https" if self.tls else "http"
        return f"{scheme}://127.0.0.1:{self.listener.getsockname()[1]}"

    @property
    def keys(self) -> list[str]:
        return [one.key for one in self.requests]

    def hang(self) -> None:
        self.behave = hangs(self.over)

    def close(self) -> None:
        self.over.set()
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def settings(self, folder: Path, path: str = "/hook", **more: Any) -> WebhookSettings:
        secret = folder / "secret"
        write_secret(secret)
        plain = {
            "timeout_s": 1,
            "backoff_first_s": 0.02,
            "max_age_s": 3,
            "networks": (LOOPBACK,),
            "accounts": ("*",),
        }
        return WebhookSettings(url=self.url + path, secret_file=secret, **(plain | more))

    def _accept(self) -> None:
        while not self.over.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with connection, connection.makefile("rb") as stream:
                request = _request(stream)
                if request is not None:
                    self.requests.append(request)
                    self.by_path.get(request.path, self.behave)(connection, request)


def _request(stream: Any) -> Request | None:
    first = stream.readline().decode().split(" ")
    if len(first) != 3:
        return None
    headers: dict[str, str] = {}
    while line := stream.readline().decode().strip():
        name, _, value = line.partition(": ")
        headers[name.lower()] = value
    return Request(first[1], headers, stream.read(int(headers["content-length"])))


@contextmanager
def hook_server(**more: Any) -> Iterator[HookServer]:
    server = HookServer(**more)
    try:
        yield server
    finally:
        server.close()
