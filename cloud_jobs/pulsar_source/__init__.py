"""A Spark 4.2 source for Apache Pulsar, through a durable and replicated subscription."""

from cloud_jobs.pulsar_source.errors import (
    AccessRefused,
    ClusterUnreachable,
    DataLoss,
    OptionError,
    PulsarSourceError,
    ReadStalled,
    SubscriptionBusy,
    TopicMissing,
)
from cloud_jobs.pulsar_source.source import PulsarDataSource

__all__ = [
    "AccessRefused",
    "ClusterUnreachable",
    "DataLoss",
    "OptionError",
    "PulsarDataSource",
    "PulsarSourceError",
    "ReadStalled",
    "SubscriptionBusy",
    "TopicMissing",
]
