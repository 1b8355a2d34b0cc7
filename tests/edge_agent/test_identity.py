"""A buffer knows its device and its life: put back, copied or exchanged, it never gives an id to a second record."""

import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from edge_agent.store.buffer import Buffer
from edge_agent.store.connection import DATABASE
from tests.edge_agent.makers import (
    WALL_MS,
    fill,
    missing_in,
    open_buffer,
    options,
    pending_record,
    sent_and_declared,
    stored_bytes,
)
from waybill.record import IntervalSet, decode

LOG_HEADER_BYTES, LOG_FRAME_BYTES = 32, 24 + 4096
"""Of SQLite's write-ahead log with pages of 4 KiB."""


def records_of(buffer: Buffer) -> dict[tuple[int, int], object]:
    found: dict[tuple[int, int], object] = {}
    for index in range(3):
        for block in buffer.read_after(0, index, 10_000):
            batch = decode(stored_bytes(buffer, block.id))
            found |= {(batch.epoch, record.seq): record for record in batch.records}
    return found


def remake_all(image: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(image, folder)


def overwrite_all(image: Path, folder: Path) -> None:
    shutil.copytree(image, folder, dirs_exist_ok=True)
    for log in folder.glob("*-wal"):
        if not (image / log.name).exists():
            log.unlink()


def overwrite_file(image: Path, folder: Path) -> None:
    for log in folder.glob(f"{DATABASE}-*"):
        log.unlink()
    for part in image.glob(f"{DATABASE}*"):
        shutil.copy2(part, folder / part.name)


def leave(buffer: Buffer, clean: bool) -> None:
    if clean:
        buffer.close()
    else:
        buffer.database.close()


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("put_back", [remake_all, overwrite_all, overwrite_file])
def test_a_buffer_that_was_put_back_from_an_image_begins_a_new_epoch_and_sends_what_it_has(tmp_path, put_back, clean):
    folder, image = tmp_path / "buffer", tmp_path / "image"
    buffer = open_buffer(folder)
    fill(buffer, range(1, 11))
    leave(buffer, clean)
    shutil.copytree(folder, image)
    buffer = open_buffer(folder)
    fill(buffer, range(11, 21))
    sent = records_of(buffer)
    leave(buffer, clean)
    put_back(image, folder)
    buffer = open_buffer(folder)
    assert buffer.counters.value("epochs_restored") == 1
    fill(buffer, range(101, 121))
    again = records_of(buffer)
    assert len(again) == 30
    assert all(again[name] == sent[name] for name in again.keys() & sent.keys()), "one id, one content"
    assert missing_in(buffer) == 0
    leave(buffer, clean)
    assert open_buffer(folder).counters.value("epochs_restored") == 1, "once"


@pytest.mark.parametrize("owner", [{"device": "us-0001"}, {"tenant": "zeta"}])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_buffer_of_another_owner_is_kept_apart_and_nothing_of_it_is_sent_or_declared(tmp_path, owner, is_damaged):
    other = Buffer(tmp_path / "other", replace(options(), **owner))
    other.commit([pending_record(n) for n in range(1, 11)], WALL_MS)
    other.close()
    mine = open_buffer(tmp_path / "mine")
    fill(mine, range(1, 11))
    epoch = mine.epoch
    mine.close()
    overwrite_file(tmp_path / "other", tmp_path / "mine")
    if is_damaged:
        with closing(sqlite3.connect(tmp_path / "mine" / DATABASE)) as database, database:
            database.execute("UPDATE batches SET records = -1")
    mine = open_buffer(tmp_path / "mine")
    assert mine.epoch != epoch
    assert (mine.head, records_of(mine), mine.counters.value("lost_corrupt"), mine.counters.value("lost_restored")) == (
        0,
        {},
        0,
        0,
    )
    fill(mine, range(11, 21))
    assert mine.counters.value("foreign_archived") == 1
    assert (tmp_path / "mine" / "buffer.foreign-1").exists()


def test_a_buffer_that_is_gone_is_declared_as_far_as_its_lineage_knows(tmp_path):
    buffer = open_buffer(tmp_path)
    fill(buffer, range(1, 11))
    epoch = buffer.epoch
    buffer.close()
    (tmp_path / DATABASE).unlink()
    buffer = open_buffer(tmp_path)
    assert buffer.epoch != epoch
    assert sent_and_declared(buffer, epoch)[1].covers(IntervalSet([(1, 10)]))
    assert missing_in(buffer) == 0


def test_what_the_vehicle_did_is_for_the_agents_user_alone(tmp_path):
    folder = tmp_path / "buffer"
    folder.mkdir(mode=0o755)
    buffer = open_buffer(folder)
    fill(buffer, range(1, 11))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}


@pytest.mark.parametrize("commits", [1, 4])
def test_a_log_that_was_cut_behind_any_frame_begins_a_new_epoch_and_declares_what_may_be_missing(tmp_path, commits):
    frames = kept = 0
    while kept <= frames:
        folder = tmp_path / str(kept)
        buffer = open_buffer(folder)
        buffer.database.writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        for number in range(commits):
            fill(buffer, range(number * 10 + 1, number * 10 + 11))
        epoch, head = buffer.epoch, buffer.head
        main, log = folder / DATABASE, folder / f"{DATABASE}-wal"
        left, left_log = main.read_bytes(), log.read_bytes()
        buffer.database.close()
        main.write_bytes(left)
        log.write_bytes(left_log[: LOG_HEADER_BYTES + kept * LOG_FRAME_BYTES])
        frames = (len(left_log) - LOG_HEADER_BYTES) // LOG_FRAME_BYTES
        buffer = open_buffer(folder)
        assert (buffer.epoch == epoch) == (kept == frames), f"{kept} of {frames} frames"
        there = IntervalSet((block.first, block.last) for block in buffer.read_after(0, 1, 10_000))
        assert (there | sent_and_declared(buffer, epoch)[1]).covers(IntervalSet([(1, head)]))
        assert missing_in(buffer) == 0
        kept += 1


class Killed(BaseException):
    """The process ended here."""


@pytest.mark.parametrize("step", range(4))
def test_a_move_that_is_killed_between_any_two_renames_keeps_every_record_of_the_former_tenant(
    tmp_path, monkeypatch, step
):
    acme = Buffer(tmp_path / "left", replace(options(), tenant="acme"))
    fill(acme, range(1, 21))
    folder = tmp_path / "found"
    shutil.copytree(tmp_path / "left", folder)
    acme.close()
    held = sqlite3.connect(f"{(folder / DATABASE).as_uri()}?mode=ro", uri=True)
    held.execute("BEGIN")
    held.execute("SELECT * FROM epochs").fetchall()
    rename, left = Path.rename, iter(range(step))

    def rename_or_end(path, to):
        if next(left, None) is None:
            raise Killed
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", rename_or_end)
    with pytest.raises(Killed):
        Buffer(folder, replace(options(), tenant="zeta"))
    monkeypatch.undo()
    held.close()
    zeta = Buffer(folder, replace(options(), tenant="zeta"))
    assert records_of(zeta) == {}
    zeta.close()
    with closing(sqlite3.connect(folder / "buffer.foreign-1")) as kept:
        assert kept.execute("SELECT sum(records) FROM batches").fetchone() == (20,)
