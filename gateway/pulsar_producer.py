"""Asynchronous producers for Pulsar, and receipts that come back through a wake-up of the loop."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pulsar

from gateway.config import GatewaySettings
from gateway.engine import Produce
from gateway.errors import PulsarUnreachable
from runtime.pulsar_client import PulsarAccess, open_pulsar_client

TOO_BIG = "MessageTooBig"
UNSENDABLE = "Unsendable"
"""The client cannot make a message of it."""
_PERMANENT = {TOO_BIG, UNSENDABLE, "InvalidMessage"}
# After these the client's producer does not come back by itself; after others it reconnects.
_REOPEN = {"AlreadyClosed", "ProducerFenced", "TopicTerminated", "TopicNotFound", "NotConnected"}
NewClient = Callable[..., Any]
"""`open_pulsar_client`, or what takes its place in a test."""
new_client: NewClient = open_pulsar_client


class Receipt(NamedTuple):
    """How Pulsar answered: `result` is "Ok" when the message is persisted, else the client's word for the failure."""

    token: int
    result: str
    refused: bool = False

    @property
    def is_permanent(self) -> bool:
        """Whether the same message would fail again, however often it is sent."""
        return self.result in _PERMANENT

    @property
    def ok(self) -> bool:
        """Whether the message is safe."""
        return self.result == "Ok"


InBackground = Callable[[Callable[[], None]], None]
_CLOSE_S = 5.0


def in_thread(work: Callable[[], None]) -> None:
    """Do it in a thread of its own, which does not keep the process from ending."""
    threading.Thread(target=work, name="pulsar-open", daemon=True).start()


class _Opening:
    """An attempt to get a client and its producers. Once `ended` is set nobody changes it."""

    def __init__(self) -> None:
        self.client: Any = None
        self.producers: tuple[Any, Any] | None = None
        self.error: PulsarUnreachable | None = None
        self.is_cancelled = False
        self.ended = threading.Event()


class PulsarProducer:
    """Producers of one region's topics, opened in the background: a cluster that is away may take minutes to fail.

    Pulsar's callback runs in the client's own thread: it appends the receipt and wakes the loop, no more. There are
    never more receipts than messages in flight, so the queue needs no other bound. `send` does not block, because the
    window of the gateway is smaller than the producer's.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        wake: Callable[[], None],
        client: NewClient = new_client,
        in_background: InBackground = in_thread,
    ) -> None:
        self._settings, self._wake, self._new_client = settings, wake, client
        self._in_background = in_background
        self._opening: _Opening | None = None
        self._client: Any = None
        self._batches: Any = None
        self._refused: Any = None
        self._receipts: deque[Receipt] = deque()
        self.wants_reopening = False

    @property
    def is_open(self) -> bool:
        """Whether there are producers (which may be reconnecting by themselves)."""
        return self._batches is not None and not self.wants_reopening

    @property
    def is_opening(self) -> bool:
        """Whether an attempt was begun, and `try_finish_opening` has not said how it ended."""
        return self._opening is not None

    @property
    def is_connected(self) -> bool:
        """Whether the producer of batches has a connection at this moment."""
        return self._batches is not None and bool(self._batches.is_connected())

    def start_opening(self) -> None:
        """Begin to connect and to create the producers; the loop is woken when that has ended."""
        former, self._client, self._batches, self._refused = self._client, None, None, None
        self._opening = opening = _Opening()
        self._in_background(lambda: self._open(opening, former))

    def try_finish_opening(self) -> bool:
        """Take over what an attempt brought that has ended; whether it did. Raises PulsarUnreachable."""
        opening = self._opening
        if opening is None or not opening.ended.is_set():
            return False
        self._opening = None
        if opening.error is not None:
            raise opening.error
        # None: something unexpected ended the thread, and that ends the process.
        if opening.producers is None:
            return False
        self._client, (self._batches, self._refused) = opening.client, opening.producers
        self.wants_reopening = False
        return True

    def send(self, effect: Produce) -> None:
        """Hand a message to the client; its receipt comes by `take_receipts`."""
        producer = self._refused if effect.refused else self._batches
        if producer is None:
            self._add_receipt(Receipt(effect.token, "NotConnected", effect.refused))
            return
        callback = partial(self._on_result, effect.token, effect.refused)
        try:
            producer.send_async(effect.payload, callback, properties=effect.properties, partition_key=effect.key)
        except pulsar.PulsarException as error:
            self._add_receipt(Receipt(effect.token, type(error).__name__, effect.refused))
        except Exception:  # noqa: BLE001 - what the client cannot send, it cannot send the next time either
            self._add_receipt(Receipt(effect.token, UNSENDABLE, effect.refused))

    def take_receipts(self) -> list[Receipt]:
        """The receipts that came since the last call."""
        receipts = []
        while self._receipts:
            # The client's thread may append meanwhile: a deque needs no lock for one end each.
            receipt = self._receipts.popleft()
            if receipt.result in _REOPEN and not receipt.refused:  # dead letters never interrupt the batches
                self.wants_reopening = True
            receipts.append(receipt)
        return receipts

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Close the client; whatever it takes longer than `timeout_s` is left to the end of the process."""
        client, self._client, self._batches, self._refused = self._client, None, None, None
        opening, self._opening = self._opening, None
        if opening is None:
            _close_client(client, timeout_s)
            return
        # In this order, as `_open` does it the other way round: one of the two closes the client.
        opening.is_cancelled = True
        _close_client(opening.client, timeout_s)
        # A thread that is still inside the client when the process ends would abort it.
        opening.ended.wait(timeout_s)

    def _open(self, opening: _Opening, former: Any) -> None:
        """The thread of an attempt. The client before it is closed: its threads and connections would stay."""
        try:
            _close_client(former, _CLOSE_S)
            opening.client = client = self._open_client()
            if not opening.is_cancelled:
                names = self._settings.pulsar.batches, self._settings.pulsar.refused
                batches, refused = (self._producer(client, name) for name in names)
                opening.producers = batches, refused
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            address = self._settings.pulsar.service_url
            opening.error = PulsarUnreachable(f"no producer from {address}: {error}")
        finally:
            if opening.producers is None:
                _close_client(opening.client, _CLOSE_S)
            opening.ended.set()
            self._wake()

    def _on_result(self, token: int, refused: bool, result: Any, _: Any) -> None:
        self._add_receipt(Receipt(token, result.name, refused))

    def _add_receipt(self, receipt: Receipt) -> None:
        # In this order: a loop that is woken before the receipt is there goes back to its wait.
        self._receipts.append(receipt)
        self._wake()

    def _producer(self, client: Any, name: str) -> Any:
        settings = self._settings.pulsar
        return client.create_producer(
            self._settings.topic(name),
            send_timeout_millis=int(settings.send_timeout_s * 1000),
            # More than the loop ever has in flight, so it never blocks.
            max_pending_messages=2 * self._settings.mqtt.receive_maximum + 1,
            block_if_queue_full=True,
            batching_enabled=True,
            batching_max_publish_delay_ms=settings.batching_delay_ms,
            batching_max_messages=settings.batching_max_messages,
            batching_max_allowed_size_in_bytes=settings.batching_max_bytes,
            properties={"gateway": self._settings.name},
        )

    def _open_client(self) -> Any:
        settings = self._settings.pulsar
        access = PulsarAccess.of_tls(settings.tls, settings.token)
        return self._new_client(settings.service_url, access, timeout_s=settings.operation_timeout_s)


def _close_client(client: Any, timeout_s: float) -> None:
    """Close it, if there is one. Closing waits for the cluster, which may be why it is closed."""
    if client is not None:
        closing = threading.Thread(target=_close_quietly, args=(client,), name="pulsar-close", daemon=True)
        closing.start()
        closing.join(timeout_s)


def _close_quietly(client: Any) -> None:
    with contextlib.suppress(pulsar.PulsarException):
        client.close()
