"""Connections that a region's broker refused, counted from its log, which `waybill.mqtt.broker_log` writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import structlog

from gateway.access.broker import SessionGuard
from gateway.access.config import AccessSettings, BrokerProcessPlace
from gateway.errors import BrokerUnreachable, SessionNotEnded

# The logs of both brokers, and sessions that are ended because of them.

_MAX_ENDED = 2000
"""Sessions that one call ends."""
_LOG = structlog.get_logger("access")


class BrokerLogs:
    """The logs of the brokers that have `log_file`. `guard`: of the devices' broker."""

    def __init__(self, settings: AccessSettings, guard: SessionGuard) -> None:
        self._logs, self._guard = dict(_logs(settings)), guard

    def read(self) -> None:
        """Count the new lines."""
        for log in self._logs.values():
            log.read()

    def end_sessions(self) -> None:
        """End sessions that devices left behind, and sessions with too many subscriptions.

        No agent asks for a session that outlives its connection. Mosquitto up to 2.0.22 crashes if it reads its files
        while such a session exists, so call this before each signal.
        """
        if (log := self._logs.get("devices")) is None:
            return
        kept = list[str]()
        # A broker that is away has no sessions, and it logs those that it restores.
        with suppress(BrokerUnreachable):
            for _ in range(_MAX_ENDED):
                # Read again before each, because a device that has come back keeps its connection.
                log.read()
                if (device := log.take_suspect()) is None:
                    break
                with suppress(SessionNotEnded):
                    kept += [device] * self._guard.end_and_report(device)
        if kept:
            log.refused[RefusedConnection.KEPT_SESSION] += len(kept)
            _LOG.warning("sessions that devices left behind were ended", count=len(kept), last_device=kept[-1])

    @property
    def connections_refused(self) -> dict[str, dict[str, int]]:
        return {broker: {str(why): count for why, count in log.refused.items()} for broker, log in self._logs.items()}


def _logs(settings: AccessSettings) -> Iterator[tuple[str, BrokerLog]]:
    places: dict[str, BrokerProcessPlace] = {"devices": settings.broker}
    if settings.enrolment is not None:
        places["claims"] = settings.enrolment.broker
    for broker, place in places.items():
        if place.log_file is not None:
            yield broker, BrokerLog(place.log_file)


MAX_READ_BYTES = 1 << 20
"""Bytes that one call reads."""


class RefusedConnection(StrEnum):
    NO_CERTIFICATE = "no-certificate"
    """The client showed none."""
    NOT_VERIFIED = "not-verified"
    """It is expired, revoked, of another authority, or not for a client: OpenSSL says no more than that."""
    NOT_AUTHORISED = "not-authorised"
    """User name or password are wrong, or the name may not connect."""
    TLS = "tls"
    """Another failure of the handshake."""
    KEPT_SESSION = "kept-session"
    """A device left a session behind, and the daemon ended it."""
    SUBSCRIPTIONS = "subscriptions"
    """Topics that a device asked for beyond `broker_log.MAX_SUBSCRIPTIONS`; the daemon ended its session."""
    FORGED = "forged-publication"
    """Batches or acknowledgements that a device published on the topic of another one."""


_LINES = (
    (RefusedConnection.NO_CERTIFICATE, re.compile(r"peer did not return a certificate")),
    (RefusedConnection.NOT_VERIFIED, re.compile(r"certificate verify failed")),
    (RefusedConnection.NOT_AUTHORISED, re.compile(r"^Client .* disconnected, not authori[sz]ed\.$")),
    (RefusedConnection.TLS, re.compile(r"OpenSSL Error\[0\]: (?!.*unexpected eof)")),
)


def refused_connection(line: str) -> RefusedConnection | None:
    # Clients choose their ids, which are in other lines, so OpenSSL's text must follow the time.
    text = line.split(": ", 1)[-1]
    is_of_tls = text.startswith("OpenSSL Error[")
    for reason, pattern in _LINES:
        if pattern.search(text) and (is_of_tls or reason is RefusedConnection.NOT_AUTHORISED):
            return reason
    return None


_CONNECTED = re.compile(r"^\S+: New client connected from .* as ([^\s/]+/[^\s/]+) \(p\d, c\d, k\d+, u'(.*)'\)\.$")
_LEFT = re.compile(r"^\S+: Client ([^\s/]+/[^\s/]+) (?:disconnected|closed its connection|has exceeded timeout)")
_SUBSCRIBED = re.compile(r"^\S+: (?:x(\d{1,9}) )?Denied SUBSCRIBE from ([^\s/]+/[^\s/]+)$")
_FORGED = re.compile(
    r"^\S+: (?:x(\d{1,9}) )?Denied PUBLISH from (\S+) "
    r"\(d\d, q\d, r\d, m\d+, 'waybill/\d+/(?!\2/)[^/']+/[^/']+/(?:batch|ack)', "
)
_MAX_SUSPECTS = 20_000


class BrokerLog:
    """Counts refusals in a growing log. A log that was replaced or emptied is read from its beginning."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0
        self._inode = 0
        self.refused: Counter[RefusedConnection] = Counter()
        self._guarded: set[str] = set()
        self._suspects: dict[str, None] = {}

    def take_suspect(self) -> str | None:
        """The last device that left or has too many subscriptions, whose session must end."""
        return self._suspects.popitem()[0] if self._suspects else None

    def read(self) -> None:
        """Count the new lines. A missing or unreadable log counts as empty."""
        try:
            # Opened each time, because a rotated log is another file.
            with self._file.open("rb") as log:
                about = self._file.stat()
                if about.st_ino != self._inode or about.st_size < self._offset:
                    self._inode, self._offset = about.st_ino, 0
                log.seek(self._offset)
                content = log.read(MAX_READ_BYTES)
        except OSError:
            return
        # The last line may be incomplete. A line that fills the whole buffer is taken as it is.
        whole = content.rfind(b"\n") + 1 or (len(content) if len(content) == MAX_READ_BYTES else 0)
        self._offset += whole
        # Not splitlines: a topic may have other characters that end a line.
        for line in content[:whole].decode("utf-8", "replace").split("\n"):
            if (reason := refused_connection(line)) is not None:
                self.refused[reason] += 1
            else:
                self._follow(line)

    def _follow(self, line: str) -> None:
        if (connected := _CONNECTED.match(line)) is not None:
            device, user = connected.groups()
            # The guard connects with the device's client id but its own user name.
            (self._guarded.discard if user == device else self._guarded.add)(device)
            self._suspects.pop(device, None)
        elif (left := _LEFT.match(line)) is not None:
            if left[1] in self._guarded:
                self._guarded.discard(left[1])
            elif len(self._suspects) < _MAX_SUSPECTS:
                self._suspects[left[1]] = None
        elif (subscribed := _SUBSCRIBED.match(line)) is not None:
            self.refused[RefusedConnection.SUBSCRIPTIONS] += int(subscribed[1] or 1)
            self._suspects[subscribed[2]] = None
        elif (forged := _FORGED.match(line)) is not None:
            self.refused[RefusedConnection.FORGED] += int(forged[1] or 1)
