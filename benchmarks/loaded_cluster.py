"""A Pulsar cluster for a load: with the room of a big one, and TLS, tokens and rights as in production."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.local import LocalStack, PulsarSettings, StackSettings
from tests.cloud_jobs.pulsar_source.world import LiveCluster

_TOPOLOGY = """
centre = "bench"
[clusters.bench]
[regions.bench]
cluster = "bench"
[tenants.fleet]
"""


@contextmanager
def loaded_cluster(folder: Path) -> Iterator[LiveCluster]:
    """A stack of one cluster in this folder, as its operator sees it."""
    folder.mkdir(parents=True, exist_ok=True)
    topology = folder / "topology.toml"
    topology.write_text(_TOPOLOGY)
    settings = StackSettings(pulsar=PulsarSettings(heap_mb=768, direct_mb=768, full_compiler=True))
    with LocalStack(folder / "stack", topology=topology, settings=settings) as stack:
        place = LiveCluster.of(stack.pulsar["bench"])
        try:
            yield place
        finally:
            place.close()
