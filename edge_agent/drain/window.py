"""The batches that are on their way: sent, and not yet acknowledged."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from edge_agent.store.block import Block
from telemetry import IntervalSet


@dataclass(slots=True)
class Flight:
    """One batch on its way. `missing`: what of it is not acknowledged. `again`: it was refused before."""

    epoch: int
    missing: IntervalSet
    blocks: tuple[Block, ...]
    size: int
    backlog: bool
    sent_s: float
    again: bool = False


class Window:
    """Bounds what is unacknowledged, in batches and in bytes; the backlog never fills all of it."""

    def __init__(self, batches: int, size: int, timeout_s: float) -> None:
        self._most = batches
        self._most_size = size
        self._timeout_s = timeout_s
        self._flights: OrderedDict[int, Flight] = OrderedDict()
        self._number = 0
        self._size = 0
        self._backlog = 0
        self._backlog_size = 0
        self.ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._flights)

    def has_room(self, *, backlog: bool) -> bool:
        """Whether one more batch may be sent. The backlog leaves a quarter of the window to live data."""
        if backlog and (
            self._backlog >= self._most - self._most // 4 or self._backlog_size >= self._most_size * 3 // 4
        ):
            return False
        return len(self._flights) < self._most and (self._size < self._most_size or not self._flights)

    def add(self, flight: Flight) -> None:
        """A batch was sent."""
        self._number += 1
        self._flights[self._number] = flight
        self._count(flight, 1)
        self.ids.update(block.id for block in flight.blocks)

    def acknowledged(self, epoch: int, names: IntervalSet) -> list[Flight]:
        """Takes names off what is missing; the flights that are complete now, which leave the window."""
        done: list[Flight] = []
        for number, flight in list(self._flights.items()):
            if flight.epoch == epoch and flight.missing & names:
                flight.missing -= names
                if not flight.missing:
                    done.append(self._remove(number))
        return done

    def refused(self, epoch: int, names: IntervalSet) -> list[Flight]:
        """Takes out the flights that were refused."""
        hit = [number for number, one in self._flights.items() if one.epoch == epoch and one.missing & names]
        return [self._remove(number) for number in hit]

    def overdue(self, now_s: float) -> list[Flight]:
        """Takes out the flights whose acknowledgement stayed away."""
        late = [number for number, flight in self._flights.items() if flight.sent_s + self._timeout_s <= now_s]
        return [self._remove(number) for number in late]

    def clear(self) -> list[Flight]:
        """Takes out everything: the connection is gone."""
        return [self._remove(number) for number in list(self._flights)]

    def next_timeout_in(self, now_s: float) -> float | None:
        """Seconds until the next flight is overdue."""
        oldest_s = next((flight.sent_s for flight in self._flights.values()), None)
        return None if oldest_s is None else max(0.0, oldest_s + self._timeout_s - now_s)

    def _remove(self, number: int) -> Flight:
        flight = self._flights.pop(number)
        self._count(flight, -1)
        self.ids.difference_update(block.id for block in flight.blocks)
        return flight

    def _count(self, flight: Flight, sign: int) -> None:
        self._size += sign * flight.size
        if flight.backlog:
            self._backlog += sign
            self._backlog_size += sign * flight.size


def first_ids(blocks: Iterable[Block]) -> dict[int, int]:
    """The lowest id of each class among blocks."""
    lowest: dict[int, int] = {}
    for block in blocks:
        lowest[block.class_index] = min(block.id, lowest.get(block.class_index, block.id))
    return lowest
