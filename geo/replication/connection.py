"""A client of a cluster's service address, and whether that address leads to the cluster at all."""

import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pulsar

from geo.replication.admin import AdminClient
from geo.replication.desired import address
from geo.replication.model import Topology
from geo.replication.rest_types import STATS
from waybill.pulsar.pulsar_client import open_pulsar_client

__all__ = ["AddressCheck", "ServiceAddress", "check_addresses", "connect"]

_OPERATION_S = 5
_CONNECT_S = 5
_AT_ONCE = 8
# Every cluster has this namespace from its start, brokers make topics in it whatever their configuration says, and a
# topic that is not persistent leaves nothing behind.
_MEETING = "non-persistent://pulsar/system/waybill-address-{}"


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """One service address of a cluster, as a client or another cluster dials it."""

    service_url: str
    listener: str = ""


@dataclass(frozen=True, slots=True)
class AddressCheck:
    """Whether a service address of a cluster leads to it; `belongs` None: it could not be asked from here.

    `seen_by`: the cluster that dials it; empty for the common address.
    """

    cluster: str
    seen_by: str
    service_url: str
    belongs: bool | None
    reason: str = ""

    def concerns(self, source: str, target: str) -> bool:
        """Whether a link between these clusters uses it, or a probe on that link does."""
        if self.seen_by:
            return (self.seen_by, self.cluster) == (source, target)
        return self.cluster in (source, target)

    def __str__(self) -> str:
        seen = f", seen from {self.seen_by}" if self.seen_by else ""
        return f"{self.service_url} (cluster {self.cluster}{seen}): {self.reason}"


def connect(admin: AdminClient, way: ServiceAddress, *, operation_s: int = _OPERATION_S) -> pulsar.Client:
    """A client with the access of the cluster's admin client."""
    return open_pulsar_client(
        way.service_url,
        admin.access,
        timeout_s=operation_s,
        connect_timeout_s=_CONNECT_S,
        listener=way.listener or None,
    )


def check_addresses(topology: Topology, admins: Mapping[str, AdminClient]) -> list[AddressCheck]:
    """Every service address of these clusters, asked side by side. Raises what the admin clients raise."""
    ways = [
        (admin, seen_by, way) for name, admin in admins.items() for seen_by, way in _service_addresses(topology, name)
    ]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # Side by side: each address that does not answer costs its time-out.
        waiting = [pool.submit(_belongs, admin, way) for admin, _, way in ways]
    return [
        AddressCheck(admin.cluster, seen_by, way.service_url, *one.result())
        for (admin, seen_by, way), one in zip(ways, waiting, strict=True)
    ]


def _belongs(admin: AdminClient, way: ServiceAddress) -> tuple[bool | None, str]:
    """Meet the cluster on a topic of its own: what the service address made, the admin address must show."""
    topic = _MEETING.format(uuid.uuid4().hex)
    client = connect(admin, way)
    try:
        client.create_producer(topic)
        return admin.get(f"{topic.replace('://', '/')}/stats", STATS) is not None, ""
    except pulsar.PulsarException as refused:
        return None, str(refused)
    finally:
        client.close()


def _service_addresses(topology: Topology, cluster: str) -> list[tuple[str, ServiceAddress]]:
    where = address(topology, cluster)
    others = [
        (seen_by, ServiceAddress(way.service_url, way.listener)) for seen_by, way in sorted(where.seen_from.items())
    ]
    return [("", ServiceAddress(where.service_url)), *others]
