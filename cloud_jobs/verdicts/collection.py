"""What one run takes from the topics of alerts."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from cloud_jobs.lake.tables import Lake
from cloud_jobs.verdicts.collecting import collect_alerts
from cloud_jobs.verdicts.subscription import AlertSubscription

MAX_MESSAGES: Final = 5_000
"""So many are taken in one commit."""
# a million messages: more is left to the next run, which then has nothing else to do
MAX_COMMITS: Final = 200
MAX_S: Final = 60.0
"""After so long what is there is decided, and the rest is for the next run."""
_LOG = structlog.get_logger("verdicts", job="verdicts")


def collect(
    lake: Lake, alerts: AlertSubscription, max_age: timedelta, *, max_commits: int = MAX_COMMITS, max_s: float = MAX_S
) -> dict[str, Any]:
    """Takes what the topics have into the table; how many alerts are new, were there, and are none.

    All that there was when it began: an event is not to be called late while its alert waits behind others, and what
    comes all the time is not to hold up verdicts. `unfinished`: 1 where there was more than a run may take.
    """
    counts, began_s, is_all = Counter[str](), time.time(), False
    for _ in range(max_commits):
        received = alerts.receive(MAX_MESSAGES, began_s)
        found = collect_alerts(lake, received.messages, datetime.now(UTC), max_age)
        alerts.acknowledge()
        if found.refused:
            _LOG.warning("messages that are no alerts", refused=dict(found.refused), last=found.last_refused)
        refused = sum(found.refused.values())
        counts.update({"alerts": found.added, "repeated": found.repeated, "refused": refused})
        # a broker whose clock is behind never says that something is new
        is_all = received.is_all
        if is_all or time.time() - began_s > max_s:
            break
    return {**counts, "left_out": len(received.unread), "unfinished": int(not is_all)}
