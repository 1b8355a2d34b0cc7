"""What devices are still to be told: unions of ranges, so that many batches make one acknowledgement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.admission import Address
from telemetry import Ack, IntervalSet


@dataclass(slots=True)
class Owed:
    """What one device is owed since `since_s`."""

    since_s: float
    ranges: dict[int, IntervalSet] = field(default_factory=dict)
    refused: dict[tuple[str, int], IntervalSet] = field(default_factory=dict)
    pause_s: float = 0.0
    tokens: list[int] = field(default_factory=list)

    def acks(self) -> list[Ack]:
        """The fewest messages that say it: one for each epoch, and each reason in it; the first carries the pause."""
        messages = [(epoch, self.ranges[epoch], "") for epoch in sorted(self.ranges)]
        messages += [(epoch, names, reason) for (reason, epoch), names in self.refused.items()]
        return [
            Ack(epoch, ranges, 0.0 if position else self.pause_s, refused)
            for position, (epoch, ranges, refused) in enumerate(messages)
        ]


class Ledger:
    """Owed acknowledgements by device. A debt is due after `interval_s`, or as soon as nothing more is on its way."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._owed: dict[Address, Owed] = {}

    def __len__(self) -> int:
        return len(self._owed)

    def persisted(self, device: Address, epoch: int, ranges: IntervalSet, *, token: int, now_s: float) -> None:
        """These ranges are safe."""
        owed = self._of(device, now_s)
        owed.ranges[epoch] = owed.ranges.get(epoch, IntervalSet()) | ranges
        owed.tokens.append(token)

    def refused(
        self, device: Address, reason: str, epoch: int, names: IntervalSet, *, token: int, now_s: float
    ) -> None:
        """A batch was put aside for this reason. The names are empty when it could not be read."""
        owed = self._of(device, now_s)
        owed.refused[reason, epoch] = owed.refused.get((reason, epoch), IntervalSet()) | names
        owed.tokens.append(token)

    def pause(self, device: Address, pause_s: float) -> None:
        """Ask for a pause with whatever the device is owed; the longest of several counts."""
        owed = self._owed.get(device)
        if owed is not None:
            owed.pause_s = max(owed.pause_s, pause_s)

    def due(self, now_s: float, pending: Callable[[Address], int], limit: int) -> list[tuple[Address, Owed]]:
        """Take what is due, the longest owed first, at most `limit` devices."""
        ready: list[Address] = []
        for device, owed in self._owed.items():
            if len(ready) >= limit:
                break
            if now_s - owed.since_s >= self._interval_s or not pending(device):
                ready.append(device)
        return [(device, self._owed.pop(device)) for device in ready]

    @property
    def next_s(self) -> float | None:
        """When the next debt is due at the latest."""
        return next((owed.since_s + self._interval_s for owed in self._owed.values()), None)

    def _of(self, device: Address, now_s: float) -> Owed:
        return self._owed.setdefault(device, Owed(now_s))
