"""Pulsar clients of the tests: they wait long for a broker that is slow, and say only what is an error."""

import pulsar

# A broker that has just been started again loads a topic within its topicLoadTimeoutSeconds (60) or refuses, and the
# client asks again. The client's own 30 s would end a test whose broker is only late.
OPERATION_TIMEOUT_S = 150
ERRORS = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def open_client(service_url: str, token: str | None = None) -> pulsar.Client:
    """A client of `service_url`, with a token where one is given."""
    authentication = pulsar.AuthenticationToken(token) if token else None
    return pulsar.Client(
        service_url, authentication=authentication, operation_timeout_seconds=OPERATION_TIMEOUT_S, logger=ERRORS
    )
