"""Pulsar clients of the tests: they wait long for a broker that is slow."""

import pulsar
from pydantic import SecretStr

from runtime.pulsar_client import PulsarAccess, open_pulsar_client

# A broker that has just been started again loads a topic within its topicLoadTimeoutSeconds (60) or refuses, and the
# client asks again. The client's own 30 s would end a test whose broker is only late.
OPERATION_TIMEOUT_S = 150
CONNECT_TIMEOUT_S = 10


def open_client(service_url: str, token: str | None = None) -> pulsar.Client:
    """A client of `service_url`, with a token where one is given."""
    access = PulsarAccess(token=SecretStr(token) if token else None)
    return open_pulsar_client(service_url, access, timeout_s=OPERATION_TIMEOUT_S, connect_timeout_s=CONNECT_TIMEOUT_S)
