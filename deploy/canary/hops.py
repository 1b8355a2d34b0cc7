"""The hops of a canary: where its records, and what follows from them, are looked for."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

__all__ = ["AT_LEAST_ONCE", "PARENT", "Hop", "ProbeItem"]


class Hop(StrEnum):
    """A place at which what was sent has to show, in the order in which people read them."""

    REGION = "region"
    """The regional cluster's topic: the agent, the broker and a gateway work."""
    ACKNOWLEDGED = "acknowledged"
    """The agent has the acknowledgement."""
    CENTRE = "centre"
    """The same topic at the centre: replication works."""
    ALERT = "alert"
    """The region's alerts, as they are read at the centre."""
    TABLE = "table"
    """The records: the ingest works."""
    COVERAGE = "coverage"
    """The coverage: the centre knows that it has them."""
    EVENT = "event"
    """The final events at fences."""
    USAGE = "usage"
    """The metered quantities."""
    RATED = "rated"
    """What the canary account owes for them."""


# a tree, not a chain: an alert does not wait for the ingest
PARENT: Final = {
    Hop.REGION: None,
    Hop.ACKNOWLEDGED: Hop.REGION,
    Hop.CENTRE: Hop.REGION,
    # it comes over the same link
    Hop.ALERT: Hop.CENTRE,
    Hop.TABLE: Hop.CENTRE,
    Hop.COVERAGE: Hop.TABLE,
    Hop.EVENT: Hop.TABLE,
    Hop.USAGE: Hop.TABLE,
    Hop.RATED: Hop.USAGE,
}
"""The hop before each: what has not come there cannot come here, and is not this one's fault."""

AT_LEAST_ONCE: Final = frozenset({Hop.REGION, Hop.CENTRE, Hop.ALERT})
"""Topics: a message may be there again, which is counted as repeated, and is no double."""


class ProbeItem(NamedTuple):
    """What is to show of a probe at a hop, known beforehand: its name, and its device time (ms since 1970)."""

    name: str
    t_ms: int
