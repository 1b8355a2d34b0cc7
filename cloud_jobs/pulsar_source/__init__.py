"""A Spark 4.2 source for Apache Pulsar, through a durable and replicated subscription."""

from typing import TYPE_CHECKING, Any

from cloud_jobs.pulsar_source.options import (
    AccessRefused,
    DataLoss,
    OptionError,
    SourceClusterUnreachable,
    TopicMissing,
)

if TYPE_CHECKING:
    from cloud_jobs.pulsar_source.source import PulsarDataSource

__all__ = [
    "AccessRefused",
    "DataLoss",
    "OptionError",
    "PulsarDataSource",
    "SourceClusterUnreachable",
    "TopicMissing",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The source, imported on first use: settings need only its options, and Spark is large."""
        if name != "PulsarDataSource":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from cloud_jobs.pulsar_source.source import PulsarDataSource  # noqa: PLC0415

        return PulsarDataSource
