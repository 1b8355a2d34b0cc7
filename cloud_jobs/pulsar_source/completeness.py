"""Whether all that was planned was read: what was left out of a range, and what its cluster says of that.

Entries are left out for good where no consumer is given them (a replication or transaction marker, an aborted
transaction, a chunk before its last one, what compaction removed). Where somebody moved the subscription's cursor or
acknowledged entries one by one, they are stored and were not delivered; then the batch must not be written. Nor where
nobody says what became of one: see `accounting`.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import structlog

from cloud_jobs.pulsar_source.accounting import BOUNDS, Account, Bounds, Fate, Inquiry, is_held
from cloud_jobs.pulsar_source.chunks import Reread, late_messages
from cloud_jobs.pulsar_source.columns import Runs
from cloud_jobs.pulsar_source.entries import Patience, Stored, backwards
from cloud_jobs.pulsar_source.errors import EntriesUnknown, ReadIncomplete
from cloud_jobs.pulsar_source.isolation import next_entry
from cloud_jobs.pulsar_source.ledgers import TopicState
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.planned import Look, Open, PlannedRange
from cloud_jobs.pulsar_source.position import BEGINNING, WHOLE_ENTRY, Position
from cloud_jobs.pulsar_source.verifying import Gap, first_given

_log = structlog.get_logger(__name__)
_HELD_PERIOD_S = 0.5


class Completeness:
    """Follows one range; its checks raise where messages are stored and were not delivered, or nobody knows.

    What lies beyond `bounds`, or is not answered, is unknown, never complete.
    """

    def __init__(
        self,
        options: PulsarOptions,
        planned: PlannedRange,
        opening: Open,
        look: Look,
        clock: Callable[[], float],
        *,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._options = options
        self._planned = planned
        self._opening = opening
        self._look = look
        self._clock = clock
        self._bounds = bounds
        self._track = Track(planned)
        self._asked_s = float("-inf")
        self.met_chunks = False
        """Whether messages in chunks left entries out."""

    def of(self, planned: PlannedRange) -> "Completeness":
        """The same of another range."""
        return Completeness(self._options, planned, self._opening, self._look, self._clock, bounds=self._bounds)

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
            if planned.whole:
                patience = self._patience()
                inquiry = Inquiry(stored, patience, self._bounds, heard=patience.heard)
                late = self._account_for(gaps, state, inquiry, reread)
        if planned.durable and (entry := self._track.partly()):
            who = "somebody acknowledged it" + (", or it was compacted," if self._options.read_compacted else "")
            self._fail(f"a part of entry {entry}", f"{who} while the query was reading")
        return late

    def _account_for(
        self, gaps: Sequence[Gap], state: TopicState, inquiry: Inquiry, reread: Reread
    ) -> Iterator[list[Any]]:
        """The one place that judges a range by the fates of its entries."""
        planned = self._planned
        compacted, rest = split_at(gaps, self._compacted(state))
        places = list(islice(places_in(rest, planned.ledgers), self._bounds.entries + 1))
        account = inquiry.account(places[: self._bounds.entries])
        self.met_chunks = bool(account.chunks)
        if planned.durable:
            # Of what lies before a compaction's end, and of a stored message, a reader tells whether it should be here.
            self._check([*compacted, *map(_gap_of, account.of(Fate.MESSAGE))], state)
        for fate in (Fate.REMOVED, Fate.HELD):
            if found := account.of(fate):
                self._fail(f"entry {found[0]} and {len(found) - 1} more", f"it is {fate.value}")
        self._refuse_unknown(account, places[self._bounds.entries :])
        return late_messages(account, planned, state, inquiry, reread) if account.endings() else iter(())

    def _refuse_unknown(self, account: Account, beyond: Sequence[Position]) -> None:
        unknown = account.of(Fate.UNKNOWN)
        if not unknown and not beyond:
            return
        why = f"the cluster did not say so, or said nothing at all for {self._options.read_timeout_seconds:g} s"
        if beyond:
            why = f"more than {self._bounds.entries} entries of one batch were not delivered"
        error = EntriesUnknown(
            self._planned.cluster.name, self._planned.topic, (unknown or beyond)[0], len(unknown) + len(beyond), why
        )
        if self._options.fail_on_data_loss:
            raise error
        _log.warning("data_loss_possible", detail=str(error))

    def is_held(self, stored: Stored, reached: Position) -> bool:
        """Whether what comes after the newest message that is delivered waits for the end of a transaction."""
        if not self._planned.whole:
            return False
        if self._clock() - self._asked_s < _HELD_PERIOD_S:
            return True
        planned = self._planned
        held = is_held(stored, planned.ledgers, planned.end, reached, self._patience())
        self._asked_s = self._clock() if held else self._asked_s
        return held

    def _patience(self) -> Patience:
        return Patience(self._options.read_timeout_seconds, self._clock)

    def _compacted(self, state: TopicState) -> Position:
        return state.compacted if self._options.read_compacted else BEGINNING

    def _state(self) -> TopicState:
        state = self._look(self._options, self._planned)
        if reason := self._track.cut_short(state, self._compacted(state)):
            self._fail(f"what comes after {self._track.gaps()[0].after}", reason)
        return state

    def _check(self, gaps: Sequence[Gap], state: TopicState) -> None:
        if found := first_given(self._options, self._planned, gaps, self._opening, self._clock):
            taken = f"somebody acknowledged it or moved the cursor, to {state.cursor}, while the query was reading"
            self._fail(str(found), taken)

    def _fail(self, missing: str, detail: str) -> NoReturn:
        raise ReadIncomplete(self._planned.cluster.name, self._planned.topic, missing, detail)


class Track:
    """The entries that were delivered of one range, and the places where some were left out."""

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
            if self.next_entry(after) < before:
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
        """The gaps of the range, in order; none when every entry was delivered."""
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
            # No ledger at all: the range was planned from the beginning of a topic that was empty.
            if missing < gap.before and 0 <= missing.ledger < state.first_ledger:
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


def split_at(gaps: Sequence[Gap], place: Position) -> tuple[list[Gap], list[Gap]]:
    """The parts of gaps up to and with an entry, and the parts behind it."""
    behind = place._replace(entry=place.entry + 1, batch=WHOLE_ENTRY)
    before = [Gap(gap.after, min(gap.before, behind)) for gap in gaps if gap.after < place]
    return before, [Gap(max(gap.after, place), gap.before) for gap in gaps if gap.before > behind]


def places_in(gaps: Sequence[Gap], ledgers: Sequence[tuple[int, int]]) -> Iterator[Position]:
    """The entries in gaps, newest first, by (number, entries) of the ledgers in order."""
    for gap in reversed(gaps):
        yield from backwards(ledgers, Position(gap.before.ledger, gap.before.entry - 1), gap.after)


def _gap_of(place: Position) -> Gap:
    return Gap(Position(place.ledger, place.entry - 1), Position(place.ledger, place.entry + 1))
