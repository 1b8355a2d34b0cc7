"""Hop by hop, how long an alert took. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.alerts.arrivals import Fix, ReadAlert

__all__ = ["HOPS", "IN_REGION", "WHOLE", "HopTimes", "Moments", "hop_times", "timed_fixes"]

HOPS = (
    "vehicle's broker, agent (stored, sent), region's broker",
    "region's broker, gateway, handed to the region's topic",
    "region's topic, alert process, alert raised",
    "alert raised, readable in the region",
    "readable in the region, readable at the centre",
)
IN_REGION = "vehicle's broker to readable in the region"
WHOLE = "vehicle's broker to readable at the centre"


class Moments(NamedTuple):
    """When one fix was where, in seconds since 1970, in the order of HOPS."""

    published_s: float
    at_broker_s: float
    received_s: float
    raised_s: float
    in_region_s: float
    at_centre_s: float


@dataclass(frozen=True, slots=True)
class HopTimes:
    """Milliseconds of one hop, ascending."""

    name: str
    times_ms: Sequence[float]

    def percentile(self, share: float) -> float:
        """The least time that this share does not exceed; infinite without any."""
        if not self.times_ms:
            return math.inf
        return self.times_ms[max(0, math.ceil(share * len(self.times_ms)) - 1)]


def timed_fixes(
    published_s: Mapping[Fix, float],
    at_broker_s: Mapping[Fix, float],
    in_region: Iterable[ReadAlert],
    at_centre_s: Mapping[Fix, float],
) -> dict[Fix, Moments]:
    """The fixes of which all is known; of alerts that came twice the first one counts."""
    found: dict[Fix, Moments] = {}
    for at_s, alert in in_region:
        fix = alert.device, alert.seq
        if fix in found or not (fix in published_s and fix in at_broker_s and fix in at_centre_s):
            continue
        times = alert.received_ms / 1000, alert.raised_ms / 1000
        found[fix] = Moments(published_s[fix], at_broker_s[fix], *times, at_s, at_centre_s[fix])
    return found


def hop_times(moments: Iterable[Moments]) -> list[HopTimes]:
    """Each hop, then both ways as a whole."""
    rows = list(moments)
    spans = [(name, number, number + 1) for number, name in enumerate(HOPS)]
    spans += [(IN_REGION, 0, len(HOPS) - 1), (WHOLE, 0, len(HOPS))]
    return [HopTimes(name, sorted(1000 * (row[end] - row[begin]) for row in rows)) for name, begin, end in spans]
