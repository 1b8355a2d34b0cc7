"""The prices: what is sold where and when, with windows, caps and a minimum; one version of a list of them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import combinations, islice
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from cloud_jobs.billing.contracts.fields import Amount, Contract, Currency, Id, decimals_of
from cloud_jobs.billing.contracts.price import ANY_ZONE, Pool, Price
from cloud_jobs.billing.contracts.window import Window, window_of_quarters
from cloud_jobs.billing.currency import exponent
from cloud_jobs.billing.meters import MEASURE_OF, Meter, MeterZones
from geo.reference.moments import Moment

MAX_PRICES: Final = 10_000
MAX_WINDOWS: Final = 100
MAX_CAPS: Final = 100


class CapSpan(StrEnum):
    """Of how long a cap is the most: of each local day, or of the whole billing period."""

    DAY = "day"
    PERIOD = "period"


class Proration(StrEnum):
    """What an account pays of a minimum fee that is in force for a part of a period: all, or by its local days."""

    WHOLE = "whole"
    BY_DAY = "by_day"


class Cap(Contract):
    """The most that is charged, for each device or the account, by local day or period; `meters` (): of all meters."""

    pool: Pool
    per: CapSpan
    amount: Amount
    meters: tuple[Meter, ...] = ()

    def holds_for(self, meter: Meter) -> bool:
        """Whether what a meter costs counts."""
        return not self.meters or meter in self.meters


class Tariff(Contract):
    """One version of a price list, in force from `effective_from` until the next version's.

    What has a price for one zone must have one for each: a zone without a price, and without one for ANY_ZONE, is an
    error, never free. A meter without any price is not sold; `not_sold` says so of one that the version before sells.
    `minimum_amount`: the least that an account pays a period in which it has a device, or in any period with
    `minimum_without_devices`; by `proration` for the days on which the account is in force.
    """

    id: Id
    effective_from: Moment
    currency: Currency
    prices: Annotated[tuple[Price, ...], Field(max_length=MAX_PRICES)]
    windows: Annotated[tuple[Window, ...], Field(max_length=MAX_WINDOWS)] = ()
    caps: Annotated[tuple[Cap, ...], Field(max_length=MAX_CAPS)] = ()
    minimum_amount: Amount | None = None
    proration: Proration = Proration.BY_DAY
    minimum_without_devices: bool = False
    not_sold: tuple[Meter, ...] = ()

    @property
    def once_a_period(self) -> tuple[str, ...]:
        """What is counted from the first day of a period to its last, however long that is, in words."""
        agreed = {
            "allowances": any(price.allowance for price in self.prices),
            "the minimum fee": self.minimum_amount is not None,
            "caps of a period": any(cap.per is CapSpan.PERIOD for cap in self.caps),
            "tiers": any(price.tiers for price in self.prices),
        }
        return tuple(words for words, is_agreed in agreed.items() if is_agreed)

    @model_validator(mode="after")
    def _without_contradictions(self) -> Self:
        faults = [*self._window_faults(), *self._price_faults(), *self._cap_faults(), *self._decimal_faults()]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _window_faults(self) -> Iterator[str]:
        ids = [window.id for window in self.windows]
        yield from (f"two windows have the id {one!r}" for one in sorted(set(ids)) if ids.count(one) > 1)
        try:
            window_of_quarters({window.id: window for window in self.windows}.values())
        except ValueError as error:
            yield str(error)

    def _price_faults(self) -> Iterator[str]:
        windows = {"", *(window.id for window in self.windows)}
        placed: dict[tuple[Meter, str, str], int] = {}
        for number, price in enumerate(self.prices):
            first = placed.setdefault((price.meter, price.zone, price.window), number)
            if first != number:
                yield f"prices.{first} and prices.{number} are both for {price}"
            if price.window not in windows:
                yield f"prices.{number} is for window {price.window!r}, which the tariff does not have"
            if price.meter in self.not_sold:
                yield f"prices.{number} is for {price.meter}, which is in not_sold"
        yield from self._pool_faults()
        for meter, zone, window in placed:
            # "*" is no price of what is outside all zones
            default = ANY_ZONE if zone and MEASURE_OF[meter].zones is not MeterZones.NONE else zone
            if window and not {(meter, zone, ""), (meter, default, "")} & placed.keys():
                yield f"{self.prices[placed[meter, zone, window]]} has a price, and none outside its windows"

    def _pool_faults(self) -> Iterator[str]:
        """Prices of one pool may differ in amounts; of two allowances nobody could say which the pool has."""
        first: dict[str, int] = {}
        for number, price in enumerate(self.prices):
            if price.pool_id is not None:
                at = first.setdefault(price.pool_id, number)
                one, other = (
                    {"meter": each.meter, "pool": each.pool, "allowance": each.allowance * each.base_per_unit}
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
                # a day has no share of its own in a tier or an allowance of the whole period
                uneven = (price for price in self.prices if cap.holds_for(price.meter) and not price.is_flat)
                for price in islice(uneven, 1):
                    what = "tiers" if price.tiers else "an allowance"
                    yield (
                        f"caps.{number} is by day, and the price for {price} has {what}; cap the period, or give the "
                        "price one amount"
                    )
        for (first, one), (second, other) in combinations(enumerate(self.caps), 2):
            shared = [meter for meter in Meter if one.holds_for(meter) and other.holds_for(meter)]
            if (one.pool, one.per) == (other.pool, other.per) and shared:
                yield f"caps.{first} and caps.{second} are both by {one.pool} and {one.per} for {shared[0]}"

    def _decimal_faults(self) -> Iterator[str]:
        digits = exponent(self.currency)
        amounts = {f"caps.{number}.amount": cap.amount for number, cap in enumerate(self.caps)}
        if self.minimum_amount is not None:
            amounts["minimum_amount"] = self.minimum_amount
        yield from (
            f"{where} is {amount}, and {self.currency} has {digits or 'no'} digits after the point"
            for where, amount in amounts.items()
            if decimals_of(amount) > digits
        )
