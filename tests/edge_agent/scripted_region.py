"""Regions that answer as a script says, at a time that is given, and a drainer on the way to them."""

import threading
from collections.abc import Callable
from random import Random
from typing import Any

from edge_agent.clocks import CorrectionRules
from edge_agent.config import AgentSettings
from edge_agent.drain.drainer import Drainer, DrainParts
from edge_agent.drain.link_budget import LinkBudget
from edge_agent.store.buffer import Buffer
from edge_agent.store.clock_correction import ClockCorrector
from edge_agent.uplink.protocol import OutgoingBatch, UplinkEvent
from tests.edge_agent.makers import DEVICE
from waybill.record import Ack

Script = Callable[[float, str, list[OutgoingBatch]], list[UplinkEvent]]


class Road:
    """Regions under a clock that moves with every poll; `script(now, region, new batches)` is what they say."""

    def __init__(self, script: Script, until_s: float) -> None:
        self.now_s = 0.0
        self.script = script
        self.until_s = until_s
        self.sent: list[tuple[float, str, OutgoingBatch]] = []
        self.drainer: Drainer | None = None

    def advance(self, seconds: float) -> None:
        self.now_s += max(0.05, seconds)
        if self.now_s >= self.until_s:
            assert self.drainer
            self.drainer.inbox.stop()

    def wait(self, alarm: threading.Event, seconds: float) -> None:
        self.advance(seconds)


class ScriptedUplink:
    def __init__(self, road: Road, region: str) -> None:
        self.region = region
        self._road = road
        self._new: list[OutgoingBatch] = []

    def open(self) -> None:
        pass

    def send(self, batch: OutgoingBatch) -> None:
        self._new.append(batch)
        self._road.sent.append((self._road.now_s, self.region, batch))

    def report(self, text: bytes) -> None:
        pass

    def ask_certificate(self, request: bytes) -> None:
        pass

    def poll(self, timeout_s: float) -> list[UplinkEvent]:
        self._road.advance(min(timeout_s, 1.0))
        new, self._new = self._new, []
        return self._road.script(self._road.now_s, self.region, new)

    def wake(self) -> None:
        pass

    def wire_bytes(self) -> tuple[int, int]:
        return 0, 0

    def close(self) -> None:
        pass


def drive(
    buffer: Buffer,
    road: Road,
    regions: tuple[str, ...] = ("eu",),
    on_push: Callable[[bytes], None] = lambda text: None,
    **tables: Any,
) -> Drainer:
    settings = AgentSettings.model_validate(
        {"device": {"id": DEVICE}, "uplinks": [{"region": region, "host": "127.0.0.1"} for region in regions], **tables}
    )
    parts = DrainParts(
        buffer=buffer,
        clock_corrector=ClockCorrector(buffer, CorrectionRules(same_clock_us=1, drift_ppm=0, jump_us=1)),
        link_budget=LinkBudget(settings, buffer.counters),
        make_uplink=lambda uplink: ScriptedUplink(road, uplink.region),
        random=Random(1),
        on_push=on_push,
        monotonic_s=lambda: road.now_s,
        wait=road.wait,
    )
    road.drainer = drainer = Drainer(settings, parts)
    drainer.run()
    return drainer


def acks(batches: list[OutgoingBatch]) -> list[UplinkEvent]:
    return [Ack(batch.epoch, batch.seqs) for batch in batches]


def waiting(buffer: Buffer) -> int:
    buffer.prune_acknowledged()
    return sum(one.records for one in buffer.depth().values())
