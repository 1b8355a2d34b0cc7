"""Every row of a table is handed over at least once, and again only after a crash or a lost note."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_jobs.derived.incremental import group_by_key
from cloud_jobs.derived.outbox import Outbox, encounter_message, event_message, progress_file, unpublished_since
from cloud_jobs.errors import NotPublished
from tests.new_lakes import new_lake
from tests.system.lake_of_fixes import derive

TIME = datetime(2026, 3, 1, tzinfo=UTC)


class Topic:
    def __init__(self) -> None:
        self.ids: list[str] = []
        self.fails_after: int | None = None

    def send(self, rows: Iterator[dict[str, Any]]) -> None:
        for number, row in enumerate(rows):
            if number == self.fails_after:
                raise NotPublished("events", "gone")
            self.ids.append(row["id"])


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    lake = new_lake(tmp_path / "lake")
    return Outbox(lake, "geofence_events", tmp_path / "notes" / "events")


def add(outbox: Outbox, *ids: str) -> None:
    facts = {
        "revision": 1,
        "tenant": "t",
        "device": "d",
        "epoch": 7,
        "seq": 1,
        "kind": "enter",
        "place": "p",
        "value": 0.0,
        "retracted": False,
    }
    rows = [facts | {"id": name, "time": TIME, "day": TIME.date(), "emitted_at": TIME} for name in ids]
    derive(outbox.lake, outbox.table, rows)


def test_each_tenant_has_its_own_rows_and_progress(outbox: Outbox, tmp_path: Path) -> None:
    notes = {name: progress_file(tmp_path, outbox.table, name) for name in ("t", "other")}
    own, other = (replace(outbox, progress_file=note, tenant=name) for name, note in notes.items())
    add(outbox, "a", "b")
    topic = Topic()
    assert other.flush(topic.send) == 0
    topic.fails_after = 1
    with pytest.raises(NotPublished):
        own.flush(topic.send)
    assert unpublished_since(outbox.lake, outbox.table, tmp_path) == TIME
    topic.fails_after = None
    assert own.flush(topic.send) == 2
    assert topic.ids == ["a", "a", "b"]
    assert unpublished_since(outbox.lake, outbox.table, tmp_path) is None


def test_rows_of_new_commits_are_published_once(outbox: Outbox) -> None:
    topic = Topic()
    add(outbox, "a", "b")
    assert (outbox.flush(topic.send), sorted(topic.ids)) == (2, ["a", "b"])
    assert outbox.flush(topic.send) == 0
    add(outbox, "c")
    add(outbox, "d")
    assert outbox.flush(topic.send) == 2
    assert sorted(topic.ids) == ["a", "b", "c", "d"]


def test_since_when_rows_wait_is_known_from_the_first_attempt_on_until_they_are_published(outbox: Outbox) -> None:
    topic = Topic()
    add(outbox, "a")
    assert outbox.waiting_since() is None, "nobody publishes from here"
    topic.fails_after = 0
    for _ in range(2):
        with pytest.raises(NotPublished):
            outbox.flush(topic.send)
        assert outbox.waiting_since() == TIME
    topic.fails_after = None
    assert (outbox.flush(topic.send), outbox.waiting_since()) == (1, None)
    add(outbox, "b")
    assert outbox.waiting_since() == TIME
    # a commit without rows has nothing to publish
    outbox.flush(topic.send)
    add(outbox)
    assert outbox.waiting_since() is None


def test_a_table_that_is_begun_anew_or_brought_back_from_a_copy_is_published_with_the_same_note(
    outbox: Outbox, tmp_path: Path
) -> None:
    topic = Topic()
    add(outbox, "a")
    folder = Path(outbox.lake.path(outbox.table))
    shutil.copytree(folder, tmp_path / "copy")
    add(outbox, "b")
    outbox.flush(topic.send)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    # as many commits as were published, and one of them another
    add(outbox, "c")
    assert (outbox.flush(topic.send), sorted(topic.ids[2:])) == (2, ["a", "c"])
    shutil.rmtree(folder)
    outbox.lake.create()
    for name in ("d", "e", "f"):
        add(outbox, name)
    assert (outbox.flush(topic.send), sorted(topic.ids[4:])) == (3, ["d", "e", "f"])
    assert outbox.flush(topic.send) == 0


@pytest.mark.parametrize("note", ["", "{", "[]", '{"commit_number": 7}', '{"table_id": "x", "commit": "y"}', "{}"])
def test_without_a_note_that_can_be_read_the_whole_table_is_published_again(outbox: Outbox, note: str) -> None:
    topic = Topic()
    add(outbox, "a")
    add(outbox, "b")
    outbox.flush(topic.send)
    outbox.progress_file.write_text(note, encoding="utf-8")
    assert outbox.flush(topic.send) == 2
    assert sorted(topic.ids) == ["a", "a", "b", "b"]


TIME_OF_REVISIONS = datetime(2026, 1, 5, 10, 17, 2, 500_000, tzinfo=UTC)


def test_an_event_is_published_in_this_form() -> None:
    row = {"id": "i", "revision": 2, "tenant": "t", "device": "d", "epoch": 7, "seq": 9} | {
        "kind": "exit",
        "place": "p",
        "value": 7.5,
        "retracted": False,
    }
    text = json.dumps(
        event_message(row | {"time": TIME_OF_REVISIONS, "day": date(2026, 1, 5), "emitted_at": TIME_OF_REVISIONS})
    )
    assert text == (
        '{"id": "i", "revision": 2, "tenant": "t", "device": "d", "epoch": 7, "seq": 9, "kind": "exit", '
        '"place": "p", "value": 7.5, "retracted": false, "time": "2026-01-05T10:17:02.500Z"}'
    )


def test_an_encounter_is_published_in_this_form() -> None:
    row = {
        "id": "i",
        "revision": 1,
        "tenant": "t",
        "device_a": "a",
        "device_b": "b",
        "min_m": 1.25,
        "retracted": True,
        "parts": "[]",
    }
    text = json.dumps(
        encounter_message(row | dict.fromkeys(("start", "end", "min_at", "emitted_at"), TIME_OF_REVISIONS))
    )
    moment = '"2026-01-05T10:17:02.500Z"'
    assert text == (
        '{"id": "i", "revision": 1, "tenant": "t", "device_a": "a", "device_b": "b", "min_m": 1.25, "retracted": true, '
        f'"start": {moment}, "end": {moment}, "min_at": {moment}}}'
    )


SCHEMA = pa.schema([pa.field("key", pa.string()), pa.field("number", pa.int64())])
runs = st.lists(st.integers(1, 9), max_size=8)


def batches(lengths: list[int], cuts: list[int]) -> list[pa.RecordBatch]:
    """Rows of keys that follow on each other, each as often as its length, cut into batches; some are empty."""
    keys = [f"k{at}" for at, length in enumerate(lengths) for _ in range(length)]
    table = pa.table({"key": keys, "number": pa.array(range(len(keys)), pa.int32())})
    bounds = [0, *sorted(cut % (len(keys) + 1) for cut in cuts), len(keys)]
    empty = pa.RecordBatch.from_pylist([], schema=table.schema)
    parts = [table.slice(low, high - low).combine_chunks().to_batches() or [empty] for low, high in pairwise(bounds)]
    return [part[0] for part in parts]


@given(runs, st.lists(st.integers(0, 80), max_size=5), st.integers(1, 12))
def test_no_key_is_in_two_tables_and_no_row_is_lost_or_moved(lengths: list[int], cuts: list[int], most: int) -> None:
    tables = list(group_by_key(batches(lengths, cuts), SCHEMA, "key", most))
    assert [number for table in tables for number in table["number"].to_pylist()] == list(range(sum(lengths)))
    keys = [set(table["key"].to_pylist()) for table in tables]
    assert sum(len(of) for of in keys) == len(set().union(*keys)) == len(lengths)
    assert all(table.schema == SCHEMA and table.num_rows for table in tables)


@given(runs, st.integers(1, 12))
def test_a_table_has_no_more_rows_than_asked_for_and_a_batch_beside(lengths: list[int], most: int) -> None:
    rows = batches(lengths, list(range(sum(lengths))))
    for table in group_by_key(rows, SCHEMA, "key", most):
        # rows came one by one: only a key that is longer than the limit makes a table longer
        assert table.num_rows < most or len(set(table["key"].to_pylist())) == 1
