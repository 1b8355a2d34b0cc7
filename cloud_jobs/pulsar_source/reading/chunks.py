"""Messages in chunks that a read left out.

A message in chunks belongs to the range in which its last chunk lies: that is where its id points. But the client puts
together only what it is sent from the first chunk on, in order, and drops the rest. So where a range begins between two
chunks its message is read once more, from before its first chunk, by a reader that knows no cursor. What no client puts
together is a row that says so: a last chunk alone proves no loss, its producer can have sent it once more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from cloud_jobs.pulsar_source.cluster.partition_state import PartitionState
from cloud_jobs.pulsar_source.errors import SourceClusterUnreachable
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition, positions_backwards
from cloud_jobs.pulsar_source.reading.entries import Chunk, EntryAnswer, EntryFates, Inquiry, MissingAnswer, StoredEntry
from cloud_jobs.pulsar_source.reading.messages import UnreadableEntry, position_of
from cloud_jobs.pulsar_source.reading.planned import PlannedRange

MAX_BACK = 5000
"""Among how many entries before a range the first chunks of its messages are looked for."""

_BACK_BYTES = 256 << 20
"""The same in bytes of stored entries."""

_FIRST_WINDOW = 64

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
        asked, hidden, size = 0, 0, _FIRST_WINDOW
        while self._open and asked < most:
            window = list(islice(positions, min(size, most - asked)))
            if not window:
                break
            answers = inquiry.answers(window, _FIRST_WINDOW)
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
