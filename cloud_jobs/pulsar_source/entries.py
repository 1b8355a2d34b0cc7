"""What became of each entry of a planned range, and where chunked messages begin.

A message in chunks belongs to the range in which its last chunk lies: that is where its id points. But the client puts
together only what it is sent from the first chunk on, in order, and drops the rest. So where a range begins between two
chunks its message is read once more, from before its first chunk, by a reader that knows no cursor. What no client puts
together is a row that says so: a last chunk alone proves no loss, its producer can have sent it once more.
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
    """What is left of so many seconds from now on, or from when something was heard last."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self.reset()

    def reset(self) -> None:
        """The time begins anew."""
        self._until_s = self._clock() + self._seconds

    def __call__(self) -> float:
        """The seconds that are left."""
        return self._until_s - self._clock()


class EntryStore(Protocol):
    """The entries of one topic partition; `entry` may be called from several threads."""

    def entry(self, position: LedgerPosition) -> "StoredEntry | None":
        """An entry as its cluster has it; None when it is not stored any more."""

    def sent(
        self, first: LedgerPosition, last: LedgerPosition, left_s: LeftS
    ) -> "Iterator[tuple[LedgerPosition, StoredEntry]]":
        """The entries from `first` on that the broker gives a consumer, in order, as far as one at or behind `last`.

        It may begin a little before, and ends early where nothing more comes. Raises SourceClusterUnreachable.
        """


class Chunk(NamedTuple):
    """Part `number` (from 0) of the `of` parts of a message, which is named by its producer."""

    message: str
    number: int
    of: int

    @classmethod
    def from_metadata(cls, message: str, number: int, of: int) -> "Chunk | None":
        """None for a message that is whole. A producer can set any numbers, also those of no chunk of the message."""
        return cls(message, number, of) if of > 1 else None

    @property
    def is_last(self) -> bool:
        """Whether the message ends with it."""
        return self.number == self.of - 1


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """`readable`: False when the broker cannot unpack it. `marker`: the broker's own, given to no consumer.
    `in_open_transaction`: behind the start of a transaction that is open still. `chunk`: where it is a part of a
    message.
    """

    readable: bool = True
    marker: bool = False
    in_open_transaction: bool = False
    aborted: bool = False
    chunk: Chunk | None = None

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> "StoredEntry":
        """The admin REST's headers of an entry (none where it cannot be unpacked) -> what it is."""

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
    """What a broker says of many entries, in their order. Those behind one that it does not answer for are left out.

    So are those for which no time is left. SourceConnectionRefused is raised: it is said of the cluster, not of an
    entry.

    A topic with replicated subscriptions has some ten markers for each second and partition, each left out of a batch.
    So they are asked for together: a question for itself waits for its turn on every machine between here and there.
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
    """`single`: how many entries are asked for one by one before the broker is made to send what it has. `entries`: how
    many of one range are accounted for; what lies beyond is unknown.
    """

    single: int = 16
    entries: int = 1_000_000


BOUNDS = InquiryBounds()


class Fate(Enum):
    """What became of an entry that was not delivered."""

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
    """In the place of an answer. `WITHHELD`: the broker sent what comes before an entry and what comes after it."""

    WITHHELD = 0
    UNKNOWN = 1


EntryAnswer = StoredEntry | None | MissingAnswer


def fate_of(answer: EntryAnswer) -> Fate:
    """What became of an entry that was not delivered, by what is known of it."""
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
    """The fates of entries, and what is known of those that are chunks."""

    fates: dict[LedgerPosition, Fate] = field(default_factory=dict)
    chunks: dict[LedgerPosition, Chunk] = field(default_factory=dict)

    def with_fate(self, *fates: Fate) -> list[LedgerPosition]:
        """The entries that have one of these, in order."""
        return sorted(position for position, fate in self.fates.items() if fate in fates)

    def endings(self) -> dict[LedgerPosition, Chunk]:
        """The last chunks, each with what it ends."""
        return {position: self.chunks[position] for position in self.with_fate(Fate.ENDING)}


class Inquiry:
    """Questions about stored entries, all together bounded in time: `left_s` says how much there is.

    `on_answer` is called with each answer: whoever has many entries may wait for as long as answers come.
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
        """What became of the entries at those places, none of which was delivered."""
        result = EntryFates()
        for position, answer in self.answers(positions).items():
            result.fates[position] = fate_of(answer)
            if isinstance(answer, StoredEntry) and answer.chunk and result.fates[position] in {Fate.ENDING, Fate.PART}:
                result.chunks[position] = answer.chunk
        return result

    def answers(
        self, positions: Iterable[LedgerPosition], max_single: int | None = None
    ) -> dict[LedgerPosition, EntryAnswer]:
        """What is known of each entry; `max_single`: so many are asked for one by one, where that is not many."""
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
    """Whether entries after `reached` wait for the end of a transaction; True also where that is not known.

    Behind the start of an open transaction everything is held, also what is of an aborted one. Of a marker a broker
    can say so without any transaction.
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
    """One task's work: the messages after `start` up to and with `end`.

    `durable`: through the durable subscription, whose cursor stands at or before `start`; otherwise through a reader
    that begins at `start` and leaves no trace on the broker. `queue` bounds the messages held ahead of Spark.
    `since_ms` and `until_ms` keep only messages published in [since, until). `ledgers`: (number,
    entries) of the ledgers that it touched when it was planned. `isolated`: through a client in a process of its own,
    see `isolation`. `verified`: what is not delivered is accounted for, because the range is acknowledged once it is
    read.
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
        """The same work in isolation: an entry that ends a client is a row."""
        return replace(self, durable=False, isolated=True)

    def includes(self, published_ms: int) -> bool:
        """Whether a message of that publish time is asked for."""
        return (self.since_ms or 0) <= published_ms and (self.until_ms is None or published_ms < self.until_ms)


OpenEntryStore = Callable[[SourceCluster, PulsarOptions, str], AbstractContextManager[EntryStore]]


@dataclass(frozen=True, slots=True)
class RangeIO:
    """What reading a range does with its cluster, and the clock (seconds) that bounds it.

    `open_feed`: its messages. `open_store`: what the cluster says of single entries. `read_state`: the topic partition
    as it stands now. `record_chunks`: keeps with the subscription that there are messages in chunks.
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

    What was compacted is read by a reader: through the subscription it looks like what somebody else has acknowledged.
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
    """How many messages a consumer may hold ahead, by the mean size of the stored entries."""
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
    """Where the first chunk of a message lies; without a place why it was not found. `twice`: it has ended before."""

    position: LedgerPosition | None = None
    twice: bool = False
    why: str = ""


def late_messages(
    fates: EntryFates, planned: PlannedRange, state: PartitionState, inquiry: Inquiry, reread: Reread
) -> Iterator[list[Any]]:
    """The messages that end in entries that were left out; an UnreadableEntry for each that cannot be put together."""
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
    """Why no client puts a message together; None where it was put together before, and only sent once more."""
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
    """How far may be acknowledged where a batch ends there: the chunks of a message that is not whole yet stay stored.

    Looks at the last entry alone. What is not known costs what the topic had before, should a ledger be removed just
    now.
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
    """Goes back from the newest entry, and finds where the messages begin that end in some entries; all together."""

    def __init__(self, chunks: Mapping[LedgerPosition, Chunk], endings: Mapping[LedgerPosition, Chunk]) -> None:
        self._endings = endings
        self._open: dict[str, list[LedgerPosition]] = {}
        self._found: dict[LedgerPosition, _Begin] = {}
        self._why = ""
        # Newest first: an ending opens its message before the chunks that belong to it.
        for position in sorted(chunks, reverse=True):
            self._meet(position, chunks[position])

    def go_back(self, positions: Iterator[LedgerPosition], most: int, inquiry: Inquiry) -> None:
        """Asks for entries before the range, newest first, until each message has its beginning, or for so many."""
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
        """Where the message of a last chunk begins."""
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
