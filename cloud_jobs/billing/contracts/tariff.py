"""The prices: what a unit of a meter costs where and when, in tiers, with allowances, caps and a minimum."""

from __future__ import annotations

from datetime import time
from decimal import Decimal
from enum import StrEnum
from typing import Final, Literal

from cloud_jobs.billing.contracts.fields import Amount, Contract, Id, Moment
from cloud_jobs.billing.meters import Meter

ANY_ZONE: Final = "*"
"""The price of every zone that has none of its own; "" is what is outside all zones."""

Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


class TierMode(StrEnum):
    """Graduated: each unit costs what its own tier says. Volume: all cost what the tier of the whole quantity says."""

    GRADUATED = "graduated"
    VOLUME = "volume"


class Pool(StrEnum):
    """What is added up before tiers, allowances and caps look at it: each device's, or the whole account's."""

    DEVICE = "device"
    ACCOUNT = "account"


class CapSpan(StrEnum):
    """Of how long a cap is the most: of each local day, or of the whole billing period."""

    DAY = "day"
    PERIOD = "period"


class Tier(Contract):
    """Units up to and including `up_to` (None: all above). Units are those of the price."""

    up_to: Amount | None = None
    unit_amount: Amount


class Price(Contract):
    """What one unit of a meter costs in a zone and a window ("": whenever no other window has a price)."""

    meter: Meter
    zone: str = ""
    window: str = ""
    unit: str
    unit_amount: Amount | None = None
    tiers: tuple[Tier, ...] = ()
    tier_mode: TierMode = TierMode.GRADUATED
    allowance: Amount = Decimal(0)
    pool: Pool = Pool.DEVICE


class Window(Contract):
    """Local times of a day on which another price may hold: from `begin` until `end` (excluded; before `begin`: the
    next day's), on quarters of an hour. `days`: the days on which it begins."""

    id: Id
    days: tuple[Weekday, ...]
    begin: time
    end: time


class Cap(Contract):
    """The most that is charged, for each device or the account, by local day or period; `meters` (): of all meters."""

    pool: Pool
    per: CapSpan
    amount: Amount
    meters: tuple[Meter, ...] = ()


class Tariff(Contract):
    """One version of a price list, in force from `effective_from` until the next version's.

    What has a price for one zone must have one for each: a zone without a price, and without one for ANY_ZONE, is an
    error, never free. A meter without any price is not sold. `minimum_amount`: the least that an account pays a period.
    """

    id: Id
    effective_from: Moment
    currency: str
    prices: tuple[Price, ...]
    windows: tuple[Window, ...] = ()
    caps: tuple[Cap, ...] = ()
    minimum_amount: Amount | None = None
