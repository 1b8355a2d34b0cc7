"""Which records of a micro-batch are let in: those whose ids the centre does not have yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from cloud_jobs.lake.coverage import Coverage, DeviceStream, Statement
from waybill.record import IntervalSet


class StreamPart(NamedTuple):
    """What the messages in one part of a micro-batch say together of one device stream.

    `records`: how many they hold, each as often as it came; `said.received` has each once. `statements`: those among
    them that may be the latest whose head is covered; the latest of all is in `said`.
    """

    part: int
    stream: DeviceStream
    said: Coverage
    records: int
    statements: tuple[Statement, ...] = ()


class Known(Protocol):
    """What is known of each device stream."""

    def get(self, stream: DeviceStream, /) -> Coverage | None:
        """The coverage of a stream, None if nothing was heard of it."""


@dataclass(slots=True)
class DeduplicationResult:
    """The decision on a micro-batch.

    `kept`: for each part that holds a duplicate, of each stream that has some there, the seqs that stay, each once.
    `coverage`: the new state of the streams that were touched; `delta`: what became known of those that changed.
    """

    accepted_count: int = 0
    duplicate_count: int = 0
    kept: dict[int, dict[DeviceStream, IntervalSet]] = field(default_factory=dict)
    coverage: dict[DeviceStream, Coverage] = field(default_factory=dict)
    delta: dict[DeviceStream, Coverage] = field(default_factory=dict)


def deduplicate(known: Known | Mapping[DeviceStream, Coverage], parts: Iterable[StreamPart]) -> DeduplicationResult:
    """Decides on a micro-batch, in the order in which its parts are given.

    The records let in are always the same set: the union of all ids less those known. Which copy of a record that
    comes twice is let in depends on the order.

    Up to when a stream is complete is decided behind the last part, by what is covered then.
    """
    decision = DeduplicationResult()
    statements: dict[DeviceStream, list[Statement]] = {}
    for part, stream, said, records, stated in parts:
        # what an earlier part of this micro-batch brought counts already
        before = decision.coverage.get(stream) or known.get(stream) or Coverage()
        fresh = said.received - before.received
        accepted = fresh.count
        assert accepted <= records, "every id that a part names is a record in it"
        if accepted < records:
            decision.kept.setdefault(part, {})[stream] = fresh
        decision.accepted_count += accepted
        decision.duplicate_count += records - accepted
        added = Coverage(fresh, said.tombstones, said.head, said.stated_us, said.stated_head)
        after = before | added
        assert after.received.count == before.received.count + accepted, "nothing is counted twice"
        decision.coverage[stream] = after
        if after != before:
            decision.delta[stream] = decision.delta.get(stream, Coverage()) | added
        if stated:
            statements.setdefault(stream, []).extend(stated)
    for stream, coverage in decision.coverage.items():
        completed = coverage.completed(statements.get(stream, ()))
        if completed is not coverage:
            until_us = completed.complete_until_us
            decision.coverage[stream] = completed
            decision.delta[stream] = replace(decision.delta.get(stream, Coverage()), complete_until_us=until_us)
    return decision
