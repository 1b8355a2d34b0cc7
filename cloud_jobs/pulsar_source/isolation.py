"""Reads what may end the client: in a process of its own, and one by one where that process ended.

An entry is called unreadable when clients that were sent it, and nothing else, ended by a fault `DEATHS` times in a
row, and the same client that is sent nothing went on each time: a place without threads or memory ends that one too.
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
from cloud_jobs.pulsar_source.errors import ClusterUnreachable, ReadStalled
from cloud_jobs.pulsar_source.message_ids import position_of
from cloud_jobs.pulsar_source.position import BEGINNING, WHOLE_ENTRY, Position
from cloud_jobs.pulsar_source.reader_process import FAR_AHEAD, Assignment, ReaderDied, ReaderProcess, ReaderRefused

_log = structlog.get_logger(__name__)

DEATHS = 2
"""How many clients an entry must end before it is called unreadable."""

ONE_BY_ONE = 1000
"""How many messages are read one by one after a client ended: faulty entries come in swarms."""

_MOST_OTHER_DEATHS = 3
_FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""What a process does to itself. SIGKILL comes from outside (no memory left, a stop) and proves nothing."""

_START_S = 30.0

Start = Callable[[Assignment, float], ReaderProcess]


class IsolatedFeed:
    """A feed whose client lives in another process. Raises ReadStalled when clients end and no entry is to blame."""

    def __init__(
        self,
        assignment: Assignment,
        ledgers: Sequence[tuple[int, int]],
        start: Start = ReaderProcess,
        *,
        is_part: Callable[[Position], bool] = lambda _: False,
    ) -> None:
        """`is_part`: whether an entry is a chunk before the last one of its message."""
        self._reached = assignment.after
        self._assignment = assignment
        self._ledgers = ledgers
        self._start = start
        self._is_part = is_part
        self._process: ReaderProcess | None = None
        self._left = 0
        self._faults = self._others = 0

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def receive(self) -> list[Any]:
        """The next messages, as copies; an UnreadableEntry in the place of one that no client reads."""
        try:
            messages: list[Any] = self._ask("receive")
        except ReaderDied as death:
            return self._after(death)
        if messages:
            self._faults = self._others = 0
            self._reached = max(self._reached, position_of(messages[-1].message_id()))
            if self._assignment.one_by_one:
                self._count_down(len(messages))
        return messages

    def last(self) -> Position:
        """As the process's reader says; far ahead while there is none."""
        last: Position = self._ask_or("last", FAR_AHEAD)
        return last

    def connected(self) -> bool:
        """As the process's reader says; a process that ended is replaced."""
        return bool(self._ask_or("connected", True))

    def exhausted(self, upto: Position) -> bool:
        """As the process's reader says."""
        return bool(self._ask_or("exhausted", False, upto))

    def _ask_or(self, what: str, otherwise: Any, *arguments: Any) -> Any:
        try:
            return self._ask(what, *arguments)
        except ReaderDied as death:
            # Nothing was lost: what it had handed over is here. The next receive tells what ended it.
            self._note(death)
            return otherwise

    def _ask(self, what: str, *arguments: Any) -> Any:
        assignment = self._assignment
        try:
            if self._process is None:
                self._process = self._begin(assignment)
            return self._process.ask(what, *arguments)
        except ReaderRefused as error:
            self.close()
            raise ClusterUnreachable(assignment.cluster.name, f"reading {assignment.topic}", str(error)) from None

    def _begin(self, assignment: Assignment) -> ReaderProcess:
        answer_s = _START_S + assignment.options.read_timeout_seconds
        whole = self._reached.batch in {-1, WHOLE_ENTRY}
        first = self._first() if whole else None
        return self._start(replace(assignment, after=self._reached, first=first), answer_s)

    def _lives_without_entries(self) -> bool:
        """Whether the same client goes on here when it is sent nothing."""
        try:
            with self._begin(replace(self._assignment, queue=0, one_by_one=False)) as process:
                process.ask("connected")
        except (ReaderDied, ReaderRefused):
            return False
        return True

    def _after(self, death: ReaderDied) -> list[Any]:
        self._note(death)
        if self._faults < DEATHS:
            return []
        # Also of a compacted topic: what a compaction has read ends no client, so it is the first entry behind that.
        place = next_entry(self._ledgers, self._reached)
        self._faults = self._others = 0
        self._reached = place
        self._left = ONE_BY_ONE
        assert death.signal is not None  # only faults are counted
        name = signal.Signals(death.signal).name
        is_part = self._is_part(place)
        _log.error(
            "chunk_passed_over" if is_part else "entry_unreadable",
            cluster=self._assignment.cluster.name,
            topic=self._assignment.topic,
            ledger=place.ledger,
            entry=place.entry,
            ended_by=name,
        )
        reason = f"entry {place.ledger}:{place.entry} of {self._assignment.topic} ends the Pulsar client ({name})"
        return [] if is_part else [UnreadableEntry(place, reason)]

    def _first(self) -> Position:
        """What to ask for next. Compacted messages outlive their ledgers: there the broker finds the one behind."""
        if self._assignment.options.read_compacted and self._reached > BEGINNING:
            return Position(self._reached.ledger, self._reached.entry + 1)
        return next_entry(self._ledgers, self._reached)

    def _note(self, death: ReaderDied) -> None:
        """Counts a fault of a client that was sent one entry alone; anything else that goes on is an error."""
        self.close()
        blamed = death.begun and death.signal in _FAULTS and self._assignment.one_by_one
        if blamed and self._lives_without_entries():
            self._faults += 1
            return
        self._others += 1
        if self._others > _MOST_OTHER_DEATHS:
            assignment = self._assignment
            what = f"an entry, but {self._others} reading processes ended (signal {death.signal})"
            raise ReadStalled(assignment.cluster.name, assignment.topic, str(self._reached), what, 0.0)
        self._assignment = replace(self._assignment, one_by_one=True)
        self._left = ONE_BY_ONE

    def _count_down(self, messages: int) -> None:
        self._left -= messages
        if self._left <= 0:
            self._assignment = replace(self._assignment, one_by_one=False)
            self.close()


def next_entry(ledgers: Sequence[tuple[int, int]], place: Position) -> Position:
    """The entry that is stored after a place, by (number, entries) of the ledgers in order."""
    if place.entry + 1 < dict(ledgers).get(place.ledger, 0):
        return Position(place.ledger, place.entry + 1)
    later = (Position(number, 0) for number, entries in ledgers if number > place.ledger and entries)
    return next(later, Position(place.ledger, place.entry + 1))


@contextmanager
def isolated_feed(
    assignment: Assignment,
    ledgers: Sequence[tuple[int, int]],
    is_part: Callable[[Position], bool] = lambda _: False,
) -> Iterator[IsolatedFeed]:
    """From the first message after a position, without a cursor on the broker, by a client in another process."""
    with closing(IsolatedFeed(assignment, ledgers, is_part=is_part)) as feed:
        yield feed
