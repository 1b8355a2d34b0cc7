"""What is passed over in a region, counted by the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PassedOver:
    """What was passed over since the beginning, and why.

    Fixes: `repeated`: taken before, or another one of the same time was. `too_late`: older than what is kept.
    `clock_ahead`: too far in the future. `invalid`: no position. `excluded`: at 0°/0°, or inaccurate. Events:
    `too_old`: they happened long ago. Devices: `cut`: it was not settled where they are for too many fixes;
    `forgotten`: there were others.
    """

    repeated: int = 0
    too_late: int = 0
    clock_ahead: int = 0
    invalid: int = 0
    excluded: int = 0
    too_old: int = 0
    cut: int = 0
    forgotten: int = 0
