"""What part of the window a tenant may keep: one of which Pulsar takes nothing leaves room for the others. Pure."""

from __future__ import annotations

from collections.abc import Collection

from gateway.config import GatewaySettings
from gateway.inflight import InFlight, TenantUse

STUCK_S = 0.5
"""A tenant whose oldest batch waits so long for Pulsar, while another tenant is served, is stuck."""
_HALF = 0.5


class WindowShares:
    """Which tenants are stuck, and how much each may keep in flight then; without a list of tenants none is.

    A tenant that is served may fill the window: its batches leave it as fast as those of others. Of the bytes no tenant
    ever has more than its part, stuck or not: they take memory.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.stuck: frozenset[str] = frozenset()
        default = _HALF if len(settings.tenants) > 1 else 1.0
        self._shares = {name: one.window_share or default for name, one in settings.tenants.items()}
        self._pulsar_tenant_of = settings.pulsar_tenant_of
        self._max_batches, self._max_bytes = settings.mqtt.receive_maximum, settings.mqtt.max_in_flight_bytes

    def is_spent(self, tenant: str, in_flight: InFlight) -> bool:
        """Whether no more of a tenant is taken for now."""
        share = self._shares.get(tenant, 1.0)
        if share >= 1 and tenant not in self.stuck:
            return False
        use = in_flight.use_of(tenant)
        return use.bytes >= share * self._max_bytes or (
            tenant in self.stuck and use.batches >= max(1, share * self._max_batches)
        )

    def in_use(self, in_flight: InFlight) -> TenantUse:
        """What the stuck tenants have in flight: beside it there is a whole window for the others."""
        uses = [in_flight.use_of(tenant) for tenant in self.stuck]
        return TenantUse(sum(use.batches for use in uses), sum(use.bytes for use in uses))

    def find_stuck(self, in_flight: InFlight, now_s: float, connected: Collection[str]) -> None:
        """Look again which tenants are stuck. While Pulsar takes nothing of anybody, nobody is."""
        waiting = {tenant for tenant in self._shares if self._waits(in_flight.oldest_of(tenant), now_s)}
        is_served = any(
            tenant not in waiting and self._pulsar_tenant_of(tenant) in connected for tenant in self._shares
        )
        self.stuck = frozenset(waiting) if is_served else frozenset()

    def _waits(self, oldest_s: float | None, now_s: float) -> bool:
        return oldest_s is not None and now_s - oldest_s >= STUCK_S
