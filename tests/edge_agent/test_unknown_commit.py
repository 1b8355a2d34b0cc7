"""A commit that failed, and is stored after all: what it held waits no more, in any way.

The log is filled up to a sector behind the frame that ends a commit. Where that last write fails, and the next ones,
too, the commit has failed, and the file, opened anew, has it.
"""

from pathlib import Path
from random import Random

import apsw
import pytest

from edge_agent.store.buffer import Buffer
from edge_agent.store.database import BufferOptions
from tests.edge_agent.intake_parts import IntakeHarness
from tests.edge_agent.makers import DEVICE
from tests.edge_agent.power import Computer, Disk
from waybill.mqtt.mqtt_client import MqttMessage

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
