"""From fixes as they arrive to events as a region sees them. Pure: time is passed in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.alerts.evaluation_settings import EvaluationSettings
from gateway.alerts.fix_columns import FixColumns
from gateway.alerts.rules import AlertRules
from geo.spatial import DayEvent


class FoundEvent(NamedTuple):
    """An event that was not reported before, or not with this content: what an alert says, and of whom.

    `received_ms`: of the fix by which it was seen.
    """

    tenant: str
    device: str
    id: str
    event: DayEvent
    received_ms: int


@dataclass(slots=True)
class PassedOver:
    """What was passed over since the beginning, and why: fixes, but `too_old` are events and `cut` and `forgotten` devices.

    `repeated`: taken before, or another one of the same time was. `too_late`: other fixes of its device, after it, are
    decided. `clock_ahead`: too far in the future. `invalid`: no position. `excluded`: at 0°/0°, inaccurate, or
    impossible to reach. `too_old`: events that happened long ago. `cut`: too many fixes were undecided; `forgotten`:
    too many devices, or not heard for long.
    """

    repeated: int = 0
    too_late: int = 0
    clock_ahead: int = 0
    invalid: int = 0
    excluded: int = 0
    too_old: int = 0
    cut: int = 0
    forgotten: int = 0


class LiveEvents:
    """Finds events in fixes as they arrive. Holds of each device its last fixes and what is open there.

    One thread at a time. `passed_over` counts from the beginning; `device_count` is how many devices are known now.
    """

    passed_over: PassedOver

    def __init__(self, rules: AlertRules, settings: EvaluationSettings | None = None) -> None:
        raise NotImplementedError

    @property
    def device_count(self) -> int:
        """Of how many devices something is held."""
        raise NotImplementedError

    def take(self, fixes: FixColumns, now_ms: int, *, report: bool = True) -> list[FoundEvent]:
        """What is new, by device and time. `now_ms`: by this region's clock.

        `report=False` takes the fixes and says nothing: so a process that was started anew reads again what its
        predecessor had read.
        """
        raise NotImplementedError

    def replace_rules(self, rules: AlertRules) -> None:
        """From now on these count; what is open at fences that are still there stays open."""
        raise NotImplementedError
