"""Publishes a fleet: each vehicle over its own MQTT 5 session to its own local broker, all in one process.

Can a broker hold a message twice? Only if the session breaks after the broker took a message and before its PUBACK
came back: the client must then send it again (with DUP), and a broker does not compare QoS 1 messages. So the session
is kept from breaking: the connection is loopback, the keep-alive is longer than any run (a stalled process is not
thrown out, as it would be after 1.5 times a short one), the messages under way stay below the Receive Maximum of
Mosquitto (20), the session outlives a lost connection, and no session is ever taken over, as client identifiers differ.
With local brokers that are not killed, nothing is sent twice. If one is killed, at most `window` messages of its
vehicle may be there twice; `Summary.maybe_doubled` counts them, and the truth (what vehicles made) does not know them.
"""

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from queue import Empty, Queue
from typing import Any, NamedTuple, TextIO, assert_never

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
    """The messages of one vehicle that its broker has not kept yet. Times are seconds of any clock that only runs on.

    `window`: how many may be under way at once. `room`: how many may wait here; `full` says when to hold back.
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
        """Whether no more may be put in: the caller waits."""
        return len(self._waiting) >= self._room

    @property
    def empty(self) -> bool:
        """Whether everything put in was kept by the broker."""
        return not self._waiting and not self._under_way

    @property
    def never_answered(self) -> bool:
        """Whether nobody was there to keep the message that was answered last."""
        return self.refused > 0 and not self._open

    @property
    def under_way(self) -> int:
        """How many messages were sent and not answered."""
        return len(self._under_way)

    def put(self, message: VehicleMessage, now_s: float) -> None:
        """Take the next message of the vehicle; never more than the bound."""
        assert not self.full, "the caller asks first whether there is room"
        # Until now there was nothing to do, and that is no lack of progress.
        if self.empty:
            self.last_progress_s = now_s
        heapq.heappush(self._waiting, (self._count, message))
        self._count += 1

    def sendable(self, now_s: float) -> Iterator[tuple[int, VehicleMessage]]:
        """The messages that may go now, with their numbers; the caller says `sent` before it takes the next."""
        while self._waiting and now_s >= self._not_before_s:
            if len(self._under_way) >= (self._window if self._open else 1):
                return
            yield heapq.heappop(self._waiting)

    def sent(self, name: int, number: int, message: VehicleMessage) -> None:
        """The message went out under the MQTT packet identifier `name`."""
        self._under_way[name] = (number, message)

    def on_answer(self, name: int, *, kept: bool, now_s: float) -> None:
        """The broker answered for packet `name`: it keeps the message, or nobody there wants it."""
        if name not in self._under_way:
            return
        number, message = self._under_way.pop(name)
        # Closed again by a refusal: while nobody subscribes, one message at a time finds that out.
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
    """Where a local broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class PublishSettings(Settings):
    """The bounds of publishing."""

    speedup: float = Field(default=60.0, gt=0, description="seconds of driving in one second of the wall clock")
    timeout_s: float = Field(
        default=60.0, gt=0, description="longest time without progress of a vehicle that has to send"
    )


class Summary(NamedTuple):
    """What was made and what the local brokers acknowledged."""

    made: int
    acknowledged: int
    refused_at_first: int
    reconnects: int
    maybe_doubled: int
    seconds: float
    by_device: dict[str, int]

    @property
    def complete(self) -> bool:
        """Whether every message made was acknowledged for a subscriber."""
        return self.made == self.acknowledged


class Progress(NamedTuple):
    """Where a run stands: its place in the drive (s), messages made and acknowledged.

    The place is that of the next message, or the clock's while that is not due: a run that is behind is where its
    messages are, not where they should be.
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


class _Up(NamedTuple):
    device: str


_Event = _Answer | _Down | _Up


def publish(
    messages: Iterable[VehicleMessage],
    brokers: Mapping[str, BrokerAddress],
    settings: PublishSettings,
    *,
    journal: TextIO | None = None,
    driven: TextIO | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Summary:
    """Publish every message at its time and wait until all brokers acknowledged; the journal gets a line for each.

    `driven` gets the same lines with the places where the vehicles truly were.

    `on_progress` is called several times a second, also of a run that is behind and never waits.
    Raises PublishError for a vehicle whose broker makes no progress for `timeout_s`.
    """
    fleet = _Fleet(brokers, settings, on_progress)
    try:
        return fleet.run(messages, journal, driven)
    finally:
        fleet.close()


class _Fleet:
    """The sessions of all vehicles. One thread decides; paho's threads only move bytes and report through a queue."""

    def __init__(
        self,
        brokers: Mapping[str, BrokerAddress],
        settings: PublishSettings,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._settings, self._on_progress = settings, on_progress
        self._brokers = brokers
        # Not a SimpleQueue: CPython's may wait for ever where a short time-out has passed before it looks again.
        self._news: Queue[_Event] = Queue()
        self._began_s = self._next_round_s = time.monotonic()
        self._next_offset_s = 0.0
        self._reconnects = self._maybe_doubled = self._made = self._kept = 0
        self._connected: dict[str, bool] = {}
        self._by_device = dict.fromkeys(brokers, 0)
        self._outboxes = {device: self._new_queue() for device in brokers}
        self._clients = {device: self._connect(device, address) for device, address in brokers.items()}

    def run(self, messages: Iterable[VehicleMessage], journal: TextIO | None, driven: TextIO | None) -> Summary:
        for message in messages:
            self._work_until(message)
            # Before it is sent: whatever comes through is in the journal, also of a run that fails.
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
        """End every session; nothing is under way any more, or the run has failed."""
        for client in self._clients.values():
            client.disconnect()
        for client in self._clients.values():
            client.loop_stop()

    def _new_queue(self) -> SendQueue:
        return SendQueue(window=WINDOW, room=ROOM, retry_s=RETRY_S, now_s=self._began_s)

    def _connect(self, device: str, address: BrokerAddress) -> mqtt.Client:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"sensors-{device}", protocol=mqtt.MQTTv5)
        client.max_inflight_messages_set(WINDOW)
        client.max_queued_messages_set(2 * WINDOW)  # paho forgets a message only after its callback
        client.reconnect_delay_set(min_delay=1, max_delay=5)
        news = self._news

        def on_publish(client: mqtt.Client, data: Any, mid: int, code: Any, properties: Any) -> None:  # noqa: ARG001
            # To MQTT reason 16 is a success: the broker took the message, and threw it away.
            news.put(_Answer(device, mid, kept=not code.is_failure and code.value != NO_MATCHING_SUBSCRIBERS))

        def on_connect(client: mqtt.Client, data: Any, flags: Any, code: Any, properties: Any) -> None:  # noqa: ARG001
            if not code.is_failure:
                news.put(_Up(device))

        client.on_publish = on_publish
        client.on_connect = on_connect
        client.on_disconnect = lambda *_: news.put(_Down(device))
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = SESSION_S
        # It only notes the address: the thread connects, so that a fleet does not wait for one broker after the other.
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
        """Wait for news up to `timeout_s`, take in all there is, send what may go, and notice who makes no progress."""
        for news in self._events(timeout_s):
            self._handle(news)
        # Not after every answer: with thousands of vehicles the round would be all the work.
        if time.monotonic() >= self._next_round_s:
            self._next_round_s = time.monotonic() + TICK_S
            for device in self._outboxes:
                self._send(device)
                self._check_timeout(device)
            self._on_progress(self._progress())

    def _events(self, timeout_s: float) -> Iterator[_Event]:
        try:
            first = self._news.get(timeout=timeout_s) if timeout_s else self._news.get_nowait()
            # As many as are there now: those that come meanwhile must not keep the loop from sending.
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
                # The broker may have taken any of them and its PUBACK be lost; paho sends all of them again.
                self._maybe_doubled += outbox.under_way
                self._connected[device] = False
            case _Up(device):
                # The first connection of a device is no reconnection.
                self._reconnects += device in self._connected
                self._connected[device] = True
            case _:
                assert_never(news)

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
        if not self._connected.get(device, False):
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
            reconnects=self._reconnects,
            maybe_doubled=self._maybe_doubled,
            seconds=round(time.monotonic() - self._began_s, 3),
            by_device=self._by_device,
        )
