"""The errors of the spatial engine."""

from __future__ import annotations


class SpatialError(Exception):
    """Anything that the spatial engine refuses."""


class FenceError(SpatialError):
    """A fence was refused: its id as published, its place in the file, and the reason."""

    def __init__(self, reason: str, *, fence_id: str = "", place: str = "") -> None:
        self.reason, self.fence_id, self.place = reason, fence_id, place
        where = f"{place}: " if place else ""
        name = f"fence {fence_id!r}: " if fence_id else ""
        super().__init__(f"{where}{name}{reason}")


class FixError(SpatialError):
    """Fixes were refused. `row`: the first refused one, from 0; None: all of them."""

    def __init__(self, reason: str, *, row: int | None = None) -> None:
        self.reason, self.row = reason, row
        super().__init__(reason if row is None else f"fix {row}: {reason}")


class TooManyEncounters(SpatialError):
    """More encounters than `most`: many devices stand within the distance of each other."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"more than {most:,} encounters: take a smaller distance or fewer devices; "
            "`cloud-jobs proximity` reports crowds in place of such pairs"
        )
