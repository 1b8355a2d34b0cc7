"""The vehicle's own broker: a configuration that queues messages on disk, and watches over its losses and its queue.

A sensor gets its PUBACK from the broker before the agent has the message. No record id exists yet, so no gap shows what
the broker drops.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from random import Random
from typing import Final

import structlog

from edge_agent.config import IntakeSettings
from edge_agent.store.database import BufferCounters
from waybill.mqtt.broker_settings import is_this_machine
from waybill.record import BROKER_DROPPED_EVENT, Event

log = structlog.get_logger("edge_agent.intake")

DROPPED_TOPIC: Final = "$SYS/broker/publish/messages/dropped"
"""Mosquitto publishes here, every `sys_interval`, how many messages it dropped since its start."""
SHOWN_S: Final = 600.0
"""How long a loss makes the agent unhealthy."""
DECLARED_EVERY_S: Final = 300.0
"""The shortest time between two records that declare drops."""
_COUNT, _DROPPED, _DECLARED, _SINCE_MS = (f"vehicle_broker_{one}" for one in ("count", "drops", "declared", "since_ms"))
"""Stored counters: the broker's count plus one (0: never seen), the drops seen, the drops declared by records, and the
time of the last declaration or of the first count."""
KEEPS, DROPPED, FORGOT = "keeps", "dropped messages", "forgot the session"
MAX_QUEUED_BYTES: Final = 256 << 20
"""Kept for an agent that is away: more than a million positions."""
AUTOSAVE_S: Final = 10


class BrokerWatch:
    """What the vehicle's broker lost. Written by one thread; times by the monotonic clock.

    `counters`: the buffer's, where the watch stores the broker's count and what records have declared.
    """

    def __init__(self, counters: BufferCounters) -> None:
        self._counters = counters
        self.dropped = max(counters.value(_COUNT) - 1, 0)
        """What the broker counts since its own start, of all its clients."""
        self.sessions_lost = 0
        self._lost_at_s: dict[str, float] = {}
        self._is_resumed = False
        self._declare_at_s = 0.0

    def on_connected(self, now_s: float, *, resumed: bool, was_connected: bool) -> None:
        """`resumed`: the broker knows the session. `was_connected`: the agent had a session there before."""
        self._is_resumed = resumed
        if was_connected and not resumed:
            self.sessions_lost += 1
            self._lost_at_s[FORGOT] = now_s
            log.warning("the vehicle's broker lost the session and the messages queued in it")

    def on_dropped(self, payload: bytes, now_s: float, wall_ms: int) -> None:
        """Takes the broker's count from DROPPED_TOPIC. A lower count than before means that the broker restarted."""
        if not payload.isdigit() or len(payload) > 18:
            return
        count, known = int(payload), self._counters.value(_COUNT)
        rise = count - self.dropped if count >= self.dropped else count
        if not known:
            self._counters.add(_SINCE_MS, wall_ms)
            # drops from before the agent had a session there did not concern the agent
            rise = rise if self._is_resumed else 0
        self.dropped = count
        self._counters.add(_COUNT, count + 1 - known)
        if rise:
            self._counters.add(_DROPPED, rise)
            self._lost_at_s[DROPPED] = now_s
            log.warning("the vehicle's broker dropped messages, for the agent or another client", messages=rise)

    def take_declaration(self, now_s: float, wall_ms: Callable[[], int]) -> tuple[Event, dict[str, int]] | None:
        """An event for drops that no record has declared, and the counters to increase when it is stored.

        None if there are no such drops, or if the last event is younger than DECLARED_EVERY_S.
        """
        dropped = self._counters.value(_DROPPED) - self._counters.value(_DECLARED)
        if dropped <= 0 or now_s < self._declare_at_s:
            return None
        self._declare_at_s = now_s + DECLARED_EVERY_S
        since_ms = self._counters.value(_SINCE_MS)
        about = json.dumps({"messages": dropped, "since": since_ms})
        return Event(name=BROKER_DROPPED_EVENT, attributes=about), {_DECLARED: dropped, _SINCE_MS: wall_ms() - since_ms}

    def state(self, now_s: float) -> str:
        """`keeps`, or what the broker lost in the last SHOWN_S."""
        lately = [what for what, at_s in self._lost_at_s.items() if now_s - at_s < SHOWN_S]
        return max(lately, key=self._lost_at_s.__getitem__, default=KEEPS)


ARRIVED_TOPIC: Final = "waybill/agent/arrived"
"""The agent publishes markers here for itself. Messages of this topic are never records."""
MAX_LATE_S: Final = 5.0
"""A marker that took longer proves nothing about the messages behind it."""
MAX_WAIT_S: Final = 60.0
"""The longest time between two markers while none comes back."""
REFUSED_WAIT_S: Final = 600.0
"""The wait after a refused marker: Mosquitto 2.0.11 closes the connection for it."""
MAX_UNANSWERED: Final = 3
"""So many connections that end between a marker and its PUBACK are a refusal, too."""
PROBED_EVERY_S: Final = 1.0
UNPROVEN_S: Final = 300.0
"""How long markers may be missing before the agent is unhealthy: the time to read a large queue."""
KNOWN, WAITED, UNPROVEN, REFUSED = "known", "queued", "unproven", "refused"


class ArrivalMarker:
    """Finds out whether a message reaches the agent when it reaches the broker, or has waited in the broker's queue.

    The queue is FIFO: a marker of the agent's own comes back behind everything that waited before it. What follows the
    marker is at most as late as the marker itself, so only one that came back within MAX_LATE_S is a proof. Pure; times
    by the monotonic clock.
    """

    def __init__(self, random: Random, *, is_needed: bool) -> None:
        """`is_needed`: some message may get the time of its arrival."""
        self.is_needed = is_needed
        self.are_known = True
        """Whether a message may get the time of its arrival now."""
        self._random = random
        self._is_wanted = self._is_probing = self._is_refused = False
        self._nonce = b""
        self._sent_s = self._wanted_s = self._proven_s = self._retry_at_s = -math.inf
        self._wait_s = MAX_LATE_S
        self._is_answered, self._unanswered = True, 0

    def on_connected(self, now_s: float, *, resumed: bool) -> None:
        """`resumed`: the broker knows the session, so messages may have waited. A marker is due in any case: it shows
        in time whether the broker accepts it.
        """
        if not self._is_answered:
            self._unanswered += 1
            self._is_answered = True
            if self._unanswered >= MAX_UNANSWERED:
                self.on_answer(now_s, is_accepted=False)
        self._is_wanted = self._is_probing = False
        self._want(now_s)
        self.are_known = not (self.is_needed and resumed)

    def on_stall(self, now_s: float) -> None:
        """The agent read nothing for longer than MAX_LATE_S."""
        self._want(now_s)
        self.are_known = not self.is_needed

    def on_full_window(self, now_s: float) -> None:
        """So many messages are unacknowledged that the broker may hold back others: a late marker will tell."""
        if now_s >= self._proven_s + PROBED_EVERY_S:
            self._want(now_s)
            self._is_probing = self._is_wanted

    def take_publication(self, now_s: float) -> bytes | None:
        """The payload of the marker to publish now, if one is due."""
        if not self._is_wanted:
            return None
        if self._is_refused and now_s < self._retry_at_s:
            self.are_known = self.are_known and not self._is_probing
            return None
        if self._nonce:
            waited_s = now_s - self._sent_s
            if self._is_probing and waited_s > MAX_LATE_S:
                self.are_known = False
            if waited_s < self._wait_s:
                return None
            self._wait_s = min(2 * self._wait_s, MAX_WAIT_S)
        # A marker of another connection may still be in the queue.
        self._nonce, self._sent_s = b"%016x" % self._random.getrandbits(64), now_s
        self._is_answered = False
        return self._nonce

    def on_answer(self, now_s: float, *, is_accepted: bool) -> None:
        """The broker's PUBACK of a marker."""
        self._is_answered, self._unanswered = True, 0
        self._is_refused, self._retry_at_s = not is_accepted, now_s + REFUSED_WAIT_S

    def on_received(self, payload: bytes, now_s: float) -> None:
        """A marker came: the newest one, an older one, or something that another client published there."""
        if not self._nonce or payload != self._nonce:
            return
        self._nonce = b""
        if now_s - self._sent_s <= MAX_LATE_S:
            self._is_wanted = self._is_probing = self._is_refused = False
            self.are_known, self._proven_s = True, now_s
        elif self._is_probing:
            self.are_known = False

    def state(self, now_s: float) -> str:
        """`known`; `queued`: the broker's queue is being read; `refused`, or `unproven`: no marker comes back."""
        if self._is_wanted and self._is_refused:
            return REFUSED
        if self._is_wanted and now_s - self._wanted_s >= UNPROVEN_S:
            return UNPROVEN
        return KNOWN if self.are_known else WAITED

    def _want(self, now_s: float) -> None:
        if self.is_needed and not self._is_wanted:
            self._is_wanted, self._wanted_s = True, now_s
            self._nonce, self._wait_s = b"", MAX_LATE_S


_TLS: Final = """
# The broker's own files; the agent trusts what intake.tls.ca has signed.
certfile /etc/mosquitto/certs/broker.pem
keyfile /etc/mosquitto/certs/broker.key"""
_OPEN: Final = "\nallow_anonymous true"
_PASSWORDS: Final = """
# Create this file with mosquitto_passwd: one user for the agent (intake.username), one for each sensor.
allow_anonymous false
password_file /etc/mosquitto/passwords"""


def broker_conf(intake: IntakeSettings, listen: str = "") -> str:
    """A complete configuration for Mosquitto 2 that queues messages while the agent is away.

    `listen`: the address to listen at, if it is not `intake.host`.
    """
    address = listen or ("127.0.0.1" if intake.host == "localhost" else intake.host)
    is_open = intake.username is None and is_this_machine(address)
    return f"""# The vehicle's own broker, for edge-agent (intake: {intake.host}:{intake.port}). Mosquitto 2.
# Replace /etc/mosquitto/mosquitto.conf with this: with Debian's own lines, Mosquitto refuses to start.
listener {intake.port} {address}
protocol mqtt{_TLS if intake.tls else ""}{_OPEN if is_open else _PASSWORDS}
# The agent's session and queue survive a restart, and a power cut except for its last seconds.
persistence true
persistence_location /var/lib/mosquitto/
autosave_interval {AUTOSAVE_S}
# By default the broker drops messages above 1,000 after their PUBACK. 0: only the limit in bytes applies.
max_queued_messages 0
max_queued_bytes {MAX_QUEUED_BYTES}
queue_qos0_messages true
max_inflight_messages {intake.receive_maximum}
# Interval at which the broker publishes its count of dropped messages; the agent reads it.
sys_interval 10
set_tcp_nodelay true
"""
