"""How many requests for certificates are looked at: from one sender, and from all. Pure: handed the time."""

from __future__ import annotations

from collections import OrderedDict

from pydantic import Field

from waybill.daemon.token_bucket import TokenBucket
from waybill.settings import Settings

__all__ = ["EnrolmentRateSettings", "EnrolmentRates"]


class EnrolmentRateSettings(Settings):
    """Bounds of what is asked for."""

    requests_per_s: float = Field(default=50.0, gt=0, le=10_000)
    """Requests of all senders that are handled a second: each costs a signature, and a message to Pulsar."""
    burst: int = Field(default=200, ge=1, le=100_000)
    """How many of them may come at once."""
    tenant_requests_per_s: float = Field(default=10.0, gt=0, le=10_000)
    """Of these of the devices of one tenant; who asks for a device that has not this claim is a tenant of its own."""
    tenant_burst: int = Field(default=50, ge=1, le=100_000)
    """How many of them may come at once."""
    sender_interval_s: float = Field(default=5.0, gt=0, le=86_400)
    """One sender is read once in so long."""
    sender_burst: int = Field(default=5, ge=1, le=1000)
    """... and may come so often at once: an answer may be lost."""
    max_senders: int = Field(default=10_000, ge=1, le=1_000_000)
    """Senders that are remembered; the one that was silent for longest is forgotten first."""


class EnrolmentRates:
    """Each sender has a rate of its own, and each tenant: who asks again and again takes nothing from the others."""

    def __init__(self, settings: EnrolmentRateSettings) -> None:
        self._settings = settings
        self._all = TokenBucket(settings.requests_per_s, settings.burst)
        self._senders: OrderedDict[str, TokenBucket] = OrderedDict()
        self._tenants: dict[str, TokenBucket] = {}

    def try_sender(self, sender: str, now_s: float) -> bool:
        """Whether a request of this sender is read now. What it asks for too often is charged to nobody else."""
        settings = self._settings
        bucket = self._senders.pop(sender, None) or TokenBucket(1 / settings.sender_interval_s, settings.sender_burst)
        # Put in last: who was silent for longest stands first, and is forgotten first.
        self._senders[sender] = bucket
        if len(self._senders) > settings.max_senders:
            self._senders.popitem(last=False)
        return bucket.try_take(now_s)

    def try_tenant(self, tenant: str, now_s: float) -> bool:
        """Whether one that was read is handled now. `tenant`: of the device that it is for, "" if unknown."""
        return self._of_tenant(tenant).try_take(now_s) and self._all.try_take(now_s)

    def _of_tenant(self, tenant: str) -> TokenBucket:
        # As many as an operator has put into the registry: nobody else names one here.
        if (bucket := self._tenants.get(tenant)) is None:
            bucket = TokenBucket(self._settings.tenant_requests_per_s, self._settings.tenant_burst)
            self._tenants[tenant] = bucket
        return bucket
