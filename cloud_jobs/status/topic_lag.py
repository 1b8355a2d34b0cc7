"""What waits in Pulsar: the backlog of a subscription, by topic partition, from the admin address."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cloud_jobs.config import CloudSettings, ClusterSettings
from cloud_jobs.pulsar_source.driver.left_out_note import read_left_out
from cloud_jobs.status.facts import TopicLag, TopicLeftOut
from geo.replication.admin import AdminClient
from geo.replication.errors import ReplicationError
from geo.replication.rest_types import PARTITIONS, STATS
from geo.replication.topic_naming import PERSISTENT, partition_name, topic_path

_TIMEOUT_S: Final = 5.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def topic_lags(settings: CloudSettings) -> tuple[TopicLag, ...]:
    """For each topic of the ingest what waits in its partitions; unknown, with the reason, where nobody says."""
    cluster, subscription = _cluster_read(settings), settings.ingest.subscription
    return subscription_lags(settings, cluster, settings.batch_topics, subscription)


def subscription_lags(
    settings: CloudSettings, cluster: ClusterSettings, topics: Iterable[str], subscription: str
) -> tuple[TopicLag, ...]:
    """The same of a subscription to topics of a cluster."""
    try:
        client = AdminClient(
            cluster.name,
            cluster.admin_url,
            access=settings.access,
            timeout_s=_TIMEOUT_S,
            unavailable_s=0,
            # only an administrator may ask for the name
            check_name=False,
        )
    except ReplicationError as error:
        return tuple(TopicLag(topic, cluster.name, error=str(error), answered=False) for topic in topics)
    with client:
        return tuple(lag for topic in topics for lag in _lags(client, topic, subscription))


def left_out_topics(settings: CloudSettings) -> tuple[TopicLeftOut, ...]:
    """The topics that the ingest reads without, as it noted them. Raises ValueError for a note that says nothing."""
    noted = read_left_out(settings.left_out_file)
    return tuple(TopicLeftOut(one.topic, one.cluster, one.reason, datetime.fromisoformat(one.since)) for one in noted)


def _cluster_read(settings: CloudSettings) -> ClusterSettings:
    """The cluster that the ingest noted, else the first."""
    try:
        active = json.loads(Path(settings.source_options["failoverFile"]).read_bytes())["active"]
    except (KeyError, OSError, ValueError, TypeError, RecursionError):
        active = None
    return next((one for one in settings.clusters if one.name == active), settings.clusters[0])


def _lags(client: AdminClient, topic: str, subscription: str) -> Iterator[TopicLag]:
    name = topic.removeprefix(PERSISTENT)
    try:
        found = client.get(f"{topic_path(name)}/partitions", PARTITIONS)
        count = 0 if found is None else found.partitions
        for partition in [partition_name(name, number) for number in range(count)] or [name]:
            yield _lag(client, partition, subscription)
    except ReplicationError as error:
        yield TopicLag(topic, client.cluster, error=str(error), answered=False)


def _lag(client: AdminClient, partition: str, subscription: str) -> TopicLag:
    topic = PERSISTENT + partition
    # the estimate that Pulsar gives otherwise may be wrong for ever
    asked = {"getEarliestTimeInBacklog": True, "getPreciseBacklog": True}
    stats = client.get(f"{topic_path(partition)}/stats", STATS, **asked)
    if stats is None:
        return TopicLag(topic, client.cluster, error="the cluster does not have it")
    waiting = stats.subscriptions.get(subscription)
    if waiting is None:
        return TopicLag(topic, client.cluster, error=f"it has no subscription {subscription!r}")
    oldest = _EPOCH + timedelta(milliseconds=waiting.earliest_ms) if waiting.earliest_ms > 0 else None
    return TopicLag(topic, client.cluster, waiting.backlog, oldest if waiting.backlog else None)
