"""A real Pulsar cluster for one machine: broker, bookie and metadata store in one small JVM."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from pydantic import Field

from deploy.local.errors import ProgramMissing
from deploy.local.mosquitto import TlsFiles
from deploy.local.ports import PortBook
from deploy.local.server import Server, http_health
from geo.replication.pulsar_chart import SNAPSHOTS
from waybill.identity.broker_conf import ServerFiles, pulsar_security
from waybill.pulsar.pulsar_client import PulsarAccess
from waybill.settings import Settings

# JVM options of Pulsar servers: small, with a shared archive of classes.

PULSAR_VERSION = "4.0.8"


def cache_folder() -> Path:
    """Where downloads and derived files live that any clone may share: $WAYBILL_CACHE, or the user's cache."""
    if chosen := os.environ.get("WAYBILL_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "waybill"


def pulsar_home() -> Path:
    """The unpacked Pulsar server; raises ProgramMissing when it is not there."""
    home = cache_folder() / f"apache-pulsar-{PULSAR_VERSION}"
    if not (home / "lib").is_dir():
        raise ProgramMissing(f"Pulsar {PULSAR_VERSION}", f"run `make setup` (looked in {home})")
    return home


@cache
def java() -> str:
    """The java program: $JAVA_HOME's, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if not path:
        raise ProgramMissing("java", "install Java 17 (Debian: apt-get install openjdk-17-jre-headless)")
    return path


@cache
def _java_version() -> str:
    asked = subprocess.run([java(), "-version"], capture_output=True, text=True, check=True, timeout=30)
    return asked.stderr


class ClassArchive:
    """A class-data-sharing archive: the first server to stop writes it, every later start reads it.

    It halves the CPU time of a start (6.0 s to 3.2 s measured) and shares pages between the clusters. The name carries
    the Java version and the class path; the JVM itself ignores an archive that does not fit.
    """

    def __init__(self, class_path: str, use: str = "") -> None:
        """`use`: servers of another one load other classes, and have an archive of their own."""
        digest = hashlib.sha256((_java_version() + class_path + use).encode()).hexdigest()[:16]
        self._file = cache_folder() / f"pulsar-classes-{digest}.jsa"
        # Another process may write the same archive: each writes a file of its own, and renames it when it is whole.
        self._part = self._file.with_suffix(f".{os.getpid()}.part")

    def found(self) -> list[str]:
        """JVM options that read the archive; none where there is none."""
        return [f"-XX:SharedArchiveFile={self._file}"] if self._file.exists() else []

    def options(self) -> list[str]:
        """JVM options that read the archive, or that write it when there is none and no other of ours writes it."""
        if found := self.found():
            return found
        if self._part in _writing:
            return []
        _writing[self._part] = self
        return [f"-XX:ArchiveClassesAtExit={self._part}"]

    @property
    def is_written(self) -> bool:
        """Whether a running JVM of ours writes it when it stops in order."""
        return _writing.get(self._part) is self

    def stopped(self, exit_status: int) -> None:
        """Publish the archive that a JVM wrote, if it ended in order; a JVM that was killed wrote half of one."""
        if not self.is_written:
            return
        del _writing[self._part]
        # A JVM that SIGTERM ended in order, its archive written, says 128 + 15.
        if exit_status in (0, 143, -15) and self._part.exists():
            self._part.replace(self._file)
        self._part.unlink(missing_ok=True)


# Of several clusters that start side by side, one writes.
_writing: dict[Path, ClassArchive] = {}


KEY_REFRESH_S = 2
"""How old a broker's keys may be when it checks a token; older ones are fetched, and the next check has them."""

_HOST = "127.0.0.1"
# The server's own folder. Pulsar puts these paths into URIs as they are: a space in one would end the start.
_HERE = "/proc/self/cwd"
_OPENED = ["java.base/java.io", "java.base/java.util.zip", "java.base/java.nio", "java.base/jdk.internal.misc"]
_OPENED += ["java.base/jdk.internal.platform", "java.management/sun.management"]
_OPENED += ["jdk.management/com.sun.management.internal"]
_METADATA = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"

# A killed bookie leaves its registration behind. The next start deletes it and registers again. If the notice of the
# deletion comes late, Pulsar 4.0.8 takes it for one of the new registration, and deletes and renews that without end
# (apache/pulsar#25001): the broker answers, but topics with stored messages do not open.
_REGISTERED_AGAIN = "Successfully re-acquired lock at /ledgers/available/"
_MAX_REGISTRATIONS = 5

# What differs from Pulsar's own standalone.conf, and why.
SMALL_BROKER: dict[str, str | int] = {
    **SNAPSHOTS,
    "forceDeleteNamespaceAllowed": "true",
    "forceDeleteTenantAllowed": "true",
    # The topology asks for numbers that are a second old, not a minute.
    "statsUpdateFrequencyInSecs": 1,
    "statsUpdateInitialDelayInSecs": 1,
    "exposePreciseBacklogInPrometheus": "true",
    "replicationPolicyCheckDurationSeconds": 30,
    "brokerServiceCompactionMonitorIntervalInSeconds": 10,
    # Small and quick: few threads, small caches, no WebSocket gateway.
    "webSocketServiceEnabled": "false",
    "brokerShutdownTimeoutMs": 5000,
    "defaultNumberOfNamespaceBundles": 1,
    "numIOThreads": 2,
    "numHttpServerThreads": 8,
    "numOrderedExecutorThreads": 2,
    "numExecutorThreadPoolSize": 2,
    "numCacheExecutorThreadPoolSize": 2,
    "topicOrderedExecutorThreadNum": 2,
    "numWorkerThreadsForNonPersistentTopic": 1,
    "managedLedgerNumSchedulerThreads": 2,
    "bookkeeperClientNumWorkerThreads": 2,
    "bookkeeperClientNumIoThreads": 2,
    "bookkeeperNumberOfChannelsPerBookie": 2,
    "replicationConnectionsPerBroker": 2,
    "managedLedgerCacheSizeMB": 64,
    "maxMessagePublishBufferSizeInMB": 64,
    "dbStorage_writeCacheMaxSizeMb": 32,
    "dbStorage_readAheadCacheMaxSizeMb": 16,
    "dbStorage_rocksDB_blockCacheSize": 8 * 1024 * 1024,
}


def standalone_conf(own: Mapping[str, str | int]) -> str:
    """Pulsar's own standalone.conf, then these lines, of which the last one of a name counts."""
    # Pulsar's file ends without a newline; ours must not continue its last line.
    lines = "".join(f"{key}={value}\n" for key, value in own.items())
    return (pulsar_home() / "conf/standalone.conf").read_text() + "\n" + lines


def small_jvm(heap_mb: int, direct_mb: int) -> list[str]:
    """Options of a small JVM that ends when it has no memory: half a broker would still answer."""
    small = ["-Xms128m", f"-Xmx{heap_mb}m", f"-XX:MaxDirectMemorySize={direct_mb}m", "-XX:+UseSerialGC", "-Xss512k"]
    return [*small, "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError", "-Xlog:disable", "-Xlog:all=error:stderr"]


def standalone_words(
    *, class_path: str, home: Path, conf: Path, logs: Path, bookie_port: int, address: str
) -> list[str]:
    """What `java` gets after its options to run a standalone server in its working folder, as bin/pulsar would."""
    opened = [word for package in _OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
    defines = [
        f"-Dpulsar.config.file={conf}",
        f"-Dpulsar.log.dir={logs}",
        "-Dpulsar.log.appender=Console",
        "-Dpulsar.log.immediateFlush=true",
        f"-Dlog4j.configurationFile={home / 'conf/log4j2.yaml'}",
        "-Dlog4j.shutdownHookEnabled=false",
        "-Dlog4j2.is.webapp=false",
        "-Djava.net.preferIPv4Stack=true",
        "-Dio.netty.tryReflectionSetAccessible=true",
        "-Dorg.apache.pulsar.shade.io.netty.tryReflectionSetAccessible=true",
        "-Dpulsar.allocator.exit_on_oom=true",
        f"-Dbookkeeper.metadata.bookie.drivers={_METADATA}BookieDriver",
        f"-Dbookkeeper.metadata.client.drivers={_METADATA}ClientDriver",
    ]
    arguments = ["--no-functions-worker", "--no-stream-storage", "--config", str(conf)]
    arguments += ["--metadata-dir", f"{_HERE}/metadata", "--bookkeeper-dir", f"{_HERE}/bookkeeper"]
    arguments += ["--bookkeeper-port", str(bookie_port), "--advertised-address", address]
    return ["-cp", class_path, *opened, *defines, "org.apache.pulsar.PulsarStandaloneStarter", *arguments]


class PulsarSettings(Settings):
    """Size and broker settings of one local cluster."""

    heap_mb: int = Field(512, ge=128, description="Java heap, at most")
    direct_mb: int = Field(384, ge=128, description="memory outside the heap for network and caches, at most")
    full_compiler: bool = Field(
        False, description="let the JVM optimise fully: slower to warm up, faster for long runs"
    )
    broker: Mapping[str, str | int] = Field(default_factory=dict, description="further lines for standalone.conf")


class PulsarSecurity(Settings):
    """How a cluster knows who is who: TLS alone on its ports, a token from everybody, and rights for roles.

    `issuer`: the URL of the server with the keys of tokens (see `waybill.identity.tokens`), whose certificate is of the
    authority of `tls` too. `broker_token`: what the broker shows to others and to itself. `operator_token`: of one who
    may ask for its health.
    """

    tls: TlsFiles
    issuer: str
    broker_token: Path
    superusers: tuple[str, ...]
    operator_token: Path


class PulsarCluster(Server):
    """One standalone cluster on loopback; without `security` in plain text, and open to everybody on this machine.

    `peers` maps the name of a remote cluster to the loopback port under which that cluster sees our broker (a
    cuttable link). The broker then advertises that port to clients that ask by the listener name `from-<peer>`,
    so that a replicator stays on its link after the look-up.
    """

    start_timeout_s = 300.0

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        settings: PulsarSettings | None = None,
        ports: PortBook | None = None,
        peers: Mapping[str, int] | None = None,
        security: PulsarSecurity | None = None,
    ) -> None:
        super().__init__(f"pulsar-{name}", folder)
        self.cluster = name
        self.security = security
        self.settings = settings or PulsarSettings()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ports = ports or PortBook(self.folder / "ports.json")
        self.broker_port = self._ports.port(f"{self.name}.broker")
        self.web_port = self._ports.port(f"{self.name}.web")
        self._bookie_port = self._ports.port(f"{self.name}.bookie")
        self.peers = dict(peers or {})
        self._home = pulsar_home()
        self._class_path = ":".join(sorted(str(jar) for jar in (self._home / "lib").glob("*.jar")))
        # TLS and tokens are many classes, which an archive of a cluster without them does not have.
        self._archive = ClassArchive(self._class_path, "secured" if security else "")

    @property
    def writes_archive(self) -> bool:
        """Whether every later start is quicker if this server stops in order instead of being killed."""
        return self._archive.is_written

    @property
    def service_url(self) -> str:
        """For producers and consumers: pulsar+ssl://host:port, or pulsar://host:port without security."""
        return f"{self._scheme}://{_HOST}:{self.broker_port}"

    @property
    def admin_url(self) -> str:
        """For the admin REST interface and the metrics (/metrics/): https://host:port, or http://host:port."""
        return f"{'https' if self.security else 'http'}://{_HOST}:{self.web_port}"

    @property
    def access(self) -> PulsarAccess:
        """The operator's; of a cluster without security what everybody shows: nothing."""
        if self.security is None:
            return PulsarAccess()
        return PulsarAccess(token_file=self.security.operator_token, tls_ca=self.security.tls.ca)

    @property
    def _scheme(self) -> str:
        return "pulsar+ssl" if self.security else "pulsar"

    def addresses(self) -> dict[str, str]:
        return {"service_url": self.service_url, "admin_url": self.admin_url}

    def prepare(self) -> None:
        self._conf.write_text(standalone_conf(self._configuration()))

    def command(self) -> Sequence[str]:
        """The JVM itself, as bin/pulsar would exec it: no shell stays in between."""
        places = {"conf": self._conf, "logs": self.folder, "home": self._home}
        server = standalone_words(class_path=self._class_path, bookie_port=self._bookie_port, address=_HOST, **places)
        return [java(), *self._jvm_options(), *server]

    def probe(self) -> bool:
        """Whether the broker passes its own health check: a message through a real topic."""
        # The standalone server answers before it has made its default namespace.
        paths = "namespaces/public/default", "brokers/health"
        urls = [f"{self.admin_url}/admin/v2/{path}" for path in paths]
        return http_health(*urls, token_file=self.access.token_file, tls_ca=self.access.tls_ca)()

    def defect(self) -> str | None:
        """Whether the bookie registers again and again, as it may after it was killed."""
        again = sum(_REGISTERED_AGAIN in line for line in self.last_lines(1000))
        return "the bookie registers without end" if again > _MAX_REGISTRATIONS else None

    def stopped(self, exit_status: int) -> None:
        """Keep the class archive, if this JVM wrote it."""
        self._archive.stopped(exit_status)

    @property
    def _conf(self) -> Path:
        return self.folder / "standalone.conf"

    def _jvm_options(self) -> list[str]:
        quick = [] if self.settings.full_compiler else ["-XX:TieredStopAtLevel=1"]
        return [*small_jvm(self.settings.heap_mb, self.settings.direct_mb), *quick, *self._archive.options()]

    def _configuration(self) -> dict[str, str | int]:
        listeners: dict[str, str | int] = {}
        if self.peers:
            seen = {"direct": self.broker_port} | {f"from-{peer}": port for peer, port in self.peers.items()}
            listeners["advertisedListeners"] = ",".join(
                f"{name}:{self._scheme}://{_HOST}:{port}" for name, port in sorted(seen.items())
            )
            # Pulsar answers with it where no listener is asked for: our own clients, which must not go over a cuttable
            # link.
            listeners["internalListenerName"] = "direct"
        return {
            "clusterName": self.cluster,
            "brokerServicePort": self.broker_port,
            "webServicePort": self.web_port,
            "bindAddress": _HOST,
            "advertisedAddress": _HOST,
            **listeners,
            **self._secured(),
            **SMALL_BROKER,
            # Last, so that the stack's user has the last word.
            **self.settings.broker,
        }

    def _secured(self) -> dict[str, str | int]:
        security = self.security
        if security is None:
            return {}
        return pulsar_security(
            ServerFiles(security.tls.certificate, security.tls.key),
            security.tls.ca,
            issuer=security.issuer,
            broker_token=security.broker_token,
            superusers=security.superusers,
            ports=(self.broker_port, self.web_port),
            key_refresh_s=KEY_REFRESH_S,
        )
