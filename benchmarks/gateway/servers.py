"""A region on loopback as a real one is, and what its processes have spent.

Mosquitto with mutual TLS, the rules of topics and a revocation list; Pulsar with TLS, tokens and least rights; the
access daemon and the enrolment broker; the device registry on its compacted topic, signed. Nothing is `insecure`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil

from deploy.local import (
    DaemonProcess,
    MosquittoBroker,
    MosquittoSecurity,
    PulsarCluster,
    PulsarSettings,
    Server,
    free_port,
    http_health,
)
from deploy.local.credentials import LocalAuthority, RegionAccess, TokenKeyServer, stack_operator
from deploy.local.mosquitto import TlsFiles
from deploy.local.ports import PortBook
from deploy.local.pulsar import PulsarSecurity
from tests.waiting import wait_until
from waybill.identity.broker_conf import broker_rules
from waybill.identity.claims import TOKEN_LIFETIME, make_token
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.registry import Claim, DeviceChange, DeviceEntry, EnrolledCertificate, enrol, expect
from waybill.identity.registry_messages import signed_by
from waybill.identity.registry_topic import RegistryPublisher
from waybill.identity.tokens import TokenIssuer
from waybill.pulsar.pulsar_client import PulsarAccess

# Who is who in the region of a benchmark: the local stack's authority and operator, and a token for each role.

_OPERATOR, _BROKERS = "operator", "brokers"
_LIFE_S = 86_400.0


class RegionCredentials:
    """Certificates, and tokens with the roles that a region has in the local stack's topology.

    `role`: the gateways'; `access_role`: the access daemon's; `devices_role`: whose who changes the registry.
    """

    def __init__(self, folder: Path, region: str) -> None:
        self.authority = LocalAuthority(folder)
        self.operator = stack_operator(folder)
        self.role, self.access_role, self.devices_role = f"gateway-{region}", f"access-{region}", "fleet-operator"
        self._region = region
        port = free_port()
        self._issuer = TokenIssuer(folder, f"https://127.0.0.1:{port}")
        roles = [_OPERATOR, _BROKERS, self.role, self.access_role, self.devices_role]
        self._issuer.renew(roles, now_s=time.time(), life_s=_LIFE_S)
        keys = self.authority.pulsar_server(principal(PrincipalKind.PULSAR, "token-keys"))
        self.key_server = TokenKeyServer(folder / "token-keys", port, keys, self._issuer.published)
        self.gateway = self.access(self.role)

    def access(self, role: str) -> PulsarAccess:
        return PulsarAccess(token_file=self._issuer.token_file(role), tls_ca=self.authority.pulsar_file)

    def server(self, kind: PrincipalKind) -> TlsFiles:
        return self.authority.server(principal(kind, self._region), self._region)

    def of_cluster(self) -> PulsarSecurity:
        return PulsarSecurity(
            tls=self.authority.pulsar_server(principal(PrincipalKind.PULSAR, self._region)),
            issuer=self._issuer.issuer,
            broker_token=self._issuer.token_file(_BROKERS),
            superusers=(_OPERATOR, _BROKERS),
            operator_token=self._issuer.token_file(_OPERATOR),
        )

    def put(self, url: str, body: object, method: str = "PUT") -> None:
        token = self._issuer.token_file(_OPERATOR).read_text()
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(verify=str(self.authority.pulsar_file), headers=headers, timeout=20) as client:
            answer = client.request(method, url, json=body)
        assert answer.is_success, answer.text


PARTITIONS = 2
REGION = "eu"
GATEWAYS = ("gateway-1", "gateway-2")
TENANTS = ("fleet", "calm", "loud")
"""Whose devices the region knows."""
_GRANTS = (
    *(("gateway", f"{tenant}/registry/devices", ["consume"]) for tenant in TENANTS),
    *(("access", f"{tenant}/registry/devices", ["consume", "produce"]) for tenant in TENANTS),
    ("access", "fleet/reference/revocation-lists", ["consume", "produce"]),
    ("access", "fleet/access/confirmations", ["produce"]),
    *(("devices", f"{tenant}/registry/devices", ["consume", "produce"]) for tenant in TENANTS),
    ("devices", "fleet/access/confirmations", ["consume"]),
)
"""As `deploy/local/topology.toml` has them."""
_START_S = 300.0
"""How long a start takes is not measured, and beside other work it takes minutes."""


@dataclass(slots=True)
class MeasuredRegion:
    """One region: a broker and its access daemon, a cluster, and gateways that are started and stopped.

    `registry` publishes to the device registry, signed by the operator. `known`: devices that it has.
    """

    folder: Path
    mqtt: MosquittoBroker
    pulsar: PulsarCluster
    credentials: RegionCredentials
    guard: DaemonProcess
    registry: RegistryPublisher
    gateways: list[Gateway] = field(default_factory=list)
    known: int = 0

    def expect(self, tenant: str, devices: Iterable[str]) -> None:
        """Puts devices into the registry, and waits until the gateways that run have them."""
        for device in devices:
            self.registry.publish(known_device(tenant, device))
            self.known += 1
        wait_until(lambda: all(gateway.known_devices() == self.known for gateway in self.gateways), 120)

    def new_topic(self, name: str, tenant: str = "fleet") -> str:
        path = f"persistent/{tenant}/telemetry-{REGION}/{name}/partitions"
        self.credentials.put(f"{self.pulsar.admin_url}/admin/v2/{path}", PARTITIONS)
        return f"persistent://{tenant}/telemetry-{REGION}/{name}"

    def files_of(self, name: str) -> tuple[str, str, str]:
        files = self.credentials.authority.client(name, REGION)
        return str(files.ca), str(files.certificate), str(files.key)

    def new_tenant(self, tenant: str) -> None:
        for name in ("batches", "refused"):
            self.new_topic(name, tenant)

    @contextmanager
    def running(self, count: int, tenants: str = "") -> Iterator[list[Gateway]]:
        """So many gateways, subscribed. `tenants`: their tables; none: one Pulsar tenant for all."""
        gateways = [Gateway(self, name, tenants) for name in GATEWAYS[:count]]
        with ExitStack() as stack:
            for gateway in gateways:
                gateway.process.start()
                stack.callback(gateway.process.stop)
            for gateway in gateways:
                gateway.process.wait(_START_S)
            self.gateways = gateways
            yield gateways
            self.gateways = []


class Gateway:
    """One gateway process with the settings of its documentation."""

    def __init__(self, region: MeasuredRegion, name: str, tenants: str = "") -> None:
        port = free_port()
        config = region.folder / f"{name}.toml"
        token = region.credentials.gateway.token_file
        ca_of_pulsar = region.credentials.gateway.tls_ca
        text = f'name = "{name}"\nregion = "{REGION}"\n'
        text += f'[registry]\nservice_url = "{region.pulsar.service_url}"\n'
        text += f'tenants = {json.dumps(TENANTS)}\noperators = "{region.credentials.operator.operators_file}"\n'
        text += f'[registry.access]\ntoken_file = "{token}"\ntls_ca = "{ca_of_pulsar}"\n'
        text += f'[pulsar]\nservice_url = "{region.pulsar.service_url}"\n'
        text += f'token_file = "{token}"\ntls = {{ ca = "{ca_of_pulsar}" }}\n'
        text += tenants or 'tenant = "fleet"\n'
        text += f'[status]\nport = {port}\n[mqtt]\nhost = "127.0.0.1"\nport = {region.mqtt.port}\n'
        text += f'share_file = "{region.credentials.authority.share(REGION)}"\n'
        ca, certificate, key = region.files_of(principal(PrincipalKind.GATEWAY, name))
        text += f'[mqtt.tls]\nca = "{ca}"\ncertificate = "{certificate}"\nkey = "{key}"\n'
        config.write_text(text)
        self._url = f"http://127.0.0.1:{port}"
        self.process = DaemonProcess.python(
            name,
            "gateway",
            ["run", "--config", str(config)],
            region.folder / name,
            env={"PYTHONPATH": str(Path.cwd())},
            healthy_when=http_health(f"{self._url}/health"),
        )

    def known_devices(self) -> int:
        return int(self.metrics()["waybill_gateway_registry_devices"])

    def metrics(self) -> dict[str, float]:
        lines = httpx.get(f"{self._url}/metrics", timeout=10).text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}


@contextmanager
def region(folder: Path) -> Iterator[MeasuredRegion]:
    credentials, ports = RegionCredentials(folder / "access", REGION), PortBook(folder / "ports.json")
    mqtt = MosquittoBroker(REGION, folder / "mqtt", ports=ports, security=_broker_security(credentials))
    # 768 MB and the whole compiler: the same cluster serves pulsar-perf.
    settings = PulsarSettings(heap_mb=768, direct_mb=768, full_compiler=True)
    pulsar = PulsarCluster(REGION, folder / "pulsar", settings=settings, security=credentials.of_cluster())
    guard = RegionAccess(mqtt, folder / f"access-{REGION}", credentials.authority, ports)
    enrolment, daemon = guard.prepare(
        pulsar.addresses(), credentials.access(credentials.access_role), credentials.operator, GATEWAYS, TENANTS
    )
    registry = RegistryPublisher(
        pulsar.service_url, credentials.access(credentials.devices_role), sign=signed_by(credentials.operator.key)
    )
    with ExitStack() as stack:
        _started(stack, [credentials.key_server, mqtt, pulsar, enrolment])
        for tenant in TENANTS:
            _make_namespace(credentials, pulsar, tenant)
        _make_reference(credentials, pulsar)
        _started(stack, [daemon])
        stack.callback(registry.close)
        made = MeasuredRegion(folder, mqtt, pulsar, credentials, daemon, registry)
        made.new_topic("batches")
        yield made


def _started(stack: ExitStack, servers: list[Server]) -> None:
    for server in servers:
        server.start()
        stack.callback(server.stop)
    for server in servers:
        server.wait(_START_S)


def _broker_security(credentials: RegionCredentials) -> MosquittoSecurity:
    return MosquittoSecurity(
        tls=credentials.server(PrincipalKind.BROKER),
        rules=broker_rules(0, REGION, GATEWAYS, ()),
        has_access_daemon=True,
        probe=credentials.authority.client(principal(PrincipalKind.PROBE, REGION), REGION),
    )


def known_device(tenant: str, device: str) -> DeviceEntry:
    """A device as most are in a registry: it came by a one-time token, long ago. What it is given here is by hand."""
    drawn = hashlib.sha256(f"{tenant}/{device}".encode())
    token, long_ago = make_token(lambda _: drawn.digest()), datetime.now(UTC) - timedelta(days=30)
    claim = Claim(id=token.id, password_hash=token.password_hash, until=long_ago + TOKEN_LIFETIME)
    change = DeviceChange(long_ago, "operator", "measured")
    entry = expect(tenant, device, region=REGION, claim=claim, change=change)
    ends = datetime.now(UTC) + timedelta(days=60)
    return enrol(entry, EnrolledCertificate(issuer=REGION, serial=f"1{drawn.hexdigest()[:16]}", not_after=ends), change)


def changed_now() -> DeviceChange:
    return DeviceChange(datetime.now(UTC), "operator", "measured")


def _make_reference(credentials: RegionCredentials, pulsar: PulsarCluster) -> None:
    """The topics by which the region knows its devices, with the rights of each role."""
    admin = f"{pulsar.admin_url}/admin/v2"
    kept = {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
    for namespace in ("fleet/reference", "fleet/access", *(f"{tenant}/registry" for tenant in TENANTS)):
        credentials.put(f"{admin}/namespaces/{namespace}", kept)
    for topic in sorted({topic for _, topic, _ in _GRANTS}):
        credentials.put(f"{admin}/persistent/{topic}", None)
    roles = {"gateway": credentials.role, "access": credentials.access_role, "devices": credentials.devices_role}
    for who, topic, rights in _GRANTS:
        credentials.put(f"{admin}/persistent/{topic}/permissions/{roles[who]}", rights, method="POST")


def _make_namespace(credentials: RegionCredentials, pulsar: PulsarCluster, tenant: str) -> None:
    admin = f"{pulsar.admin_url}/admin/v2"
    namespace = f"namespaces/{tenant}/telemetry-{REGION}"
    credentials.put(f"{admin}/tenants/{tenant}", {"allowedClusters": [REGION]})
    credentials.put(f"{admin}/{namespace}", {"bundles": {"numBundles": 1}})
    credentials.put(f"{admin}/{namespace}/permissions/{credentials.role}", ["produce"], method="POST")


@dataclass(frozen=True, slots=True)
class Spent:
    """Processor seconds, user and system, of each process by its name, at a moment."""

    at_s: float
    cpu_s: dict[str, float]

    @classmethod
    def now(cls, pids: dict[str, int]) -> Spent:
        spent = {}
        for name, pid in pids.items():
            times = psutil.Process(pid).cpu_times()
            spent[name] = times.user + times.system
        return cls(time.monotonic(), spent)

    def since(self, before: Spent) -> Spent:
        return Spent(self.at_s - before.at_s, {name: spent - before.cpu_s[name] for name, spent in self.cpu_s.items()})
