"""The timed vehicles: each with a real broker, a real agent as it comes, and a sensor that reports a fix a second."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.alerts.arrivals import Fix
from benchmarks.alerts.servers import REGION, TENANT
from benchmarks.alerts.streets import at_border
from deploy.local import DaemonProcess, LocalStack, MosquittoBroker, MosquittoSettings, PortBook
from waybill.record import VEHICLE_POSITION

PERIOD_S = 1.0
_LISTENING_S = 60.0


@dataclass(frozen=True, slots=True)
class TimedVehicle:
    """One vehicle; `sensor` is connected to its broker."""

    device: str
    number: int
    agent: DaemonProcess
    sensor: Client


@contextmanager
def timed_vehicles(stack: LocalStack, count: int) -> Iterator[list[TimedVehicle]]:
    """So many, with agents that listen."""
    book = PortBook(stack.folder / "vehicles.json")
    brokers = [
        MosquittoBroker(_name(number), stack.folder / _name(number), settings=MosquittoSettings(), ports=book)
        for number in range(count)
    ]
    for broker in brokers:
        stack.add(broker, wait=False)
    for broker in brokers:
        broker.wait()
    agents = [_agent(stack, broker, _name(number)) for number, broker in enumerate(brokers)]
    for agent in agents:
        stack.add(agent, wait=False)
    sensors = [_sensor(broker.port) for broker in brokers]
    _wait_until_listening(agents)
    try:
        yield [TimedVehicle(_name(number), number, agents[number], sensors[number]) for number in range(count)]
    finally:
        for sensor in sensors:
            sensor.disconnect()
            sensor.loop_stop()


class Reporting:
    """All vehicles report, one after the other within each second, in a thread until it is stopped."""

    def __init__(self, vehicles: list[TimedVehicle]) -> None:
        self.published_s: dict[Fix, float] = {}
        self._vehicles = vehicles
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sensors", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more fixes."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began_s, count = time.time(), len(self._vehicles)
        number = 0
        while not self._stop.is_set():
            due_s = began_s + number * PERIOD_S / count
            if self._stop.wait(max(0.0, due_s - time.time())):
                return
            vehicle, fix = self._vehicles[number % count], number // count
            latitude, longitude = at_border(vehicle.number, fix)
            # by the pace, not by the clock: one that is late must not seem to drive faster than any vehicle
            report = {"time": round(1000 * due_s), "latitude": latitude, "longitude": longitude, "accuracy_m": 4.0}
            # the buffer is new and each fix is a record, so its seq is its number
            self.published_s[vehicle.device, fix + 1] = time.time()
            vehicle.sensor.publish(VEHICLE_POSITION, json.dumps(report), qos=1)
            number += 1


def _name(number: int) -> str:
    return f"timed-{number:02d}"


def _agent(stack: LocalStack, broker: MosquittoBroker, device: str) -> DaemonProcess:
    folder = stack.folder / f"agent-{device}"
    folder.mkdir(parents=True)
    files = stack.client_files(f"{TENANT}/{device}", REGION)
    assert files is not None
    config = folder / "agent.toml"
    config.write_text(f"""[device]
id = "{device}"
tenant = "{TENANT}"
[intake]
port = {broker.port}
[buffer]
path = "{folder / "buffer"}"
[status]
port = 0
[[uplinks]]
region = "{REGION}"
host = "127.0.0.1"
port = {stack.brokers[REGION].port}
[uplinks.tls]
ca = "{files.ca}"
certificate = "{files.certificate}"
key = "{files.key}"
""")
    return DaemonProcess.python(f"agent-{device}", "edge_agent", ["run", "--config", str(config)], folder)


def _sensor(port: int) -> Client:
    sensor = Client(CallbackAPIVersion.VERSION2, "sensor", protocol=MQTTProtocolVersion.MQTTv5)
    sensor.connect("127.0.0.1", port)
    sensor.loop_start()
    return sensor


def _wait_until_listening(agents: list[DaemonProcess]) -> None:
    ends = time.monotonic() + _LISTENING_S
    for agent in agents:
        while not {"listening", "uplink connected"} <= _events(agent.log):
            if time.monotonic() > ends:
                raise TimeoutError(f"{agent.name} does not listen; see {agent.log}")
            time.sleep(0.1)


def _events(log: Path) -> set[str]:
    """What of the two that are waited for a log says."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return {word for word in ("listening", "uplink connected") if word in text}
