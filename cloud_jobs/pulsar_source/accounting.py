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

from cloud_jobs.pulsar_source.entries import Chunk, LeftS, Stored, StoredEntry, ask, backwards
from cloud_jobs.pulsar_source.errors import ClusterUnreachable
from cloud_jobs.pulsar_source.position import BEGINNING, Position


class Bounds(NamedTuple):
    """`single`: how many entries are asked for one by one before the broker is made to send what it has. `entries`: how
    many of one range are accounted for; what lies beyond is unknown.
    """

    single: int = 500
    entries: int = 1_000_000


BOUNDS = Bounds()


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


class Silence(Enum):
    """In the place of an answer. `WITHHELD`: the broker sent what comes before an entry and what comes after it."""

    WITHHELD = 0
    UNKNOWN = 1


Known = StoredEntry | None | Silence


def fate_of(answer: Known) -> Fate:
    """What became of an entry that was not delivered, by what is known of it."""
    if not isinstance(answer, StoredEntry):
        return {None: Fate.REMOVED, Silence.WITHHELD: Fate.WITHHELD, Silence.UNKNOWN: Fate.UNKNOWN}[answer]
    signs = (
        (not answer.readable, Fate.UNKNOWN),
        (answer.marker, Fate.MARKER),
        (answer.aborted, Fate.ABORTED),
        (answer.held, Fate.HELD),
        (answer.chunk is None, Fate.MESSAGE),
        (answer.chunk is not None and answer.chunk.is_last, Fate.ENDING),
    )
    return next((fate for sign, fate in signs if sign), Fate.PART)


@dataclass(slots=True)
class Account:
    """The fates of entries, and what is known of those that are chunks."""

    fates: dict[Position, Fate] = field(default_factory=dict)
    chunks: dict[Position, Chunk] = field(default_factory=dict)

    def of(self, *fates: Fate) -> list[Position]:
        """The entries that have one of these, in order."""
        return sorted(place for place, fate in self.fates.items() if fate in fates)

    def endings(self) -> dict[Position, Chunk]:
        """The last chunks, each with what it ends."""
        return {place: self.chunks[place] for place in self.of(Fate.ENDING)}


class Inquiry:
    """Questions about stored entries, all together bounded in time: `left_s` says how much there is.

    `heard` is called with each answer: whoever has many entries may wait for as long as answers come.
    """

    def __init__(
        self, stored: Stored, left_s: LeftS, bounds: Bounds = BOUNDS, *, heard: Callable[[], None] = lambda: None
    ) -> None:
        self._stored = stored
        self._left_s = left_s
        self._heard = heard
        self._most_single = bounds.single

    def account(self, places: Iterable[Position]) -> Account:
        """What became of the entries at those places, none of which was delivered."""
        account = Account()
        for place, answer in self.answers(places).items():
            account.fates[place] = fate_of(answer)
            if isinstance(answer, StoredEntry) and answer.chunk and account.fates[place] in {Fate.ENDING, Fate.PART}:
                account.chunks[place] = answer.chunk
        return account

    def answers(self, places: Iterable[Position], most_single: int | None = None) -> dict[Position, Known]:
        """What is known of each entry; `most_single`: so many are asked for one by one, where that is not many."""
        places = list(places)
        found = self._ask(places[: self._most_single if most_single is None else most_single])
        if unknown := [place for place in places if fate_of(found.get(place, Silence.UNKNOWN)) is Fate.UNKNOWN]:
            found |= self._sent(unknown)
            # Behind what was sent last there can be entries of which that tells nothing.
            left = [place for place in unknown if place not in found]
            while left and self._left_s() > 0:
                found |= self._ask(left)
                left = [place for place in left if place not in found]
        return {place: found.get(place, Silence.UNKNOWN) for place in places}

    def is_part(self, place: Position) -> bool:
        """Whether an entry is known to be a chunk before the last one of its message."""
        return self.account([place]).fates[place] is Fate.PART

    def _ask(self, places: Sequence[Position]) -> dict[Position, Known]:
        found: dict[Position, Known] = {}
        for place, answer in ask(self._stored, places, self._left_s):
            if isinstance(answer, ClusterUnreachable):
                found[place] = Silence.UNKNOWN
            else:
                found[place] = answer
                self._heard()
        return found

    def _sent(self, unknown: Sequence[Position]) -> dict[Position, Known]:
        wanted, reached = set(unknown), BEGINNING
        found: dict[Position, Known] = {}
        with suppress(ClusterUnreachable):
            for place, entry in self._stored.sent(min(wanted), max(wanted), self._left_s):
                reached = place
                self._heard()
                if place in wanted:
                    found[place] = entry
        return found | {place: Silence.WITHHELD for place in wanted - found.keys() if place < reached}


def is_held(
    stored: Stored, ledgers: Sequence[tuple[int, int]], end: Position, reached: Position, left_s: LeftS
) -> bool:
    """Whether entries after `reached` wait for the end of a transaction; True also where that is not known.

    Behind the start of an open transaction everything is held, also what is of an aborted one. Of a marker a broker
    can say so without any transaction.
    """
    unknown = False
    newest: Position | None = end
    while newest and left_s() > 0:
        places, newest = backwards(ledgers, newest, reached), None
        for place, answer in ask(stored, places, left_s):
            if isinstance(answer, ClusterUnreachable):
                unknown, newest = True, Position(place.ledger, place.entry - 1)  # the older ones were left out
                break
            if answer is None or answer.marker:
                continue
            if answer.readable:
                return answer.held or unknown
            unknown = True
    return unknown or left_s() <= 0
