"""Whether the uplink acknowledges, and when it may be sent to: silence, a gateway that is absent, a pause. Pure."""

from __future__ import annotations

import structlog

log = structlog.get_logger("edge_agent.drain")


class AckWait:
    """Since when a region has not acknowledged: from the first batch sent after its last acknowledgement.

    Sending again and connecting again do not move it.
    """

    def __init__(self) -> None:
        self.waiting_since_s: float | None = None

    def on_sent(self, now_s: float) -> None:
        """A batch was sent."""
        if self.waiting_since_s is None:
            self.waiting_since_s = now_s

    def on_acked(self, now_s: float, *, more_in_flight: bool) -> None:
        """The region acknowledged something that was sent to it."""
        self.waiting_since_s = now_s if more_in_flight else None

    def reset(self) -> None:
        """Another region, or nothing is left that an answer could be about."""
        self.waiting_since_s = None


class Pause:
    """Silence that the gateway asked for: of everything but urgent records, and never longer than `max_s` in one go.

    After a pause something is sent before another one counts, so no number of requests makes it endless.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._began_s = 0.0
        self._may_begin = True
        self.until_s = 0.0

    def request(self, now_s: float, pause_s: float) -> None:
        """The gateway asks for a pause from now on."""
        # Not `<= 0`: NaN is neither, and asks for nothing.
        if not pause_s > 0:
            return
        if now_s >= self.until_s:
            if not self._may_begin:
                return
            self._may_begin = False
            self._began_s = now_s
        self.until_s = min(max(self.until_s, now_s + pause_s), self._began_s + self._max_s)

    def on_sent(self, now_s: float) -> None:
        """A batch was sent."""
        if now_s >= self.until_s:
            self._may_begin = True

    def left_s(self, now_s: float) -> float:
        """Seconds until it is over."""
        return max(0.0, self.until_s - now_s)


class UplinkHealth:
    """What the region of the present connection has answered. Handed the time."""

    def __init__(self, ack_timeout_s: float, max_pause_s: float) -> None:
        self._ack_timeout_s = ack_timeout_s
        self._ack_wait = AckWait()
        self._ack_wait_region = ""
        self.pause = Pause(max_pause_s)
        self.resume_at_s = 0.0
        """Nothing is sent before: no gateway was there to take it."""
        self.connected_region: str | None = None
        self.is_healthy = False
        """Whether nothing is wrong with the uplink: connected, and nothing waits too long for its acknowledgement."""
        self.region_acked: str | None = None
        """The region of the last acknowledgement; None while the present connection has brought none."""
        self.gateway_absent = False
        """Whether the region's broker said that no gateway is subscribed, and nothing was acknowledged since."""

    def on_connected(self, region: str) -> None:
        """A new connection. To the same region it does not end the wait: a silent region accepts connections, too."""
        if region != self._ack_wait_region:
            self._ack_wait_region = region
            self._ack_wait.reset()
        self.connected_region = region
        self.is_healthy = self._ack_wait.waiting_since_s is None

    def on_closed(self) -> None:
        """There is no connection any more."""
        self.connected_region = self.region_acked = None
        self.is_healthy = self.gateway_absent = False
        self.resume_at_s = 0.0

    def on_sent(self, now_s: float) -> None:
        """A batch was sent."""
        self._ack_wait.on_sent(now_s)
        self.pause.on_sent(now_s)

    def on_acked(self, now_s: float, *, more_in_flight: bool) -> None:
        """Something that was sent was acknowledged."""
        self.region_acked = self.connected_region
        self._ack_wait.on_acked(now_s, more_in_flight=more_in_flight)
        self.gateway_absent, self.resume_at_s = False, 0.0

    def on_refused(self, now_s: float, *, more_in_flight: bool, region_refuses_all: bool) -> None:
        """Something that was sent was refused: an answer, but for a region that refuses whatever it is given."""
        if region_refuses_all:
            self._ack_wait.on_sent(now_s)
        else:
            self._ack_wait.on_acked(now_s, more_in_flight=more_in_flight)

    def on_no_gateway(self) -> None:
        """The broker said that nobody takes batches."""
        if not self.gateway_absent:
            log.warning("no gateway is subscribed at the broker", region=self.connected_region)
        self.gateway_absent, self.is_healthy = True, False

    def update(self, now_s: float, *, is_idle: bool) -> float | None:
        """Sets `is_healthy`; since when an acknowledgement is awaited. `is_idle`: nothing is left to send."""
        if is_idle:
            self._ack_wait.reset()
        since_s, was_healthy = self._ack_wait.waiting_since_s, self.is_healthy
        is_answered = since_s is None or now_s - since_s < self._ack_timeout_s
        self.is_healthy = is_answered and not self.gateway_absent
        if was_healthy and not self.is_healthy:
            log.warning("no acknowledgement in time", region=self.connected_region)
        return since_s
