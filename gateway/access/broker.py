"""The broker's files and its secret: each file replaced whole, then one signal."""

from __future__ import annotations

import secrets
from pathlib import Path

from gateway.access.broker_process import BrokerProcess, reload_broker, running_broker
from gateway.access.config import GuardedBroker
from gateway.access.guard import SessionGuard
from gateway.access.revocation import RevocationList, lists_in
from waybill.daemon.durable_file import replace_durably
from waybill.daemon.folder_lock import alone_in
from waybill.identity.broker_rules import broker_rules, rules_version
from waybill.identity.names import PrincipalKind, principal

__all__ = ["BrokerFiles", "drawn_secret"]

# the broker runs as another user
_READABLE_BY_GROUP = 0o640


class BrokerFiles:
    """What the broker reads, as it is on disk. A file that says the same already is not written."""

    def __init__(self, settings: GuardedBroker, region: str, gateways: tuple[str, ...]) -> None:
        self._settings, self._region, self._gateways = settings, region, gateways
        self.guard_name = principal(PrincipalKind.ACCESS, region)
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

    def write_password(self, secret: str) -> bool:
        """Make the guard's password this secret; whether it was another. Raises OSError."""
        from waybill.identity.claims import broker_password, is_broker_password, password_file  # noqa: PLC0415 - seldom used

        path, begin = self._settings.password_file, f"{self.guard_name}:"
        lines = _read(path).decode(errors="replace").splitlines()
        # By the hash: that there is one says nothing of whose it is, once the secret's file was lost or restored.
        if any(line.startswith(begin) and is_broker_password(secret, line.removeprefix(begin)) for line in lines):
            return False
        hashes = {self.guard_name: broker_password(secret, secrets.token_bytes(12))}
        replace_durably(path, password_file(hashes), mode=_READABLE_BY_GROUP)
        return True

    def open_guard(self) -> SessionGuard:
        """The guard of this broker; its secret and password are made where there are none. Raises OSError."""
        secret = drawn_secret(self._settings.guard_secret_file)
        self.write_password(secret)
        return SessionGuard(self._settings.guard_socket, self.guard_name, secret)

    def process(self) -> BrokerProcess:
        """The broker's process. Raises BrokerUnreachable."""
        return running_broker(self._settings)

    def reload(self) -> BrokerProcess:
        """Have the broker read its files. Raises BrokerUnreachable."""
        return reload_broker(self._settings)

    def _rules(self, version: int, denied: frozenset[str]) -> bytes:
        return broker_rules(version, self._region, self._gateways, denied).encode()


def drawn_secret(path: Path) -> str:
    """The secret of a file, which is made where there is none; the same for all who ask at once. Raises OSError."""
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
