"""What one micro-batch takes: where it begins, where it ends, and how its limits are shared by the partitions. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cloud_jobs.pulsar_source.cluster.survey import States
from cloud_jobs.pulsar_source.options import PulsarOptions
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition


def start_positions(
    positions: Mapping[str, LedgerPosition], states: States, options: PulsarOptions
) -> dict[str, LedgerPosition]:
    """Where reading begins: the query's positions, and the cursor for partitions that it meets for the first time.

    A cursor before the first entry of a ledger is delivered the compacted form from the beginning, which a removed
    ledger can have left behind.
    """
    whole = options.read_compacted and options.starting_position == "earliest"
    return {
        topic: positions.get(topic)
        or (BEGINNING if state.cursor is None or (whole and state.cursor.entry < 0) else state.cursor)
        for topic, state in states.items()
    }


def newest_positions(begin: Mapping[str, LedgerPosition], states: States) -> dict[str, LedgerPosition]:
    """The ends that take in all there is: a partition without new entries stays exactly where it is.

    From the beginning there can be more than the ledgers hold: the compacted form of those that were removed.
    """
    return {
        topic: states[topic].last if start == BEGINNING or states[topic].has_entries_after(start) else start
        for topic, start in begin.items()
    }


def limit_to_target(
    begin: Mapping[str, LedgerPosition], ends: Mapping[str, LedgerPosition], target: Mapping[str, LedgerPosition]
) -> dict[str, LedgerPosition]:
    """The ends, none beyond the target; a partition that the target does not know stays where it is."""
    return {topic: max(begin[topic], min(end, target.get(topic, begin[topic]))) for topic, end in ends.items()}


class PendingMessage(NamedTuple):
    """One message ahead: the position that takes it in, and the bytes of its value."""

    position: LedgerPosition
    size: int


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Most messages and most bytes of one micro-batch; None is no limit."""

    messages: int | None
    bytes: int | None

    def __bool__(self) -> bool:
        return self.messages is not None or self.bytes is not None


@dataclass(slots=True)
class _Budget:
    messages: float
    bytes: float

    def allows(self, message: PendingMessage) -> bool:
        return self.messages >= 1 and self.bytes >= message.size

    def spend(self, message: PendingMessage) -> None:
        self.messages -= 1
        self.bytes -= message.size


class _PendingMessages:
    """One partition's messages ahead, with a look at the next."""

    def __init__(self, messages: Iterable[PendingMessage]) -> None:
        self._messages: Iterator[PendingMessage] = iter(messages)
        self.end: LedgerPosition | None = None
        self.next: PendingMessage | None = next(self._messages, None)

    def take_next(self, *budgets: _Budget) -> None:
        assert self.next is not None  # callers look first
        for budget in budgets:
            budget.spend(self.next)
        self.end = self.next.position
        self.next = next(self._messages, None)

    def take_while_allowed(self, *budgets: _Budget) -> None:
        while self.next is not None and all(budget.allows(self.next) for budget in budgets):
            self.take_next(*budgets)


def limit_batch(
    ahead: Mapping[str, Iterable[PendingMessage]], weights: Mapping[str, float], limits: BatchLimits, turn: int
) -> dict[str, LedgerPosition]:
    """Partition -> the last position that the batch takes of it; partitions of which it takes nothing are left out.

    Each partition gets its share by weight (what waits there), then what is left over goes round. The partition whose
    turn it is gets one message in any case: one that is bigger than the limit goes through alone, and none starves.
    """
    waiting = {name: _PendingMessages(messages) for name, messages in ahead.items()}
    total = _Budget(_or_infinite(limits.messages), _or_infinite(limits.bytes))
    order = _rotated(sorted(name for name, messages in waiting.items() if messages.next is not None), turn)
    shares = _shares(order, weights, limits)
    if order:
        waiting[order[0]].take_next(total, shares[order[0]])
    for name in order:
        waiting[name].take_while_allowed(total, shares[name])
    for name in order:
        waiting[name].take_while_allowed(total)
    return {name: messages.end for name, messages in waiting.items() if messages.end is not None}


def _shares(names: list[str], weights: Mapping[str, float], limits: BatchLimits) -> dict[str, _Budget]:
    whole = sum(weights[name] for name in names) or 1.0
    parts = {name: weights[name] / whole for name in names}
    return {
        name: _Budget(_or_infinite(limits.messages) * part, _or_infinite(limits.bytes) * part)
        for name, part in parts.items()
    }


def _or_infinite(limit: int | None) -> float:
    return float("inf") if limit is None else float(limit)


def _rotated(names: list[str], turn: int) -> list[str]:
    first = turn % len(names) if names else 0
    return names[first:] + names[:first]
