"""The agent's real intake without a connection, over its buffer, with clocks that the test moves."""

from collections.abc import Callable, Sequence
from pathlib import Path

from edge_agent.clocks import ClockJump, ClockMonitor, CorrectionRules, HeadStatement
from edge_agent.config import AgentSettings
from edge_agent.intake.messages import MessageParser
from edge_agent.intake.record_intake import Intake, IntakeParts
from edge_agent.store.batch_rows import StoredBatch
from edge_agent.store.buffer import Buffer
from edge_agent.store.retention import BufferRetention
from tests.edge_agent.makers import open_buffer, stored_bytes
from tests.edge_agent.world import SteadyClocks, settings
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import Record, decode

RING = 5_000


class IntakeHarness:
    """An intake over a buffer in a folder; `deliver` is a broker whose messages are all acknowledged."""

    def __init__(
        self,
        folder: Path,
        buffer: Buffer | None = None,
        configured: AgentSettings | None = None,
        *,
        clocks: SteadyClocks | None = None,
        space: Callable[[Buffer], int] = lambda _: 1 << 40,
        on_commit: Callable[[Sequence[StoredBatch]], None] = lambda _: None,
        on_jump: Callable[[ClockJump], None] = lambda _: None,
        offset_us: int | None = None,
        on_statement: Callable[[HeadStatement | None], None] = lambda _: None,
        parser: MessageParser | None = None,
    ) -> None:
        self.folder = folder
        self.buffer = buffer or open_buffer(folder, RING)
        configured = configured or settings()
        self.clocks = clocks or SteadyClocks()
        self.retention = BufferRetention(self.buffer, configured.buffer, configured.classes, space)
        rules, began_us = CorrectionRules(), self.clocks.offset_us if offset_us is None else offset_us
        parts = IntakeParts(
            buffer=self.buffer,
            retention=self.retention,
            clocks=self.clocks,
            clock_monitor=ClockMonitor("boot", began_us, rules.jump_us),
            correction=rules,
            parser=parser or MessageParser(),
            on_commit=on_commit,
            on_missed=lambda: None,
            on_jump=on_jump,
            on_statement=on_statement,
        )
        self.record_intake = Intake(configured, parts)

    def connect(self, *, resumed: bool) -> None:
        self.record_intake.on_disconnected()
        self.record_intake.commit(0.0)
        self.record_intake.on_connected(resumed=resumed)

    def deliver(self, messages: Sequence[MqttMessage], *, commit_every: int = 1_000, waited: bool = False) -> list[int]:
        """`waited`: the messages may have waited at the broker."""
        self.record_intake.arrivals.on_connected(self.clocks.monotonic_us(), resumed=waited)
        acknowledged: list[int] = []
        for place, message in enumerate(messages, 1):
            if self.record_intake.receive(message, 0.0):
                acknowledged.append(message.mid)
            if place % commit_every == 0:
                acknowledged += self.commit()
        return acknowledged + self.commit()

    def commit(self) -> list[int]:
        mids = self.record_intake.commit(0.0)
        assert mids is not None, "the buffer could not commit"
        return mids

    def records(self) -> list[Record]:
        return stored_records(self.buffer)


def stored_records(buffer: Buffer) -> list[Record]:
    """Every record that waits, decoded as the other side will, by name."""
    found: list[Record] = []
    for index in range(4):
        for block in buffer.read_after(0, index, 100_000):
            found += decode(stored_bytes(buffer, block.id)).records
    return sorted(found, key=lambda record: record.seq)
