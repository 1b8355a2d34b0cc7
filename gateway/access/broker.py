"""The broker's files and its process: each file replaced whole, then one signal."""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path
from typing import NamedTuple

from gateway.access.config import GuardedBroker
from gateway.access.guard import SessionGuard
from gateway.access.revocation import RevocationList, lists_in
from gateway.errors import BrokerUnreachable
from identity.broker_rules import broker_rules, rules_version
from identity.names import PrincipalKind, principal
from runtime.durable_file import replace_durably

__all__ = ["BrokerFiles", "BrokerProcess", "open_guard"]

_READABLE_BY_GROUP = 0o640


class BrokerProcess(NamedTuple):
    """Which process it is. `started`: by the system's clock ticks, so that a number used again is another process."""

    pid: int
    started: str


class BrokerFiles:
    """What the broker reads, as it is on disk. A file that says the same already is not written."""

    def __init__(self, settings: GuardedBroker, region: str, gateways: tuple[str, ...]) -> None:
        self._settings, self._region, self._gateways = settings, region, gateways
        self.rules_version = rules_version(_read(settings.rules_file).decode(errors="replace"))

    @property
    def lists(self) -> dict[str, RevocationList]:
        """The lists that are on disk, by issuer."""
        return lists_in(_read(self._settings.revocation_file))

    def write_rules(self, denied: frozenset[str]) -> bool:
        """Make the rules deny these devices and no others; whether they did not yet. Raises OSError."""
        path = self._settings.rules_file
        # The same rules have the same version: who reads it sees whether anything changed.
        if _read(path) == self._rules(self.rules_version, denied):
            return False
        replace_durably(path, self._rules(self.rules_version + 1, denied), mode=_READABLE_BY_GROUP)
        self.rules_version += 1
        return True

    def write_lists(self, lists: list[RevocationList]) -> bool:
        """Make the file have these lists; whether it had others. Raises OSError."""
        path, content = self._settings.revocation_file, b"".join(one.pem for one in lists)
        if _read(path) == content:
            return False
        replace_durably(path, content, mode=_READABLE_BY_GROUP)
        return True

    def process(self) -> BrokerProcess:
        """The broker's process. Raises BrokerUnreachable if there is none, or it is another program."""
        settings = self._settings
        try:
            pid = settings.pid or int(_read(settings.pid_file).strip() if settings.pid_file else 0)
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError) as error:
            raise BrokerUnreachable(f"no broker runs ({settings.pid_file or settings.pid})") from error
        # The name stands in parentheses and may have any character, also those.
        name, after = stat[stat.index("(") + 1 : stat.rindex(")")], stat[stat.rindex(")") + 2 :].split()
        if name != settings.program or after[0] == "Z":
            raise BrokerUnreachable(f"process {pid} is {name}, no running {settings.program}: it gets no signal")
        return BrokerProcess(pid, after[19])

    def reload(self) -> BrokerProcess:
        """Have the broker read its files. Raises BrokerUnreachable."""
        process = self.process()
        # Before it handles the signal, a broker that is starting would end by it.
        if not _handles_hangup(process.pid):
            raise BrokerUnreachable(f"the broker, process {process.pid}, is not ready for a signal yet")
        try:
            os.kill(process.pid, signal.SIGHUP)
        except OSError as error:
            raise BrokerUnreachable(f"the broker, process {process.pid}, takes no signal: {error}") from error
        return process

    def _rules(self, version: int, denied: frozenset[str]) -> bytes:
        return broker_rules(version, self._region, self._gateways, denied).encode()


def open_guard(settings: GuardedBroker, region: str) -> SessionGuard:
    """The guard of a broker; its secret and the password file are made where there are none. Raises OSError."""
    from identity.claims import broker_password, password_file  # noqa: PLC0415 - made once

    user, path = principal(PrincipalKind.ACCESS, region), settings.guard_secret_file
    secret = _read(path).decode(errors="replace").strip()
    if not secret:
        secret = secrets.token_urlsafe(32)
        replace_durably(path, secret.encode(), mode=0o600)
    if f"{user}:" not in _read(settings.password_file).decode(errors="replace"):
        line = {user: broker_password(secret, secrets.token_bytes(12))}
        replace_durably(settings.password_file, password_file(line), mode=_READABLE_BY_GROUP)
    return SessionGuard(settings.guard_socket, user, secret)


def _handles_hangup(pid: int) -> bool:
    """Whether a process has a handler for SIGHUP (`SigCgt` of proc(5))."""
    lines = _read(Path(f"/proc/{pid}/status")).decode(errors="replace").splitlines()
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.SIGHUP - 1) & 1)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
