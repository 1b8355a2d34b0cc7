"""What a broker says of a topic partition's managed ledger, and what the source keeps with its subscription. Pure.

A broker opens a new ledger each time it loads a topic or rolls it over, and says when: that time is an *opening*.
Ledger numbers come again after older disks were restored, openings do not. Each opening in which a batch is planned is
noted before Spark's log has the batch: a log that knows an opening which the broker does not know was written on other
disks. The opening in which a batch was acknowledged is noted after Spark's log has it: a broker that is ahead of the
log shows that the log was set back.

A subscription is created in two steps, so the first one says what the second one is to be: whoever finds it between the
two, after the process that created it ended, brings the cursor to its start.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal, Self, get_args

from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition

_READER = re.compile(r"(?P<prefix>.*\.)(?P<query>[^.]+)-reader-[0-9a-z]+", re.DOTALL)
"""How a reader's cursor is named: the prefix of its role, the query, and what the client adds. A query has no dot."""

_COMPACTION = "__compaction"
"""The cursor of the broker's own compaction: it keeps every ledger that is not compacted yet."""

Role = Literal["owner", "candidate"]
"""What a query is to a subscription: it reads it, or it begins and looks whether somebody else does."""


def reader_prefix(subscription: str, role: Role) -> str:
    """How the names of the readers begin that stand for a query in its role."""
    return f"{subscription}.{role}."


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """A run of entries 0..entries-1; `size` in bytes."""

    ledger_id: int
    entries: int
    size: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One topic partition at one moment.

    `last`: the newest entry (entry -1 of a ledger when there is none). `cursor`: what the subscription has
    acknowledged, None when it does not exist. `ledger_created_at`: when the broker opened the newest ledger, as it says
    it: while that does not change, the topic is the same one. `owners`: the queries that are reading the subscription
    now. `cursor_created_at`: when the broker opened the cursor's own ledger: while that does not change, the
    subscription is the same one. `candidates`: the queries that are about to read it, if nobody else does. `compacted`:
    up to there the topic has a compacted form; BEGINNING when it has none.
    """

    ledgers: tuple[LedgerInfo, ...]
    last: LedgerPosition
    cursor: LedgerPosition | None
    ledger_created_at: str = ""
    owners: frozenset[str] = frozenset()
    cursor_created_at: str = ""
    candidates: frozenset[str] = frozenset()
    compacted: LedgerPosition = BEGINNING

    @classmethod
    def from_stats(cls, stats: Mapping[str, Any], subscription: str) -> Self:
        """The admin REST's internal statistics of a topic -> state, seen from one subscription."""
        last = LedgerPosition.parse(stats["lastConfirmedEntry"])
        size = stats["currentLedgerSize"]
        ledgers = tuple(_ledger(row, last, size) for row in stats["ledgers"])
        cursor = stats["cursors"].get(subscription)
        acknowledged = None if cursor is None else LedgerPosition.parse(cursor["markDeletePosition"])
        owners, candidates = (_queries(stats["cursors"], reader_prefix(subscription, role)) for role in get_args(Role))
        opened = str(stats.get("lastLedgerCreatedTimestamp", ""))
        subscribed = "" if cursor is None else str(cursor.get("lastLedgerSwitchTimestamp", ""))
        compaction = stats["cursors"].get(_COMPACTION)
        compacted = BEGINNING if compaction is None else LedgerPosition.parse(compaction["markDeletePosition"])
        return cls(ledgers, last, acknowledged, opened, owners, subscribed, candidates, compacted)

    @property
    def first_ledger(self) -> int:
        """The oldest ledger that is still there; the newest entry's own when the list is empty."""
        return self.ledgers[0].ledger_id if self.ledgers else self.last.ledger

    def entries_between(self, start: LedgerPosition, end: LedgerPosition) -> int:
        """How many entries after `start`, up to and with the whole entry `end`, are still stored."""
        return sum(_overlap(ledger, start, end) for ledger in self.ledgers)

    def entry_counts_between(self, start: LedgerPosition, end: LedgerPosition) -> tuple[tuple[int, int], ...]:
        """(number, entries) of each ledger that a range touches."""
        touched = (ledger for ledger in self.ledgers if start.ledger <= ledger.ledger_id <= end.ledger)
        return tuple((ledger.ledger_id, ledger.entries) for ledger in touched)

    def has_entries_after(self, start: LedgerPosition) -> bool:
        """True when there is an entry, or the rest of one, after `start`."""
        return self.entries_between(start, self.last) > 0

    def mean_entry_size(self) -> float:
        """Bytes of a stored entry on average; 0 when nothing is stored."""
        entries = sum(ledger.entries for ledger in self.ledgers)
        return sum(ledger.size for ledger in self.ledgers) / entries if entries else 0.0

    def ends_before(self, start: LedgerPosition) -> bool:
        """Whether the topic has never had an entry at that position: the cluster was set back to older disks."""
        if start.entry < 0 or start.ledger < self.first_ledger:
            return start.ledger > max([self.last.ledger, *(ledger.ledger_id for ledger in self.ledgers)])
        entries = {ledger.ledger_id: ledger.entries for ledger in self.ledgers} or {
            self.last.ledger: self.last.entry + 1
        }
        return start.entry >= entries.get(start.ledger, 0)

    def cursor_delivers(self, start: LedgerPosition) -> bool:
        """Whether the subscription's cursor still keeps, and would deliver, everything after `start`."""
        return (
            self.cursor is not None
            and self.entries_between(start, self.cursor) == 0
            and (self.loss_after(start) is None)
        )

    def loss_after(self, start: LedgerPosition) -> str | None:
        """What is known to be gone of the messages after `start`, in words; None when nothing is.

        The broker removes a ledger when every cursor has left it. Unread messages are gone with it when the
        subscription was removed, or when its cursor stands behind an entry after `start`: somebody else moved it (TTL,
        quota, an operator), or the query was set back. Only the first place of a ledger says nothing: the broker moves
        a cursor there by itself when it removes the ledger before it. See `SubscriptionProperties.acknowledged_after`.
        """
        if self.ends_before(start):
            return f"the topic has never had {start}, and ends at {self.last}"
        if not self.is_removed(start):
            return None
        if self.cursor is None:
            return f"its subscription was removed; the oldest ledger is {self.first_ledger}, not {start.ledger}"
        if self.cursor > start and self.cursor.entry >= 0:
            return f"the cursor stands at {self.cursor}, the query at {start}, and ledger {start.ledger} is removed"
        return None

    def is_removed(self, start: LedgerPosition) -> bool:
        """Whether the ledger of a position is not there any more."""
        return 0 <= start.ledger < self.first_ledger


def _queries(cursors: Iterable[str], prefix: str) -> frozenset[str]:
    found = (_READER.fullmatch(name) for name in cursors)
    return frozenset(name["query"] for name in found if name and name["prefix"] == prefix)


def _ledger(row: Mapping[str, Any], last: LedgerPosition, open_size: int) -> LedgerInfo:
    number, entries = row["ledgerId"], row["entries"]
    if entries == 0 and number == last.ledger:
        # The open ledger is listed with 0 entries until it is closed.
        return LedgerInfo(number, last.entry + 1, open_size)
    return LedgerInfo(number, entries, row["size"])


def _overlap(ledger: LedgerInfo, start: LedgerPosition, end: LedgerPosition) -> int:
    after = -1
    if ledger.ledger_id == start.ledger:
        # An entry of which only some messages are behind still counts as ahead.
        after = start.entry if start == LedgerPosition(start.ledger, start.entry) else start.entry - 1
    elif ledger.ledger_id < start.ledger:
        return 0
    upto = ledger.entries - 1
    if ledger.ledger_id == end.ledger:
        upto = min(upto, end.entry)
    elif ledger.ledger_id > end.ledger:
        return 0
    return max(0, upto - after)


_ID = "waybill-subscription-id"
_PLANNED = "waybill-planned-openings"
_ACKNOWLEDGED = "waybill-acknowledged-opening"
_CHUNKED = "waybill-chunked"
_STARTING = "waybill-starting-position"
MAX_PLANNED = 16


@dataclass(frozen=True, slots=True)
class SubscriptionProperties:
    """The properties of a durable subscription that are ours; they end with it, with its topic and with the disks.

    `subscription_id`: drawn once. `planned`: the newest openings in which batches were planned, oldest first.
    `acknowledged`: the newest one in which a batch was acknowledged. `chunked`: a task has met messages in chunks.
    `starting`: where the cursor is still to be set (earliest or a time); empty once it is. What an offset keeps of them
    for one position is its *generation*: the id, and the opening in which the position was planned.
    """

    subscription_id: str
    planned: tuple[str, ...] = ()
    acknowledged: str = ""
    chunked: bool = False
    starting: str = ""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self | None:
        """What the broker keeps; None when it is nothing of ours."""
        if _ID not in properties:
            return None
        planned = tuple(filter(None, properties.get(_PLANNED, "").split(",")))
        acknowledged, starting = properties.get(_ACKNOWLEDGED, ""), properties.get(_STARTING, "")
        return cls(properties[_ID], planned, acknowledged, _CHUNKED in properties, starting)

    def to_properties(self) -> dict[str, str]:
        """The reverse of `from_properties`."""
        properties = {
            _ID: self.subscription_id,
            _PLANNED: ",".join(self.planned),
            _ACKNOWLEDGED: self.acknowledged,
            _STARTING: self.starting,
        }
        return properties | ({_CHUNKED: "true"} if self.chunked else {})

    @classmethod
    def of_new(cls, subscription_id: str, start: str | datetime) -> Self:
        """Of a new subscription that begins at `start`. A broker creates each at the latest entry."""
        text = start.isoformat() if isinstance(start, datetime) else start
        return cls(subscription_id, starting="" if text == "latest" else text)

    def starting_ms(self) -> int | None:
        """The publish time from which the cursor is to deliver; None for the earliest message."""
        try:
            return max(0, int(datetime.fromisoformat(self.starting).timestamp() * 1000))
        except (ValueError, OverflowError):
            return None  # who may consume may write anything here: nothing is left out

    def with_cursor_placed(self) -> Self:
        """With its cursor where it is to begin."""
        return replace(self, starting="")

    def with_planned(self, created: str) -> Self:
        """With a batch that is planned in an opening."""
        return replace(self, planned=(*self.planned, created)[-MAX_PLANNED:]) if self._index(created) < 0 else self

    def with_acknowledged(self, created: str) -> Self:
        """With a batch that is acknowledged in an opening."""
        return replace(self, acknowledged=created)

    def with_chunks(self) -> Self:
        """With a message in chunks that a task has met."""
        return replace(self, chunked=True)

    def generation(self, created: str = "") -> str:
        """The generation of a position that was planned in an opening; without one that of a cursor."""
        return f"{self.subscription_id}@{created}" if created else self.subscription_id

    def has_read(self, generation: str) -> bool:
        """Whether a position of that generation was read through this subscription, on these disks."""
        subscription_id, _, created = generation.partition("@")
        if subscription_id != self.subscription_id:
            return False
        # Only the newest openings are kept: of an older one it cannot be said that it was on other disks.
        forgotten = len(self.planned) == MAX_PLANNED and created < self.planned[0]
        return not created or forgotten or self._index(created) >= 0

    def acknowledged_after(self, generation: str) -> bool:
        """Whether batches were acknowledged in a later opening than that of the generation."""
        created = generation.partition("@")[2]
        return bool(created) and self._index(self.acknowledged) > self._index(created)

    def _index(self, created: str) -> int:
        return self.planned.index(created) if created in self.planned else -1


def ledger_created_in(generation: str) -> str:
    """The opening of a generation; empty where it has none."""
    return generation.partition("@")[2]
