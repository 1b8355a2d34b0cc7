"""What a reader, which knows no cursor, is given in places where a range was given nothing."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from cloud_jobs.pulsar_source.errors import ReadStalled
from cloud_jobs.pulsar_source.feeds import Feed
from cloud_jobs.pulsar_source.message_ids import position_of
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.planned import OpenFeed, PlannedRange
from cloud_jobs.pulsar_source.position import LedgerPosition

_NEAR_ENTRIES = 1000
"""Between gaps that are nearer to each other a reader reads on; otherwise it is opened again."""


class Gap(NamedTuple):
    """Entries that were not delivered: after `after`, before the entry `before`."""

    after: LedgerPosition
    before: LedgerPosition


def first_delivered(
    options: PulsarOptions, planned: PlannedRange, gaps: Sequence[Gap], opening: OpenFeed, clock: Callable[[], float]
) -> LedgerPosition | None:
    """The first message that a reader is given in one of the gaps, which are in order; None when there is none.

    Raises ReadStalled when nothing comes for `readTimeoutSeconds` and the broker does not say that nothing will.
    """
    left = deque(gaps)
    while left:
        with opening(options, replace(planned, durable=False, start=left[0].after)) as feed:
            if found := next(_delivered(feed, left, options, planned, clock), None):
                return found
    return None


def _delivered(
    feed: Feed, left: deque[Gap], options: PulsarOptions, planned: PlannedRange, clock: Callable[[], float]
) -> Iterator[LedgerPosition]:
    """What comes in the gaps, each of which is dropped when it is passed; ends where the next one is far away."""
    heard = clock()
    while left:
        messages = feed.receive()
        for position in (position_of(message.message_id()) for message in messages):
            passed = _drop_passed(left, position)
            # A reader can begin a little before the place that it is told.
            if left and left[0].after[:2] < position[:2]:
                yield position
            if passed and left and not _is_near(position, left[0].after):
                return
        if messages:
            heard = clock()
        elif feed.last() <= left[0].after:
            left.clear()
        elif feed.exhausted(min(left[0].before, planned.end)):
            left.popleft()
        elif clock() - heard > options.read_timeout_seconds:
            gap, waited_s = left[0], options.read_timeout_seconds
            raise ReadStalled(planned.cluster.name, planned.topic, str(gap.after), str(gap.before), waited_s)


def _drop_passed(left: deque[Gap], position: LedgerPosition) -> bool:
    count = len(left)
    while left and left[0].before[:2] <= position[:2]:
        left.popleft()
    return len(left) < count


def _is_near(position: LedgerPosition, other: LedgerPosition) -> bool:
    return position.ledger == other.ledger and other.entry - position.entry < _NEAR_ENTRIES
