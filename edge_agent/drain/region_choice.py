"""Which region the drain delivers to, how long it waits before it connects, and the way back to the preferred one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import structlog

from edge_agent.config import AgentSettings, UplinkSettings
from edge_agent.errors import LinkClosed, LinkError
from edge_agent.uplink.probe import Probe
from edge_agent.uplink.protocol import Uplink
from edge_agent.uplink.regions import Regions
from runtime.backoff import Backoff
from runtime.takeovers import Takeovers

log = structlog.get_logger("edge_agent.drain")

LEAVE_WITHIN_S = 5.0
"""How long acknowledgements are waited for before going back to the preferred region."""
PROBE_CHECK_S = 1.0
"""While another region is looked at, its answer is looked for so often."""

MakeUplink = Callable[[UplinkSettings], Uplink]


class RegionChoice:
    """The uplink in use. Handed the time; a probe has a thread of its own."""

    def __init__(self, settings: AgentSettings, make_uplink: MakeUplink, random: Random) -> None:
        first = settings.uplinks[0]
        self._uplinks = settings.uplinks
        self._failover = settings.failover
        self._make_uplink = make_uplink
        self._regions = Regions(len(settings.uplinks), settings.failover, random)
        self._backoff = Backoff(first.backoff_first_s, first.backoff_max_s, random.random)
        self._probe: Probe | None = None
        cause = f"another agent has the id {settings.device.id!r}: each needs an id of its own"
        # Who shares the id is back after `backoff_max_s`: a connection that stands for twice as long is not contested.
        self.takeovers = Takeovers(cause, 2 * first.backoff_max_s)
        self.leave_by_s: float | None = None
        """Until then what is in flight may be acknowledged, and then the preferred region is connected to."""

    @property
    def region(self) -> str:
        """The region in use."""
        return self._uplinks[self._regions.index].region

    def make_uplink(self) -> Uplink:
        """An uplink to it, not yet open."""
        return self._make_uplink(self._uplinks[self._regions.index])

    def next_delay_s(self) -> float:
        """Notes one more failure; seconds to wait."""
        return self._backoff.next_delay_s()

    def on_acked(self) -> None:
        """The region took something. While sessions are taken over that happens each time, and ends no wait."""
        if not self.takeovers.is_suspected:
            self._backoff.reset()
        self._regions.on_success()

    def on_failure(self, now_s: float, error: Exception, connected: str | None) -> None:
        """The connection to the region `connected` is lost, or none was made."""
        is_unexplained = isinstance(error, LinkClosed)
        self.takeovers.on_ended(now_s, is_unexplained=is_unexplained)
        problem = self.takeovers.problem if is_unexplained else ""
        log.warning(
            "uplink lost", region=connected or self.region, error="; ".join(filter(None, (str(error), problem)))
        )
        # An error of the buffer says nothing about the region.
        if isinstance(error, LinkError) and self._regions.on_failure(now_s):
            log.warning("going to another region", region=self.region)
            self._backoff.reset()

    def on_awaited(self, now_s: float, since_s: float | None, connected: str) -> None:
        """Since when an acknowledgement is awaited. Raises LinkError when it is time for another region."""
        if since_s is None:
            self._regions.on_success()
        elif now_s - since_s >= self._failover.after_s and self._regions.on_failure(now_s, since_s=since_s):
            raise LinkError(f"{connected} is silent")

    def probe_preferred(self, now_s: float) -> None:
        """Looks now and then if the preferred region is back, and decides to leave for it."""
        if self._probe is None:
            if self._regions.should_probe(now_s):
                self._probe = Probe(lambda: self._make_uplink(self._uplinks[0]), self._failover.hold_s)
        elif self._probe.held is not None and self.leave_by_s is None:
            held, self._probe = self._probe.held, None
            if self._regions.on_probed(now_s, held=held):
                self.leave_by_s = now_s + LEAVE_WITHIN_S

    def try_leave(self, now_s: float, *, in_flight: int) -> bool:
        """Leaves for the preferred region if that is decided, once nothing is in flight or it takes too long."""
        # Waited for, because what is still in flight then goes to both regions.
        if self.leave_by_s is None or (in_flight and now_s < self.leave_by_s):
            return False
        self.leave_by_s = None
        log.info("back to the preferred region", region=self._uplinks[0].region)
        return True

    def check_in_s(self) -> float | None:
        """Seconds within which it has to be asked again; None: nothing changes by itself."""
        return PROBE_CHECK_S if self._probe is not None or self.leave_by_s is not None else None

    def stop(self) -> None:
        """Ends a probe soon."""
        if self._probe:
            self._probe.stop()
