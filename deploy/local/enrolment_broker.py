"""A region's enrolment broker: a second, small Mosquitto, which nobody but who has no certificate yet may reach.

A broker of its own, because a device's broker can be led to forget a session by a client without a certificate.
"""

import getpass
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import FilePath

from deploy.local.mosquitto import NO_RESUMPTION, mosquitto_program
from deploy.local.ports import PortBook
from deploy.local.server import Server
from deploy.local.server_health import Health, MqttHealth
from waybill.identity.broker_conf import (
    ServerFiles,
    broker_command,
    broker_log_lines,
    conf_text,
    enrolment_broker_lines,
)
from waybill.settings import Settings

__all__ = ["EnrolmentBroker", "EnrolmentBrokerFiles"]

_HOST = "127.0.0.1"


class EnrolmentBrokerFiles(Settings):
    """What the broker reads. `factory_ca`: who signs factory certificates; without it only tokens are taken."""

    certificate: FilePath
    key: FilePath
    rules: FilePath
    passwords: FilePath
    factory_ca: FilePath | None = None


class EnrolmentBroker(Server):
    """Two listeners: tokens with TLS and a password (`port`), factory certificates with mutual TLS (`factory_port`)."""

    kind = "mosquitto"
    start_timeout_s = 20.0
    stop_timeout_s = 5.0

    def __init__(self, name: str, folder: Path, files: EnrolmentBrokerFiles, *, ports: PortBook | None = None) -> None:
        super().__init__(f"enrolment-{name}", folder)
        self.region, self.files = name, files
        self.folder.mkdir(parents=True, exist_ok=True)
        book = ports or PortBook(self.folder / "ports.json")
        self.port = book.port(self.name)
        self.factory_port = book.port(f"{self.name}.factory")
        self._program = mosquitto_program()

    def addresses(self) -> dict[str, str]:
        """Where tokens are taken, and where factory certificates are."""
        tokens = {"url": f"mqtts://{_HOST}:{self.port}"}
        return (
            tokens if self.files.factory_ca is None else {**tokens, "factory": f"mqtts://{_HOST}:{self.factory_port}"}
        )

    def prepare(self) -> None:
        """Write mosquitto.conf."""
        self._conf.write_text(conf_text(self._lines()))

    def command(self) -> Sequence[str]:
        """Mosquitto in the foreground."""
        return broker_command(self._program, self._conf, self.log)

    def environment(self) -> Mapping[str, str]:
        """See Server."""
        return {"OPENSSL_CONF": str(NO_RESUMPTION)}

    def signal_reload(self) -> None:
        """Have the broker read its passwords and rules again. Who is not in them any more is disconnected."""
        if self.pid is not None:
            os.kill(self.pid, signal.SIGHUP)

    def health(self) -> Health:
        """Whether the broker accepts a connection with TLS."""
        return MqttHealth(port=self.port, is_plain=False)

    @property
    def _conf(self) -> Path:
        return self.folder / "mosquitto.conf"

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
