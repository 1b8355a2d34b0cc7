"""Free loopback ports, kept for a folder so that a restarted server is found where it was."""

import json
import random
import socket
import time
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from deploy.local.errors import FolderDamaged
from runtime import replace_durably

__all__ = ["PortBook", "free_port", "is_free"]

# Below the kernel's range for outgoing connections, so that no client socket takes a port between choice and use.
_RANGE = (20_000, 32_000)
_ATTEMPTS = 200
_POLL_S = 0.05
_BOOK = TypeAdapter(dict[str, Annotated[int, Field(gt=0, lt=65536)]])


def is_free(port: int) -> bool:
    """Whether a listener could be bound to this loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port(taken: set[int] | None = None) -> int:
    """A loopback port that nobody listens on and that is not in `taken`."""
    for _ in range(_ATTEMPTS):
        port = random.randrange(*_RANGE)
        if port not in (taken or ()) and is_free(port):
            return port
    raise OSError(f"no free loopback port between {_RANGE[0]} and {_RANGE[1]} after {_ATTEMPTS} attempts")


class PortBook:
    """Ports by name, remembered in a JSON file; a name keeps its port if that is free. Raises FolderDamaged.

    A process that was just killed still holds its ports while the kernel takes it apart, so the book waits for them:
    `patience_s` in all, however many are taken.
    """

    def __init__(self, file: Path, *, patience_s: float = 5.0) -> None:
        self._file = file
        self._patience_s = patience_s
        self._remembered = _read(file)
        self._given: dict[str, int] = {}

    def port(self, name: str) -> int:
        """The port of this name: the remembered one if it gets free, else a new one; the same for the book's life."""
        if name not in self._given:
            port = self._remembered.get(name)
            if port is None or port in self._given.values() or not self._gets_free(port):
                port = free_port({*self._given.values(), *self._remembered.values()})
            self._given[name] = self._remembered[name] = port
            replace_durably(self._file, json.dumps(self._remembered, indent=2, sort_keys=True).encode())
        return self._given[name]

    def _gets_free(self, port: int) -> bool:
        while not is_free(port):
            if self._patience_s <= 0:
                return False
            self._patience_s -= _POLL_S
            time.sleep(_POLL_S)
        return True


def _read(file: Path) -> dict[str, int]:
    if not file.exists():
        return {}
    try:
        return _BOOK.validate_json(file.read_bytes())
    except ValidationError as error:
        raise FolderDamaged(file, "is not a book of ports", "delete it, and new ports are chosen") from error
