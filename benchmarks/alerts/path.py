"""Alerts on real servers: the whole way hop by hop (`path`), and one of two processes killed (`failover`)."""

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.alerts.servers import (
    CENTRE,
    RECORDS_PER_BATCH,
    REGION,
    TENANT,
    AlertReader,
    AlertServers,
    Fix,
    alert_servers,
    at_border,
    say,
    settled,
)
from benchmarks.gateway.device_load import result_of
from benchmarks.harness import Figure, benchmark_folder, limited, percentile, print_figures
from deploy.local import DaemonProcess, LocalStack, MosquittoBroker, MosquittoSettings, PortBook
from geo.alerts import Alert
from tests.waiting import wait_until
from waybill.record import VEHICLE_POSITION

FIXES_PER_S: Final = 5_000
TIMED: Final = 20
WARM_UP_S: Final = 60.0
"""The Java virtual machines of two clusters compile what they run for so long, on the same two cores."""
MEASURED_S: Final = 50.0
LEAST_RATE: Final = 0.98
"""Of the fixes that were to be sent, so many must have been acknowledged to the load in time."""
PERIOD_S: Final = 1.0
_LISTENING_S: Final = 60.0
HOPS = (
    "vehicle's broker, agent (stored, sent), gateway, handed to the region's topic",
    "region's topic, alert process, alert raised",
    "alert raised, readable in the region",
    "readable in the region, readable at the centre",
)
IN_REGION = "vehicle's broker to readable in the region"
WHOLE = "vehicle's broker to readable at the centre"
LIMITS_MS: Final = {(WHOLE, 0.5): 400.0, (WHOLE, 0.99): 1_000.0, (IN_REGION, 0.99): 300.0}


def timed_fixes(
    published_s: Mapping[Fix, float],
    in_region: Iterable[tuple[float, Alert]],
    at_centre_s: Mapping[Fix, float],
) -> list[tuple[float, ...]]:
    """When each fix was at the ends of HOPS; of alerts that came twice the first one counts."""
    found: dict[Fix, tuple[float, ...]] = {}
    for at_s, alert in in_region:
        fix = alert.device, alert.seq
        if fix not in found and fix in published_s and fix in at_centre_s:
            times = alert.received_ms / 1000, alert.raised_ms / 1000
            found[fix] = (published_s[fix], *times, at_s, at_centre_s[fix])
    return list(found.values())


def hop_figures(moments: list[tuple[float, ...]]) -> Iterator[Figure]:
    spans = [(name, number, number + 1) for number, name in enumerate(HOPS)]
    for name, begin, end in (*spans, (IN_REGION, 0, len(HOPS) - 1), (WHOLE, 0, len(HOPS))):
        times_ms = [1000 * (row[end] - row[begin]) for row in moments]
        p50, p99, most = (f"{percentile(times_ms, share):,.0f}" for share in (0.5, 0.99, 1.0))
        limits = {share: limit_ms for (hop, share), limit_ms in LIMITS_MS.items() if hop == name}
        asked = ", ".join(f"p{share * 100:.0f} < {limit_ms:,.0f} ms" for share, limit_ms in limits.items())
        met = all(percentile(times_ms, share) < limit_ms for share, limit_ms in limits.items()) if limits else None
        yield Figure(name, f"p50 {p50}, p99 {p99}, most {most} ms", asked, met)


@contextmanager
def timed_vehicles(stack: LocalStack, count: int) -> Iterator[dict[str, Client]]:
    """Vehicles, each with a real broker, a real agent, and a sensor that is connected to its broker."""
    book, names = PortBook(stack.folder / "vehicles.json"), [f"timed-{number:02d}" for number in range(count)]
    brokers = [MosquittoBroker(one, stack.folder / one, settings=MosquittoSettings(), ports=book) for one in names]
    for broker in brokers:
        stack.add(broker)
    agents = [stack.add(_agent(stack, one.port, name), wait=False) for name, one in zip(names, brokers, strict=True)]
    sensors = [_sensor(broker.port) for broker in brokers]
    for log in (agent.log for agent in agents):
        wait_until(partial(_is_listening, log), _LISTENING_S, said=partial("no agent listens; see {}".format, log))
    try:
        yield dict(zip(names, sensors, strict=True))
    finally:
        for sensor in sensors:
            sensor.disconnect()
            sensor.loop_stop()


def _is_listening(log: Path) -> bool:
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return "listening" in text and "uplink connected" in text


@contextmanager
def reporting(sensors: dict[str, Client]) -> Iterator[dict[Fix, float]]:
    """All vehicles report, one after the other within each second. Gives when each fix was published."""
    published_s: dict[Fix, float] = {}
    names, stopping = list(sensors), threading.Event()

    def run() -> None:
        began_s, number = time.time(), 0
        while True:
            due_s = began_s + number * PERIOD_S / len(names)
            if stopping.wait(max(0.0, due_s - time.time())):
                return
            fix, vehicle = divmod(number, len(names))
            latitude, longitude = at_border(vehicle, fix)
            # by the pace, not by the clock: one that is late must not seem to drive faster than any vehicle
            report = {"time": round(1000 * due_s), "latitude": latitude, "longitude": longitude, "accuracy_m": 4.0}
            # the buffer is new and each fix is a record, so its seq is its number
            published_s[names[vehicle], fix + 1] = time.time()
            sensors[names[vehicle]].publish(VEHICLE_POSITION, json.dumps(report), qos=1)
            number += 1

    thread = threading.Thread(target=run, name="sensors", daemon=True)
    thread.start()
    try:
        yield published_s
    finally:
        stopping.set()
        thread.join()


def _agent(stack: LocalStack, port: int, device: str) -> DaemonProcess:
    folder = stack.folder / f"agent-{device}"
    folder.mkdir(parents=True)
    files = stack.client_files(f"{TENANT}/{device}", REGION)
    assert files is not None
    config = folder / "agent.toml"
    config.write_text(f"""
device = {{ id = "{device}", tenant = "{TENANT}" }}
intake.port = {port}
buffer.path = "{folder / "buffer"}"
status.port = 0
[[uplinks]]
region = "{REGION}"
host = "127.0.0.1"
port = {stack.brokers[REGION].port}
tls = {{ ca = "{files.ca}", certificate = "{files.certificate}", key = "{files.key}" }}
""")
    return DaemonProcess.python(f"agent-{device}", "edge_agent", ["run", "--config", str(config)], folder)


def _sensor(port: int) -> Client:
    sensor = Client(CallbackAPIVersion.VERSION2, "sensor", protocol=MQTTProtocolVersion.MQTTv5)
    sensor.connect("127.0.0.1", port)
    sensor.loop_start()
    return sensor


def path() -> bool:
    with benchmark_folder("alerts") as folder, alert_servers(folder, 1, TIMED) as servers:
        return print_figures("The way of an alert; 80 ms added each way to the centre", _path(servers))


def _path(servers: AlertServers) -> Iterator[Figure]:
    say(f"starting {TIMED} vehicles, each with its broker and agent")
    with (
        timed_vehicles(servers.stack, TIMED) as sensors,
        closing(AlertReader(servers.stack, REGION)) as region,
        closing(AlertReader(servers.stack, CENTRE)) as centre,
        servers.load(FIXES_PER_S, WARM_UP_S + MEASURED_S) as load,
    ):
        with reporting(sensors) as published_s:
            say(f"{FIXES_PER_S:,} fixes a second; {WARM_UP_S:.0f} s to warm up")
            time.sleep(WARM_UP_S)
            began_s = time.time()
            say(f"measuring for {MEASURED_S:.0f} s")
            time.sleep(MEASURED_S)
            ended_s = time.time()
        rate = result_of(load).acknowledged * RECORDS_PER_BATCH / (WARM_UP_S + MEASURED_S)
        say("waiting for what is under way")
        found = settled(servers, TIMED, centre)
    # the first fix of a vehicle crosses nothing
    window = {fix: at_s for fix, at_s in published_s.items() if began_s <= at_s < ended_s and fix[1] > 1}
    moments = timed_fixes(window, list(region.arrivals), centre.first_s)
    yield from hop_figures(moments)
    yield limited("fixes a second", rate, ">=", LEAST_RATE * FIXES_PER_S)
    missing, invented = len(found.ids - centre.ids), len(centre.ids - found.ids)
    shown = f"{missing:,} missing, {invented:,} invented"
    yield Figure(f"of {len(found.ids):,} alerts at the centre", shown, "0", not missing + invented)
    yield limited("fixes that were not seen at a hop", len(window) - len(moments), "<=", 0)


BEFORE_S: Final = 15.0
AFTER_S: Final = 15.0
SETTLE_S: Final = 45.0
MOST_S: Final = 5.0


def failover() -> bool:
    with benchmark_folder("failover") as folder, alert_servers(folder, 2, 0) as servers:
        return print_figures(f"One of two alert processes killed at {FIXES_PER_S:,} fixes/s", _failover(servers))


def _failover(servers: AlertServers) -> Iterator[Figure]:
    with (
        closing(AlertReader(servers.stack, REGION)) as region,
        closing(AlertReader(servers.stack, CENTRE)) as centre,
        servers.load(FIXES_PER_S, BEFORE_S + AFTER_S) as load,
    ):
        say(f"{FIXES_PER_S:,} fixes a second; the kill comes after {BEFORE_S:.0f} s")
        time.sleep(BEFORE_S)
        (lost,) = servers.status(1).partitions_held
        servers.processes[0].kill()
        killed_s = time.time()
        load.wait(BEFORE_S + AFTER_S + SETTLE_S)
        found = settled(servers, 0, region, centre, within_s=SETTLE_S)
        taken = len(servers.status(2).partitions_held)
    arrivals = [at_s for at_s, alert in region.arrivals if found.partition_of[alert.device] == lost]
    silent = silent_s(arrivals, killed_s)
    yield limited("alerts of its partition again after", silent, "<", MOST_S, "{:.2f} s")
    yield Figure("partitions of the other one", f"{taken}", "2", taken == 2)
    missing, at_centre = len(found.ids - region.ids), len(found.ids - centre.ids)
    shown = f"{missing:,}, {at_centre:,}; invented {len(region.ids - found.ids):,}"
    yield Figure(
        f"of {len(found.ids):,} alerts missing in the region, at the centre", shown, "0", not missing + at_centre
    )


def silent_s(arrivals: Iterable[float], killed_s: float) -> float:
    """From the kill to the end of the longest silence after it; infinite when none came any more."""
    after = [killed_s, *sorted(at_s for at_s in arrivals if at_s > killed_s)]
    longest = max(pairwise(after), key=lambda pair: pair[1] - pair[0], default=None)
    return math.inf if longest is None else longest[1] - killed_s
