"""Since when an alert waits for its verdict: asked of the tables and the topics, not of the job that gives verdicts.

An alert waits in its topic until it is collected, in the table until it is decided, and its verdict until it is
published. So whoever asks here knows also of a job that stands still.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from cloud_jobs.config import CloudSettings
from cloud_jobs.errors import CloudError
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import newest_number
from cloud_jobs.outbox import unpublished_since
from cloud_jobs.status.facts import ProvisionalStatus, TopicLag
from cloud_jobs.status.topic_lag import subscription_lags
from cloud_jobs.verdicts.job import provisional_since

__all__ = ["provisional_alerts"]


def provisional_alerts(settings: CloudSettings) -> ProvisionalStatus:
    """The oldest alert whose verdict is not published, if any was ever collected. Raises nothing."""
    lake, given = settings.tables, settings.verdicts
    try:
        with settings.location.errors_named():
            if newest_number(lake.open("alerts"), "alerts") is None:
                return ProvisionalStatus(given.max_provisional_s, was_collected=False)
            waiting = [*_in_tables(lake, settings)]
        waiting += _in_topics(settings)
    except (CloudError, OSError, ValueError) as error:
        return ProvisionalStatus(given.max_provisional_s, error=str(error))
    return ProvisionalStatus(given.max_provisional_s, min(waiting, default=None))


def _in_tables(lake: Lake, settings: CloudSettings) -> Iterator[datetime]:
    found = provisional_since(lake), unpublished_since(lake, "verdicts", settings.checkpoints)
    yield from (one for one in found if one is not None)


def _in_topics(settings: CloudSettings) -> Iterator[datetime]:
    """When the oldest alert of each topic was published that is not collected. Raises ValueError if nobody knows.

    The subscription is replicated: what was taken in one cluster is done, although another one may not know yet. So
    each has to be asked: where one does not answer, it may have taken what waits elsewhere, or have what no other has.
    """
    for topic in settings.alert_topics:
        lags = [
            lag
            for cluster in settings.clusters
            for lag in subscription_lags(settings, cluster, [topic], settings.verdicts.subscription)
        ]
        if silent := [lag for lag in lags if not lag.answered]:
            raise ValueError(f"what waits in {topic} is unknown: {_errors(silent)}")
        # what is taken of one partition says nothing of another
        for partition in sorted({lag.topic for lag in lags} - {topic}) or [topic]:
            if (oldest := _oldest_in(partition, lags)) is not None:
                yield oldest


def _oldest_in(partition: str, lags: Sequence[TopicLag]) -> datetime | None:
    mine = [lag for lag in lags if lag.topic == partition]
    known = [lag for lag in mine if lag.backlog is not None]
    if not known:
        raise ValueError(f"what waits in {partition} is unknown: {_errors(mine)}")
    best = min(known, key=lambda lag: lag.backlog or 0)
    if best.backlog and best.oldest is None:
        raise ValueError(f"since when {best.backlog:,} alerts of {partition} wait is unknown")
    return best.oldest if best.backlog else None


def _errors(lags: Sequence[TopicLag]) -> str:
    return "; ".join(f"{lag.cluster}: {lag.error or 'nobody said'}" for lag in lags)
