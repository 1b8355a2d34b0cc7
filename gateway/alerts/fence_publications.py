"""The fences and gates that were published, as a region reads them: judged as the centre judges them."""

from __future__ import annotations

from collections.abc import Callable

from gateway.reference_publications import KEPT_OF_A_VERSION, ReferencePublications
from geo.reference.fences import usable_fence
from geo.reference.trust import ReferenceTrust
from geo.spatial import Fence, FenceError, Gate

__all__ = ["KEPT_OF_A_VERSION", "FencePublications"]


class FencePublications(ReferencePublications[Fence | Gate]):
    """Fences and gates. `trust`: whose are taken now."""

    def __init__(self, trust: Callable[[], ReferenceTrust]) -> None:
        super().__init__("fence", usable_fence, (FenceError,), trust)
