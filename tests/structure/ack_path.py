"""Two acknowledgements, followed while they happen: from Pulsar's receipt in a gateway to the cleared rows in an agent.

The first one is the first of both connections, the second one follows it. What runs because of an acknowledgement is
what runs in its turns and not while the batch waits for it (the broker's PUBACK comes in that time). A module is on the
path if such a function is in it, or one through which such a function was called.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any

from edge_agent.clocks import CorrectionRules
from edge_agent.config import AgentSettings
from edge_agent.drain.drainer import Drainer, DrainParts
from edge_agent.drain.link_budget import LinkBudget
from edge_agent.errors import LinkError
from edge_agent.store.buffer import Buffer
from edge_agent.store.clock_correction import ClockCorrector
from edge_agent.uplink.mqtt import MqttUplink
from edge_agent.uplink.protocol import UplinkEvent
from tests.edge_agent.makers import DEVICE, fill, open_buffer
from tests.gateway.sides import FakeBroker, Published, Region
from tests.gateway.strategies import batch
from tests.structure.sources import PACKAGES
from waybill.record import DeviceChannel, device_topic

Calls = dict[CodeType, set[str]]
# Over a second of the vehicle's time: what an agent looks at each second is not because of an acknowledgement.
IDLE_TURNS = 15
OTHER_DEVICE = "eu-0002"
PRUNED_WITHIN_POLLS = 1000


def _module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name if name.partition(".")[0] in PACKAGES else ""


@contextmanager
def recorded(calls: Calls) -> Iterator[None]:
    """Adds the project's functions that are called inside, each with the modules through which it was called."""

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        # A body of a class or module is a definition and no step.
        if event != "call" or not _module(frame) or not frame.f_code.co_flags & 2:
            return
        modules = calls.setdefault(frame.f_code, set())
        at: FrameType | None = frame
        while at is not None:
            if module := _module(at):
                modules.add(module)
            at = at.f_back

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield
    finally:
        sys.setprofile(before)


def caused(idle: Calls, busy: Calls) -> set[str]:
    return {module for code, modules in busy.items() if code not in idle for module in modules}


def in_gateway(encoded: bytes, *, is_first: bool) -> tuple[Published, set[str]]:
    """Persists a batch; the acknowledgement that the gateway publishes, and the modules of its way.

    `is_first`: the gateway has acknowledged nothing before.
    """
    region = Region().connect()
    number = 1 if is_first else 2
    try:
        if not is_first:
            region.broker.deliver(device_topic("default", OTHER_DEVICE, DeviceChannel.BATCH), batch(OTHER_DEVICE, 1, 3))
            region.until(lambda: region.pulsar.waiting)
            region.pulsar.answer()
            region.until(lambda: region.broker.acks and region.broker.pubacks)
        region.broker.deliver(device_topic("default", DEVICE, DeviceChannel.BATCH), encoded)
        region.until(lambda: region.pulsar.waiting)
        for earlier in region.broker.acks:
            region.broker.answer(earlier)
        idle: Calls = {}
        busy: Calls = {}
        with recorded(idle):
            # The answer may take a moment on a loaded machine, and belongs to the acknowledgement before.
            region.until(lambda: not region.loop._mqtt._topic_of)
            region.turn(IDLE_TURNS)
        with recorded(busy):
            region.pulsar.answer()
            region.until(lambda: len(region.broker.acks) == len(region.broker.pubacks) == number)
        return region.broker.acks[-1], caused(idle, busy)
    finally:
        region.close()


class ObservedUplink(MqttUplink):
    """An uplink to a broker that takes its turn before each poll; `on_poll` is called with the batches sent so far."""

    broker: FakeBroker
    on_poll: Callable[[list[Published]], None]

    def open(self) -> None:
        opened = threading.Event()

        def greet() -> None:
            while not opened.is_set():
                self.broker.turn()
                opened.wait(0.001)

        greeter = threading.Thread(target=greet, daemon=True)
        greeter.start()
        try:
            super().open()
        except LinkError as error:
            raise AssertionError(f"the broker of this test cannot be reached: {error}") from error
        finally:
            opened.set()
            greeter.join()

    def poll(self, timeout_s: float) -> list[UplinkEvent]:
        self.broker.turn()
        self.on_poll(self.broker.acks)
        return super().poll(min(timeout_s, 0.001))


class Vehicle:
    """An agent's drain and its broker: it sends a batch, waits, is answered and prunes, twice."""

    def __init__(self, folder: Path, acknowledge: Callable[[bytes], Published]) -> None:
        self._acknowledge = acknowledge
        self._idle: list[Calls] = []
        self._busy: list[Calls] = []
        self._broker = FakeBroker()
        self._broker.suback = b"\x01"
        self._now_s, self._polls, self._idle_polls, self._answered = 0.0, 0, 0, 0
        self._recording: Any = None
        self.buffer: Buffer = open_buffer(folder)
        fill(self.buffer, [1, 2, 3])
        settings = AgentSettings.model_validate(
            {"device": {"id": DEVICE}, "uplinks": [{"region": "eu", "host": "127.0.0.1", "port": self._broker.port}]}
        )
        self._uplink = ObservedUplink(settings.device, settings.uplinks[0])
        self._uplink.broker, self._uplink.on_poll = self._broker, self._on_poll
        parts = DrainParts(
            buffer=self.buffer,
            clock_corrector=ClockCorrector(self.buffer, CorrectionRules(same_clock_us=1, drift_ppm=0, jump_us=1)),
            link_budget=LinkBudget(settings, self.buffer.counters),
            make_uplink=lambda _: self._uplink,
            random=Random(1),
            monotonic_s=lambda: self._now_s,
        )
        self._drainer = Drainer(settings, parts)

    def run(self) -> list[set[str]]:
        """Until the rows are cleared; the modules of each acknowledgement's way."""
        try:
            self._drainer.run()
        finally:
            self._record(None)
            self._broker.close()
            self.buffer.close()
        return [caused(idle, busy) for idle, busy in zip(self._idle, self._busy, strict=True)]

    def _on_poll(self, sent: list[Published]) -> None:
        self._now_s += 0.1
        self._polls += 1
        assert self._polls < PRUNED_WITHIN_POLLS, "the acknowledged rows are not cleared"
        if len(sent) <= self._answered:
            if sent and not self.buffer.depth()[1].records:
                self._on_pruned()
            return
        self._idle_polls += 1
        if self._idle_polls == 1:
            self._idle.append({})
            self._record(self._idle[-1])
            self._broker.answer(sent[-1])
        elif self._idle_polls == IDLE_TURNS:
            self._answered, self._idle_polls = len(sent), 0
            self._record(None)
            acknowledgement = self._acknowledge(sent[-1].payload)
            self._busy.append({})
            self._record(self._busy[-1])
            self._broker.deliver(acknowledgement.topic, acknowledgement.payload)

    def _on_pruned(self) -> None:
        self._record(None)
        if self._answered == 2:
            self._drainer.inbox.stop()
        else:
            self._drainer.inbox.on_committed(fill(self.buffer, [4, 5, 6]))

    def _record(self, calls: Calls | None) -> None:
        if self._recording is not None:
            self._recording.__exit__(None, None, None)
        self._recording = None if calls is None else recorded(calls)
        if self._recording is not None:
            self._recording.__enter__()


def modules_of_two_acknowledgements(folder: Path) -> list[set[str]]:
    """The modules that the first and a later acknowledgement run through, in both processes."""
    in_gateways: list[set[str]] = []

    def through_the_gateway(encoded: bytes) -> Published:
        published, modules = in_gateway(encoded, is_first=not in_gateways)
        in_gateways.append(modules)
        return published

    in_agent = Vehicle(folder, through_the_gateway).run()
    return [gateway | agent for gateway, agent in zip(in_gateways, in_agent, strict=True)]
