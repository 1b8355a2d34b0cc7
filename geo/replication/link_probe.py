"""Sends a message through every link and measures how long it takes."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import pulsar

from geo.replication.actual import for_each_cluster
from geo.replication.admin import AdminClient
from geo.replication.connection import AddressCheck, ServiceAddress, check_addresses, connect
from geo.replication.desired import address
from geo.replication.errors import ReplicationError
from geo.replication.grant_probe import TriedRight, try_rights, untried_roles
from geo.replication.left_over import left_over
from geo.replication.model import PROBE_TOPIC, Topology
from geo.replication.observe import LinkState, UnknownSubscription, observe
from geo.replication.protection import unprotected
from waybill.settings import Settings

__all__ = ["VerifyResult", "verify"]

_PROBES = 3
_OPERATION_S = 10

Latency = float | str  # seconds, or why there is none


class VerifyResult(Settings):
    """Every link of the topology, every right that was tried, and the clusters that did not answer: what these would
    say nobody knows. `untried`: roles whose rights count, and of which no token was at hand. `unprotected`: clusters
    whose brokers ask nobody for the rights that the topology names, or let more roles do everything. `left_over`:
    rights of the topology's roles in namespaces of other tenants. `unknown`: subscriptions with a backlog that the
    topology does not name. These two are no part of the verdict."""

    links: tuple[LinkState, ...]
    unreachable: Mapping[str, str]
    rights: tuple[TriedRight, ...] = ()
    untried: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    unknown: tuple[UnknownSubscription, ...] = ()

    @property
    def is_good(self) -> bool | None:
        """Whether every link and right is; None: unknown, for want of an answer or of a token."""
        if self.unreachable:
            return None
        known = [right for right in self.rights if right.was is not None]
        is_good = all(link.is_good for link in self.links) and all(right.is_good for right in known)
        is_good &= not self.unprotected
        return None if is_good and (self.untried or len(known) < len(self.rights)) else is_good


def verify(
    topology: Topology, clients: Mapping[str, AdminClient], *, timeout_s: float = 15.0, role_tokens: Path | None = None
) -> VerifyResult:
    """The state of every link, with the median latency of a few probes; a link that let none through says so.

    `role_tokens`: a folder with a file `ROLE.token` of each role whose rights are tried too.
    """
    unreachable = dict(observe(topology, clients, time.time).unreachable)
    checked = for_each_cluster(_without(clients, unreachable), lambda admin: _checked(topology, admin))
    unreachable |= {cluster: error for cluster, error in checked.items() if isinstance(error, str)}
    alive = _without(clients, unreachable)
    wrong = [
        check for checks in checked.values() if isinstance(checks, list) for check in checks if check.belongs is False
    ]
    # Into a cluster that is not the one that is meant no probe is sent.
    strangers = {check.cluster for check in wrong if not check.seen_by}
    latencies: dict[tuple[str, str, str], Latency] = {}
    reached = {name: client for name, client in alive.items() if name not in strangers}
    with _connections(topology, reached) as connections:
        for namespace, (_, clusters) in topology.placed().items():
            probed = sorted(cluster for cluster in clusters if cluster in connections)
            for (source, target), latency in _probe(connections, namespace, probed, timeout_s).items():
                latencies[namespace, source, target] = latency
    # Looked at after the probes: one that is stuck is part of the backlog.
    seen = observe(topology, clients, time.time)
    for link in seen.links:
        for check in wrong:
            if check.concerns(link.source, link.target):
                latencies[link.namespace, link.source, link.target] = (
                    f"{check.service_url} is not of cluster {check.cluster}"
                )
    links = tuple(_with_latency(link, latencies.get((link.namespace, link.source, link.target))) for link in seen.links)
    rights = tuple(try_rights(topology, reached, role_tokens)) if topology.roles else ()
    return VerifyResult(
        links=links,
        unreachable={**unreachable, **seen.unreachable},
        rights=rights,
        # Where nothing was tried at all no right counts.
        untried=untried_roles(topology, role_tokens) if rights else (),
        unprotected=tuple(unprotected(topology, reached)),
        left_over=left_over(topology, reached),
        unknown=seen.unknown,
    )


def _without(clients: Mapping[str, AdminClient], gone: Mapping[str, str]) -> dict[str, AdminClient]:
    return {cluster: admin for cluster, admin in clients.items() if cluster not in gone}


def _checked(topology: Topology, admin: AdminClient) -> list[AddressCheck] | str:
    try:
        return check_addresses(topology, {admin.cluster: admin})
    except ReplicationError as error:
        return str(error)


def _with_latency(link: LinkState, latency: Latency | None) -> LinkState:
    if isinstance(latency, float):
        return link.model_copy(update={"latency_s": latency})
    return link.model_copy(update={"problem": link.problem or latency or "not probed"})


@contextmanager
def _connections(topology: Topology, clients: Mapping[str, AdminClient]) -> Iterator[dict[str, pulsar.Client]]:
    with ExitStack() as opened:
        connections = {}
        for cluster, admin in sorted(clients.items()):
            client = connect(admin, ServiceAddress(address(topology, cluster).service_url), operation_s=_OPERATION_S)
            opened.callback(client.close)
            connections[cluster] = client
        yield connections


def _probe(
    connections: Mapping[str, pulsar.Client], namespace: str, clusters: Sequence[str], timeout_s: float
) -> dict[tuple[str, str], Latency]:
    """Latency by (source, target) of one namespace."""
    if len(clusters) < 2:
        return {}
    topic = f"persistent://{namespace}/{PROBE_TOPIC}"
    latencies: dict[tuple[str, str], Latency] = {}
    try:
        # Opened before a probe is sent: a reader that starts at the latest message would miss it.
        readers = {name: connections[name].create_reader(topic, pulsar.MessageId.latest) for name in clusters}
    except pulsar.PulsarException as refused:
        reason = f"no probe could be read: {refused}"
        return {(source, target): reason for source in clusters for target in clusters if source != target}
    with ThreadPoolExecutor(len(clusters)) as pool:
        for source in clusters:
            others = {name: reader for name, reader in readers.items() if name != source}
            for target, latency in _from(connections[source], topic, others, pool, timeout_s).items():
                latencies[source, target] = latency
    return latencies


def _from(
    source: pulsar.Client, topic: str, readers: Mapping[str, pulsar.Reader], pool: ThreadPoolExecutor, timeout_s: float
) -> dict[str, Latency]:
    late = f"probe did not arrive within {timeout_s:.0f} s"
    latencies: dict[str, list[float]] = {target: [] for target in readers}
    try:
        producer = source.create_producer(topic, send_timeout_millis=_OPERATION_S * 1000)
        for attempt in range(_PROBES):
            mark = uuid.uuid4().bytes
            sent = time.monotonic()
            producer.send(mark)
            # A link that let none through is not asked again.
            waiting = {
                target: pool.submit(_arrival, readers[target], mark, sent + timeout_s)
                for target, times in latencies.items()
                if len(times) == attempt
            }
            for target, arrival in waiting.items():
                if (arrived := arrival.result(timeout_s + _OPERATION_S)) is not None:
                    latencies[target].append(arrived - sent)
        producer.close()
    except pulsar.PulsarException as refused:
        late = f"no probe could be sent: {refused}"
    return {target: median(times) if len(times) == _PROBES else late for target, times in latencies.items()}


def _arrival(reader: pulsar.Reader, mark: bytes, deadline: float) -> float | None:
    """When the marked message was read, on the monotonic clock; None when the time was over."""
    while (left := deadline - time.monotonic()) > 0:
        try:
            message = reader.read_next(max(1, int(left * 1000)))
        except pulsar.PulsarException:  # time-out, or the reader's cluster went away
            break
        if message.data() == mark:
            return time.monotonic()
    return None
