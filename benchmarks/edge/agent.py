"""An agent behind a Mosquitto of its own, and what it costs."""

import subprocess
import sys
from pathlib import Path

import psutil

from deploy.local import MosquittoBroker
from deploy.local.server import spawn

TENANT, DEVICE = "acme", "eu-0001"


class EdgeAgent:
    """`start` returns at once; `look` keeps the most memory that it had."""

    def __init__(self, folder: Path, region_port: int, extra: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.peak_rss = folder, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._broker = MosquittoBroker("car", folder / "car")
        self._broker.start()
        self._broker.wait()
        self.intake_port = self._broker.port
        self.config = folder / "agent.toml"
        self.config.write_text(
            f'[device]\nid = "{DEVICE}"\ntenant = "{TENANT}"\n'
            f"[intake]\nport = {self.intake_port}\nbackoff_first_s = 0.1\n"
            f'[buffer]\npath = "{folder}/buffer"\n{extra}\n'
            f'[[uplinks]]\nregion = "eu"\nhost = "127.0.0.1"\nport = {region_port}\n'
            "backoff_first_s = 0.1\nbackoff_max_s = 1\n"
        )

    def start(self) -> None:
        # it ends with this process, however that ends
        command = [sys.executable, "-m", "edge_agent", "run", "-c", str(self.config)]
        self._process = spawn(command, log=self.folder / "log", folder=self.folder, env={})

    def look(self) -> None:
        self.peak_rss = max(self.peak_rss, self._counts.memory_info().rss)

    @property
    def cpu_s(self) -> float:
        times = self._counts.cpu_times()
        return float(times.user + times.system)

    @property
    def written(self) -> int:
        return int(self._counts.io_counters().write_bytes)

    @property
    def _counts(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def close(self) -> None:
        if self._process is not None:
            self.look()
            self._process.terminate()
            self._process.wait(15)
        self._broker.stop()
