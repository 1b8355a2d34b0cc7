"""The whole local stack: Pulsar clusters, regional brokers, links, and any daemon that is added."""

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Self

from pydantic import Field

from deploy.local.credentials import (
    ACCESS_FILE,
    OPERATOR,
    LocalAuthority,
    RegionAccess,
    StackCredentials,
    exchange_lists,
    stack_operator,
)
from deploy.local.errors import DiskFull, LocalStackError, TopologyHasAddresses
from deploy.local.folder import ProcessIdentity, hold
from deploy.local.links import CuttableLink, CuttableLinks
from deploy.local.mosquitto import EnrolmentBroker, MosquittoBroker, MosquittoSecurity, TlsFiles
from deploy.local.object_store import LakePlace, ObjectStore
from deploy.local.ports import PortBook
from deploy.local.pulsar import PulsarCluster, PulsarSettings
from deploy.local.server import DaemonProcess, Server, ServerState, ask_all, wait_all
from deploy.local.spark_cluster import SparkCluster, SparkClusterSettings
from deploy.local.stack_settings import write_stack_settings
from deploy.local.stack_state import LinkRecord, Phase, ServerRecord, StackState
from geo.replication import ReplicationError, Topology, admins, apply
from waybill.daemon.durable_file import replace_durably
from waybill.identity.broker_conf import MosquittoSettings, broker_rules
from waybill.identity.names import PrincipalKind, principal
from waybill.identity.operator_settings import OPERATOR_SETTINGS
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import Settings, load

# Free disk space: bookies without space only log it.

_FULL_SHARE = 0.99
"""From here on a bookie takes nothing any more: `diskUsageThreshold` in Pulsar's standalone.conf."""
_LEAST_BYTES = 100_000_000
"""Of a small disk: a stack that has just started took 30 MB, and its servers' logs grow."""
_MB = 1_000_000


class _Disk(NamedTuple):
    total: int
    used: int
    free: int


def require_free_space(folder: Path, usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage) -> None:
    """Raises DiskFull where Pulsar would take nothing. `usage`: bytes in all, used, and free for this user."""
    disk = _Disk(*usage(folder))
    needed = max(_LEAST_BYTES, disk.total - int(disk.total * _FULL_SHARE))
    if disk.free <= needed:
        raise DiskFull(folder, disk.free // _MB, -(-needed // _MB), disk.total // _MB)


DEFAULT_TOPOLOGY = Path(__file__).with_name("topology.toml")


class StackSettings(Settings):
    """How big the parts of the stack are."""

    pulsar: PulsarSettings = Field(default_factory=PulsarSettings)
    mosquitto: MosquittoSettings = Field(default_factory=MosquittoSettings)
    lake: LakePlace = Field(LakePlace.FOLDER, description="with `s3` the stack has an S3 server with a bucket for it")
    spark: SparkClusterSettings | None = Field(None, description="a Spark cluster beside the rest; None: there is none")
    start_timeout_s: float = Field(300.0, gt=0)
    ask_every_s: float = Field(10.0, ge=0, description="how often `check` asks the servers whether they are healthy")
    gateways: int = Field(2, ge=1, le=64, description="of a region, that its broker takes: REGION-1, REGION-2, …")
    insecure: bool = Field(False, description="open to everybody on this machine, in plain text")
    token_life_s: float = Field(43_200.0, gt=1, description="of the tokens of roles; `check` renews them at half of it")


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
            stack.spark.master.url                   # with `settings.spark`: what a Spark job names as its master
            stack.add(DaemonProcess.python("fleet-gateway-eu", "gateway", [...], folder / "gateway-eu"))

    Clusters and regions are those of the topology file, which is applied before `start` returns; with the addresses
    added it is kept as `topology.toml` in the folder, for `waybill topology` and for daemons. Data stays in the folder:
    a stack that is started there again has its topics and its ports.
    """

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
        if located_already := sorted(name for name, one in self.topology.clusters.items() if one.address):
            raise TopologyHasAddresses(topology, located_already)
        self.phase: Phase = "starting"
        self._on_change = on_change
        self._held = ExitStack()
        self._is_held = False
        self._saving = Lock()
        self._added: dict[str, Server] = {}
        self._reported: list[ServerRecord] = []
        self._started_s = self.asked_s = 0.0
        self._ask_again_s = 0.0
        self._supervisor = ProcessIdentity.mine()
        self.authority: LocalAuthority | None = None
        self.credentials: StackCredentials | None = None
        self.pulsar: dict[str, PulsarCluster] = {}
        self.brokers: dict[str, MosquittoBroker] = {}
        self.enrolment: dict[str, EnrolmentBroker] = {}
        self.access_daemons: dict[str, DaemonProcess] = {}
        self.links: dict[str, CuttableLink] = {}
        self.object_store: ObjectStore | None = None
        self.spark: SparkCluster | None = None

    def access(self, role: str = OPERATOR) -> PulsarAccess:
        """What a process of this role shows the clusters, and whom it trusts; nothing of an insecure stack."""
        return self.credentials.access(role) if self.credentials else PulsarAccess()

    def client_files(self, name: str, region: str) -> TlsFiles | None:
        """What a device (`acme/bus-1`) or a gateway (`gateway@eu-1`) shows a broker; None: nobody is asked."""
        return self.authority.client(name, region) if self.authority else None

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
        """Start everything side by side and return when all is healthy; on any error stop it all and raise."""
        # Before any port is chosen or file written: a second stack in this folder ends here.
        self._held.enter_context(hold(self.folder))
        self._is_held, self._started_s = True, time.time()
        try:
            require_free_space(self.folder)
            self._compose()
            workers = self.spark.workers if self.spark else []
            later = [*workers, *self.access_daemons.values()]
            first = [server for server in self.servers if server not in later]
            for server in first:
                server.start()
            self._save("starting")
            wait_all(first, self.settings.start_timeout_s, self._changed)
            for worker in workers:
                worker.start()
            self.asked_s = time.time()
            self._replicate()
            # Their topics and rights are there from here on.
            for daemon in self.access_daemons.values():
                daemon.start()
            wait_all([*workers, *self.access_daemons.values()], self.settings.start_timeout_s, self._changed)
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

    def records(self) -> list[ServerRecord]:
        """Every server as it is now."""
        return [
            ServerRecord(
                name=server.name,
                kind=server.kind,
                state=server.state,
                process=server.identity,
                health=server.health(),
                log=server.log,
                addresses=server.addresses(),
            )
            for server in self.servers
        ]

    def remove(self, name: str) -> None:
        """Stop a server that was added and forget it."""
        self._added[name].stop()
        del self._added[name]
        self._save("ready")

    @property
    def memory_bytes(self) -> int:
        """Resident memory of all servers now."""
        return sum(server.memory_bytes for server in self.servers)

    def check(self, *, goes_on: bool = False) -> None:
        """Ask the servers whether they are healthy, publish what changed; raise ServerFailed if any server
        that should run has ended.

        `goes_on`: such a server is started again, three times at most, and `ended` says how it ended last.

        They are asked side by side, when the last time was `ask_every_s` ago; one that does not answer is said to be
        so, and is no failure: it may come back.
        """
        if time.monotonic() >= self._ask_again_s:
            self._ask()
            self._ask_again_s = time.monotonic() + self.settings.ask_every_s
        if self.credentials:
            self.credentials.renew()
        if self.records() != self._reported:
            self._save(self.phase)
        for server in self.servers:
            if server.wanted and server.keep_alive(revives=goes_on):
                self._changed(server)

    @property
    def ended(self) -> list[str]:
        """Of each server that ended by itself how it did, and what became of it."""
        return [server.ended for server in self.servers if server.ended]

    def _ask(self) -> None:
        running = (ServerState.STARTING, ServerState.HEALTHY, ServerState.SILENT)
        asked = {one.name: one for one in self.servers if one.state in running}
        self.asked_s = time.time()
        for name, healthy in ask_all({name: one.probe for name, one in asked.items()}).items():
            changed = asked[name].healthy != healthy
            asked[name].note(healthy)
            if changed and self._on_change:
                self._on_change(asked[name])

    def _replicate(self) -> None:
        if self.credentials:
            self.credentials.write_access_file()
            write_stack_settings(self)
        else:
            (self.folder / ACCESS_FILE).unlink(missing_ok=True)
            (self.folder / OPERATOR_SETTINGS).unlink(missing_ok=True)
        self.topology = with_addresses(self._source, self.pulsar, self.links, self.folder / "topology.toml")
        self._save("connecting")
        with admins(self.topology, self.access()) as clients:
            done = apply(self.topology, clients)
        if done.unreachable:
            raise ReplicationError("; ".join(done.unreachable.values()))

    def _compose(self) -> None:
        book = PortBook(self.folder / "ports.json")
        settings = self.settings
        if not settings.insecure:
            self.authority = LocalAuthority(self.folder / "access")
            self.credentials = StackCredentials(self.folder, self.authority, self.topology, book, settings.token_life_s)
        replication = {f"{here}->{there}": (here, there) for here, there in permutations(self.topology.clusters, 2)}
        self.brokers = {
            region: MosquittoBroker(
                region,
                self.folder / f"mosquitto-{region}",
                settings=settings.mosquitto,
                ports=book,
                security=self._broker_security(region),
            )
            for region in self.topology.regions
        }
        self.pulsar = {
            name: PulsarCluster(
                name,
                self.folder / f"pulsar-{name}",
                settings=settings.pulsar,
                ports=book,
                security=self.credentials.of_cluster(name) if self.credentials else None,
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
        issuer = [self.credentials.key_server] if self.credentials else []
        everything: list[Server] = [
            *(links, *issuer, *self.brokers.values(), *self.enrolment.values(), *self.pulsar.values())
        ]
        if settings.lake is LakePlace.S3:
            self.object_store = ObjectStore(self.folder / "s3", ports=book)
            everything.append(self.object_store)
        if settings.spark:
            self.spark = SparkCluster(self.folder, settings.spark, book)
            everything += [self.spark.master, *self.spark.workers]
        everything += self.access_daemons.values()
        self._added = {server.name: server for server in everything}

    def _guard_regions(self, book: PortBook) -> None:
        """An enrolment broker and an access daemon for each region whose topology has a role for it."""
        if self.authority is None:
            return
        operator, guarded, tenants = stack_operator(self.folder), [], self.topology.operators or ("fleet",)
        for region, broker in self.brokers.items():
            if broker.security is None or not broker.security.has_access_daemon:
                continue
            one = RegionAccess(broker, self.folder / f"access-{region}", self.authority, book)
            urls = self.pulsar[self.topology.regions[region].cluster].addresses()
            who = (self.access(f"access-{region}"), operator, self._gateways(region), tenants)
            self.enrolment[region], self.access_daemons[region] = one.prepare(urls, *who)
            guarded.append(one)
        exchange_lists(guarded)

    def _gateways(self, region: str) -> list[str]:
        return [f"{region}-{number}" for number in range(1, self.settings.gateways + 1)]

    def _broker_security(self, region: str) -> MosquittoSecurity | None:
        if self.authority is None:
            return None
        has_daemon = self.credentials is not None and f"access-{region}" in self.credentials.roles
        return MosquittoSecurity(
            tls=self.authority.server(principal(PrincipalKind.BROKER, region), region),
            rules=broker_rules(0, region, self._gateways(region), ()),
            has_access_daemon=has_daemon,
            probe=self.authority.client(principal(PrincipalKind.PROBE, region), region),
        )

    def _changed(self, server: Server) -> None:
        self._save(self.phase)
        if self._on_change:
            self._on_change(server)

    def _save(self, phase: Phase, detail: str = "") -> None:
        self.phase = phase
        with self._saving:
            self._write(phase, detail)

    def _write(self, phase: Phase, detail: str) -> None:
        self._reported = self.records()
        StackState(
            supervisor=self._supervisor,
            phase=phase,
            detail=detail or "; ".join(self.ended),
            started_s=self._started_s,
            asked_s=self.asked_s,
            is_insecure=self.settings.insecure,
            servers=self._reported,
            links={
                name: LinkRecord(port=link.port, target=link.target, control=link.control, secret=link.secret)
                for name, link in self.links.items()
            },
        ).save(self.folder)


def with_addresses(
    source: Path, clusters: Mapping[str, PulsarCluster], links: Mapping[str, CuttableLink], file: Path
) -> Topology:
    """The topology of `source` with every cluster's address, as it is then written to `file`.

    Clusters see each other over the links, so that a link can be cut.
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
