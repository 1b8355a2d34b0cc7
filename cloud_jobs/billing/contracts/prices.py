"""Prices of a meter by zone and window: flat or in tiers."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final, NamedTuple, Self

from pydantic import Field, model_validator

from cloud_jobs.billing.contracts.fields import Amount, Contract, Id, UnitAmount, Zone
from cloud_jobs.billing.units import MEASURE_OF, Meter, MeterZones

ANY_ZONE: Final = "*"
"""The price of every zone that has none of its own; "" is what is outside all zones."""
MAX_TIERS: Final = 100


class TierMode(StrEnum):
    """Graduated: each unit is priced by its own tier. Volume: all units by the tier of the whole quantity."""

    GRADUATED = "graduated"
    VOLUME = "volume"


class Pool(StrEnum):
    """Whose quantities are added up for tiers, allowances and caps: each device's or the whole account's."""

    DEVICE = "device"
    ACCOUNT = "account"


class Tier(Contract):
    """Units up to and including `up_to` (None: all above), in the unit of the price."""

    up_to: Amount | None = None
    unit_amount: UnitAmount


class PoolKey(NamedTuple):
    """The pool of a price in all versions of a tariff: by `pool_id`, or by the place of the price."""

    is_of_account: bool
    meter: Meter
    pool_id: str
    zone: str = ""
    window: str = ""


class Price(Contract):
    """The price of one unit of a meter in a zone and a window ("": when no other window has a price).

    Each price has its own allowance, tiers and rounding; prices with the same `pool_id` share them. `step`: the units
    that a pool pays for are rounded up to whole steps.
    """

    meter: Meter
    zone: Zone = ""
    window: str = ""
    unit: str
    unit_amount: UnitAmount | None = None
    tiers: Annotated[tuple[Tier, ...], Field(max_length=MAX_TIERS)] = ()
    tier_mode: TierMode = TierMode.GRADUATED
    allowance: Amount = Decimal(0)
    step: Annotated[Amount, Field(gt=0)] | None = None
    pool: Pool = Pool.DEVICE
    pool_id: Id | None = None

    @property
    def base_per_unit(self) -> int:
        """Base units of the meter in one unit of the price."""
        return MEASURE_OF[self.meter].sale_units[self.unit].base_per_unit

    @property
    def pool_key(self) -> PoolKey:
        is_of_account = self.pool is Pool.ACCOUNT
        if self.pool_id is not None:
            return PoolKey(is_of_account, self.meter, self.pool_id)
        return PoolKey(is_of_account, self.meter, "", self.zone, self.window)

    @property
    def is_flat(self) -> bool:
        """Whether every unit costs the same."""
        return not self.tiers and not self.allowance and self.step is None

    @model_validator(mode="after")
    def _of_its_meter(self) -> Self:
        measure = MEASURE_OF[self.meter]
        if self.unit not in measure.sale_units:
            units = " or ".join(repr(unit) for unit in measure.sale_units)
            raise ValueError(f"{self.meter} is sold by {units}, not by {self.unit!r}")
        if measure.zones is MeterZones.NONE and self.zone:
            raise ValueError(f"{self.meter} is metered for the whole device; leave out zone {self.zone!r}")
        if measure.zones in {MeterZones.INSIDE, MeterZones.GATES} and not self.zone:
            what = "gate" if measure.zones is MeterZones.GATES else "zone"
            raise ValueError(f'{self.meter} is of a {what}: name its zone, or write "*" for every one')
        if self.meter is Meter.ACTIVE_DAY and self.window:
            raise ValueError(f"{self.meter} counts whole days; leave out window {self.window!r}")
        return self

    @model_validator(mode="after")
    def _one_amount_or_tiers(self) -> Self:
        if (self.unit_amount is None) == (not self.tiers):
            raise ValueError("a price has either a unit_amount or tiers" + (", not both" if self.tiers else ""))
        if not self.tiers:
            if self.tier_mode is TierMode.VOLUME:
                raise ValueError("tier_mode is for prices with tiers, and this one has none")
            return self
        *below, last = self.tiers
        if last.up_to is not None:
            raise ValueError(f"the last tier ends at {last.up_to}; leave out its up_to: it applies to all above")
        bounds = [Decimal(0)]
        for number, tier in enumerate(below):
            if tier.up_to is None:
                raise ValueError(f"tiers.{number} has no up_to; only the last tier may be open")
            bounds.append(tier.up_to)
        for before, after in pairwise(bounds):
            if after <= before:
                raise ValueError(f"tiers must ascend, and up_to {after} follows {before}")
        return self

    def __str__(self) -> str:
        zone = {"": "outside", ANY_ZONE: "in any zone"}.get(self.zone, f"in zone {self.zone!r}")
        where = "" if MEASURE_OF[self.meter].zones is MeterZones.NONE else f" {zone}"
        return f"{self.meter}{where}" + (f" in window {self.window!r}" if self.window else "")
