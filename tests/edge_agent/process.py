"""A real agent process between real brokers, and a publisher that knows which of its messages a broker holds."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from deploy.local import Server, wait_all
from edge_agent.devices import load_device
from edge_agent.inspection import exported_lines, read_status
from tests.waiting import PATIENCE, wait_until

TENANT, DEVICE = "acme", "eu-0001"
FIRST_MS = 1_767_603_422_000


class AgentProcess:
    def __init__(
        self,
        folder: Path,
        intake_port: int,
        uplink_ports: dict[str, int],
        extra: str = "",
        *,
        tls: str = "",
        tenant: str = TENANT,
        devices: Sequence[str] = (),
    ) -> None:
        """`devices`: several ones instead of DEVICE."""
        self.environment: dict[str, str] = {}
        self.config = folder / "agent.toml"
        self.log = folder / "agent.log"
        uplinks = "".join(
            f'[[uplinks]]\nregion = "{region}"\nhost = "127.0.0.1"\nport = {port}\n'
            f"backoff_first_s = 0.1\nbackoff_max_s = 0.5\n{tls}\n"
            for region, port in uplink_ports.items()
        )
        tables = [("[[devices]]", one) for one in devices] or [("[device]", DEVICE)]
        who = "".join(f'{table}\nid = "{one}"\ntenant = "{tenant}"\n' for table, one in tables)
        self.config.write_text(
            f"{who}"
            f"[intake]\nport = {intake_port}\nbackoff_first_s = 0.1\nbackoff_max_s = 0.5\n"
            f'[buffer]\npath = "{folder}/buffer"\nprune_delay_s = 0.3\n'
            f"[drain]\nack_timeout_s = 3.0\n{extra}\n{uplinks}"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "edge_agent", "run", "--config", str(self.config)]
            environment = {**os.environ, **self.environment}
            self._process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10 * PATIENCE)

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, timeout_s: float = 5.0) -> int:
        if self._process is None or self._process.poll() is not None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10 * PATIENCE)
            raise

    def status(self, device: str = "") -> dict[str, Any]:
        return read_status(load_device(self.config, device))

    @contextmanager
    def running(self) -> Iterator[Self]:
        """From when the agent listens to its end."""
        self.log.unlink(missing_ok=True)
        self.start()
        try:
            wait_until(lambda: "listening" in self.log.read_text(encoding="utf-8"), 20)
            yield self
        finally:
            self.stop()

    def exported(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in exported_lines(load_device(self.config, ""))]


@contextmanager
def started(*brokers: Server) -> Iterator[None]:
    for one in brokers:
        one.start()
    try:
        wait_all(brokers)
        yield
    finally:
        for one in brokers:
            one.stop()


class VehicleSensors:
    """Publishes positions whose time is their number, and counts what its broker has taken."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.sent = 0
        self.taken: set[int] = set()
        self._number_of: dict[int, int] = {}
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="vehicle", protocol=MQTTProtocolVersion.MQTTv5)
        self.client.max_inflight_messages_set(200)
        self.client.on_publish = lambda _c, _d, mid, _r, _p: self.taken.add(self._number_of.pop(mid, -1))
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def position(self) -> None:
        number = self.sent
        self.sent += 1
        payload = {"time": FIRST_MS + number, "latitude": 53.4, "longitude": -2.9 + number * 1e-6, "speed_mps": 12.5}
        info = self.client.publish("vehicle/position", json.dumps(payload), qos=1)
        self._number_of[info.mid] = number

    def publish(self, topic: str, payload: bytes) -> None:
        self.client.publish(topic, payload, qos=1).wait_for_publish(10)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def number_of(device_time_us: int) -> int:
    return device_time_us // 1000 - FIRST_MS
