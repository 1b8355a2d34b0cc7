"""The messages that no webhook took, as a durable subscription has them: to be looked at, and to be sent again.

Nothing is taken away but what a webhook took: what is not acknowledged stays, however long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pulsar

from gateway.webhooks.errors import UndeliveredUnread
from gateway.webhooks.undelivered_message import UndeliveredMessage, decode_undelivered
from geo.alerts import MalformedAlert

__all__ = ["SUBSCRIPTION", "UndeliveredEntry", "ensure_subscription", "open_undelivered", "undelivered_entries"]

SUBSCRIPTION: Final = "undelivered"
# the broker waits a second before it gives a new consumer any
_FIRST_S: Final = 5.0
# what was taken away before leaves gaps, and is not waited for
_NEXT_S: Final = 1.0
_RECEIVER_QUEUE: Final = 500


class UndeliveredEntry(NamedTuple):
    """One that still is to be delivered; None: a message that is none, with what is wrong. `remove` takes it away."""

    message: UndeliveredMessage | None
    fault: str
    remove: Callable[[], None]

    def in_topic_of(self, tenant: str) -> UndeliveredEntry:
        """The same; none where it says that it is another tenant's: nobody may put that here."""
        if self.message is None or self.message.tenant == tenant:
            return self
        return UndeliveredEntry(None, f"of tenant {self.message.tenant} in the topic of {tenant}", self.remove)


@contextmanager
def open_undelivered(
    open_client: Callable[[], Any], topic: str, said_of: Callable[[Exception], str] = lambda error: f"{error}"
) -> Iterator[Any]:
    """The subscription, for one command at a time; `said_of` names what is wrong. Raises UndeliveredUnread."""
    client: Any = None
    try:
        client = open_client()
        yield client.subscribe(
            topic,
            SUBSCRIPTION,
            receiver_queue_size=_RECEIVER_QUEUE,
            initial_position=pulsar.InitialPosition.Earliest,
        )
    except pulsar.ConsumerBusy as error:
        raise UndeliveredUnread(f"{topic}: another command reads it now; ask again when it has ended") from error
    except (pulsar.PulsarException, ValueError, RuntimeError) as error:
        raise UndeliveredUnread(f"{topic}: {said_of(error)}") from error
    finally:
        if client is not None:
            client.close()


def ensure_subscription(client: Any, topic: str) -> None:
    """Before the first message: what a subscription has not acknowledged is kept for as long as it takes."""
    try:
        client.subscribe(topic, SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest).close()
    except pulsar.ConsumerBusy:
        return  # a command has it now, so it is there


def undelivered_entries(consumer: Any) -> Iterator[UndeliveredEntry]:
    """What the subscription has now, in the order in which it was given up. What comes meanwhile is not awaited."""
    last, ends_s = consumer.get_last_message_id(), time.monotonic() + _FIRST_S
    while True:
        try:
            # What was there when we began comes within a moment, or was taken away before.
            message = consumer.receive(max(1, round((ends_s - time.monotonic()) * 1000)))
        except pulsar.Timeout:
            return
        yield _entry(consumer, message)
        if message.message_id() >= last:
            return
        ends_s = time.monotonic() + _NEXT_S


def _entry(consumer: Any, message: Any) -> UndeliveredEntry:
    def remove() -> None:
        consumer.acknowledge(message)

    try:
        return UndeliveredEntry(decode_undelivered(message.data()), "", remove)
    except MalformedAlert as error:
        return UndeliveredEntry(None, str(error), remove)
