"""A full file system: nothing is lost, and when the region acknowledges, all of the rest is taken in."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import apsw
import pytest

from edge_agent.errors import StoreFull
from edge_agent.store.buffer import RESERVE_BYTES, Buffer
from edge_agent.store.connection import DATABASE
from edge_agent.store.database import BufferOptions
from tests.edge_agent.intake_parts import IntakeHarness
from tests.edge_agent.makers import DEVICE, WALL_MS, missing_in, options, pending_record, sent_and_declared
from tests.edge_agent.power import Computer, Disk
from tests.edge_agent.test_pushed import ANNA, FILE, NOW, signed, trial_of, window
from tests.identity.makers import operators_file
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import IntervalSet, Raw


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def with_reserve() -> BufferOptions:
    return replace(options(), reserve_bytes=RESERVE_BYTES)


def commit(buffer: Buffer, number: int) -> None:
    payload = Random(number).randbytes(100_000)
    body = Raw(topic="vehicle/odd", payload=payload)
    buffer.commit([pending_record(number)._replace(body=body, payload=payload)], WALL_MS)


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
    assert missing_in(buffer) == 0
    buffer.close()


def use_up(folder: Path, leave: int = 0) -> Path:
    """Somebody else takes all the space but for `leave` bytes."""
    other = folder / "of somebody else"
    system = os.statvfs(folder)
    with suppress(OSError), other.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, system.f_bavail * system.f_frsize - leave))
    return other


def damaged(folder: Path, batches: int = 40) -> tuple[int, int]:
    """A closed buffer of 4 MB of which pages contradict each other; its epoch, and the batches that wait."""
    buffer = Buffer(folder, with_reserve())
    for number in range(1, batches + 1):
        commit(buffer, number)
    buffer.close()
    with (folder / DATABASE).open("r+b") as file:
        file.seek(4096 * 300)
        file.write(b"\xff" * 4096 * 3)
    return buffer.epoch, batches


def test_a_damaged_buffer_is_rebuilt_in_the_room_of_the_reserve(small_disk):
    epoch, batches = damaged(small_disk / "buffer")
    use_up(small_disk, leave=100_000)
    buffer = Buffer(small_disk / "buffer", with_reserve())
    delivered, declared = sent_and_declared(buffer, epoch)
    assert (delivered | declared).covers(IntervalSet([(1, batches)]))
    assert delivered.count >= batches - 3
    assert missing_in(buffer) == 0


def test_a_trial_that_ends_on_a_full_disk_is_taken_back_all_the_same(small_disk):
    config = small_disk / "agent.toml"
    config.write_text(FILE.format(folder=small_disk))
    operators_file(small_disk / "operators.toml", ANNA)
    assert trial_of(config).begin(signed(1), NOW)
    use_up(small_disk)
    for number in range(4096):
        with suppress(OSError):
            (small_disk / f"small-{number}").write_bytes(b"x")
    trial = trial_of(config)
    assert trial.recover()
    assert not trial.is_on
    assert window(trial) == 16
    assert trial.may_try_again


SIZE = 100
MIDS = range(1, 41)


class DiskThatFails(Disk):
    """Of the operations from now on those in `failing`, counted from 1, raise `error`."""

    failing = range(0)
    error: type[apsw.Error] = apsw.FullError
    done = 0

    def count(self) -> None:
        super().count()
        self.done += 1
        if self.done in self.failing:
            raise self.error("this one")

    def fail(self, failing: range, error: type[apsw.Error]) -> None:
        self.done, self.failing, self.error = 0, failing, error


def message(mid: int, *, dup: bool = False) -> MqttMessage:
    return MqttMessage(mid, 1, dup, "vehicle/door", Random(mid).randbytes(SIZE))


def failed_intake(folder: Path, failing: range, error: type[apsw.Error]) -> IntakeHarness | None:
    """An intake whose second commit failed when these operations of it did; None when it has fewer."""
    disk = DiskThatFails(Random(1))
    options = BufferOptions(
        tenant="default",
        device=DEVICE,
        recent_size=5_000,
        epoch_for=lambda least: least + 7,
        connect=Computer(disk, checkpoints=0.0).connect,
    )
    intake = IntakeHarness(folder, Buffer(folder, options))
    intake.connect(resumed=False)
    intake.deliver([message(1_000)])
    for mid in MIDS:
        assert not intake.record_intake.receive(message(mid), 0.0)
    disk.fail(failing, error)
    if intake.record_intake.commit(0.0) is not None:
        return None
    assert intake.buffer.head == 1, "what the file holds is not known yet"
    return intake


# SQLite passes over what fails while it closes a file, and apsw says so
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("error", [apsw.FullError, apsw.IOError])
def test_whichever_operations_of_a_commit_fail_its_messages_are_stored_once_and_wait_no_more(
    tmp_path, monkeypatch, error
):
    monkeypatch.setattr("edge_agent.intake.record_intake.MAX_WAITING_BYTES", len(MIDS) * SIZE)
    first, stored_after_all = 1, 0
    while (intake := failed_intake(tmp_path / str(first), range(first, first + 2), error)) is not None:
        taken_in = intake.record_intake
        was_full = taken_in.is_full
        intake.buffer.reopen()
        stored_after_all += intake.buffer.head > 1
        assert sorted(intake.commit()) == [*MIDS]
        assert taken_in.counters.commits == 2
        assert (was_full, taken_in.is_full) == (True, False)
        assert all(taken_in.receive(message(mid, dup=True), 0.0) for mid in MIDS), "a PUBACK waits for another commit"
        assert sorted(intake.deliver([message(41)])) == [41]
        assert [record.seq for record in intake.records()] == [*range(1, len(MIDS) + 3)]
        intake.buffer.close()
        first += 1
    assert 0 < stored_after_all < first - 1
