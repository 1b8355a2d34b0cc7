"""What reading published fences found."""

from __future__ import annotations

from dataclasses import dataclass

from geo.spatial.fences import Fence
from geo.spatial.gates import Gate


@dataclass(frozen=True, slots=True)
class FenceReport:
    """The usable fences and gates, and a message with its line for each refused or repaired one."""

    fences: tuple[Fence, ...] = ()
    gates: tuple[Gate, ...] = ()
    refused: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
