"""Buffers and records for the tests of the agent."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from edge_agent.store.batch_rows import PendingRecord, StoredBatch, arrival_of
from edge_agent.store.buffer import Buffer
from edge_agent.store.database import BufferOptions
from edge_agent.store.rebuild import count_missing
from waybill.record import Event, IntervalSet, Position, Signal, decode

DEVICE = "eu-0001"
WALL_MS = 1_767_603_422_000
MINIMAL_FILE = 'insecure = true\n[device]\nid = "a"\n[[uplinks]]\nregion = "eu"\nhost = "h"\n'


class _Unsynced(sqlite3.Connection):
    """Laws are about content; what a sync is worth is proven in `test_power_cut`."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().execute("PRAGMA synchronous = OFF" if "synchronous" in sql else sql, parameters)


def connect_unsynced(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=_Unsynced)


def options(ring_size: int = 50) -> BufferOptions:
    return BufferOptions(
        tenant="default",
        device=DEVICE,
        recent_size=ring_size,
        epoch_for=lambda least: least + 11,
        connect=connect_unsynced,
    )


def open_buffer(folder: Path, ring_size: int = 50) -> Buffer:
    return Buffer(folder, options(ring_size))


def pending_record(
    number: int, class_index: int = 1, *, boot: str = "boot", device_time_us: int | None = None
) -> PendingRecord:
    """A record whose device time is its number in seconds, taken in at that monotonic time."""
    draw = Random(number)
    noise = [round(draw.random(), 5) for _ in range(3)]
    body = (
        Event(name="door", attributes=f'{{"number":{number}}}'),
        Position(latitude=53 + noise[0], longitude=-3 + noise[1], speed_mps=30 * noise[2]),
        Signal(path=f"Vehicle.S{number % 2}", value=noise[0]),
    )[class_index]
    time_us = number * 1_000_000 if device_time_us is None else device_time_us
    arrival = arrival_of(number % 65_535 + 1, "t", str(number).encode())
    return PendingRecord(class_index, body, time_us, number * 1_000_000, boot, arrival)


def fill(buffer: Buffer, numbers: Sequence[int], class_index: int = 1, wall_ms: int = WALL_MS) -> list[StoredBatch]:
    """One commit with these records; its batches."""
    return buffer.commit([pending_record(number, class_index) for number in numbers], wall_ms)


def stored_bytes(buffer: Buffer, identity: int) -> bytes:
    data = buffer.load(identity)
    assert data is not None
    return data


def sent_and_declared(buffer: Buffer, epoch: int | None = None) -> tuple[IntervalSet, IntervalSet]:
    """What the buffer would deliver and declare, of one epoch or all, every batch read in full."""
    delivered, declared = IntervalSet(), IntervalSet()
    for index in range(3):
        for block in buffer.read_after(0, index, 10_000):
            header = decode(stored_bytes(buffer, block.id)).header
            if epoch in {None, header.epoch}:
                delivered, declared = delivered | header.record_seqs, declared | header.lost_seqs
    return delivered, declared


def missing_in(buffer: Buffer) -> int:
    """How many record ids are neither waiting nor acknowledged nor declared lost; 0 unless something is wrong."""
    return count_missing(buffer.database.writer, buffer.head, buffer.counters.stored)
