"""Free loopback ports, kept for a folder so that a restarted server is found where it was.

A port is chosen a while before a server listens on it. So that two stacks that start at once choose different ones,
who chooses a port first speaks for it, in the kernel: with a name in the abstract namespace of Unix sockets, which is
one for all users, as ports are, and ends with the process that bound it.
"""

import json
import random
import socket
import time
from collections import deque
from pathlib import Path
from typing import Annotated
from weakref import WeakValueDictionary

from pydantic import Field, TypeAdapter

from deploy.local.errors import FolderDamaged
from waybill.daemon.bounded_file import read_bounded
from waybill.daemon.durable_file import replace_durably

# Below the kernel's range for outgoing connections, so that no client socket takes a port between choice and use.
_RANGE = (20_000, 32_000)
_ATTEMPTS = 200
_POLL_S = 0.05
_MAX_BYTES = 1 << 20
# Each claim is an open socket.
_MAX_LOOSE = 256
_BOOK = TypeAdapter(dict[str, Annotated[int, Field(gt=0, lt=65536)]])


class _Claim:
    """A port that is spoken for as long as this lives. Raises OSError when another claim has it."""

    def __init__(self, port: int) -> None:
        self._name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._name.bind(f"\0waybill-port-{port}")
        except OSError:
            self._name.close()
            raise

    def __del__(self) -> None:
        self._name.close()


# The books of one file share their claims: a stack that is started again in its folder finds its own ports.
_claims: WeakValueDictionary[tuple[Path, int], _Claim] = WeakValueDictionary()
_loose: deque[_Claim] = deque(maxlen=_MAX_LOOSE)


def is_free(port: int) -> bool:
    """Whether a listener could be bound to this loopback port now."""
    with socket.socket() as probe:
        # As the servers bind: closed connections of an earlier run, in TIME_WAIT, do not make a port taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A loopback port that nobody listens on and nobody speaks for; this process does from now on."""
    port, claim = _choose(set())
    _loose.append(claim)
    return port


def _choose(taken: set[int]) -> tuple[int, _Claim]:
    for _ in range(_ATTEMPTS):
        port = random.randrange(*_RANGE)
        if port in taken:
            continue
        try:
            claim = _Claim(port)
        except OSError:
            continue
        # Looked at after the claim: before it, another process could take the port between the look and the claim.
        if is_free(port):
            return port, claim
    raise OSError(f"no free loopback port between {_RANGE[0]} and {_RANGE[1]} after {_ATTEMPTS} attempts")


class PortBook:
    """Ports by name, remembered in a JSON file; a name keeps its port if that is free. Raises FolderDamaged.

    A process that was just killed still holds its ports while the kernel takes it apart, so the book waits for them:
    `timeout_s` in all, however many are taken. Keep the book until the servers listen: it speaks for their ports.
    """

    def __init__(self, file: Path, *, timeout_s: float = 5.0) -> None:
        self._file = file.absolute()
        self._timeout_s = timeout_s
        self._remembered = _read(file)
        self._given: dict[str, int] = {}
        self._held: list[_Claim] = []

    def port(self, name: str) -> int:
        """The port of this name: the remembered one if it gets free, else a new one; the same for the book's life."""
        if name not in self._given:
            port = self._remembered.get(name)
            claim = None if port is None or port in self._given.values() else self._claim_when_free(port)
            if port is None or claim is None:
                # Nor the remembered port of another name: its server may be started after this one.
                port, claim = _choose({*self._given.values(), *self._remembered.values()})
                _claims[self._file, port] = claim
            self._held.append(claim)
            self._given[name] = self._remembered[name] = port
            replace_durably(self._file, json.dumps(self._remembered, indent=2, sort_keys=True).encode())
        return self._given[name]

    def _claim_when_free(self, port: int) -> _Claim | None:
        while (claim := self._claimed(port)) is None or not is_free(port):
            if self._timeout_s <= 0:
                return None
            self._timeout_s -= _POLL_S
            time.sleep(_POLL_S)
        return claim

    def _claimed(self, port: int) -> _Claim | None:
        if (own := _claims.get((self._file, port))) is not None:
            return own
        try:
            claim = _Claim(port)
        except OSError:
            return None
        _claims[self._file, port] = claim
        return claim


def _read(file: Path) -> dict[str, int]:
    if not file.exists():
        return {}
    try:
        return _BOOK.validate_json(read_bounded(file, _MAX_BYTES))
    except ValueError as error:  # a ValidationError is one, too
        raise FolderDamaged(file, "is not a book of ports", "delete it, and new ports are chosen") from error
