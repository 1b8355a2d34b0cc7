"""Publishes a fleet: each vehicle has its own MQTT 5 session with its own local broker, all in one process.

A broker can hold a message twice only if the session breaks between the broker's receipt and its PUBACK, because the
client then sends it again. To avoid that, connections are loopback, the keep-alive is longer than any run, messages in
flight stay below Mosquitto's Receive Maximum (20), sessions outlive a lost connection, and client identifiers differ.
If a broker is killed, at most `WINDOW` messages of its vehicle may be there twice. `Summary.maybe_doubled` counts them;
the truth does not know them.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from queue import Empty, Queue
from typing import Any, NamedTuple, TextIO

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pydantic import Field

from simulator.errors import PublishError
from simulator.messages import VehicleMessage, driven_line, journal_line
from waybill.settings import Settings

# The send queue of one vehicle: in order, with a bound on messages in flight. Pure.


class SendQueue:
    """The messages of one vehicle that its broker has not kept yet. Times are seconds of a monotonic clock.

    `window`: messages in flight. `room`: messages that may wait; `full` says when to hold back.
    """

    def __init__(self, *, window: int, room: int, retry_s: float, now_s: float) -> None:
        self._window, self._room, self._retry_s = window, room, retry_s
        self._waiting: list[tuple[int, VehicleMessage]] = []
        self._under_way: dict[int, tuple[int, VehicleMessage]] = {}
        self._open = False
        self._not_before_s = now_s
        self._count = 0
        self.last_progress_s = now_s
        self.kept = 0
        self.refused = 0

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self._room

    @property
    def empty(self) -> bool:
        """Whether the broker kept every message."""
        return not self._waiting and not self._under_way

    @property
    def never_answered(self) -> bool:
        """Whether the last answered message had no subscriber."""
        return self.refused > 0 and not self._open

    @property
    def under_way(self) -> int:
        """How many messages are in flight."""
        return len(self._under_way)

    def put(self, message: VehicleMessage, now_s: float) -> None:
        """Add the next message; the queue must not be full."""
        assert not self.full, "the caller asks first whether there is room"
        # Having had nothing to send is no lack of progress.
        if self.empty:
            self.last_progress_s = now_s
        heapq.heappush(self._waiting, (self._count, message))
        self._count += 1

    def sendable(self, now_s: float) -> Iterator[tuple[int, VehicleMessage]]:
        """The messages that may be sent now, with their numbers. Call `sent` before taking the next."""
        while self._waiting and now_s >= self._not_before_s:
            if len(self._under_way) >= (self._window if self._open else 1):
                return
            yield heapq.heappop(self._waiting)

    def sent(self, name: int, number: int, message: VehicleMessage) -> None:
        """The message was sent with the MQTT packet identifier `name`."""
        self._under_way[name] = (number, message)

    def on_answer(self, name: int, *, kept: bool, now_s: float) -> None:
        """The broker answered packet `name`. `kept`: it has a subscriber for the message."""
        if name not in self._under_way:
            return
        number, message = self._under_way.pop(name)
        # After a refusal only one message at a time is sent, until there is a subscriber.
        self._open = kept
        if kept:
            self.kept += 1
            self.last_progress_s = now_s
        else:
            self.refused += 1
            self._not_before_s = now_s + self._retry_s
            heapq.heappush(self._waiting, (number, message))


NO_MATCHING_SUBSCRIBERS = 16
TICK_S = 0.1
WINDOW = 16
"""Messages of a vehicle in flight."""
ROOM = 2_000
"""Messages of a vehicle that may wait before all vehicles are held back."""
RETRY_S = 0.25
"""Pause after a broker had no subscriber for a message."""
KEEPALIVE_S = 14_400
SESSION_S = 3_600
"""How long a broker keeps a lost session."""


class BrokerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class PublishSettings(Settings):
    speedup: float = Field(default=60.0, gt=0, description="seconds of driving in one second of the wall clock")
    timeout_s: float = Field(
        default=60.0, gt=0, description="longest time without progress of a vehicle that has to send"
    )


class Summary(NamedTuple):
    """How many messages were made, and what the local brokers acknowledged."""

    made: int
    acknowledged: int
    refused_at_first: int
    maybe_doubled: int
    seconds: float
    by_device: dict[str, int]

    @property
    def complete(self) -> bool:
        return self.made == self.acknowledged


class Progress(NamedTuple):
    """The position in the drive (s), and the messages made and acknowledged.

    The position is that of the next message, or the clock's while that is not due, so a late run shows its true
    position.
    """

    driven_s: float
    made: int
    acknowledged: int


class _Answer(NamedTuple):
    device: str
    name: int
    kept: bool


class _Down(NamedTuple):
    device: str


_Event = _Answer | _Down


def publish(
    messages: Iterable[VehicleMessage],
    brokers: Mapping[str, BrokerAddress],
    settings: PublishSettings,
    *,
    journal: TextIO | None = None,
    driven: TextIO | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    """Publish each message at its time, and wait until all are acknowledged. The journal gets a line for each.

    `driven` gets the same lines with the true places. `on_progress` is called several times a second. Raises
    PublishError for a vehicle whose broker makes no progress for `timeout_s`.
    """
    fleet = _Fleet(brokers, settings, on_progress)
    try:
        return fleet.run(messages, journal, driven)
    finally:
        fleet.close()


class _Fleet:
    """The sessions of all vehicles. One thread decides; paho's threads move bytes and report through a queue."""

    def __init__(
        self,
        brokers: Mapping[str, BrokerAddress],
        settings: PublishSettings,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._settings, self._on_progress = settings, on_progress
        self._brokers = brokers
        # Not a SimpleQueue: CPython's may wait forever after a short timeout.
        self._news: Queue[_Event] = Queue()
        self._began_s = self._next_round_s = time.monotonic()
        self._next_offset_s = 0.0
        self._maybe_doubled = self._made = self._kept = 0
        self._by_device = dict.fromkeys(brokers, 0)
        self._outboxes = {
            device: SendQueue(window=WINDOW, room=ROOM, retry_s=RETRY_S, now_s=self._began_s) for device in brokers
        }
        self._clients = {device: self._connect(device, address) for device, address in brokers.items()}

    def run(self, messages: Iterable[VehicleMessage], journal: TextIO | None, driven: TextIO | None) -> Summary:
        for message in messages:
            self._work_until(message)
            # Before it is sent, so that the journal is complete even if the run fails.
            if journal is not None:
                journal.write(journal_line(message))
            if driven is not None:
                driven.write(driven_line(message))
            self._made += 1
            self._by_device[message.device] += 1
            self._outboxes[message.device].put(message, time.monotonic())
            self._send(message.device)
        while not all(outbox.empty for outbox in self._outboxes.values()):
            self._work(TICK_S)
        self._on_progress(self._progress())
        return self._summary()

    def close(self) -> None:
        for client in self._clients.values():
            client.disconnect()
        for client in self._clients.values():
            client.loop_stop()

    def _connect(self, device: str, address: BrokerAddress) -> mqtt.Client:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"sensors-{device}", protocol=mqtt.MQTTv5)
        client.max_inflight_messages_set(WINDOW)
        client.max_queued_messages_set(2 * WINDOW)  # paho forgets a message only after its callback
        client.reconnect_delay_set(min_delay=1, max_delay=5)
        news = self._news

        def on_publish(client: mqtt.Client, data: Any, mid: int, code: Any, properties: Any) -> None:  # noqa: ARG001
            # Reason 16 counts as success in MQTT, but the broker has thrown the message away.
            news.put(_Answer(device, mid, kept=not code.is_failure and code.value != NO_MATCHING_SUBSCRIBERS))

        client.on_publish = on_publish
        client.on_disconnect = lambda *_: news.put(_Down(device))
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = SESSION_S
        # The thread connects later, so that a fleet does not wait for one broker after another.
        client.connect_async(
            address.host,
            address.port,
            keepalive=KEEPALIVE_S,
            # Clean at first: nothing of an earlier run is left. Resumed after a loss: what is under way is not
            # forgotten.
            clean_start=mqtt.MQTT_CLEAN_START_FIRST_ONLY,
            properties=properties,
        )
        client.loop_start()
        return client

    def _work_until(self, message: VehicleMessage) -> None:
        """Handle answers until the message is due and its vehicle has room for it."""
        self._next_offset_s = message.offset_s
        due_s = self._began_s + message.offset_s / self._settings.speedup
        while (left_s := due_s - time.monotonic()) > 0 or self._outboxes[message.device].full:
            self._work(min(max(left_s, 0.0) or TICK_S, TICK_S))
        self._work(0.0)

    def _work(self, timeout_s: float) -> None:
        """Wait for events up to `timeout_s`, handle them, send what may go, and check for timeouts."""
        for news in self._events(timeout_s):
            self._handle(news)
        # Not after every answer, because a round over thousands of vehicles is expensive.
        if time.monotonic() >= self._next_round_s:
            self._next_round_s = time.monotonic() + TICK_S
            for device in self._outboxes:
                self._send(device)
                self._check_timeout(device)
            self._on_progress(self._progress())

    def _events(self, timeout_s: float) -> Iterator[_Event]:
        try:
            first = self._news.get(timeout=timeout_s) if timeout_s else self._news.get_nowait()
            # Only those that are there now, so that new ones do not keep the loop from sending.
            yield from chain([first], (self._news.get_nowait() for _ in range(self._news.qsize())))
        except Empty:
            return

    def _handle(self, news: _Event) -> None:
        outbox = self._outboxes[news.device]
        match news:
            case _Answer(device, name, kept):
                outbox.on_answer(name, kept=kept, now_s=time.monotonic())
                self._kept += kept
                self._send(device)
            case _Down(device):
                # The broker may have any of them while its PUBACK is lost; paho sends all of them again.
                self._maybe_doubled += outbox.under_way

    def _send(self, device: str) -> None:
        outbox, client = self._outboxes[device], self._clients[device]
        for number, message in outbox.sendable(time.monotonic()):
            info = client.publish(message.topic, message.sent, qos=1)
            if info.rc not in {mqtt.MQTT_ERR_SUCCESS, mqtt.MQTT_ERR_NO_CONN}:  # without connection, paho keeps it
                raise PublishError(device, str(self._brokers[device]), mqtt.error_string(info.rc))
            outbox.sent(info.mid, number, message)

    def _check_timeout(self, device: str) -> None:
        outbox, address = self._outboxes[device], str(self._brokers[device])
        if outbox.empty or time.monotonic() - outbox.last_progress_s < self._settings.timeout_s:
            return
        if not self._clients[device].is_connected():
            reason = "no connection; is Mosquitto there?"
        elif outbox.never_answered:
            reason = "nobody subscribed to its messages; is the edge-agent running?"
        else:
            reason = "no acknowledgement"
        raise PublishError(device, address, f"{reason} ({self._settings.timeout_s:.0f} s without progress)")

    def _progress(self) -> Progress:
        due_s = (time.monotonic() - self._began_s) * self._settings.speedup
        return Progress(min(due_s, self._next_offset_s), self._made, self._kept)

    def _summary(self) -> Summary:
        return Summary(
            made=self._made,
            acknowledged=self._kept,
            refused_at_first=sum(outbox.refused for outbox in self._outboxes.values()),
            maybe_doubled=self._maybe_doubled,
            seconds=round(time.monotonic() - self._began_s, 3),
            by_device=self._by_device,
        )
