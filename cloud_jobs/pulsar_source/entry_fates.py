"""What became of each planned entry that was not delivered, as far as its broker says.

Unknown is a state of its own: an entry that nobody says anything of is never taken for one that need not come. A broker
is asked for single entries first, then it is made to send what it gives to consumers, then it is asked for what is left
for as long as the caller waits. Only then an entry is unknown.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from cloud_jobs.pulsar_source.entries import Chunk, EntryStore, LeftS, StoredEntry, ask, positions_backwards
from cloud_jobs.pulsar_source.errors import SourceClusterUnreachable
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition


class InquiryBounds(NamedTuple):
    """`single`: how many entries are asked for one by one before the broker is made to send what it has. `entries`: how
    many of one range are accounted for; what lies beyond is unknown.
    """

    single: int = 500
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
        found = self._ask(positions[: self._max_single if max_single is None else max_single])
        if unknown := [
            position for position in positions if fate_of(found.get(position, MissingAnswer.UNKNOWN)) is Fate.UNKNOWN
        ]:
            found |= self._sent(unknown)
            # Behind what was sent last there can be entries of which that tells nothing.
            left = [position for position in unknown if position not in found]
            while left and self._left_s() > 0:
                found |= self._ask(left)
                left = [position for position in left if position not in found]
        return {position: found.get(position, MissingAnswer.UNKNOWN) for position in positions}

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
        found: dict[LedgerPosition, EntryAnswer] = {}
        with suppress(SourceClusterUnreachable):
            for position, entry in self._stored.sent(min(wanted), max(wanted), self._left_s):
                reached = position
                self._on_answer()
                if position in wanted:
                    found[position] = entry
        return found | {position: MissingAnswer.WITHHELD for position in wanted - found.keys() if position < reached}


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
