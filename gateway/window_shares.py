"""What part of the window a tenant may keep: those of which Pulsar takes nothing leave room for the others. Pure.

All tenants together have at most two windows, in bytes and in batches, and each one batch beyond:

    half a window, in equal reserves: what is below its reserve a tenant always has
    one and a half: whose comes first, up to its share; those that flow fill half of what the stuck ones leave
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.config import GatewaySettings
from gateway.inflight import InFlight

STUCK_S = 0.5
"""A tenant whose oldest batch waits so long for Pulsar, while another tenant is served, is stuck."""
_HALF = 0.5
RESERVED = 0.5
"""Of one window, so much is kept for reserves, the same for each tenant ..."""
COMMON = 1.5
"""... and so many windows at most are in use by what is beyond them."""


class WindowShares:
    """Which tenants are stuck, and how much each may have in flight then; without a list of tenants none is.

    A tenant that is served may fill the window: its batches leave it as fast as those of others. Of the bytes no tenant
    ever has more than its part, stuck or not: they take memory.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        default = _HALF if len(settings.tenants) > 1 else 1.0
        self._shares = {name: one.window_share or default for name, one in settings.tenants.items()}
        self._pulsar_tenant_of = settings.pulsar_tenant_of
        # After a new connection there may be twice as many batches as the broker sends unacknowledged.
        self._max_batches, self._max_bytes = 2 * settings.mqtt.receive_maximum, settings.mqtt.max_in_flight_bytes
        self._listed = max(1, len(settings.tenants))
        self._reserved_batches = max(1.0, RESERVED * self._max_batches / self._listed)
        self._reserved_bytes = RESERVED * self._max_bytes / self._listed

    def has_room(self, in_flight: InFlight) -> bool:
        """Whether those that flow have room for more."""
        batches, size = len(in_flight), in_flight.bytes
        if not in_flight.stuck:
            return size < self._max_bytes and batches < self._max_batches
        stuck, flowing = in_flight.stuck_use, self._listed - len(in_flight.stuck)
        max_batches = max((COMMON * self._max_batches - stuck.batches) / 2, flowing * self._reserved_batches)
        max_bytes = max((COMMON * self._max_bytes - stuck.bytes) / 2, flowing * self._reserved_bytes)
        return size - stuck.bytes < max_bytes and batches - stuck.batches < max_batches

    def is_spent(self, tenant: str, size: int, in_flight: InFlight) -> bool:
        """Whether no batch of `size` bytes of a tenant is taken for now."""
        share = self._shares.get(tenant, 1.0)
        if not in_flight.stuck:
            return share < 1 and in_flight.use_of(tenant).bytes >= share * self._max_bytes
        use = in_flight.use_of(tenant)
        # One always: it may be larger than any reserve.
        if not use.batches:
            return False
        is_stuck = tenant in in_flight.stuck
        max_bytes = share * self._max_bytes / (len(in_flight.stuck) if is_stuck else 1)
        max_batches = share * self._max_batches / (2 * len(in_flight.stuck)) if is_stuck else self._max_batches
        if in_flight.bytes + size > COMMON * self._max_bytes:
            max_bytes = 0
        if len(in_flight) >= COMMON * self._max_batches:
            max_batches = 0
        is_over = use.bytes + size > max(max_bytes, self._reserved_bytes)
        return is_over or use.batches >= max(max_batches, self._reserved_batches)

    def find_stuck(self, in_flight: InFlight, now_s: float, connected: Collection[str]) -> None:
        """Look again which tenants are stuck. While Pulsar takes nothing of anybody, nobody is."""
        waiting = in_flight.waiting_since(now_s - STUCK_S) & self._shares.keys()
        is_served = any(
            tenant not in waiting and self._pulsar_tenant_of(tenant) in connected for tenant in self._shares
        )
        in_flight.set_stuck(frozenset(waiting) if is_served else frozenset())
