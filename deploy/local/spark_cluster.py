"""A real Spark cluster for one machine: Spark's own standalone master and workers, from PySpark's distribution."""

import secrets
import shlex
import sys
import sysconfig
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from deploy.local.errors import ProgramMissing
from deploy.local.ports import PortBook
from deploy.local.pulsar import java
from deploy.local.server import Server, http_health
from waybill.daemon.durable_file import create_durably, replace_durably

_HOST = "127.0.0.1"
_DEPLOY = "org.apache.spark.deploy"


_WORKER_CORES = 1
_WORKER_MEMORY_MB = 1024
"""For executors; a worker itself needs more."""


class _SparkDaemon(Server):
    """One JVM of Spark's standalone deployment on loopback, with its web address."""

    start_timeout_s = 60.0

    def __init__(self, name: str, folder: Path, *, ports: PortBook) -> None:
        super().__init__(name, folder)
        self.port, self.web_port = ports.port(name), ports.port(f"{name}.web")
        self.web_url = f"http://{_HOST}:{self.web_port}"
        self._home = _spark_home()

    def environment(self) -> Mapping[str, str]:
        """Spark's own folders, and nothing of this process's Python: executors inherit it."""
        return {
            "SPARK_HOME": str(self._home),
            # Without its start scripts Spark looks for a build to find out the version of Scala.
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_CONF_DIR": str(self.folder),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_LOCAL_DIRS": str(self.folder / "scratch"),
            "PYTHONPATH": "",
        }

    def command(self) -> Sequence[str]:
        """The JVM itself, as bin/spark-class would exec it."""
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError"]
        # Another way in to the master, which is not needed.
        defines = ["-Dspark.master.rest.enabled=false", "-Dspark.ui.killEnabled=false"]
        at = ["--host", _HOST, "--port", str(self.port), "--webui-port", str(self.web_port)]
        return [java(), *small, *defines, "-cp", f"{self._home}/jars/*", *self.arguments(at)]

    def write_defaults(self, secret: str) -> None:
        """Write Spark's settings: a process without the secret neither registers nor runs anything."""
        lines = ("spark.authenticate true", "spark.network.crypto.enabled true", f"spark.authenticate.secret {secret}")
        text = "".join(f"{line}\n" for line in lines)
        replace_durably(self.folder / "spark-defaults.conf", text.encode(), mode=0o600)

    @abstractmethod
    def arguments(self, at: Sequence[str]) -> Sequence[str]:
        """The class to run, and its arguments. `at`: the arguments for its addresses."""


class SparkMaster(_SparkDaemon):
    """The master: workers register with it, and jobs ask it for executors at `url`.

    Its folder also has `python`, the interpreter of executors: this environment's packages without this project, as on
    a machine with only the extra `cloud`.
    """

    def __init__(self, name: str, folder: Path, *, ports: PortBook) -> None:
        super().__init__(name, folder, ports=ports)
        self.url = f"spark://{_HOST}:{self.port}"
        self.python = self.folder / "python"
        self.secret_file = self.folder / "secret"
        """The file for `spark.secret_file`, drawn at the first start."""

    def addresses(self) -> dict[str, str]:
        return {"url": self.url, "web_url": self.web_url, "python": str(self.python)}

    def probe(self) -> bool:
        return http_health(f"{self.web_url}/json/", expect={"status": "ALIVE"})()

    def prepare(self) -> None:
        """Draw the secret, and write the interpreter, which follows no link to the source tree (without `site`)."""
        if not self.secret_file.exists():
            create_durably(self.secret_file, secrets.token_hex(32).encode(), mode=0o600)
        self.write_defaults(self.secret_file.read_text())
        libraries = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        paths = ":".join(["${PYTHONPATH:-}", *(shlex.quote(path) for path in libraries)])
        text = f'#!/bin/sh\nPYTHONPATH={paths} exec {shlex.quote(sys.executable)} -S "$@"\n'
        self.python.write_text(text)
        self.python.chmod(0o755)

    def arguments(self, at: Sequence[str]) -> Sequence[str]:
        return [f"{_DEPLOY}.master.Master", *at]


class SparkWorker(_SparkDaemon):
    """A worker: starts executors, each in a folder of its own under `work`."""

    def __init__(self, name: str, folder: Path, *, master: SparkMaster, ports: PortBook) -> None:
        super().__init__(name, folder, ports=ports)
        self._master = master

    def prepare(self) -> None:
        self.write_defaults(self._master.secret_file.read_text())

    def addresses(self) -> dict[str, str]:
        return {"web_url": self.web_url}

    def probe(self) -> bool:
        return http_health(f"{self.web_url}/json/", expect={"masterurl": self._master.url})()

    def arguments(self, at: Sequence[str]) -> Sequence[str]:
        size = ["--cores", str(_WORKER_CORES), "--memory", f"{_WORKER_MEMORY_MB}m"]
        work = ["--work-dir", str(self.folder / "work")]
        return [f"{_DEPLOY}.worker.Worker", *at, *size, *work, self._master.url]


class SparkCluster:
    """The master and its workers. Start the master first: a worker without a master asks again only after seconds."""

    def __init__(self, folder: Path, ports: PortBook, *, workers: int = 2) -> None:
        self.master = SparkMaster("spark-master", folder / "spark-master", ports=ports)
        self.workers = [
            SparkWorker(name, folder / name, master=self.master, ports=ports)
            for name in (f"spark-worker-{number}" for number in range(1, workers + 1))
        ]

    def job_settings(self, jobs: int = 1) -> str:
        """The table `[spark]` of a job, as TOML. `jobs`: the number of jobs that share the workers."""
        assert jobs <= len(self.workers), "a job without an executor waits for ever"
        quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        return f"""[spark]
master = "{self.master.url}"
driver_host = "{_HOST}"
python = "{self.master.python}"
secret_file = "{self.master.secret_file}"
executor_memory = "{_WORKER_MEMORY_MB * 7 // 10}m"
executor_cores = {_WORKER_CORES}
max_cores = {_WORKER_CORES * (len(self.workers) // jobs)}

[spark.extra]
"spark.executor.extraJavaOptions" = "{quick}"
"""


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    origin = spec.origin if spec is not None else None
    if origin is None:
        raise ProgramMissing("Spark", "install the extra local (docs/install.md)")
    return Path(origin).parent
