"""`make bench-edge`: what the agent takes in, keeps and delivers in a second."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.edge.load import (
    FIRST_MS,
    LIVE_MS,
    TOPIC,
    Publisher,
    Sink,
    nmea_positions,
    phone_positions,
    positions,
)
from benchmarks.harness import Figure, benchmark_folder, limited, percentile, print_figures, run_parts
from deploy.local import DaemonProcess, MosquittoBroker
from edge_agent.config import AgentSettings
from edge_agent.inspection import read_status
from edge_agent.intake.messages import parse_message
from edge_agent.store.batch_rows import PendingRecord, arrival_of
from edge_agent.store.buffer import Buffer
from edge_agent.store.database import BufferOptions
from tests.waiting import wait_until
from waybill.record import VEHICLE_POSITION
from waybill.settings import load

MESSAGES = 100_000
BACKLOG = 5_000_000
"""It is gone before WINDOW_S is over, so it is filled and drained again until it is."""
MAX_ROUNDS = 12
SLOW_BACKLOG = 1_500_000
PATTERN = 10_000
"""Positions that are parsed once and repeated with other times, so that filling does not take minutes."""
WINDOW_S = 10.0
LIVE_MESSAGES = 1_000
"""A figure of live data or of draining is one only over a window of so many seconds and live messages."""
TENANT, DEVICE = "acme", "eu-0001"


class EdgeAgent:
    """`start` returns when its intake listens; `look` keeps the most memory that it had."""

    def __init__(self, folder: Path, region_port: int, extra: str = "", after: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.peak_rss = 0
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
            f"backoff_first_s = 0.1\nbackoff_max_s = 1\n{after}"
        )
        self._daemon = DaemonProcess.python("agent", "edge_agent", ["run", "-c", str(self.config)], folder)

    def start(self) -> None:
        self._daemon.start()
        wait_until(lambda: "listening" in self._daemon.log.read_text(), 60, every_s=0.02)

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
        assert self._daemon.pid is not None
        return psutil.Process(self._daemon.pid)

    def close(self) -> None:
        self.look()
        self._daemon.stop()
        self._broker.stop()


class Form(NamedTuple):
    """What comes in. `each`: how much of `unit` one message is. `asked`: of them in a second."""

    unit: str
    asked: int
    payloads: Callable[[int], Iterator[bytes]]
    topic: bytes = TOPIC
    each: int = 1
    preset: str = ""


FORMS = {
    "intake": Form("messages", 8_000, positions),
    "mapped": Form(
        "messages of a phone, mapped,", 15_000, phone_positions, b"owntracks/anna/phone", preset="owntracks"
    ),
    "nmea": Form("sentences, two in each message and mapped,", 20_000, nmea_positions, b"nmea/gnss", 2, "nmea"),
}
MOST_MORE_MIB = 5
"""What mappings may add to the memory of the agent, if `intake` is measured before them."""


def intake(folder: Path, name: str, native_mib: list[float]) -> bool:
    form = FORMS[name]
    after = f'[[mappings]]\nname = "bench"\npreset = "{form.preset}"\n' if form.preset else ""
    agent = EdgeAgent(folder, 9, after=after)
    agent.start()
    settings = load(AgentSettings, agent.config)
    payloads = list(form.payloads(MESSAGES))
    publisher = Publisher(agent.intake_port)
    cpu_s, written, began = agent.cpu_s, agent.written, time.monotonic()
    publisher.publish(payloads, form.topic)
    publisher.finish()
    wait_until(lambda: read_status(settings)["head"] >= MESSAGES, 120, every_s=0.02)
    took_s = time.monotonic() - began
    publisher.close()
    state = read_status(settings)
    assert state["classes"]["position"]["records"] == MESSAGES, state["classes"]
    payload_bytes = sum(map(len, payloads))
    flash, share = (agent.written - written) / payload_bytes, state["depth_bytes"] / payload_bytes
    figures = [
        limited(f"{form.unit} a second", MESSAGES * form.each / took_s, ">=", form.asked),
        Figure("CPU seconds for 100,000 messages", f"{(agent.cpu_s - cpu_s) * 100_000 / MESSAGES:.1f}"),
        limited("bytes to flash for each payload byte", flash, "<=", 2.5, "{:.2f}"),
        limited("batch bytes of the payloads' bytes", share, "<=", 0.4, "{:.1%}"),
    ]
    agent.look()
    mib = agent.peak_rss / (1 << 20)
    figures.append(limited("resident memory, MiB", mib, "<=", 64, "{:.1f}"))
    if form.preset and native_mib:
        more = limited("more than without mappings, MiB", mib - native_mib[0], "<=", MOST_MORE_MIB, "{:.1f}")
        figures.append(more)
    elif not form.preset:
        native_mib.append(mib)
    agent.close()
    return print_figures("Synced before PUBACK", figures)


def fill(folder: Path, records: int) -> None:
    options = BufferOptions(tenant=TENANT, device=DEVICE, recent_size=2000, epoch_for=lambda least: least + 1)
    buffer = Buffer(folder, options)
    pattern = [(parse_message(VEHICLE_POSITION, payload)[0].body, payload) for payload in positions(PATTERN)]
    waiting = []
    for number in range(records):
        body, payload = pattern[number % PATTERN]
        arrival = arrival_of(number % 65_535 + 1, VEHICLE_POSITION, payload)
        waiting.append(PendingRecord(1, body, (FIRST_MS + number) * 1000, number * 1000, "boot", arrival))
        if len(waiting) == 1000:
            buffer.commit(waiting, time.time_ns() // 1_000_000)
            waiting.clear()
    buffer.close()


def drain_slowly(folder: Path) -> bool:
    """A smaller one over a link of 350 kB/s, so that live data have to be put first for half a minute."""
    return drained(folder, "[link]\nbytes_per_s = 350000\nburst_bytes = 65536\n", SLOW_BACKLOG)


@dataclass
class MeasurementWindow:
    """What was seen while a backlog drained and live data came, over as many rounds as it takes."""

    took_s: float = 0.0
    records: int = 0
    latencies: list[float] = field(default_factory=list)
    start_s: float = 0.0
    peak_rss: int = 0
    rounds: int = 0

    @property
    def enough(self) -> bool:
        return self.took_s >= WINDOW_S and len(self.latencies) >= LIVE_MESSAGES


def drained(folder: Path, extra: str, backlog: int) -> bool:
    window = MeasurementWindow()
    while not window.enough and window.rounds < MAX_ROUNDS:
        one = folder / f"round-{window.rounds}"
        one.mkdir()
        drain_once(one, extra, backlog, window)
        shutil.rmtree(one)
    rate, p99, rss = window.records / window.took_s, percentile(window.latencies, 0.99), window.peak_rss / (1 << 20)
    return print_figures(
        "A backlog over a link of 350 kB/s" if extra else f"A backlog as fast as it can, in {window.rounds} rounds",
        [
            limited("window of the next two figures, seconds", window.took_s, ">=", WINDOW_S, "{:.1f}"),
            limited("live messages in it", len(window.latencies), ">=", LIVE_MESSAGES),
            limited(f"drained a second, of {backlog:,}", rate, ">=", 30_000, counts=window.enough),
            limited("live p99 meanwhile, seconds", p99, "<", 1, "{:.2f}", counts=window.enough),
            limited("start with that backlog, seconds", window.start_s, "<", 2, "{:.2f}"),
            limited("resident memory at most, MiB", rss, "<=", 64),
        ],
    )


def drain_once(folder: Path, extra: str, backlog: int, window: MeasurementWindow) -> None:
    region = MosquittoBroker("eu", folder / "eu")
    region.start()
    region.wait()
    # Its session outlives the region's restart: what the agent sends first is kept for it.
    sink = Sink(region.port, count_only_above=backlog)
    agent = EdgeAgent(folder, region.port, extra)
    fill(folder / "buffer", backlog)
    region.stop()
    began = time.monotonic()
    agent.start()
    window.start_s = max(window.start_s, time.monotonic() - began)
    agent.look()
    region.start()
    region.wait()
    stopping = threading.Event()
    publisher = Publisher(agent.intake_port)
    sender = threading.Thread(target=live, args=(publisher, sink, stopping))
    wait_until(lambda: sink.records > 0, 30)
    began, before = time.monotonic(), sink.records
    sender.start()
    while sink.records < backlog and time.monotonic() - began < 300:
        agent.look()
        time.sleep(0.01)
    done_s = time.monotonic()
    window.took_s += done_s - began
    window.records += sink.records - before
    time.sleep(2)
    stopping.set()
    sender.join()
    sink.digest()
    window.latencies += sink.live_latencies(done_s)
    window.peak_rss = max(window.peak_rss, agent.peak_rss)
    window.rounds += 1
    publisher.close()
    sink.close()
    agent.close()
    region.stop()


def live(publisher: Publisher, sink: Sink, stopping: threading.Event) -> None:
    number = 0
    while not stopping.wait(0.005):
        sink.sending_live(number)
        publisher.publish([f'{{"time":{LIVE_MS + number},"latitude":53.4,"longitude":-2.9}}'.encode()])
        number += 1


def _in_folder(name: str, part: Callable[[Path], bool]) -> bool:
    print(f"{psutil.cpu_count()} cores, load {psutil.getloadavg()[0]:.1f} before; 150-byte messages, loopback\n")
    with benchmark_folder(name) as folder:
        return part(folder)


def main() -> int:
    native_mib: list[float] = []
    parts: dict[str, Callable[[Path], bool]] = {
        **{name: partial(intake, name=name, native_mib=native_mib) for name in FORMS},
        "drain": lambda folder: drained(folder, "", BACKLOG),
        "drain-slowly": drain_slowly,
    }
    return run_parts(__doc__, {name: partial(_in_folder, name, part) for name, part in parts.items()})


if __name__ == "__main__":
    sys.exit(main())
