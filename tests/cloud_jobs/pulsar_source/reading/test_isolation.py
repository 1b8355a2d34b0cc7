"""A client that ends in its own process: real processes, which fault, are killed, or stop answering."""

import multiprocessing
import os
import resource
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pulsar
import pytest

from cloud_jobs.pulsar_source.driver.driver import ISOLATED_BATCHES, CrashGuard
from cloud_jobs.pulsar_source.errors import ReadStalled, SourceClusterUnreachable
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition, next_entry
from cloud_jobs.pulsar_source.reading.columns import MessageColumns
from cloud_jobs.pulsar_source.reading.isolation import IsolatedFeed, ReaderProcess, ReaderTask, hold_to
from cloud_jobs.pulsar_source.reading.messages import CopiedMessage, UnreadableEntry

OPTIONS = PulsarOptions.parse(
    {"serviceUrl": "pulsar://hq:1", "adminUrl": "http://hq:2", "topics": "persistent://t/n/x", "subscription": "s"}
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
    task = ReaderTask(OPTIONS.all_clusters()[0], OPTIONS, f"persistent://t/n/{topic}", BEGINNING, 10)
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


def test_a_chunk_before_the_last_of_its_message_is_passed_over_without_a_row():
    task = ReaderTask(OPTIONS.all_clusters()[0], OPTIONS, "persistent://t/n/faults", BEGINNING, 10)
    parts = {LedgerPosition(3, 2), LedgerPosition(3, 3)}
    isolated, found = IsolatedFeed(task, LEDGERS, start, is_part=parts.__contains__), list[Any]()
    while len(found) < len(STORED) - len(parts):
        found += isolated.receive()
    isolated.close()
    places = [LedgerPosition(m.message_id().ledger_id(), m.message_id().entry_id()) for m in found]
    assert places == [place for place in STORED if place not in parts]
    assert [message.position for message in found if isinstance(message, UnreadableEntry)] == [LedgerPosition(7, 0)]


def test_without_faults_one_process_reads_it_all():
    assert [message.data() for message in all_of(feed("x"))] == [str(place).encode() for place in STORED]


@pytest.mark.parametrize("topic", ["killed", "silent", "no place"])
def test_no_entry_is_blamed_for_a_process_that_was_killed_or_is_silent_or_ends_wherever_it_begins(topic: str) -> None:
    lost = feed(topic)
    with pytest.raises(ReadStalled, match="reading processes ended"):
        all_of(lost)


def serve_in_a_worker(pipe: Connection, task: ReaderTask) -> None:
    """As a process of a Spark worker that has less memory than the reading process is given (`pyspark.memory`)."""
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    hold_to(resource.RLIMIT_AS, task.queue << 30)
    pipe.send((True, None))
    pipe.recv()
    pipe.send((True, resource.getrlimit(resource.RLIMIT_AS)))


@pytest.mark.parametrize(("asked", "held"), [(3, 2), (1, 1)])
def test_a_process_is_held_to_the_lower_one_of_its_limit_and_the_workers(asked: int, held: int) -> None:
    task = ReaderTask(OPTIONS.all_clusters()[0], OPTIONS, "persistent://t/n/x", BEGINNING, asked)
    with ReaderProcess(task, 60, serve_in_a_worker) as process:
        assert process.call("limits") == (held << 30, held << 30)


def test_what_a_cluster_refuses_is_reported_in_the_words_of_the_client():
    with pytest.raises(SourceClusterUnreachable, match="AuthorizationError: no"):
        feed("refused").receive()


def test_the_entry_after_a_place_is_the_next_that_is_stored():
    pairs = zip([BEGINNING, *STORED], STORED, strict=False)
    assert all(next_entry(LEDGERS, before) == after for before, after in pairs)


def test_an_unreadable_entry_is_a_row_without_value_whatever_columns_are_asked_for():
    message = UnreadableEntry(LedgerPosition(3, 2), "entry 3:2 ends the Pulsar client")
    for names in (("value", "malformed", "message_id"), ("value", "malformed", "message_id", "publish_time", "key")):
        columns = MessageColumns("persistent://t/n/x", "hq", frozenset(), names)
        columns.extend([message])
        (row,) = columns.take().to_pylist()
        assert (row["value"], row["malformed"], row["message_id"]) == (None, message.reason, "3:2:-1")
        assert not any(row.get(name) for name in ("publish_time", "key"))


def test_batches_are_read_in_isolation_for_a_while_after_one_that_did_not_complete():
    caution = CrashGuard(OPTIONS)
    assert not caution.on_batch_planned(replayed=False)
    assert caution.on_batch_planned(replayed=True)
    assert [caution.on_batch_planned(replayed=False) for _ in range(ISOLATED_BATCHES)] == [
        *[True] * (ISOLATED_BATCHES - 1),
        False,
    ]


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


def test_a_look_ahead_that_came_to_its_end_leaves_nothing(tmp_path: Path) -> None:
    options = OPTIONS.model_copy(update={"failover_file": tmp_path / "failover.json"})
    with pytest.raises(ReadStalled), CrashGuard(options).mark_lookahead():
        raise ReadStalled("hq", "t", "1:1", "1:2", 1.0)
    with CrashGuard(options).mark_lookahead() as isolated:
        assert not isolated


def end_in_a_look_ahead(options: PulsarOptions) -> None:
    with CrashGuard(options).mark_lookahead():
        os.kill(os.getpid(), signal.SIGSEGV)
