"""One region with everything switched on: TLS, certificates, tokens, rights and the registry; two gateways; links."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from deploy.local import CuttableLinks, LocalStack, PulsarSettings, StackSettings, TlsFiles, free_port, stack_operator
from deploy.local.stack import DEFAULT_TOPOLOGY
from tests.system.gateway_region import GatewayProcess, PulsarRegion
from tests.system.regional_broker import ending
from tests.waiting import wait_until
from waybill.identity.operator_settings import OPERATOR_SETTINGS, read_operator_settings
from waybill.identity.registry import DeviceChange, expect
from waybill.identity.registry_session import RegistrySession, exactly

TENANT = "fleet"
RECEIVE_MAXIMUM = 16
ONE_REGION = {"[clusters.us]\n": "", "[clusters.hq]\n": "", '[regions.us]\ncluster = "us"\n': "", '"hq"': '"eu"'}


class GuardedRegion:
    """The stack of one region, and its gateways eu-1 and eu-2.

    Devices reach the broker by `stack.links["eu"]`; whoever looks up a topic is led over `to_pulsar`.
    """

    def __init__(self, stack: LocalStack, folder: Path, to_pulsar: CuttableLinks) -> None:
        self.stack = stack
        self._files: dict[str, TlsFiles] = {}
        self.pulsar, self.broker = stack.pulsar["eu"], stack.brokers["eu"]
        self.to_broker, self.to_pulsar = stack.links["eu"], to_pulsar.links["pulsar"]
        self.topics = PulsarRegion(self.pulsar, self.broker, folder)
        self.gateways = [GatewayProcess(name, folder, self._gateway_text(name)) for name in ("eu-1", "eu-2")]

    def register(self, devices: Iterable[str]) -> None:
        """Makes devices known that have their certificates by hand."""
        change = DeviceChange(datetime.now(UTC), "a-test", "drives here")
        entries = [expect(TENANT, one, region="eu", claim=None, change=change) for one in devices]
        with RegistrySession(read_operator_settings(self.stack.folder / OPERATOR_SETTINGS)) as registry:
            assert registry.change({one.name: exactly(one) for one in entries}, 30).missing == ()

    def restore(self) -> None:
        """Starts what does not run, heals what is cut, and waits until both gateways are healthy."""
        servers = [self.pulsar, self.broker, *(gateway.process for gateway in self.gateways)]
        for link in (self.to_broker, self.to_pulsar):
            link.heal()
        for server in servers:
            server.start()
        for server in servers:
            server.wait()

    def wait_for_failures(self) -> None:
        """Until each gateway has waited in vain for a receipt of Pulsar, and holds as much as it may."""
        before = [gateway.status().pulsar_failures for gateway in self.gateways]
        for gateway, count in zip(self.gateways, before, strict=True):
            wait_until(partial(_has_failed, gateway, count))
            assert gateway.status().in_flight == RECEIVE_MAXIMUM, "the broker keeps the rest"

    def reissue(self, names: Iterable[str], *, in_s: float) -> None:
        """Gives certificates that end so soon to those who have one, and such a token to the gateways."""
        assert self.stack.authority is not None
        assert self.stack.credentials is not None
        for name in names:
            ending(self.stack.authority, self._files[name].certificate.parent, name, in_s=in_s)
        self.stack.credentials.issuer.issue("gateway-eu", now_s=time.time(), life_s=in_s)

    def files(self, name: str) -> TlsFiles:
        """Those of a device or gateway; made when they are first asked for."""
        if name not in self._files:
            found = self.stack.client_files(name, "eu")
            assert found is not None
            self._files[name] = found
        return self._files[name]

    def _gateway_text(self, name: str) -> str:
        own, access, authority = self.files(f"gateway@{name}"), self.stack.access("gateway-eu"), self.stack.authority
        assert authority is not None
        service_url = f"pulsar+ssl://127.0.0.1:{self.to_pulsar.port}"
        return f"""
            name = "{name}"
            region = "eu"
            [tenants.{TENANT}]
            [mqtt]
            host = "127.0.0.1"
            port = {self.broker.port}
            tls = {{ ca = "{own.ca}", certificate = "{own.certificate}", key = "{own.key}" }}
            share_file = "{authority.share("eu")}"
            receive_maximum = {RECEIVE_MAXIMUM}
            backoff_max_s = 1
            [pulsar]
            service_url = "{service_url}"
            send_timeout_s = 3
            backoff_max_s = 1
            [pulsar.access]
            {access.as_toml()}
            [registry]
            tenants = ["{TENANT}"]
            service_url = "{service_url}"
            operators = "{stack_operator(self.stack.folder).operators_file}"
            [registry.access]
            {access.as_toml()}
            """


def _has_failed(gateway: GatewayProcess, times: int) -> bool:
    return gateway.status().pulsar_failures > times


@contextmanager
def guarded_region(folder: Path) -> Iterator[GuardedRegion]:
    """The region, with both gateways at work."""
    topology, text = folder / "topology.toml", DEFAULT_TOPOLOGY.read_text()
    for part, instead in ONE_REGION.items():
        assert part in text
        text = text.replace(part, instead)
    topology.write_text(text)
    port = free_port()
    with ExitStack() as ending:
        links = CuttableLinks(folder / "links", {"pulsar": port}, name="links-to-pulsar")
        ending.callback(links.stop)
        links.start()
        links.wait()
        # What clients are led to is the link, whichever port they asked.
        led = {
            "bindAddresses": f"link:pulsar+ssl://127.0.0.1:{port}",
            "advertisedListeners": f"link:pulsar+ssl://127.0.0.1:{links.links['pulsar'].port}",
            "internalListenerName": "link",
        }
        settings = StackSettings(pulsar=PulsarSettings(broker=led))
        stack = ending.enter_context(LocalStack(folder / "stack", topology=topology, settings=settings))
        ending.callback(stack.pulsar["eu"].kill)  # nobody needs what it has
        region = GuardedRegion(stack, folder, links)
        for gateway in region.gateways:
            ending.callback(gateway.process.stop)
            gateway.process.start()
        region.restore()
        yield region
