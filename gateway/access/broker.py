"""The region's broker: its process, its sessions, its files, and the steps that change them."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from gateway.access.config import BrokerProcessPlace, GuardedBroker
from gateway.access.core import BrokerStep
from gateway.access.publisher import AccessPublisher
from gateway.access.revocation import OwnList, RevocationList, lists_in
from gateway.access.status import AccessMetrics
from gateway.errors import BrokerUnreachable, SessionNotEnded
from waybill.daemon.durable_file import alone_in, replace_durably
from waybill.identity.broker_conf import broker_rules, rules_version
from waybill.identity.claims import broker_password, is_broker_password, password_file
from waybill.identity.names import PrincipalKind, principal
from waybill.mqtt.broker_log import ProcessState, ask_broker, process_state

# The broker's process: found by its settings, reloaded by one signal.


class BrokerProcess(NamedTuple):
    """A process, and its own certificate, which it reads with the other files; empty if only the broker may read it."""

    pid: int
    started: str
    certificate: bytes


def running_broker(place: BrokerProcessPlace) -> BrokerProcess:
    """The broker's process. Raises BrokerUnreachable if there is none, or if it is another program."""
    return _process(place, _state(place))


def reload_broker(place: BrokerProcessPlace) -> BrokerProcess:
    """Send SIGHUP to a broker, so that it reads its files. Raises BrokerUnreachable."""
    process = running_broker(place)
    # SIGHUP would end a broker that has not installed its handler yet.
    state = _state(place, reload=True)
    if not state.is_ready:
        raise BrokerUnreachable(f"the broker, process {state.pid}, is not ready for a signal yet")
    if place.pid_file is not None:
        try:
            os.kill(state.pid, signal.SIGHUP)
        except OSError as error:
            raise BrokerUnreachable(f"the broker, process {state.pid}, cannot be signalled: {error}") from error
    return process


def _process(place: BrokerProcessPlace, state: ProcessState) -> BrokerProcess:
    certificate = b""
    with contextlib.suppress(OSError):
        certificate = _read(place.server.files.certificate) if place.server is not None else b""
    return BrokerProcess(state.pid, state.started, certificate)


def _state(place: BrokerProcessPlace, *, reload: bool = False) -> ProcessState:
    """The broker's process. `reload`: a broker with a control socket, if it is ready, reads its files."""
    try:
        if place.pid_file is None:
            return ask_broker(str(place.control_socket), reload=reload)
        state = process_state(int(place.pid_file.read_bytes().strip()))
    except (OSError, ValueError) as error:
        raise BrokerUnreachable(f"no broker runs ({place.pid_file or place.control_socket})") from error
    if state.program != place.program:
        raise BrokerUnreachable(
            f"process {state.pid} is {state.program}, not a running {place.program}: no signal is sent"
        )
    return state


# Session takeover: a connection with the same client id ends the device's session.

# The broker is on this machine.
_TIMEOUT_S: Final = 2.0
_CONNECT, _CONNACK, _DISCONNECT = 0x10, 0x20, b"\xe0\x00"
_MQTT_5: Final = 5
_USER, _PASSWORD, _CLEAN_START = 0x80, 0x40, 0x02
_KEEPALIVE_S: Final = 10
_NOBODY: Final = "nobody@guard"
"""A client id that no device or principal can have."""
_NOT_US: Final = (0x86, 0x87)
"""Bad user name or password, not authorised (MQTT 5, 3.2.2.2)."""
_MAX_ANSWER: Final = 1024
_MAX_PATH_BYTES: Final = 107
"""Size of `sun_path` (unix(7))."""


class SessionGuard:
    """Ends sessions by connecting with their client id. Each call is one connection with a timeout."""

    def __init__(self, path: Path, user: str, secret: str) -> None:
        self._path, self._user, self._secret = path, user, secret

    @property
    def secret(self) -> str:
        return self._secret

    def end(self, client_id: str) -> None:
        """End a client's session and delete it; no effect without one. Raises BrokerUnreachable."""
        self._connect(client_id, clean_start=True)

    def await_reload(self) -> None:
        """Wait until the broker has handled every earlier signal. Raises BrokerUnreachable.

        The broker answers a connection in a later turn of its loop. While it reads its files it ignores another signal.
        """
        self._connect(_NOBODY, clean_start=True)

    def end_and_report(self, client_id: str) -> bool:
        """End a client's session; whether it had one that outlives its connection. Raises BrokerUnreachable."""
        return self._connect(client_id, clean_start=False)

    def _connect(self, client_id: str, *, clean_start: bool) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_TIMEOUT_S)
                with _short(self._path) as path:
                    connection.connect(path)
                connection.sendall(self._packet(client_id, clean_start=clean_start))
                answer = connection.recv(_MAX_ANSWER)
                # Read the answer first: a refused connection is closed.
                had_session = self._had_session(answer)
                # A session without an expiry ends with its connection, so nothing is left.
                with contextlib.suppress(OSError):
                    connection.sendall(_DISCONNECT)
                return had_session
        except OSError as error:
            raise BrokerUnreachable(f"the broker's socket {self._path}: {error}") from error

    def _had_session(self, answer: bytes) -> bool:
        if len(answer) < 4 or answer[0] != _CONNACK:
            raise SessionNotEnded(f"the broker's socket {self._path} answers {answer[:8]!r}")
        if answer[3] in _NOT_US:
            raise BrokerUnreachable(
                f"the broker refuses {self._user} at {self._path} (reason {answer[3]:#x}):"
                " broker.password_file and broker.guard_secret_file contain different passwords; restart the daemon"
            )
        if answer[3]:
            raise SessionNotEnded(f"the broker refuses {self._user} at {self._path}: reason {answer[3]:#x}")
        return bool(answer[2] & 1)

    def _packet(self, client_id: str, *, clean_start: bool) -> bytes:
        # No will and no subscriptions: only the takeover counts.
        flags = _USER | _PASSWORD | (_CLEAN_START if clean_start else 0)
        body = _text("MQTT") + bytes([_MQTT_5, flags]) + struct.pack(">H", _KEEPALIVE_S) + b"\0"
        body += _text(client_id) + _text(self._user) + _text(self._secret)
        return bytes([_CONNECT]) + _length(len(body)) + body


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """A shorter path to the same socket, through the file descriptor of its folder."""
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
    """The variable-length integer of MQTT, for at most 16,383."""
    assert count < 1 << 14, count
    return bytes([count]) if count < 128 else bytes([count & 127 | 128, count >> 7])


# Execution of the core's steps: sessions, files, one signal, sessions again, publications.

_LOG = structlog.get_logger("access")


class StepRunner:
    """Executes the core's steps. After an error (OSError, BrokerUnreachable) the whole step is repeated."""

    def __init__(
        self,
        files: BrokerFiles,
        guard: SessionGuard,
        publisher: AccessPublisher,
        metrics: AccessMetrics,
        *,
        own_list: OwnList,
        before_reload: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._files, self._guard, self._publisher, self._metrics = files, guard, publisher, metrics
        self._clock, self._before_reload = clock, before_reload
        self.own_list = own_list
        self._published: RevocationList | None = None
        self._reloaded: BrokerProcess | None = None

    @property
    def is_other_broker(self) -> bool:
        """Whether the broker was started, or got another certificate, after the last reload."""
        try:
            return self._files.process() != self._reloaded
        except BrokerUnreachable:
            return False

    def run(self, step: BrokerStep) -> BrokerStep | None:
        """Apply a step to the broker. Returns what is left of it: sessions that the broker did not end."""
        self._cut(step.end)
        is_changed = self._files.write_rules(step.denied)
        own = self.own_list.update(step.revoked, self._now())
        is_changed |= self._files.write_lists([own, *step.lists])
        if is_changed or self.is_other_broker:
            self._reload()
        # After the reload, so that a device that reconnects at once meets the new rules.
        left = [name for name in step.end if not self._is_ended(name)]
        self._publish_list()
        if confirmed := [one for one in step.confirm if one.device not in left]:
            self._publisher.confirm(confirmed, self._clock())
        if not left:
            return None
        return step._replace(end=tuple(left), confirm=tuple(one for one in step.confirm if one.device in left))

    def renew(self) -> None:
        """Renew the region's own list when it is due, with the same serials. Works without the registry."""
        if not self.own_list.is_due(self._now()):
            return
        own = self.own_list.update(None, self._now())
        # The lists of other regions, as they were when the registry was last read.
        others = [one for issuer, one in sorted(self._files.lists.items()) if issuer != own.issuer]
        if self._files.write_lists([own, *others]):
            self._reload()
        self._publish_list()

    def end_returned_sessions(self, names: list[str]) -> list[str]:
        """End the sessions of these devices that connected again, and return their names."""
        again = [name for name in names if self._guard.end_and_report(name)]
        for name in again:
            self._guard.end(name)
            self._metrics.counts["sessions_came_back"] += 1
            _LOG.warning("a locked-out device had connected again; its session was ended", device=name)
        return again

    def _cut(self, names: Iterable[str]) -> None:
        # Devices that connect again are ended after the reload. A broker that is away still needs its files.
        with contextlib.suppress(BrokerUnreachable):
            for name in names:
                with contextlib.suppress(SessionNotEnded):
                    self._guard.end(name)

    def _is_ended(self, name: str) -> bool:
        try:
            self._guard.end(name)
        except SessionNotEnded as error:
            # The sessions of other devices still end.
            _LOG.error("a session could not be ended", device=name, problem=str(error))
            return False
        self._metrics.counts["sessions_ended"] += 1
        return True

    def _reload(self) -> None:
        # Reset first, so that a failed signal is repeated although the files are written.
        self._reloaded = None
        self._files.write_password(self._guard.secret)
        self._before_reload()
        reloaded = self._files.reload()
        self._guard.await_reload()
        self._reloaded = reloaded
        self._metrics.counts["reloads"] += 1

    def _publish_list(self) -> None:
        if (own := self.own_list.current) is not None and own is not self._published:
            self._publisher.publish_list(own)
            self._published = own

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


# The broker runs as another user.
_READABLE_BY_GROUP = 0o640


class BrokerFiles:
    """The files that the broker reads. A file with the same content is not written again."""

    def __init__(self, settings: GuardedBroker, region: str, gateways: tuple[str, ...]) -> None:
        self._settings, self._region, self._gateways = settings, region, gateways
        self.guard_name = principal(PrincipalKind.ACCESS, region)
        self.rules_version = rules_version(_read(settings.rules_file).decode(errors="replace"))

    @property
    def lists(self) -> dict[str, RevocationList]:
        return lists_in(_read(self._settings.revocation_file))

    def write_rules(self, denied: frozenset[str]) -> bool:
        """Deny exactly these devices; whether the file changed. Raises OSError."""
        path = self._settings.rules_file
        # The same rules keep their version, so readers of the file see whether anything changed.
        if _read(path) == self._rules(self.rules_version, denied):
            return False
        self.rules_version += 1
        return write_if_changed(path, self._rules(self.rules_version, denied))

    def write_lists(self, lists: list[RevocationList]) -> bool:
        """Write these lists; whether the file changed. Raises OSError."""
        return write_if_changed(self._settings.revocation_file, b"".join(one.pem for one in lists))

    def write_password(self, secret: str) -> bool:
        """Make this secret the guard's password; whether the file changed. Raises OSError."""
        path = self._settings.password_file
        return write_if_changed(path, password_file({self.guard_name: password_hash(path, self.guard_name, secret)}))

    def open_guard(self) -> SessionGuard:
        """The guard of this broker. Missing secret and password files are created. Raises OSError."""
        secret = drawn_secret(self._settings.guard_secret_file)
        self.write_password(secret)
        return SessionGuard(self._settings.guard_socket, self.guard_name, secret)

    def process(self) -> BrokerProcess:
        return running_broker(self._settings)

    def reload(self) -> BrokerProcess:
        return reload_broker(self._settings)

    def _rules(self, version: int, denied: frozenset[str]) -> bytes:
        return broker_rules(version, self._region, self._gateways, denied).encode()


def write_if_changed(path: Path, content: bytes) -> bool:
    """Replace a file that has other content; whether it had. Raises OSError."""
    if _read(path) == content:
        return False
    replace_durably(path, content, mode=_READABLE_BY_GROUP)
    return True


def password_hash(path: Path, user: str, secret: str) -> str:
    """The hash of a user's secret, as a password file has it; a new one if the file has none of this secret."""
    begin = f"{user}:"
    for line in _read(path).decode(errors="replace").splitlines():
        if line.startswith(begin) and is_broker_password(secret, line.removeprefix(begin)):
            return line.removeprefix(begin)
    return broker_password(secret, secrets.token_bytes(12))


def drawn_secret(path: Path) -> str:
    """The secret in a file, which is created if missing. Two callers at once get the same one. Raises OSError."""
    with alone_in(path.parent):
        secret = _read(path).decode(errors="replace").strip()
        if not secret:
            secret = secrets.token_urlsafe(32)
            replace_durably(path, secret.encode(), mode=0o600)
    return secret


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
