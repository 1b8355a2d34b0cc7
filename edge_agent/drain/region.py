"""The region in use: whether it acknowledges, when it may be sent to, and when another one replaces it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import structlog

from edge_agent.config import AgentSettings, FailoverSettings, UplinkSettings
from edge_agent.errors import LinkClosed, LinkError
from edge_agent.uplink.protocol import Uplink
from waybill.daemon.backoff import Backoff
from waybill.daemon.logs import log_thread
from waybill.mqtt.mqtt_client import Takeovers

# Probing another region without leaving the current one.

log = structlog.get_logger("edge_agent.drain")


class RegionProbe:
    """Connects once, in its own thread. `is_back` is None until the answer is known."""

    def __init__(self, make: Callable[[], Uplink]) -> None:
        self._make = make
        self.is_back: bool | None = None
        log_thread("probe", self._run).start()

    def _run(self) -> None:
        is_back = False
        try:
            uplink = self._make()
            try:
                uplink.open()
            finally:
                uplink.close()
            is_back = True
        except LinkError as error:
            log.info("the preferred region is not back", error=str(error))
        except Exception as error:  # noqa: BLE001 - a thread that ends without an answer would end all further probes
            log.error("the preferred region cannot be probed", error=repr(error))
        finally:
            self.is_back = is_back


PROBE_CHECK_S = 1.0
"""How often a running probe is asked for its answer."""
JITTER = 0.5
"""Each time of a failover is stretched by up to this share, so that a fleet does not move as one."""

MakeUplink = Callable[[UplinkSettings], Uplink]


class Pause:
    """A pause that the gateway asked for: it holds all but urgent records, for at most `max_s`.

    Another pause needs a batch sent in between, so no series of requests silences the device.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._began_s = 0.0
        self._may_begin = True
        self.until_s = 0.0

    def request(self, now_s: float, pause_s: float) -> None:
        # Not `<= 0`: NaN is neither.
        if not pause_s > 0:
            return
        if now_s >= self.until_s:
            if not self._may_begin:
                return
            self._may_begin = False
            self._began_s = now_s
        self.until_s = min(max(self.until_s, now_s + pause_s), self._began_s + self._max_s)

    def on_sent(self, now_s: float) -> None:
        if now_s >= self.until_s:
            self._may_begin = True

    def left_s(self, now_s: float) -> float:
        return max(0.0, self.until_s - now_s)


class UplinkHealth:
    """What the connected region has answered. Gets the time from the caller."""

    def __init__(self, ack_timeout_s: float, max_pause_s: float) -> None:
        self._ack_timeout_s = ack_timeout_s
        self._waiting_since_s: float | None = None
        """When the first batch after this region's last acknowledgement was sent."""
        self._ack_wait_region = ""
        self.pause = Pause(max_pause_s)
        self.resume_at_s = 0.0
        """Nothing is sent before this time, because no gateway was subscribed."""
        self.connected_region: str | None = None
        self.is_healthy = False
        """Whether the uplink is connected and no batch waits too long for its acknowledgement."""
        self.region_acked: str | None = None
        """The region of the last acknowledgement on this connection, or None."""
        self.gateway_absent = False
        """Whether the broker reported that no gateway is subscribed, and no acknowledgement came since."""

    @property
    def is_taking(self) -> bool:
        """Whether this connection brought an acknowledgement, and a gateway has been present since."""
        return self.region_acked is not None and not self.gateway_absent

    def on_connected(self, region: str) -> None:
        """A reconnection to the same region does not end the wait for an acknowledgement: a silent region also accepts
        connections.
        """
        if region != self._ack_wait_region:
            self._ack_wait_region = region
            self._waiting_since_s = None
        self.connected_region = region
        self.is_healthy = self._waiting_since_s is None

    def on_closed(self) -> None:
        self.connected_region = self.region_acked = None
        self.is_healthy = self.gateway_absent = False
        self.resume_at_s = 0.0

    def on_sent(self, now_s: float) -> None:
        self._await_ack(now_s)
        self.pause.on_sent(now_s)

    def on_acked(self, now_s: float, *, more_in_flight: bool) -> None:
        self.region_acked = self.connected_region
        self._waiting_since_s = now_s if more_in_flight else None
        self.gateway_absent, self.resume_at_s = False, 0.0

    def on_refused(self, now_s: float, *, more_in_flight: bool, region_refuses_all: bool) -> None:
        """A refusal is an answer, unless the region refuses everything."""
        if region_refuses_all:
            self._await_ack(now_s)
        else:
            self._waiting_since_s = now_s if more_in_flight else None

    def _await_ack(self, now_s: float) -> None:
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s

    def on_no_gateway(self) -> None:
        if not self.gateway_absent:
            log.warning("no gateway is subscribed at the broker", region=self.connected_region)
        self.gateway_absent, self.is_healthy = True, False

    def update(self, now_s: float, *, is_idle: bool) -> float | None:
        """Sets `is_healthy`; returns since when an acknowledgement is awaited. `is_idle`: nothing is left to send."""
        if is_idle:
            self._waiting_since_s = None
        since_s, was_healthy = self._waiting_since_s, self.is_healthy
        is_answered = since_s is None or now_s - since_s < self._ack_timeout_s
        self.is_healthy = is_answered and not self.gateway_absent
        if was_healthy and not self.is_healthy:
            log.warning("no acknowledgement in time", region=self.connected_region)
        return since_s


class Regions:
    """The current position in the list of uplinks, and when to change it. Gets time and randomness from the caller.

    first ──fails for after_s──▶ next ──return_after_s──▶ probe the first ──it is back──▶ first
                                  ▲                               │ failed
                                  └───────────────────────────────┘
    """

    def __init__(self, count: int, settings: FailoverSettings, random: Random) -> None:
        self._count = count
        self._settings = settings
        self._random = random
        self._failing_since_s: float | None = None
        self._leave_after_s = self._stretched(settings.after_s)
        self._probe_at_s = 0.0
        self.index = 0

    def on_failure(self, now_s: float, since_s: float | None = None) -> bool:
        """The uplink has failed since `since_s`, or now; returns True when the next region takes over."""
        if self._failing_since_s is None:
            self._failing_since_s = now_s if since_s is None else since_s
        if self._count == 1 or now_s - self._failing_since_s < self._leave_after_s:
            return False
        self._move(now_s, (self.index + 1) % self._count)
        return True

    def on_success(self) -> None:
        """The uplink acknowledges, or has nothing to acknowledge."""
        self._failing_since_s = None

    def should_probe(self, now_s: float) -> bool:
        return self.index != 0 and now_s >= self._probe_at_s

    def on_probed(self, now_s: float, *, is_back: bool) -> bool:
        """The result of a probe; returns True when the position changed."""
        if is_back and self.index != 0:
            self._move(now_s, 0)
            return True
        self._probe_at_s = now_s + self._stretched(self._settings.return_after_s)
        return False

    def _move(self, now_s: float, at: int) -> None:
        self.index = at
        self._failing_since_s = None
        self._leave_after_s = self._stretched(self._settings.after_s)
        self._probe_at_s = now_s + self._stretched(self._settings.return_after_s)

    def _stretched(self, time_s: float) -> float:
        return time_s * (1 + JITTER * self._random.random())


class RegionChoice:
    """The uplink in use, the wait before the next connection, and the return to the preferred region."""

    def __init__(self, settings: AgentSettings, make_uplink: MakeUplink, random: Random) -> None:
        first = settings.uplinks[0]
        self._uplinks = settings.uplinks
        self._failover = settings.failover
        self._make_uplink = make_uplink
        self._regions = Regions(len(settings.uplinks), settings.failover, random)
        self._backoff = Backoff(first.backoff_first_s, first.backoff_max_s, random.random)
        self._probe: RegionProbe | None = None
        cause = f"another agent has the id {settings.device.id!r}: each needs an id of its own"
        # Another client with this id returns within `backoff_max_s`: after twice that time the session is safe.
        self.takeovers = Takeovers(cause, 2 * first.backoff_max_s)
        self._leaves = False
        self.last_failure = ""
        """How the last connection ended, or why none was made; "" once that is over."""
        self._was_connected = False

    @property
    def region(self) -> str:
        return self._uplinks[self._regions.index].region

    def make_uplink(self) -> Uplink:
        return self._make_uplink(self._uplinks[self._regions.index])

    def take_delay_s(self) -> float:
        """Counts one more failure; the seconds to wait."""
        return self._backoff.take_delay_s()

    def on_failure(self, now_s: float, error: Exception, connected: str | None) -> None:
        """`connected`: the region whose connection was lost; None if none was made."""
        is_unexplained = isinstance(error, LinkClosed)
        self.takeovers.on_ended(now_s, is_unexplained=is_unexplained)
        problem = self.takeovers.problem if is_unexplained else ""
        said, region = "; ".join(filter(None, (str(error), problem))), connected or self.region
        log.warning("uplink lost" if connected else "uplink not reached", region=region, error=said)
        self.last_failure, self._was_connected = said, connected is not None
        # An error of the buffer is no failure of the region.
        if isinstance(error, LinkError) and self._regions.on_failure(now_s):
            log.warning("going to another region", region=self.region)
            self._backoff.reset()

    def on_connected(self, now_s: float) -> None:
        self.takeovers.on_connected(now_s)
        if not self._was_connected:
            self.last_failure = ""

    def on_acked(self) -> None:
        """The next failure waits the shortest delay again."""
        self.last_failure = ""
        # During takeovers each connection gets acknowledgements, and the backoff must still grow.
        if not self.takeovers.is_suspected:
            self._backoff.reset()

    def update(self, now_s: float, since_s: float | None, connected: str, *, is_acked: bool) -> None:
        """Follows a connection. Raises LinkError when it is time for another region.

        `since_s`: since when an acknowledgement is awaited. `is_acked`: the region has accepted something on this
        connection.
        """
        self.takeovers.on_alive(now_s)
        is_silent = since_s is not None and now_s - since_s >= self._failover.after_s
        if since_s is None or (is_acked and not is_silent):
            self._regions.on_success()
        elif is_silent and self._regions.on_failure(now_s, since_s=since_s):
            raise LinkError(f"{connected} is silent")

    def probe_preferred(self, now_s: float) -> None:
        """Probes the preferred region from time to time, and decides to return to it."""
        if self._probe is None:
            if self._regions.should_probe(now_s):
                self._probe = RegionProbe(lambda: self._make_uplink(self._uplinks[0]))
        elif self._probe.is_back is not None:
            is_back, self._probe = self._probe.is_back, None
            self._leaves = self._regions.on_probed(now_s, is_back=is_back)

    def take_leave(self) -> bool:
        """Whether the connection has to end because the preferred region is back."""
        leaves, self._leaves = self._leaves, False
        if leaves:
            log.info("back to the preferred region", region=self._uplinks[0].region)
        return leaves

    def check_in_s(self) -> float | None:
        """Seconds until a running probe is asked again; None without one."""
        return None if self._probe is None else PROBE_CHECK_S
