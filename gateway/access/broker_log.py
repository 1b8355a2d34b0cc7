"""Whom a region's broker did not let in, counted from its log: Mosquitto has no other place for it.

A connection that fails in its handshake reaches no topic and no plugin; the broker writes a line and forgets it.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum
from pathlib import Path

__all__ = ["BrokerLog", "RefusedConnection", "refused_connection"]

MAX_READ_BYTES = 1 << 20
"""Of the log at one time: the rest is read at the next."""


class RefusedConnection(StrEnum):
    """Why a connection was refused: the word in metrics."""

    NO_CERTIFICATE = "no-certificate"
    """The client showed none."""
    NOT_VERIFIED = "not-verified"
    """It is expired, revoked, of another authority, or not for a client: OpenSSL says no more than that."""
    NOT_AUTHORISED = "not-authorised"
    """User name or password are wrong, or the name may not connect."""
    TLS = "tls"
    """Another failure of the handshake."""


_LINES = (
    (RefusedConnection.NO_CERTIFICATE, re.compile(r"peer did not return a certificate")),
    (RefusedConnection.NOT_VERIFIED, re.compile(r"certificate verify failed")),
    (RefusedConnection.NOT_AUTHORISED, re.compile(r"^Client .* disconnected, not authori[sz]ed\.$")),
    (RefusedConnection.TLS, re.compile(r"OpenSSL Error\[0\]: (?!.*unexpected eof)")),
)


def refused_connection(line: str) -> RefusedConnection | None:
    """Why a connection was refused, if this line of the log says so."""
    # A client chooses its id, which stands in other lines: those of OpenSSL begin behind the time.
    text = line.split(": ", 1)[-1]
    is_of_tls = text.startswith("OpenSSL Error[")
    for reason, pattern in _LINES:
        if pattern.search(text) and (is_of_tls or reason is RefusedConnection.NOT_AUTHORISED):
            return reason
    return None


class BrokerLog:
    """Counts refused connections as a log grows; a log that was replaced or emptied is read from its beginning."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0
        self._inode = 0
        self.refused: Counter[RefusedConnection] = Counter()

    def read(self) -> None:
        """Count what was written since the last time. A log that is not there, or cannot be read, is not counted."""
        try:
            # Opened each time: a log that is rotated is another file under the same name.
            with self._file.open("rb") as log:
                about = self._file.stat()
                if about.st_ino != self._inode or about.st_size < self._offset:
                    self._inode, self._offset = about.st_ino, 0
                log.seek(self._offset)
                content = log.read(MAX_READ_BYTES)
        except OSError:
            return
        # The last line may not be whole yet; one that fills all of it never will be.
        whole = content.rfind(b"\n") + 1 or (len(content) if len(content) == MAX_READ_BYTES else 0)
        self._offset += whole
        lines = content[:whole].decode("utf-8", "replace").splitlines()
        self.refused.update(reason for reason in map(refused_connection, lines) if reason is not None)
