"""Whether all that was planned was read: what was left out of a range, and what its cluster says of that.

Entries are left out for good where no consumer is given them (a replication or transaction marker, an aborted
transaction, a chunk before its last one, what compaction removed). Where somebody moved the subscription's cursor or
acknowledged entries one by one, they are stored and were not delivered; then the batch must not be written.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, NoReturn

import numpy as np

from cloud_jobs.pulsar_source.chunks import Reread, late_messages
from cloud_jobs.pulsar_source.columns import Runs
from cloud_jobs.pulsar_source.entries import Answer, Chunk, Stored, StoredEntry, ask, backwards
from cloud_jobs.pulsar_source.errors import ClusterUnreachable, ReadIncomplete, ReadStalled
from cloud_jobs.pulsar_source.isolation import next_entry
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.message_ids import position_of
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.planned import Look, Open, PlannedRange
from cloud_jobs.pulsar_source.position import BEGINNING, WHOLE_ENTRY, Position

_MOST_GAPS = 1000
_HELD_PERIOD_S = 0.5
_MOST_LOOKED_AT = 5000
"""How many entries of one gap are asked for one by one."""


class Gap(NamedTuple):
    """Entries that were not delivered: after `after`, before the entry `before`."""

    after: Position
    before: Position


class Completeness:
    """Follows one range; its checks raise ReadIncomplete where messages are stored and were not delivered."""

    def __init__(
        self, options: PulsarOptions, planned: PlannedRange, opening: Open, look: Look, clock: Callable[[], float]
    ) -> None:
        self._options = options
        self._planned = planned
        self._opening = opening
        self._look = look
        self._clock = clock
        self._track = Track(planned)
        self._asked_s = float("-inf")
        self.met_chunks = False
        """Whether messages in chunks left entries out."""

    def of(self, planned: PlannedRange) -> "Completeness":
        """The same of another range."""
        return Completeness(self._options, planned, self._opening, self._look, self._clock)

    def note(self, runs: Runs, first: int) -> None:
        """The runs from that one on were delivered."""
        self._track.note(runs, first)

    def check_in_silence(self) -> None:
        """Nothing comes: somebody may have moved the cursor over what was to come."""
        state = self._state()
        self._check(passed_over(self._planned, state, self._track.gaps()), state)

    def check_at_end(self, stored: Stored, reread: Reread) -> Iterator[list[Any]]:
        """Nothing more will come: checks what was left out; gives the messages in chunks that a reader finds there."""
        gaps, planned = self._track.gaps(), self._planned
        late: Iterator[list[Any]] = iter(())
        if gaps:
            state = self._state()
            if self._options.read_compacted:
                gaps = self._not_compacted(gaps, state)
            if planned.whole:
                left_out = LeftOut(planned, stored)
                missing = left_out.with_messages(gaps)
                self.met_chunks = left_out.met_chunks
                self._check(missing if planned.durable else [], state)
                if left_out.endings:
                    fail = self._options.fail_on_data_loss
                    late = late_messages(left_out.endings, planned, state, stored, reread, fail=fail)
        if planned.durable and not self._options.read_compacted and (entry := self._track.partly()):
            self._fail(f"a part of entry {entry}", "somebody acknowledged it while the query was reading")
        return late

    def _not_compacted(self, gaps: Sequence[Gap], state: TopicState) -> list[Gap]:
        """The gaps that compaction cannot have left: it has not reached them, or somebody acknowledged them."""
        if not self._planned.durable:
            return []
        self._check(passed_over(self._planned, state, gaps), state)
        return _overlaps(gaps, [*state.acknowledged, (state.compacted, self._planned.end)])

    def is_held(self, stored: Stored, reached: Position) -> bool:
        """Whether what comes after the newest message that is delivered waits for the end of a transaction."""
        if not self._planned.whole or self._options.read_compacted:
            return False
        if self._clock() - self._asked_s < _HELD_PERIOD_S:
            return True
        held = _is_held(stored, self._planned, reached)
        self._asked_s = self._clock() if held else self._asked_s
        return held

    def _state(self) -> TopicState:
        state = self._look(self._options, self._planned)
        if reason := self._track.cut_short(state, state.compacted if self._options.read_compacted else BEGINNING):
            self._fail(f"what comes after {self._track.gaps()[0].after}", reason)
        return state

    def _check(self, gaps: Sequence[Gap], state: TopicState) -> None:
        for gap in gaps:
            if found := _first_stored(self._options, self._planned, gap, self._opening):
                taken = f"somebody acknowledged it or moved the cursor, to {state.cursor}, while the query was reading"
                self._fail(str(found), taken)

    def _fail(self, missing: str, detail: str) -> NoReturn:
        raise ReadIncomplete(self._planned.cluster.name, self._planned.topic, missing, detail)


class Track:
    """The entries that were delivered of one range, and the first places where some were left out."""

    def __init__(self, planned: PlannedRange) -> None:
        self._planned = planned
        self._reached = (planned.start.ledger, planned.start.entry)
        within = planned.start.batch != WHOLE_ENTRY
        self._index, self._size = (planned.start.batch + 1, -1) if within else (0, 0)
        self.inner: list[Gap] = []
        self._partly: Position | None = None

    def note(self, runs: Runs, first: int = 0) -> None:
        """The runs from that one on, in order; ReadIncomplete when they go backwards."""
        if first == len(runs.ledgers):
            return
        ledger = np.concatenate(([self._reached[0]], np.array(runs.ledgers[first:], np.int64)))
        entry = np.concatenate(([self._reached[1]], np.array(runs.entries[first:], np.int64)))
        same, step = ledger[1:] == ledger[:-1], entry[1:] - entry[:-1]
        if ((ledger[1:] < ledger[:-1]) | (same & (step < 0))).any():
            name, topic = self._planned.cluster.name, self._planned.topic
            raise ReadIncomplete(name, topic, f"what comes after {self._reached}", "it came out of order")
        for index in np.flatnonzero(~(same & (step <= 1))):
            after, before = (Position(int(ledger[place]), int(entry[place])) for place in (index, index + 1))
            if self.next_entry(after) < before and len(self.inner) < _MOST_GAPS:
                self.inner.append(Gap(after, before))
        self._note_batches(runs, first, ledger, entry, same & (step == 0))
        self._reached = (int(ledger[-1]), int(entry[-1]))

    def _note_batches(self, runs: Runs, first: int, ledger: np.ndarray, entry: np.ndarray, goes_on: np.ndarray) -> None:
        starts = np.maximum(np.array(runs.first_batch_indexes[first:], np.int64), 0)
        ends = np.concatenate(([self._index], starts + np.array(runs.lengths[first:], np.int64)))
        sizes = np.concatenate(([self._size], np.array(runs.batch_sizes[first:], np.int64)))
        broken = np.where(goes_on, starts != ends[:-1], (starts != 0) | (ends[:-1] != sizes[:-1]))
        if self._partly is None and broken.any():
            place = int(np.flatnonzero(broken)[0])
            place += int(goes_on[place] or starts[place] != 0)
            self._partly = Position(int(ledger[place]), int(entry[place]))
        self._index, self._size = int(ends[-1]), int(sizes[-1])

    def partly(self) -> Position | None:
        """The first entry of which messages of the range were left out."""
        end = self._planned.end
        upto = end.batch + 1 if self._reached == end[:2] and end.batch != WHOLE_ENTRY else self._size
        return self._partly or (Position(*self._reached) if self._index != upto else None)

    def next_entry(self, place: Position) -> Position:
        """The entry that was stored after a place when the range was planned."""
        return next_entry(self._planned.ledgers, place)

    def gaps(self) -> list[Gap]:
        """The first gaps of the range, in order; none when every entry was delivered."""
        end, reached = self._planned.end, Position(*self._reached)
        if self.next_entry(reached)[:2] > end[:2]:
            return self.inner
        return [*self.inner, Gap(reached, Position(end.ledger, end.entry + 1))]

    def cut_short(self, state: TopicState, compacted: Position) -> str | None:
        """Why entries that were left out are not stored any more; None when they are, or what was compacted of them."""
        planned = self._planned
        if planned.durable and state.cursor is None:
            return "the subscription was removed"
        if planned.durable and compacted < planned.start and (loss := state.loss_after(planned.start)) is not None:
            return loss
        for gap in self.gaps():
            missing = self.next_entry(max(gap.after, compacted))
            if missing < gap.before and missing.ledger < state.first_ledger:
                return f"ledgers before {state.first_ledger} were removed while the query was reading"
        return None


def passed_over(planned: PlannedRange, state: TopicState, gaps: Sequence[Gap]) -> list[Gap]:
    """The gaps that the durable cursor has passed, so that messages in them may be stored and not delivered.

    Entries that no consumer is given (a replication or transaction marker, an aborted transaction, what compaction
    removed) leave gaps too, and the broker moves the cursor over those that follow it at once: one gap. With a cursor
    that stands at or before the range nothing was passed over.
    """
    if not planned.durable or state.cursor is None or state.serves(planned.start):
        return []
    passed = state.cursor._replace(entry=state.cursor.entry + 1)
    return [Gap(gap.after, min(gap.before, passed)) for gap in gaps if gap.after < state.cursor]


def _overlaps(gaps: Sequence[Gap], ranges: Sequence[tuple[Position, Position]]) -> list[Gap]:
    """The parts of gaps that lie in a range, each given as (before its first entry, its last entry)."""
    parts = (
        Gap(max(gap.after, before), min(gap.before, last._replace(entry=last.entry + 1)))
        for gap in gaps
        for before, last in ranges
    )
    return [part for part in parts if part.after[:2] < (part.before.ledger, part.before.entry - 1)]


def _first_stored(options: PulsarOptions, planned: PlannedRange, gap: Gap, opening: Open) -> Position | None:
    """The first message that is stored in a gap, by a reader, which knows no cursor."""
    with opening(options, replace(planned, durable=False, start=gap.after)) as feed:
        until = time.monotonic() + options.read_timeout_seconds
        while time.monotonic() < until:
            # A reader can begin a little before the place that it is told.
            found = [position_of(message.message_id()) for message in feed.receive()]
            if later := [place for place in found if place[:2] > gap.after[:2]]:
                return later[0] if later[0][:2] < gap.before[:2] else None
            if not found and (feed.last() <= gap.after or feed.exhausted(min(gap.before, planned.end))):
                return None
    raise ReadStalled(
        planned.cluster.name, planned.topic, str(gap.after), str(gap.before), options.read_timeout_seconds
    )


class LeftOut:
    """What a cluster says of entries that were not delivered. `endings`: those that may end a message in chunks."""

    def __init__(self, planned: PlannedRange, stored: Stored) -> None:
        self._planned = planned
        self._stored = stored
        self.met_chunks = False
        self.endings: dict[Position, Chunk | None] = {}

    def with_messages(self, gaps: Sequence[Gap]) -> list[Gap]:
        """The gaps where the cluster has something that a consumer of their entries alone could be given."""
        found, too_long = set[Gap](), set[Gap]()
        asked_of: dict[Position, Gap] = {}

        def places() -> Iterator[Position]:
            for gap in gaps:
                newest = Position(gap.before.ledger, gap.before.entry - 1)
                for count, place in enumerate(backwards(self._planned.ledgers, newest, gap.after)):
                    if count == _MOST_LOOKED_AT:
                        too_long.add(gap)
                    if count == _MOST_LOOKED_AT or (gap in found and self._planned.durable):
                        break
                    asked_of[place] = gap
                    yield place

        for place, answer in ask(self._stored, places()):
            gap = asked_of.pop(place)
            if not (gap in found and self._planned.durable) and self._is_message(place, answer):
                found.add(gap)
        return [gap for gap in gaps if gap in found | too_long]

    def _is_message(self, place: Position, answer: Answer) -> bool:
        """Notes what may end a message in chunks; what was not answered for can, too.

        A broker leaves the question for a compressed chunk unanswered, and that costs as long as is waited.
        """
        entry = StoredEntry(readable=False) if isinstance(answer, ClusterUnreachable) else answer
        if entry is None or entry.marker or entry.aborted:
            return False
        self.met_chunks |= entry.chunk is not None
        if not entry.readable or (entry.chunk and entry.chunk.is_last):
            self.endings[place] = entry.chunk
        return entry.readable and not entry.chunk


def _is_held(stored: Stored, planned: PlannedRange, reached: Position) -> bool:
    """Whether what comes after the newest message that is delivered waits for the end of a transaction."""
    places = islice(backwards(planned.ledgers, planned.end, reached), _MOST_LOOKED_AT)
    for _, entry in ask(stored, places):
        if isinstance(entry, ClusterUnreachable):
            raise entry
        # A marker is always behind the newest message; of all else the broker says whether it may be delivered yet.
        if entry is not None and entry.readable and not entry.marker and not entry.aborted:
            return entry.held
    return False
