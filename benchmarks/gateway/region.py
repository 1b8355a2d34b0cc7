"""A real region on loopback: TLS, tokens, least rights, a signed registry, the access daemon; and what it spends."""

import hashlib
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from cryptography.x509 import random_serial_number

from benchmarks.gateway.device_load import LoadSettings, device_name, running_load
from benchmarks.stacks import measured_stack
from deploy.local import DaemonProcess, LocalStack, free_port, http_health, stack_operator
from deploy.local.credentials import LocalAuthority
from deploy.local.stack_settings import gateway_settings
from tests.waiting import wait_until
from waybill.identity.authority import KeyPair, issue_device, make_request
from waybill.identity.claims import TOKEN_LIFETIME, make_token
from waybill.identity.registry import Claim, DeviceChange, DeviceEntry, EnrolledCertificate, enrol, expect
from waybill.identity.registry_messages import signed_by
from waybill.identity.registry_topic import RegistryPublisher

REGION = "eu"
_START_S = 300.0
_TOPOLOGY = """
centre = "eu"
[clusters.eu]
[regions.eu]
cluster = "eu"
[tenants]
fleet = { operator = true }
calm = { operator = true }
loud = { operator = true }
[namespaces."{tenant}/telemetry-{region}".topics]
batches = { partitions = 2 }
perf = { partitions = 2 }
refused = {}
[namespaces."fleet/reference"]
clusters = "all"
retention = { minutes = -1, size_mb = -1 }
topics.revocation-lists = {}
[namespaces."{tenant}/registry"]
clusters = "all"
retention = { minutes = -1, size_mb = -1 }
topics.devices = {}
[namespaces."fleet/access"]
clusters = "all"
retention = { minutes = -1, size_mb = -1 }
topics.confirmations = {}
[roles.operator]
superuser = true
[roles."gateway-{region}"]
on = "region"
grants."{tenant}/telemetry-{region}" = ["produce"]
grants."{tenant}/registry/devices" = ["consume"]
[roles."access-{region}"]
on = "region"
grants."{tenant}/registry/devices" = ["consume", "produce"]
grants."fleet/reference/revocation-lists" = ["consume", "produce"]
grants."fleet/access/confirmations" = ["produce"]
[roles.fleet-operator]
grants."{tenant}/registry/devices" = ["consume", "produce"]
grants."fleet/access/confirmations" = ["consume"]
"""


def gateway_process(stack: LocalStack, name: str, port: int, settings: str) -> DaemonProcess:
    folder, healthy = stack.folder / f"gateway-{name}", http_health(f"http://127.0.0.1:{port}/health")
    config = stack.folder / f"gateway-{name}.toml"
    config.write_text(settings)
    words, environment = ["run", "--config", str(config)], {"PYTHONPATH": str(Path.cwd())}
    return DaemonProcess.python(folder.name, "gateway", words, folder, env=environment, healthy_when=healthy)


class Gateway:
    """One gateway process with the settings of the local stack."""

    def __init__(self, stack: LocalStack, number: int, limits: str) -> None:
        name, port = f"{REGION}-{number}", free_port()
        stack.client_files(f"gateway@{name}", REGION)
        text = gateway_settings(stack, REGION, port).replace("[tenants.loud]\n", f"[tenants.loud]\n{limits}\n")
        text = re.sub(rf'(name = "|gateway@){REGION}-1', rf"\g<1>{name}", text)
        self._url = f"http://127.0.0.1:{port}"
        self.process = gateway_process(stack, name, port, text)

    def known_devices(self) -> int:
        return int(self.metrics()["waybill_gateway_registry_devices"])

    def metrics(self) -> dict[str, float]:
        lines = httpx.get(f"{self._url}/metrics", timeout=10).text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}


@dataclass(slots=True)
class MeasuredRegion:
    """One region, with gateways that start and stop. `known`: how many devices its registry has."""

    stack: LocalStack
    registry: RegistryPublisher
    gateways: list[Gateway] = field(default_factory=list)
    known: int = 0

    def expect(self, tenant: str, devices: Iterable[str]) -> None:
        """Puts devices into the registry, and waits until the gateways that run have them."""
        for device in devices:
            self.registry.publish(known_device(tenant, device))
            self.known += 1
        wait_until(lambda: all(gateway.known_devices() == self.known for gateway in self.gateways), 120)

    def certificates(self, tenant: str, devices: Iterable[str]) -> list[tuple[str, str, str]]:
        assert self.stack.authority is not None
        return device_certificates(self.stack.authority, self.stack.folder / "devices", tenant, devices)

    def load(
        self, tenant: str, devices: int, rate: float, seconds: float, skip_s: float = 0.0, **more: Any
    ) -> AbstractContextManager[subprocess.Popen[str]]:
        """So many devices, known in the registry, that send so many batches a second."""
        name = f"{tenant}{time.monotonic_ns()}"
        names = [device_name(name, number) for number in range(devices)]
        self.expect(tenant, names)
        files, port = self.certificates(tenant, names), self.stack.brokers[REGION].port
        facts: dict[str, Any] = {"rate": rate, "seconds": seconds, "skip_s": skip_s, "name": name, "tenant": tenant}
        return running_load(self.stack.folder, LoadSettings(port=port, certificates=files, **facts, **more))

    @contextmanager
    def running(self, count: int, limits: str = "") -> Iterator[list[Gateway]]:
        """So many gateways, subscribed. `limits`: settings of the tenant `loud`."""
        gateways = [Gateway(self.stack, number, limits) for number in range(1, count + 1)]
        with ExitStack() as stack:
            for gateway in gateways:
                gateway.process.start()
                stack.callback(gateway.process.stop)
            for gateway in gateways:
                gateway.process.wait(_START_S)
            self.gateways = gateways
            yield gateways
            self.gateways = []


@contextmanager
def region(folder: Path) -> Iterator[MeasuredRegion]:
    # the same cluster serves pulsar-perf
    with measured_stack(folder, _TOPOLOGY) as stack:
        url, access = stack.pulsar[REGION].service_url, stack.access("fleet-operator")
        with closing(RegistryPublisher(url, access, sign=signed_by(stack_operator(stack.folder).key))) as registry:
            yield MeasuredRegion(stack, registry)


def device_certificates(
    authority: LocalAuthority, folder: Path, tenant: str, devices: Iterable[str]
) -> list[tuple[str, str, str]]:
    """CA, certificate and key of each device. They share one key and are not synced, which would take minutes."""
    region, key, made = authority.region(REGION), KeyPair.generate(), []
    folder.mkdir(exist_ok=True)
    for device in devices:
        issued = issue_device(
            region.authority,
            make_request(key, f"{tenant}/{device}"),
            tenant,
            device,
            now=datetime.now(UTC),
            serial=random_serial_number(),
            lifetime=timedelta(days=30),
        )
        (region.folder / "issued" / f"{issued.serial:040x}.pem").write_bytes(issued.chain_pem)
        file = folder / f"{device}.pem"
        file.write_bytes(issued.chain_pem + key.private_pem())
        made.append((str(authority.file), str(file), str(file)))
    return made


def known_device(tenant: str, device: str) -> DeviceEntry:
    """A device that enrolled by a one-time token long ago, as most in a registry."""
    drawn = hashlib.sha256(f"{tenant}/{device}".encode())
    token, long_ago = make_token(lambda _: drawn.digest()), datetime.now(UTC) - timedelta(days=30)
    claim = Claim(id=token.id, password_hash=token.password_hash, until=long_ago + TOKEN_LIFETIME)
    change = DeviceChange(long_ago, "operator", "measured")
    entry = expect(tenant, device, region=REGION, claim=claim, change=change)
    ends = datetime.now(UTC) + timedelta(days=60)
    return enrol(entry, EnrolledCertificate(issuer=REGION, serial=f"1{drawn.hexdigest()[:16]}", not_after=ends), change)
