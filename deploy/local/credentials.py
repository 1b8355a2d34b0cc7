"""The credentials of one stack: its authorities, its servers' certificates, and a token for each role."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from deploy.local.mosquitto import EnrolmentBroker, EnrolmentBrokerFiles, MosquittoBroker, TlsFiles
from deploy.local.ports import PortBook
from deploy.local.pulsar import PulsarSecurity
from deploy.local.server import DaemonProcess, Server, http_health
from geo.replication import Topology
from geo.replication.model import BROKERS
from waybill.daemon.durable_file import replace_durably
from waybill.identity.authority import KeyPair
from waybill.identity.authority_folder import AuthorityFolder, IssuedCertificate
from waybill.identity.errors import AuthorityMissing
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.pki_folder import PkiFolder, credentials_in, write_credentials
from waybill.identity.registry_messages import ENROLMENT_KIND
from waybill.identity.signatures import (
    NewOperator,
    OperatorKey,
    read_operator_key,
    read_operators,
    trust_operator,
    trusted_key,
    write_operator,
)
from waybill.identity.tokens import TokenIssuer
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import load

# Certificate authorities of the stack.

_AUTHORITY_LIFE, _LIFE = timedelta(days=3650), timedelta(days=365)
_LOOPBACK = ("localhost", "127.0.0.1")


class LocalAuthority:
    """The authorities of a folder, created once, and the certificates that they signed. `servers`: names of a region's.

    `file` is the root certificate (PEM) for a region's brokers, `pulsar_file` that for Pulsar's servers, `pki` the
    folder for `waybill pki`. A certificate is reused until half of its life is over.
    """

    def __init__(self, folder: Path, servers: Sequence[str] = _LOOPBACK) -> None:
        self._folder, self._servers = folder.absolute(), servers
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.pki = PkiFolder(self._folder / "pki")
        self.file = self._folder / "authority.pem"
        if not self.pki.root_certificate.exists():
            self.pki.create_root(name="Waybill local root", now=_now(), lifetime=_AUTHORITY_LIFE)
        try:
            self._pulsar = self.pki.pulsar()
        except AuthorityMissing:
            self._pulsar = self.pki.create_pulsar(now=_now(), lifetime=_AUTHORITY_LIFE)
        # Copies at paths that do not depend on how the authorities keep their files.
        self.pulsar_file = self._folder / "pulsar-authority.pem"
        replace_durably(self.file, self.pki.root_certificate.read_bytes())
        replace_durably(self.pulsar_file, self._pulsar.root_pem)

    def region(self, region: str) -> AuthorityFolder:
        """The authority of a region, created at the first call."""
        try:
            return self.pki.region(region)
        except AuthorityMissing:
            root, now = self.pki.root(), _now()
            return self.pki.create_region(root, region, servers=self._servers, now=now, lifetime=_AUTHORITY_LIFE)

    def server(self, name: str, region: str = "local") -> TlsFiles:
        """The certificate and key of a region's server, such as `broker@eu`."""
        return self._made(self.region(region), region, name, self._servers)

    def pulsar_server(self, name: str) -> TlsFiles:
        """The certificate and key of a Pulsar server on loopback, such as `pulsar@eu`."""
        return self._made(self._pulsar, "pulsar-servers", name, _LOOPBACK)

    def client(self, name: str, region: str = "local") -> TlsFiles:
        """The certificate and key of a device (`acme/bus-1`) or of another client (`gateway@eu-1`)."""
        return self._made(self.region(region), region, name)

    def share(self, region: str) -> Path:
        """The secret file that the gateways of a region share, their `mqtt.share_file`."""
        return self.pki.share(region)

    def _made(self, authority: AuthorityFolder, place_name: str, name: str, servers: Sequence[str] = ()) -> TlsFiles:
        place, now = self._folder / "certificates" / place_name / name, _now()
        files = credentials_in(place)
        assert files.certificate is not None
        assert files.key is not None
        # Kept until half of its life is over: clients of an earlier start may still run.
        if not files.certificate.exists() or IssuedCertificate.read(files.certificate).not_after < now + _LIFE / 2:
            key = KeyPair.generate()
            issued = authority.certify(key, name, servers=servers, now=now, lifetime=_LIFE)
            write_credentials(place, root_pem=authority.root_pem, chain_pem=issued.chain_pem, key=key)
        return TlsFiles(ca=files.ca, certificate=files.certificate, key=files.key)


def _now() -> datetime:
    return datetime.now(UTC)


# The server of the public token keys.


class TokenKeyServer(Server):
    """A small HTTPS server of the public keys of tokens."""

    start_timeout_s = 20.0
    stop_timeout_s = 5.0

    def __init__(self, folder: Path, port: int, tls: TlsFiles, published: Path) -> None:
        super().__init__("token-keys", folder)
        self._port, self._tls, self._published = port, tls, published
        self._url = f"https://127.0.0.1:{port}"

    def addresses(self) -> dict[str, str]:
        return {"url": self._url}

    def command(self) -> Sequence[str]:
        # A program with the standard library only needs 20 MB.
        program = Path(__file__).with_name("key_server_process.py")
        files = self._tls.certificate, self._tls.key, self._published
        return [sys.executable, "-I", str(program), str(self._port), *map(str, files)]

    def probe(self) -> bool:
        return http_health(f"{self._url}/keys.json", tls_ca=self._tls.ca)()


# The operator's signing key of the stack.

OPERATOR = "operator"
"""The role, and the name of the key, that may do everything."""
_EVERY = ("*",)


class StackOperator(NamedTuple):
    """The files of the operator's private key and of the public keys that the stack trusts."""

    key_file: Path
    operators_file: Path

    @property
    def key(self) -> OperatorKey:
        """The private key. Raises OperatorKeyRefused."""
        return read_operator_key(self.key_file)

    def reference_settings(self) -> str:
        """The settings of the jobs that say whom they trust."""
        return f'[reference]\noperators = "{self.operators_file}"\n'


def stack_operator(folder: Path) -> StackOperator:
    """The operator of the stack in a folder, who may do everything there; created at the first call.

    Raises SettingsError for an invalid file of trusted keys.
    """
    made = StackOperator(folder / f"{OPERATOR}.key", folder / "operators.toml")
    trusted(made.operators_file, made.key_file, OPERATOR, _EVERY)
    return made


def trusted(operators_file: Path, key_file: Path, name: str, kinds: tuple[str, ...]) -> None:
    """Make a key once, and trust it on the stack for these kinds of entries of every tenant."""
    if not key_file.exists():
        key = OperatorKey.generate()
        write_operator(key_file, NewOperator(key, trusted_key(key, name, tenants=_EVERY, kinds=kinds)))
    key = read_operator_key(key_file)
    # A file that was taken away is written again for the same keys.
    if not (operators_file.exists() and key.key_id in read_operators(operators_file).keys):
        trust_operator(operators_file, NewOperator(key, trusted_key(key, name, tenants=_EVERY, kinds=kinds)))


_FLEET_OPERATOR = "fleet-operator"
ACCESS_FILE = "operator-access.toml"
"""The operator's access, next to the topology: the default of `waybill topology`."""


def stack_access(folder: Path, role: str = OPERATOR) -> PulsarAccess:
    """A role's access to the stack of this folder, for another process."""
    access = folder.absolute() / "access"
    return PulsarAccess(token_file=access / "tokens" / f"{role}.token", tls_ca=access / "pulsar-authority.pem")


class StackCredentials:
    """Tokens and certificates for the Pulsar clusters of a stack, in the folder `access` of its folder.

    The keys of tokens outlive the stack; `renew` replaces tokens when half of their life is over.
    """

    def __init__(
        self, folder: Path, authority: LocalAuthority, topology: Topology, ports: PortBook, token_life_s: float
    ) -> None:
        self._folder = folder
        self._life_s = token_life_s
        self.authority = authority
        port = ports.port("token-keys")
        self.issuer = TokenIssuer(folder / "access", f"https://127.0.0.1:{port}")
        self.key_server = TokenKeyServer(
            folder / "token-keys",
            port,
            self.authority.pulsar_server(principal(PrincipalKind.PULSAR, "token-keys")),
            self.issuer.published,
        )
        self._topology = topology
        self._brokers = {name: topology.role_of_brokers(name) or BROKERS for name in topology.clusters}
        self.roles = sorted({*topology.roles_by_name(), *self._brokers.values(), OPERATOR})
        self.renew()

    def access(self, role: str) -> PulsarAccess:
        """The token and trusted authority of a role. Raises ValueError for a role that the topology does not have."""
        if role not in self.roles:
            raise ValueError(f"no role {role!r} in this stack; it has {', '.join(self.roles)}")
        return PulsarAccess(token_file=self.issuer.token_file(role), tls_ca=self.authority.pulsar_file)

    @property
    def operator_of_devices(self) -> str:
        """The role for `waybill device`, which needs few rights; another topology may not have it."""
        return _FLEET_OPERATOR if _FLEET_OPERATOR in self.roles else OPERATOR

    def of_cluster(self, name: str) -> PulsarSecurity:
        return PulsarSecurity(
            tls=self.authority.pulsar_server(principal(PrincipalKind.PULSAR, name)),
            issuer=self.issuer.issuer,
            broker_token=self.issuer.token_file(self._brokers[name]),
            superusers=tuple(sorted({*self._topology.superusers_of(name), OPERATOR})),
            operator_token=self.issuer.token_file(OPERATOR),
        )

    def renew(self) -> None:
        """Replace the tokens that are in the second half of their life."""
        self.issuer.renew(self.roles, now_s=time.time(), life_s=self._life_s)

    def write_access_file(self) -> None:
        replace_durably(self._folder / ACCESS_FILE, self.access(OPERATOR).as_toml().encode(), mode=0o600)


# Files of a region's brokers, enrolment broker and access daemon.


class RegionAccess:
    """The files of one region's brokers and of its access daemon, which runs once the topology is applied."""

    def __init__(self, broker: MosquittoBroker, folder: Path, authority: LocalAuthority, ports: PortBook) -> None:
        self.region, self._broker, self._folder, self._authority = broker.region, broker, folder, authority
        self._ports = ports
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._enrolment_folder = folder.with_name(f"enrolment-{self.region}")
        self._rules, self._passwords = folder / "enrolment.acl", folder / "enrolment.passwords"
        self.revocation_file = broker.access_files.revocations

    def prepare(
        self,
        urls: Mapping[str, str],
        access: PulsarAccess,
        operator: StackOperator,
        gateways: Sequence[str],
        tenants: Sequence[str],
    ) -> tuple[EnrolmentBroker, DaemonProcess]:
        """Writes the daemon's settings and the brokers' first files; returns the two servers, not started.

        `urls`: service and admin URL of the region's cluster.
        """
        # Imported when a stack starts: other commands do not need them.
        from gateway.access import AccessSettings  # noqa: PLC0415
        from gateway.access.daemon import AccessDaemon  # noqa: PLC0415

        server = self._authority.server(principal(PrincipalKind.BROKER, self.region), self.region)
        port, name = self._ports.port(f"access-{self.region}"), principal(PrincipalKind.ACCESS, self.region)
        key, config = self._folder / f"{name}.key", self._folder / "access.toml"
        # The daemon may sign what it enrols, and nothing else.
        trusted(operator.operators_file, key, name, (ENROLMENT_KIND,))
        registry = f"""service_url = "{urls["service_url"]}"
admin_url = "{urls["admin_url"]}"
tenants = {json.dumps([*tenants])}
operators = "{operator.operators_file}"
key = "{key}"
"""
        text = self._settings(port, gateways, registry, access)
        replace_durably(config, text.encode(), mode=0o600)
        AccessDaemon(load(AccessSettings, config)).prepare()
        files = EnrolmentBrokerFiles(
            certificate=server.certificate,
            key=server.key,
            factory_ca=self._authority.file,
            rules=self._rules,
            passwords=self._passwords,
        )
        url = f"http://127.0.0.1:{port}"
        daemon = DaemonProcess.python(
            f"access-{self.region}",
            "gateway",
            ["access", "run", "--config", str(config)],
            self._folder,
            healthy_when=http_health(f"{url}/health"),
            addresses={"status": f"{url}/status"},
        )
        return EnrolmentBroker(self.region, self._enrolment_folder, files, ports=self._ports), daemon

    def _settings(self, port: int, gateways: Sequence[str], registry: str, access: PulsarAccess) -> str:
        own = self._authority.client(principal(PrincipalKind.ACCESS, self.region), self.region)
        broker, claims = self._broker, f"enrolment-{self.region}"
        files = broker.access_files
        return f"""region = "{self.region}"
gateways = {json.dumps([*gateways])}
[broker]
rules_file = "{broker.rules_file}"
revocation_file = "{files.revocations}"
password_file = "{files.passwords}"
guard_socket = "{files.guard_socket}"
guard_secret_file = "{self._folder / "guard.secret"}"
pid_file = "{files.pid}"
log_file = "{broker.log}"
[registry]
{registry}
[registry.access]
{access.as_toml()}
[authority]
folder = "{self._authority.region(self.region).folder}"
[enrolment]
secret_file = "{self._folder / "enrolment.secret"}"
[enrolment.broker]
rules_file = "{self._rules}"
password_file = "{self._passwords}"
pid_file = "{self._enrolment_folder / "mosquitto.pid"}"
log_file = "{self._enrolment_folder / f"{claims}.log"}"
[enrolment.claims]
port = {self._ports.port(claims)}
backoff_max_s = 5.0
[enrolment.claims.tls]
ca = "{own.ca}"
[enrolment.devices]
port = {broker.port}
backoff_max_s = 5.0
[enrolment.devices.tls]
ca = "{own.ca}"
certificate = "{own.certificate}"
key = "{own.key}"
[status]
port = {port}
"""


def exchange_lists(regions: Sequence[RegionAccess]) -> None:
    """Gives each broker the revocation lists of all regions before it starts: a device may come to any region at
    once.
    """
    lists = {one.region: one.revocation_file.read_bytes() for one in regions}
    for one in regions:
        # A file that a daemon wrote has the lists of the other regions already.
        if lists[one.region].count(b"BEGIN X509 CRL") < len(regions):
            others = [found for region, found in lists.items() if region != one.region]
            replace_durably(one.revocation_file, b"".join([lists[one.region], *others]), mode=0o640)
