"""Messages in chunks that a read left out.

A message in chunks belongs to the range in which its last chunk lies: that is where its id points. But the client puts
together only what it is sent from the first chunk on, in order, and drops the rest. So where a range begins between two
chunks its message is read once more, from before its first chunk, by a reader that knows no cursor. What no client puts
together is a row that says so, or a loss that is told.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import structlog

from cloud_jobs.pulsar_source.copies import UnreadableEntry
from cloud_jobs.pulsar_source.entries import Chunk, Stored, backwards
from cloud_jobs.pulsar_source.errors import ClusterUnreachable, DataLoss, PulsarSourceError
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.message_ids import position_of
from cloud_jobs.pulsar_source.planned import PlannedRange
from cloud_jobs.pulsar_source.position import BEGINNING, Position

_log = structlog.get_logger(__name__)

MOST_BACK = 1000
"""How many entries before a last chunk its first one is looked for."""

_BACK_BYTES = 256 << 20
"""How far back a message is read whose chunks the broker cannot unpack one by one: they are compressed."""

Endings = Mapping[Position, Chunk | None]
"""Entries that were not delivered and may end a message in chunks; None where the broker cannot say."""

Reread = Callable[[PlannedRange], Iterator[list[Any]]]
"""The messages of a range, by a reader."""


class _Begin(NamedTuple):
    """Where the first chunk of a message lies; without a place why it was not found. `twice`: it has ended before.
    `asked`: False when the broker stopped to answer.
    """

    place: Position | None = None
    twice: bool = False
    why: str = ""
    asked: bool = True


_NOT_ASKED = _Begin(why="its first chunk was not found", asked=False)


def late_messages(
    endings: Endings, planned: PlannedRange, state: TopicState, stored: Stored, reread: Reread, *, fail: bool
) -> Iterator[list[Any]]:
    """The messages that end in those entries, and an UnreadableEntry for each one that cannot be put together.

    Raises DataLoss (`fail` False: logs it) where the first chunk was removed with the ledger that the range begins in.
    """
    ledgers = state.sizes_between(BEGINNING, planned.end)
    begins = _begins(endings, ledgers, stored)
    wanted = {place[:2] for place in endings if place not in begins or not begins[place].twice}
    came: set[tuple[int, int]] = set()
    starts = [_before(begin.place) for begin in begins.values() if begin.place and not begin.twice]
    if len(begins) < len(endings) or not all(begin.asked for begin in begins.values()):
        starts.append(_far_back(ledgers, planned.start, state))
    if starts:
        start, end = min(starts), max(place for place in endings)
        for messages in reread(
            replace(planned, start=start, end=end, durable=False, whole=False, ledgers=state.sizes_between(start, end))
        ):
            late = [message for message in messages if position_of(message.message_id())[:2] in wanted]
            came |= {position_of(message.message_id())[:2] for message in late}
            if late:
                yield late
    for place in sorted(begins):
        if place[:2] in wanted - came:
            yield _not_put_together(place, begins[place], endings[place], planned, state, fail=fail)


def kept_before(end: Position, ledgers: Sequence[tuple[int, int]], stored: Stored) -> Position:
    """How far may be acknowledged where a batch ends there: the chunks of a message that is not whole yet stay stored.

    Looks at the last entry alone.
    """
    try:
        entry = stored.of(end)
    except PulsarSourceError:
        return end  # it costs what the topic had before, should a ledger be removed just now
    if entry is None or entry.chunk is None or entry.chunk.is_last:
        return end
    begin = end if entry.chunk.number == 0 else _begin_of(end, entry.chunk, ledgers, stored).place
    return _before(begin) if begin else end


def _not_put_together(
    place: Position, begin: _Begin, chunk: Chunk | None, planned: PlannedRange, state: TopicState, *, fail: bool
) -> list[Any]:
    assert chunk is not None  # the broker said where it begins
    why = begin.why or "its chunks are not in order"
    reason = f"message {chunk.message!r} of {chunk.of} chunks cannot be put together: {why}"
    if not begin.place and state.removed(planned.start):
        detail = (
            f"the message that ends at {place} began in ledger {planned.start.ledger} or before it, which is removed"
        )
        if fail:
            raise DataLoss(planned.cluster.name, planned.topic, detail)
        _log.warning("data_loss", cluster=planned.cluster.name, topic=planned.topic, detail=detail)
    return [UnreadableEntry(place, reason)]


def _begins(endings: Endings, ledgers: Sequence[tuple[int, int]], stored: Stored) -> dict[Position, _Begin]:
    begins: dict[Position, _Begin] = {}
    asking = True
    for place, chunk in endings.items():
        if chunk:
            begins[place] = _begin_of(place, chunk, ledgers, stored) if asking else _NOT_ASKED
            asking = begins[place].asked
    return begins


def _begin_of(place: Position, chunk: Chunk, ledgers: Sequence[tuple[int, int]], stored: Stored) -> _Begin:
    for earlier in islice(backwards(ledgers, _before(place), BEGINNING), MOST_BACK):
        try:
            entry = stored.of(earlier)
        except ClusterUnreachable:
            # A broker does not answer for a chunk that is compressed, and each such question is waited for.
            return _NOT_ASKED
        if entry is None or entry.chunk is None or entry.chunk.message != chunk.message:
            continue
        if entry.chunk.is_last:
            return _Begin(twice=True)
        if entry.chunk.number == 0:
            return _Begin(earlier)
    return _Begin(why=f"its first chunk is not stored, or more than {MOST_BACK} entries before the last")


def _far_back(ledgers: Sequence[tuple[int, int]], start: Position, state: TopicState) -> Position:
    entries = max(1, min(MOST_BACK, int(_BACK_BYTES / (state.mean_entry_size() or 1))))
    return next(islice(backwards(ledgers, start, BEGINNING), entries, None), BEGINNING)


def _before(place: Position) -> Position:
    return Position(place.ledger, place.entry - 1)
