"""What can be wrong with certificates and decisions.

BillingError
└── BadDecision   a decision without a name, a reason, or a moment that has come
"""

from __future__ import annotations

from collections.abc import Sequence

from cloud_jobs.billing.errors import BillingError
from cloud_jobs.lake.coverage import TenantDevice


class BadDecision(BillingError):
    """A decision that nobody could answer for; nothing is written."""

    def __init__(self, device: TenantDevice | None, faults: Sequence[str]) -> None:
        of = "" if device is None else f" of {device.tenant}/{device.device}"
        super().__init__(f"nothing is decided{of}: {'; '.join(faults)}")
        self.device = device
        self.faults = tuple(faults)
