"""The moment from which rows are known: never earlier than that of the rows before, and never believed if far ahead.

A clock that was ahead once has stamped rows that no bill sees for as long. Which clock was wrong is decided by those
that agree: this machine's, and that of whoever made the newest commit of the records.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from cloud_jobs.errors import ClockBehind
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import MAX_LEAD


class KnowledgeTime(NamedTuple):
    """From when on a run's rows are known. `was_ahead`: rows before were stamped by a clock that was far ahead."""

    moment: datetime
    was_ahead: bool


def check_not_behind(lake: Lake, now: datetime) -> None:
    """Raises ClockBehind if this machine's clock is far behind the newest commit of the records."""
    latest = lake.open("records").history(1)
    committed = max((datetime.fromtimestamp(one["timestamp"] / 1000, UTC) for one in latest), default=now)
    if committed > now + MAX_LEAD:
        raise ClockBehind(now, committed)


def knowledge_time(lake: Lake, before: datetime | None, now: datetime) -> KnowledgeTime:
    """The moment of a run's rows; `before`: the latest of the rows that are there.

    Raises ClockBehind if this machine's clock is far behind the newest commit of the records.
    """
    check_not_behind(lake, now)
    if before is not None and before > now + MAX_LEAD:
        return KnowledgeTime(now, was_ahead=True)
    return KnowledgeTime(max(now, before or now), was_ahead=False)
