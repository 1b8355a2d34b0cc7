"""What the regions said of publications of the registry: in force at their brokers, or refused, and why. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from waybill.identity.confirmations import RegionConfirmation

__all__ = ["RegionAnswers", "RegionVerdicts"]


class RegionVerdicts(NamedTuple):
    """Of some regions: which have all of a change in force, which refuse it and why, and which said nothing yet."""

    confirmed: tuple[str, ...]
    refused: Mapping[str, str]
    silent: tuple[str, ...]

    @property
    def text(self) -> str:
        """For people: what is not in force."""
        refused = (f"{region} refuses it: {reason}" for region, reason in self.refused.items())
        return "; ".join((*refused, *(f"{region} has not confirmed it" for region in self.silent)))


class RegionAnswers:
    """By region and publication id. One that was refused and is in force now is in force."""

    def __init__(self) -> None:
        self._confirmed: dict[str, set[str]] = {}
        self._refused: dict[str, dict[str, str]] = {}

    @property
    def regions(self) -> frozenset[str]:
        """Those that said anything."""
        return frozenset(self._confirmed)

    def take(self, found: RegionConfirmation) -> None:
        """A region's message."""
        self._confirmed.setdefault(found.region, set()).update(found.confirmed.values())
        self._refused.setdefault(found.region, {}).update(found.refused)

    def verdicts(self, ids: Collection[str], regions: Collection[str]) -> RegionVerdicts:
        """What these regions say of a change that consists of these publications."""
        open_ids = {region: {*ids} - self._confirmed.get(region, set()) for region in regions}
        reasons = {region: self._reasons(region, left) for region, left in open_ids.items() if left}
        return RegionVerdicts(
            tuple(region for region, left in open_ids.items() if not left),
            {region: reason for region, reason in reasons.items() if reason},
            tuple(region for region, reason in reasons.items() if not reason),
        )

    def _reasons(self, region: str, ids: Collection[str]) -> str:
        refused = self._refused.get(region, {})
        return ", ".join(sorted({refused[one] for one in ids if one in refused}))
