"""What the engine asks of an index of outlines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from geo.spatial.fences import Outlines
from geo.spatial.layers import Layers
from geo.spatial.predicates import Spots
from geo.spatial.ragged import Floats, Ints, Pairs


class FenceIndex(Protocol):
    """Answers for many points or segments at once."""

    @property
    def outlines(self) -> Outlines:
        """The rings that are indexed."""
        ...

    def layers(self, weight: Ints) -> Layers:
        """How many fences, counted by their weights, may hold a place."""
        ...

    def locate(self, spots: Spots) -> tuple[Ints, Ints]:
        """Pairs (spot, fence) of each spot with each fence that contains it or has it on its border: exactly.

        In no particular order; longitudes in [-180, 180].
        """
        ...

    def edges_near(self, px: Floats, py: Floats, qx: Floats, qy: Floats) -> Iterator[Pairs]:
        """Pairs (segment, edge), a bounded number at once: at least every edge that the segment meets; pairs may
        repeat.
        """
        ...
