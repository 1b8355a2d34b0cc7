"""The vehicle's own broker: a configuration that queues messages on disk, and a watch over its losses.

A sensor gets its PUBACK from the broker before the agent has the message. No record id exists yet, so no gap shows what
the broker drops.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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


def broker_conf(intake: IntakeSettings, listen: str = "") -> Iterator[str]:
    """The lines of a complete configuration for Mosquitto 2 that queues messages while the agent is away.

    `listen`: the address to listen at, if it is not `intake.host`.
    """
    address = listen or ("127.0.0.1" if intake.host == "localhost" else intake.host)
    is_open = intake.username is None and is_this_machine(address)
    yield f"# The vehicle's own broker, for edge-agent (intake: {intake.host}:{intake.port}). Mosquitto 2."
    yield "# Replace /etc/mosquitto/mosquitto.conf with this: with Debian's own lines, Mosquitto refuses to start."
    yield f"listener {intake.port} {address}"
    yield "protocol mqtt"
    if intake.tls is not None:
        yield "# The broker's own files; the agent trusts what intake.tls.ca has signed."
        yield from ("certfile /etc/mosquitto/certs/broker.pem", "keyfile /etc/mosquitto/certs/broker.key")
    if is_open:
        yield "allow_anonymous true"
    else:
        yield "# Create this file with mosquitto_passwd: one user for the agent (intake.username), one for each sensor."
        yield from ("allow_anonymous false", "password_file /etc/mosquitto/passwords")
    yield "# The agent's session and queue survive a restart, and a power cut except for its last seconds."
    yield from ("persistence true", "persistence_location /var/lib/mosquitto/", f"autosave_interval {AUTOSAVE_S}")
    yield "# By default the broker drops messages above 1,000 after their PUBACK. 0: only the limit in bytes applies."
    yield from ("max_queued_messages 0", f"max_queued_bytes {MAX_QUEUED_BYTES}", "queue_qos0_messages true")
    yield f"max_inflight_messages {intake.receive_maximum}"
    yield "# Interval at which the broker publishes its count of dropped messages; the agent reads it."
    yield "sys_interval 10"
    yield "set_tcp_nodelay true"
