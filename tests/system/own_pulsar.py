"""A Pulsar of a test's own, which it may stop and kill, and in whose topics nothing else is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from deploy.local import PulsarCluster
from tests.waiting import wait_until

KEPT = {"retention_policies": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}


@contextmanager
def own_pulsar(name: str, folder: Path, *namespaces: str, partitioned: str = "") -> Iterator[PulsarCluster]:
    """With these namespaces, which keep all that is sent, and perhaps a topic of two partitions."""
    cluster = PulsarCluster(name, folder / "pulsar")
    try:
        cluster.start()
        cluster.wait()
        admin = f"{cluster.admin_url}/admin/v2"
        wait_until(lambda: name in httpx.get(f"{admin}/clusters").json(), 20)
        for tenant in {one.partition("/")[0] for one in namespaces}:
            httpx.put(f"{admin}/tenants/{tenant}", json={"allowedClusters": [name]}).raise_for_status()
        for namespace in namespaces:
            httpx.put(f"{admin}/namespaces/{namespace}", json=KEPT).raise_for_status()
        if partitioned:
            httpx.put(f"{admin}/persistent/{partitioned}/partitions", json=2).raise_for_status()
        yield cluster
    finally:
        # nobody needs what it has, and a stop in order may take its 20 s; the first one spares each later start as many
        end = cluster.stop if cluster.writes_archive else cluster.kill
        end()
