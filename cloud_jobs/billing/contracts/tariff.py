"""Tariffs: prices by meter, zone and window, with tiers, caps, fees and a minimum fee."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import combinations, islice
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from cloud_jobs.billing.contracts.fees import Fees, Proration, repeated_ids
from cloud_jobs.billing.contracts.fields import Amount, Contract, Currency, Id, decimals_of
from cloud_jobs.billing.contracts.prices import ANY_ZONE, Pool, Price
from cloud_jobs.billing.contracts.windows import Window, overlaps_of
from cloud_jobs.billing.units import MEASURE_OF, Meter, MeterZones, exponent
from geo.reference.moments import Moment

MAX_PRICES: Final = 10_000
MAX_WINDOWS: Final = 100
MAX_CAPS: Final = 100


class CapSpan(StrEnum):
    """The time that a cap limits: each local day, or the whole billing period."""

    DAY = "day"
    PERIOD = "period"


class Cap(Contract):
    """The maximum for each device or the account, by local day or period. `meters` (): all meters."""

    pool: Pool
    per: CapSpan
    amount: Amount
    meters: tuple[Meter, ...] = ()

    def holds_for(self, meter: Meter) -> bool:
        return not self.meters or meter in self.meters


class Tariff(Contract):
    """One version of a price list, in force from `effective_from` until the next version.

    A meter that has a price for one zone needs one for every zone in which it is used, its own or ANY_ZONE's; a missing
    price is an error, never free. A meter without any price is not sold; `not_sold` must name one that the previous
    version sells. `minimum_amount`: the least that an account pays for a period in which it has a device, or for any
    period with `minimum_without_devices`; see `proration`. `calendar`: has the seasons and holidays of the windows.
    """

    id: Id
    effective_from: Moment
    currency: Currency
    calendar: Id | None = None
    prices: Annotated[tuple[Price, ...], Field(max_length=MAX_PRICES)]
    windows: Annotated[tuple[Window, ...], Field(max_length=MAX_WINDOWS)] = ()
    caps: Annotated[tuple[Cap, ...], Field(max_length=MAX_CAPS)] = ()
    fees: Fees = ()
    minimum_amount: Amount | None = None
    proration: Proration = Proration.BY_DAY
    minimum_without_devices: bool = False
    not_sold: tuple[Meter, ...] = ()

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        faults = [*self._window_faults(), *self._price_faults(), *self._cap_faults(), *self._fee_faults()]
        faults += self._decimal_faults()
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _window_faults(self) -> Iterator[str]:
        yield from repeated_ids("windows", (window.id for window in self.windows))
        yield from overlaps_of(self.windows)
        for window in self.windows if self.calendar is None else ():
            if window.needs_calendar:
                yield f"window {window.id!r} has a season or holidays; write calendar = and the id of a calendar"

    def _price_faults(self) -> Iterator[str]:
        windows = {"": True} | {window.id: window.is_on_quarters for window in self.windows}
        placed: dict[tuple[Meter, str, str], int] = {}
        for number, price in enumerate(self.prices):
            first = placed.setdefault((price.meter, price.zone, price.window), number)
            if first != number:
                yield f"prices.{first} and prices.{number} are both for {price}"
            if price.window not in windows:
                yield f"prices.{number} is for window {price.window!r}, which the tariff does not have"
            elif not windows[price.window] and not MEASURE_OF[price.meter].is_of_facts:
                yield (
                    f"prices.{number} is for window {price.window!r}, which is not on quarters of an hour; "
                    f"{price.meter} is kept by the quarter"
                )
            if price.meter in self.not_sold:
                yield f"prices.{number} is for {price.meter}, which is in not_sold"
        yield from self._pool_faults()
        for meter, zone, window in placed:
            # "*" does not apply outside all zones
            default = ANY_ZONE if zone and MEASURE_OF[meter].zones is not MeterZones.NONE else zone
            if window and not {(meter, zone, ""), (meter, default, "")} & placed.keys():
                yield f"{self.prices[placed[meter, zone, window]]} has a price, and none outside its windows"

    def _pool_faults(self) -> Iterator[str]:
        """Prices of one pool may differ in amounts, but not in meter, pool, allowance and step."""
        first: dict[str, int] = {}
        for number, price in enumerate(self.prices):
            if price.pool_id is not None:
                at = first.setdefault(price.pool_id, number)
                one, other = (
                    {"meter": each.meter, "pool": each.pool, "allowance": each.allowance * each.base_per_unit}
                    | {"step": (each.step or 0) * each.base_per_unit}
                    for each in (self.prices[at], price)
                )
                for what in one:
                    if one[what] != other[what]:
                        yield f"prices.{at} and prices.{number} have one pool_id, {price.pool_id!r}, and two {what}s"

    def _cap_faults(self) -> Iterator[str]:
        sold = {price.meter for price in self.prices}
        for number, cap in enumerate(self.caps):
            if unsold := [meter for meter in cap.meters if meter not in sold]:
                yield f"caps.{number} is for {unsold[0]}, which has no price"
            if len(set(cap.meters)) != len(cap.meters):
                yield f"caps.{number} names a meter twice"
            if cap.per is CapSpan.DAY:
                # tiers and allowances are of the whole period, so a single day has no cost
                uneven = (price for price in self.prices if cap.holds_for(price.meter) and not price.is_flat)
                for price in islice(uneven, 1):
                    what = "tiers" if price.tiers else "an allowance" if price.allowance else "a step"
                    yield (
                        f"caps.{number} is by day, and the price for {price} has {what}; cap the period, or give the "
                        "price one amount"
                    )
        for (first, one), (second, other) in combinations(enumerate(self.caps), 2):
            shared = [meter for meter in Meter if one.holds_for(meter) and other.holds_for(meter)]
            if (one.pool, one.per) == (other.pool, other.per) and shared:
                yield f"caps.{first} and caps.{second} are both by {one.pool} and {one.per} for {shared[0]}"

    def _fee_faults(self) -> Iterator[str]:
        yield from repeated_ids("fees", (fee.id for fee in self.fees))
        sold = {price.meter for price in self.prices}
        for number, fee in enumerate(self.fees):
            if unsold := [meter for meter in fee.meters if meter not in sold]:
                yield f"fees.{number} is a percent of {unsold[0]}, which has no price"

    def _decimal_faults(self) -> Iterator[str]:
        digits = exponent(self.currency)
        amounts = {f"caps.{number}.amount": cap.amount for number, cap in enumerate(self.caps)}
        amounts |= {
            f"fees.{number}.amount": fee.amount for number, fee in enumerate(self.fees) if fee.amount is not None
        }
        if self.minimum_amount is not None:
            amounts["minimum_amount"] = self.minimum_amount
        yield from (
            f"{where} is {amount}, and {self.currency} has {digits or 'no'} digits after the point"
            for where, amount in amounts.items()
            if decimals_of(amount) > digits
        )
