"""A client that ends in its own process: real processes, which fault, are killed, or stop answering."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pulsar
import pytest

from cloud_jobs.pulsar_source.driver import CrashGuard
from cloud_jobs.pulsar_source.isolation import IsolatedFeed, ReaderProcess, ReaderTask
from cloud_jobs.pulsar_source.messages import CopiedMessage, MessageColumns, UnreadableEntry
from cloud_jobs.pulsar_source.options import PulsarOptions, ReadStalled
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition

OPTIONS = PulsarOptions.parse(
    {"clusters": "hq=pulsar://hq:1|http://hq:2", "topics": "persistent://t/n/x", "subscription": "s"}
)
LEDGERS = ((3, 5), (4, 0), (7, 5))
STORED = [LedgerPosition(ledger, entry) for ledger, entries in LEDGERS for entry in range(entries)]
FAULTY = {LedgerPosition(3, 2), LedgerPosition(3, 3), LedgerPosition(7, 0)}


def copy(place: LedgerPosition) -> CopiedMessage:
    serialized = pulsar.MessageId(-1, place.ledger, place.entry, -1).serialize()
    return CopiedMessage(serialized, str(place).encode(), False, "", {}, 1, 0, "p", False)


def serve(pipe: Connection, task: ReaderTask) -> None:
    """As the real one: prefetches what the broker has, and ends as soon as a faulty entry comes in.

    A broker sends the entry at the position that it is given once more.
    """
    topic = task.topic.rpartition("/")[2]
    pipe.send((True, None))
    ahead = [place for place in STORED if place[:2] >= (task.first or task.after)[:2]]
    while True:
        prefetched = ahead[: 1 if task.one_by_one else task.queue]
        if topic == "no place":
            os.kill(os.getpid(), signal.SIGABRT)
        if FAULTY & set(prefetched) and topic == "faults":
            os.kill(os.getpid(), signal.SIGSEGV)
        if topic == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        what, _ = pipe.recv()
        if topic == "silent":
            time.sleep(60)
        if topic == "refused":
            pipe.send((False, "AuthorizationError: no"))
            os._exit(0)
        if what == "receive":
            pipe.send((True, [copy(place) for place in ahead[:1]]))
            ahead = ahead[1:]
        else:
            pipe.send((True, {"last": STORED[-1], "connected": True}[what]))


def start(task: ReaderTask, answer_s: float) -> ReaderProcess:
    quick_s = 0.5 if task.topic.endswith("silent") else answer_s
    return ReaderProcess(task, quick_s, serve)


def feed(topic: str) -> IsolatedFeed:
    task = ReaderTask(OPTIONS.clusters[0], OPTIONS, f"persistent://t/n/{topic}", BEGINNING, 10)
    return IsolatedFeed(task, LEDGERS, start)


def all_of(feed: IsolatedFeed) -> list[Any]:
    found: list[Any] = []
    while len(found) < len(STORED):
        found += feed.receive()
    feed.close()
    return found


def test_an_entry_that_ends_the_client_is_reported_in_its_place_and_every_other_message_comes_once():
    found = all_of(feed("faults"))
    assert [LedgerPosition(m.message_id().ledger_id(), m.message_id().entry_id()) for m in found] == STORED
    unreadable = [message for message in found if isinstance(message, UnreadableEntry)]
    assert {message.position for message in unreadable} == FAULTY
    assert "entry 3:2 of persistent://t/n/faults ends the Pulsar client (SIGSEGV)" in {m.reason for m in unreadable}


@pytest.mark.parametrize("topic", ["killed", "silent", "no place"])
def test_no_entry_is_blamed_for_a_process_that_was_killed_or_is_silent_or_ends_wherever_it_begins(topic: str) -> None:
    lost = feed(topic)
    with pytest.raises(ReadStalled, match="reading processes ended"):
        all_of(lost)


def test_an_unreadable_entry_is_a_row_without_value_whatever_columns_are_asked_for():
    message = UnreadableEntry(LedgerPosition(3, 2), "entry 3:2 ends the Pulsar client")
    for names in (("value", "malformed", "message_id"), ("value", "malformed", "message_id", "publish_time", "key")):
        columns = MessageColumns("persistent://t/n/x", "hq", frozenset(), names)
        columns.extend([message])
        (row,) = columns.take().to_pylist()
        assert (row["value"], row["malformed"], row["message_id"]) == (None, message.reason, "3:2:-1")
        assert not any(row.get(name) for name in ("publish_time", "key"))


def test_a_lookahead_that_ended_its_process_makes_the_next_one_isolated(tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"failover_file": tmp_path / "failover.json"})
    process = multiprocessing.get_context("forkserver").Process(target=end_in_a_look_ahead, args=(options,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGSEGV
    with CrashGuard(options.model_copy(update={"subscription": "another"})).mark_lookahead() as isolated:
        assert not isolated
    after = CrashGuard(options)
    for _ in range(2):
        with after.mark_lookahead() as isolated:
            assert isolated


def end_in_a_look_ahead(options: PulsarOptions) -> None:
    with CrashGuard(options).mark_lookahead():
        os.kill(os.getpid(), signal.SIGSEGV)
