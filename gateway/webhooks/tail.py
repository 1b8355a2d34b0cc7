"""Alerts and verdicts as they come, for people: read beside everybody else, leaving nothing behind at the cluster."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pulsar

from gateway.webhooks.errors import AlertsUnread
from gateway.webhooks.intake import AlertTopic
from geo.alerts import Alert, AlertVerdict, MalformedAlert, decode_alert, decode_verdict

__all__ = ["SeenAlert", "TailFilter", "tail"]

# a terminal that is held up does not fill the memory
MAX_READ_AHEAD: Final = 1000
_TURN_S: Final = 0.2


class SeenAlert(NamedTuple):
    """An alert or a verdict, and when it could be read here (ms since 1970)."""

    said: Alert | AlertVerdict
    read_ms: int

    @property
    def kind(self) -> str | None:
        """Of its event; None where a withdrawn one does not say."""
        if isinstance(self.said, Alert):
            return self.said.kind
        about = self.said.event or self.said.alerted
        return None if about is None else about.kind

    @property
    def place(self) -> str | None:
        """Of its event; None where a withdrawn one does not say."""
        if isinstance(self.said, Alert):
            return self.said.place
        about = self.said.event or self.said.alerted
        return None if about is None else about.place


class TailFilter(NamedTuple):
    """What is shown: devices and kinds; none are all. A verdict that does not say of which kind is always shown."""

    devices: Collection[str] = ()
    kinds: Collection[str] = ()

    def takes(self, seen: SeenAlert) -> bool:
        """Whether it is shown."""
        return (not self.devices or seen.said.device in self.devices) and (
            not self.kinds or seen.kind is None or seen.kind in self.kinds
        )


def tail(
    client: Any,
    topics: Sequence[AlertTopic],
    wanted: TailFilter,
    goes_on: Callable[[], bool],
    said_of: Callable[[Exception], str] = lambda error: f"{error}",
) -> Iterator[SeenAlert]:
    """What comes while `goes_on`, from when this returns: then each topic is read. Raises AlertsUnread.

    `said_of` names what is wrong. Whoever reads too slowly sees all of it, later. Messages that are none are passed
    over.
    """
    came: queue.Queue[tuple[AlertTopic, bytes, int]] = queue.Queue(MAX_READ_AHEAD)

    def listener(topic: AlertTopic) -> Callable[[Any, Any], None]:
        def put(_: Any, message: Any) -> None:
            item = topic, message.data(), round(time.time() * 1000)
            # bounded: while nobody looks, the client reads nothing more
            while goes_on():
                try:
                    came.put(item, timeout=_TURN_S)
                except queue.Full:
                    continue
                return

        return put

    for topic in topics:
        try:
            # a reader, not a subscription: whoever only looks must not keep messages from being deleted
            client.create_reader(topic.name, pulsar.MessageId.latest, reader_listener=listener(topic))
        except pulsar.PulsarException as error:
            raise AlertsUnread(f"{topic.name}: {said_of(error)}") from error
    return _shown(came, wanted, goes_on)


def _shown(
    came: queue.Queue[tuple[AlertTopic, bytes, int]], wanted: TailFilter, goes_on: Callable[[], bool]
) -> Iterator[SeenAlert]:
    while goes_on():
        try:
            topic, data, read_ms = came.get(timeout=_TURN_S)
        except queue.Empty:
            continue
        # alerts of another tenant than the topic's are passed over, as where they are delivered
        seen = _seen(topic, data, read_ms)
        if seen is not None and wanted.takes(seen):
            yield seen


def _seen(topic: AlertTopic, data: bytes, read_ms: int) -> SeenAlert | None:
    try:
        said = decode_verdict(data) if topic.is_verdicts else decode_alert(data)
    except MalformedAlert:
        return None
    return SeenAlert(said, read_ms) if said.tenant == topic.tenant else None
