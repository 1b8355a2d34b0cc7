"""The real servers of the benchmark on loopback, and what their processes have spent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from benchmarks.gateway.access import RegionCredentials
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
from identity import PrincipalKind, principal

PARTITIONS = 2
REGION = "eu"


@dataclass(slots=True)
class MeasuredRegion:
    """One region: a broker, a cluster, and gateways that are started and stopped."""

    folder: Path
    mqtt: MosquittoBroker
    pulsar: PulsarCluster
    credentials: RegionCredentials
    gateways: list[Gateway] = field(default_factory=list)

    def new_topic(self, name: str, tenant: str = "fleet") -> str:
        """A topic of as many partitions as a region's batches have."""
        path = f"persistent/{tenant}/telemetry-{REGION}/{name}/partitions"
        self.credentials.put(f"{self.pulsar.admin_url}/admin/v2/{path}", PARTITIONS)
        return f"persistent://{tenant}/telemetry-{REGION}/{name}"

    def files_of(self, name: str) -> tuple[str, str, str]:
        """Paths of CA, certificate and key of that name."""
        files = self.credentials.authority.client(name, REGION)
        return str(files.ca), str(files.certificate), str(files.key)

    def new_tenant(self, tenant: str) -> None:
        """A Pulsar tenant with the region's topics."""
        _make_namespace(self.credentials, self.pulsar, tenant)
        for name in ("batches", "refused"):
            self.new_topic(name, tenant)

    @contextmanager
    def running(self, count: int, tenants: str = "") -> Iterator[list[Gateway]]:
        """So many gateways, subscribed. `tenants`: their tables; none: one Pulsar tenant for all."""
        gateways = [Gateway(self, f"gateway-{number}", tenants) for number in range(1, count + 1)]
        with ExitStack() as stack:
            for gateway in gateways:
                gateway.process.start()
                stack.callback(gateway.process.stop)
            for gateway in gateways:
                gateway.process.wait()
            yield gateways


class Gateway:
    """One gateway process with the settings of its documentation."""

    def __init__(self, region: MeasuredRegion, name: str, tenants: str = "") -> None:
        port = free_port()
        config = region.folder / f"{name}.toml"
        # TLS and tokens, and no registry, as the page of the figures says: insecure allows that alone here.
        text = f'name = "{name}"\nregion = "{REGION}"\ninsecure = true\n'
        text += f'[pulsar]\nservice_url = "{region.pulsar.service_url}"\n'
        text += f'token_file = "{region.credentials.gateway.token_file}"\n'
        text += f'tls = {{ ca = "{region.credentials.gateway.tls_ca}" }}\n'
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

    def metrics(self) -> dict[str, float]:
        """Every sample of `/metrics`, by its name and labels."""
        lines = httpx.get(f"{self._url}/metrics", timeout=10).text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}


@contextmanager
def region(folder: Path) -> Iterator[MeasuredRegion]:
    """The servers, started: mutual TLS at the broker; TLS, tokens and rights at Pulsar."""
    credentials = RegionCredentials(folder / "access", REGION)
    mqtt = MosquittoBroker(
        REGION, folder / "mqtt", security=MosquittoSecurity(tls=credentials.server(PrincipalKind.BROKER))
    )
    # 768 MB and the whole compiler: the same cluster serves pulsar-perf.
    settings = PulsarSettings(heap_mb=768, direct_mb=768, full_compiler=True)
    pulsar = PulsarCluster(REGION, folder / "pulsar", settings=settings, security=credentials.of_cluster())
    servers: list[Server] = [credentials.key_server, mqtt, pulsar]
    with ExitStack() as stack:
        for server in servers:
            server.start()
            stack.callback(server.stop)
        for server in servers:
            server.wait()
        _make_namespace(credentials, pulsar)
        made = MeasuredRegion(folder, mqtt, pulsar, credentials)
        made.new_topic("batches")
        yield made


def _make_namespace(credentials: RegionCredentials, pulsar: PulsarCluster, tenant: str = "fleet") -> None:
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
        """The seconds, and what was spent, in between."""
        return Spent(self.at_s - before.at_s, {name: spent - before.cpu_s[name] for name, spent in self.cpu_s.items()})
