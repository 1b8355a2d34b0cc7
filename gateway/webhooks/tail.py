"""Alerts and verdicts live, for people. It leaves nothing behind at the cluster."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import pulsar
from rich.text import Text

from gateway.config import ClusterSource
from gateway.errors import AlertsUnread
from gateway.webhooks.intake import AlertTopic
from gateway.webhooks.notification import with_exact_ids
from geo.alerts import Alert, AlertVerdict, MalformedAlert, decode_alert, decode_verdict
from waybill.settings import one_line, printable_json

# Errors of a Pulsar cluster in words, with its name.


def cluster_fault(source: ClusterSource, error: Exception) -> str:
    """Which cluster failed, why, and what to check."""
    # an ended token shows as a time-out
    if problem := source.access.token_problem(time.time()):
        return f"{source.service_url}: {problem}"
    return (
        f"{source.service_url}: {type(error).__name__}: {error}; check that the cluster runs, pulsar.service_url and "
        "pulsar.access, and that tenants, regions and our role are in the topology"
    )


# Alerts and verdicts as lines. Pure.

_WIDTHS: Final = (12, 11, 8, 9, 20, 24, 8, 8, 8, 8)
_NAMES: Final = ("device time", "state", "region", "kind", "place", "device", "seen", "raised", "decided", "here")
_COLOURS: Final = {
    "provisional": "yellow",
    "confirmed": "green",
    "corrected": "cyan",
    "withdrawn": "red",
    "late": "magenta",
}


def _cells(*words: str) -> str:
    cells = (one_line(word, width).ljust(width) for word, width in zip(words, _WIDTHS, strict=True))
    return " ".join(cells).rstrip()


HEADER: Final = _cells(*_NAMES)


def table_line(seen: SeenAlert) -> Text:
    """One line of the table. A device time of another day is shown without seconds."""
    said = seen.said
    if isinstance(said, Alert):
        state, region = "provisional", said.region
        times = (said.received_ms - said.t_ms, said.raised_ms - said.received_ms, seen.read_ms - said.raised_ms)
        seen_s, raised_s, here_s = map(_seconds, times)
        at, decided_s = _clock(said.t_ms, seen.read_ms), ""
    else:
        state, region, seen_s, raised_s = said.verdict.value, "", "", ""
        about = said.event or said.alerted
        # a withdrawal may not name the event
        at = "" if about is None else _clock(about.t_ms, seen.read_ms)
        decided_s = "" if about is None else _seconds(said.decided_ms - about.t_ms)
        here_s = _seconds(seen.read_ms - said.decided_ms)
    place = seen.place or f"id {said.id}"
    cells = (at, state, region, seen.kind or "", place, said.device, seen_s, raised_s, decided_s, here_s)
    return Text(_cells(*cells), style=_COLOURS[state])


def json_line(seen: SeenAlert) -> str:
    """The same as a JSON object: the message, its type, and when it could be read."""
    kind = "alert" if isinstance(seen.said, Alert) else "verdict"
    said = with_exact_ids(seen.said.model_dump(mode="json", exclude_none=True))
    content = {"type": kind, "read_ms": seen.read_ms, kind: said}
    return printable_json(content)


def _clock(t_ms: int, read_ms: int) -> str:
    at, read_at = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (t_ms, read_ms))
    # a verdict may come days later
    return f"{at:%H:%M:%S.%f}"[:12] if at.date() == read_at.date() else f"{at:%m-%d %H:%M}"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:+.2f} s" if abs(ms) < 100_000 else f"{ms / 3_600_000:+.1f} h"


# a terminal that stops must not fill the memory
MAX_READ_AHEAD: Final = 1000
_TURN_S: Final = 0.2


class SeenAlert(NamedTuple):
    """An alert or a verdict, and when it could be read here (ms since 1970)."""

    said: Alert | AlertVerdict
    read_ms: int

    @property
    def kind(self) -> str | None:
        if isinstance(self.said, Alert):
            return self.said.kind
        about = self.said.event or self.said.alerted
        return None if about is None else about.kind

    @property
    def place(self) -> str | None:
        if isinstance(self.said, Alert):
            return self.said.place
        about = self.said.event or self.said.alerted
        return None if about is None else about.place


class TailFilter(NamedTuple):
    """The devices and kinds to show; empty: all. A verdict that does not name its kind is always shown."""

    devices: Collection[str] = ()
    kinds: Collection[str] = ()

    def takes(self, seen: SeenAlert) -> bool:
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
    """The messages while `goes_on`, from the moment when this returns. Raises AlertsUnread.

    `said_of` explains an error of the client. A slow reader sees all messages, later.
    """
    came: queue.Queue[tuple[AlertTopic, bytes, int]] = queue.Queue(MAX_READ_AHEAD)

    def listener(topic: AlertTopic) -> Callable[[Any, Any], None]:
        def put(_: Any, message: Any) -> None:
            item = topic, message.data(), round(time.time() * 1000)
            # while the queue is full, the client reads no more
            while goes_on():
                try:
                    came.put(item, timeout=_TURN_S)
                except queue.Full:
                    continue
                return

        return put

    for topic in topics:
        try:
            # a reader, not a subscription, which would keep messages from being deleted
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
        # alerts of another tenant are skipped, as in delivery
        seen = _seen(topic, data, read_ms)
        if seen is not None and wanted.takes(seen):
            yield seen


def _seen(topic: AlertTopic, data: bytes, read_ms: int) -> SeenAlert | None:
    try:
        said = decode_verdict(data) if topic.is_verdicts else decode_alert(data)
    except MalformedAlert:
        return None
    return SeenAlert(said, read_ms) if said.tenant == topic.tenant else None
