"""Fences that change: which version of each is in force at a moment."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal

from simulator.truth.errors import TruthError
from simulator.truth.shapes import Zone, Zones, zone_of


class TrueFences:
    """All versions of all fences that are known. A later publication of the same version replaces it."""

    def __init__(self, features: Iterable[str]) -> None:
        """GeoJSON features in the order of their publication, each a text. Raises TruthError."""
        self._versions: dict[tuple[str, datetime], Zone] = {}
        self._made: dict[datetime | None, Zones] = {}
        for text in features:
            try:
                # Decimals as they are written: the nearest double lies beside the corner.
                feature = json.loads(text, parse_float=Decimal)
                begin = datetime.fromisoformat(feature["properties"]["effective_from"])
                zone = zone_of(feature)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise TruthError(f"a fence that cannot be understood: {error!r}") from error
            self._versions[zone.id, begin.astimezone(UTC)] = zone

    def at(self, moment: datetime) -> Zones:
        """The zones at a moment: of each fence the version that began last."""
        begins = [begin for _, begin in self._versions if begin <= moment]
        # Between two beginnings nothing changes.
        era = max(begins, default=None)
        if era not in self._made:
            latest: dict[str, Zone] = {}
            for (name, begin), zone in sorted(self._versions.items(), key=lambda item: item[0][1]):
                if begin <= moment:
                    latest[name] = zone
            self._made[era] = Zones(list(latest.values()))
        return self._made[era]
