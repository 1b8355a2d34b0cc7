"""A damaged buffer: what can be read keeps its names, the rest is declared lost, and life goes on in a new epoch."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from edge_agent.errors import StoreDamaged
from edge_agent.store import rebuild as rebuild_module
from edge_agent.store.buffer import Buffer
from edge_agent.store.connection import DATABASE
from tests.edge_agent.makers import fill, missing_in, open_buffer, sent_and_declared, stored_bytes
from waybill.record import IntervalSet, decode

BLOCKS, RECORDS = 40, 25
HEAD = BLOCKS * RECORDS


def written(folder: Path) -> int:
    """A closed buffer with every fourth block acknowledged; its epoch."""
    buffer = open_buffer(folder)
    for block in range(BLOCKS):
        fill(buffer, range(block * RECORDS + 1, (block + 1) * RECORDS + 1), 1 + block % 2)
        if block % 4 == 0:
            buffer.acknowledge(buffer.epoch, IntervalSet([(block * RECORDS + 1, (block + 1) * RECORDS)]))
    buffer.prune_acknowledged()
    epoch = buffer.epoch
    buffer.close()
    return epoch


def acknowledged() -> IntervalSet:
    return IntervalSet((b * RECORDS + 1, (b + 1) * RECORDS) for b in range(0, BLOCKS, 4))


def whole_life(folder: Path, act: Callable[[Buffer], None]) -> Buffer:
    """Opens the buffer and goes on until the damage was met, as the threads of the agent do."""
    buffer = open_buffer(folder)
    try:
        act(buffer)
    except StoreDamaged:
        buffer.repair(buffer.generation)
    return buffer


def read_all(buffer: Buffer) -> None:
    for index in range(3):
        for block in buffer.read_after(0, index, 10_000):
            try:
                decode(stored_bytes(buffer, block.id))
            except Exception as error:
                raise StoreDamaged(str(error)) from error


@pytest.mark.parametrize("seed", [*range(60), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(60, 1000))])
def test_after_any_damage_every_record_is_delivered_declared_or_was_acknowledged(tmp_path: Path, seed: int) -> None:
    draw = Random(seed)
    epoch = written(tmp_path)
    file = tmp_path / DATABASE
    content = bytearray(file.read_bytes())
    for _ in range(draw.randint(1, 6)):
        size = draw.choice([1, 100, 4096, 20_000])
        offset = draw.randrange(0, len(content))
        content[offset : offset + size] = draw.randbytes(min(size, len(content) - offset))
    if draw.random() < 0.2:
        del content[draw.randrange(0, len(content)) :]
    file.write_bytes(content)
    buffer = whole_life(tmp_path, read_all)
    delivered, declared = sent_and_declared(buffer, epoch)
    everything = IntervalSet([(1, HEAD)])
    assert not delivered & declared
    assert (delivered | declared | acknowledged()).covers(everything)
    assert everything.covers(delivered)
    if buffer.epoch != epoch:
        assert buffer.epoch > epoch
        assert buffer.head == 0
        assert list(tmp_path.glob("*.damaged-1"))
        assert missing_in(buffer) == 0
    fill(buffer, range(1, 11))
    assert sent_and_declared(buffer, buffer.epoch)[0].last == buffer.head


def test_one_rotten_batch_costs_only_itself(tmp_path: Path) -> None:
    epoch = written(tmp_path)
    buffer = open_buffer(tmp_path)
    victim = buffer.read_after(0, 1, 100)[3]
    buffer.database.writer.execute("UPDATE batches SET batch = CAST(x'00' || batch AS BLOB) WHERE id = ?", (victim.id,))
    buffer.repair(buffer.generation)
    delivered, declared = sent_and_declared(buffer, epoch)
    assert declared == IntervalSet([(victim.first, victim.last)])
    assert delivered == IntervalSet([(1, HEAD)]) - acknowledged() - declared
    assert buffer.counters.value("lost_corrupt") == RECORDS
    assert buffer.counters.value("rebuilt") == 1
    assert missing_in(buffer) == 0


@pytest.mark.parametrize("steps", range(6))
def test_a_rebuilding_that_was_interrupted_between_any_two_steps_loses_nothing_and_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    epoch = written(tmp_path)
    buffer = open_buffer(tmp_path)
    fill(buffer, [HEAD + 1])
    left = [steps]

    def step(real):
        def counted(*arguments, **named):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            return real(*arguments, **named)

        return counted

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", step(Path.rename))
        patched.setattr(Path, "replace", step(Path.replace))
        patched.setattr(rebuild_module, "_fill", step(rebuild_module._fill))
        with suppress(KeyboardInterrupt):
            buffer.repair(buffer.generation)
    buffer.database.close()
    (tmp_path / "buffer.rebuilding").write_bytes(b"half done")
    again = open_buffer(tmp_path)
    assert sent_and_declared(again, epoch)[0] == IntervalSet([(1, HEAD + 1)]) - acknowledged()
    assert missing_in(again) == 0
    assert not list(tmp_path.glob("buffer.rebuilt*"))
    assert again.epoch == epoch if steps < 2 else again.epoch > epoch
