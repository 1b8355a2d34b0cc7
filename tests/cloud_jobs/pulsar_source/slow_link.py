"""A way to a broker that can be made slow: everything still arrives, in order, a little at a time."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from deploy.local import free_port

_CHUNK_BYTES = 16 << 10


class SlowLink:
    """Leads to a broker; in what the broker says of itself its address is replaced by this one's, of equal length."""

    def __init__(self, service_url: str) -> None:
        target = urlsplit(service_url)
        assert target.hostname
        assert target.port
        self._target = (target.hostname, target.port)
        self._server = socket.create_server(("127.0.0.1", free_port()))
        self.port = self._server.getsockname()[1]
        self._theirs, self._ours = (
            f"{host}:{port}".encode() for host, port in (self._target, ("127.0.0.1", self.port))
        )
        assert len(self._theirs) == len(self._ours)
        self.service_url = f"pulsar://127.0.0.1:{self.port}"
        self.bytes_per_s: float | None = None
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._target)
                self._open += [near, far]
                threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, to_client: bool) -> None:
        with suppress(OSError):
            while chunk := source.recv(_CHUNK_BYTES):
                if to_client:
                    chunk = chunk.replace(self._theirs, self._ours)
                    if self.bytes_per_s:
                        time.sleep(len(chunk) / self.bytes_per_s)
                sink.sendall(chunk)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def slow_link(service_url: str) -> Iterator[SlowLink]:
    link = SlowLink(service_url)
    try:
        yield link
    finally:
        link.close()
