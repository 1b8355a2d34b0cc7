"""What can keep a bill from being made.

BillingError
├── BadReference         an account or a tariff is not what the format says, or contradicts itself
├── UnknownCurrency      no currency of that name in ISO 4217's table
├── ContradictoryUsage   two rows say different things about one device, hour and zone at one time
├── UnpricedZone         usage of a zone that the tariff has no price for, of a meter that it has prices for elsewhere
├── NoTermsInForce       usage of a device whose account has no tariff at that moment
├── MissingRate          a tariff in a currency without a rate into the payer's
├── AmountTooLarge       a charge beyond all sense, of a mistyped price or exchange rate
├── AssignedTwice        a device that two accounts pay for at one moment
├── BadUsage             a table of usage that is not what its schema says
└── BadPeriod            a period that cannot be read or is empty

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


class ContradictoryUsage(BillingError):
    """Two rows of the same key and the same moment of computation differ."""

    def __init__(self, tenant: str, device: str, hour: datetime, zone: str) -> None:
        super().__init__(
            f"usage of {tenant}/{device} at {hour.isoformat()} in zone {zone!r} was computed twice, with two results"
        )


class UnpricedZone(BillingError):
    """A meter is sold, but not in this zone and window: a gap in the price list is never free."""

    def __init__(self, tariff: str, *, meter: str, zone: str, window: str, device: str, first_hour: datetime) -> None:
        where = f"zone {zone!r}" if zone else "outside all zones"
        when = f", window {window!r}" if window else ""
        anywhere = ", or one for zone '*'" if zone else ""
        super().__init__(
            f"tariff {tariff!r} has no price of {meter} for {where}{when}, where {device!r} was in the hour of "
            f"{first_hour.isoformat()} or later; publish a version with one{anywhere}"
        )


class NoTermsInForce(BillingError):
    """A device is assigned to an account that has no tariff yet."""

    def __init__(self, account: str, device: str, first_hour: datetime) -> None:
        super().__init__(
            f"account {account!r} has no tariff in force for {device!r} in the hour of {first_hour.isoformat()} or "
            "later; publish a version that is effective then"
        )


class MissingRate(BillingError):
    """A price cannot be stated in the payer's currency."""

    def __init__(self, currency: str, into: str) -> None:
        super().__init__(f"no exchange rate from {currency} into {into} in force at the period's end; publish one")


class AmountTooLarge(BillingError):
    """Charges above the maximum, which the register's tables could not store. The largest is named."""

    def __init__(self, account: str, price: str, amount_minor: int) -> None:
        super().__init__(
            f"a charge of account {account!r} ({price or 'fee or cap'}) is {amount_minor:,} minor units, "
            "above the maximum; check the price and exchange rate"
        )


class AssignedTwice(BillingError):
    """At one moment two accounts pay for a device."""

    def __init__(self, tenant: str, device: str, accounts: Sequence[str], moment: datetime) -> None:
        super().__init__(
            f"{tenant}/{device} is assigned to {' and to '.join(accounts)} at {moment.isoformat()}; end one of them"
        )


class BadUsage(BillingError):
    """Rows of usage that cannot be rated, whatever they mean."""


class BadPeriod(BillingError):
    """A period is `2026`, `2026-03`, `2026-03-05`, or `2026-03-05/2026-03-19`: local days."""
