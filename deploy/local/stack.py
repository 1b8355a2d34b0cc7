"""The whole local stack: Pulsar clusters, regional brokers, links, and any daemon that is added."""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from typing import Self

from pydantic import Field

from deploy.local.credentials import (
    OPERATOR,
    LocalAuthority,
    RegionAccess,
    StackCredentials,
    exchange_lists,
    stack_operator,
)
from deploy.local.errors import LocalStackError
from deploy.local.folder import hold
from deploy.local.links import CuttableLink, CuttableLinks
from deploy.local.mosquitto import EnrolmentBroker, MosquittoBroker, MosquittoSecurity, TlsFiles
from deploy.local.object_store import LakePlace, ObjectStore
from deploy.local.ports import PortBook
from deploy.local.pulsar import PulsarCluster, PulsarSettings
from deploy.local.server import DaemonProcess, Server, ServerState, wait_all
from deploy.local.spark_cluster import SparkCluster
from deploy.local.stack_settings import write_stack_settings
from deploy.local.stack_state import Phase, ServerRecord, StackState
from geo.replication import ReplicationError, Topology, admins, apply
from waybill.daemon.durable_file import replace_durably
from waybill.daemon.stack_folder import registrations
from waybill.identity.broker_conf import broker_rules
from waybill.identity.names import PrincipalKind, principal
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import Settings, load

DEFAULT_TOPOLOGY = Path(__file__).with_name("topology.toml")
_START_S = 300.0
_ASKED_AT_ONCE = 8
_GATEWAYS = 2
"""Of each region, that its broker accepts: REGION-1, REGION-2."""
_TOKEN_LIFE_S = 43_200.0
"""Of the tokens of roles; they are renewed at half of it."""
_LEAST_FREE_BYTES = 100_000_000
_LEAST_FREE_SHARE = 0.01
"""With less, Pulsar's bookies accept nothing (`diskUsageThreshold`), and only log it."""


class StackSettings(Settings):
    pulsar: PulsarSettings = Field(default_factory=PulsarSettings)
    lake: LakePlace = Field(LakePlace.FOLDER, description="with `s3` the stack has an S3 server with a bucket for it")
    spark: bool = Field(False, description="also a Spark cluster of a master and two workers")


class LocalStack:
    """Real servers on loopback, in one folder, that end with this process.

        with LocalStack(folder) as stack:
            stack.pulsar["hq"].service_url, stack.pulsar["hq"].admin_url
            stack.brokers["eu"].port                 # the region's MQTT broker, directly
            stack.enrolment["eu"].port               # where a device without a certificate shows its claim
            stack.links["eu"].port                   # the same broker over a link: what a vehicle connects to
            stack.links["eu"].cut(); stack.links["eu"].heal()
            stack.links["eu->hq"].delay(0.08)        # what eu replicates to hq
            stack.object_store.endpoint              # the S3 server, with StackSettings(lake=LakePlace.S3)
            stack.spark.master.url                   # with StackSettings(spark=True): the master of a Spark job
            stack.add(DaemonProcess.python("fleet-gateway-eu", "gateway", [...], folder / "gateway-eu"))

    Clusters and regions are those of the topology file, which is applied before `start` returns; with the addresses
    added it is kept as `topology.toml` in the folder, for `waybill topology` and for daemons. Data stays in the folder:
    a stack that is started there again has its topics and its ports.
    """

    ask_every_s = 10.0
    """How often `check` asks the servers whether they are healthy."""

    def __init__(
        self,
        folder: Path,
        *,
        topology: Path = DEFAULT_TOPOLOGY,
        settings: StackSettings | None = None,
        on_change: Callable[[Server], None] | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.settings = settings or StackSettings()
        self._source = topology
        self.topology = load(Topology, topology)
        if located := sorted(name for name, one in self.topology.clusters.items() if one.address):
            raise LocalStackError(
                f"{topology} has addresses of {', '.join(located)}, but a local stack starts its own clusters: "
                "remove the tables [clusters.*.address] from a copy of it"
            )
        self.phase: Phase = "starting"
        self.asked_s = 0.0
        self._on_change = on_change
        self._held = ExitStack()
        self._is_held = False
        self._added: dict[str, Server] = {}
        self._reported: list[ServerRecord] = []
        self._ask_again_s = self._saved_asked_s = 0.0
        self._credentials: StackCredentials | None = None
        self.pulsar: dict[str, PulsarCluster] = {}
        self.brokers: dict[str, MosquittoBroker] = {}
        self.enrolment: dict[str, EnrolmentBroker] = {}
        self.access_daemons: dict[str, DaemonProcess] = {}
        self.links: dict[str, CuttableLink] = {}
        self.object_store: ObjectStore | None = None
        self.spark: SparkCluster | None = None

    @property
    def credentials(self) -> StackCredentials:
        """Tokens and keys, once the stack was started."""
        assert self._credentials is not None, "the stack was not started"
        return self._credentials

    @property
    def authority(self) -> LocalAuthority:
        return self.credentials.authority

    def access(self, role: str = OPERATOR) -> PulsarAccess:
        return self.credentials.access(role)

    def client_files(self, name: str, region: str) -> TlsFiles:
        """The certificate of a device (`acme/bus-1`) or a gateway (`gateway@eu-1`)."""
        return self.authority.client(name, region)

    @property
    def servers(self) -> list[Server]:
        """Every server, in the order in which they are started."""
        return list(self._added.values())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.stop(failure=str(error) if isinstance(error, LocalStackError) else "")

    def start(self) -> None:
        """Start everything and return when all is healthy; on any error stop it all and raise."""
        # Before any port is chosen or file written: a second stack in this folder ends here.
        self._held.enter_context(hold(self.folder))
        self._is_held = True
        try:
            _require_free_space(self.folder)
            self._compose()
            # Workers need their master, and access daemons their topics and rights.
            workers = self.spark.workers if self.spark else []
            later = [*workers, *self.access_daemons.values()]
            first = [server for server in self.servers if server not in later]
            for server in first:
                server.start()
            self._save("starting")
            wait_all(first, _START_S, self._changed)
            self.asked_s = time.time()
            self._replicate()
            for server in later:
                server.start()
            wait_all(later, _START_S, self._changed)
            self._save("ready")
        # Ctrl-C too: servers that were started are stopped in order, not killed with this process.
        except BaseException as error:
            self.stop(failure=(str(error) or type(error).__name__) if isinstance(error, Exception) else "")
            raise

    def stop(self, *, failure: str = "") -> None:
        """Stop all servers, the last started first; harmless when nothing runs, and when the disk is full."""
        if not self._is_held:
            return
        with contextlib.suppress(OSError):
            self._save("stopping", failure)
        # Daemons before the brokers that they publish to: so they end in order, not with lost connections.
        for server in reversed(self.servers):
            server.stop()
            if self._on_change:
                self._on_change(server)
        with contextlib.suppress(OSError):
            self._save("failed" if failure else "stopped", failure)
        self._added.clear()
        self._is_held = False
        # Last: from here on another stack may start its servers on these data.
        self._held.close()

    def add(self, server: Server, *, wait: bool = True) -> Server:
        """Start one more server (a daemon of ours) and, by default, wait until it is healthy."""
        if server.name in self._added:
            raise ValueError(f"the stack already has a server named {server.name}")
        self._added[server.name] = server
        server.start()
        if wait:
            wait_all([server], None, self._changed)
        self._save("ready")
        return server

    def remove(self, name: str) -> None:
        """Stop a server that was added and forget it."""
        self._added[name].stop()
        del self._added[name]
        self._save("ready")

    @property
    def memory_bytes(self) -> int:
        return sum(server.memory_bytes for server in self.servers)

    def check(self) -> None:
        """Ask the servers whether they are healthy, publish what changed, and raise ServerFailed if one has ended.

        They are asked when the last time was `ask_every_s` ago. One that does not answer is no failure: it may come
        back.
        """
        if time.monotonic() >= self._ask_again_s:
            self._ask()
            self._ask_again_s = time.monotonic() + self.ask_every_s
        if self._credentials:
            self._credentials.renew()
        # with the time of the last question: readers must see that it is old if this process hangs
        if self._records() != self._reported or self.asked_s != self._saved_asked_s:
            self._save(self.phase)
        for server in self.servers:
            if server.wanted:
                server.check_alive()

    def _ask(self) -> None:
        running = (ServerState.STARTING, ServerState.HEALTHY, ServerState.SILENT)
        asked = [one for one in self.servers if one.state in running]
        self.asked_s = time.time()
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            answers = pool.map(lambda one: one.probe(), asked)
        for server, healthy in zip(asked, answers, strict=True):
            if server.note(healthy) and self._on_change:
                self._on_change(server)

    def _replicate(self) -> None:
        self.credentials.write_access_file()
        write_stack_settings(self)
        self.topology = with_addresses(self._source, self.pulsar, self.links, self.folder / "topology.toml")
        self._save("connecting")
        with admins(self.topology, self.access()) as clients:
            done = apply(self.topology, clients)
        if done.unreachable:
            raise ReplicationError("; ".join(done.unreachable.values()))

    def _compose(self) -> None:
        book = PortBook(self.folder / "ports.json", is_pinned=self._has_daemons)
        authority = LocalAuthority(self.folder / "access")
        self._credentials = StackCredentials(self.folder, authority, self.topology, book, _TOKEN_LIFE_S)
        replication = {f"{here}->{there}": (here, there) for here, there in permutations(self.topology.clusters, 2)}
        self.brokers = {
            region: MosquittoBroker(
                region,
                self.folder / f"mosquitto-{region}",
                ports=book,
                security=MosquittoSecurity(
                    tls=self.authority.server(principal(PrincipalKind.BROKER, region), region),
                    rules=broker_rules(0, region, _gateways(region), ()),
                    has_access_daemon=self._has_access_daemon(region),
                    probe=self.authority.client(principal(PrincipalKind.PROBE, region), region),
                ),
            )
            for region in self.topology.regions
        }
        self.pulsar = {
            name: PulsarCluster(
                name,
                self.folder / f"pulsar-{name}",
                settings=self.settings.pulsar,
                ports=book,
                security=self._credentials.of_cluster(name),
                peers={here: book.port(f"link.{link}") for link, (here, there) in replication.items() if there == name},
            )
            for name in self.topology.clusters
        }
        targets: Mapping[str, int] = {region: broker.port for region, broker in self.brokers.items()} | {
            link: self.pulsar[there].broker_port for link, (_, there) in replication.items()
        }
        links = CuttableLinks(self.folder / "links", targets, ports=book)
        self.links = links.links
        self._guard_regions(book)
        everything: list[Server] = [
            *(links, self._credentials.key_server, *self.brokers.values(), *self.enrolment.values()),
            *self.pulsar.values(),
        ]
        if self.settings.lake is LakePlace.S3:
            self.object_store = ObjectStore(self.folder / "s3", ports=book)
            everything.append(self.object_store)
        if self.settings.spark:
            self.spark = SparkCluster(self.folder, book)
            everything += [self.spark.master, *self.spark.workers]
        everything += self.access_daemons.values()
        self._added = {server.name: server for server in everything}

    def _has_daemons(self) -> bool:
        return any(one.is_running for one in registrations(self.folder))

    def _guard_regions(self, book: PortBook) -> None:
        """An enrolment broker and an access daemon for each region whose topology has a role for it."""
        operator, guarded, tenants = stack_operator(self.folder), [], self.topology.operators or ("fleet",)
        for region, broker in self.brokers.items():
            if not self._has_access_daemon(region):
                continue
            one = RegionAccess(broker, self.folder / f"access-{region}", self.authority, book)
            urls = self.pulsar[self.topology.regions[region].cluster].addresses()
            who = (self.access(f"access-{region}"), operator, _gateways(region), tenants)
            self.enrolment[region], self.access_daemons[region] = one.prepare(urls, *who)
            guarded.append(one)
        exchange_lists(guarded)

    def _has_access_daemon(self, region: str) -> bool:
        return f"access-{region}" in self.credentials.roles

    def _changed(self, server: Server) -> None:
        self._save(self.phase)
        if self._on_change:
            self._on_change(server)

    def _records(self) -> list[ServerRecord]:
        return [
            ServerRecord(
                name=server.name, state=server.state, pid=server.pid, log=server.log, addresses=server.addresses()
            )
            for server in self.servers
        ]

    def _save(self, phase: Phase, detail: str = "") -> None:
        self.phase = phase
        self._reported, self._saved_asked_s = self._records(), self.asked_s
        StackState(
            supervisor=os.getpid(),
            phase=phase,
            detail=detail,
            asked_s=self.asked_s,
            servers=self._reported,
            links=self.links,
        ).save(self.folder)


def _gateways(region: str) -> list[str]:
    return [f"{region}-{number}" for number in range(1, _GATEWAYS + 1)]


def _require_free_space(folder: Path) -> None:
    disk = shutil.disk_usage(folder)
    needed = max(_LEAST_FREE_BYTES, disk.total * _LEAST_FREE_SHARE)
    if disk.free <= needed:
        raise LocalStackError(
            f"{folder}: its disk has {disk.free // 10**6:,} MB free, and Pulsar stops writing with "
            f"{needed // 10**6:,.0f} MB or less: free some space, or choose another folder with --folder"
        )


def with_addresses(
    source: Path, clusters: Mapping[str, PulsarCluster], links: Mapping[str, CuttableLink], file: Path
) -> Topology:
    """The topology of `source` with every cluster's address, which is also written to `file`.

    Clusters reach each other over the links, so that a link can be cut.
    """
    tables = [line for name in sorted(clusters) for line in _tables(name, clusters[name], links)]
    text = source.read_text() + "\n# Addresses, added when the stack started.\n" + "\n".join(tables) + "\n"
    replace_durably(file, text.encode())
    return load(Topology, file)


def _tables(name: str, cluster: PulsarCluster, links: Mapping[str, CuttableLink]) -> list[str]:
    here = f"[clusters.{json.dumps(name)}.address"  # a bare key of TOML has no dot in it
    lines = [f"{here}]"]
    lines += [f'service_url = "{cluster.service_url}"', f'admin_url = "{cluster.admin_url}"']
    scheme = "pulsar"
    if cluster.security:
        lines.append(f'trust_certs_file = "{cluster.security.tls.ca}"')
        scheme = "pulsar+ssl"
    for peer in sorted(cluster.peers):
        lines += [
            f"{here}.seen_from.{json.dumps(peer)}]",
            f'service_url = "{scheme}://127.0.0.1:{links[f"{peer}->{name}"].port}"',
            f'listener = "from-{peer}"',
        ]
    return lines
