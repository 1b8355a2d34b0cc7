"""The fences in force, followed, and made into rules beside the ones in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from gateway.alerts.fence_publications import FencePublications
from gateway.reference_follower import ReferenceFollower
from gateway.source_settings import ReferenceSource
from geo.reference.in_force import RefusedVersion
from geo.spatial import Fence, Gate
from waybill.identity.followed_operators import FollowedOperators
from waybill.pulsar.pulsar_client import PulsarAccess

__all__ = ["FenceFacts", "FenceFollower"]

Rules = TypeVar("Rules")


class FenceFacts(NamedTuple):
    """What is known of the fences: those in force, publications that cannot be used, messages that are none.

    `problem`: why they are not known to their end; empty while they are.
    """

    fences: int
    gates: int
    refused: tuple[RefusedVersion, ...]
    messages_refused: dict[str, int]
    last_refused: str
    unreachable_since_s: float | None
    problem: str


class FenceFollower(ReferenceFollower[Fence | Gate, Rules], Generic[Rules]):
    """`rules` are those in use, None before there are any. `make` makes them of the fences and gates in force."""

    def __init__(
        self,
        service_url: str,
        access: PulsarAccess,
        settings: ReferenceSource,
        make: Callable[[tuple[Fence | Gate, ...]], Rules],
    ) -> None:
        """Raises SettingsError for a file of keys that cannot be used."""
        operators = None if settings.operators is None else FollowedOperators(settings.operators)
        super().__init__(
            service_url,
            access,
            operators,
            FencePublications,
            lambda in_force: make(tuple(one.made for one in in_force.held)),
        )

    @property
    def facts(self) -> FenceFacts:
        """What is known now."""
        known, held = self.reference_facts, () if self.in_force is None else self.in_force.held
        gates = sum(isinstance(one.made, Gate) for one in held)
        return FenceFacts(len(held) - gates, gates, *known[1:])
