"""The source of one topic partition's messages: the durable subscription, or a reader that leaves no trace."""

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Protocol
from uuid import uuid4

import pulsar
import structlog
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from cloud_jobs.pulsar_source.admin import SourceAdmin
from cloud_jobs.pulsar_source.messages import id_of, position_of
from cloud_jobs.pulsar_source.options import (
    AccessRefused,
    OptionError,
    PulsarOptions,
    PulsarSourceError,
    SourceCluster,
    SourceClusterUnreachable,
    SubscriptionBusy,
)
from cloud_jobs.pulsar_source.position import BEGINNING, LedgerPosition
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError, open_pulsar_client

# Pulsar clients, cached for the life of the process.

_lock = threading.Lock()
_clients: dict[tuple[int, SourceCluster, PulsarAccess, int], Any] = {}
_CONNECT_TIMEOUT_S = 3.0


def shared_client(cluster: SourceCluster, options: PulsarOptions) -> Any:
    """This process's client of a cluster (`pulsar.Client`), created at the first call."""
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
    with _lock:
        clients = [client for (process, *_), client in _clients.items() if process == os.getpid()]
        # Clients that a fork left here are forgotten and not closed: their threads are in the other process.
        _clients.clear()
    for client in clients:
        with suppress(pulsar.PulsarException):
            client.close()


atexit.register(close_clients)


def to_source_error(cluster: SourceCluster, action: str, error: Exception) -> PulsarSourceError:
    refused = (pulsar.AuthenticationError, pulsar.AuthorizationError)
    kind = AccessRefused if isinstance(error, refused) else SourceClusterUnreachable
    return kind(cluster.name, f"{action} at {cluster.service_url}", f"{type(error).__name__}: {error}")


def broker_timeout_s(options: PulsarOptions) -> float:
    """How long to wait for an absent broker: for its restart, unless another cluster can be read."""
    if len(options.clusters) == 1:
        return options.read_timeout_seconds
    return options.cluster_lost_after_seconds


def subscription_settings(options: PulsarOptions) -> dict[str, Any]:
    """The settings of every consumer of the durable subscription, as arguments of the client's `subscribe`."""
    return {
        "consumer_type": pulsar.ConsumerType.Exclusive,
        # Where somebody deleted it since: what is stored is kept, and the next plan reports it.
        "initial_position": pulsar.InitialPosition.Earliest,
        "replicate_subscription_state_enabled": True,
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

    Waits up to `wait_s` for another holder of the subscription (a cancelled task), then raises SubscriptionBusy; waits
    `broker_timeout_s` for a broker that does not answer.
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


# Distinguishes an undeliverable message from a late one.

_log = structlog.get_logger(__name__)
PROBE_PERIOD_S = 1.5
"""Silence after which the cluster is asked, and after which it is asked again."""

_PROBES = 2

Flush = Callable[[], object]
"""A question to the broker over a feed's own connection; a PulsarException when it is not answered in time."""


class ExhaustionProbe:
    """Whether a cursor (a subscription, or a reader by its name) has received everything up to a position."""

    def __init__(
        self,
        cluster: SourceCluster,
        options: PulsarOptions,
        topic: str,
        cursor: str,
        flush: Flush,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._options = options
        self._topic = topic
        self._cursor = cursor
        self._flush = flush
        self._clock = clock
        self._admin: SourceAdmin | None = None
        self._probed_s: float | None = None
        self._probes = 0
        self._upto = BEGINNING

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def on_message(self) -> None:
        self._probed_s = None
        self._probes = 0

    def probe(self, upto: LedgerPosition) -> bool:
        """True when nothing up to the position will come; call it after each receive without messages.

        The receive between the last question and the answer True is part of the proof.
        """
        if upto > self._upto:
            # What was proven of an earlier position says nothing of a later one.
            self._probes, self._upto = 0, upto
        if self._probes >= _PROBES:
            _log.warning("entries are never delivered", cluster=self._cluster.name, topic=self._topic, upto=str(upto))
            return True
        now_s = self._clock()
        if self._probed_s is None:
            self._probed_s = now_s
        if now_s - self._probed_s >= PROBE_PERIOD_S:
            self._probes = self._probes + 1 if self._is_beyond(upto) and self._is_flushed() else 0
            self._probed_s = self._clock()
        return False

    def _is_flushed(self) -> bool:
        try:
            self._flush()
        except pulsar.PulsarException:
            return False
        return True

    def _is_beyond(self, upto: LedgerPosition) -> bool:
        with suppress(PulsarSourceError):  # who does not answer proves nothing
            if self._admin is None:
                self._admin = SourceAdmin(self._cluster, self._options, self._options.call_timeout_s())
            read = self._admin.read_positions(self._topic)
            # The client makes a reader's name of the one that it is given.
            names = (name for name in read if name == self._cursor or name.startswith(f"{self._cursor}-reader-"))
            mine = [read[name] for name in names]
            # The position is the next entry to be read.
            return bool(mine) and all((at.ledger, at.entry) > (upto.ledger, upto.entry) for at in mine)
        return False


POLL_MS = 5
"""How long a receive waits for more before it hands over what it has."""

MAX_RECEIVE = 1000
"""Most messages that one receive hands over."""

_MAX_RECEIVE_BYTES = 8 << 20


class Feed(Protocol):
    """Messages of one topic partition, in order."""

    def receive(self) -> list[Any]:
        """The next native messages, at most MAX_RECEIVE; empty when none came within POLL_MS."""

    def last(self) -> LedgerPosition:
        """The newest message that the broker would deliver; BEGINNING when there is none."""

    def connected(self) -> bool:
        """False while the connection to the broker is down."""

    def probe_exhausted(self, upto: LedgerPosition) -> bool:
        """True when nothing up to a position will come; call it after each receive without messages.

        Asks the cluster from time to time and counts its answers: the first call never returns True.
        """


class _DurableFeed:
    def __init__(self, consumer: Any, exhaustion: ExhaustionProbe) -> None:
        self._exhaustion = exhaustion
        # The native object: a Python wrapper around every message would cost a third of the speed.
        self._native = consumer._consumer  # noqa: SLF001

    def receive(self) -> list[Any]:
        if messages := list(self._native.batch_receive()):
            self._exhaustion.on_message()
        return messages

    def probe_exhausted(self, upto: LedgerPosition) -> bool:
        return self._exhaustion.probe(upto)

    def last(self) -> LedgerPosition:
        return position_of(self._native.get_last_message_id())

    def connected(self) -> bool:
        return bool(self._native.is_connected())


class SingleMessageHandover:
    """Passes single messages from a reader's listener to the caller; the listener returns once its message is
    confirmed.

    The client asks the broker for more only when the listener returns, so an entry that crashes the client is the
    first one that was not passed on.
    """

    def __init__(self) -> None:
        self._waiting: queue.Queue[tuple[Any, threading.Event]] = queue.Queue(1)
        self._done = threading.Event()

    def listen(self, _: Any, message: Any) -> None:
        """Called by the client's thread; blocks until `confirm`."""
        done = threading.Event()
        self._waiting.put((message, done))
        done.wait()

    def receive(self) -> list[Any]:
        try:
            message, self._done = self._waiting.get(timeout=POLL_MS / 1000)
        except queue.Empty:
            return []
        return [message._message]  # noqa: SLF001  # as the feeds give it

    def confirm(self) -> None:
        self._done.set()


class _ReaderFeed:
    def __init__(
        self, reader: Any, exhaustion: ExhaustionProbe, most: int, one_by_one: SingleMessageHandover | None
    ) -> None:
        self._exhaustion = exhaustion
        self._most = min(MAX_RECEIVE, most)
        self._one_by_one = one_by_one
        self._native = reader._reader  # noqa: SLF001  # as above
        self._reached = BEGINNING

    def receive(self) -> list[Any]:
        if messages := self._one_by_one.receive() if self._one_by_one else self._receive_many():
            self._reached = position_of(messages[-1].message_id())
            self._exhaustion.on_message()
        return messages

    def _receive_many(self) -> list[Any]:
        messages: list[Any] = []
        with suppress(pulsar.Timeout):
            messages.append(self._native.read_next(POLL_MS))
            while len(messages) < self._most:
                messages.append(self._native.read_next(0))
        return messages

    def probe_exhausted(self, upto: LedgerPosition) -> bool:
        return self._exhaustion.probe(upto)

    def last(self) -> LedgerPosition:
        # A reader knows only whether there is more: an end that lies ahead of everything stands for "yes".
        return LedgerPosition(2**62, 0) if self._native.has_message_available() else self._reached

    def connected(self) -> bool:
        return bool(self._native.is_connected())


@contextmanager
def durable_feed(cluster: SourceCluster, options: PulsarOptions, topic: str, queue_size: int) -> Iterator[Feed]:
    """A feed from the durable subscription's cursor; the first messages may repeat. `queue_size`: the most held
    ahead.
    """
    policy = pulsar.ConsumerBatchReceivePolicy(MAX_RECEIVE, _MAX_RECEIVE_BYTES, POLL_MS)
    wait_s = options.read_timeout_seconds
    with durable_consumer(cluster, options, topic, queue=queue_size, wait_s=wait_s, policy=policy) as consumer:
        flush = consumer.get_last_message_id
        with closing(ExhaustionProbe(cluster, options, topic, options.subscription_name(), flush)) as exhaustion:
            yield _DurableFeed(consumer, exhaustion)


@contextmanager
def reader_feed(
    cluster: SourceCluster,
    options: PulsarOptions,
    topic: str,
    after: LedgerPosition,
    queue_size: int,
    *,
    first: LedgerPosition | None = None,
    one_by_one: SingleMessageHandover | None = None,
) -> Iterator[Feed]:
    """A feed from the first message after a position, without a durable cursor; the first messages may repeat.

    The broker sends the entry at that position once more, and the client skips it; with `first`, the entry after it,
    the broker starts there. `queue_size`: the most held ahead; 0: nothing is sent.
    """
    name = uuid4().hex  # the client puts a random end to it
    client, queue_size = shared_client(cluster, options), 1 if one_by_one else queue_size

    def flush() -> None:
        # What a reader itself can be asked it answers from memory. The client has one connection to each broker.
        client.create_reader(topic, pulsar.MessageId.latest, receiver_queue_size=0).close()

    try:
        reader = client.create_reader(
            topic,
            pulsar.MessageId.earliest if after == BEGINNING else id_of(first or after),
            start_message_id_inclusive=first is not None,
            receiver_queue_size=queue_size,
            reader_listener=one_by_one.listen if one_by_one else None,
            is_read_compacted=options.read_compacted,
            subscription_role_prefix=name,
            crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
        )
    except pulsar.PulsarException as error:
        raise to_source_error(cluster, f"opening a reader on {topic}", error) from error
    try:
        with closing(ExhaustionProbe(cluster, options, topic, name, flush)) as exhaustion:
            yield _ReaderFeed(reader, exhaustion, queue_size, one_by_one)
    finally:
        with suppress(pulsar.PulsarException):
            reader.close()
