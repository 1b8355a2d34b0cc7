"""A full file system: nothing is lost, and when the region acknowledges, all of the rest is taken in."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from edge_agent.errors import StoreFull
from edge_agent.store.buffer import Buffer
from edge_agent.store.life import BufferOptions
from edge_agent.store.reserve import RESERVE_BYTES, Reserve
from telemetry import IntervalSet, Raw
from tests.edge_agent.makers import WALL_MS, options, unnamed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", folder], check=True)


def with_reserve() -> BufferOptions:
    return replace(options(), reserve_bytes=RESERVE_BYTES)


def commit(buffer: Buffer, number: int) -> None:
    payload = Random(number).randbytes(100_000)
    body = Raw(topic="vehicle/odd", payload=payload)
    buffer.commit([unnamed(number)._replace(body=body, payload=payload)], WALL_MS)


def fill_up(buffer: Buffer, number: int) -> int:
    """Commits until there is no space; the number of the message that found none."""
    for following in range(number, number + 10_000):
        try:
            commit(buffer, following)
        except StoreFull:
            return following
    raise AssertionError("the disk is larger than it should be")


def test_a_full_disk_takes_everything_in_again_once_the_region_acknowledges(small_disk):
    buffer = Buffer(small_disk / "buffer", with_reserve())
    number = fill_up(buffer, 1)
    with suppress(OSError), (small_disk / "of somebody else").open("wb") as file:
        file.write(bytes(16 << 20))
    with pytest.raises(StoreFull):
        commit(buffer, number)
    assert buffer.head == number - 1
    for _ in range(3):
        buffer.acknowledge(buffer.epoch, IntervalSet([(1, buffer.head)]))
        for _ in range(20):
            commit(buffer, number)
            number += 1
    assert buffer.head == number - 1
    assert buffer.unaccounted() == 0
    buffer.close()


def test_a_reserve_is_held_given_up_and_held_again(tmp_path):
    reserve = Reserve(tmp_path / "reserve", 1 << 20)
    reserve.hold()
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 1 << 20
    assert reserve.release()
    assert not reserve.release()
    reserve.hold()
    assert reserve.release()
