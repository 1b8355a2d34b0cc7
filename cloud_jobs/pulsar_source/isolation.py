"""Reads what may end the client: in a process of its own, and one by one where that process ended.

An entry is called unreadable when clients that were sent it, and nothing else, ended by a fault `MAX_CRASHES` times in
a row, and the same client that is sent nothing went on each time: a place without threads or memory ends that one too.
Everything before the entry has been handed over by then, and reading goes on behind it.

A chunk before the last one of its message is no row: it is not handed over as such, so the client can as well have
ended of one behind it. Its message has its row where its last chunk lies.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import structlog

from cloud_jobs.pulsar_source.copies import UnreadableEntry
from cloud_jobs.pulsar_source.errors import ReadStalled, SourceClusterUnreachable
from cloud_jobs.pulsar_source.message_ids import position_of
from cloud_jobs.pulsar_source.position import BEGINNING, WHOLE_ENTRY, LedgerPosition
from cloud_jobs.pulsar_source.reader_process import (
    UNKNOWN_NEWEST,
    ReaderCrashed,
    ReaderFailed,
    ReaderProcess,
    ReaderTask,
)

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
    """A feed whose client lives in another process. Raises ReadStalled when clients end and no entry is to blame."""

    def __init__(
        self,
        assignment: ReaderTask,
        ledgers: Sequence[tuple[int, int]],
        start: Start = ReaderProcess,
        *,
        is_part: Callable[[LedgerPosition], bool] = lambda _: False,
    ) -> None:
        """`is_part`: whether an entry is a chunk before the last one of its message."""
        self._reached = assignment.after
        self._assignment = assignment
        self._ledgers = ledgers
        self._start = start
        self._is_part = is_part
        self._process: ReaderProcess | None = None
        self._one_by_one_left = 0
        self._crashes = self._other_crashes = 0

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def receive(self) -> list[Any]:
        """The next messages, as copies; an UnreadableEntry in the place of one that no client reads."""
        try:
            messages: list[Any] = self._call("receive")
        except ReaderCrashed as crash:
            return self._on_crash(crash)
        if messages:
            self._crashes = self._other_crashes = 0
            self._reached = max(self._reached, position_of(messages[-1].message_id()))
            if self._assignment.one_by_one:
                self._count_down(len(messages))
        return messages

    def last(self) -> LedgerPosition:
        """As the process's reader says; far ahead while there is none."""
        last: LedgerPosition = self._call_or("last", UNKNOWN_NEWEST)
        return last

    def connected(self) -> bool:
        """As the process's reader says; a process that ended is replaced."""
        return bool(self._call_or("connected", True))

    def exhausted(self, upto: LedgerPosition) -> bool:
        """As the process's reader says."""
        return bool(self._call_or("exhausted", False, upto))

    def _call_or(self, what: str, otherwise: Any, *arguments: Any) -> Any:
        try:
            return self._call(what, *arguments)
        except ReaderCrashed as crash:
            # Nothing was lost: what it had handed over is here. The next receive tells what ended it.
            self._count_crash(crash)
            return otherwise

    def _call(self, what: str, *arguments: Any) -> Any:
        assignment = self._assignment
        try:
            if self._process is None:
                self._process = self._begin(assignment)
            return self._process.call(what, *arguments)
        except ReaderFailed as error:
            self.close()
            raise SourceClusterUnreachable(assignment.cluster.name, f"reading {assignment.topic}", str(error)) from None

    def _begin(self, assignment: ReaderTask) -> ReaderProcess:
        answer_s = _START_S + assignment.options.read_timeout_seconds
        whole = self._reached.batch in {-1, WHOLE_ENTRY}
        first = self._first() if whole else None
        return self._start(replace(assignment, after=self._reached, first=first), answer_s)

    def _lives_without_entries(self) -> bool:
        """Whether the same client goes on here when it is sent nothing."""
        try:
            with self._begin(replace(self._assignment, queue=0, one_by_one=False)) as process:
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
        is_part = self._is_part(position)
        _log.error(
            "chunk_passed_over" if is_part else "entry_unreadable",
            cluster=self._assignment.cluster.name,
            topic=self._assignment.topic,
            ledger=position.ledger,
            entry=position.entry,
            ended_by=name,
        )
        reason = f"entry {position.ledger}:{position.entry} of {self._assignment.topic} ends the Pulsar client ({name})"
        return [] if is_part else [UnreadableEntry(position, reason)]

    def _first(self) -> LedgerPosition:
        """What to ask for next. Compacted messages outlive their ledgers: there the broker finds the one behind."""
        if self._assignment.options.read_compacted and self._reached > BEGINNING:
            return LedgerPosition(self._reached.ledger, self._reached.entry + 1)
        return next_entry(self._ledgers, self._reached)

    def _count_crash(self, crash: ReaderCrashed) -> None:
        """Counts a fault of a client that was sent one entry alone; anything else that goes on is an error."""
        self.close()
        blamed = crash.started and crash.signal in _CRASH_SIGNALS and self._assignment.one_by_one
        if blamed and self._lives_without_entries():
            self._crashes += 1
            return
        self._other_crashes += 1
        if self._other_crashes > _MAX_OTHER_CRASHES:
            assignment = self._assignment
            what = f"an entry, but {self._other_crashes} reading processes ended (signal {crash.signal})"
            raise ReadStalled(assignment.cluster.name, assignment.topic, str(self._reached), what, 0.0)
        self._assignment = replace(self._assignment, one_by_one=True)
        self._one_by_one_left = ONE_BY_ONE

    def _count_down(self, messages: int) -> None:
        self._one_by_one_left -= messages
        if self._one_by_one_left <= 0:
            self._assignment = replace(self._assignment, one_by_one=False)
            self.close()


def next_entry(ledgers: Sequence[tuple[int, int]], position: LedgerPosition) -> LedgerPosition:
    """The entry that is stored after a place, by (number, entries) of the ledgers in order."""
    if position.entry + 1 < dict(ledgers).get(position.ledger, 0):
        return LedgerPosition(position.ledger, position.entry + 1)
    later = (LedgerPosition(number, 0) for number, entries in ledgers if number > position.ledger and entries)
    return next(later, LedgerPosition(position.ledger, position.entry + 1))


@contextmanager
def isolated_feed(
    assignment: ReaderTask,
    ledgers: Sequence[tuple[int, int]],
    is_part: Callable[[LedgerPosition], bool] = lambda _: False,
) -> Iterator[IsolatedFeed]:
    """From the first message after a position, without a cursor on the broker, by a client in another process."""
    with closing(IsolatedFeed(assignment, ledgers, is_part=is_part)) as feed:
        yield feed
