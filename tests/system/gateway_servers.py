"""A Pulsar and a Mosquitto for the tests of one module, which stop and kill them, and devices on that broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from deploy.local import MosquittoBroker, PulsarCluster, wait_all
from tests.system.gateway_region import NAMESPACE, Devices, PulsarRegion
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarRegion]:
    """A Pulsar and a Mosquitto of our own: these tests stop and kill them."""
    folder = tmp_path_factory.mktemp("region")
    region = PulsarRegion(PulsarCluster("eu", folder / "pulsar"), MosquittoBroker("eu", folder / "mqtt"), folder)
    servers = (region.pulsar, region.broker)
    try:
        for server in servers:
            server.start()
        wait_all(servers, 120)
        admin = f"{region.pulsar.admin_url}/admin/v2"
        wait_until(lambda: "eu" in httpx.get(f"{admin}/clusters").json(), 20)
        httpx.put(f"{admin}/tenants/fleet", json={"allowedClusters": ["eu"]}).raise_for_status()
        retention = {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
        httpx.put(f"{admin}/namespaces/{NAMESPACE}", json=retention).raise_for_status()
        httpx.put(f"{admin}/persistent/{NAMESPACE}/batches/partitions", json=2).raise_for_status()
        yield region
    finally:
        for server in servers:
            server.stop()


@pytest.fixture
def devices(region: PulsarRegion) -> Iterator[Callable[..., Devices]]:
    made: list[Devices] = []

    def make(tenant: str, count: int, batches: int) -> Devices:
        made.append(Devices(region.broker, tenant, count, batches))
        return made[-1]

    yield make
    for one in made:
        one.close()
