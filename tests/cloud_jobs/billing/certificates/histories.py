"""What devices did, and what the centre came to know of it: buffers one after the other, losses, any order of arrival.

A history knows what was recorded; a certificate must never say more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from hypothesis import strategies as st

from cloud_jobs.lake.coverage import Coverage
from waybill.record import IntervalSet, Tombstone, new_epoch

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
BEGIN_US = 20_000 * DAY_US
"""The first day of each history; it has 10."""
DAYS = 10


@dataclass(frozen=True)
class Buffer:
    """A buffer in use: the device times of its records, in the order of their seqs, and the statements made."""

    epoch: int
    times: tuple[int, ...]
    statements: tuple[tuple[int, int], ...]

    def taken_in(self, dice: Random, *, lost: bool) -> Coverage:
        """What the ingest has of it: batches in any order, of which some never come."""
        batches = [self._batch(dice, at) for at in range(len(self.statements))]
        if lost:
            batches = [one for one in batches if dice.random() < 0.8]
        dice.shuffle(batches)
        found = Coverage()
        for one in batches:
            found = ingested(found, one)
        return found

    def _batch(self, dice: Random, at: int) -> Coverage:
        before, (stated_us, head) = self.statements[at - 1][1] if at else 0, self.statements[at]
        seqs = IntervalSet([(before + 1, head)] if head > before else [])
        if head - before > 2 and dice.random() < 0.2:
            # evicted before it was sent
            kept = IntervalSet([(before + 1, head - 1)])
            return Coverage(kept, (Tombstone(head, head, "age"),), head, stated_us, head)
        return Coverage(seqs, (), head, stated_us, head)


def ingested(known: Coverage, more: Coverage) -> Coverage:
    """What the ingest makes of coverage with what became known of a stream."""
    united = known | more
    missing = united.received.gaps(1, united.stated_head) - united.declared_lost
    return united if missing else replace(united, complete_until_us=max(united.complete_until_us, united.stated_us))


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    """One to four buffers of one device. When one is made the clock may be ahead, or not set."""
    dice = draw(st.randoms(use_true_random=False))
    changes = sorted(draw(st.lists(st.integers(1, 24 * DAYS - 1), max_size=3, unique=True)))
    made: list[Buffer] = []
    for first, end in zip([0, *changes], [*changes, 24 * DAYS], strict=True):
        clock = draw(st.sampled_from(["right", "right", "unset", "ahead", "drawn after"]))
        wall_ms = (BEGIN_US + first * HOUR_US) // 1000
        epoch = new_epoch(wall_ms, dice.getrandbits(15))
        if clock == "unset":
            epoch = new_epoch(dice.randrange(600_000), dice.getrandbits(15))
        elif clock == "ahead":
            epoch = new_epoch(wall_ms + dice.randrange(5 * 86_400_000), dice.getrandbits(15))
        elif clock == "drawn after" and made:
            epoch = made[-1].epoch + 1 + dice.getrandbits(35)
        if any(epoch == one.epoch for one in made):
            continue
        hours = range(first, draw(st.sampled_from([end, (first + end) // 2])))
        times = tuple(BEGIN_US + hour * HOUR_US + dice.randrange(HOUR_US) for hour in hours)
        stated = sorted(dice.sample([*hours], min(len(hours), 12)))
        statements = tuple((BEGIN_US + hour * HOUR_US, hour - first) for hour in stated)
        made.append(Buffer(epoch, times, statements))
    return made
