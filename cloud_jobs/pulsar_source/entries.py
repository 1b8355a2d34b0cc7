"""What a broker says of one stored entry, delivered or not."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import NamedTuple, Protocol

from cloud_jobs.pulsar_source.admin import PulsarAdmin
from cloud_jobs.pulsar_source.entry_stream import sent_entries
from cloud_jobs.pulsar_source.errors import SourceClusterUnreachable, SourceConnectionRefused
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from cloud_jobs.pulsar_source.position import LedgerPosition

_MAX_KNOWN = 100_000
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


class AdminEntryStore:
    """Asks the admin REST and the broker; connected at the first question. As `EntryStore`; raises what `PulsarAdmin`
    raises."""

    def __init__(self, cluster: SourceCluster, options: PulsarOptions, partition: str) -> None:
        self._admin = PulsarAdmin(cluster, options, options.call_timeout_s())
        self._options = options
        self._partition = partition
        self._known: dict[tuple[int, int], StoredEntry] = {}

    def close(self) -> None:
        """Gives the connections back."""
        self._admin.close()

    def entry(self, position: LedgerPosition) -> StoredEntry | None:  # noqa: D102
        known = self._known.get(position[:2])
        if known is not None:
            return known
        headers = self._admin.entry_headers(self._partition, position)
        if headers is None:
            return None
        entry = StoredEntry.from_headers(headers)
        if entry.readable and not (entry.in_open_transaction and not entry.marker) and len(self._known) < _MAX_KNOWN:
            self._known[position[:2]] = entry  # it stays what it is
        return entry

    def sent(
        self, first: LedgerPosition, last: LedgerPosition, left_s: LeftS
    ) -> Iterator[tuple[LedgerPosition, StoredEntry]]:
        """As `EntryStore.sent`."""
        for position, head in sent_entries(self._admin, self._options, self._partition, (first, last), left_s):
            yield position, StoredEntry(chunk=Chunk.from_metadata(head.uuid, head.chunk, head.chunks))


def open_entry_store(
    cluster: SourceCluster, options: PulsarOptions, partition: str
) -> AbstractContextManager[EntryStore]:
    """The entries of a topic partition."""
    return closing(AdminEntryStore(cluster, options, partition))


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
        found: dict[LedgerPosition, Answer] = {}
        for position in share:
            if silent:
                break
            try:
                found[position] = stored.entry(position)
            except SourceConnectionRefused:
                raise
            except SourceClusterUnreachable as error:
                found[position] = error
                silent = True
        return found

    with ThreadPoolExecutor(_PARALLEL) as pool:
        while not silent and left_s() > 0 and (window := list(islice(positions, size))):
            count = min(_PARALLEL, -(-len(window) // _EACH))
            answers: dict[LedgerPosition, Answer] = {}
            for share in pool.map(asked, [window[number::count] for number in range(count)]):
                answers |= share
            yield from ((position, answers[position]) for position in window if position in answers)
            size = min(2 * size, _LARGEST_WINDOW)


def positions_backwards(
    ledgers: Sequence[tuple[int, int]], end: LedgerPosition, after: LedgerPosition
) -> Iterator[LedgerPosition]:
    """The places from `end` back to the one behind `after`, by (number, entries) of the ledgers in order."""
    for number, entries in reversed(ledgers):
        newest = min(entries - 1, end.entry) if number == end.ledger else entries - 1
        if number <= end.ledger:
            for entry in range(newest, -1, -1):
                if (number, entry) <= (after.ledger, after.entry):
                    return
                yield LedgerPosition(number, entry)
