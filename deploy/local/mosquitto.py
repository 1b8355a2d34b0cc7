"""Real Mosquitto brokers on loopback: of a region, of a vehicle, and for enrolment."""

import getpass
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import FilePath

from deploy.local.errors import ProgramMissing
from deploy.local.ports import PortBook
from deploy.local.server import Server, mqtt_answers, port_is_open
from waybill.daemon.durable_file import replace_durably
from waybill.daemon.tls import TlsSettings
from waybill.identity.broker_conf import (
    MosquittoSettings,
    ServerFiles,
    broker_access_lines,
    broker_command,
    broker_lines,
    broker_log_lines,
    conf_text,
    device_listener_lines,
    enrolment_broker_lines,
    rules_version,
)
from waybill.settings import Settings

_HOST = "127.0.0.1"
NO_RESUMPTION = Path(__file__).parents[1] / "systemd" / "mosquitto-openssl.cnf"
"""OpenSSL's settings of brokers: a session that is resumed would be let in whose certificate has ended."""
_GUARD = "guard/socket"


def mosquitto_program() -> str:
    """The path of the broker's program. Raises ProgramMissing."""
    # Debian puts it into /usr/sbin, which is not on every user's PATH.
    program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise ProgramMissing("mosquitto", "install it (Debian: apt-get install mosquitto)")
    return program


class TlsFiles(TlsSettings):
    """PEM files of a client or server: its authority, its certificate, its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MosquittoSecurity:
    """Mutual TLS: the listener's own files, and the rights of clients (`rules`, Mosquitto's acl_file; none:
    everything).

    The common name of a client's certificate is its user name and client id, whatever it sends. `probe`: the
    certificate with which the stack asks whether the broker answers. `has_access_daemon`: the broker also reads
    revocation lists and passwords (`access_files`, which must exist when it starts), and an access daemon may end
    sessions.
    """

    tls: TlsFiles
    rules: str | None = None
    probe: TlsFiles | None = None
    has_access_daemon: bool = False


class BrokerAccessFiles(NamedTuple):
    """The files that a broker and its access daemon share. `guard_socket` is in a folder that only their user may
    enter.
    """

    revocations: Path
    passwords: Path
    guard_socket: Path
    pid: Path


class _Mosquitto(Server):
    """One Mosquitto in its own folder, in the foreground."""

    start_timeout_s = 20.0
    stop_timeout_s = 5.0

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._program = mosquitto_program()
        self._conf = self.folder / "mosquitto.conf"

    def command(self) -> Sequence[str]:
        return broker_command(self._program, self._conf, self.log)

    def environment(self) -> Mapping[str, str]:
        return {"OPENSSL_CONF": str(NO_RESUMPTION)}


class MosquittoBroker(_Mosquitto):
    """One Mosquitto with persistence in its own folder."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        settings: MosquittoSettings | None = None,
        ports: PortBook | None = None,
        security: MosquittoSecurity | None = None,
    ) -> None:
        super().__init__(f"mosquitto-{name}", folder)
        self.region = name
        self.settings = settings or MosquittoSettings()
        self.security = security
        self.port = (ports or PortBook(self.folder / "ports.json")).port(self.name)
        folder = self.folder
        self.rules_file = folder / "rules.acl"
        """The rights of clients; after a change the broker needs SIGHUP."""
        self.access_files = BrokerAccessFiles(
            folder / "revocations.pem", folder / "passwords", folder / _GUARD, folder / "mosquitto.pid"
        )

    def addresses(self) -> dict[str, str]:
        return {"url": f"{'mqtts' if self.security else 'mqtt'}://{_HOST}:{self.port}"}

    def prepare(self) -> None:
        """Write mosquitto.conf, and the rules unless newer ones exist."""
        # An access daemon writes them too, with versions that grow: a broker that is started again keeps those.
        rules = self.security and self.security.rules
        if rules and _rules_version(self.rules_file) <= rules_version(rules):
            replace_durably(self.rules_file, rules.encode(), mode=0o600)
        if self.security and self.security.has_access_daemon:
            self.access_files.guard_socket.parent.mkdir(exist_ok=True, mode=0o700)
        self._conf.write_text(conf_text(self._lines()))

    def environment(self) -> Mapping[str, str]:
        return super().environment() if self.security else {}

    def probe(self) -> bool:
        """Whether the broker answers a CONNECT; without a certificate, whether it accepts a connection."""
        if self.security is None:
            return mqtt_answers(self.port)
        return mqtt_answers(self.port, self.security.probe) if self.security.probe else port_is_open(self.port)

    def _lines(self) -> list[str]:
        lines = broker_lines(self.port, _HOST, self.folder, self.settings)
        # As root it would become another user, who may not write to our folder.
        lines += [*broker_log_lines(), f"user {getpass.getuser()}"]
        if self.security is None:
            return [*lines, "allow_anonymous true"]
        tls, files = self.security.tls, self.access_files
        own = ServerFiles(tls.certificate, tls.key)
        lines += device_listener_lines(own, tls.ca, self.rules_file if self.security.rules else None)
        if self.security.has_access_daemon:
            lines += broker_access_lines(
                revocations=files.revocations,
                passwords=files.passwords,
                pid_file=files.pid,
                # Relative, as the broker runs in its folder: the path of a socket has at most 107 bytes.
                guard_socket=_GUARD,
            )
        return lines


def _rules_version(file: Path) -> int:
    return rules_version(file.read_text()) if file.exists() else 0


# The enrolment broker of a region: a second Mosquitto for devices without a certificate.


class EnrolmentBrokerFiles(Settings):
    """The files that the broker reads. `factory_ca`: the authority of factory certificates; without it only tokens
    count.
    """

    certificate: FilePath
    key: FilePath
    rules: FilePath
    passwords: FilePath
    factory_ca: FilePath | None = None


class EnrolmentBroker(_Mosquitto):
    """Two listeners: tokens with TLS and a password (`port`), factory certificates with mutual TLS (`factory_port`)."""

    def __init__(self, name: str, folder: Path, files: EnrolmentBrokerFiles, *, ports: PortBook | None = None) -> None:
        super().__init__(f"enrolment-{name}", folder)
        self.region, self.files = name, files
        book = ports or PortBook(self.folder / "ports.json")
        self.port = book.port(self.name)
        self.factory_port = book.port(f"{self.name}.factory")

    def addresses(self) -> dict[str, str]:
        """`url` for tokens, `factory` for factory certificates."""
        return {"url": f"mqtts://{_HOST}:{self.port}", "factory": f"mqtts://{_HOST}:{self.factory_port}"}

    def prepare(self) -> None:
        self._conf.write_text(conf_text(self._lines()))

    def signal_reload(self) -> None:
        """Have the broker read its passwords and rules again; it disconnects clients that they no longer name."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGHUP)

    def probe(self) -> bool:
        return port_is_open(self.port)

    def _lines(self) -> list[str]:
        files = self.files
        lines = enrolment_broker_lines(
            ServerFiles(files.certificate, files.key),
            port=self.port,
            bind=_HOST,
            rules=files.rules,
            passwords=files.passwords,
            pid_file=self.folder / "mosquitto.pid",
            factory_port=self.factory_port,
            factory_ca=files.factory_ca,
        )
        # As root it would become another user, who may not read our files.
        return [*lines, *broker_log_lines(), f"user {getpass.getuser()}"]
