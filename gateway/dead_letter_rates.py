"""How many dead letters are kept: of each tenant a number a second, and of each of its devices a part of that. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from gateway.validation import Sender
from waybill.daemon.token_bucket import TokenBucket

KEPT_PER_S = 10.0
"""So many a second are kept of each tenant in the long run ..."""
KEPT_AT_ONCE = 200.0
"""... and so many at once. Those above are refused and counted without a copy: anybody can send garbage."""
DEVICE_PART = 0.1
"""So much of both one device may have: what it sends leaves room for copies of what the others send."""
MAX_DEVICES = 10_000
"""Devices whose part is known; of more, the one that was refused longest ago is forgotten."""


class DeadLetterRates:
    """What is kept of refused messages. No `tenants`: all share one number; else strangers have none."""

    def __init__(self, tenants: Collection[str]) -> None:
        self._tenants = {name: TokenBucket(KEPT_PER_S, KEPT_AT_ONCE) for name in tenants or ("",)}
        self._devices: OrderedDict[Sender, TokenBucket] = OrderedDict()

    def try_take(self, sender: Sender, now_s: float) -> bool:
        """Whether one more is kept of a sender."""
        tenant = self._tenants.get(sender.tenant) or self._tenants.get("")
        if tenant is None:
            return False
        device = self._device(sender)
        if device.tokens(now_s) < 1 or not tenant.try_take(now_s):
            return False
        device.take(1, now_s)
        return True

    def _device(self, sender: Sender) -> TokenBucket:
        if sender not in self._devices:
            self._devices[sender] = TokenBucket(DEVICE_PART * KEPT_PER_S, DEVICE_PART * KEPT_AT_ONCE)
        self._devices.move_to_end(sender)
        if len(self._devices) > MAX_DEVICES:
            self._devices.popitem(last=False)
        return self._devices[sender]
