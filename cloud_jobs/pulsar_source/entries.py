"""The fate of each entry of a planned range, and where chunked messages begin.

A chunked message belongs to the range with its last chunk: its id points there. The client only assembles chunks that
it receives in order from the first one, and drops the rest. So where a range begins between two chunks, a reader
without a cursor reads the message once more from before its first chunk. A message that no client can assemble becomes
a row that says so; a last chunk alone proves no loss, because its producer may have sent it again.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from itertools import islice
from math import inf
from typing import Any, NamedTuple, Protocol, Self

from pyspark.sql.datasource import InputPartition

from cloud_jobs.pulsar_source.feeds import Feed
from cloud_jobs.pulsar_source.messages import UnreadableEntry, position_of
from cloud_jobs.pulsar_source.options import (
    PulsarOptions,
    SourceCluster,
    SourceClusterUnreachable,
    SourceConnectionRefused,
)
from cloud_jobs.pulsar_source.position import (
    BEGINNING,
    LedgerPosition,
    PartitionRange,
    PartitionState,
    positions_backwards,
)

# Entry metadata from the broker: why a planned entry was not delivered.

_FIRST_WINDOW, _LARGEST_WINDOW = 8, 128
_PARALLEL, _EACH = 8, 4
"""How many connections are asked over at most, and how many questions one of them is worth."""


LeftS = Callable[[], float]
"""How many seconds are left for questions."""


class IdleTimeout:
    """Seconds left of a time-out that restarts with each answer."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self.reset()

    def reset(self) -> None:
        self._until_s = self._clock() + self._seconds

    def __call__(self) -> float:
        return self._until_s - self._clock()


class EntryStore(Protocol):
    """The entries of one topic partition; `entry` may be called from several threads."""

    def entry(self, position: LedgerPosition) -> "StoredEntry | None":
        """A stored entry; None when it is no longer stored."""

    def sent(
        self, first: LedgerPosition, last: LedgerPosition, left_s: LeftS
    ) -> "Iterator[tuple[LedgerPosition, StoredEntry]]":
        """The entries that the broker sends a consumer, in order, from `first` up to one at or behind `last`.

        May begin slightly earlier, and ends early when nothing more comes. Raises SourceClusterUnreachable.
        """


class Chunk(NamedTuple):
    """Chunk `number` (from 0) of `of` chunks of a message, which is identified by its producer."""

    message: str
    number: int
    of: int

    @classmethod
    def from_metadata(cls, message: str, number: int, of: int) -> "Chunk | None":
        """None for a whole message, and for numbers that are no chunk of the message: a producer can set any."""
        return cls(message, number, of) if of > 1 else None

    @property
    def is_last(self) -> bool:
        return self.number == self.of - 1


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A stored entry. `readable`: False when the broker cannot unpack it. `marker`: the broker's own, sent to no
    consumer. `in_open_transaction`: behind the start of an open transaction. `chunk`: set for a part of a
    message.
    """

    readable: bool = True
    marker: bool = False
    in_open_transaction: bool = False
    aborted: bool = False
    chunk: Chunk | None = None

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> "StoredEntry":
        """An entry from the admin REST's headers; without headers the broker cannot unpack it."""

        def says(name: str) -> bool:
            return headers.get(f"x-pulsar-{name}") == "true"

        number, of = (_integer(headers.get(f"x-pulsar-{name}", "")) for name in ("chunk-id", "num-chunks-from-msg"))
        chunk = Chunk.from_metadata(headers.get("x-pulsar-uuid", ""), number, of)
        marker = "x-pulsar-marker-type" in headers
        return cls(bool(headers), marker, says("txn-uncommitted"), says("txn-aborted"), chunk)


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


Answer = StoredEntry | None | SourceClusterUnreachable
"""What a broker says of an entry, or that it does not answer."""


def ask(
    stored: EntryStore, positions: Iterable[LedgerPosition], left_s: LeftS = lambda: inf
) -> Iterator[tuple[LedgerPosition, Answer]]:
    """The broker's answers about many entries, in order; stops where no answer comes or no time is left.

    Raises SourceConnectionRefused, which concerns the cluster and not an entry. A topic with replicated subscriptions
    has about ten markers per second and partition, which no batch contains. They are asked for together, because single
    questions each wait for a round trip.
    """
    positions, size = iter(positions), _FIRST_WINDOW
    silent = False

    def asked(share: Sequence[LedgerPosition]) -> dict[LedgerPosition, Answer]:
        nonlocal silent
        answer_at: dict[LedgerPosition, Answer] = {}
        for position in share:
            if silent:
                break
            try:
                answer_at[position] = stored.entry(position)
            except SourceConnectionRefused:
                raise
            except SourceClusterUnreachable as error:
                answer_at[position] = error
                silent = True
        return answer_at

    with ThreadPoolExecutor(_PARALLEL) as pool:
        while not silent and left_s() > 0 and (window := list(islice(positions, size))):
            count = min(_PARALLEL, -(-len(window) // _EACH))
            answers: dict[LedgerPosition, Answer] = {}
            for share in pool.map(asked, [window[number::count] for number in range(count)]):
                answers |= share
            yield from ((position, answers[position]) for position in window if position in answers)
            size = min(2 * size, _LARGEST_WINDOW)


class InquiryBounds(NamedTuple):
    """Limits of an inquiry. `single`: entries asked for one by one before the broker is made to send all. `entries`:
    entries of one range that are accounted for; the rest is unknown.
    """

    single: int = 16
    entries: int = 1_000_000


BOUNDS = InquiryBounds()


class Fate(Enum):
    """Why an entry was not delivered."""

    MARKER = "a marker of the broker"
    ABORTED = "of a transaction that was aborted"
    WITHHELD = "passed over by the broker for every consumer"
    PART = "a chunk before the last one of its message"
    ENDING = "the last chunk of a message"
    MESSAGE = "stored, and a consumer could be given it"
    HELD = "held back by an open transaction"
    REMOVED = "not stored any more"
    UNKNOWN = "not shown by the broker"


class MissingAnswer(Enum):
    """Stands for an answer. `WITHHELD`: the broker sent the entries before and after it."""

    WITHHELD = 0
    UNKNOWN = 1


EntryAnswer = StoredEntry | None | MissingAnswer


def fate_of(answer: EntryAnswer) -> Fate:
    if not isinstance(answer, StoredEntry):
        return {None: Fate.REMOVED, MissingAnswer.WITHHELD: Fate.WITHHELD, MissingAnswer.UNKNOWN: Fate.UNKNOWN}[answer]
    # In this order: a broker can say of a marker, too, that it is of an open transaction.
    signs = (
        (not answer.readable, Fate.UNKNOWN),
        (answer.marker, Fate.MARKER),
        (answer.aborted, Fate.ABORTED),
        (answer.in_open_transaction, Fate.HELD),
        (answer.chunk is None, Fate.MESSAGE),
        (answer.chunk is not None and answer.chunk.is_last, Fate.ENDING),
    )
    return next((fate for sign, fate in signs if sign), Fate.PART)


@dataclass(slots=True)
class EntryFates:
    """The fates of entries, and the chunks among them."""

    fates: dict[LedgerPosition, Fate] = field(default_factory=dict)
    chunks: dict[LedgerPosition, Chunk] = field(default_factory=dict)

    def with_fate(self, *fates: Fate) -> list[LedgerPosition]:
        return sorted(position for position, fate in self.fates.items() if fate in fates)

    def endings(self) -> dict[LedgerPosition, Chunk]:
        return {position: self.chunks[position] for position in self.with_fate(Fate.ENDING)}


class Inquiry:
    """Questions about stored entries with one time limit: `left_s` returns the seconds left.

    `on_answer` is called for each answer, so that a long inquiry may restart the time-out.
    """

    def __init__(
        self,
        stored: EntryStore,
        left_s: LeftS,
        bounds: InquiryBounds = BOUNDS,
        *,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._stored = stored
        self._left_s = left_s
        self._on_answer = on_answer
        self._max_single = bounds.single

    def entry_fates(self, positions: Iterable[LedgerPosition]) -> EntryFates:
        result = EntryFates()
        for position, answer in self.answers(positions).items():
            result.fates[position] = fate_of(answer)
            if isinstance(answer, StoredEntry) and answer.chunk and result.fates[position] in {Fate.ENDING, Fate.PART}:
                result.chunks[position] = answer.chunk
        return result

    def answers(
        self, positions: Iterable[LedgerPosition], max_single: int | None = None
    ) -> dict[LedgerPosition, EntryAnswer]:
        """What is known of each entry; `max_single`: at most so many are asked for one by one."""
        positions = list(positions)
        answers = self._ask(positions[: self._max_single if max_single is None else max_single])
        if unknown := [
            position for position in positions if fate_of(answers.get(position, MissingAnswer.UNKNOWN)) is Fate.UNKNOWN
        ]:
            answers |= self._sent(unknown)
            # Of entries behind the last one that was sent, this says nothing.
            left = [position for position in unknown if position not in answers]
            while left and self._left_s() > 0:
                answers |= self._ask(left)
                left = [position for position in left if position not in answers]
        return {position: answers.get(position, MissingAnswer.UNKNOWN) for position in positions}

    def is_part(self, position: LedgerPosition) -> bool:
        """Whether an entry is known to be a chunk before the last one of its message."""
        return self.entry_fates([position]).fates[position] is Fate.PART

    def _ask(self, positions: Sequence[LedgerPosition]) -> dict[LedgerPosition, EntryAnswer]:
        found: dict[LedgerPosition, EntryAnswer] = {}
        for position, answer in ask(self._stored, positions, self._left_s):
            if isinstance(answer, SourceClusterUnreachable):
                found[position] = MissingAnswer.UNKNOWN
            else:
                found[position] = answer
                self._on_answer()
        return found

    def _sent(self, unknown: Sequence[LedgerPosition]) -> dict[LedgerPosition, EntryAnswer]:
        wanted, reached = set(unknown), BEGINNING
        entries: dict[LedgerPosition, EntryAnswer] = {}
        with suppress(SourceClusterUnreachable):
            for position, entry in self._stored.sent(min(wanted), max(wanted), self._left_s):
                reached = position
                self._on_answer()
                if position in wanted:
                    entries[position] = entry
        return entries | {
            position: MissingAnswer.WITHHELD for position in wanted - entries.keys() if position < reached
        }


def waits_for_transaction(
    stored: EntryStore, ledgers: Sequence[tuple[int, int]], end: LedgerPosition, reached: LedgerPosition, left_s: LeftS
) -> bool:
    """Whether entries after `reached` wait for the end of a transaction; True also where that is unknown.

    Behind the start of an open transaction the broker holds everything, also entries of an aborted one.
    """
    unknown = False
    newest: LedgerPosition | None = end
    while newest and left_s() > 0:
        positions, newest = positions_backwards(ledgers, newest, reached), None
        for position, answer in ask(stored, positions, left_s):
            if isinstance(answer, SourceClusterUnreachable):
                # the older ones were left out
                unknown, newest = True, LedgerPosition(position.ledger, position.entry - 1)
                break
            if answer is None or answer.marker:
                continue
            if answer.readable:
                return answer.in_open_transaction or unknown
            unknown = True
    return unknown or left_s() <= 0


# One task: its range of a batch and its cluster.


@dataclass(frozen=True)
class PlannedRange(InputPartition):  # type: ignore[misc]  # pyspark is untyped here
    """One task's work: the messages after `start`, up to and including `end`.

    `durable`: read through the durable subscription, whose cursor is at or before `start`; otherwise through a reader
    that begins at `start` and leaves no trace on the broker. `queue`: the most messages held ahead of Spark.
    `since_ms`, `until_ms`: only messages published in [since, until). `ledgers`: (number, entries) of the ledgers
    touched when planned. `isolated`: read by a client in its own process, see `isolation`. `verified`: undelivered
    entries are accounted for, because the range is acknowledged once it is read.
    """

    cluster: SourceCluster
    topic: str
    start: LedgerPosition
    end: LedgerPosition
    durable: bool
    queue: int
    known_clusters: frozenset[str]
    ledgers: tuple[tuple[int, int], ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    isolated: bool = False
    verified: bool = True

    def isolated_copy(self) -> Self:
        """The same work in isolation: an entry that crashes a client becomes a row."""
        return replace(self, durable=False, isolated=True)

    def includes(self, published_ms: int) -> bool:
        """Whether a publish time lies within `since_ms` and `until_ms`."""
        return (self.since_ms or 0) <= published_ms and (self.until_ms is None or published_ms < self.until_ms)


OpenEntryStore = Callable[[SourceCluster, PulsarOptions, str], AbstractContextManager[EntryStore]]


@dataclass(frozen=True, slots=True)
class RangeIO:
    """The I/O of reading a range, and the clock (seconds) that bounds it.

    `open_feed`: its messages. `open_store`: what the cluster knows of single entries. `read_state`: the present state
    of the topic partition. `record_chunks`: stores with the subscription that it has chunked messages.
    """

    open_feed: Callable[[PulsarOptions, PlannedRange], AbstractContextManager[Feed]]
    open_store: OpenEntryStore
    read_state: Callable[[PulsarOptions, PlannedRange], PartitionState]
    record_chunks: Callable[[PulsarOptions, PlannedRange], None]
    clock: Callable[[], float] = time.monotonic


_MAX_QUEUE = 1000


def stream_range(
    part: PartitionRange,
    state: PartitionState,
    cluster: SourceCluster,
    options: PulsarOptions,
    known_clusters: frozenset[str],
) -> PlannedRange:
    """One range of a batch -> one task's work.

    A compacted range is read by a reader: through the subscription it looks like messages that were acknowledged
    elsewhere.
    """
    compacted = options.read_compacted and part.start < state.compacted
    return PlannedRange(
        cluster=cluster,
        topic=part.topic,
        start=part.start,
        end=part.end,
        durable=state.cursor_delivers(part.start) and not compacted,
        queue=queue_size(state, options.prefetch_bytes),
        known_clusters=known_clusters,
        ledgers=state.entry_counts_between(part.start, part.end),
    )


def batch_range(
    part: PartitionRange,
    state: PartitionState,
    cluster: SourceCluster,
    options: PulsarOptions,
    known_clusters: frozenset[str],
) -> PlannedRange:
    """One range of a batch query -> one task's work, within the publish times of the options."""
    return PlannedRange(
        cluster=cluster,
        topic=part.topic,
        start=part.start,
        end=part.end,
        durable=False,
        queue=queue_size(state, options.prefetch_bytes),
        known_clusters=known_clusters,
        ledgers=state.entry_counts_between(part.start, part.end),
        since_ms=_milliseconds(options.starting_position),
        until_ms=_milliseconds(options.ending_position),
        verified=False,
    )


def _milliseconds(moment: str | datetime) -> int | None:
    return int(moment.timestamp() * 1000) if isinstance(moment, datetime) else None


def queue_size(state: PartitionState, prefetch_bytes: int) -> int:
    """How many messages a consumer may hold ahead, by the mean size of stored entries."""
    mean = state.mean_entry_size()
    return max(1, min(_MAX_QUEUE, int(prefetch_bytes / mean))) if mean else _MAX_QUEUE


MAX_BACK = 5000
"""Among how many entries before a range the first chunks of its messages are looked for."""

_BACK_BYTES = 256 << 20
"""The same in bytes of stored entries."""

_FIRST_CHUNK_WINDOW = 64

Reread = Callable[[PlannedRange], Iterator[list[Any]]]
"""The messages of a range, by a reader."""


class _Begin(NamedTuple):
    """The place of a message's first chunk, or why it was not found. `twice`: the message has ended before."""

    position: LedgerPosition | None = None
    twice: bool = False
    why: str = ""


def late_messages(
    fates: EntryFates, planned: PlannedRange, state: PartitionState, inquiry: Inquiry, reread: Reread
) -> Iterator[list[Any]]:
    """The messages that end in entries that were left out; an UnreadableEntry for each that cannot be assembled."""
    ledgers = state.entry_counts_between(BEGINNING, planned.end)
    endings = fates.endings()
    search = _Search(fates.chunks, endings)
    search.go_back(positions_backwards(ledgers, planned.start, BEGINNING), _most_back(state), inquiry)
    begins = {position: search.begin_of(position) for position in endings}
    wanted = {position[:2] for position, begin in begins.items() if not begin.twice}
    came: set[tuple[int, int]] = set()
    if starts := [_before(begin.position) for begin in begins.values() if begin.position and not begin.twice]:
        start, end = min(starts), max(endings)
        again = replace(
            planned, start=start, end=end, durable=False, verified=False, ledgers=state.entry_counts_between(start, end)
        )
        for messages in reread(again):
            if late := [message for message in messages if position_of(message.message_id())[:2] in wanted]:
                came |= {position_of(message.message_id())[:2] for message in late}
                yield late
    for position in sorted(position for position in endings if position[:2] in wanted - came):
        if why := _why_not(position, begins[position], endings[position], ledgers, inquiry):
            chunk = endings[position]
            reason = f"message {chunk.message!r} of {chunk.of} chunks cannot be put together: {why}"
            yield [UnreadableEntry(position, reason)]


def _why_not(
    position: LedgerPosition, begin: _Begin, chunk: Chunk, ledgers: Sequence[tuple[int, int]], inquiry: Inquiry
) -> str | None:
    """Why no client can assemble a message; None where it was assembled before and only sent again."""
    if begin.position is None:
        return begin.why
    between = inquiry.answers(positions_backwards(ledgers, _before(position), begin.position))
    chunks = [answer.chunk for answer in between.values() if isinstance(answer, StoredEntry) and answer.chunk]
    numbers = [one.number for one in reversed(chunks) if one.message == chunk.message]
    if chunk.of - 1 in numbers:
        return None
    if len(numbers) != chunk.of - 2 or numbers != list(range(1, len(numbers) + 1)):
        return "its chunks are not in order"
    return "no client gets through its chunks and what lies between them"


def kept_before(end: LedgerPosition, ledgers: Sequence[tuple[int, int]], inquiry: Inquiry) -> LedgerPosition:
    """How far to acknowledge a batch that ends at `end`: chunks of a message that is not complete yet stay stored.

    Only looks at the last entry. Where it is unknown, `end` is acknowledged; a ledger removed at that moment may lose
    the message.
    """
    try:
        entry = inquiry.answers([end])[end]
        if not isinstance(entry, StoredEntry) or entry.chunk is None or entry.chunk.is_last:
            return end
        if entry.chunk.number == 0:
            return _before(end)
        search = _Search({end: entry.chunk}, {end: entry.chunk})
        search.go_back(positions_backwards(ledgers, _before(end), BEGINNING), MAX_BACK, inquiry)
    except SourceClusterUnreachable:
        return end
    begin = search.begin_of(end).position
    return _before(begin) if begin else end


class _Search:
    """Searches backwards from the newest entry for the first chunks of several messages at once."""

    def __init__(self, chunks: Mapping[LedgerPosition, Chunk], endings: Mapping[LedgerPosition, Chunk]) -> None:
        self._endings = endings
        self._open: dict[str, list[LedgerPosition]] = {}
        self._found: dict[LedgerPosition, _Begin] = {}
        self._why = ""
        # Newest first: an ending opens its message before the chunks that belong to it.
        for position in sorted(chunks, reverse=True):
            self._meet(position, chunks[position])

    def go_back(self, positions: Iterator[LedgerPosition], most: int, inquiry: Inquiry) -> None:
        """Asks for entries before the range, newest first, until each message has its first chunk, at most `most`
        entries.
        """
        asked, hidden, size = 0, 0, _FIRST_CHUNK_WINDOW
        while self._open and asked < most:
            window = list(islice(positions, min(size, most - asked)))
            if not window:
                break
            answers = inquiry.answers(window, _FIRST_CHUNK_WINDOW)
            for position in window:
                hidden += answers[position] is MissingAnswer.UNKNOWN or _is_unreadable(answers[position])
                self._meet_answer(position, answers[position])
            asked, size = asked + len(window), 4 * size
        self._why = f"its first chunk is not among the {asked} entries before"
        if asked < most:
            self._why = "its first chunk is not stored any more: it was read before, or is lost"
        if hidden:
            self._why += f", and of {hidden} entries the broker does not say what they are"

    def begin_of(self, ending: LedgerPosition) -> _Begin:
        return self._found.get(ending) or _Begin(why=self._why)

    def _meet_answer(self, position: LedgerPosition, answer: EntryAnswer) -> None:
        if isinstance(answer, StoredEntry) and answer.chunk:
            self._meet(position, answer.chunk)

    def _meet(self, position: LedgerPosition, chunk: Chunk) -> None:
        if chunk.is_last or chunk.number == 0:
            # An older last chunk: the message was whole there already, and was sent once more.
            begin = _Begin(twice=True) if chunk.is_last else _Begin(position)
            self._found |= dict.fromkeys(self._open.pop(chunk.message, ()), begin)
        if position in self._endings:
            self._open[chunk.message] = [position]


def _is_unreadable(answer: EntryAnswer) -> bool:
    return isinstance(answer, StoredEntry) and not answer.readable


def _most_back(state: PartitionState) -> int:
    return max(1, min(MAX_BACK, int(_BACK_BYTES / (state.mean_entry_size() or 1))))


def _before(position: LedgerPosition) -> LedgerPosition:
    return LedgerPosition(position.ledger, position.entry - 1)
