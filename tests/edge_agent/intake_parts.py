"""The agent's real intake without a connection: reception and buffer, with clocks that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge_agent.clock.jumps import ClockWatch, Mending
from edge_agent.config import AgentSettings
from edge_agent.intake.reception import Parts, Reception
from edge_agent.mqtt import Message
from edge_agent.store.buffer import Buffer
from edge_agent.store.keeper import Keeper
from telemetry import Record, decode
from tests.edge_agent.makers import open_buffer
from tests.edge_agent.world import SteadyClocks, settings

RING = 5_000


class Intake:
    """A reception over a buffer in a folder; `deliver` is a broker whose messages are all acknowledged."""

    def __init__(
        self,
        folder: Path,
        buffer: Buffer | None = None,
        configured: AgentSettings | None = None,
        jump_us: int = 2_000_000,
    ) -> None:
        self.folder = folder
        self.buffer = buffer or open_buffer(folder, RING)
        configured = configured or settings()
        self.clocks = SteadyClocks()
        self.keeper = Keeper(self.buffer, configured.buffer, configured.classes, space=lambda _: 1 << 40)
        parts = Parts(
            buffer=self.buffer,
            keeper=self.keeper,
            clocks=self.clocks,
            watch=ClockWatch("boot", self.clocks.offset_us, jump_us),
            mending=Mending(same_clock_us=300_000_000, drift_ppm=100, jump_us=jump_us),
            on_commit=lambda _: None,
            on_missed=lambda: None,
            on_jump=lambda _: None,
        )
        self.reception = Reception(configured, parts)

    def connect(self, *, resumed: bool) -> None:
        self.reception.disconnected()
        self.reception.commit(0.0)
        self.reception.connected(resumed=resumed)

    def deliver(self, messages: Sequence[Message], *, commit_every: int = 1_000) -> list[int]:
        """The message ids that were acknowledged."""
        acknowledged: list[int] = []
        for place, message in enumerate(messages, 1):
            if self.reception.take(message, 0.0):
                acknowledged.append(message.mid)
            if place % commit_every == 0:
                acknowledged += self.commit()
        return acknowledged + self.commit()

    def commit(self) -> list[int]:
        mids = self.reception.commit(0.0)
        assert mids is not None, "the buffer could not commit"
        return mids

    def records(self) -> list[Record]:
        return stored_records(self.buffer)


def stored_records(buffer: Buffer) -> list[Record]:
    """Every record that waits, decoded as the other side will, by name."""
    found = []
    for index in range(4):
        for block in buffer.read_after(0, index, 100_000):
            found += decode(buffer.load(block.id)).records
    return sorted(found, key=lambda record: record.seq)
