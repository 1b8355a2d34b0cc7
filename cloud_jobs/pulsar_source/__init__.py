"""A Spark 4.2 source for Apache Pulsar, through a durable and replicated subscription."""

from cloud_jobs.pulsar_source.options import (
    AccessRefused,
    DataLoss,
    OptionError,
    SourceClusterUnreachable,
    TopicMissing,
)
from cloud_jobs.pulsar_source.source import PulsarDataSource

__all__ = [
    "AccessRefused",
    "DataLoss",
    "OptionError",
    "PulsarDataSource",
    "SourceClusterUnreachable",
    "TopicMissing",
]
