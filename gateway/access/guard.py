"""Ending sessions on the region's broker: whoever connects with a client id takes over the session of that id.

Over the broker's Unix socket, where only the access daemon gets in. An MQTT 5 CONNECT, its CONNACK and a DISCONNECT are
all that is spoken; the broker ends the other connection before it answers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.errors import BrokerUnreachable, GuardRefused, SessionNotEnded

__all__ = ["SessionGuard"]

# the broker is on this machine, behind a socket
_TIMEOUT_S: Final = 2.0
_CONNECT, _CONNACK, _DISCONNECT = 0x10, 0x20, b"\xe0\x00"
_MQTT_5: Final = 5
_USER, _PASSWORD, _CLEAN_START = 0x80, 0x40, 0x02
_KEEPALIVE_S: Final = 10
_NOBODY: Final = "nobody@guard"
"""A client id that nobody has: names of principals begin with their kind, those of devices have a slash."""
_NOT_US: Final = (0x86, 0x87)
"""Bad user name or password, not authorised (MQTT 5, 3.2.2.2)."""
_MAX_ANSWER: Final = 1024
_MAX_PATH_BYTES: Final = 107
"""What `sun_path` holds (unix(7))."""


class SessionGuard:
    """Takes sessions over by the client id that they have. Each call is one connection, bounded in time."""

    def __init__(self, path: Path, user: str, secret: str) -> None:
        self._path, self._user, self._secret = path, user, secret

    @property
    def secret(self) -> str:
        """What it shows to the broker."""
        return self._secret

    def end(self, client_id: str) -> None:
        """End the session of a client, and forget it; harmless if there is none. Raises BrokerUnreachable."""
        self._connect(client_id, clean_start=True)

    def await_reload(self) -> None:
        """Return when the broker has done what a signal asked of it before this call. Raises BrokerUnreachable.

        A connection is answered by a later turn of its loop; while it reads its files it forgets another signal.
        """
        self._connect(_NOBODY, clean_start=True)

    def was_there(self, client_id: str) -> bool:
        """Whether the client had a session that outlives its connection; it is ended. Raises BrokerUnreachable."""
        return self._connect(client_id, clean_start=False)

    def _connect(self, client_id: str, *, clean_start: bool) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_TIMEOUT_S)
                with _short(self._path) as path:
                    connection.connect(path)
                connection.sendall(self._packet(client_id, clean_start=clean_start))
                answer = connection.recv(_MAX_ANSWER)
                # First what it says: who is refused has no connection any more.
                had_session = self._had_session(answer)
                # A session without an expiry ends with its connection: nothing of ours stays behind.
                with contextlib.suppress(OSError):
                    connection.sendall(_DISCONNECT)
                return had_session
        except OSError as error:
            raise BrokerUnreachable(f"the broker's socket {self._path}: {error}") from error

    def _had_session(self, answer: bytes) -> bool:
        if len(answer) < 4 or answer[0] != _CONNACK:
            raise SessionNotEnded(f"the broker's socket {self._path} answers {answer[:8]!r}")
        if answer[3] in _NOT_US:
            raise GuardRefused(
                f"the broker refuses {self._user} at {self._path} (reason {answer[3]:#x}): what it has read of"
                " broker.password_file is not the password in broker.guard_secret_file"
            )
        if answer[3]:
            raise SessionNotEnded(f"the broker refuses {self._user} at {self._path}: reason {answer[3]:#x}")
        return bool(answer[2] & 1)

    def _packet(self, client_id: str, *, clean_start: bool) -> bytes:
        # No will, no subscriptions: it is there to take a place and to leave it.
        flags = _USER | _PASSWORD | (_CLEAN_START if clean_start else 0)
        body = _text("MQTT") + bytes([_MQTT_5, flags]) + struct.pack(">H", _KEEPALIVE_S) + b"\0"
        body += _text(client_id) + _text(self._user) + _text(self._secret)
        return bytes([_CONNECT]) + _length(len(body)) + body


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A path to the same socket that is short enough for one: a folder that is open has a short name too."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def _length(count: int) -> bytes:
    """A length as MQTT has it, of at most 16,383."""
    assert count < 1 << 14, count
    return bytes([count]) if count < 128 else bytes([count & 127 | 128, count >> 7])
