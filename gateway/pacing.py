"""Rates of the region, its tenants and their devices, shared fairly. Pure.

    region (drain.max_records_per_s) ──by weight──▶ tenant (its own rates) ──equally──▶ device (its own rates)

A batch costs time at each level: as long as the rate needs for it. If several wait for one rate, a batch of one costs
the time of all of them, by weight, so each gets its share and unused shares go to the others. A device that keeps its
pauses is never refused for long.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.config import Drain, SendRates, TenantSettings
from gateway.inflight import Sender

BURST_S = 1.0
"""A rate's worth of this time may come at once."""
MAX_DEBT_S = 2.0
"""How far a tenant may be ahead of its rates before devices that had their share are refused."""
MAX_PACED = 100_000
"""Devices whose debts are known; beyond that the oldest debt is forgotten."""
MAX_AHEAD_S = 10.0
"""How far a device may be ahead of its share; batches in flight when it is asked to wait are less."""
_LEFT_S, _MAX_EXPONENT = 20.0, 2.0
"""With this much unused time a share costs less, by e to this power."""
_GRACE_S = 1.0
"""A device counts as waiting for this long after its pause, because it needs time to come back."""


def cost_s(rates: SendRates, size: int, records: int) -> float:
    """How long these rates need for one batch, by the rate that it uses most; 0 without a limit."""
    longest_s = 0.0
    if (limit := rates.max_batches_per_s) is not None:
        longest_s = 1 / limit
    if (limit := rates.max_bytes_per_s) is not None:
        longest_s = max(longest_s, size / limit)
    if (limit := rates.max_records_per_s) is not None:
        longest_s = max(longest_s, records / limit)
    return longest_s


@dataclass(slots=True)
class Paced:
    """A device. Its batches are paid for at `own_until_s` by its own rates, and at `paid_until_s` by its share.

    `weight`: of its share. `waits_until`: until then it counts as waiting for its share.
    """

    weight: float = 1.0
    own_until_s: float = -math.inf
    paid_until_s: float = -math.inf
    waits_until: int = 0

    def debt_s(self, now_s: float) -> float:
        """How far it is ahead of its rates and its share."""
        return max(0.0, self.own_until_s - now_s, self.paid_until_s - now_s)

    def pay(self, cost_s: float, now_s: float) -> None:
        self.own_until_s = max(self.own_until_s, now_s - BURST_S) + cost_s


@dataclass(slots=True)
class SharedRate(Paced):
    """A tenant or the region, whose time is shared by others. `burst_s` of it may be used at once."""

    burst_s: float = BURST_S
    _used_until_s: float = -math.inf
    _waiting: float = 0.0
    _until: dict[int, float] = field(default_factory=dict)
    _expired_s: int = 0

    def share_cost_s(self, child: Paced, cost_s: float, now_s: float) -> float:
        """What a cost of this rate costs the child, which shares the time with all that wait."""
        self._expire(now_s)
        waiting = self._waiting + (0.0 if child.waits_until > now_s else child.weight)
        return cost_s * waiting / child.weight * self._correction(now_s)

    def pay(self, cost_s: float, now_s: float) -> None:
        self.own_until_s = max(self.own_until_s, now_s - self.burst_s) + cost_s

    def use(self, cost_s: float, now_s: float) -> None:
        """Add used time, by its own rates or its share, whichever is more."""
        least_s = now_s if self._used_until_s == -math.inf else now_s - _LEFT_S
        self._used_until_s = max(self._used_until_s, least_s) + cost_s

    def _correction(self, now_s: float) -> float:
        """Above 1 while more is used than there is; below 1 while some is unused."""
        if (debt_s := self.debt_s(now_s)) > 0:
            return 1 + debt_s
        return math.exp(-_MAX_EXPONENT * min(1.0, max(0.0, now_s - self._used_until_s) / _LEFT_S))

    def charge(self, child: Paced, cost_s: float, now_s: float) -> None:
        """The child pays for its share while there is a debt or others wait, and waits itself until it has paid."""
        if self.debt_s(now_s) > 0 or self._waiting:
            # A device needs time to come back after a pause, so up to `BURST_S` of its share is kept.
            least_s = now_s - BURST_S if child.waits_until > now_s else now_s
            child.paid_until_s = max(child.paid_until_s, least_s) + cost_s
            # A device that its own rates limit more leaves its share to the others.
            if child.paid_until_s >= child.own_until_s:
                self.wait(child, max(child.paid_until_s, now_s) + _GRACE_S, now_s)

    def wait(self, child: Paced, until_s: float, now_s: float) -> None:
        """Count the child as waiting until then."""
        self._expire(now_s)
        if child.waits_until > self._expired_s:
            self._count(child.waits_until, -child.weight)
        child.waits_until = math.ceil(until_s)
        self._count(child.waits_until, child.weight)

    def _count(self, until: int, weight: float) -> None:
        self._until[until] = self._until.get(until, 0.0) + weight
        self._waiting += weight

    def _expire(self, now_s: float) -> None:
        if (now := math.floor(now_s)) == self._expired_s:
            return
        # Pauses are bounded, and so is the number of different seconds.
        for until in [until for until in self._until if until <= now]:
            self._waiting -= self._until.pop(until)
        if not self._until:
            self._waiting = 0.0
        self._expired_s = now


class Pacing:
    """The rates of a region, its tenants and their devices. Times are seconds of one clock."""

    def __init__(self, tenants: Mapping[str, TenantSettings], drain: Drain) -> None:
        self._tenants = {name: (SharedRate(weight=one.weight), one) for name, one in tenants.items()}
        self._unlisted = SharedRate(), TenantSettings()
        self._devices: OrderedDict[Sender, Paced] = OrderedDict()
        self.reconfigure(drain)

    def reconfigure(self, drain: Drain) -> None:
        self._rate, self._max_pause_s = drain.max_records_per_s, drain.max_pause_s
        self._region = SharedRate(burst_s=drain.burst_records / self._rate if self._rate else BURST_S)

    def refusal_s(self, sender: Sender, size: int, now_s: float) -> float:
        """0 if the sender's batch may be taken; else how long it should wait before it sends it again.

        A device is refused if it is far ahead of its own rates, or had its share while its tenant is far ahead.
        """
        if not self._devices:  # nobody was charged for anything
            return 0.0
        tenant, settings = self._tenant(sender)
        device = self._devices.get(sender)
        debt_s = tenant.debt_s(now_s)
        if device is not None and (
            device.own_until_s - now_s > MAX_DEBT_S or device.paid_until_s - now_s > MAX_AHEAD_S
        ):
            return self._bounded(device.debt_s(now_s))
        if debt_s <= MAX_DEBT_S or (debt_s <= 2 * MAX_DEBT_S and (device is None or not device.debt_s(now_s))):
            return 0.0
        device = device or self._device(sender, now_s)
        fair_s = tenant.share_cost_s(device, max(cost_s(settings, size, 1), _LEAST_S), now_s) / (1 + debt_s)
        wait_s = self._bounded(max(device.debt_s(now_s), fair_s, debt_s - MAX_DEBT_S))
        tenant.wait(device, now_s + wait_s + _GRACE_S, now_s)
        return wait_s

    def charge(self, sender: Sender, size: int, records: int, now_s: float) -> None:
        tenant, settings = self._tenant(sender)
        if not (self._rate or settings.has_limits):
            return
        shared_s = records / self._rate if self._rate else 0.0
        share_s = self._region.share_cost_s(tenant, shared_s, now_s)
        tenant_s = max(cost_s(settings, size, records), share_s)
        own_s = cost_s(settings.device, size, records)
        if not (tenant_s or own_s):
            return
        device = self._device(sender, now_s)
        device_s = tenant.share_cost_s(device, tenant_s, now_s)
        self._region.pay(shared_s, now_s)
        self._region.use(shared_s, now_s)
        tenant.use(tenant_s, now_s)
        tenant.pay(cost_s(settings, size, records), now_s)
        self._region.charge(tenant, share_s, now_s)
        device.pay(own_s, now_s)
        tenant.charge(device, device_s, now_s)
        device.paid_until_s = min(device.paid_until_s, now_s + self._max_pause_s)

    def pause_s(self, sender: Sender, now_s: float) -> float:
        """How long the sender should wait before it sends more."""
        device = self._devices.get(sender)
        return 0.0 if device is None else self._bounded(device.debt_s(now_s))

    def _tenant(self, sender: Sender) -> tuple[SharedRate, TenantSettings]:
        return self._tenants.get(sender.tenant, self._unlisted)

    def _device(self, sender: Sender, now_s: float) -> Paced:
        device = self._devices.setdefault(sender, Paced())
        self._devices.move_to_end(sender)
        # A device without debts needs no state. Removing up to two for each new one bounds their number.
        for _ in range(2):
            oldest, one = next(iter(self._devices.items()))
            is_over = max(one.paid_until_s, one.own_until_s) + BURST_S <= now_s and one.waits_until <= now_s
            if one is not device and (is_over or len(self._devices) > MAX_PACED):
                del self._devices[oldest]
        return device

    def _bounded(self, wait_s: float) -> float:
        return min(wait_s, self._max_pause_s)


_LEAST_S = 0.001
"""The least cost of a batch, for tenants without rates of their own."""
