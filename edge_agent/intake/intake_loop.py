"""The intake thread: it receives messages, commits them, and only then acknowledges them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from random import Random

import structlog
from paho.mqtt.client import topic_matches_sub

from edge_agent.config import IntakeSettings
from edge_agent.errors import LinkError
from edge_agent.intake.record_intake import Intake
from edge_agent.uplink.mqtt_session import MqttSession
from edge_agent.vehicle_broker import (
    ARRIVED_TOPIC,
    DROPPED_TOPIC,
    KNOWN,
    UNPROVEN,
    BrokerWatch,
    marker_topic,
)
from waybill.daemon.backoff import Backoff
from waybill.mqtt.mqtt_client import MqttMessage, MqttSessionOptions
from waybill.record import NO_ARRIVAL

log = structlog.get_logger("edge_agent.intake")

MAX_PACKET_BYTES = 16 << 20
"""A larger MQTT packet is not kept: it becomes an event `waybill.too_large` with its size."""
LONGEST_WAIT_S = 10.0
RETRY_FIRST_S = 0.2
RETRY_MAX_S = 5.0


def widest_filters(filters: Sequence[str]) -> list[str]:
    """The filters without those whose topics another one has too: a broker may send their messages twice."""
    widest: list[str] = []
    for one in sorted(dict.fromkeys(filters), key=lambda text: ("#" not in text, "+" not in text)):
        if not any(topic_matches_sub(other, one) and ("#" in other or "#" not in one) for other in widest):
            widest.append(one)
    return widest


class IntakeLoop:
    """Runs in one thread (`run`). Other threads use `stop` and read the attributes."""

    def __init__(self, settings: IntakeSettings, intake: Intake, random: Random) -> None:
        self._settings = settings
        self._topics = widest_filters([*settings.topics, *intake.parser.filters])
        self.intake = intake
        self._backoff = Backoff(settings.backoff_first_s, settings.backoff_max_s, random.random)
        self._retry = Backoff(RETRY_FIRST_S, RETRY_MAX_S, random.random)
        self._session: MqttSession | None = None
        self._is_reached = False
        self._stopping = threading.Event()
        self.connected = False
        self.broker_watch = BrokerWatch(intake.kept_counters)
        self._random = random
        self._marker_topic = marker_topic(settings.client_id)
        self._logged_arrivals = KNOWN
        self.heartbeat_s = time.monotonic()
        """When the thread was last seen alive, by the monotonic clock."""

    def stop(self) -> None:
        """Commits what waits and ends the thread."""
        self._stopping.set()
        session = self._session
        if session is not None:
            session.wake()

    def run(self) -> None:
        """Connects and listens until `stop`; waits and retries after each failure."""
        while not self._stopping.is_set():
            try:
                self._listen()
            except LinkError as error:
                log.warning("local broker lost" if self._is_reached else "local broker not reached", error=str(error))
            self.connected = False
            self.intake.on_disconnected()
            self.heartbeat_s = time.monotonic()
            # Also without a connection: a redelivery of a stored message is recognised.
            while self.intake.commit(time.monotonic()) is None:
                self.heartbeat_s = time.monotonic()
                if self._stopping.wait(self._retry.take_delay_s()):
                    break
            self._close_session()
            self._stopping.wait(0 if self._stopping.is_set() else self._backoff.take_delay_s())

    def _listen(self) -> None:
        self._is_reached = False
        settings = self._settings
        options = MqttSessionOptions(
            client_id=settings.client_id,
            keeps_session=True,
            receive_maximum=settings.receive_maximum,
            max_packet_bytes=MAX_PACKET_BYTES,
            truncates_larger=True,
        )
        self._session = session = MqttSession(settings, options, self._on_message)
        session.open()
        self._is_reached = True
        was_connected = self.intake.has_known_arrivals
        self.broker_watch.on_connected(time.monotonic(), resumed=session.session_present, was_connected=was_connected)
        self.intake.on_connected(resumed=session.session_present)
        self._subscribe(session)
        while not self._stopping.is_set():
            late_s = self.intake.add_late_records(time.monotonic())
            due_s = self.intake.due_in(time.monotonic())
            if due_s == 0 or self.intake.is_full:
                self._commit(session)
            waits_s = [one for one in (due_s, late_s) if one is not None]
            if self.intake.arrivals.is_needed:
                self._mark_arrivals(session)
            session.poll(min(waits_s, default=LONGEST_WAIT_S))
            if session.is_subscribed and not self.connected:
                self.connected = True
                self._backoff.reset()
                self._store_subscriptions(session)
                log.info("listening", broker=f"{settings.host}:{settings.port}", topics=self._topics)
            # In every round: stored records must be corrected even if no message comes.
            self.intake.state_head()
            self._declare_dropped()
            self.heartbeat_s = time.monotonic()
        self._commit(session)
        # Sends the PUBACKs of the last commit.
        session.poll(0)

    def _subscribe(self, session: MqttSession) -> None:
        """Makes the session's filters those of the settings. `poll` gets the answers."""
        known = self.intake.subscriptions() if session.session_present else set()
        # Before the broker has them: after a crash, each filter of its session must be known.
        self.intake.store_subscriptions(known | self._filters)
        # A filter of former settings would deliver each message twice. One at a time, so that one refusal counts alone.
        # Before the new ones: a message in between is lost, but one that came twice would be billed twice.
        for topic in sorted(known - self._filters):
            session.unsubscribe(topic)
        # Without waiting: a broker sends queued messages before its answer, and those must be committed.
        for topic in self._topics:
            session.subscribe(topic, takes_retained=False)
        session.watch(DROPPED_TOPIC)
        if self.intake.arrivals.is_needed:
            session.watch(self._marker_topic, qos=1)

    def _store_subscriptions(self, session: MqttSession) -> None:
        if session.kept_topics:
            log.warning("the broker keeps former subscriptions", topics=sorted(session.kept_topics))
        self.intake.store_subscriptions(session.kept_topics | self._filters)

    @property
    def _filters(self) -> set[str]:
        """The filters of the session that outlive a connection."""
        return {*self._topics, self._marker_topic} if self.intake.arrivals.is_needed else {*self._topics}

    def _mark_arrivals(self, session: MqttSession) -> None:
        """Publishes a marker if one is due."""
        arrivals, now_us = self.intake.arrivals, self._take_answers(session)
        if arrivals.is_due(now_us):
            nonce = b"%016x" % self._random.getrandbits(64)
            arrivals.on_published(nonce, now_us)
            session.publish(self._marker_topic, nonce)
        state = arrivals.state(now_us)
        if state == self._logged_arrivals:
            return
        self._logged_arrivals = state
        raw = self.intake.counters.malformed.get(NO_ARRIVAL, 0)
        if state == UNPROVEN:
            advice = f"the vehicle's broker must let this user publish and read {self._marker_topic}"
            log.warning("messages without a time of their own cannot be timed", arrivals=state, raw=raw, advice=advice)
        else:
            log.info("messages without a time of their own", arrivals=state, raw=raw)

    def _take_answers(self, session: MqttSession) -> int:
        """Reads whether the broker refused a marker, or nothing subscribes to it; returns the monotonic time."""
        _, now_us = self.intake.check_clocks()
        if any(reason.value for _, reason in session.take_publish_results()):
            self.intake.arrivals.on_refused(now_us)
        return now_us

    def _on_message(self, message: MqttMessage) -> None:
        assert self._session is not None
        if message.topic == DROPPED_TOPIC:
            self.broker_watch.on_dropped(message.payload, time.monotonic(), self._wall_ms())
        elif message.topic.startswith(ARRIVED_TOPIC):
            self.intake.arrivals.on_received(message.payload)
            self._session.acknowledge(message.mid)
        elif self.intake.receive(message, time.monotonic()):
            self._session.acknowledge(message.mid)

    def _declare_dropped(self) -> None:
        # after a failed commit a waiting record declares it already
        if not self.intake.is_failing:
            now_s = time.monotonic()
            declaration = self.broker_watch.take_declaration(now_s, self._wall_ms)
            if declaration is not None:
                self.intake.add_own_record(DROPPED_TOPIC, *declaration, now_s=now_s)

    def _wall_ms(self) -> int:
        return self.intake.check_clocks()[0] // 1000

    def _commit(self, session: MqttSession) -> None:
        """Commits what waits and acknowledges it. If the buffer cannot commit, everything waits at the broker."""
        mids = self.intake.commit(time.monotonic())
        if mids is None:
            if self.intake.is_full:
                raise LinkError("the buffer cannot commit; the broker keeps new messages")
            self._stopping.wait(self._retry.take_delay_s())
            return
        self._retry.reset()
        for mid in mids:
            session.acknowledge(mid)

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            # Mosquitto 2.0.11 closes the connection with its refusal.
            self._take_answers(session)
            session.close()
