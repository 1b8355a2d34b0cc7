"""What is measured side by side: each stands between a vehicle's broker and a region's broker."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from deploy.local import MosquittoBroker
from deploy.local.ports import PortBook
from deploy.local.pulsar import cache_folder
from deploy.local.server import spawn
from waybill.record import VEHICLE_FILTER, VEHICLE_POSITION

TENANT, DEVICE = "acme", "eu-0001"

# Telegraf, built with the plugins that the comparison needs and no others.

VERSION = "1.39.3"
PACKAGE = f"github.com/influxdata/telegraf/cmd/telegraf@v{VERSION}"
TAGS = "custom,inputs.mqtt_consumer,outputs.mqtt,parsers.value,serializers.template"
BUILD_TIMEOUT_S = 1800


def find_telegraf() -> Path | None:
    """The program, built once if Go is there; None where there is neither. Raises CalledProcessError."""
    folder = cache_folder() / f"telegraf-{VERSION}"
    program = folder / "telegraf"
    if not program.exists() and shutil.which("go"):
        environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
        command = ["go", "install", "-trimpath", "-ldflags", "-s -w", "-tags", TAGS, PACKAGE]
        subprocess.run(command, env=environment, check=True, timeout=BUILD_TIMEOUT_S)
    return program if program.exists() else None


CONFIG = """
[agent]
  interval = "1s"
  flush_interval = "200ms"
  metric_batch_size = 1000
  metric_buffer_limit = 1000000
  buffer_strategy = "disk"
  buffer_directory = "{folder}/buffer"
  omit_hostname = true

[[inputs.mqtt_consumer]]
  servers = ["tcp://127.0.0.1:{intake_port}"]
  topics = ["{topics}"]
  qos = 1
  client_id = "telegraf-in"
  persistent_session = true
  max_undelivered_messages = 100000
  max_reconnect_interval = "1s"
  data_format = "value"
  data_type = "string"

[[outputs.mqtt]]
  startup_error_behavior = "retry"
  servers = ["127.0.0.1:{region_port}"]
  client_id = "telegraf-out"
  topic = "{topic}"
  qos = 1
  data_format = "template"
  template = '{{{{ .Field "value" }}}}'
"""
"""The sizes of its defaults, but a flush as often as our commit, so that its live data do not wait ten seconds."""


class Contender:
    """A process that can be killed, and what it costs."""

    name = ""

    def __init__(self, folder: Path, region_port: int) -> None:
        self.folder = folder
        self.region_port = region_port
        folder.mkdir(parents=True, exist_ok=True)
        self.cpu_before_s = 0.0
        self.written_before = 0
        self.peak_rss = 0
        self.process: subprocess.Popen[bytes] | None = None

    intake_port: int

    @classmethod
    def absent(cls) -> str:
        return ""

    def command(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        # it ends with this process, however that ends
        self.process = spawn(self.command(), log=self.folder / "log", folder=self.folder, env={})

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        self.look()
        self.cpu_before_s, self.written_before = self.cpu_s, self.written
        self.process.send_signal(number)
        self.process.wait(15)
        self.process = None

    def look(self) -> None:
        if self.process is not None:
            self.peak_rss = max(self.peak_rss, psutil.Process(self.process.pid).memory_info().rss)

    @property
    def cpu_s(self) -> float:
        if self.process is None:
            return self.cpu_before_s
        times = psutil.Process(self.process.pid).cpu_times()
        return self.cpu_before_s + float(times.user + times.system)

    @property
    def written(self) -> int:
        if self.process is None:
            return self.written_before
        return self.written_before + int(psutil.Process(self.process.pid).io_counters().write_bytes)

    def close(self) -> None:
        if self.process is not None:
            self.stop()


class BehindBroker(Contender):
    """A contender behind a Mosquitto of its own."""

    def __init__(self, folder: Path, region_port: int) -> None:
        super().__init__(folder, region_port)
        self._broker = MosquittoBroker("car", folder / "car")
        self._broker.start()
        self._broker.wait()
        self.intake_port = self._broker.port

    def close(self) -> None:
        super().close()
        self._broker.stop()


class EdgeAgent(BehindBroker):
    """This agent."""

    name = "edge-agent"

    def __init__(self, folder: Path, region_port: int, extra: str = "") -> None:
        super().__init__(folder, region_port)
        self.config = folder / "agent.toml"
        self.config.write_text(
            f'[device]\nid = "{DEVICE}"\ntenant = "{TENANT}"\n'
            f"[intake]\nport = {self.intake_port}\nbackoff_first_s = 0.1\n"
            f'[buffer]\npath = "{folder}/buffer"\n{extra}\n'
            f'[[uplinks]]\nregion = "eu"\nhost = "127.0.0.1"\nport = {region_port}\n'
            "backoff_first_s = 0.1\nbackoff_max_s = 1\n"
        )

    def command(self) -> list[str]:
        return [sys.executable, "-m", "edge_agent", "run", "-c", str(self.config)]


class Telegraf(BehindBroker):
    """Telegraf with its buffer on disk, synced; a message goes out as it came."""

    name = f"Telegraf {VERSION}"

    def __init__(self, folder: Path, region_port: int) -> None:
        super().__init__(folder, region_port)
        filled = CONFIG.format(
            folder=folder,
            intake_port=self.intake_port,
            region_port=region_port,
            topics=VEHICLE_FILTER,
            topic=VEHICLE_POSITION,
        )
        (folder / "conf").write_text(filled)

    @classmethod
    def absent(cls) -> str:
        return "" if find_telegraf() else "Go is not installed, so it could not be built"

    def command(self) -> list[str]:
        return [str(find_telegraf()), "--config", str(self.folder / "conf")]


class MosquittoBridge(Contender):
    """Debian's Mosquitto as a bridge with persistence, its queue written every second."""

    name = "Mosquitto bridge"

    def __init__(self, folder: Path, region_port: int) -> None:
        super().__init__(folder, region_port)
        self.intake_port = PortBook(folder / "ports.json").port("bridge")
        (folder / "mosquitto.conf").write_text(
            f"listener {self.intake_port} 127.0.0.1\nallow_anonymous true\nuser root\n"
            f"persistence true\npersistence_location {folder}/\nautosave_interval 1\n"
            "max_queued_messages 0\nmax_inflight_messages 1000\n"
            f"connection region\naddress 127.0.0.1:{region_port}\ntopic {VEHICLE_FILTER} out 1\n"
            "cleansession false\nrestart_timeout 1\nbridge_protocol_version mqttv311\n"
        )

    def command(self) -> list[str]:
        program = "/usr/sbin/mosquitto" if os.access("/usr/sbin/mosquitto", os.X_OK) else "mosquitto"
        return [program, "-c", str(self.folder / "mosquitto.conf")]
