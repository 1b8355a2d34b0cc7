"""Every setting of the access daemon, with its unit and bound. `docs/access.md` explains each."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from gateway.config import RegistrySettings, Word
from waybill.daemon.logs import LogSettings
from waybill.daemon.status_reader import StatusEndpoint
from waybill.daemon.tls import TlsSettings
from waybill.identity.authority_folder import AuthorityFolder, add_certificates
from waybill.identity.broker_conf import MosquittoSettings, ServerFiles
from waybill.mqtt.broker_settings import BrokerSettings, Port
from waybill.settings import Settings


class BrokerServer(Settings):
    """How a broker is started: its configuration file, address, certificate and key.

    Only the broker reads the files of `tls`; its `ca` signed the clients. `bind`: None is every address.
    """

    conf_file: Path
    port: Port
    bind: str | None = None
    tls: TlsSettings

    @model_validator(mode="after")
    def _is_a_server(self) -> Self:
        if self.tls.certificate is None:
            raise ValueError("tls: a server has a certificate and a key")
        return self

    @property
    def files(self) -> ServerFiles:
        assert self.tls.certificate is not None
        assert self.tls.key is not None
        return ServerFiles(self.tls.certificate, self.tls.key)


class DeviceServer(BrokerServer):
    """The region's broker. `folder`: where it stores messages for clients that are away."""

    port: Port = 8883
    folder: Path
    bounds: MosquittoSettings = MosquittoSettings()


class ClaimServer(BrokerServer):
    """The enrolment broker. `factory_ca` signs factory certificates, which it accepts at `factory_port`."""

    port: Port = 8884
    factory_port: Port = 8885
    factory_ca: Path | None = None


class BrokerProcessPlace(Settings):
    """A broker on the same machine: the files that it reads, its process, and its log.

    `pid_file`: its process, if this program sees it; else `control_socket` of `waybill.mqtt.broker_log`.
    `program`: the expected process name; another process gets no signal. `log_file`: where refusals are counted.
    """

    rules_file: Path
    password_file: Path
    pid_file: Path | None = None
    control_socket: Path | None = None
    program: str = Field(default="mosquitto", min_length=1, max_length=15)
    log_file: Path | None = None
    server: BrokerServer | None = None

    @model_validator(mode="after")
    def _has_a_process(self) -> Self:
        if (self.pid_file is None) == (self.control_socket is None):
            raise ValueError("pid_file, control_socket: exactly one of them says where the broker's process is")
        return self


class GuardedBroker(BrokerProcessPlace):
    """The region's broker, and the socket for ending its sessions."""

    revocation_file: Path
    guard_socket: Path
    guard_secret_file: Path
    server: DeviceServer | None = None


class ClaimBroker(BrokerProcessPlace):
    server: ClaimServer | None = None


class EnrolmentPlace(Settings):
    """Enrolment of devices: the broker's files and the connections to both brokers.

    `secret_file`: the daemon's password at the enrolment broker; created if missing. `claims`: connection to the
    enrolment broker. `devices`: connection to the region's broker, with the daemon's certificate.
    """

    broker: ClaimBroker
    secret_file: Path
    claims: BrokerSettings
    devices: BrokerSettings
    certificate_days: float = Field(default=90, gt=0, le=3650)

    @model_validator(mode="after")
    def _has_one_secret(self) -> Self:
        if self.claims.username is not None:
            raise ValueError("claims.username: the daemon is access@REGION there, with the password in secret_file")
        return self


class AuthorityPlace(Settings):
    """The region's authority. `key`: its key file, if not in the folder.

    `source`: a folder whose certificates are added to `folder` at the start: the authority's own, and what the office
    issued, `SERIAL.pem`.
    """

    folder: Path
    key: Path | None = None
    source: Path | None = None

    def open(self) -> AuthorityFolder:
        """Raises AuthorityMissing, AuthorityFolderError."""
        if self.source is not None:
            add_certificates(self.folder, self.source)
        return AuthorityFolder.open(self.folder, self.key)


class AccessEndpoint(StatusEndpoint):
    port: Port = 9466


class AccessSettings(Settings):
    """One access daemon. `gateways`: the names of the gateways that may take batches from this broker."""

    region: Word
    insecure: bool = False
    gateways: tuple[Word, ...] = ()
    broker: GuardedBroker
    registry: RegistrySettings
    authority: AuthorityPlace
    enrolment: EnrolmentPlace | None = None
    status: AccessEndpoint = AccessEndpoint()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _has_a_key(self) -> Self:
        if self.registry.operators is not None and self.registry.key is None:
            raise ValueError(
                "registry.key: with operators, the daemon needs its own key to sign enrolments and confirmations"
            )
        return self
