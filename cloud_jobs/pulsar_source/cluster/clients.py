"""Pulsar clients, kept for the life of the process: a micro-batch must not pay for connections."""

import atexit
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pulsar
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from cloud_jobs.pulsar_source.errors import (
    AccessRefused,
    OptionError,
    PulsarSourceError,
    SourceClusterUnreachable,
    SubscriptionBusy,
)
from cloud_jobs.pulsar_source.options import PulsarOptions, SourceCluster
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError, open_pulsar_client

_lock = threading.Lock()
_clients: dict[tuple[int, SourceCluster, PulsarAccess, int], Any] = {}
_CONNECT_TIMEOUT_S = 3.0


def shared_client(cluster: SourceCluster, options: PulsarOptions) -> Any:
    """This process's client of a cluster (`pulsar.Client`), built at the first call."""
    access, timeout_s = options.access(), options.call_timeout_s()
    # The process number is part of the key: Spark forks its Python workers, and a forked client is dead.
    key = (os.getpid(), cluster, access, timeout_s)
    with _lock:
        if key not in _clients:
            connect_s = min(_CONNECT_TIMEOUT_S, timeout_s)
            try:
                access.check_token(time.time())
                _clients[key] = open_pulsar_client(
                    cluster.service_url, access, timeout_s=timeout_s, connect_timeout_s=connect_s
                )
            except PulsarAccessError as error:
                raise OptionError(str(error)) from error
        return _clients[key]


def close_clients() -> None:
    """Closes every client of this process; the next call builds new ones."""
    with _lock:
        clients = [client for (process, *_), client in _clients.items() if process == os.getpid()]
        # Clients that a fork left here are forgotten and not closed: their threads are in the other process.
        _clients.clear()
    for client in clients:
        with suppress(pulsar.PulsarException):
            client.close()


atexit.register(close_clients)


def to_source_error(cluster: SourceCluster, action: str, error: Exception) -> PulsarSourceError:
    """A client's exception -> ours."""
    refused = (pulsar.AuthenticationError, pulsar.AuthorizationError)
    kind = AccessRefused if isinstance(error, refused) else SourceClusterUnreachable
    return kind(cluster.name, f"{action} at {cluster.service_url}", f"{type(error).__name__}: {error}")


def broker_timeout_s(options: PulsarOptions) -> float:
    """How long to wait for a broker that is not there: one that restarts is waited for, unless there is another."""
    if len(options.all_clusters()) == 1:
        return options.read_timeout_seconds
    return options.cluster_lost_after_seconds


def subscription_settings(options: PulsarOptions) -> dict[str, Any]:
    """What each consumer of the durable subscription has in common, as the client's `subscribe` calls it."""
    return {
        "consumer_type": pulsar.ConsumerType.Exclusive,
        # Where somebody deleted it since: what is stored is kept, and the next plan reports it.
        "initial_position": pulsar.InitialPosition.Earliest,
        "replicate_subscription_state_enabled": options.replicate_subscription,
        "is_read_compacted": options.read_compacted,
        # The client's own choice is to deliver an encrypted message never, and to stop there.
        "crypto_failure_action": pulsar.ConsumerCryptoFailureAction.CONSUME,
    }


def _is_transient(error: BaseException) -> bool:
    final = (pulsar.AuthenticationError, pulsar.AuthorizationError, pulsar.TopicNotFound)
    return isinstance(error, pulsar.PulsarException) and not isinstance(error, final)


def _is_busy(outcome: Any) -> bool:
    return isinstance(outcome.exception(), pulsar.ConsumerBusy)


@contextmanager
def durable_consumer(
    cluster: SourceCluster,
    options: PulsarOptions,
    topic: str,
    *,
    queue: int,
    wait_s: float,
    policy: Any = None,
) -> Iterator[Any]:
    """The exclusive consumer of the durable subscription on one topic partition; closed on leaving.

    Waits up to `wait_s` for whoever holds the subscription (a task that is being cancelled), then SubscriptionBusy; and
    for a broker that does not answer as long as `broker_timeout_s` says.
    """
    client = shared_client(cluster, options)
    name = options.subscription_name()
    busy, silent = stop_after_delay(wait_s), stop_after_delay(broker_timeout_s(options))
    attempts = Retrying(
        retry=retry_if_exception(_is_transient),
        stop=lambda state: busy(state) if _is_busy(state.outcome) else silent(state),
        wait=wait_exponential_jitter(multiplier=0.05, max=1.0, jitter=0.05),
        reraise=True,
    )
    try:
        consumer = attempts(
            client.subscribe,
            topic,
            name,
            receiver_queue_size=queue,
            batch_receive_policy=policy,
            **subscription_settings(options),
        )
    except pulsar.ConsumerBusy:
        raise SubscriptionBusy(cluster.name, topic, name, wait_s) from None
    except pulsar.PulsarException as error:
        raise to_source_error(cluster, f"subscribing {name!r} to {topic}", error) from error
    try:
        yield consumer
    finally:
        # A cluster that is gone cannot be said good-bye to: its broker forgets the consumer with the connection.
        with suppress(pulsar.PulsarException):
            consumer.close()
