"""What is said of a Pulsar cluster that does not do what was asked: the client's own words name neither it nor why."""

from __future__ import annotations

import time
from typing import Final

import pulsar

from gateway.source_settings import ClusterSource

__all__ = ["cluster_fault"]

_NO_ANSWER: Final = (pulsar.Timeout, pulsar.ConnectError, pulsar.LookupError)
_REFUSED: Final = (pulsar.AuthenticationError, pulsar.AuthorizationError)


def cluster_fault(source: ClusterSource, error: Exception) -> str:
    """Which cluster, what is wrong, and where to look."""
    # a token that ended shows as a time-out
    if problem := source.access.token_problem(time.time()):
        return f"{source.service_url}: {problem}"
    if isinstance(error, _NO_ANSWER):
        return (
            f"{source.service_url}: no answer within {source.operation_timeout_s} s ({type(error).__name__}): "
            "is the cluster running, and is pulsar.service_url its address as this machine reaches it?"
        )
    if isinstance(error, _REFUSED):
        return (
            f"{source.service_url}: it refuses our role ({type(error).__name__}): look at pulsar.access, and at what "
            "the topology lets it read; a tenant or a region that is not there is refused, too"
        )
    if isinstance(error, pulsar.TopicNotFound):
        return f"{source.service_url}: it has no such topic: are its tenant and its region those of the topology?"
    return f"{source.service_url}: {type(error).__name__}: {error}"
