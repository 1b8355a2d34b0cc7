"""How much of what lies ahead one micro-batch takes: limits of messages and bytes, shared by the partitions. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from cloud_jobs.pulsar_source.position import Position


class Piece(NamedTuple):
    """One message ahead: the position that takes it in, and the bytes of its value."""

    at: Position
    size: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Most messages and most bytes of one micro-batch; None is no limit."""

    messages: int | None
    bytes: int | None

    def __bool__(self) -> bool:
        return self.messages is not None or self.bytes is not None


@dataclass(slots=True)
class _Budget:
    messages: float
    bytes: float

    def fits(self, piece: Piece) -> bool:
        return self.messages >= 1 and self.bytes >= piece.size

    def spend(self, piece: Piece) -> None:
        self.messages -= 1
        self.bytes -= piece.size


class _Ahead:
    """One partition's messages ahead, with a look at the next."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces: Iterator[Piece] = iter(pieces)
        self.end: Position | None = None
        self.next: Piece | None = next(self._pieces, None)

    def take(self, *budgets: _Budget) -> None:
        assert self.next is not None  # callers look first
        for budget in budgets:
            budget.spend(self.next)
        self.end = self.next.at
        self.next = next(self._pieces, None)

    def take_while_fits(self, *budgets: _Budget) -> None:
        while self.next is not None and all(budget.fits(self.next) for budget in budgets):
            self.take(*budgets)


def admit(
    ahead: Mapping[str, Iterable[Piece]], weights: Mapping[str, float], limits: Limits, turn: int
) -> dict[str, Position]:
    """Partition -> the last position admitted of it; partitions of which nothing is admitted are left out.

    Each partition gets its share by weight (what waits there), then what is left over goes round. The partition whose
    turn it is gets one message in any case: one that is bigger than the limit goes through alone, and none starves.
    """
    waiting = {name: _Ahead(pieces) for name, pieces in ahead.items()}
    total = _Budget(_or_endless(limits.messages), _or_endless(limits.bytes))
    order = _rotated(sorted(name for name, pieces in waiting.items() if pieces.next is not None), turn)
    shares = _shares(order, weights, limits)
    if order:
        waiting[order[0]].take(total, shares[order[0]])
    for name in order:
        waiting[name].take_while_fits(total, shares[name])
    for name in order:
        waiting[name].take_while_fits(total)
    return {name: pieces.end for name, pieces in waiting.items() if pieces.end is not None}


def _shares(names: list[str], weights: Mapping[str, float], limits: Limits) -> dict[str, _Budget]:
    whole = sum(weights[name] for name in names) or 1.0
    parts = {name: weights[name] / whole for name in names}
    return {
        name: _Budget(_or_endless(limits.messages) * part, _or_endless(limits.bytes) * part)
        for name, part in parts.items()
    }


def _or_endless(limit: int | None) -> float:
    return float("inf") if limit is None else float(limit)


def _rotated(names: list[str], turn: int) -> list[str]:
    first = turn % len(names) if names else 0
    return names[first:] + names[:first]
