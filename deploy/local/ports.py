"""Free loopback ports, kept for a folder so that a restarted server is found where it was.

A port is chosen a while before a server listens on it. So that two stacks do not choose the same one meanwhile, the
chooser reserves it by a name in the abstract namespace of Unix sockets, which all users share, and which ends with the
process that bound it.
"""

import json
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from deploy.local.errors import LocalStackError
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import replace_durably

# Below the kernel's range for outgoing connections, so that no client socket takes a port between choice and use.
_RANGE = (20_000, 32_000)
_ATTEMPTS = 200
_POLL_S = 0.05
_MAX_BYTES = 1 << 20
# Each reservation is an open socket; the oldest ends, whose server listens by then.
_MAX_RESERVED = 512
_BOOK = TypeAdapter(dict[str, Annotated[int, Field(gt=0, lt=65536)]])

_reserved: dict[int, socket.socket] = {}


def _reserve(port: int) -> bool:
    """Whether the port is reserved for this process now."""
    if port in _reserved:
        return True
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0waybill-port-{port}")
    except OSError:
        name.close()
        return False
    _reserved[port] = name
    if len(_reserved) > _MAX_RESERVED:
        _reserved.pop(next(iter(_reserved))).close()
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers bind: closed connections of an earlier run, in TIME_WAIT, do not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A loopback port without a listener, reserved for this process."""
    for _ in range(_ATTEMPTS):
        port = random.randrange(*_RANGE)
        # Looked at after the reservation: before it, another process could take the port in between.
        if port not in _reserved and _reserve(port) and _is_free(port):
            return port
    raise OSError(f"no free loopback port between {_RANGE[0]} and {_RANGE[1]} after {_ATTEMPTS} attempts")


class PortBook:
    """Ports by name, remembered in a JSON file; a name keeps its port if that is free. Raises LocalStackError.

    A process that was just killed still holds its ports while the kernel takes it apart, so the book waits for them:
    `timeout_s` in all, however many are taken. `is_pinned`: whether a port must not move, because processes run whose
    settings name it.
    """

    def __init__(self, file: Path, *, timeout_s: float = 5.0, is_pinned: Callable[[], bool] = lambda: False) -> None:
        self._file = file.absolute()
        self._timeout_s, self._is_pinned = timeout_s, is_pinned
        self._remembered = _read(file)
        self._given: dict[str, int] = {}

    def port(self, name: str) -> int:
        """The remembered port of this name if it gets free, else a new one; the same for the book's life.

        Raises LocalStackError for a remembered port that is taken while the book is pinned.
        """
        if name not in self._given:
            port = self._remembered.get(name)
            if port is None or port in self._given.values() or not self._gets_free(port):
                if port is not None and self._is_pinned():
                    raise LocalStackError(
                        f"port {port} of {name} is taken, and daemons run whose settings name it: stop what listens"
                        f" there; or stop the daemons (`waybill status` lists them), and a new port is chosen"
                    )
                port = free_port()
                # Nor the port of another name: its server may be started after this one.
                while port in self._remembered.values():
                    port = free_port()
            self._given[name] = self._remembered[name] = port
            replace_durably(self._file, json.dumps(self._remembered, indent=2, sort_keys=True).encode())
        return self._given[name]

    def kept(self, name: str) -> int:
        """The port of this name for the life of the file, also while the process that uses it runs."""
        if name not in self._given and (port := self._remembered.get(name)) is not None:
            self._given[name] = port
        return self.port(name)

    def _gets_free(self, port: int) -> bool:
        while not (_reserve(port) and _is_free(port)):
            if self._timeout_s <= 0:
                return False
            self._timeout_s -= _POLL_S
            time.sleep(_POLL_S)
        return True


def _read(file: Path) -> dict[str, int]:
    if not file.exists():
        return {}
    try:
        return _BOOK.validate_json(read_bounded(file, _MAX_BYTES))
    except ValueError as error:
        raise LocalStackError(f"{file} is not a book of ports; delete it, and new ports are chosen") from error
