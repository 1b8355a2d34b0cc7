"""Why a bill cannot be made. Each is a `CloudError`; a missing or damaged table is a `LakeError`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cloud_jobs.errors import CloudError


class BillingError(CloudError):
    """Base of all errors of billing."""


class BadReference(BillingError):
    """Reference data that is invalid or contradicts itself."""


class UnknownCurrency(BillingError):
    def __init__(self, currency: str) -> None:
        super().__init__(f"no currency {currency!r} in ISO 4217; use its three capital letters, for instance EUR")


class ContradictoryUsage(BillingError):
    """Two rows of one key and one commit differ."""

    def __init__(self, tenant: str, device: str, hour: datetime, zone: str) -> None:
        super().__init__(
            f"usage of {tenant}/{device} at {hour.isoformat()} in zone {zone!r} was computed twice, with two results"
        )


class UnpricedZone(BillingError):
    """The meter is sold, but has no price in this zone and window. A gap in the price list is never free."""

    def __init__(self, tariff: str, *, meter: str, zone: str, window: str, device: str, first_hour: datetime) -> None:
        where = f"zone {zone!r}" if zone else "outside all zones"
        when = f", window {window!r}" if window else ""
        anywhere = ", or one for zone '*'" if zone else ""
        super().__init__(
            f"tariff {tariff!r} has no price of {meter} for {where}{when}, where {device!r} was in the hour of "
            f"{first_hour.isoformat()} or later; publish a version with one{anywhere}"
        )


class NoTermsInForce(BillingError):
    """A device is assigned before its account has a tariff."""

    def __init__(self, account: str, device: str, first_hour: datetime) -> None:
        super().__init__(
            f"account {account!r} has no tariff in force for {device!r} in the hour of {first_hour.isoformat()} or "
            "later; publish a version that is effective then"
        )


class MissingRate(BillingError):
    """No exchange rate into the payer's currency."""

    def __init__(self, currency: str, into: str) -> None:
        super().__init__(f"no exchange rate from {currency} into {into} in force at the period's end; publish one")


class AmountTooLarge(BillingError):
    """Charges above the maximum that tables can store. The largest is named."""

    def __init__(self, account: str, price: str, amount_minor: int) -> None:
        super().__init__(
            f"a charge of account {account!r} ({price or 'fee or cap'}) is {amount_minor:,} minor units, "
            "above the maximum; check the price and exchange rate"
        )


class AssignedTwice(BillingError):
    """Two accounts pay for a device at one moment."""

    def __init__(self, tenant: str, device: str, accounts: Sequence[str], moment: datetime) -> None:
        super().__init__(
            f"{tenant}/{device} is assigned to {' and to '.join(accounts)} at {moment.isoformat()}; end one of them"
        )


class BadUsage(BillingError):
    """Usage rows that do not follow their schema."""


class BadPeriod(BillingError):
    """A period that cannot be read or is empty."""
