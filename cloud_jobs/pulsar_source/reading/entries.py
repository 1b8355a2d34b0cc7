"""What a broker says of stored entries, and so what became of each planned entry that was not delivered.

Unknown is a state of its own: an entry that nobody says anything of is never taken for one that need not come. A broker
is asked for single entries first, then it is made to send what it gives to consumers, then it is asked for what is left
for as long as the caller waits. Only then an entry is unknown.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from math import inf
from typing import NamedTuple, Protocol

from cloud_jobs.pulsar_source.errors import SourceClusterUnreachable, SourceConnectionRefused
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition, positions_backwards

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
