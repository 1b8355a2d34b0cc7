"""Alerts of the regions: received from their topics, and stored in the lake once each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple

import pulsar
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from deltalake import DeltaTable

from cloud_jobs.errors import CommitConflict, Fenced
from cloud_jobs.lake.coverage import TenantDevice
from cloud_jobs.lake.data_files import StoredFiles, stored_rows, write_data_files
from cloud_jobs.lake.schemas import TABLES
from cloud_jobs.lake.tables import Lake
from cloud_jobs.lake.transactions import commit_files, counter_of, newest_number, next_number
from geo.alerts import Alert, MalformedAlert, decode_alert
from geo.spatial import DayEvent, is_identified_by
from waybill.pulsar.pulsar_client import PulsarAccess, PulsarAccessError, open_pulsar_client
from waybill.pulsar.pulsar_positions import MessagePosition, Silence, position_of

# New rows of alerts, events and verdicts since a commit.

_ROWS_AT_ONCE: Final = 50_000
"""The most rows that are decided together."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Row = dict[str, Any]


class OpenedTable(NamedTuple):
    lake: Lake
    name: str
    opened: DeltaTable

    def since(self, commit: int, until: int) -> pa.Table:
        """The rows of the commits after one, up to another."""
        return self._read(self._stored, {"commit_number": (commit + 1, until)})

    def of_devices(self, days: Collection[date], devices: Collection[TenantDevice]) -> list[Row]:
        names = sorted({one.device for one in devices})
        stored = self._stored.on_days(days).within("device", [(name, name) for name in names])
        found = self._read(stored, {"device": (names[0], names[-1])})
        mine = found.filter(pc.is_in(found["device"], pa.array(names, pa.string())))
        wanted = {(one.tenant, one.device) for one in devices}
        return [row for row in mine.to_pylist() if (row["tenant"], row["device"]) in wanted]

    def from_day(self, first: date, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Columns of all rows from a day on, a part at a time, the newest day first."""
        files = self.lake.files(self.name)
        with self.lake.damage_as_error(self.name):
            # the path begins with the day
            for path in sorted(self._stored.of_days(first).paths, reverse=True):
                yield from stored_rows(files, self.name, path, columns, {})

    def commit(
        self, rows: pa.Table, previous: int | None, now: datetime, states: Mapping[str, int] | None = None
    ) -> None:
        """Add rows, numbered by their commit. Raises CommitConflict if another process wrote since `previous`."""
        number = next_number(previous)
        numbers = pa.repeat(pa.scalar(counter_of(number), pa.int64()), rows.num_rows)
        rows = rows.set_column(rows.schema.get_field_index("commit_number"), "commit_number", numbers)
        rows = rows.cast(TABLES[self.name].schema)
        files = write_data_files(self.lake.files(self.name), rows, now, table=self.name)
        try:
            commit_files(
                self.opened,
                self.name,
                files,
                writer=self.name,
                previous=previous,
                number=number,
                states=states,
                now=now,
            )
        except Fenced as error:
            raise CommitConflict(self.name) from error

    @property
    def _stored(self) -> StoredFiles:
        return StoredFiles.of(self.opened, self.name)

    def _read(self, stored: StoredFiles, ranges: dict[str, tuple[Any, Any]]) -> pa.Table:
        schema = TABLES[self.name].schema
        with self.lake.damage_as_error(self.name):
            parts = stored.rows(self.lake.files(self.name), schema.names, ranges)
            return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])


def by_devices(*tables: pa.Table) -> Iterator[tuple[list[Row], ...]]:
    """The rows of each table in groups of devices. A group has all rows of its devices, and a bounded number of rows
    unless it is one device.
    """
    keyed = [table.sort_by([("tenant", "ascending"), ("device", "ascending")]) for table in tables]
    keys = pa.concat_tables([table.select(["tenant", "device"]) for table in keyed])
    counts = keys.group_by(["tenant", "device"]).aggregate([([], "count_all")])
    counts = counts.sort_by([("tenant", "ascending"), ("device", "ascending")])
    group: list[tuple[str, str]] = []
    held = 0
    for tenant, device, count in zip(
        *(counts[name].to_pylist() for name in ("tenant", "device", "count_all")), strict=True
    ):
        if group and held + count > _ROWS_AT_ONCE:
            yield tuple(_of(table, group) for table in keyed)
            group, held = [], 0
        group.append((tenant, device))
        held += count
    if group:
        yield tuple(_of(table, group) for table in keyed)


def _of(table: pa.Table, devices: Sequence[tuple[str, str]]) -> list[Row]:
    wanted = set(devices)
    some = table.filter(pc.is_in(table["device"], pa.array(sorted({device for _, device in devices}), pa.string())))
    return [row for row in some.to_pylist() if (row["tenant"], row["device"]) in wanted]


def event_of(row: Row) -> DayEvent:
    t_ms = (row["time"] - _EPOCH) // timedelta(milliseconds=1)
    return DayEvent(t_ms, row["kind"], row["place"], row["value"], row["epoch"], row["seq"])


def moment(t_ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=t_ms)


# Alerts from their topics into the table `alerts`: the first message of each id.

TABLE: Final = "alerts"
MAX_AHEAD: Final = timedelta(days=1)


class TopicAlert(NamedTuple):
    """A message of an alert topic, and the topic's tenant (None: any tenant)."""

    topic: str
    tenant: str | None
    body: bytes


@dataclass(slots=True)
class CollectedAlerts:
    """New alerts, repeated ones, and refused messages by reason."""

    added: int = 0
    repeated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    last_refused: str = ""


def collect_alerts(lake: Lake, messages: Iterable[TopicAlert], now: datetime, max_age: timedelta) -> CollectedAlerts:
    """Store messages in one commit; afterwards they may be acknowledged.

    An event older than `max_age` is refused, as its records are. Raises CommitConflict if another process collects,
    too; LakeError.
    """
    found, alerts = CollectedAlerts(), dict[str, Alert]()
    for message in messages:
        alert, why = _judged(message, now, max_age)
        if alert is None:
            _refuse(found, message, why)
        elif alerts.setdefault(alert.id, alert) is not alert:
            found.repeated += 1
    if not alerts:
        return found
    table = OpenedTable(lake, TABLE, lake.open(TABLE))
    previous = newest_number(table.opened, TABLE)
    rows = [_row(alert, now) for alert in alerts.values()]
    days = {row["day"] for row in rows}
    there = {row["id"] for row in table.of_devices(days, {TenantDevice(row["tenant"], row["device"]) for row in rows})}
    new = [row for row in rows if row["id"] not in there]
    found.repeated += len(rows) - len(new)
    if new:
        table.commit(pa.Table.from_pylist(new, schema=TABLES[TABLE].schema), previous, now)
        found.added = len(new)
    return found


def _judged(message: TopicAlert, now: datetime, max_age: timedelta) -> tuple[Alert | None, str]:
    """The alert of a message, or None and why it is refused."""
    try:
        alert = decode_alert(message.body)
    except MalformedAlert as error:
        return None, f"malformed: {error}"
    if message.tenant is not None and alert.tenant != message.tenant:
        return None, f"wrong-tenant: it is of {alert.tenant}"
    happened = moment(alert.t_ms)
    if not now - max_age <= happened <= now + MAX_AHEAD:
        return None, f"far-off: it says that it happened at {happened.isoformat()}"
    # an id of another event would get two verdicts
    if not is_identified_by(alert.id, alert.tenant, alert.device, alert.event):
        return None, f"wrong-id: {alert.id} does not follow from what it says"
    return alert, ""


def _refuse(found: CollectedAlerts, message: TopicAlert, why: str) -> None:
    found.refused[why.partition(":")[0]] += 1
    found.last_refused = f"{message.topic}: {why}"


def _row(alert: Alert, now: datetime) -> dict[str, Any]:
    happened = moment(alert.t_ms)
    return {
        **alert.model_dump(include={"id", "tenant", "device", "region", "epoch", "seq", "kind", "place", "value"}),
        "time": happened,
        "received_at": moment(alert.received_ms),
        "raised_at": moment(alert.raised_ms),
        "seen_until": [number for newest in alert.seen_until for number in newest],
        "collected_at": now,
        "day": happened.astimezone(UTC).date(),
        "commit_number": 0,
    }


MAX_BYTES: Final = 64 << 20
"""The most bytes of one run."""
RETRY_S: Final = 30.0
"""How often an unread topic or a lost cluster is tried again."""
FIRST_IDLE_S: Final = 5.0
"""How long the first message of a new subscription may take: the broker waits a second for a new consumer."""
IDLE_S: Final = 0.05
_OPERATION_S: Final = 10
# per topic
_QUEUE: Final = 1_000
# per partition
_MIN_QUEUE: Final = 50
_WAIT_MS: Final = 10
_log = structlog.get_logger("verdicts")


class ReceivedAlerts(NamedTuple):
    """`is_all`: nothing more was there. `unread`: topics that cannot be read, and why."""

    messages: list[TopicAlert]
    is_all: bool
    unread: dict[str, str]


@dataclass(slots=True)
class _Reading:
    """A subscription to one partition, and the ids of its unacknowledged messages.

    `last`: the end of the partition at `begun_ms`; None: unknown.
    """

    topic: str
    partition: str
    consumer: Any
    handed_over: list[Any] = field(default_factory=list)
    begun_ms: float = float("-inf")
    last: MessagePosition | None = None
    silence: Silence = field(default_factory=Silence)

    @property
    def problem(self) -> str:
        return self.silence.problem(is_connected=self.consumer.is_connected())

    def begin(self, until_ms: float, now_s: float) -> None:
        """Note where the partition ends now: later messages are not waited for. Raises PulsarException."""
        if self.begun_ms == until_ms and self.last is not None:
            return
        self.begun_ms, self.last = until_ms, None
        # without a connection this call would wait for the cluster
        if self.consumer.is_connected():
            self.last = position_of(self.consumer.get_last_message_id())
            if self.silence.is_to_ask(now_s):
                self.silence.on_end(self.last.of_entry, now_s)

    def on_message(self, message: Any, now_s: float) -> bool:
        """A message came; returns whether it is the last one to wait for.

        Its position decides, not its publish time: a region's clock may be ahead.
        """
        self.handed_over.append(message.message_id())
        position = position_of(message.message_id())
        self.silence.on_read(position.of_entry, now_s)
        return self.last is not None and position >= self.last

    def ask_again(self, now_s: float) -> None:
        """Ask for the unacknowledged messages again. Raises PulsarException."""
        self.consumer.redeliver_unacknowledged_messages()
        self.silence.on_asked_again(max(position_of(one).of_entry for one in self.handed_over), now_s)
        self.handed_over.clear()


class AlertSubscription:
    """Reads topics from the first cluster that answers, and stays there until it is lost.

    `topics`: with the tenant that each may contain (None: any). A topic that cannot be read does not block others; it
    is tried again after RETRY_S. A second process with this subscription waits, and takes over when the first one ends.
    """

    def __init__(
        self,
        service_urls: Sequence[str],
        access: PulsarAccess,
        topics: Mapping[str, str | None],
        subscription: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls, self._access, self._topics = tuple(service_urls), access, dict(topics)
        self._subscription, self._clock = subscription, clock
        self._client: Any = None
        self._readings: list[_Reading] = []
        self._unread: dict[str, str] = dict.fromkeys(topics, "it was not tried yet")
        self._tried_s = float("-inf")

    def receive(self, max_messages: int, until_s: float | None = None) -> ReceivedAlerts:
        """The messages that are there, or arrive within a moment. Unacknowledged ones come again.

        `until_s`: later messages (seconds since 1970) are not waited for; None: from now on. With the same moment as
        before, it continues where it was.
        """
        until_ms = (time.time() if until_s is None else until_s) * 1000
        is_again = self._ask_again()
        is_fresh = self._subscribe() or is_again
        messages: list[TopicAlert] = []
        open_readings, taken_bytes = [*self._readings], 0
        ends_s = self._clock() + (FIRST_IDLE_S if is_fresh else IDLE_S)
        while len(messages) < max_messages and taken_bytes < MAX_BYTES:
            if not open_readings or self._clock() >= ends_s:
                return ReceivedAlerts(messages, True, self._not_read())
            for reading in [*open_readings]:
                found, is_past = self._drained(reading, max_messages - len(messages), until_ms)
                messages += found
                taken_bytes += sum(len(one.body) for one in found)
                if found:
                    ends_s = max(ends_s, self._clock() + IDLE_S)
                if is_past:
                    open_readings.remove(reading)
        return ReceivedAlerts(messages, False, self._not_read())

    def acknowledge(self) -> None:
        """Acknowledge what was received. What cannot be acknowledged comes again."""
        for reading in [*self._readings]:
            try:
                for message_id in reading.handed_over:
                    reading.consumer.acknowledge(message_id)
                reading.handed_over.clear()
            except pulsar.PulsarException as error:
                self._lose(reading, error)

    def close(self) -> None:
        """Close the connections; the subscriptions remain."""
        client, self._client, self._readings = self._client, None, []
        if client is not None:
            with suppress(pulsar.PulsarException):
                client.close()

    def _not_read(self) -> dict[str, str]:
        """The topics whose backlog is unknown, also during a short loss of the connection."""
        return self._unread | {one.topic: one.problem for one in self._readings if one.problem}

    def _ask_again(self) -> bool:
        """Ask again for what a failed run did not acknowledge; returns whether there was any."""
        found = [one for one in self._readings if one.handed_over]
        for reading in found:
            try:
                reading.ask_again(self._clock())
            except pulsar.PulsarException as error:
                self._lose(reading, error)
        return bool(found)

    def _subscribe(self) -> bool:
        """Subscribe to what is not read, if it is time; returns whether any subscription is new."""
        for reading in [*self._readings]:
            if self._clock() - self._tried_s >= RETRY_S and (problem := reading.problem):
                self._lose(reading, ConnectionError(problem))
        # also when all are read: a topic may have got more partitions
        if self._clock() - self._tried_s < RETRY_S:
            return False
        self._tried_s = self._clock()
        if not self._readings:
            # which cluster has them is unknown
            self.close()
        before = len(self._readings)
        if self._client is not None:
            self._subscribe_here()
        else:
            self._find_cluster()
        return len(self._readings) > before

    def _find_cluster(self) -> None:
        for url in self._urls:
            self._open(url)
            if self._subscribe_here() or self._readings:
                return
            self.close()

    def _open(self, url: str) -> None:
        try:
            self._client = open_pulsar_client(url, self._access, timeout_s=_OPERATION_S)
        except (PulsarAccessError, ValueError, RuntimeError) as error:
            self._client = None
            self._unread = dict.fromkeys(self._unread, f"{url}: {error}")

    def _subscribe_here(self) -> bool:
        """Try each partition that is not read; returns whether the cluster answers."""
        if self._client is None:
            return False
        for topic in self._topics:
            try:
                # a consumer for each, as the client gives no common end of several
                partitions = self._client.get_topic_partitions(topic)
                for partition in partitions:
                    self._subscribe_to(topic, partition, max(_QUEUE // len(partitions), _MIN_QUEUE))
            except (pulsar.Timeout, pulsar.ConnectError) as error:
                self._note_unread(topic, error)
                # a silent cluster: each further topic would wait as long
                return False
            except pulsar.PulsarException as error:
                self._note_unread(topic, error)
            else:
                self._unread.pop(topic, None)
        return True

    def _subscribe_to(self, topic: str, partition: str, queue: int) -> None:
        if any(one.partition == partition for one in self._readings):
            return
        consumer = self._client.subscribe(
            partition,
            self._subscription,
            consumer_type=pulsar.ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=queue,
            # the standby centre continues at the same position
            replicate_subscription_state_enabled=True,
        )
        self._readings.append(_Reading(topic, partition, consumer))
        _log.info("reading alerts", topic=partition)

    def _drained(self, reading: _Reading, at_most: int, until_ms: float) -> tuple[list[TopicAlert], bool]:
        """The messages of a partition now, and whether its last one to wait for was among them."""
        found: list[TopicAlert] = []
        is_past = False
        try:
            # without the partition's end, it is unknown whether all was read
            reading.begin(until_ms, self._clock())
            while len(found) < at_most and not is_past and (message := _received(reading)) is not None:
                is_past = reading.on_message(message, self._clock())
                found.append(TopicAlert(reading.topic, self._topics[reading.topic], message.data()))
        except pulsar.PulsarException as error:
            self._lose(reading, error)
        return found, is_past

    def _lose(self, reading: _Reading, error: Exception) -> None:
        if reading in self._readings:
            self._readings.remove(reading)
            self._note_unread(reading.topic, error)
        with suppress(pulsar.PulsarException):
            reading.consumer.close()

    def _note_unread(self, topic: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._unread.get(topic) != text:
            _log.warning("alerts cannot be read", topic=topic, error=text)
        self._unread[topic] = text


def _received(reading: _Reading) -> Any:
    try:
        return reading.consumer.receive(timeout_millis=_WAIT_MS)
    except pulsar.Timeout:
        return None


# One read of the alert topics.

MAX_MESSAGES: Final = 5_000
"""The most messages of one commit."""
# a million messages; the next run reads the rest
MAX_COMMITS: Final = 200
MAX_S: Final = 60.0
"""The longest collection; the next run reads the rest."""
_LOG = structlog.get_logger("verdicts", job="verdicts")


def collect(
    lake: Lake, alerts: AlertSubscription, max_age: timedelta, *, max_commits: int = MAX_COMMITS, max_s: float = MAX_S
) -> dict[str, Any]:
    """Store what the topics had at the begin; returns counts. `unfinished`: 1 if more waited than a run may take.

    All of it has to be read, or an event would be called late while its alert waits. Later alerts must not delay
    verdicts.
    """
    counts, began_s, is_all = Counter[str](), time.time(), False
    for _ in range(max_commits):
        received = alerts.receive(MAX_MESSAGES, began_s)
        found = collect_alerts(lake, received.messages, datetime.now(UTC), max_age)
        alerts.acknowledge()
        if found.refused:
            _LOG.warning("messages that are not alerts", refused=dict(found.refused), last=found.last_refused)
        refused = sum(found.refused.values())
        counts.update({"alerts": found.added, "repeated": found.repeated, "refused": refused})
        # bounded, as messages may arrive all the time
        is_all = received.is_all
        if is_all or time.time() - began_s > max_s:
            break
    return {**counts, "left_out": len(received.unread), "unfinished": int(not is_all)}
