"""What is passed over in a region, counted by the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PassedOver:
    """What was passed over since the beginning, and why.

    Fixes: `repeated`: taken before, or another one of the same time was. `too_late`: what came after it is decided.
    `clock_ahead`: too far in the future; `clock_behind`: so old that the centre computes nothing from it, either.
    `invalid`: no position. `excluded`: at 0°/0°, or inaccurate. `no_room`: of more devices at once than are held.
    Events: `too_old`: they happened long ago. Devices: `cut`: too many of their fixes were undecided; `forgotten`: there
    were others, or they were not heard for long.
    """

    repeated: int = 0
    too_late: int = 0
    clock_ahead: int = 0
    clock_behind: int = 0
    invalid: int = 0
    excluded: int = 0
    no_room: int = 0
    too_old: int = 0
    cut: int = 0
    forgotten: int = 0
