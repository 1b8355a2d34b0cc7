"""The vehicle's own broker: a configuration that queues messages on disk, and watches over its losses and its queue.

A sensor gets its PUBACK from the broker before the agent has the message. No record id exists yet, so no gap shows what
the broker drops.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
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
"""Each agent publishes markers for itself below this topic. They are never records."""
MARKED_EVERY_US: Final = 10_000_000
KNOWN_FOR_US: Final = 30_000_000
"""How long a message may have waited at the broker and still get the time of its arrival."""
MAX_WAIT_US: Final = 600_000_000
"""The longest time between two markers while none comes back: the broker may close the connection for each."""
KNOWN, WAITED, UNPROVEN = "known", "queued", "unproven"


def marker_topic(client_id: str) -> str:
    """The topic of a session's markers. No other session has it: they would fill the queue of an agent that is away."""
    return f"{ARRIVED_TOPIC}/{client_id.translate(_NO_TOPIC_SIGNS)}"


_NO_TOPIC_SIGNS: Final = str.maketrans("/+#", "---")


class ArrivalMarker:
    """Finds out whether a message may have waited at the vehicle's broker. Pure; in microseconds of a monotonic clock.

    The broker delivers in order. So what comes after a marker reached the broker after the agent published the marker,
    and is at most as old as the marker.
    """

    def __init__(self, *, is_needed: bool) -> None:
        """`is_needed`: some message may get the time of its arrival."""
        self.is_needed = is_needed
        self._nonce = b""
        """The newest marker, until it comes back."""
        self._sent_us = self._due_us = 0
        self._proven_us = -math.inf
        """What comes now reached the broker after this time."""
        self._wait_us = MARKED_EVERY_US
        """Between the next marker and the one after it, if the next one does not come back."""

    def on_connected(self, now_us: int, *, resumed: bool) -> None:
        """`resumed`: the broker knows the session, so messages may have waited."""
        self._proven_us = -math.inf if resumed else now_us
        if self._wait_us < MAX_WAIT_US:
            self._due_us = now_us

    def are_known(self, now_us: int) -> bool:
        """Whether a message that comes now may get this time."""
        return not self.is_needed or now_us - self._proven_us <= KNOWN_FOR_US

    def is_due(self, now_us: int) -> bool:
        return self.is_needed and now_us >= self._due_us

    def on_published(self, nonce: bytes, now_us: int) -> None:
        self._nonce, self._sent_us, self._due_us = nonce, now_us, now_us + self._wait_us
        self._wait_us = min(2 * self._wait_us, MAX_WAIT_US)

    def on_refused(self, now_us: int) -> None:
        """The broker refused a marker, or nothing subscribes to it."""
        self._wait_us, self._due_us = MAX_WAIT_US, now_us + MAX_WAIT_US

    def on_received(self, payload: bytes) -> None:
        """A marker came: the newest one, an older one, or what another client published there."""
        if self._nonce and payload == self._nonce:
            self._nonce, self._proven_us = b"", self._sent_us
            self._wait_us, self._due_us = MARKED_EVERY_US, self._sent_us + MARKED_EVERY_US

    def state(self, now_us: int) -> str:
        """`known`; `queued`: messages may have waited; `unproven`: no marker has come back for five minutes, or the
        broker refuses it.
        """
        if self._wait_us == MAX_WAIT_US:
            return UNPROVEN
        return KNOWN if self.are_known(now_us) else WAITED


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
