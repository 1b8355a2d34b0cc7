"""What can keep a bill from being made.

BillingError
├── BadReference         an account or a tariff is not what the format says, or contradicts itself
├── UnknownCurrency      no currency of that name in ISO 4217's table
├── NoTariffInForce      usage of an hour for which the account's tariff has no version
├── ContradictoryUsage   two rows say different things about one device, hour and zone at one time
├── NotTheSameBill       an adjustment between bills of other accounts, periods or currencies
├── BadPeriod            a period that cannot be read or is empty
├── UnknownLine          a bill has no line of that number
├── NotMetered           no usage was ever computed
└── UnknownAccount       no account of that id was published, or it was not collected yet

A table that is missing or is not what the format says is a `LakeError`; both are a `CloudError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cloud_jobs.errors import CloudError


class BillingError(CloudError):
    """Base of everything that keeps a bill from being made."""


class BadReference(BillingError):
    """Reference data that no bill can be computed from."""


class UnknownCurrency(BillingError):
    """A currency that ISO 4217 does not list."""

    def __init__(self, currency: str) -> None:
        super().__init__(f"no currency {currency!r} in ISO 4217; use its three capital letters, for instance EUR")
        self.currency = currency


class NoTariffInForce(BillingError):
    """Usage that cannot be priced. Nothing is billed at zero in silence."""

    def __init__(self, tariff: str, hour: datetime) -> None:
        super().__init__(f"tariff {tariff!r} has no version in force at {hour.isoformat()}; publish one effective then")
        self.tariff = tariff
        self.hour = hour


class ContradictoryUsage(BillingError):
    """Two rows of the same key and the same moment of computation differ."""

    def __init__(self, tenant: str, device: str, hour: datetime, zone: str) -> None:
        super().__init__(
            f"usage of {tenant}/{device} at {hour.isoformat()} in zone {zone!r} was computed twice, with two results"
        )
        self.tenant = tenant
        self.device = device
        self.hour = hour
        self.zone = zone


class NotTheSameBill(BillingError):
    """Only two states of one bill have a difference."""


class BadPeriod(BillingError):
    """A period is `2026`, `2026-03`, `2026-03-05`, or `FROM/TO` in ISO 8601, UTC, on whole hours."""


class UnknownLine(BillingError):
    """The bill has no such line."""

    def __init__(self, number: int, lines: int) -> None:
        super().__init__(f"the bill has no line {number}; its lines are numbered 1 to {lines}")
        self.number = number


class NotMetered(BillingError):
    """Nobody has computed usage in this lake: a bill would be of nothing, whatever was driven."""

    def __init__(self, lake: str) -> None:
        super().__init__(f"usage was never computed in the lake {lake}; run `cloud-jobs usage --config FILE` first")


class UnknownAccount(BillingError):
    """No account of that id was collected by then."""

    def __init__(self, account: str, as_of: datetime, there: Sequence[str]) -> None:
        super().__init__(
            f"no account {account!r} was collected by {as_of.isoformat()}; there are: {', '.join(there) or 'none'}. "
            "What is published is collected by the next run of `cloud-jobs usage --config FILE`"
        )
        self.account = account
