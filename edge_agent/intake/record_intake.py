"""The part of the intake that needs no connection: it takes messages and commits them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache

import structlog
from paho.mqtt.client import topic_matches_sub

from edge_agent.clocks import (
    SET_CLOCK_MS,
    ClockJump,
    ClockMonitor,
    Clocks,
    CorrectionRules,
    HeadStatement,
    InputWatermark,
)
from edge_agent.config import AgentSettings, ClassSettings
from edge_agent.errors import StoreDamaged, StoreError, StoreFull
from edge_agent.intake.messages import MessageParser, Parsed, UnreadableMessages
from edge_agent.store.batch_rows import Arrival, PendingRecord, RedeliveryMatcher, StoredBatch, arrival_of
from edge_agent.store.buffer import Buffer
from edge_agent.store.database import BufferCounters
from edge_agent.store.retention import BufferRetention
from edge_agent.vehicle_broker import ArrivalMarker
from waybill.mqtt.mqtt_client import MqttMessage
from waybill.record import (
    MAX_DEVICE_TIME_US,
    VEHICLE_EVENT,
    VEHICLE_POSITION,
    VEHICLE_SIGNAL,
    Body,
    Event,
    Position,
    Raw,
    Signal,
)

# The class of a topic.

REMEMBERED_TOPICS = 1024


_CONTRACT_TOPICS: dict[type[Body], str] = {Position: VEHICLE_POSITION, Signal: VEHICLE_SIGNAL, Event: VEHICLE_EVENT}


def classifier(classes: Sequence[ClassSettings]) -> Callable[[str, type[Body] | None], int]:
    """A function to the index of the first class with a filter that matches the topic.

    Its second argument is the body of a record that a mapping made. If only `#` matches its topic, it has the class of
    the contract's topic for such records.
    """

    @lru_cache(maxsize=REMEMBERED_TOPICS)
    def classify(topic: str, mapped: type[Body] | None = None) -> int:
        contract_topic = _CONTRACT_TOPICS.get(mapped) if mapped is not None else None
        for index, one in enumerate(classes):
            # A topic that begins with $ matches no wildcard (MQTT 5, 4.7.2), but a record needs a class.
            takes_all = contract_topic is None and "#" in one.topics
            if takes_all or any(pattern != "#" and topic_matches_sub(pattern, topic) for pattern in one.topics):
                return index
        assert contract_topic is not None, "the settings promise a class that takes everything"
        return classify(contract_topic, None)

    return classify


# When to commit: latency against flash wear. Pure: handed the time.

GATHER_S = 0.02
"""Messages that a vehicle reports together arrive within this time, and become one commit."""
BURST_MESSAGES = 8
"""So many messages and then silence: the broker's window is probably full, and it waits for acknowledgements."""


class GroupCommit:
    """Decides when waiting messages are committed.

    A commit is due after `delay_s`, or when so many `records` or bytes (`size`) wait. Commits that are due by time
    alone are `delay_s` apart.
    """

    def __init__(self, *, delay_s: float, records: int, size: int) -> None:
        self._delay_s = delay_s
        self._max_records = records
        self._max_size = size
        self._committed_s = -math.inf
        self._urgent = False
        self._reset()

    def add(self, now_s: float, size: int, *, urgent: bool, records: int = 1) -> None:
        if not self.waiting:
            self._oldest_s = now_s
        self._latest_s = now_s
        self.waiting += 1
        self._records += records
        self._size += size
        self._urgent = self._urgent or urgent

    def due_in(self, now_s: float) -> float | None:
        """Seconds until the commit is due; None when nothing waits."""
        if not self.waiting:
            return None
        if self._urgent or self._records >= self._max_records or self._size >= self._max_size:
            return 0.0
        gather_s = min(GATHER_S, self._delay_s)
        due_s = max(self._oldest_s + gather_s, self._committed_s + self._delay_s)
        if self.waiting >= BURST_MESSAGES:
            due_s = min(due_s, self._latest_s + gather_s)
        return max(0.0, min(due_s, self._oldest_s + self._delay_s) - now_s)

    def on_committed(self, now_s: float) -> None:
        if self.waiting:
            self._committed_s = now_s
        self._reset()

    def _reset(self) -> None:
        self.waiting = self._records = self._size = 0
        self._urgent = False
        self._oldest_s = self._latest_s = 0.0


log = structlog.get_logger("edge_agent.intake")

STATED_EVERY_US = 1_000_000
COMMIT_BYTES = 1 << 20
"""A commit is made as soon as so many bytes wait."""
MAX_WAITING_BYTES = 32 << 20
"""With more waiting payload bytes than this, the agent reads no further messages."""
MAX_NAMES, MAX_NAME_CHARACTERS = 64, 40
"""Limits of the names that are counted; further names are counted as OTHER_NAMES."""
OTHER_NAMES = "(others)"
MAX_WAITING_RECORDS = 1 << 17
"""The same limit in records, for messages that hold many."""


@dataclass(slots=True)
class IntakeCounters:
    """Counters since the agent started.

    `malformed`: raw records by reason. `not_recorded`: retained and empty messages. `left_out_members`: by name.
    """

    messages: int = 0
    commits: int = 0
    malformed: dict[str, int] = field(default_factory=dict)
    not_recorded: int = 0
    left_out_members: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeParts:
    """`on_commit`, `on_missed` (unknown batches), `on_jump` and `on_statement` (None: nothing can be stated) call the
    drain.
    """

    buffer: Buffer
    retention: BufferRetention
    clocks: Clocks
    clock_monitor: ClockMonitor
    correction: CorrectionRules
    parser: MessageParser = field(default_factory=MessageParser)
    on_commit: Callable[[Sequence[StoredBatch]], None]
    on_missed: Callable[[], None]
    on_jump: Callable[[ClockJump], None]
    on_statement: Callable[[HeadStatement | None], None] = lambda _: None


class Intake:
    """Waiting messages and their commit. Used by one thread."""

    def __init__(self, settings: AgentSettings, parts: IntakeParts) -> None:
        self._parts = parts
        self.parser = parts.parser
        self._classify = classifier(settings.classes)
        self._urgent = [one.urgent for one in settings.classes]
        limits = settings.buffer
        self._group = GroupCommit(
            delay_s=limits.commit_delay_ms / 1000, records=limits.commit_records, size=COMMIT_BYTES
        )
        self._jump: ClockJump | None = None
        self._grace_us = int(settings.time.grace_s * 1_000_000)
        self._watermark = InputWatermark(self._grace_us)
        self._statement: HeadStatement | None = None
        self._earliest_waiting_us = MAX_DEVICE_TIME_US
        self._stated_at_us = 0
        self._waiting: list[PendingRecord] = []
        self._arrivals: set[Arrival] = set()
        self._mids: list[int] = []
        self._unknown_commit: tuple[int, int, int] | None = None
        self._resumption: RedeliveryMatcher | None = None
        self._unproven: set[Arrival] = set()
        self._waiting_bytes = 0
        self.counters = IntakeCounters()
        self.unreadable = UnreadableMessages()
        self.is_failing = False
        """Whether the last commit failed."""
        self.arrivals = ArrivalMarker(is_needed=parts.parser.needs_arrivals)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kept_counters(self) -> BufferCounters:
        """Counters that survive a restart."""
        return self._parts.buffer.counters

    def subscriptions(self) -> set[str]:
        """The filters that the agent's session at the vehicle's broker may have, as far as the buffer can be read."""
        try:
            return self._parts.buffer.subscriptions()
        except StoreError as error:
            log.warning("the filters of the session cannot be read", error=str(error))
            return set()

    def store_subscriptions(self, filters: Set[str]) -> None:
        """Stores the session's filters, so that a later change of topics leaves none of them in the session."""
        try:
            self._parts.buffer.set_subscriptions(filters)
        except StoreError as error:
            log.warning("the filters of the session cannot be stored", error=str(error))

    def due_in(self, now_s: float) -> float | None:
        """Seconds until the commit is due; None when nothing waits."""
        return self._group.due_in(now_s)

    @property
    def is_full(self) -> bool:
        """Whether no more messages may be taken before a commit succeeds."""
        return self._waiting_bytes >= MAX_WAITING_BYTES or len(self._waiting) >= MAX_WAITING_RECORDS

    def receive(self, message: MqttMessage, now_s: float) -> bool:
        """Takes a message. True if nothing of it waits for a commit, so that it must be acknowledged now."""
        # A retained message was recorded when it was published; an empty payload only ends a retention.
        if message.retain or not (message.payload or message.missing):
            self.counters.not_recorded += 1
            self._watermark.on_message(self._parts.clocks.monotonic_us(), None)
            return True
        arrival = arrival_of(message.mid, message.topic, message.payload)
        if message.dup and arrival in self._arrivals:
            # It waits already; this connection needs its own PUBACK.
            self._mids.append(message.mid)
            self._watermark.on_redelivered(self._parts.clocks.monotonic_us())
            return False
        parsed = self._parsed(message)
        if message.qos and self._match_redelivery(message, arrival, parsed[0].device_time_us):
            self._parts.buffer.counters.add("duplicates", 1)
            self._watermark.on_redelivered(self._parts.clocks.monotonic_us())
            return True
        self._enqueue(message, arrival, parsed, now_s)
        return False

    @property
    def has_known_arrivals(self) -> bool:
        """Whether the agent has received messages of a session before."""
        return len(self._parts.buffer.recent) > 0

    def on_connected(self, *, resumed: bool) -> None:
        """`resumed`: the broker knows the session and may deliver again."""
        self._resumption = RedeliveryMatcher(self._parts.buffer.recent.arrivals()) if resumed else None
        self._unproven.clear()
        now_us = self._parts.clocks.monotonic_us()
        self._watermark.on_connected(now_us, resumed=resumed)
        self.arrivals.on_connected(now_us, resumed=resumed)

    def on_disconnected(self) -> None:
        """The broker delivers unacknowledged messages again, and the recent arrivals show that."""
        self._mids.clear()
        self._watermark.on_disconnected()

    def state_head(self) -> None:
        """Passes the current head statement to the drain, at most once a second. Call it after all messages were
        handled.
        """
        wall_us, monotonic_us = self.check_clocks()
        self._watermark.update(monotonic_us, waits=bool(self._waiting))
        received_until_us = self._watermark.received_until_us
        # after a jump, messages with times of the former clock may still arrive
        is_known = received_until_us is not None and self._jump is None and wall_us >= SET_CLOCK_MS * 1000
        if not is_known or monotonic_us - self._stated_at_us < STATED_EVERY_US:
            return
        assert received_until_us is not None
        if self._waiting:
            received_until_us = min(received_until_us, self._waiting[0].monotonic_us)
        stated_us = min(wall_us - (monotonic_us - received_until_us) - self._grace_us, self._earliest_waiting_us)
        buffer = self._parts.buffer
        generation, epoch, head = buffer.generation, buffer.epoch, buffer.head
        # the drain may rebuild the buffer meanwhile
        if 0 < stated_us <= MAX_DEVICE_TIME_US and (generation, epoch) == (buffer.generation, buffer.epoch):
            self._stated_at_us = monotonic_us
            self._set_statement(HeadStatement(epoch, head, stated_us))

    def _set_statement(self, statement: HeadStatement | None) -> None:
        self._statement = statement
        self._parts.on_statement(statement)

    def commit(self, now_s: float) -> list[int] | None:
        """Stores what waits; returns the message ids to acknowledge, or None if the buffer failed."""
        if self._waiting and not self._try_commit(now_s):
            return None
        if self._group.waiting and not self._waiting:
            self._group.on_committed(now_s)
        mids, self._mids = self._mids, []
        return mids

    def _match_redelivery(self, message: MqttMessage, arrival: Arrival, device_time_us: int | None) -> bool:
        """Whether the message is stored already."""
        resumption = self._resumption
        is_marked = message.dup and self._parts.buffer.recent.is_newest_of_its_id(arrival)
        if resumption is None:
            return is_marked
        if not resumption.try_advance(arrival):
            self._resumption = None
            return is_marked
        if is_marked or resumption.is_anchor(arrival, device_time_us):
            self._drop_redelivered()
            return True
        self._unproven.add(arrival)
        return False

    def _drop_redelivered(self) -> None:
        """Drops the waiting messages that came before a proven redelivery: the broker delivers in order."""
        # An unknown commit is identified by the number of waiting messages: none of them may leave.
        if not self._unproven or self._unknown_commit is not None:
            return
        kept = [one for one in self._waiting if one.arrival not in self._unproven]
        messages = sum(not one.continues for one in self._waiting) - sum(not one.continues for one in kept)
        self._parts.buffer.counters.add("duplicates", messages)
        self._unproven.clear()
        self._keep_waiting(kept)

    def _keep_waiting(self, kept: list[PendingRecord]) -> None:
        """Replaces the waiting records and what is derived from them."""
        self._waiting = kept
        # A stored message in this set would wait for the next commit's PUBACK.
        self._arrivals = {one.arrival for one in kept if one.arrival.mid}
        self._waiting_bytes = sum(len(one.payload) for one in kept)
        self._earliest_waiting_us = min((one.device_time_us for one in kept), default=MAX_DEVICE_TIME_US)

    def _parsed(self, message: MqttMessage) -> tuple[Parsed, ...]:
        """The message's records; raw after an unexpected error, because no message may stop the intake."""
        try:
            return self.parser.parse(message.topic, message.payload, message.missing)
        except Exception as error:  # noqa: BLE001 - see above
            log.error("a message that cannot be read is carried raw", topic=message.topic, error=repr(error))
            raw = Raw.model_construct(topic=message.topic, payload=message.payload, reason="unreadable")
            return (Parsed(raw, None, raw.reason, message.payload),)

    def _enqueue(self, message: MqttMessage, arrival: Arrival, parsed: tuple[Parsed, ...], now_s: float) -> None:
        topic = message.topic
        wall_us, monotonic_us = self.check_clocks()
        if not self.arrivals.are_known(monotonic_us):
            parsed = self.parser.without_arrival(parsed, topic, message.payload)
        parsed = self.parser.accept(parsed, topic, monotonic_us)
        is_urgent = False
        for place, one in enumerate(parsed):
            if one.malformed:
                _count(self.counters.malformed, one.malformed)
                self.unreadable.add(topic, one.malformed, one.payload, now_s, one.detail)
            else:
                self.unreadable.readable_at_s = now_s
            for name in one.left_out:
                _count(self.counters.left_out_members, name[:MAX_NAME_CHARACTERS])
            pending = self._append(topic, one, arrival, (wall_us, monotonic_us), continues=place > 0)
            is_urgent = is_urgent or self._urgent[pending.class_index]
            self._observe_time(
                pending.device_time_us, wall_us, monotonic_us, is_kept=message.qos and one.device_time_us
            )
        if message.qos:
            self._mids.append(message.mid)
            self._arrivals.add(arrival)
        size = len(message.payload)
        self.counters.messages += 1
        self._group.add(now_s, size, urgent=is_urgent, records=len(parsed))

    def _append(
        self, topic: str, one: Parsed, arrival: Arrival, at_us: tuple[int, int], *, continues: bool = False
    ) -> PendingRecord:
        """Adds a record that arrived at a wall and a monotonic time, the first of which it has without its own."""
        wall_us, monotonic_us = at_us
        pending = PendingRecord(
            self._classify(topic, type(one.body) if one.mapping else None),
            one.body,
            _within_wire(wall_us) if one.device_time_us is None else one.device_time_us,
            monotonic_us,
            self._parts.clocks.boot,
            arrival,
            topic=topic,
            payload=one.payload,
            continues=continues,
            mapping=one.mapping,
        )
        # A message sent before the jump has the time of the former clock.
        pending = self._corrected(pending, self._jump) if self._jump else pending
        self._waiting.append(pending)
        self._waiting_bytes += len(one.payload)
        return pending

    def add_late_records(self, now_s: float) -> float | None:
        """Adds records that became due without a message; returns the seconds until the next one is due, if any."""
        due_s = self.parser.due_in(self._parts.clocks.monotonic_us())
        if due_s != 0:
            return due_s
        wall_us, monotonic_us = self.check_clocks()
        for topic, one, arrival_us in self.parser.expire(monotonic_us):
            arrived_us, of = wall_us - (monotonic_us - arrival_us), arrival_of(0, topic, one.payload)
            pending = self._append(topic, one, of, (arrived_us, arrival_us))
            self._observe_time(pending.device_time_us, wall_us, monotonic_us, is_kept=False)
            self._group.add(now_s, len(one.payload), urgent=self._urgent[pending.class_index])
        return self.parser.due_in(monotonic_us)

    def add_own_record(self, topic: str, body: Event, counts: Mapping[str, int], *, now_s: float) -> None:
        """Adds a record of the agent itself. `counts`: counters that grow when it is stored."""
        wall_us, monotonic_us = self.check_clocks()
        index, payload = self._classify(topic, None), body.attributes.encode()
        of, boot = arrival_of(0, topic, payload), self._parts.clocks.boot
        pending = PendingRecord(index, body, _within_wire(wall_us), monotonic_us, boot, of, 0, topic, payload)
        self._keep_waiting([*self._waiting, pending._replace(counts=counts)])
        self._group.add(now_s, len(payload), urgent=self._urgent[index])

    def _observe_time(self, time_us: int, wall_us: int, monotonic_us: int, *, is_kept: object) -> None:
        """`is_kept`: the message has its own time, and the broker would have queued it."""
        self._watermark.on_message(monotonic_us, wall_us - time_us if is_kept else None)
        self._earliest_waiting_us = min(self._earliest_waiting_us, time_us)
        if self._statement is not None and time_us < self._statement.stated_us:
            # older than `grace_s`: it contradicts the statement, which cannot be withdrawn
            self._parts.buffer.counters.add("late", 1)
            self._watermark.on_contradicted()
            self._set_statement(None)

    def check_clocks(self) -> tuple[int, int]:
        """Wall and monotonic time in microseconds; a jump of the wall clock is corrected."""
        parts = self._parts
        wall_us, monotonic_us = parts.clocks.wall_us(), parts.clocks.monotonic_us()
        jump = parts.clock_monitor.check(wall_us, monotonic_us)
        if jump is not None:
            log.warning("the clock jumped", seconds=jump.delta_us / 1_000_000)
            self._jump = jump
            self._keep_waiting([self._corrected(one, jump) for one in self._waiting])
            self._set_statement(None)
            parts.on_jump(jump)
        elif self._jump and monotonic_us > self._jump.at_us + parts.correction.same_clock_us:
            self._jump = None
        return wall_us, monotonic_us

    def _corrected(self, pending: PendingRecord, jump: ClockJump) -> PendingRecord:
        rules = self._parts.correction
        time_us = rules.corrected_time_us(pending.device_time_us, pending.monotonic_us, jump)
        if time_us is None:
            return pending
        uncertainty_ms = max(pending.uncertainty_ms, rules.uncertainty_ms(pending.monotonic_us, jump))
        return pending._replace(device_time_us=time_us, uncertainty_ms=uncertainty_ms)

    def _try_commit(self, now_s: float) -> bool:
        buffer = self._parts.buffer
        generation = buffer.generation
        try:
            self._resolve_unknown_commit()
            if self._waiting:
                # Before the commit: after an error only the reopened file shows the outcome.
                self._unknown_commit = (generation, buffer.head, self.waiting)
                batches = buffer.commit(self._waiting, self._parts.clocks.wall_us() // 1000)
                self._on_committed(now_s, batches)
        except StoreError as error:
            log.error("the buffer cannot commit", reason=error.reason, error=str(error), waiting=self.waiting)
            buffer.counters.add(f"failed_commits_{error.reason}", 1)
            self._recover(error, generation)
            self.is_failing = True
            return False
        self.is_failing = False
        return True

    def _on_committed(self, now_s: float, batches: Sequence[StoredBatch]) -> None:
        self._group.on_committed(now_s)
        self._on_stored(self.waiting)
        self._parts.on_commit(batches)
        self._enforce_retention()

    def _on_stored(self, count: int) -> None:
        """The first `count` waiting messages are stored."""
        self.counters.commits += 1
        self._unknown_commit = None
        stored = {one.arrival for one in self._waiting[:count]} & self._unproven
        self._parts.buffer.counters.add("possible_duplicates", len(stored))
        self._unproven -= stored
        self._keep_waiting(self._waiting[count:])

    def _resolve_unknown_commit(self) -> None:
        """After a failed commit: finds out whether it is stored. Raises StoreError.

        After a failed sync the data may be on disk or not; only the reopened file shows it.
        """
        if self._unknown_commit is None:
            return
        generation, head, count = self._unknown_commit
        buffer = self._parts.buffer
        buffer.reopen()
        # Heads of two epochs cannot be compared: after a rebuild everything is stored again, which loses nothing.
        if generation == buffer.generation:
            assert head <= buffer.head <= head + count, "a commit is whole or absent"
            if buffer.head > head:
                self._on_stored(count)
                self._parts.on_missed()
        self._unknown_commit = None

    def _recover(self, error: StoreError, generation: int) -> None:
        if isinstance(error, StoreFull):
            self._enforce_retention()
        elif isinstance(error, StoreDamaged):
            try:
                self._parts.buffer.repair(generation)
            except StoreError as again:
                log.error("the buffer cannot be rebuilt", reason=again.reason, error=str(again))

    def _enforce_retention(self) -> None:
        try:
            self._parts.retention.enforce()
        except StoreError as error:
            log.error("the buffer cannot be kept within its bounds", reason=error.reason, error=str(error))


def _within_wire(wall_us: int) -> int:
    """Limits a wall clock time to what a record can hold."""
    return min(max(0, wall_us), MAX_DEVICE_TIME_US)


def _count(counts: dict[str, int], name: str) -> None:
    """Counts a name, or OTHER_NAMES once there are MAX_NAMES: a publisher may invent names without end."""
    if name not in counts and len(counts) >= MAX_NAMES:
        name = OTHER_NAMES
    counts[name] = counts.get(name, 0) + 1
