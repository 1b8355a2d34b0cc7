"""Reads in a separate process what may crash the client, and one entry at a time where that process crashed.

A crash or a full memory there stops neither a Spark worker nor the driver.

An entry is called unreadable when clients that received only that entry crashed `MAX_CRASHES` times in a row, and the
same client without entries survived each time: a machine without threads or memory crashes that one too. Everything
before the entry has been passed on by then, and reading continues behind it.
"""

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Self

import pulsar
import structlog

from cloud_jobs.pulsar_source.feeds import Feed, SingleMessageHandover, reader_feed
from cloud_jobs.pulsar_source.messages import CopiedMessage, UnreadableEntry, position_of
from cloud_jobs.pulsar_source.options import (
    PulsarOptions,
    PulsarSourceError,
    ReadStalled,
    SourceCluster,
    SourceClusterUnreachable,
)
from cloud_jobs.pulsar_source.position import BEGINNING, WHOLE_ENTRY, LedgerPosition, next_entry

MEMORY_BYTES = 3 << 30
"""Address space of the process, beside what it may prefetch: a header can claim that 4 GiB come out of a few bytes."""

UNKNOWN_NEWEST = LedgerPosition(2**62, 0)
"""Stands for a newest message that is not known."""

_END_S = 5.0
_Serve = Callable[[Connection, "ReaderTask"], None]


@dataclass(frozen=True, slots=True)
class ReaderTask:
    """The work of one process: the messages of a topic partition after a position.

    `first`: the entry after it, where known: the one at that position must not be sent again. `one_by_one`: the broker
    is asked for an entry only when all earlier ones have been passed on, so the first missing entry is the one that
    crashed the process. `with_content`: False copies only positions. `queue`: 0 for a client without entries.
    """

    cluster: SourceCluster
    options: PulsarOptions
    topic: str
    after: LedgerPosition
    queue: int
    first: LedgerPosition | None = None
    one_by_one: bool = False
    with_content: bool = True


class ReaderCrashed(Exception):  # an event that is dealt with, not an error of this package
    """The process crashed, or was killed because it did not answer. `signal`: what ended a crashed one, or None."""

    def __init__(self, signal: int | None, *, started: bool) -> None:
        self.signal = signal
        self.started = started
        super().__init__(signal, started)


class ReaderFailed(Exception):  # as above
    """The client in the process raised an error; its message."""


class ReaderProcess:
    """The parent's end: a call that is not answered within `answer_s` kills the process and raises ReaderCrashed."""

    def __init__(self, task: ReaderTask, answer_s: float, serve: _Serve | None = None) -> None:
        # Not `fork`: a client that was made before has no threads in the child.
        context = multiprocessing.get_context("forkserver")
        # What is imported before the fork need not be imported by each process.
        context.set_forkserver_preload([__name__])
        self._answer_s = answer_s
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve or serve_reader, args=(theirs, task), daemon=True)
        self._process.start()
        # With a copy of it open here, the end of the process would not end the pipe.
        theirs.close()
        self._started = False
        self._started = self._receive_answer() is None

    def call(self, what: str, *arguments: Any) -> Any:
        try:
            self._pipe.send((what, arguments))
        except OSError:
            raise self._end_after_crash() from None
        return self._receive_answer()

    def _receive_answer(self) -> Any:
        try:
            if not self._pipe.poll(self._answer_s):
                self.close()
                raise ReaderCrashed(None, started=self._started)
            ok, answer = self._pipe.recv()
        except (OSError, EOFError):
            raise self._end_after_crash() from None
        if not ok:
            raise ReaderFailed(answer)
        return answer

    def _end_after_crash(self) -> ReaderCrashed:
        self._process.join(_END_S)
        code = self._process.exitcode
        self.close()
        return ReaderCrashed(-code if code is not None and code < 0 else None, started=self._started)

    def close(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join(_END_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_reader(pipe: Connection, task: ReaderTask) -> None:
    """Runs in the process: opens the reader and answers until the parent is gone."""
    hold_to(resource.RLIMIT_AS, MEMORY_BYTES + 2 * task.options.prefetch_bytes)
    hold_to(resource.RLIMIT_CORE, 0)
    # Sent before there is a client: what ends the process earlier is not an entry.
    pipe.send((True, None))
    one_by_one = SingleMessageHandover() if task.one_by_one else None
    try:
        with reader_feed(
            task.cluster, task.options, task.topic, task.after, task.queue, first=task.first, one_by_one=one_by_one
        ) as feed:
            while True:
                what, arguments = pipe.recv()
                pipe.send((True, _answer_of(feed, what, arguments, task)))
                # Only once the parent has it: after this the broker is asked for the next entry.
                if one_by_one:
                    one_by_one.confirm()
    except (EOFError, OSError):
        pass  # the parent is done with it
    except (PulsarSourceError, pulsar.PulsarException) as error:
        pipe.send((False, f"{type(error).__name__}: {error}"))
    finally:
        os._exit(0)  # the client's own threads may wait for what nobody will do


def hold_to(kind: int, most: int) -> None:
    """Sets a resource limit of this process, unless a lower one exists, as in a Spark worker."""
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _answer_of(feed: Feed, what: str, arguments: tuple[Any, ...], task: ReaderTask) -> Any:
    match what:
        case "receive":
            return [CopiedMessage.of(message, with_content=task.with_content) for message in feed.receive()]
        case "last":
            with suppress(pulsar.PulsarException):
                return feed.last()
            return UNKNOWN_NEWEST
        case _:
            return getattr(feed, what)(*arguments)


_log = structlog.get_logger(__name__)

MAX_CRASHES = 2
"""How many clients an entry must end before it is called unreadable."""

ONE_BY_ONE = 1000
"""How many messages are read one by one after a client ended: faulty entries come in swarms."""

_MAX_OTHER_CRASHES = 3
_CRASH_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""What a process does to itself. SIGKILL comes from outside (no memory left, a stop) and proves nothing."""

_START_S = 30.0

Start = Callable[[ReaderTask, float], ReaderProcess]


class IsolatedFeed:
    """A feed whose client lives in another process. Raises ReadStalled when clients crash and no entry is the cause."""

    def __init__(
        self,
        task: ReaderTask,
        ledgers: Sequence[tuple[int, int]],
        start: Start = ReaderProcess,
    ) -> None:
        self._reached = task.after
        self._task = task
        self._ledgers = ledgers
        self._start = start
        self._process: ReaderProcess | None = None
        self._one_by_one_left = 0
        self._crashes = self._other_crashes = 0

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def receive(self) -> list[Any]:
        """The next messages as copies; an UnreadableEntry in place of one that crashes clients."""
        try:
            messages: list[Any] = self._call("receive")
        except ReaderCrashed as crash:
            return self._on_crash(crash)
        if messages:
            self._crashes = self._other_crashes = 0
            self._reached = max(self._reached, position_of(messages[-1].message_id()))
            if self._task.one_by_one:
                self._count_down(len(messages))
        return messages

    def last(self) -> LedgerPosition:
        """From the process's reader; far ahead while there is none."""
        last: LedgerPosition = self._call_or("last", UNKNOWN_NEWEST)
        return last

    def connected(self) -> bool:
        """From the process's reader; replaces a process that ended."""
        return bool(self._call_or("connected", True))

    def probe_exhausted(self, upto: LedgerPosition) -> bool:
        """From the process's reader; False while there is none."""
        return bool(self._call_or("probe_exhausted", False, upto))

    def _call_or(self, what: str, otherwise: Any, *arguments: Any) -> Any:
        try:
            return self._call(what, *arguments)
        except ReaderCrashed as crash:
            # Nothing was lost: what it had handed over is here. The next receive finds out what ended it.
            self._count_crash(crash)
            return otherwise

    def _call(self, what: str, *arguments: Any) -> Any:
        task = self._task
        try:
            if self._process is None:
                self._process = self._begin(task)
            return self._process.call(what, *arguments)
        except ReaderFailed as error:
            self.close()
            raise SourceClusterUnreachable(task.cluster.name, f"reading {task.topic}", str(error)) from None

    def _begin(self, task: ReaderTask) -> ReaderProcess:
        answer_s = _START_S + task.options.read_timeout_seconds
        whole = self._reached.batch in {-1, WHOLE_ENTRY}
        first = self._first() if whole else None
        return self._start(replace(task, after=self._reached, first=first), answer_s)

    def _survives_without_entries(self) -> bool:
        """Whether the same client survives when it receives no entries."""
        try:
            with self._begin(replace(self._task, queue=0, one_by_one=False)) as process:
                process.call("connected")
        except (ReaderCrashed, ReaderFailed):
            return False
        return True

    def _on_crash(self, crash: ReaderCrashed) -> list[Any]:
        self._count_crash(crash)
        if self._crashes < MAX_CRASHES:
            return []
        # Also of a compacted topic: what a compaction has read ends no client, so it is the first entry behind that.
        position = next_entry(self._ledgers, self._reached)
        self._crashes = self._other_crashes = 0
        self._reached = position
        self._one_by_one_left = ONE_BY_ONE
        assert crash.signal is not None  # only faults are counted
        name = signal.Signals(crash.signal).name
        _log.error(
            "an entry is unreadable",
            cluster=self._task.cluster.name,
            topic=self._task.topic,
            ledger=position.ledger,
            entry=position.entry,
            ended_by=name,
        )
        reason = f"entry {position.ledger}:{position.entry} of {self._task.topic} ends the Pulsar client ({name})"
        return [UnreadableEntry(position, reason)]

    def _first(self) -> LedgerPosition:
        """The next entry to ask for. Compacted messages outlive their ledgers: the broker then starts at the next
        one.
        """
        if self._task.options.read_compacted and self._reached > BEGINNING:
            return LedgerPosition(self._reached.ledger, self._reached.entry + 1)
        return next_entry(self._ledgers, self._reached)

    def _count_crash(self, crash: ReaderCrashed) -> None:
        """Counts a crash of a client that received one entry alone; any other repeated crash is an error."""
        self.close()
        blamed = crash.started and crash.signal in _CRASH_SIGNALS and self._task.one_by_one
        if blamed and self._survives_without_entries():
            self._crashes += 1
            return
        self._other_crashes += 1
        if self._other_crashes > _MAX_OTHER_CRASHES:
            task = self._task
            what = f"an entry, but {self._other_crashes} reading processes ended (signal {crash.signal})"
            raise ReadStalled(task.cluster.name, task.topic, str(self._reached), what, 0.0)
        self._task = replace(self._task, one_by_one=True)
        self._one_by_one_left = ONE_BY_ONE

    def _count_down(self, messages: int) -> None:
        self._one_by_one_left -= messages
        if self._one_by_one_left <= 0:
            self._task = replace(self._task, one_by_one=False)
            self.close()


@contextmanager
def isolated_feed(task: ReaderTask, ledgers: Sequence[tuple[int, int]]) -> Iterator[IsolatedFeed]:
    """A feed from the first message after a position, without a durable cursor, from a client in another process."""
    with closing(IsolatedFeed(task, ledgers)) as feed:
        yield feed
