"""The errors of the spatial engine.

SpatialError
├── FenceError   one fence that cannot be used; carries its id, its line and the reason
└── FixError     fixes that cannot be used: columns of unequal length, coordinates out of range
"""

from __future__ import annotations


class SpatialError(Exception):
    """Anything that the spatial engine refuses."""


class FenceError(SpatialError):
    """A fence was refused: `fence_id` as published, `line` in its file (1 is the first), `reason`."""

    def __init__(self, reason: str, *, fence_id: str = "", line: int | None = None) -> None:
        self.reason, self.fence_id, self.line = reason, fence_id, line
        where = f"line {line}: " if line is not None else ""
        name = f"fence {fence_id!r}: " if fence_id else "a fence: "
        super().__init__(f"{where}{name}{reason}")


class FixError(SpatialError):
    """Fixes were refused."""
