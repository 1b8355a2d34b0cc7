"""Why a bill cannot be made. Each is a `CloudError`; a missing or damaged table is a `LakeError`."""

from __future__ import annotations

from cloud_jobs.errors import CloudError


class BillingError(CloudError):
    """Base of all errors of billing. Nobody tells those of reference data, usage and prices apart: the message does."""


class BadPeriod(BillingError):
    """A period that cannot be read or is empty."""
